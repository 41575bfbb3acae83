"""Episodes as small pictures and videos inside the page.

What is here:
    * ``World``: the episodes and verdicts of a run, as a column of the gallery.
    * ``side_by_side``: the same start under every policy (and world).
    * ``failures``: episodes that were judged a failure or not at all.

Each episode is a video (mp4, base64) above a strip of stills; the strip is what paper shows.
"""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from worldgym.episode import Outcome, Verdict
from worldgym.errors import RunError
from worldgym.evaluation.page import paragraph
from worldgym.evaluation.perturb import CLEAN
from worldgym.evaluation.plan import EpisodeKey
from worldgym.evaluation.records import StoredEpisode
from worldgym.video import resize, tile, write_video

LARGEST_SIDE = 160
"""Pixels of a video in the page; larger ones are made smaller."""

LARGEST_FILE = 80_000
"""Bytes up to which a small enough video is taken as it is."""

STILLS = 5


@dataclass(frozen=True)
class World:
    """The episodes of a run, for the gallery.

    Attributes:
        name: What it is called beside another world; empty if it is the only one.
        episodes: By key.
        verdicts: By judge, then by key; the first judge's is shown first.
    """

    name: str
    episodes: Mapping[EpisodeKey, StoredEpisode]
    verdicts: Mapping[str, Mapping[EpisodeKey, Verdict]]

    def outcome(self, key: EpisodeKey) -> Outcome:
        """The first judge's outcome."""
        first = next(iter(self.verdicts.values()), {})
        return first[key].outcome if key in first else Outcome.UNSCORED


def side_by_side(worlds: Sequence[World], policies: Sequence[str], *, starts: int) -> str:
    """The same start under every policy, in every world.

    Starts are chosen where the policies differ, one per task before a second of the same task.

    Args:
        worlds: The run, then others to show beside it.
        policies: In the order of the ranking.
        starts: How many starts to show.
    """
    parts = []
    for entry in _choose_starts(worlds[0], starts):
        figures = [
            _figure(world, key, f"{world.name} · {policy}" if world.name else policy)
            for policy in policies
            for world in worlds
            if (key := EpisodeKey(policy, *entry)) in world.episodes
        ]
        instruction = next(e.instruction for key, e in worlds[0].episodes.items() if key[1:] == entry)
        _, task, trial, seed = entry
        title = escape(f"{instruction} — {task}, {trial}, seed {seed}")
        parts.append(
            f'<div class="start"><h3>{title}</h3><button>Play all</button>'
            f'<div class="clips">{"".join(figures)}</div></div>'
        )
    return "\n".join(parts)


def failures(world: World, policies: Sequence[str], *, most: int) -> str:
    """Failures and unscored episodes: of the better policies first, spread over tasks."""
    wrong = [key for key in world.episodes if world.outcome(key) is not Outcome.SUCCESS]
    rank = {policy: number for number, policy in enumerate(policies)}
    seen: dict[tuple[str, str], int] = {}
    order = []
    for key in sorted(wrong):
        turn = seen[key.policy, key.task] = seen.get((key.policy, key.task), 0) + 1
        order.append((world.outcome(key) is Outcome.FAILURE, turn, rank.get(key.policy, 0), key))
    chosen = [key for *_, key in sorted(order)[:most]]
    if not chosen:
        return paragraph("Every episode was judged a success.")
    figures = "".join(_figure(world, key, key.policy, reason=True) for key in chosen)
    left_out = len(wrong) - len(chosen)
    more = paragraph(f"{left_out} more are in the run folder.", kind="soft") if left_out else ""
    return f'<button>Play all</button><div class="clips">{figures}</div>{more}'


def _choose_starts(world: World, most: int) -> list[tuple[str, str, str, int]]:
    outcomes: dict[tuple[str, str, str, int], set[Outcome]] = {}
    for key in world.episodes:
        if key.condition == CLEAN.name:
            outcomes.setdefault(key[1:], set()).add(world.outcome(key))
    seen: dict[str, int] = {}
    order = []
    for entry in sorted(outcomes, key=lambda entry: (-len(outcomes[entry]), entry)):
        turn = seen[entry[1]] = seen.get(entry[1], 0) + 1
        order.append((turn, -len(outcomes[entry]), entry))
    return [entry for *_, entry in sorted(order)[:most]]


def _figure(world: World, key: EpisodeKey, title: str, *, reason: bool = False) -> str:
    episode = world.episodes[key]
    lines = [f"<b>{escape(title)}</b>"]
    if reason:
        where = f"{key.task}, {key.trial}, seed {key.seed}"
        lines.append(escape(where if key.condition == CLEAN.name else f"{where}, {key.condition}"))
        lines.append(f"told: {escape(episode.told)}")
    for judge, verdicts in world.verdicts.items():
        verdict = verdicts.get(key)
        outcome = Outcome.UNSCORED if verdict is None else verdict.outcome
        score = "" if verdict is None or verdict.score is None else f" ({verdict.score:.2f})"
        lines.append(f'<span class="{outcome}">{outcome}</span>{score} <small>{escape(judge)}</small>')
        if reason and verdict is not None and verdict.reason:
            lines.append(f"<small>{escape(verdict.reason[:300])}</small>")
    return f"<figure>{_clip(episode)}<figcaption>{'<br>'.join(lines)}</figcaption></figure>"


def _clip(episode: StoredEpisode) -> str:
    try:
        frames = episode.load_frames()
    except RunError as error:
        return paragraph(f"no video: {error}", kind="note")
    stills = np.unique(np.linspace(0, len(frames) - 1, STILLS).round().astype(int))
    small = resize(frames[stills], _shrunk(frames.shape[1:3], 72))[:, None]
    strip = tile(list(small), columns=len(stills))[0]
    size = _shrunk(frames.shape[1:3], LARGEST_SIDE)
    if size == frames.shape[1:3] and episode.video.stat().st_size <= LARGEST_FILE:
        video = episode.video.read_bytes()
    else:
        with tempfile.TemporaryDirectory() as folder:
            video = write_video(Path(folder, "small.mp4"), resize(frames, size), fps=episode.fps).read_bytes()
    return (
        '<video muted loop playsinline tabindex="0" preload="metadata" title="click to play or stop" '
        f'poster="{_jpeg(resize(frames[:1], size)[0])}" src="data:video/mp4;base64,{_base64(video)}"></video>'
        f'<img alt="frames {", ".join(map(str, stills))}" src="{_jpeg(strip)}">'
    )


def _shrunk(size: tuple[int, ...], largest: int) -> tuple[int, int]:
    """Height and width of at most ``largest``, and even, because only such videos play everywhere."""
    factor = min(1.0, largest / max(size))
    height, width = (max(2, round(side * factor / 2) * 2) for side in size)
    return height, width


def _jpeg(frame: npt.NDArray[np.uint8]) -> str:
    """A frame as an address of itself."""
    picture = io.BytesIO()
    Image.fromarray(frame).save(picture, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{_base64(picture.getvalue())}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
