"""Worlds that show the action they played, or from some frame on another one, and a head that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from stand_ins import quantise

from worldgym.envs.protocol import WorldStep
from worldgym.envs.requests import RowsConfig
from worldgym.envs.rows import RowsEnv
from worldgym.envs.single import SingleEnv
from worldgym.models.inverse_head import InverseConfig, save_head
from worldgym.tasks import TaskSuite, Trial

SIZE = 64
WRONG_FROM = 3
"""The frame from which on a world with a fault is wrong."""
OBEYING = 0
"""A seed without a fault."""
FAULTS = ("none", "disobeys", "freezes", "explodes", "washes out")


def obeying_suite() -> TaskSuite:
    """One start frame: a grey checkerboard, which has some sharpness to lose."""
    image = np.full((SIZE, SIZE, 3), 110, np.uint8)
    image[::2, ::2] = 140
    return TaskSuite([Trial(task="task", name="start", instruction="do it", image=image)])


@dataclass(frozen=True)
class ShowState:
    seed: int
    frame: np.ndarray
    index: int = 0
    at: int = 0


class ShowWorld:
    """Writes the action it played into the first line, and moves a square; a fault is ``seed % 10``."""

    fps = 5.0

    def __init__(self, num_rows: int, *, size: int = SIZE) -> None:
        self.frame_shape = (size, size, 3)
        self.states: list[ShowState | None] = [None] * num_rows
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def reset(
        self, rows: Sequence[int], trials: Sequence[Trial], seeds: Sequence[int], instructions: Sequence[str]
    ) -> np.ndarray:
        self.calls.append(("reset", tuple(rows)))
        for row, trial, seed in zip(rows, trials, seeds, strict=True):
            self.states[row] = ShowState(seed, trial.load_frame())
        return self._large(np.stack([trial.load_frame() for trial in trials]))

    def step(self, rows: Sequence[int], actions: np.ndarray) -> WorldStep:
        self.calls.append(("step", tuple(rows)))
        frames = np.stack([[self._play(row, action) for action in actions[n]] for n, row in enumerate(rows)])
        return WorldStep(self._large(frames), [None] * len(rows))

    def _play(self, row: int, action: np.ndarray) -> np.ndarray:
        state = self.states[row]
        assert state is not None
        index = state.index + 1
        number = state.seed % 10
        fault = FAULTS[number] if index >= WRONG_FROM and number < len(FAULTS) else "none"
        if fault == "freezes":
            frame = state.frame
        elif fault == "explodes":
            frame = np.random.default_rng([state.seed, index]).integers(0, 256, state.frame.shape, np.uint8)
        elif fault == "washes out":
            frame = np.full_like(state.frame, 125)
        else:
            frame = obeying_suite()[0].load_frame()
            at = 8 + 5 * (index % 8)
            frame[at : at + 8, at : at + 8] = 30
            frame[0, :7] = quantise(-action if fault == "disobeys" else action)[:, None]
        self.states[row] = replace(state, index=index, frame=frame)
        return frame

    def _large(self, frames: np.ndarray) -> np.ndarray:
        times = self.frame_shape[0] // SIZE
        return frames.repeat(times, axis=-3).repeat(times, axis=-2)

    def get_state(self, row: int) -> Any:
        return self.states[row]

    def set_state(self, row: int, state: Any) -> None:
        self.states[row] = state

    def close(self) -> None:
        pass


def show_env(*, size: int = SIZE, judge: None = None, **config: Any) -> SingleEnv:
    config.setdefault("trials", obeying_suite())
    return SingleEnv(ShowWorld(1, size=size), config=RowsConfig(**config))


def show_envs(num_envs: int = 4, *, size: int = SIZE, judge: None = None, **config: Any) -> RowsEnv:
    config.setdefault("trials", obeying_suite())
    return RowsEnv(ShowWorld(num_envs, size=size), num_envs, config=RowsConfig(**config))


def written_action(frame: np.ndarray) -> np.ndarray:
    """The action that a frame shows."""
    return frame[0, :7, 0].astype(np.float32) / 127.5 - 1


def read_written(self: Any, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In place of ``InverseHead.read``: exact, and it expects an error of 0.1."""
    assert windows.shape[1:] == (3, SIZE, SIZE, 3)
    assert windows.dtype == np.uint8
    actions = np.stack([written_action(window[-1]) for window in windows])
    return actions, np.full_like(actions, 0.1)


def write_head(folder: Path, *, episodes: int = 40) -> str:
    """A head with random weights and a calibration in which every disagreement is a quarter or less."""
    calibration = np.random.default_rng(0).uniform(0, 1, (episodes, 20, 2)).astype(np.float32)
    calibration[..., 1] = 3
    config = InverseConfig(widths=(8, 8, 8), hidden=8)
    return str(save_head(config.network(), config, calibration, folder))
