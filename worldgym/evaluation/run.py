"""``evaluate``: play, store, judge, summarise. ``rejudge``: another judge on a stored run.

What is here:
    * ``evaluate(config)`` and ``rejudge(run, judge)``: each returns a ``Summary`` and can be repeated: what
      is already there is not done again, what failed is tried again.
    * ``Progress``: what a progress bar needs; nothing is printed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldgym.errors import InvalidConfig
from worldgym.evaluation.identity import describe_run, provenance
from worldgym.evaluation.judging import judge_pending, load_judges
from worldgym.evaluation.plan import EpisodeKey, EvaluationConfig, Plan, build_plan, policy_label
from worldgym.evaluation.records import RunInfo
from worldgym.evaluation.runner import Failure, Runner, attempt, close_policy
from worldgym.evaluation.store import RunStore
from worldgym.evaluation.summary import Summary, summarise

if TYPE_CHECKING:
    from worldgym.evaluation.plan import PolicySource
    from worldgym.evaluation.remote import RayRunner
    from worldgym.judges.loading import JudgeSpec
    from worldgym.judges.protocol import Judge


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        stage: ``"play"`` or ``"judge"``.
        what: The policy or judge at work.
        done: Episodes that are done at this stage, those of an earlier run included.
        total: Episodes of this stage.
        failed: Episodes that failed in this call.
        per_second: Episodes per second in this call; None before the first.
        seconds_left: At that speed; None before the first.
    """

    stage: str
    what: str
    done: int
    total: int
    failed: int
    per_second: float | None
    seconds_left: float | None


OnProgress = Callable[[Progress], None]


class _Clock:
    """Counts episodes of a stage and tells ``on_progress``."""

    def __init__(self, stage: str, total: int, done: int, on_progress: OnProgress) -> None:
        self.stage, self.total, self.done, self.failed = stage, total, done, 0
        self._on_progress = on_progress
        self._before, self._began = done, time.perf_counter()

    def tell(self, what: str) -> None:
        new = self.done + self.failed - self._before
        speed = new / max(1e-9, time.perf_counter() - self._began) if new else None
        left = None if speed is None else (self.total - self.done - self.failed) / speed
        self._on_progress(Progress(self.stage, what, self.done, self.total, self.failed, speed, left))


def evaluate(config: EvaluationConfig, *, on_progress: OnProgress = lambda progress: None) -> Summary:
    """Play every policy from every start, judge the episodes, and say how good the policies are.

    Interrupted at any moment, even by ``kill -9``, the same call goes on where it was. A policy, judge or
    episode that fails is recorded with its traceback and tried again by the next call; the rest goes on.

    Args:
        config: What to evaluate.
        on_progress: Called after every episode and verdict.

    Returns:
        The summary; ``summary.json`` and, unless switched off, ``report.html`` are in the run folder.

    Raises:
        InvalidConfig: If an option cannot work.
        TrialError: If the trials cannot be used.
        RunError: If the folder cannot be used, or holds another run.
        MissingExtra: If ``config.ray`` is given and ray is not installed.
        KeyboardInterrupt: As it came; all finished episodes are stored.
    """
    plan = build_plan(config)
    with _open(config, plan) as (judges, runner):
        identity = describe_run(config, plan, runner, list(judges))
        info = RunInfo(identity, provenance(), config.labels, plan.starts, tuple(judges))
        with RunStore(config.out, create=True) as store:
            store.start(info)
            _play_all(config, runner, store, on_progress)
            runner.close()  # its memory may be needed by a judge
            for judge in judges.values():
                if judge is not None:
                    _judge_all(store, judge, on_progress)
    return _write(config.out, report=config.report)


@contextmanager
def _open(
    config: EvaluationConfig, plan: Plan
) -> Iterator[tuple[Mapping[str, Judge | None], Runner | RayRunner]]:
    """The judges and what plays: in this process, or on a cluster."""
    if config.ray is not None:
        from worldgym.evaluation.remote import RayRunner

        with RayRunner(config, plan) as remote:
            yield remote.judges, remote
        return
    judges = load_judges(config.judge_sources)
    with Runner(config, plan) as runner:
        yield judges, runner


def rejudge(
    run: str | Path,
    judge: JudgeSpec,
    *,
    unscored_again: bool = False,
    report: bool = True,
    on_progress: OnProgress = lambda progress: None,
) -> Summary:
    """Add a judge's verdicts to the episodes of a run.

    Args:
        run: The run folder.
        judge: What ``load_judge`` takes.
        unscored_again: Ask also about episodes that this judge has left unscored, for instance because its
            server was away.
        report: Write ``report.html`` anew.
        on_progress: Called after every batch of verdicts.

    Returns:
        The summary under this judge. The run's ranking stays with the judge it was made with. An episode
        whose video is missing or damaged is among ``failures``; all others are judged.

    Raises:
        RunError: If there is no run in the folder, or it cannot be written to.
        JudgeError: If the judge cannot be made.
    """
    ((identity, loaded),) = load_judges([judge]).items()
    if loaded is None:
        raise InvalidConfig(
            f"{identity!r} is no judge that could be asked: the world gives it as it is played"
        )
    with RunStore(run) as store:
        store.info()
        store.add_judge(identity)
        _judge_all(store, loaded, on_progress, unscored_again=unscored_again)
    _write(run, report=report)
    return summarise(run, judge=identity)


def _play_all(
    config: EvaluationConfig, runner: Runner | RayRunner, store: RunStore, on_progress: OnProgress
) -> None:
    total = len(config.labels) * len(runner.plan.starts)
    clock = _Clock("play", total, len(store.finished()), on_progress)
    for source in config.policies:
        _play_policy(config, source, runner, store, clock)


def _play_policy(
    config: EvaluationConfig,
    source: PolicySource,
    runner: Runner | RayRunner,
    store: RunStore,
    clock: _Clock,
) -> None:
    """Play what is missing of one policy; leave it after too many failures in a row."""
    label = policy_label(source)
    finished = store.finished() - store.without_video()
    pending = [start for start in runner.plan.starts if EpisodeKey(label, *start) not in finished]
    clock.tell(label)
    if not pending:
        return
    policy = attempt(lambda: runner.load(source))
    if isinstance(policy, Failure):
        store.add_failure("policy", policy, policy=label)
        clock.failed += len(pending)
        clock.tell(label)
        return
    store.forget_failures("policy", label)
    in_a_row = 0
    results = runner.run(policy, pending, label=label)
    try:
        for result in results:
            if isinstance(result, Failure):
                stage = "policy" if result.start is None else "episode"
                store.add_failure(stage, result, policy=label, start=result.start)
                clock.failed += 1
                in_a_row += 1
            else:
                clock.done += store.add_episode(EpisodeKey(label, *result.start), result)
                in_a_row = 0
            clock.tell(label)
            if in_a_row >= config.give_up_after:
                break
    finally:
        results.close()
        attempt(lambda: close_policy(policy))


def _judge_all(store: RunStore, judge: Any, on_progress: OnProgress, *, unscored_again: bool = False) -> None:
    identity = judge.identity
    total = len(store.finished())
    clock = _Clock("judge", total, len(store.verdicts(identity)), on_progress)

    def tell(done: int, pending: int) -> None:
        clock.done = total - pending + done
        clock.tell(identity)

    judge_pending(store, judge, unscored_again=unscored_again, on_verdict=tell)


def _write(run: str | Path, *, report: bool) -> Summary:
    from worldgym.evaluation.report import write_report, write_summary

    summary = summarise(run)
    write_summary(summary)
    if report:
        write_report(run, summary=summary)
    return summary
