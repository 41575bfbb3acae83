"""What a run says: ranking, comparisons, robustness, judges against each other, failures.

What is here:
    * ``summarise``: all of it from a run folder, under one judge.
    * ``Summary``, ``Robustness``, ``JudgeAgreement``: what it returns.

The ranking rests on the clean condition. An episode without a verdict is UNSCORED, a planned one that was not
played is missing; both are counted and shown in the bounds.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from worldgym.episode import Outcome, Verdict
from worldgym.errors import RunError
from worldgym.evaluation.analysis import Statistics, analyse
from worldgym.evaluation.comparison import compare_policies, holm
from worldgym.evaluation.estimate import Estimate
from worldgym.evaluation.judge_quality import JudgeQuality, cohen_kappa, judge_quality
from worldgym.evaluation.perturb import CLEAN
from worldgym.evaluation.plan import TRUTH, EpisodeKey
from worldgym.evaluation.records import RunInfo, StoredEpisode, StoredFailure
from worldgym.evaluation.reference import Comparison, compare_rates, read_rates
from worldgym.evaluation.results import EpisodeResult
from worldgym.evaluation.store import RunStore
from worldgym.evaluation.success import PolicyStatistics, cell_statistics, policy_statistics


@dataclass(frozen=True)
class Robustness:
    """One policy under one condition.

    Attributes:
        policy: Its label.
        condition: Name of the condition.
        success: Success rate over tasks.
        difference: Condition minus clean over the same starts, in [-1, 1]; None for the clean condition.
        p_value: Of no difference, Holm-corrected over the policy's conditions; None if there is none.
    """

    policy: str
    condition: str
    success: Estimate
    difference: Estimate | None
    p_value: float | None


@dataclass(frozen=True)
class JudgeAgreement:
    """Two judges on the episodes of a run.

    Attributes:
        first: A judge.
        second: Another one, or the truth.
        kappa: Cohen's kappa.
        quality: The first judge's error rates, where the second is the truth.
    """

    first: str
    second: str
    kappa: Estimate
    quality: JudgeQuality | None


@dataclass(frozen=True)
class Summary:
    """What a run says under one judge.

    Attributes:
        run: The folder.
        info: Identity, provenance, plan.
        judge: Identity of the judge.
        played: Episodes that were played.
        planned: Episodes that were planned, over all policies and conditions.
        statistics: Of the clean condition; None while no episode of it has been played.
        robustness: Per policy and condition, if there are perturbations.
        agreement: Between the judges, and with the truth.
        unscored_reasons: Why episodes have no verdict, in the judge's words, and how many; most first.
        failures: What failed and has not been made good.
        comparison: Against reference results, if some were given.
    """

    run: Path
    info: RunInfo
    judge: str
    played: int
    planned: int
    statistics: Statistics | None
    robustness: tuple[Robustness, ...]
    agreement: tuple[JudgeAgreement, ...]
    unscored_reasons: Mapping[str, int]
    failures: tuple[StoredFailure, ...]
    comparison: Comparison | None

    @property
    def policies(self) -> tuple[PolicyStatistics, ...]:
        """The ranking, best first."""
        return () if self.statistics is None else self.statistics.policies

    def to_dict(self) -> dict[str, Any]:
        """Nested dicts that ``json`` can write; what is undefined is null beside its reason."""
        return {
            "run": self.run.name,
            "identity": self.info.identity,
            "identity_hash": self.info.identity_hash,
            "provenance": self.info.provenance,
            "judge": self.judge,
            "played": self.played,
            "planned": self.planned,
            "statistics": None if self.statistics is None else self.statistics.to_dict(),
            "robustness": [asdict(entry) for entry in self.robustness],
            "agreement": [asdict(entry) for entry in self.agreement],
            "unscored_reasons": dict(self.unscored_reasons),
            "failures": [asdict(entry) for entry in self.failures],
            "comparison": None if self.comparison is None else self.comparison.to_dict(),
        }


def summarise(run: str | Path, *, judge: str | None = None, reference: str | Path | None = None) -> Summary:
    """Read a run folder and compute everything that its report shows.

    Args:
        run: The folder; nothing in it is changed.
        judge: Identity of the judge to rest on; the run's first one by default.
        reference: CSV with the columns ``policy``, ``task`` and ``real``: results to compare with.

    Raises:
        RunError: If there is no run, or the judge has not judged it; the message lists those that have.
        DataError: If the reference cannot be read.
    """
    with RunStore(run, readonly=True) as store:
        info = store.info()
        judge = judge or info.judges[0]
        verdicts = {name: store.verdicts(name) for name in {*store.judges(), *info.judges}}
        if judge not in verdicts:
            raise RunError(f"no judge {judge!r} has judged {run}, there are {sorted(verdicts)}")
        episodes = store.episodes()
        failures = tuple(store.failures())
    results = {
        condition: episode_results(episodes, verdicts[judge], condition=condition)
        for condition in dict.fromkeys(start.condition for start in info.starts)
    }
    clean_plan = [start.entry for start in info.starts if start.condition == CLEAN.name]
    statistics = analyse(results[CLEAN.name], clean_plan) if results.get(CLEAN.name) else None
    comparison = None
    if reference is not None and statistics is not None:
        real = {key: rates[0] for key, rates in read_rates(reference).items()}
        comparison = compare_rates(real, statistics.rates())
    return Summary(
        run=Path(run),
        info=info,
        judge=judge,
        played=len(episodes),
        planned=len(info.policies) * len(info.starts),
        statistics=statistics,
        robustness=_robustness(results, info),
        agreement=_agreement(episodes, verdicts),
        unscored_reasons=_unscored_reasons(episodes, verdicts[judge], judge),
        failures=failures,
        comparison=comparison,
    )


def episode_results(
    episodes: Sequence[StoredEpisode], verdicts: Mapping[EpisodeKey, Verdict], *, condition: str = CLEAN.name
) -> list[EpisodeResult]:
    """Episodes of one condition as the statistics take them; one without a verdict is unscored."""
    return [
        EpisodeResult(
            policy=episode.key.policy,
            task=episode.key.task,
            trial=episode.key.trial,
            seed=episode.key.seed,
            outcome=verdict.outcome if (verdict := verdicts.get(episode.key)) else Outcome.UNSCORED,
            score=verdict.score if verdict else None,
        )
        for episode in episodes
        if episode.key.condition == condition
    ]


def _unscored_reasons(
    episodes: Sequence[StoredEpisode], verdicts: Mapping[EpisodeKey, Verdict], judge: str
) -> dict[str, int]:
    silence = "the world does not know what is a success" if judge == TRUTH else "it was not judged"
    reasons: Counter[str] = Counter()
    for episode in episodes:
        verdict = verdicts.get(episode.key)
        if verdict is None:
            reasons[silence] += 1
        elif verdict.outcome is Outcome.UNSCORED:
            reasons[verdict.reason or "the judge gave no reason"] += 1
    return dict(reasons.most_common())


def _robustness(results: Mapping[str, Sequence[EpisodeResult]], info: RunInfo) -> tuple[Robustness, ...]:
    if len(results) < 2:
        return ()
    rates: dict[tuple[str, str], Estimate] = {}
    for condition, found in results.items():
        plan = [start.entry for start in info.starts if start.condition == condition]
        if found:
            ranked = policy_statistics(cell_statistics(found, plan))
            rates |= {(policy.policy, condition): policy.success for policy in ranked}
    entries = []
    for policy in info.policies:
        differences = _against_clean(policy, results)
        for condition in results:
            if (policy, condition) in rates:
                difference, p_value = differences.get(condition, (None, None))
                entries.append(Robustness(policy, condition, rates[policy, condition], difference, p_value))
    return tuple(entries)


def _against_clean(
    policy: str, results: Mapping[str, Sequence[EpisodeResult]]
) -> dict[str, tuple[Estimate, float | None]]:
    """Each perturbed condition against the clean one, compared as if they were two policies."""
    clean = [result for result in results.get(CLEAN.name, ()) if result.policy == policy]
    compared: dict[str, tuple[Estimate, float | None]] = {}
    p_values: dict[str, float] = {}
    for condition, found in results.items():
        perturbed = [result for result in found if result.policy == policy]
        if condition == CLEAN.name or not clean or not perturbed:
            continue
        renamed = [replace(result, policy=CLEAN.name) for result in clean]
        renamed += [replace(result, policy=condition) for result in perturbed]
        (pair,) = compare_policies(renamed).pairs
        difference = pair.difference if pair.first == condition else _negated(pair.difference)
        compared[condition] = (difference, None)
        if pair.p_value is not None:
            p_values[condition] = pair.p_value
    for condition, adjusted in zip(p_values, holm(list(p_values.values())), strict=True):
        compared[condition] = (compared[condition][0], adjusted)
    return compared


def _negated(estimate: Estimate) -> Estimate:
    def minus(number: float | None) -> float | None:
        return None if number is None else -number

    return replace(estimate, value=minus(estimate.value), low=minus(estimate.high), high=minus(estimate.low))


def _agreement(
    episodes: Sequence[StoredEpisode], verdicts: Mapping[str, Mapping[EpisodeKey, Verdict]]
) -> tuple[JudgeAgreement, ...]:
    keys = [episode.key for episode in episodes]
    judges = sorted((name for name in verdicts if verdicts[name]), key=lambda name: (name == TRUTH, name))
    found = []
    for first, second in itertools.combinations(judges, 2):
        shared = [key for key in keys if key in verdicts[first] and key in verdicts[second]]
        sides = [[verdicts[name][key].outcome for key in shared] for name in (first, second)]
        quality = None
        if second == TRUTH:
            quality = judge_quality(sides[0], [outcome is Outcome.SUCCESS for outcome in sides[1]])
        found.append(JudgeAgreement(first, second, cohen_kappa(*sides), quality))
    return tuple(found)
