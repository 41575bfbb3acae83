"""``RowsEnv``: a world as a Gymnasium vector environment, with all of its semantics once.

What is here:
    * ``RowsEnv``: batching, the three autoreset modes, infos and their masks, rendering, branching.
    * ``World``, ``WorldStep``, ``Truth``: what a world must do (defined in ``protocol``).
    * ``RowsConfig``: the options (defined in ``requests``); ``RowState``: a branch point (in ``engine``).

The single form is ``worldgym.envs.single.SingleEnv``. Both run the same ``RowEngine``.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from worldgym.actions import ENV_SPEC
from worldgym.envs.engine import RowEngine, RowState
from worldgym.envs.protocol import Truth, World, WorldStep
from worldgym.envs.requests import (
    Choice,
    RowsConfig,
    check_rows,
    is_list,
    parse_autoreset_mode,
    parse_reset,
)
from worldgym.envs.view import RowView
from worldgym.errors import InvalidConfig
from worldgym.tasks import load_suite

__all__ = ["RowState", "RowsConfig", "RowsEnv", "Truth", "World", "WorldStep", "deliver", "single_spaces"]


def single_spaces(world: World, config: RowsConfig) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    """Observation and action space of one row: uint8 (H, W, 3) and float32 (7,) or (K, 7) in [-1, 1]."""
    observation = gymnasium.spaces.Box(0, 255, world.frame_shape, np.uint8)
    return observation, gymnasium.spaces.Box(-1.0, 1.0, config.action_shape, np.float32)


def deliver(array: npt.NDArray[Any], output: str, device: str) -> Any:
    """An array as the caller wants it: itself, or a tensor on ``device``."""
    if output == "numpy":
        return array
    import torch

    return torch.from_numpy(array).to(device)


class RowsEnv(VectorEnv[Any, Any, Any]):
    """A batch of independent episodes in one world.

    Row i of ``reset(seed=s)`` equals the single environment reset with ``seed=s + i``. A list gives each
    row its own seed. A reset without a seed, and an autoreset, starts the row's next episode: what it starts
    from is a function of (seed, episode index), or given by ``options`` (see ``parse_reset``).

    Observations are the newest frames, uint8 (N, H, W, 3). A step takes float32 actions (N, 7), or (N, K, 7)
    with ``chunk_size`` K; values outside [-1, 1] are clipped. Rewards are float64 (N,): 1.0 at success, where
    the world knows. An episode ends ``terminated`` (success) or ``truncated`` (limit), never both.

    Info keys, each with its mask ``_key`` as in every Gymnasium vector environment: ``instruction``,
    ``task``, ``trial``, ``seed``, ``episode_index``, ``frame_index``; after a step also ``frames`` (uint8
    (N, K, H, W, 3), all frames of the chunk) and, where the world knows, ``is_success`` and ``progress``.

    Autoreset modes: ``NEXT_STEP`` (an ended row ignores the next action and returns its reset), ``SAME_STEP``
    (an ended row returns its reset at once, the end is in ``final_obs`` and ``final_info``), ``DISABLED`` (an
    ended row is left alone: it keeps its frame and flags, gets reward 0 and no infos, until it is reset with
    ``options={"reset_mask": ...}``). All arrays returned are the caller's to keep.

    Args:
        world: The simulation, with as many rows as ``num_envs``.
        num_envs: Number of rows, N.
        config: The options.
        output_device: Where tensors go with ``output="torch"``.

    Raises:
        InvalidConfig: If an option cannot work.
        TrialError: If the trials cannot be used.
        OutOfMemory: If so many frames do not fit.
    """

    def __init__(
        self,
        world: World,
        num_envs: int = 1,
        *,
        config: RowsConfig | None = None,
        output_device: str = "cpu",
    ) -> None:
        config = config or RowsConfig()
        self.engine = RowEngine(world, num_envs, suite=load_suite(config.trials), config=config)
        self.num_envs = num_envs
        self.config = config
        self.action_spec = ENV_SPEC
        self.autoreset_mode = parse_autoreset_mode(config.autoreset_mode)
        self.render_mode = config.render_mode
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": world.fps / config.chunk_size,  # render() shows one frame per step
            "autoreset_mode": self.autoreset_mode,
        }
        self.single_observation_space, self.single_action_space = single_spaces(world, config)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._output_device = output_device
        self._views: list[RowView] = []

    @property
    def identity(self) -> dict[str, Any]:
        """What the world says of itself that can change results, beside the options; values json can hold."""
        return dict(getattr(self.engine.world, "identity", {}))

    # -- Gymnasium --------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes, in all rows or in those of ``options["reset_mask"]``.

        Args:
            seed: Non-negative int (row i gets ``seed + i``) or one per row; None continues each row's seed.
            options: See ``requests.parse_reset``.

        Returns:
            The newest frame of every row, and the infos of the rows that were reset.

        Raises:
            InvalidConfig: If seed or options do not fit.
            TrialError: If a task or trial does not exist.
            ResetNeeded: If only some rows are to be reset while others never were.
            EnvClosed: After ``close``.
        """
        self.engine.check_open()
        choices = parse_reset(self.num_envs, seed, options)
        for row in range(self.num_envs):
            if row not in choices:
                self.engine.episode(row)  # a row that never ran has no frame to show
        if seed is not None and not is_list(seed):
            super().reset(seed=operator.index(seed))  # type: ignore[arg-type]
        infos: dict[str, Any] = {}
        for row, info in self.engine.begin(choices, self._draw_seed).items():
            infos = self._add_info(infos, info, row)
        return self._observation(), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Play one chunk in every running row; see the class for what happens to ended rows.

        Args:
            actions: float32 (N, 7) or (N, K, 7), array or tensor. Rows that are not played are not looked at.

        Returns:
            Observations, rewards float64 (N,), terminations bool (N,), truncations bool (N,), infos.

        Raises:
            InvalidAction: If an action has the wrong shape or is not finite; nothing has moved then.
            ResetNeeded: If a row was never reset.
            EnvClosed: After ``close``.
        """
        ended = [self.engine.episode(row).ended for row in range(self.num_envs)]
        active = [row for row in range(self.num_envs) if not ended[row]]
        shape = (self.num_envs, *self.config.action_shape)
        chunks = check_rows(actions, shape, active).reshape(self.num_envs, self.config.chunk_size, -1)
        row_infos = self.engine.advance(active, chunks[active]) if active else {}
        rewards = np.zeros(self.num_envs)
        for row, info in row_infos.items():
            rewards[row] = float(info.get("is_success", False))

        if self.autoreset_mode is not AutoresetMode.DISABLED:
            # in SAME_STEP these are only rows that set_state put to an end
            row_infos |= self._restart([row for row in range(self.num_envs) if ended[row]])
        terminations, truncations = self._flags()
        infos: dict[str, Any] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            over = [int(row) for row in np.flatnonzero(terminations | truncations)]
            for row in over:
                frame = self._deliver(self.engine.newest_frame(row))
                infos = self._add_info(infos, {"final_obs": frame, "final_info": row_infos[row]}, row)
            row_infos |= self._restart(over)
        for row, info in sorted(row_infos.items()):
            infos = self._add_info(infos, info, row)
        flags = self._deliver(terminations), self._deliver(truncations)
        return self._observation(), self._deliver(rewards), *flags, infos

    def render(self) -> tuple[npt.NDArray[np.uint8], ...]:
        """The newest frame of each row, uint8 (H, W, 3).

        Raises:
            InvalidConfig: Without ``render_mode="rgb_array"``.
            ResetNeeded: If a row was never reset.
            EnvClosed: After ``close``.
        """
        return tuple(self.render_row(row) for row in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the world (``close`` calls this once)."""
        self.engine.close()

    # -- branching --------------------------------------------------------------------------------------

    def get_state(self, row: int | None = None) -> RowState | tuple[RowState, ...]:
        """Copy a row, or all rows.

        A state may be put into any row of any environment with the same world and options, and again and
        again: the same actions then lead to the same future.

        Raises:
            ResetNeeded: If a row was never reset.
        """
        if row is not None:
            return self.engine.get_state(row)
        return tuple(self.engine.get_state(index) for index in range(self.num_envs))

    def set_state(self, state: RowState | Sequence[RowState], row: int | None = None) -> None:
        """Continue from a copied state.

        Args:
            state: One state for ``row``, or one per row.
            row: The row to set; None for all.

        Raises:
            InvalidConfig: If the number of states does not fit.
        """
        if row is not None:
            state = [state]  # type: ignore[list-item]
        rows = range(self.num_envs) if row is None else [row]
        if isinstance(state, RowState) or len(state) != len(rows):
            raise InvalidConfig(f"set_state needs one state per row ({self.num_envs}), or a row number")
        for index, single in zip(rows, state, strict=True):
            self.engine.set_state(index, single)

    # -- what users of Sync- and AsyncVectorEnv expect ------------------------------------------------------

    @property
    def envs(self) -> list[RowView]:
        """One light view per row, with what evaluation code asks a sub-environment for."""
        if not self._views:
            self._views = [RowView(self, row) for row in range(self.num_envs)]
        return self._views

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every row's view, or read an attribute.

        Raises:
            AttributeError: If views have no such name.
        """
        found = [getattr(view, name) for view in self.envs]
        return tuple(value(*args, **kwargs) if callable(value) else value for value in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every row's view."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every row's view: a list or tuple holds one value per row.

        Raises:
            InvalidConfig: If a list has another length than there are rows.
        """
        if not isinstance(values, (list, tuple)):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise InvalidConfig(
                f"set_attr needs one value or {self.num_envs}, one per row, got {len(values)}"
            )
        for view, value in zip(self.envs, values, strict=True):
            setattr(view, name, value)

    def render_row(self, row: int) -> npt.NDArray[np.uint8]:
        """The newest frame of one row; see ``render``."""
        if self.render_mode is None:
            raise InvalidConfig("render() needs an environment made with render_mode='rgb_array'")
        return self.engine.newest_frame(row)

    # -- parts ------------------------------------------------------------------------------------------

    def _restart(self, rows: Sequence[int]) -> dict[int, dict[str, Any]]:
        return self.engine.begin({row: Choice() for row in rows}, self._draw_seed) if rows else {}

    def _flags(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        episodes = [self.engine.episode(row) for row in range(self.num_envs)]
        return np.array([e.terminated for e in episodes]), np.array([e.truncated for e in episodes])

    def _observation(self) -> Any:
        return self._deliver(self.engine.frames.copy())

    def _deliver(self, array: npt.NDArray[Any]) -> Any:
        return deliver(array, self.config.output, self._output_device)

    def _draw_seed(self) -> int:
        return int(self.np_random.integers(2**31))
