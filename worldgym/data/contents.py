"""What a folder of clips holds, without reading its videos: episodes, frames and successes of each family.

What is here:
    * ``family_contents``: one ``FamilyContents`` for each family of behaviour or policy that made clips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worldgym.data.clips import ClipFolder


@dataclass(frozen=True)
class FamilyContents:
    """The clips that one family made.

    Attributes:
        family: Its name; ``"unknown"`` where clips do not say.
        episodes: Number of clips.
        frames: Number of their frames.
        judged: Clips that say whether they succeeded.
        successes: Clips that did.
        failing_frames: Frames of clips that did not.
    """

    family: str
    episodes: int
    frames: int
    judged: int
    successes: int
    failing_frames: int


def family_contents(clips: ClipFolder) -> list[FamilyContents]:
    """What each family made, most clips first.

    Raises:
        DataError: If an npz cannot be read any more.
    """
    counts: dict[str, list[int]] = {}
    for index, length in enumerate(clips.lengths):
        record = clips.record(index)
        success = record.get("success")
        values = (1, int(length), success is not None, success is True, int(length) * (success is False))
        sums = counts.setdefault(record.get("family") or "unknown", [0] * len(values))
        counts[record.get("family") or "unknown"] = [a + int(b) for a, b in zip(sums, values, strict=True)]
    found = [FamilyContents(family, *sums) for family, sums in counts.items()]
    return sorted(found, key=lambda part: (-part.episodes, part.family))


def total_contents(parts: Sequence[FamilyContents]) -> FamilyContents:
    """All families together, under the name ``"all"``."""
    names = ("episodes", "frames", "judged", "successes", "failing_frames")
    return FamilyContents("all", *(sum(getattr(part, name) for part in parts) for name in names))
