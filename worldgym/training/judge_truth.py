"""The truth about every task in every frame of the twin's episodes, for training judges.

What is here:
    * ``task_truths``: an episode replayed in the twin under the rules of many tasks.
    * ``KeptTruths``: the same for a folder of clips, replayed once and kept.
    * ``twin_tasks``: the twin's tasks as a judge sees them. ``is_twins``: whether a task is one of them.

An episode says when its own task was solved. Whether the same frames solve another task ("put the carrot on
the plate", seen with "put the eggplant on the plate") is what teaches a judge to read the instruction.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from worldgym.actions import ENV_SPEC, convert
from worldgym.episode import Episode
from worldgym.errors import require
from worldgym.judges.vocabulary import KnownTask
from worldgym.video import atomic_path

if TYPE_CHECKING:
    from worldgym.envs.twin_tasks import TwinTask

APART = 0.004
"""Metres of height by which a replay may differ from the record; what comes after more is not used."""

_KINDS = {"PutOn": "put", "TakeOut": "take", "Lift": "lift", "MoveSide": "move", "Push": "push"}
"""What each rule of the twin does."""
_HALF_FROM = {"put": 0.375, "take": 0.375, "lift": 0.125, "move": 0.25, "push": 0.25}
"""Progress from which the criterion for half a success is met: half-way to the level that meets it."""


def task_truths(episode: Episode, tasks: Sequence[str]) -> npt.NDArray[np.float32]:
    """Replay an episode of the twin.

    Args:
        episode: With the ``metadata`` that ``worldgym.envs.twin_episode.record`` gives.
        tasks: Keys of the twin's tasks, M of them.

    Returns:
        float32 (M, T, 2): success (0 or 1) and progress in each frame. NaN where it is not known: after the
        replay has left the record (contacts are chaotic), and throughout for tasks that are solved already
        at the start. A task with things that are not there is never solved.

    Raises:
        MissingExtra: If MuJoCo is not installed.
    """
    require("mujoco", extra="twin")
    from worldgym.envs.physics import Physics
    from worldgym.envs.twin_tasks import get_task

    facts = episode.metadata
    physics = Physics(facts["scene"])
    found = np.zeros((len(tasks), len(episode), 2), np.float32)
    rules = [get_task(key).rule for key in tasks]
    present = [
        row
        for row, rule in enumerate(rules)
        if {rule.target, getattr(rule, "goal", rule.target)} <= set(physics.kinds)
    ]
    actions = convert(episode.actions, episode.action_spec, ENV_SPEC)
    for frame in range(len(episode)):
        if frame:
            physics.act(np.clip(actions[frame - 1], -1, 1))
        heights = [physics.position(name)[2] for name in facts["names"]]
        if np.abs(np.subtract(heights, facts["heights"][frame])).max() > APART:
            found[present, frame:] = np.nan
            break
        for row in present:
            truth = rules[row].truth(physics)
            found[row, frame] = truth.success, truth.progress
    solved = [row for row in present if found[row, 0, 0] == 1]
    found[solved] = np.nan
    if episode.task in tasks:
        own = tasks.index(episode.task)
        found[own] = np.stack([facts["success"], facts["progress"]], axis=-1)
    return found


def twin_tasks(more: Iterable[str] = ()) -> list[KnownTask]:
    """The core tasks of the twin and those that share their scenes, with all their wordings.

    Args:
        more: Keys of other tasks of the twin; what is none is passed over.

    Raises:
        MissingExtra: If MuJoCo is not installed.
    """
    require("mujoco", extra="twin")
    from worldgym.envs.twin_tasks import CORE_TASKS, SWAP_TASKS, TASKS

    wanted = {**CORE_TASKS, **SWAP_TASKS}
    wanted |= {key: TASKS[key] for key in sorted(more) if key in TASKS}
    return [_known(task) for task in wanted.values()]


def is_twins(task: KnownTask) -> bool:
    """Whether a task is judged by a rule of the twin."""
    return task.kind.partition(" ")[0] in _HALF_FROM and " " not in task.key


def _known(task: TwinTask) -> KnownTask:
    side = getattr(task.rule, "side", None)
    kind = _KINDS[type(task.rule).__name__]
    return KnownTask(
        key=task.key,
        kind=f"{kind} {side}" if side else kind,
        target=task.rule.target,
        goal=getattr(task.rule, "goal", None),
        instructions=(*task.instructions, *task.unseen),
        criteria=task.partial_credit_criteria,
        half_from=_HALF_FROM[kind],
    )


class KeptTruths:
    """Truths of many episodes, kept in a folder so that each is replayed once.

    Args:
        folder: Where they are kept.
        tasks: Keys of the tasks.
    """

    def __init__(self, folder: str | os.PathLike[str], tasks: Sequence[str]) -> None:
        self.folder = Path(folder)
        self.tasks = tuple(tasks)

    def get(self, episode: Episode) -> npt.NDArray[np.float32]:
        """``task_truths`` of an episode; imagined ones share those of the episode that they repeat."""
        scene = json.dumps(episode.metadata["scene"], sort_keys=True).encode()
        content = hashlib.sha256(episode.actions.tobytes() + scene).hexdigest()[:16]
        path = self.folder / f"{episode.task}-{content}.npz"
        if path.is_file():
            with np.load(path) as kept:
                if tuple(kept["tasks"].tolist()) == self.tasks:
                    truths: npt.NDArray[np.float32] = kept["truths"].astype(np.float32)
                    return truths
        truths = task_truths(episode, self.tasks)
        with atomic_path(path) as target:
            np.savez_compressed(target, tasks=np.array(self.tasks), truths=truths.astype(np.float16))
        return truths
