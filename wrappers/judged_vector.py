"""Reward and termination from a judge, for vector environments; all rows are judged together.

What is here:
    * ``VectorVLMReward`` and ``VectorVLMTermination``: as ``VLMReward`` and ``VLMTermination``, row by row.

A row that the judge ends is really reset inside, through ``options={"reset_mask": ...}``, in the way and at
the time that the environment's autoreset mode says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv

from worldgym.episode import Outcome
from worldgym.errors import ResetNeeded
from worldgym.judges import Rubric
from worldgym.judges.loading import JudgeSpec
from worldgym.judges.protocol import close_judge, parse_rubric
from worldgym.wrappers.batches import like, on_host, row_value
from worldgym.wrappers.frame_source import Frames
from worldgym.wrappers.judged import (
    JudgedState,
    forget_unscored,
    frame_rate,
    judging_config,
    told,
    trial_criteria,
)
from worldgym.wrappers.judging import Desk, Judgement, JudgingConfig
from worldgym.wrappers.layers import check_inside, find_judge, layer_with
from worldgym.wrappers.verdict_rules import EndRule, RewardRule
from worldgym.wrappers.watched_vector import Step, WatchedRows, check_vector


class _VectorJudged(WatchedRows):
    """What both wrappers do: keep the frames of all rows, ask, and write answers into the infos."""

    info_key = ""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        judge: JudgeSpec,
        *,
        rubric: Rubric,
        rule: RewardRule | EndRule,
        config: JudgingConfig,
    ) -> None:
        super().__init__(env, config.image_key)
        self.judge_spec = judge
        found, self._owns_judge = find_judge(env, judge, config.cache_folder)
        self.desk = Desk(found, env.num_envs, config=config, rubric=rubric)
        self._rule = rule
        self.metadata = {**env.metadata, "judge_delay": max(config.delay, env.metadata.get("judge_delay", 0))}

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes, in all rows or those of ``options["reset_mask"]``; ``options`` is not changed.

        Raises:
            InvalidConfig: If a row has no instruction to judge by.
        """
        forget_unscored(self.desk.judge)
        return super().reset(seed=seed, options=options)

    def close(self, **kwargs: Any) -> None:
        """Close the environment, and the judge unless it was handed in."""
        super().close(**kwargs)
        self.desk.close()
        if self._owns_judge:
            close_judge(self.desk.judge)

    def _row_state(self, row: int) -> JudgedState:
        inner, seen = layer_with("get_state", self.env).get_state(row), self.desk.rows[row]
        if seen is None:
            raise ResetNeeded(f"row {row} has no episode to copy: call reset() first")
        flags = bool(self._over[row]), bool(self._ended_here[row])
        return JudgedState(inner, seen.copy(), self._rule.rows[row], *flags)

    def _put_row_state(self, row: int, state: JudgedState) -> None:
        layer_with("set_state", self.env).set_state(state.inner, row)
        self.desk.rows[row] = state.desk.copy()
        self._rule.rows[row] = state.rule
        self._over[row], self._ended_here[row] = state.over, state.ended_here

    def _begin_row(self, row: int, frame: Frames, infos: dict[str, Any]) -> None:
        config = self.desk.config
        self.desk.begin(
            row,
            frame,
            instruction=told(config.instruction or row_value(infos, "instruction", row)),
            criteria=config.criteria or trial_criteria(self.unwrapped, row),
        )
        self._rule.begin(row)

    def _judge(
        self, observations: Any, ended: npt.NDArray[np.bool_], infos: dict[str, Any]
    ) -> dict[int, list[Judgement]]:
        """Record what the running rows did, and the answers that count in this step."""
        rows = []
        for row, frames, index in self._played(observations, ended, infos):
            self.desk.record(row, frames, index=index, ended=bool(ended[row]))
            rows.append(row)
        return self.desk.settle(rows, fps=frame_rate(self.env.metadata, self._chunk))

    def _write(
        self, infos: dict[str, Any], row: int, judgement: Judgement, *, ended: np.bool_, **more: Any
    ) -> None:
        """Put an answer into a row's infos."""
        target = self._row_infos(infos, ended)
        self._add_info(target, {self.info_key: {**self.desk.describe(row, judgement), **more}}, row)
        success = judgement.verdict.success
        if success is not None and row_value(target, "is_success", row) is None:
            self._add_info(target, {"is_success": success}, row)


class VectorVLMReward(_VectorJudged, RecordConstructorArgs):
    """Replaces the rewards by what a judge says of the frames; see ``VLMReward``.

    Rewards are float64 (N,). Infos are batched as Gymnasium batches them, with masks; with SAME_STEP the last
    answer about an episode is in ``final_info``.

    Args:
        env: A vector environment.
        judge: See ``worldgym.judges.load_judge``.
        mode: ``"sparse"``, ``"partial"``, ``"progress"`` or ``"progress_difference"``.
        **options: Fields of ``JudgingConfig``. By default the judge is asked at the end of an episode.

    Raises:
        InvalidConfig: If an option cannot work, or there are no frames.
        JudgeError: If the judge cannot be built.
    """

    info_key = "reward_verdict"

    def __init__(
        self, env: VectorEnv[Any, Any, Any], judge: JudgeSpec, *, mode: str = "sparse", **options: Any
    ) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, judge=judge, mode=mode, **options)
        rule = RewardRule(mode, check_vector(env))
        super().__init__(env, judge, rubric=rule.mode.rubric, rule=rule, config=judging_config(options))

    def step(self, actions: Any) -> Step:
        """Step all rows, and ask the judge about those that are due, all at once."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        assert isinstance(self._rule, RewardRule)
        ended = on_host(terminations) | on_host(truncations)
        judged = np.zeros(self.num_envs)
        for row, judgements in self._judge(observations, ended, infos).items():
            judged[row] = self._rule.reward(row, judgements)
            self._write(infos, row, judgements[-1], ended=ended[row])
        self._go_on(ended, observations, infos)
        return observations, like(rewards, judged), terminations, truncations, infos


class VectorVLMTermination(_VectorJudged, RecordConstructorArgs):
    """Ends rows (``terminated``) when a judge says that the task is solved; see ``VLMTermination``.

    What follows is what the autoreset mode says. NEXT_STEP: the row's next action is ignored and its next
    observation is that of a reset. SAME_STEP: the row is reset at once, its end is in ``final_obs`` and
    ``final_info``. DISABLED: the row waits for ``reset(options={"reset_mask": ...})``; an environment of this
    package leaves it alone until then, any other one must not be stepped.

    Args:
        env: A vector environment that honours ``reset_mask``.
        judge: See ``worldgym.judges.load_judge``.
        rubric: ``"success"``, ``"partial"`` or ``"progress"``.
        hopeless_after: End a row also after so many failures in a row; see ``EndRule``.
        hopeless_score: Largest score of such a failure.
        **options: Fields of ``JudgingConfig``. By default the judge is asked every 5 frames and at the end.

    Raises:
        InvalidConfig: If an option cannot work, or there are no frames.
        JudgeError: If the judge cannot be built.
    """

    info_key = "termination_verdict"

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        judge: JudgeSpec,
        *,
        rubric: str = "success",
        hopeless_after: int | None = None,
        hopeless_score: float = 0.05,
        **options: Any,
    ) -> None:
        RecordConstructorArgs.__init__(
            self,
            _disable_deepcopy=True,
            judge=judge,
            rubric=rubric,
            hopeless_after=hopeless_after,
            hopeless_score=hopeless_score,
            **options,
        )
        rule = EndRule(check_vector(env), hopeless_after=hopeless_after, hopeless_score=hopeless_score)
        check_inside(env, refused=VectorVLMReward)
        config = judging_config({"every": 5, **options})
        super().__init__(env, judge, rubric=parse_rubric(rubric), rule=rule, config=config)

    def step(self, actions: Any) -> Step:
        """Step all rows, and ask the judge about those that are due, all at once.

        Raises:
            ResetNeeded: With DISABLED, if a row that the judge ended was not reset and the environment is
                none of this package.
        """
        waiting = [int(row) for row in np.flatnonzero(self._ended_here)]
        observations, rewards, terminations, truncations, infos = self._step_inside(actions, waiting)
        terminated, truncated = on_host(terminations).copy(), on_host(truncations).copy()
        ended = terminated | truncated
        assert isinstance(self._rule, EndRule)
        by_judge = []
        for row, judgements in self._judge(observations, ended, infos).items():
            ending = self._rule.ending(row, judgements)
            if ending is None:
                self._write(infos, row, judgements[-1], ended=ended[row])
                continue
            hopeless = ending.verdict.outcome is not Outcome.SUCCESS
            self._write(infos, row, ending, ended=ended[row], hopeless=hopeless)
            if not ended[row]:
                by_judge.append(row)
            terminated[row], truncated[row] = True, False
        observations, infos = self._finish(
            by_judge,
            waiting,
            terminated=terminated,
            truncated=truncated,
            observations=observations,
            infos=infos,
        )
        return observations, rewards, like(terminations, terminated), like(truncations, truncated), infos


__all__ = ["VectorVLMReward", "VectorVLMTermination"]
