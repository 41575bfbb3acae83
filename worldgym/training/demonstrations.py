"""Demonstrations of the twin's tasks: frames, what the expert would do there, and what is true in them.

What is here:
    * ``Demonstrations``: frames with labels, in memory. ``read_demonstrations`` reads a round of them.
    * ``collect_round``: plays episodes and writes them, one file per round; a file that is there is kept.
    * ``asked_tasks``: the twin's tasks as policies see them.

In the first round the expert acts, with noise and shoves that take it away from its way (Laskey et al. 2017,
"DART: noise injection for robust imitation learning"). In later ones a policy that has learned so far acts.
The labels are always the expert's own clean actions (``worldgym.envs.demonstrator``): what there is to learn
is the way back.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from worldgym.errors import DataError, require
from worldgym.policies.network import FACTS
from worldgym.policies.protocol import Policy
from worldgym.policies.wordings import GRIPPER, AskedTask, Wordings
from worldgym.video import atomic_path

if TYPE_CHECKING:
    from worldgym.envs.physics import Physics
    from worldgym.envs.twin_tasks import TwinTask

SIZE = 64
FRAMES = 40
"""Longest episode in actions."""
_BATCH = 8
"""Episodes per call of a worker."""
_AFTERWARDS = 5
"""Actions that are still shown after the task is solved."""
_LEVELS = (0.0, 0.0, 0.05, 0.1, 0.15)
_SHOVED = 0.06
"""Chance per action that the hand is taken somewhere else for a while."""
_KINDS = {"PutOn": "put", "TakeOut": "take", "Lift": "lift", "MoveSide": "move", "Push": "push"}


@dataclass(frozen=True)
class Demonstrations:
    """F frames with labels.

    Attributes:
        frames: uint8 (F, 64, 64, 3).
        actions: float32 (F, 7) what the expert would do, in ``worldgym.actions.ENV_SPEC``.
        tasks: int16 (F,) number of the task in ``asked_tasks``.
        facts: float32 (F, N, FACTS), what is true of each of the N names; see ``worldgym.policies.network``.
        episodes: int32 (F,) number of the episode.
    """

    frames: npt.NDArray[np.uint8]
    actions: npt.NDArray[np.float32]
    tasks: npt.NDArray[np.int16]
    facts: npt.NDArray[np.float32]
    episodes: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.frames)

    def some(self, share: float) -> Demonstrations:
        """A share of the episodes, evenly spread over all."""
        chosen = np.floor((self.episodes + 1) * share) > np.floor(self.episodes * share)
        return Demonstrations(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})


def round_file(folder: str | os.PathLike[str], number: int) -> Path:
    """Where the demonstrations of a round are."""
    return Path(folder) / f"round_{number}.npz"


def read_demonstrations(folder: str | os.PathLike[str], number: int) -> Demonstrations:
    """A round of a folder.

    Raises:
        DataError: If its file is missing or cannot be read.
    """
    path = round_file(folder, number)
    try:
        with np.load(path) as stored:
            return Demonstrations(**{field.name: stored[field.name] for field in fields(Demonstrations)})
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise DataError(f"{path} holds no demonstrations: {error!r}; collect them first") from error


def asked_tasks() -> Wordings:
    """The core tasks of the twin, and the other instructions that their scenes serve for.

    Raises:
        MissingExtra: If MuJoCo is not installed.
    """
    require("mujoco", extra="twin")
    from worldgym.envs.twin_tasks import CORE_TASKS, SWAP_TASKS

    return Wordings(_asked(task) for task in (CORE_TASKS | SWAP_TASKS).values())


def _asked(task: TwinTask) -> AskedTask:
    kind, side = _KINDS[type(task.rule).__name__], getattr(task.rule, "side", None)
    return AskedTask(
        key=task.key,
        kind=f"{kind} {side}" if side else kind,
        target=task.rule.target,
        goal=getattr(task.rule, "goal", None),
        wordings=task.instructions,
    )


def collect_round(
    folder: str | os.PathLike[str],
    number: int,
    *,
    episodes: int,
    seed: int = 0,
    policy: Policy | None = None,
    workers: int = 1,
    on_episode: Callable[[int, int], None] = lambda done, of: None,
) -> Path:
    """Play the episodes of a round and write them, unless they are there.

    Args:
        folder: Of the demonstrations.
        number: Of the round, from 0; with ``seed`` and the number of an episode it decides the episode.
        episodes: How many.
        seed: Of the whole collection.
        policy: Who acts; None: the expert, disturbed.
        workers: Processes. A script that uses several needs the usual ``if __name__ == "__main__"`` guard.
        on_episode: Called with the number of episodes done and of all.

    Returns:
        The file.

    Raises:
        DataError: If a worker has died.
        MissingExtra: If MuJoCo is not installed.
    """
    path = round_file(folder, number)
    if path.is_file():
        return path
    require("mujoco", extra="twin")
    batches = [range(first, min(first + _BATCH, episodes)) for first in range(0, episodes, _BATCH)]
    parts: list[dict[str, Any]] = []
    done = 0
    with _pool(workers) as played:
        for batch, part in zip(batches, played(_play, batches, seed, number, policy), strict=True):
            parts.append(part)
            done += len(batch)
            on_episode(done, episodes)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as target:
        np.savez_compressed(target, **_together(parts))
    return path


_Played = Callable[..., Iterator[dict[str, Any]]]


@contextmanager
def _pool(workers: int) -> Iterator[_Played]:
    """What plays batches one after another, or in processes of their own; always in their order."""

    def here(play: Callable[..., Any], batches: Sequence[range], *arguments: Any) -> Iterator[dict[str, Any]]:
        return (play(batch, *arguments) for batch in batches)

    if workers == 1:
        yield here
        return
    # spawned, not forked: a forked OpenGL context is broken
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:

        def there(
            play: Callable[..., Any], batches: Sequence[range], *arguments: Any
        ) -> Iterator[dict[str, Any]]:
            for future in [pool.submit(play, batch, *arguments) for batch in batches]:
                yield future.result()

        try:
            yield there
        except BrokenProcessPool as error:
            raise DataError(
                "a process that played demonstrations has died, maybe for want of memory"
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _play(batch: range, seed: int, number: int, policy: Policy | None) -> dict[str, Any]:
    """Some episodes of a round as the fields of ``Demonstrations``."""
    from worldgym.envs.camera import Renderer

    wordings = asked_tasks()
    renderer = Renderer(SIZE, SIZE)
    try:
        return _together(
            [
                _episode(
                    wordings, i, np.random.default_rng([seed, number, i]), renderer=renderer, policy=policy
                )
                for i in batch
            ]
        )
    finally:
        renderer.close()


def _together(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _episode(
    wordings: Wordings, index: int, rng: np.random.Generator, *, renderer: Any, policy: Policy | None
) -> dict[str, Any]:
    """One episode as the fields of ``Demonstrations``."""
    from worldgym.envs.demonstrator import demonstrate
    from worldgym.envs.physics import Physics
    from worldgym.envs.twin_scenes import make_scene
    from worldgym.envs.twin_tasks import SWAP_TASKS, get_task

    # the tasks for other instructions are few, so that they take little from the others
    kept = [n for n, task in enumerate(wordings.tasks) if task.key not in SWAP_TASKS or rng.random() < 0.3]
    number = int(rng.choice(kept))
    task = get_task(wordings.tasks[number].key)
    physics = Physics(make_scene(task, int(rng.integers(2**62)), purpose="training"))
    actor = _Disturbed(rng) if policy is None else _Learner(policy, rng, wordings.tasks[number].wordings[0])
    frames, actions, facts = [], [], []
    left = FRAMES
    while left > 0:
        frames.append(renderer.frame(physics))
        actions.append(demonstrate(task.rule, physics))
        facts.append(facts_of(physics, wordings.names))
        physics.act(actor.act(frames[-1], actions[-1]))
        left -= 1
        if task.truth(physics).success:
            left = min(left, _AFTERWARDS)
    return {
        "frames": np.stack(frames),
        "actions": np.stack(actions),
        "tasks": np.full(len(frames), number, np.int16),
        "facts": np.stack(facts),
        "episodes": np.full(len(frames), index, np.int32),
    }


class _Disturbed:
    """The expert with noise, now and then shoved."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._level = float(rng.choice(_LEVELS))
        self._shoving = 0
        self._shove = np.zeros(7)

    def act(self, frame: npt.NDArray[np.uint8], right: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        rng = self._rng
        if self._shoving == 0 and rng.random() < _SHOVED:
            self._shoving = int(rng.integers(2, 7))
            scale = [0.7, 0.7, 0.6, 0.1, 0.1, 0.3]
            gripper = rng.choice([right[6], 1.0, -1.0])
            self._shove = np.append(rng.uniform(-1, 1, 6) * scale, gripper)
        action = right.astype(np.float64)
        if self._shoving:
            self._shoving -= 1
            action = self._shove
        return _shaken(action, self._level, rng)


class _Learner:
    """A policy, in half of the episodes with noise; for some actions the expert takes over."""

    def __init__(self, policy: Policy, rng: np.random.Generator, instruction: str) -> None:
        self._policy, self._rng = policy, rng
        self._level = float(rng.choice([0.0, 0.0, 0.05, 0.15]))
        self._helped = 0
        policy.reset([0], [instruction], [int(rng.integers(2**31))])

    def act(self, frame: npt.NDArray[np.uint8], right: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        rng = self._rng
        action = self._policy.act([0], frame[None])[0]
        if self._helped == 0 and rng.random() < 0.05:
            self._helped = int(rng.integers(3, 10))
        if self._helped:
            self._helped -= 1
            action = right
        return _shaken(action, self._level, rng)


def _shaken(action: npt.ArrayLike, level: float, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """With noise, half of it for turns; the gripper is not reversed."""
    noise = rng.normal(0, level, 7)
    noise[3:6] *= 0.5
    return np.clip(np.asarray(action, np.float64) + noise, -1, 1).astype(np.float32)


def facts_of(physics: Physics, names: Sequence[str]) -> npt.NDArray[np.float32]:
    """What is true of the gripper and of things (N, FACTS); see ``worldgym.policies.network``.

    Things that are not there have ``present`` 0 and zeros.
    """
    from worldgym.envs.hand import up
    from worldgym.envs.scene import project

    facts = np.zeros((len(names), FACTS), np.float32)
    for row, name in enumerate(names):
        if name == GRIPPER:
            place, flag = physics.hand, physics.opening
            turn = physics.hand_angles[[2, 1]] / 0.25
            seen = place
        elif name in physics.kinds:
            kind = physics.kinds[name]
            place, flag = physics.position(name), float(physics.held(name))
            folds = 4 if kind.name == "cube" else 2
            turn = np.array([np.cos(folds * physics.yaw(name)), np.sin(folds * physics.yaw(name))])
            turn = turn if kind.long else np.zeros(2)
            seen = place + up(kind.height / 2)
        else:
            continue
        facts[row] = [*(place - [0.27, 0.0, 0.0]) / 0.1, *turn, flag, *project(physics.scene, seen), 1.0]
    return facts
