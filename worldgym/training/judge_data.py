"""What a judge is trained on: clips in memory, with the truth about each frame.

What is here:
    * ``JudgeClips``: the frames of clips, and what is true about every task in each of them.
    * ``load_clips``: reads them from folders: the twin's episodes, imagined ones, anybody's labelled ones.

Of the twin's episodes everything is known; of imagined ones the twin's outcome, but not where things are; of
other clips only whether they succeeded: then the last frame is a success, or no frame is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from worldgym.data.clips import ClipFolder
from worldgym.episode import Episode
from worldgym.errors import DataError
from worldgym.judges.network import FRAME_SIZE
from worldgym.judges.vocabulary import GRIPPER, KnownTask, Vocabulary, plain
from worldgym.training.judge_truth import KeptTruths, is_twins, twin_tasks
from worldgym.video import resize

logger = logging.getLogger(__name__)
_EVENT = 0.05
"""Change of progress within a frame from which something has happened."""
_SEEN = 0.0006
"""Part of the frame (two and a half pixels of 64x64) from which a thing counts as fully seen."""
_READERS = 4
"""Videos that are decoded at once."""


@dataclass(frozen=True)
class JudgeClips:
    """Clips end to end: N frames of C clips, M tasks, S things that are looked for (the gripper first).

    Attributes:
        frames: uint8 (N, 64, 64, 3).
        begin: int64 (C + 1,) first frame of each clip, and N.
        own: int64 (C,) number of the task that each clip was asked for.
        present: bool (C, M) whether the things of a task are in the scene.
        truths: float16 (N, M, 2) success and progress; NaN where not known.
        sight: float16 (N, S, 5) x, y, visible, height in decimetres, held; NaN where not known.
        fps: float (C,) frames per second.
        families: What made each clip.
        sources: ``"twin"``, ``"model"`` or ``"other"`` of each clip.
    """

    frames: npt.NDArray[np.uint8]
    begin: npt.NDArray[np.int64]
    own: npt.NDArray[np.int64]
    present: npt.NDArray[np.bool_]
    truths: npt.NDArray[np.float16]
    sight: npt.NDArray[np.float16]
    fps: npt.NDArray[np.float64]
    families: tuple[str, ...]
    sources: tuple[str, ...]

    def __len__(self) -> int:
        """Number of clips."""
        return len(self.own)

    def events(self, clip: int) -> npt.NDArray[np.int64]:
        """Frames of a clip, from its own first one, in which the progress of its task changes."""
        first, last = self.begin[clip : clip + 2]
        progress = np.nan_to_num(self.truths[first:last, self.own[clip]].astype(np.float32)).sum(-1)
        return np.flatnonzero(np.abs(np.diff(progress)) > _EVENT) + 1


@dataclass(frozen=True)
class _Record:
    """A clip without its frames."""

    length: int
    episode: Episode
    replayed: bool

    @property
    def facts(self) -> dict[str, Any]:
        return self.episode.metadata

    @property
    def of_twin(self) -> bool:
        return {"scene", "names", "heights"} <= set(self.facts)

    @property
    def source(self) -> str:
        if not self.of_twin:
            return "other"
        return "model" if "world" in self.facts else "twin"


def load_clips(
    folders: Sequence[str | Path],
    *,
    truths: str | Path,
    known: Vocabulary | None = None,
    max_clips: int | None = None,
    replays: int | None = None,
) -> tuple[JudgeClips, Vocabulary]:
    """Read clips, and find out what is true in them.

    Args:
        folders: Folders of clips.
        truths: Folder that keeps what replays in the twin have found.
        known: Tasks of the judge that is trained further; they keep their numbers. New are the twin's tasks,
            if there are clips of the twin, and every other instruction that is not known.
        max_clips: Most clips that are read of each folder, evenly spread over it.
        replays: Most clips of each folder that are replayed in the twin, evenly spread; None: all of them.
            Of the others only the outcome of their own task is known, and that tasks with things that are
            not there are not solved.

    Raises:
        DataError: If no clip can be used; clips that cannot be read are logged and left out.
        MissingExtra: If there are clips of the twin and MuJoCo is not installed.
    """
    frames: list[npt.NDArray[np.uint8]] = []
    records: list[_Record] = []
    for folder in folders:
        read = list(_labelled(ClipFolder(folder), max_clips))
        stride = 1 if replays is None else max(1, -(-len(read) // replays))
        for place, episode in enumerate(read):
            frames.append(_fit(episode.frames))
            light = replace(episode, frames=episode.frames[:, :1, :1].copy())  # a view would keep them all
            records.append(_Record(len(episode), light, place % stride == 0))
        del read
    if not records:
        raise DataError(f"no clip in {[str(f) for f in folders]} has both an instruction and a success")
    vocabulary = _vocabulary(records, known)
    own = [vocabulary.find(record.episode.instruction) for record in records]
    kept = KeptTruths(truths, [task.key for task in vocabulary.tasks if is_twins(task)])
    present = np.stack([_present(r, n or 0, vocabulary) for r, n in zip(records, own, strict=True)])
    told = [
        _truths(record, number or 0, vocabulary, there, kept)
        for record, number, there in zip(records, own, present, strict=True)
    ]
    clips = JudgeClips(
        frames=np.concatenate(frames),
        begin=np.cumsum([0, *map(len, frames)]).astype(np.int64),
        own=np.array(own, np.int64),
        present=present,
        truths=np.concatenate(told),
        sight=np.concatenate([_sight(record, vocabulary.names) for record in records]),
        fps=np.array([record.episode.fps for record in records]),
        families=tuple(record.episode.family or "" for record in records),
        sources=tuple(record.source for record in records),
    )
    return clips, vocabulary


def _labelled(folder: ClipFolder, most: int | None) -> Iterator[Episode]:
    """The readable clips that have a label."""
    count = len(folder) if most is None else min(most, len(folder))
    indices = np.linspace(0, len(folder) - 1, count).round().astype(int).tolist()

    def read(index: int) -> Episode | None:
        try:
            episode = folder[index]
        except DataError as error:
            logger.warning("left out: %s", error)
            return None
        if not episode.instruction or episode.success is None:
            logger.warning("left out: %s has no instruction or no success", folder.names[index])
            return None
        return episode

    with ThreadPoolExecutor(_READERS) as readers:
        yield from (episode for episode in readers.map(read, indices) if episode is not None)


def _fit(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    size = (FRAME_SIZE, FRAME_SIZE)
    return frames if frames.shape[1:3] == size else resize(frames, size)


def _vocabulary(records: Sequence[_Record], known: Vocabulary | None) -> Vocabulary:
    tasks = list(known.tasks) if known else []
    keys = {task.key for task in tasks}
    if any(record.of_twin for record in records):
        asked = {record.episode.task for record in records if record.of_twin}
        tasks += [task for task in twin_tasks(asked) if task.key not in keys]
    for record in records:
        text = record.episode.instruction
        if Vocabulary(tasks).find(text) is None:
            tasks.append(KnownTask(plain(text), plain(text), plain(text), None, (text,)))
    return Vocabulary(tasks)


def _present(record: _Record, own: int, vocabulary: Vocabulary) -> npt.NDArray[np.bool_]:
    """(M,) whether the things of each task are there; elsewhere than in the twin only one's own are known."""
    there = set(record.facts["names"]) if record.of_twin else set()
    found = np.array([{t.target, t.goal or t.target} <= there for t in vocabulary.tasks])
    found[own] = True
    return found


def _truths(
    record: _Record, own: int, vocabulary: Vocabulary, present: npt.NDArray[np.bool_], kept: KeptTruths
) -> npt.NDArray[np.float16]:
    """(T, M, 2)."""
    episode = record.episode
    truths = np.full((record.length, len(vocabulary), 2), np.nan, np.float16)
    if record.of_twin:
        numbers = [n for n, task in enumerate(vocabulary.tasks) if is_twins(task)]
        if record.replayed:
            truths[:, numbers] = kept.get(episode).transpose(1, 0, 2)
        else:
            absent = [n for n in numbers if not present[n]]
            truths[:, absent] = 0
            truths[:, own] = np.stack([record.facts["success"], record.facts["progress"]], axis=-1)
    elif episode.success:
        truths[-1, own] = 1
    else:
        truths[:, own, 0] = 0
        truths[-1, own, 1] = np.nan if episode.progress is None else episode.progress
    return truths


def _sight(record: _Record, names: Sequence[str]) -> npt.NDArray[np.float16]:
    """(T, S, 5). In imagined frames things need not be where they are in the twin."""
    facts, sight = record.facts, np.full((record.length, len(names), 5), np.nan, np.float16)
    if record.source != "twin":
        return sight
    sight[:, :, 2] = 0  # whatever is not in the scene is not seen
    sight[:, names.index(GRIPPER)] = np.column_stack(
        [facts["gripper"], np.ones(record.length), np.multiply(facts["gripper_height"], 10), facts["opening"]]
    )
    for column, name in enumerate(facts["names"]):
        if name in names:
            place, visible, height, held = (
                np.array([row[column] for row in facts[key]], np.float64)
                for key in ("objects", "visible", "heights", "held")
            )
            seen = np.clip(visible / _SEEN, 0, 1)
            # what has fallen off the table may be anywhere, even behind the camera
            place[np.abs(place - 0.5).max(axis=1) > 0.75] = np.nan
            sight[:, names.index(name)] = np.column_stack([place, seen, np.clip(height * 10, -2, 10), held])
    return sight
