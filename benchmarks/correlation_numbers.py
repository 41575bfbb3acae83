"""The numbers of ``correlation.py``, from run folders.

What is here:
    * ``outcomes``: what a judge, or the truth, says of the episodes of a run.
    * ``carried_out``: what the actions of an imagined episode lead to in the twin.
    * ``measure``: agreement of the two worlds, and what its lack is due to.

Only episodes that both sides of a comparison have scored count, so a run that was cut short or a verdict that
is missing on one side does not shift a rate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from worldgym.actions import ENV_SPEC, convert
from worldgym.episode import Outcome
from worldgym.errors import InvalidConfig
from worldgym.evaluation.agreement import agreements
from worldgym.evaluation.judge_quality import judge_quality
from worldgym.evaluation.perturb import CLEAN
from worldgym.evaluation.plan import EpisodeKey
from worldgym.evaluation.rate_grid import RateGrid
from worldgym.evaluation.reference import Comparison, compare_rates
from worldgym.evaluation.store import RunStore
from worldgym.tasks import TaskSuite, Trial

Outcomes = Mapping[EpisodeKey, bool]
"""Whether each scored episode succeeded."""
Rates = dict[tuple[str, str], float]
DRAWS = 5000


@dataclass(frozen=True)
class Sides:
    """One part of the experiment, seen by four.

    Attributes:
        truth: The twin's rules in the twin.
        judged_twin: The judge in the twin.
        judged_model: The judge in the learned world.
        carried: The twin's rules, for the actions that were chosen in the learned world; empty if the trials
            have no scenes.
    """

    truth: Outcomes
    judged_twin: Outcomes
    judged_model: Outcomes
    carried: Outcomes


@dataclass(frozen=True)
class Axes:
    """The part with unusual scenes.

    Attributes:
        sides: Its outcomes; the tasks are called ``axis/task``.
        usual: Keys of the usual trials that the unusual ones were made from.
        policies: Who met them.
    """

    sides: Sides
    usual: Collection[str]
    policies: Sequence[str]


def outcomes(run: str | Path, judge: str) -> Outcomes:
    """What a judge says of the episodes of a run; unscored ones are left out.

    Args:
        run: The run folder.
        judge: Its identity, or ``"truth"``.

    Raises:
        RunError: If there is no run.
    """
    with RunStore(run, readonly=True) as store:
        verdicts = store.verdicts(judge)
    return {
        key: verdict.outcome is Outcome.SUCCESS
        for key, verdict in verdicts.items()
        if verdict.outcome is not Outcome.UNSCORED
    }


def carried_out(run: str | Path, suite: TaskSuite) -> Outcomes:
    """Whether the actions of each episode solve its task at any time, played in the twin from the same start.

    Empty if a trial has no scene: then there is no twin of it.

    Raises:
        RunError: If there is no run.
    """
    if any(trial.scene is None for trial in suite):
        return {}
    with RunStore(run, readonly=True) as store:
        episodes = store.episodes()
    return {
        episode.key: _solves(
            suite.get(episode.key.task, episode.key.trial),
            _as_environment(episode.actions, episode.action_spec),
        )
        for episode in episodes
    }


def _as_environment(actions: np.ndarray, spec: str) -> np.ndarray:
    """Actions in ``ENV_SPEC``; those said in it may go beyond its limits, which the environment clips."""
    return actions if spec == ENV_SPEC.name else convert(actions, spec, ENV_SPEC)


def _solves(trial: Trial, actions: np.ndarray) -> bool:
    from worldgym.envs.physics import Physics
    from worldgym.envs.twin import twin_task

    assert trial.scene is not None
    physics, task = Physics(trial.scene), twin_task(trial)
    for action in actions:
        physics.act(np.clip(action, -1, 1))
        if task.truth(physics).success:
            return True
    return False


def measure(
    ladder: Sides,
    *,
    noise: Sides | None = None,
    checkpoints: Sequence[str] = (),
    axes: Axes | None = None,
    draws: int = DRAWS,
) -> dict[str, Any]:
    """All numbers.

    Args:
        ladder: Every policy on every task.
        noise: One policy under several conditions.
        checkpoints: Policies of the ladder that are one training's checkpoints, from first to last.
        axes: Unusual scenes.
        draws: Number of resamples of each interval.

    Returns:
        Values for ``json``, a ``Comparison`` for each pair of sides under ``"comparisons"``:
        ``whole`` (learned world and judge against the truth), ``judge`` (the judge against the truth, both in
        the twin), ``world`` (both worlds under the judge) and ``behaviour`` (what was done in the learned
        world, carried out in the twin, against what was done in the twin).

    Raises:
        InvalidConfig: If the two worlds share no episode.
    """
    (rates, _), shared = _rates((ladder.truth, ladder.judged_model), _by_task)
    comparisons = {
        "whole": _compare(ladder.truth, ladder.judged_model, draws),
        "judge": _compare(ladder.truth, ladder.judged_twin, draws),
        "world": _compare(ladder.judged_twin, ladder.judged_model, draws),
    }
    qualities = {"twin": _quality(ladder.judged_twin, ladder.truth)}
    if ladder.carried:
        comparisons["behaviour"] = _compare(ladder.truth, ladder.carried, draws)
        qualities["model"] = _quality(ladder.judged_model, ladder.carried)
    played = {name: len(getattr(ladder, name)) for name in Sides.__dataclass_fields__}
    found: dict[str, Any] = {
        "comparisons": comparisons,
        "judge": qualities,
        "episodes": played,
        "per_cell": shared / len(rates),
    }
    if noise is not None:
        found["noise"] = _noise(noise, draws)
    if len(checkpoints) > 1:
        found["checkpoints"] = _checkpoints(ladder, checkpoints)
    if axes is not None:
        found["axes"] = _axes(ladder, axes)
    return found


def _rates(
    sides: Sequence[Outcomes], group: Callable[[EpisodeKey], tuple[str, str]]
) -> tuple[list[Rates], int]:
    """The rates of each side over the episodes that all have scored, by group; and how many these are."""
    shared = [key for key in sides[0] if all(key in side for side in sides)]
    if not shared:
        raise InvalidConfig("the two worlds share no scored episode: were both played with the same options?")
    rates = []
    for side in sides:
        groups: dict[tuple[str, str], list[bool]] = {}
        for key in shared:
            groups.setdefault(group(key), []).append(side[key])
        rates.append({name: float(np.mean(found)) for name, found in groups.items()})
    return rates, len(shared)


def _by_task(key: EpisodeKey) -> tuple[str, str]:
    return key.policy, key.task


def _by_condition(key: EpisodeKey) -> tuple[str, str]:
    return key.condition, key.task


def _compare(real: Outcomes, model: Outcomes, draws: int) -> Comparison:
    (reals, models), _ = _rates((real, model), _by_task)
    return compare_rates(reals, models, draws=draws)


def _quality(verdicts: Outcomes, truth: Outcomes) -> dict[str, Any]:
    shared = [key for key in verdicts if key in truth]
    said = [Outcome.SUCCESS if verdicts[key] else Outcome.FAILURE for key in shared]
    return judge_quality(said, [truth[key] for key in shared]).to_dict()


def _noise(sides: Sides, draws: int) -> dict[str, Any]:
    """Rates under each noise, and how much too kind the learned world is to all that is noisy."""
    (real, model), episodes = _rates((sides.truth, sides.judged_model), _by_condition)
    noisy = [name for name in dict.fromkeys(name for name, _ in real) if name != CLEAN.name]
    levels = [
        {
            "condition": name,
            "real": _mean(real, [name]),
            "model": _mean(model, [name]),
            "bias": _bias(real, model, [name], draws),
        }
        for name in [CLEAN.name, *noisy]
    ]
    return {"episodes": episodes, "levels": levels, "bias": _bias(real, model, noisy, draws)}


def _bias(real: Rates, model: Rates, rows: Collection[str], draws: int) -> dict[str, Any]:
    """Model minus real over some rows, with an interval over tasks."""
    grid = RateGrid.from_rates(
        {key: rate for key, rate in real.items() if key[0] in rows},
        {key: rate for key, rate in model.items() if key[0] in rows},
    )
    return agreements(grid, ["bias"], draws=draws)["bias"].over_tasks.to_dict()


def _mean(rates: Rates, rows: Iterable[str]) -> float:
    """Mean over tasks, and rows, which have the same tasks."""
    rows = set(rows)
    return float(np.mean([rate for (row, _), rate in rates.items() if row in rows]))


def _checkpoints(sides: Sides, names: Sequence[str]) -> dict[str, Any]:
    """Whether the learned world orders checkpoints, and what it costs to trust it with the choice."""
    (real, model), episodes = _rates((sides.truth, sides.judged_model), _by_task)
    means = [(name, _mean(real, [name]), _mean(model, [name])) for name in names]
    reals, models = [real for _, real, _ in means], [model for *_, model in means]
    varied = len(set(reals)) > 1 and len(set(models)) > 1
    best = max(range(len(names)), key=models.__getitem__)
    return {
        "episodes": episodes,
        "checkpoints": [{"policy": name, "real": real, "model": model} for name, real, model in means],
        "kendall": float(stats.kendalltau(reals, models).statistic) if varied else None,
        "chosen": names[best],
        "regret": max(reals) - reals[best],
    }


def _axes(ladder: Sides, axes: Axes) -> dict[str, Any]:
    """Rates by policy and axis in both worlds, beside those of the usual trials."""

    def usual(side: Outcomes) -> Outcomes:
        return {
            key: value
            for key, value in side.items()
            if key.policy in axes.policies and f"{key.task}/{key.trial}" in axes.usual
        }

    def by_axis(key: EpisodeKey) -> tuple[str, str]:
        return key.policy, key.task.partition("/")[0] if "/" in key.task else "usual"

    both = [
        {**usual(mine), **unusual}
        for mine, unusual in (
            (ladder.truth, axes.sides.truth),
            (ladder.judged_model, axes.sides.judged_model),
        )
    ]
    (real, model), episodes = _rates(both, by_axis)
    counts: dict[tuple[str, str], int] = {}
    for key in both[0]:
        counts[by_axis(key)] = counts.get(by_axis(key), 0) + (key in both[1])
    rows = [
        {"policy": policy, "axis": axis, "real": real[policy, axis], "model": model[policy, axis]}
        | {"episodes": counts[policy, axis]}
        for policy, axis in real
    ]
    return {"episodes": episodes, "left_out": len(both[0]) - episodes, "rates": rows}
