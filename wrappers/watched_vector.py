"""Frames of all rows of a vector environment, and the end of rows before the environment's own.

What is here:
    * ``WatchedRows``: the base of wrappers that look at frames and may end rows, in every autoreset mode.

A row that such a wrapper ends is really reset inside, through ``options={"reset_mask": ...}``, in the way and
at the time that the environment's autoreset mode says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from worldgym.envs.requests import parse_reset
from worldgym.envs.rows import RowsEnv
from worldgym.errors import InvalidConfig, ResetNeeded
from worldgym.wrappers.batches import put_rows, row_of, row_value
from worldgym.wrappers.frame_source import Frames, FrameSource, chunk_frames
from worldgym.wrappers.infos import split_infos
from worldgym.wrappers.layers import RowCalls, layers

Step = tuple[Any, Any, Any, Any, dict[str, Any]]


class Played(NamedTuple):
    """What a row has shown in a step.

    Attributes:
        row: Row number.
        frames: The new frames, at least one.
        frame_index: Index of the last of them, where the environment says it.
    """

    row: int
    frames: Sequence[Frames] | Frames
    frame_index: int | None


class WatchedRows(RowCalls, VectorWrapper[Any, Any, Any, Any, Any]):
    """Follows the frames of every row through resets and autoresets.

    A subclass defines ``_begin_row``, ``_row_state`` and ``_put_row_state``. Its step calls ``_played`` for
    the new frames and ``_go_on`` at the end; if it ends rows itself, ``_step_inside`` and ``_finish``.

    Args:
        env: A vector environment.
        image_key: Key of the image in a dict observation.

    Raises:
        InvalidConfig: If there are no frames.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any], image_key: str | None) -> None:
        super().__init__(env)
        self._source = FrameSource(env.single_observation_space, env.render_mode, image_key)
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise InvalidConfig(f"expected an AutoresetMode in metadata['autoreset_mode'], got {mode!r}")
        if self._source.renders and mode is AutoresetMode.SAME_STEP:
            raise InvalidConfig(
                "with SAME_STEP the last frame of an episode cannot be rendered: use NEXT_STEP or DISABLED, "
                "or image observations"
            )
        self.autoreset_mode = mode
        self._over = np.zeros(env.num_envs, np.bool_)
        self._ended_here = np.zeros(env.num_envs, np.bool_)  # by this wrapper alone: the env could go on
        self._chunk = 1
        self._last_actions: Any = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes, in all rows or those of ``options["reset_mask"]``; ``options`` is not changed."""
        which = {key: value for key, value in (options or {}).items() if key in ("reset_mask", "env_idx")}
        rows = list(parse_reset(self.num_envs, None, which))
        copied = None if options is None else dict(options)
        observations, infos = self.env.reset(seed=seed, options=copied)  # type: ignore[arg-type]
        self._begin(rows, observations, infos)
        self._over[rows] = self._ended_here[rows] = False
        return observations, infos

    def get_state(self, row: int | None = None) -> Any:
        """Copy a row, or all rows, if the environment inside can be copied.

        Raises:
            AttributeError: If it cannot.
            ResetNeeded: If a row was never reset.
        """
        if row is None:
            return tuple(self._row_state(index) for index in range(self.num_envs))
        return self._row_state(row)

    def set_state(self, state: Any, row: int | None = None) -> None:
        """Continue from a copied state, or from one per row.

        Raises:
            InvalidConfig: If the number of states does not fit.
        """
        rows = range(self.num_envs) if row is None else [row]
        states = list(state) if isinstance(state, (list, tuple)) else [state]
        if len(states) != len(rows):
            raise InvalidConfig(f"set_state needs one state per row ({self.num_envs}), or a row number")
        for index, single in zip(rows, states, strict=True):
            self._put_row_state(index, single)

    # -- what a subclass defines -------------------------------------------------------------------------

    def _begin_row(self, row: int, frame: Frames, infos: dict[str, Any]) -> None:
        """An episode starts with this frame."""
        raise NotImplementedError

    def _row_state(self, row: int) -> Any:
        """A copy of a row, with what is inside."""
        raise NotImplementedError

    def _put_row_state(self, row: int, state: Any) -> None:
        """Continue a row from a copy."""
        raise NotImplementedError

    # -- frames ------------------------------------------------------------------------------------------

    def _begin(self, rows: Sequence[int], observations: Any, infos: dict[str, Any]) -> None:
        if not rows:
            return
        frames = self._source.newest(self.env, observations, vector=True)
        for row in rows:
            self._begin_row(row, frames[row], infos)

    def _played(
        self, observations: Any, ended: npt.NDArray[np.bool_], infos: dict[str, Any]
    ) -> Iterator[Played]:
        """What the running rows have shown in this step.

        With SAME_STEP the observations and infos of ended rows are those of the next episode already.
        """
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        rows = [row for row in range(self.num_envs) if same_step or not self._over[row]]
        newest = self._source.newest(self.env, observations, vector=True) if rows else []
        for row in rows:
            last = infos.get("final_info", {}) if same_step and ended[row] else infos
            frames = chunk_frames(row_value(last, "frames", row))
            if frames is not None:
                self._chunk = len(frames)
                yield Played(row, frames, row_value(last, "frame_index", row))
            elif last is infos:
                yield Played(row, [newest[row]], None)
            else:
                yield Played(row, [self._source.image(infos["final_obs"][row])], None)

    def _row_infos(self, infos: dict[str, Any], row_ended: np.bool_ | bool) -> dict[str, Any]:
        """The infos of a row's running episode: those of the episode that is over, if it is."""
        final = row_ended and self.autoreset_mode is AutoresetMode.SAME_STEP
        found: dict[str, Any] = infos["final_info"] if final else infos
        return found

    def _go_on(self, ended: npt.NDArray[np.bool_], observations: Any, infos: dict[str, Any]) -> None:
        """Begin the episodes that start with these observations, and remember which rows are over."""
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._begin([int(row) for row in np.flatnonzero(self._over)], observations, infos)
        elif self.autoreset_mode is AutoresetMode.SAME_STEP:
            self._begin([int(row) for row in np.flatnonzero(ended)], observations, infos)
        self._over = ended.copy()

    # -- ending rows -------------------------------------------------------------------------------------

    def _step_inside(self, actions: Any, waiting: list[int]) -> Step:
        """Step the environment; with NEXT_STEP rows that were ended here before are reset in its place.

        Args:
            actions: Of all rows; those of waiting rows are not looked at.
            waiting: The rows of ``_ended_here``.

        Raises:
            ResetNeeded: With DISABLED, if rows are waiting and the environment is none of this package.
        """
        if not waiting:
            self._last_actions = put_rows(actions, actions, [])
            return self.env.step(actions)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            if not isinstance(self.unwrapped, RowsEnv):
                raise ResetNeeded(
                    f"{type(self).__name__} has ended rows {waiting}: reset them with options['reset_mask']"
                )
            return self.env.step(actions)
        # The environment has to move these rows too; the action is ignored, so one that was valid will do.
        actions = put_rows(actions, self._last_actions, waiting)
        self._last_actions = actions
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        observations, infos = self._reset_rows(waiting, observations, infos)
        nothing = np.zeros(self.num_envs)
        return (
            observations,
            put_rows(rewards, nothing, waiting),
            put_rows(terminations, nothing, waiting),
            put_rows(truncations, nothing, waiting),
            infos,
        )

    def _finish(
        self,
        ended_here: list[int],
        waiting: list[int],
        *,
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        observations: Any,
        infos: dict[str, Any],
    ) -> tuple[Any, dict[str, Any]]:
        """Do at the end of a step what the autoreset mode says of the rows that were ended here.

        Args:
            ended_here: Rows that this wrapper ends in this step, while the environment could go on.
            waiting: Rows that it had ended before.
            terminated: Flags of all rows, with the ends made here.
            truncated: The same.
            observations: Of the step.
            infos: Of the step.

        Returns:
            The observations and infos to hand out.
        """
        held = list(ended_here)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            observations, infos = self._restart_now(ended_here, observations, infos)
            held = []
        elif self.autoreset_mode is AutoresetMode.DISABLED:
            self._hold(ended_here, terminated)
            held += waiting
        self._go_on(terminated | truncated, observations, infos)
        self._ended_here[:] = False
        self._ended_here[held] = True
        return observations, infos

    def _reset_rows(
        self, rows: list[int], observations: Any, infos: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Reset some rows inside; their observations and infos are replaced, all others stay."""
        mask = np.zeros(self.num_envs, np.bool_)
        mask[rows] = True
        fresh, fresh_infos = self.env.reset(options={"reset_mask": mask})
        started = split_infos(fresh_infos, self.num_envs)
        kept = split_infos(infos, self.num_envs)
        for row in rows:
            kept[row] = started[row]
        return put_rows(observations, fresh, rows), self._batched(kept)

    def _restart_now(
        self, rows: list[int], observations: Any, infos: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Reset rows within the step that ended them, as SAME_STEP does."""
        if not rows:
            return observations, infos
        last = split_infos(infos, self.num_envs)
        ends = {row: row_of(observations, row) for row in rows}
        observations, infos = self._reset_rows(rows, observations, infos)
        for row in rows:
            infos = self._add_info(infos, {"final_obs": ends[row], "final_info": last[row]}, row)
        return observations, infos

    def _hold(self, rows: Iterable[int], terminated: npt.NDArray[np.bool_]) -> None:
        """Tell an environment of this package that rows are over, so that it does not play on."""
        inside = self.unwrapped
        if not isinstance(inside, RowsEnv):
            return
        for row in rows:
            state = inside.engine.get_state(row)
            ended = bool(terminated[row])
            episode = replace(state.episode, terminated=ended, truncated=not ended)
            inside.set_state(replace(state, episode=episode), row)
            for layer in layers(self.env):
                if isinstance(layer, WatchedRows):
                    layer._over[row] = True  # it would take the frame that is kept for a new one

    def _batched(self, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        for row, info in enumerate(rows):
            infos = self._add_info(infos, info, row)
        return infos


def check_vector(env: Any) -> int:
    """Number of rows of a vector environment.

    Raises:
        InvalidConfig: If it is none.
    """
    if not isinstance(env, VectorEnv):
        raise InvalidConfig(
            f"expected a vector environment, got {type(env).__name__}; use the single wrapper"
        )
    return env.num_envs


__all__ = ["Played", "Step", "WatchedRows", "check_vector"]
