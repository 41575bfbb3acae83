"""The end of rows whose imagination has left the requested actions; all rows are read together.

What is here:
    * ``VectorActionConsistency``: as ``ActionConsistency``, row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv

from worldgym.errors import ResetNeeded
from worldgym.models.inverse_head import InverseHead
from worldgym.wrappers.batches import like, on_host
from worldgym.wrappers.consistency import ConsistencyState, check_index, consistency_config
from worldgym.wrappers.consistency_rules import ConsistencyRule, Watched
from worldgym.wrappers.frame_source import Frames
from worldgym.wrappers.layers import layer_with
from worldgym.wrappers.requested_actions import RequestedActions
from worldgym.wrappers.watched_vector import Step, WatchedRows, check_vector


class VectorActionConsistency(WatchedRows, RecordConstructorArgs):
    """Truncates rows whose frames no longer show the requested actions; see ``ActionConsistency``.

    ``infos["consistency"]`` is batched as Gymnasium batches infos, with masks; with SAME_STEP what was found
    at the end of an episode is in ``final_info``. What follows an end is what the autoreset mode says, as for
    ``VectorVLMTermination``: NEXT_STEP resets the row in the next step, SAME_STEP at once, DISABLED waits for
    ``reset(options={"reset_mask": ...})``. The other rows are not touched.

    Args:
        env: A vector environment that honours ``reset_mask``, with images, and with actions whose convention
            is known.
        head: Folder of the head; None for the packaged one.
        device: Torch device of the head.
        **options: Fields of ``ConsistencyConfig``.

    Raises:
        InvalidConfig: If an option cannot work, there are no frames, or the actions' convention is not known.
        SpecMismatch: If the actions cannot be compared with those that the head reads.
        CheckpointError: If there is no head in the folder.
    """

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        head: str | None = None,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, head=head, device=device, **options)
        num_rows = check_vector(env)
        self.config = consistency_config(options)
        WatchedRows.__init__(self, env, self.config.image_key)
        self.rule = ConsistencyRule(InverseHead(head, device=device), self.config)
        self._requested = RequestedActions(
            env, env.single_action_space, self.config.action_spec, self.rule.head.config.action_spec
        )
        self._watched: list[Watched | None] = [None] * num_rows

    def step(self, actions: Any) -> Step:
        """Step all rows, and compare the new frames of those that were played with their actions.

        Raises:
            ResetNeeded: With DISABLED, if a row that was ended here was not reset and the environment is none
                of this package.
            InvalidConfig: If there is not one frame for each action.
        """
        waiting = [int(row) for row in np.flatnonzero(self._ended_here)]
        observations, rewards, terminations, truncations, infos = self._step_inside(actions, waiting)
        terminated, truncated = on_host(terminations).copy(), on_host(truncations).copy()
        ended = terminated | truncated
        played = list(self._played(observations, ended, infos))
        found = self.rule.check(
            [self._known(row) for row, _, _ in played],
            [frames for _, frames, _ in played],
            [self._requested.convert(actions[row], len(frames)) for row, frames, _ in played],
        )
        ended_here = []
        for (row, _, index), (watched, finding) in zip(played, found, strict=True):
            self._watched[row] = watched
            check_index(watched, index, row)
            self._add_info(self._row_infos(infos, ended[row]), {"consistency": finding.info()}, row)
            if finding.alarm is not None and self.config.truncate and not ended[row]:
                ended_here.append(row)
        truncated[ended_here] = True
        observations, infos = self._finish(
            ended_here,
            waiting,
            terminated=terminated,
            truncated=truncated,
            observations=observations,
            infos=infos,
        )
        return observations, rewards, like(terminations, terminated), like(truncations, truncated), infos

    def _known(self, row: int) -> Watched:
        watched = self._watched[row]
        if watched is None:
            raise ResetNeeded(f"row {row} has no episode yet: call reset() first")
        return watched

    def _begin_row(self, row: int, frame: Frames, infos: dict[str, Any]) -> None:
        self._watched[row] = self.rule.begin(frame)

    def _row_state(self, row: int) -> ConsistencyState:
        inner = layer_with("get_state", self.env).get_state(row)
        return ConsistencyState(inner, self._known(row), bool(self._over[row]), bool(self._ended_here[row]))

    def _put_row_state(self, row: int, state: ConsistencyState) -> None:
        layer_with("set_state", self.env).set_state(state.inner, row)
        self._watched[row] = state.watched
        self._over[row], self._ended_here[row] = state.over, state.ended_here


__all__ = ["VectorActionConsistency"]
