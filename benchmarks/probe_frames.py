"""Frames of the twin with the truth about what is where in them: what the probe learns from.

What is here:
    * ``SIGHTS``: what the probe looks for: the gripper, then every thing of the core tasks by name.
    * ``Label``: the numbers that are known of one sight in one frame.
    * ``LabelledFrames``: frames and labels of a folder that ``worldgym collect`` wrote.
    * ``draw_batch``: training frames, some with things pasted from other frames or covered by bare table,
      so that doubled and vanished things, which the twin never shows, are known to the probe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from worldgym.data.clips import ClipFolder
from worldgym.envs.twin_tasks import CORE_TASKS
from worldgym.errors import DataError
from worldgym.video import resize

SIZE = 64
"""Side of the frames that the probe reads; positions are in pixels of such a frame."""
SIGHTS = (
    "gripper",
    *sorted({thing.name for task in CORE_TASKS.values() for thing in (*task.things, *task.extras)}),
)
PLAIN = 6
"""Pixels of a thing from which it counts as seen; with fewer it may be called either."""
INSTANCES = 2
"""How often one sight can be in a training frame."""
_REACH = {"plate": 13.0, "pot": 14.0}
"""Radius in pixels of a disc that covers a thing."""
_SMALL = 7.5
_ARM = 8.0
"""Pixels kept between a pasted disc and the gripper."""
_TABLE = 110
"""Grey level above which bare table lies, and below which arm and things do."""


class Label(IntEnum):
    """Index of each number that is known of a sight."""

    SEEN_X = 0
    """Middle of what is seen of it, pixels."""
    SEEN_Y = 1
    PIXELS = 2
    """How many pixels show it."""
    X = 3
    """Middle of the whole of it, seen or not, pixels."""
    Y = 4
    HEIGHT = 5
    """Of its bottom (the gripper: its pinch point) above the table, metres."""
    HELD = 6
    """Whether it is held; for the gripper how far it is open, 0 to 1."""


@dataclass(frozen=True)
class LabelledFrames:
    """Frames uint8 (N, 64, 64, 3) and labels float32 (N, sights, labels), NaN where a thing is not there."""

    frames: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.frames)


def labels_of(facts: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """Labels (T, sights, labels) of an episode, from what ``twin_episode.Facts`` has noted.

    Raises:
        DataError: If facts are missing.
    """
    try:
        length = len(facts["gripper"])
        labels = np.full((length, len(SIGHTS), len(Label)), np.nan, np.float32)
        grip = SIZE * np.array(facts["gripper"])
        open_ = np.array(facts["opening"])
        labels[:, 0] = np.stack(
            [*grip.T, np.full(length, 99), *grip.T, np.array(facts["gripper_height"]), open_], axis=1
        )
        for index, name in enumerate(facts["names"]):
            if name not in SIGHTS:
                continue
            seen = np.array([row[index] or (np.nan, np.nan) for row in facts["centroids"]], float)
            whole = np.array([row[index] for row in facts["objects"]], float)
            area = np.array([row[index] for row in facts["visible"]]) * SIZE**2
            height = np.array([row[index] for row in facts["heights"]])
            held = np.array([row[index] for row in facts["held"]], float)
            columns = [*(SIZE * seen).T, area, *(SIZE * whole).T, height, held]
            labels[:, SIGHTS.index(name)] = np.stack(columns, axis=1)
    except (KeyError, IndexError, TypeError) as error:
        raise DataError(f"expected clips of the twin, whose npz says what is where: {error!r}") from error
    return labels


def read_frames(clips: ClipFolder, chosen: Sequence[int], *, per_clip: int | None = None) -> LabelledFrames:
    """Frames of some clips, ``per_clip`` of each evenly spread over it, or all.

    Raises:
        DataError: If a video cannot be read, or a clip is none of the twin.
    """

    def read(number: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
        episode = clips[number]
        count = len(episode) if per_clip is None else min(per_clip, len(episode))
        picked = np.unique(np.linspace(number % 3, len(episode) - 1, count).astype(int))
        return resize(episode.frames[picked], (SIZE, SIZE)), labels_of(episode.metadata)[picked]

    with ThreadPoolExecutor(4) as pool:  # videos are decoded in processes of their own
        frames, labels = zip(*pool.map(read, chosen), strict=True)
    return LabelledFrames(np.concatenate(frames), np.concatenate(labels))


def draw_batch(
    source: LabelledFrames, chosen: Sequence[int] | npt.NDArray[np.int64], rng: np.random.Generator
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Frames (B, 64, 64, 3) and labels (B, sights, INSTANCES, labels) of a training batch."""
    frames = source.frames[chosen].copy()
    labels = np.full((len(frames), len(SIGHTS), INSTANCES, len(Label)), np.nan, np.float32)
    labels[:, :, 0] = source.labels[chosen]
    for frame, label in zip(frames, labels, strict=True):
        for _ in range(int(rng.choice([0, 4, 8]))):  # tries; most are refused
            paste(frame, label, source, rng)
    return frames, labels


def paste(
    frame: npt.NDArray[np.uint8],
    label: npt.NDArray[np.float32],
    source: LabelledFrames,
    rng: np.random.Generator,
) -> bool:
    """Put a disc of another frame into ``frame``, in place: with a thing on it, or bare table.

    Nothing happens, and False is returned, if something would be cut in two.
    """
    other = int(rng.integers(len(source)))
    patch = _thing_to_paste(source.labels[other], rng) if rng.random() < 0.6 else None
    sight, middle = patch if patch is not None else (None, rng.uniform(10, SIZE - 10, 2))
    reach = rng.uniform(9, 15) if sight is None else _REACH.get(SIGHTS[sight], _SMALL)
    shift = rng.integers(-8, 9, 2)
    place = middle + shift
    if (place < reach).any() or (place > SIZE - reach).any():
        return False
    piece, mask = _disc(source.frames[other], middle, shift, reach)
    if sight is None and piece[mask > 0].min() < _TABLE:
        return False
    covered = _covered(label, place, reach)
    if covered is None or (sight is not None and not np.isnan(label[sight, :, Label.X]).any()):
        return False
    label[covered] = np.nan
    frame[:] = np.round(frame + mask[..., None] * (piece - frame.astype(np.float32))).astype(np.uint8)
    if sight is not None:
        free = int(np.flatnonzero(np.isnan(label[sight, :, Label.X]))[0])
        label[sight, free] = source.labels[other, sight]
        label[sight, free, [Label.SEEN_X, Label.SEEN_Y]] += shift
        label[sight, free, [Label.X, Label.Y]] += shift
    return True


def _thing_to_paste(
    label: npt.NDArray[np.float32], rng: np.random.Generator
) -> tuple[int, npt.NDArray[np.float64]] | None:
    """A thing (its index and middle) of a frame (sights, labels) that stands free on the table, if any."""
    places = label[:, [Label.SEEN_X, Label.SEEN_Y]]
    free = []
    for sight in range(1, len(SIGHTS)):
        if not label[sight, Label.PIXELS] >= 30 or label[sight, Label.HEIGHT] > 0.004:
            continue
        reach = _REACH.get(SIGHTS[sight], _SMALL)
        others = [_REACH.get(name, _SMALL) if index else _ARM for index, name in enumerate(SIGHTS)]
        gaps = np.hypot(*(places - places[sight]).T) - reach - 0.7 * np.array(others)
        if np.nanmin(np.delete(gaps, sight)) > 0:
            free.append(sight)
    if not free:
        return None
    sight = free[int(rng.integers(len(free)))]
    return sight, places[sight].astype(np.float64)


def _covered(
    label: npt.NDArray[np.float32], place: npt.NDArray[np.float64], reach: float
) -> npt.NDArray[np.bool_] | None:
    """Which instances (sights, INSTANCES) a disc hides; None if it would hide a part of one, or the hand."""
    gaps = np.hypot(label[..., Label.SEEN_X] - place[0], label[..., Label.SEEN_Y] - place[1])
    if gaps[0, 0] < reach + _ARM:
        return None
    radii = np.array([[_REACH.get(name, _SMALL)] for name in SIGHTS])
    hidden = gaps + 0.8 * radii < reach
    clear = ~(gaps < reach + 0.9 * radii)
    hidden[0], clear[0] = False, True
    return hidden if (hidden | clear).all() else None


def _disc(
    frame: npt.NDArray[np.uint8],
    middle: npt.NDArray[np.float64],
    shift: npt.NDArray[np.int64],
    reach: float,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """A frame moved by ``shift``, and a disc (H, W) of 1 with a soft edge around its moved ``middle``."""
    moved = np.roll(frame, (int(shift[1]), int(shift[0])), axis=(0, 1)).astype(np.float32)
    x, y = (np.arange(SIZE) + 0.5 - centre for centre in middle + shift)
    mask = np.clip(reach - np.hypot(x[None, :], y[:, None]), 0, 1)
    return moved, mask.astype(np.float32)
