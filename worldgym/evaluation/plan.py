"""What a run is: its configuration, and the episodes it consists of, the same for every policy.

What is here:
    * ``EvaluationConfig``: policies, world, tasks, seeds, judges, horizon, perturbations, where to write.
    * ``Start``: one planned episode: (condition, task, trial, seed).
    * ``Plan`` and ``build_plan``: all starts in order, and the suite that the world is given.
    * ``EpisodeKey``: a start carried out by a policy.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from worldgym.errors import InvalidConfig
from worldgym.evaluation.perturb import CLEAN, Condition, Perturbation, parse_condition
from worldgym.evaluation.results import PlanEntry
from worldgym.tasks import TaskSuite, Trial, load_suite

if TYPE_CHECKING:
    from worldgym.evaluation.remote import RayConfig
    from worldgym.judges.loading import JudgeSpec
    from worldgym.policies.protocol import Policy

    PolicySource = str | Policy | Callable[..., Any]

LEARNED_WORLD = "WorldGym-Bridge-v0"
TRUTH = "truth"
"""The judge that is the world itself, where it knows whether the task succeeded."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What to evaluate, how, and where to write it.

    Attributes:
        policies: Policies to compare: texts that ``load_policy`` takes, ``LABEL=TEXT`` to choose the name in
            the report, objects that follow the ``Policy`` protocol, or functions of (frame, instruction).
        out: Folder of the run; one that exists is continued.
        env: Any Gymnasium id.
        env_kwargs: Further keyword arguments of the environment, values that json can hold.
        trials: Start scenes: ``"packaged"``, a folder of png + json, a ``TaskSuite``, or None for an
            environment of your own that has no such scenes; its episodes differ by seed alone.
        tasks: Keys of the tasks to use; None for all.
        trials_per_task: Use the first so many trials of each task; None for all.
        seeds: Each trial is tried once with each seed.
        judges: ``"truth"`` (the world's own verdict), or what ``load_judge`` takes; the first is what the
            ranking rests on. None is the packaged judge for the learned world, truth for any other. Truth is
            recorded in any case.
        episode_frames: The horizon in frames, whatever a policy's chunk.
        chunk_size: Actions per environment step; divides the horizon and the policies' chunks.
        num_envs: Episodes played at once; changes no result.
        perturbations: Conditions beside the clean one, see ``perturb``.
        give_up_after: A policy whose episodes failed so many times in a row is left alone.
        ray: Play on a Ray cluster: ``"local"``, ``"auto"`` or ``"HOST:PORT"``, with options after a question
            mark, or a ``RayConfig``; None plays here. Changes no result.
        report: Write ``report.html`` at the end.
    """

    policies: Sequence[PolicySource]
    out: str | Path
    env: str = LEARNED_WORLD
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    trials: str | Path | TaskSuite | None = "packaged"
    tasks: Sequence[str] | None = None
    trials_per_task: int | None = None
    seeds: Sequence[int] = (0,)
    judges: Sequence[JudgeSpec] | None = None
    episode_frames: int = 40
    chunk_size: int = 1
    num_envs: int = 8
    perturbations: Sequence[str | Perturbation | Condition] = ()
    give_up_after: int = 5
    ray: str | RayConfig | None = None
    report: bool = True

    def __post_init__(self) -> None:
        for name in ("episode_frames", "chunk_size", "num_envs", "give_up_after", "trials_per_task"):
            value = getattr(self, name)
            if name == "trials_per_task" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidConfig(f"{name} must be a positive int, got {value!r}")
        if self.episode_frames % self.chunk_size:
            raise InvalidConfig(
                f"episode_frames must be a multiple of chunk_size={self.chunk_size}, got "
                f"{self.episode_frames}"
            )
        for name in ("policies", "seeds", "perturbations", "tasks", "judges"):
            if isinstance(getattr(self, name), str):
                raise InvalidConfig(f"{name} must be a list, got the text {getattr(self, name)!r}")
        _refuse_repeats("policies", self.labels)
        _refuse_repeats("seeds", self.seeds)
        if any(isinstance(seed, bool) or not isinstance(seed, int) or seed < 0 for seed in self.seeds):
            raise InvalidConfig(f"seeds must be ints from 0 on, got {list(self.seeds)}")
        _refuse_repeats("perturbations", [condition.name for condition in self.conditions])
        try:
            json.dumps(dict(self.env_kwargs))
        except TypeError as error:
            raise InvalidConfig(f"env_kwargs must hold values that json can write: {error}") from error

    @property
    def labels(self) -> tuple[str, ...]:
        """Name of each policy in the report."""
        return tuple(policy_label(policy) for policy in self.policies)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The clean condition, then the perturbed ones."""
        return (CLEAN, *(parse_condition(source) for source in self.perturbations))

    @property
    def judge_sources(self) -> tuple[JudgeSpec, ...]:
        """The judges, with the default filled in."""
        if self.judges is not None:
            return tuple(self.judges) or (TRUTH,)
        return ("packaged",) if self.env.rpartition(":")[2] == LEARNED_WORLD else (TRUTH,)


class Start(NamedTuple):
    """One planned episode, the same for every policy."""

    condition: str
    task: str
    trial: str
    seed: int

    @property
    def entry(self) -> PlanEntry:
        """The entry without its condition, which is what the statistics count."""
        return PlanEntry(self.task, self.trial, self.seed)


class EpisodeKey(NamedTuple):
    """One start carried out by one policy; unique in a run."""

    policy: str
    condition: str
    task: str
    trial: str
    seed: int

    @property
    def start(self) -> Start:
        """What was planned."""
        return Start(*self[1:])


@dataclass(frozen=True)
class Plan:
    """All episodes that every policy is meant to play.

    Attributes:
        starts: In the order in which they are played.
        conditions: By name.
        suite: The trials of the plan; None for an environment without such scenes.
        world_suite: The same and, under other names, the trials with edited frames.
    """

    starts: tuple[Start, ...]
    conditions: dict[str, Condition]
    suite: TaskSuite | None
    world_suite: TaskSuite | None

    def goal(self, start: Start) -> Trial | None:
        """The unchanged trial of a start, by which it is judged."""
        return None if self.suite is None else self.suite.get(start.task, start.trial)

    def instruction(self, start: Start) -> str | None:
        """What the robot is told; None leaves it to the environment."""
        trial = self.goal(start)
        if trial is None or self.suite is None:
            return None
        return self.conditions[start.condition].instruction(trial, self.suite)

    def world_trial(self, start: Start) -> str:
        """Name of the trial in ``world_suite`` that a start begins from."""
        edited = self.conditions[start.condition].edits_frames
        return f"{start.trial}@{start.condition}" if edited else start.trial


def policy_label(policy: PolicySource) -> str:
    """Name of a policy in the report: what is before ``=``, else the text itself, else ``policy.name``."""
    return _label_and_source(policy)[0]


def policy_source(policy: PolicySource) -> PolicySource:
    """What is to be loaded: the text without its label, or the object itself."""
    return _label_and_source(policy)[1]


def _label_and_source(policy: PolicySource) -> tuple[str, PolicySource]:
    if not isinstance(policy, str):
        name = getattr(policy, "name", None) or getattr(policy, "__name__", type(policy).__name__)
        return str(name), policy
    # a label has no ':' or '?': after those a '=' belongs to the policy's own options
    match = re.fullmatch(r"([\w. -]+)=(.+)", policy)
    return (match.group(1), match.group(2)) if match else (policy, policy)


def build_plan(config: EvaluationConfig) -> Plan:
    """Enumerate the episodes: conditions, then seeds, then tasks and trials in their order.

    Raises:
        TrialError: If the trials cannot be used.
        InvalidConfig: If a perturbation cannot work on them.
    """
    conditions = {condition.name: condition for condition in config.conditions}
    if config.trials is None:
        return _plan_without_trials(config, conditions)
    everything = load_suite(config.trials)
    suite = _choose(everything, config)
    starts = tuple(
        Start(name, trial.task, trial.name, seed)
        for name in conditions
        for seed in config.seeds
        for trial in suite
    )
    edited = [
        replace(trial, name=f"{trial.name}@{condition.name}", image=condition.start_frame(trial))
        for condition in conditions.values()
        if condition.edits_frames
        for trial in suite
    ]
    plan = Plan(starts, conditions, suite, TaskSuite([*suite, *edited]))
    for start in starts:
        plan.instruction(start)  # a wording that is missing is said now
    return plan


def _plan_without_trials(config: EvaluationConfig, conditions: dict[str, Condition]) -> Plan:
    if config.tasks is not None or config.trials_per_task is not None:
        raise InvalidConfig("tasks and trials_per_task need trials; with trials=None there are only seeds")
    for condition in conditions.values():
        if any(part.action is None for part in condition.parts):
            raise InvalidConfig(
                f"perturbation {condition.name!r} edits trials; with trials=None only actions can be "
                "perturbed"
            )
    starts = (Start(name, config.env, str(seed), seed) for name in conditions for seed in config.seeds)
    return Plan(tuple(starts), conditions, None, None)


def _choose(suite: TaskSuite, config: EvaluationConfig) -> TaskSuite:
    suite = suite.select(tasks=config.tasks)
    if config.trials_per_task is None:
        return suite
    return TaskSuite(trial for task in suite.tasks for trial in suite.trials(task)[: config.trials_per_task])


def _refuse_repeats(name: str, values: Sequence[Any]) -> None:
    repeated = sorted({str(value) for value in values if list(values).count(value) > 1})
    if repeated:
        raise InvalidConfig(f"{name} must differ from each other, got {repeated[0]!r} more than once")
    if not values and name != "perturbations":
        raise InvalidConfig(f"{name} needs at least one entry, got none")
