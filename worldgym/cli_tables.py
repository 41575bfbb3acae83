"""Results of evaluations as tables for a terminal, and the bars of their progress.

What is here:
    * ``ranking``, ``robustness``, ``agreement``, ``comparison``, ``verdicts``: tables.
    * ``EvaluationBars``: what ``evaluate`` and ``rejudge`` tell, as bars with speed and time left.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

if TYPE_CHECKING:
    from worldgym.evaluation.estimate import Estimate
    from worldgym.evaluation.reference import Comparison
    from worldgym.evaluation.run import Progress as Told
    from worldgym.evaluation.summary import Summary
    from worldgym.judges.videos import JudgedVideo


def ranking(summary: Summary) -> Table:
    """Policies, best first; those that share a letter cannot be told apart."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("policy", overflow="fold")
    gaps = [name for name in ("unscored", "missing") if any(getattr(p, name) for p in summary.policies)]
    for name in ("success", "95 % interval", "group", "credit", "episodes", *gaps):
        table.add_column(name, justify="right", no_wrap=True)
    letters = {} if summary.statistics is None else summary.statistics.success.letters
    for policy in summary.policies:
        row = [policy.policy, _percent(policy.success.value), _interval(policy.success)]
        row += [letters.get(policy.policy, ""), _percent(policy.score.value), str(policy.episodes)]
        table.add_row(*row, *(str(getattr(policy, name)) for name in gaps))
    return table


def robustness(summary: Summary) -> Table:
    """Success of each policy under each condition, and its change against the clean one."""
    conditions = list(dict.fromkeys(entry.condition for entry in summary.robustness))
    table = Table("policy", *conditions, box=SIMPLE_HEAD)
    for policy in dict.fromkeys(entry.policy for entry in summary.robustness):
        cells = {entry.condition: entry for entry in summary.robustness if entry.policy == policy}
        row = []
        for condition in conditions:
            entry = cells.get(condition)
            text = "-" if entry is None else _percent(entry.success.value)
            if entry is not None and entry.difference is not None and entry.difference.value is not None:
                text += f" ({_percent(entry.difference.value, sign=True)})"
            row.append(text)
        table.add_row(policy, *row)
    return table


def agreement(summary: Summary) -> Table:
    """Judges against each other and against the truth."""
    table = Table(box=SIMPLE_HEAD)
    for name in ("judge", "against"):
        table.add_column(name, overflow="fold")
    for name in ("kappa", "episodes", "true positives", "false positives"):
        table.add_column(name, justify="right")
    for pair in summary.agreement:
        rates = ["", ""]
        if pair.quality is not None:
            both = (pair.quality.true_positive_rate, pair.quality.false_positive_rate)
            rates = [f"{_percent(rate.value)} ({_interval(rate)})" for rate in both]
        kappa = "-" if pair.kappa.value is None else f"{pair.kappa.value:.2f}"
        table.add_row(pair.first, pair.second, kappa, str(pair.kappa.n), *rates)
    return table


def comparison(result: Comparison, title: str) -> Table:
    """How well a model's success rates agree with reference results."""
    table = Table("measure", "value", "interval over tasks", "over policies", title=title)
    for name, found in result.agreements.items():
        intervals = [
            "-" if part.low is None else f"{part.low:.3f} to {part.high:.3f}"
            for part in (found.over_tasks, found.over_policies)
        ]
        value = f"{found.value:.3f}" if found.value is not None else f"none: {found.reason}"
        table.add_row(name.replace("_", " "), value, *intervals)
    return table


def verdicts(judged: Sequence[JudgedVideo]) -> Table:
    """What a judge says of video files."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("video", overflow="fold")
    for name in ("instruction", "outcome", "score", "reason"):
        table.add_column(name)
    for video in judged:
        verdict = video.verdict
        score = "" if verdict.score is None else f"{verdict.score:.2f}"
        table.add_row(str(video.path), video.instruction, verdict.outcome.value, score, verdict.reason)
    return table


class EvaluationBars:
    """One bar for the episodes and one per judge; a context manager, called with what is told."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
        )
        self._bars = Progress(*columns, console=Console(stderr=True))
        self._stages: dict[str, TaskID] = {}

    def __enter__(self) -> EvaluationBars:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def advance(self, stage: str, total: int) -> None:
        """One more of something without a speed of its own."""
        self._bars.update(self._bar(stage), total=total, advance=1)

    def __call__(self, told: Told) -> None:
        """Show how far a run is."""
        self._bars.update(
            self._bar(told.stage if told.stage == "play" else f"{told.stage} {told.what}"),
            description=f"{told.stage} {told.what}",
            completed=told.done,
            total=told.total,
            speed=_speed(told),
        )

    def _bar(self, stage: str) -> TaskID:
        if stage not in self._stages:
            self._stages[stage] = self._bars.add_task(stage, speed="")
        return self._stages[stage]


def _speed(told: Told) -> str:
    parts = []
    if told.per_second is not None:
        parts.append(
            f"{told.per_second:.1f} episodes/s"
            if told.per_second >= 1
            else f"{1 / told.per_second:.1f} s/episode"
        )
    if told.seconds_left is not None and told.done < told.total:
        minutes, seconds = divmod(round(told.seconds_left), 60)
        parts.append(f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} left")
    if told.failed:
        parts.append(f"{told.failed} failed")
    return ", ".join(parts)


def _percent(value: float | None, *, sign: bool = False) -> str:
    if value is None:
        return "-"
    number = round(100 * value) or 0  # no minus before a zero
    return f"{number:{'+' if sign and number else ''}d} %"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{_percent(estimate.low)} to {_percent(estimate.high)}"
