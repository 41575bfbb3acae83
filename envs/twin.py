"""The MuJoCo twin as an environment: the ground truth that the learned world is measured against.

What is here:
    * ``TwinEnv`` and ``TwinVectorEnv``: what ``WorldGym-BridgeTwin-v0`` makes.
    * ``TwinEnvConfig``: their keyword arguments.
    * ``TwinWorld``: scenes in motion behind the ``World`` protocol.

Spaces, action meaning, tasks and info keys are those of the learned world. Reward and termination come from
the task's own rule; ``info["is_success"]`` and ``info["progress"]`` are always there after a step. An episode
is a function of its trial and actions alone: the twin draws no random numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.utils import EzPickle

from worldgym.envs.camera import Renderer
from worldgym.envs.physics import FPS, Physics, PhysicsState
from worldgym.envs.protocol import Truth, WorldStep
from worldgym.envs.requests import RowsConfig
from worldgym.envs.rows import RowsEnv
from worldgym.envs.scene import check_scene, mujoco
from worldgym.envs.single import SingleEnv
from worldgym.envs.twin_tasks import TwinTask, get_task
from worldgym.errors import InvalidConfig, TrialError
from worldgym.fingerprint import content_hash
from worldgym.tasks import Trial

DEFAULT_FRAME_SIZE = (64, 64)
"""Height and width that the packaged world model has, so that both worlds have the same spaces."""


@dataclass(frozen=True, kw_only=True)
class TwinEnvConfig(RowsConfig):
    """The keyword arguments of the twin, beside those of ``RowsConfig``. JSON-able.

    Attributes:
        frame_size: Height and width of the frames.
        threads: Threads that share the rows of a vector environment; None for one per usable processor.
    """

    frame_size: Sequence[int] = DEFAULT_FRAME_SIZE
    threads: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.frame_size
        if len(size) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 16 for n in size):
            raise InvalidConfig(
                f"frame_size must be a height and a width of at least 16 pixels, got {size!r}"
            )
        if self.threads is not None and (isinstance(self.threads, bool) or self.threads < 1):
            raise InvalidConfig(f"threads must be a positive int or None, got {self.threads!r}")


@dataclass(frozen=True)
class TwinState:
    """A copy of a row: its task, and where everything is."""

    task: TwinTask
    physics: PhysicsState


@dataclass
class _Row:
    task: TwinTask
    physics: Physics


class _Worker:
    """A thread with its own OpenGL context: such a context works in one thread only."""

    def __init__(self, size: Sequence[int]) -> None:
        self.renderer = Renderer(*size)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="twin")

    def start(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return self._thread.submit(work, self.renderer, *arguments)

    def close(self) -> None:
        self._thread.submit(self.renderer.close).result()
        self._thread.shutdown()


class TwinWorld:
    """Runs rows in MuJoCo; see ``worldgym.envs.protocol.World``.

    Args:
        config: The options.
        num_rows: Number of rows.
    """

    fps = FPS
    nondeterministic = False

    def __init__(self, config: TwinEnvConfig, num_rows: int) -> None:
        self.frame_shape = (int(config.frame_size[0]), int(config.frame_size[1]), 3)
        self.config = config
        self._rows: list[_Row | None] = [None] * num_rows
        self._workers: list[_Worker] = []

    @property
    def identity(self) -> dict[str, str]:
        """The physics engine and a hash of what says how things look, move and count as done."""
        return {"mujoco": str(mujoco.__version__), "twin": _content()}

    def reset(
        self, rows: Sequence[int], trials: Sequence[Trial], seeds: Sequence[int], instructions: Sequence[str]
    ) -> npt.NDArray[np.uint8]:
        """Set up the trials' scenes.

        Raises:
            TrialError: If a trial has no scene, or is of a task that the twin does not have; no row has
                changed then.
        """
        tasks = [twin_task(trial) for trial in trials]
        for trial in trials:
            check_scene(trial.scene)

        def set_up(renderer: Renderer, row: int, task: TwinTask, trial: Trial) -> npt.NDArray[np.uint8]:
            assert trial.scene is not None
            physics = Physics(trial.scene)
            self._rows[row] = _Row(task, physics)
            return renderer.frame(physics)

        return np.stack(self._on_each(set_up, rows, tasks, trials))

    def step(self, rows: Sequence[int], actions: npt.NDArray[np.float32]) -> WorldStep:
        """Play one chunk in each row; the truth is always known."""

        def play(
            renderer: Renderer, row: int, chunk: npt.NDArray[np.float32]
        ) -> tuple[npt.NDArray[np.uint8], Truth]:
            running = self._running(row)
            frames, truths = [], []
            for action in chunk:
                running.physics.act(action)
                frames.append(renderer.frame(running.physics))
                truths.append(running.task.truth(running.physics))
            return np.stack(frames), Truth(any(truth.success for truth in truths), truths[-1].progress)

        frames, truths = zip(*self._on_each(play, rows, actions), strict=True)
        return WorldStep(np.stack(frames), truths)

    def get_state(self, row: int) -> TwinState:
        """A copy of a row."""
        running = self._running(row)
        return TwinState(running.task, running.physics.get_state())

    def set_state(self, row: int, state: TwinState) -> None:
        """Continue a row from a copy."""
        running = self._rows[row]
        if running is None or running.physics.scene is not state.physics.scene:
            running = _Row(state.task, Physics(state.physics.scene))
        running.physics.set_state(state.physics)
        self._rows[row] = _Row(state.task, running.physics)

    def physics(self, row: int) -> Physics:
        """The scene of a row, to ask or to move by hand (for tests and scripts)."""
        return self._running(row).physics

    def close(self) -> None:
        """Give threads and OpenGL contexts back."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        self._rows = [None] * len(self._rows)

    def _running(self, row: int) -> _Row:
        running = self._rows[row]
        assert running is not None, "the environment resets rows before it uses them"
        return running

    def _on_each(self, work: Callable[..., Any], rows: Sequence[int], *columns: Any) -> list[Any]:
        """Do something for every row, each in its thread; the results in the order of the rows."""
        if not self._workers:
            count = min(self.config.threads or _processors(), len(self._rows))
            self._workers = [_Worker(self.frame_shape[:2]) for _ in range(count)]
        futures = [
            self._workers[row % len(self._workers)].start(work, row, *values)
            for row, *values in zip(rows, *columns, strict=True)
        ]
        return [future.result() for future in futures]


@cache
def _content() -> str:
    """Sixteen hex digits over the files that say how the twin looks and moves, and what solves a task."""
    here = Path(__file__).parent
    names = ("arm", "camera", "objects", "physics", "scene", "twin_rules", "twin_tasks")
    files = [*(here / f"{name}.py" for name in names), here / "assets" / "bridge.xml"]
    return sha256("".join(content_hash(file) for file in files).encode()).hexdigest()[:16]


def _processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def twin_task(trial: Trial) -> TwinTask:
    """The twin's task of a trial: the last part of its key names it.

    Raises:
        TrialError: If the trial has no scene, or there is no such task.
    """
    if trial.scene is None:
        raise TrialError(
            f"trial {trial.key} has no scene: the twin can only start from trials whose json describes one"
        )
    return get_task(trial.task.rsplit("/", 1)[-1])


class TwinEnv(EzPickle, SingleEnv):
    """The twin, one episode at a time.

    A pickled environment is made anew from its arguments; its running episode is not kept.

    Args:
        **kwargs: Fields of ``TwinEnvConfig``.

    Raises:
        TrialError: If the trials cannot be used.
        InvalidConfig: If an option cannot work.
        MissingExtra: If MuJoCo is not installed.

    Example:
        >>> env = TwinEnv(episode_frames=2)
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> sorted({"is_success", "progress"} & set(info))
        ['is_success', 'progress']
        >>> env.close()
    """

    def __init__(self, **kwargs: Any) -> None:
        EzPickle.__init__(self, **kwargs)
        config = TwinEnvConfig(**kwargs)
        SingleEnv.__init__(self, TwinWorld(config, 1), config=config)


class TwinVectorEnv(EzPickle, RowsEnv):
    """The twin, a batch of episodes shared among threads.

    A pickled environment is made anew from its arguments; its running episodes are not kept.

    Args:
        num_envs: Number of rows.
        **kwargs: Fields of ``TwinEnvConfig``.

    Raises:
        TrialError: If the trials cannot be used.
        InvalidConfig: If an option cannot work.
        MissingExtra: If MuJoCo is not installed.

    Example:
        >>> envs = TwinVectorEnv(2)
        >>> observations, infos = envs.reset(seed=0)
        >>> observations, *_ = envs.step(envs.action_space.sample())
        >>> len(observations)
        2
        >>> envs.close()
    """

    def __init__(self, num_envs: int = 1, **kwargs: Any) -> None:
        EzPickle.__init__(self, num_envs, **kwargs)
        config = TwinEnvConfig(**kwargs)
        RowsEnv.__init__(self, TwinWorld(config, num_envs), num_envs, config=config)
