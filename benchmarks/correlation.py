"""Whether a learned world rates policies as the twin does: a ladder of policies on the same tasks in both.

    python benchmarks/correlation.py --out correlation
    python benchmarks/correlation.py --out small --trials 3 --side-trials 1 --tasks lift_can,lift_eggplant

Four questions, each put to both worlds:

1. The ladder: every policy on every task. Do rates agree, and if they do not, is it the judge or the world?
2. Noise on the actions of a good policy: does the learned world forgive it?
3. Training checkpoints of one policy: does the learned world put them in their order?
4. Scenes and words unlike the usual ones: does it see what they cost?

In the twin its own rules say what a success is, in the learned world a judge, which watches the episode and
is asked on the way. All runs are run folders of ``worldgym eval`` below ``--out``: the same command goes on
after an interruption. Numbers come out as ``correlation.json`` and ``correlation.md`` beside ``scatter.svg``
and ``ladder-model/report.html`` with videos of both worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from correlation_numbers import DRAWS, Axes, Sides, carried_out, measure, outcomes
from correlation_page import print_results, write_results

from worldgym.cli_tables import EvaluationBars
from worldgym.errors import InvalidConfig, TrialError
from worldgym.evaluation.plan import TRUTH, EvaluationConfig
from worldgym.evaluation.run import Progress, evaluate, rejudge
from worldgym.judges.loading import JudgeSpec
from worldgym.judges.watching import WatchingJudge
from worldgym.policies.packaged import packaged_policies
from worldgym.registration import TWIN_ID, WORLD_ID
from worldgym.tasks import TaskSuite, Trial, load_suite

NOISE = (0.05, 0.1, 0.2, 0.35, 0.5)
AXES = ("distractors", "object_colour", "wording", "instruction")
WORLDS = ("twin", "model")
PARTS = ("ladder", "noise", "axes")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What is played.

    Attributes:
        out: Folder of the run folders and results.
        policies: The ladder: what ``EvaluationConfig`` takes.
        good: Label of the policy that noise is added to; None for no such part.
        checkpoints: Labels of the checkpoints of one training, from first to last.
        trials: Start scenes: what ``load_suite`` takes.
        tasks: Keys of the tasks; None for all.
        per_task: Trials of each task on the ladder.
        side_trials: Trials of each task in the other parts.
        side_policies: Labels of the policies that meet unusual scenes.
        noise: Standard deviations of the noise.
        axes: Names of ``worldgym.envs.variations.AXES``.
        ids: Gymnasium ids of the twin and of the learned world.
        model_kwargs: Keyword arguments of the learned world.
        judge: Who judges; asked every ``judge_every`` frames.
        judge_every: Frames between two questions.
        frames: The horizon.
        num_envs: Episodes at once; changes no result.
        twin: Folder that holds the twin's runs; None for ``out``.
    """

    out: Path
    policies: tuple[Any, ...]
    good: str | None
    checkpoints: tuple[str, ...] = ()
    trials: str | Path | TaskSuite = "packaged"
    tasks: tuple[str, ...] | None = None
    per_task: int = 20
    side_trials: int = 5
    side_policies: tuple[str, ...] = ()
    noise: tuple[float, ...] = NOISE
    axes: tuple[str, ...] = AXES
    ids: tuple[str, str] = (TWIN_ID, WORLD_ID)
    model_kwargs: dict[str, Any] | None = None
    judge: JudgeSpec = "packaged"
    judge_every: int = 5
    frames: int = 40
    num_envs: int = 8
    twin: Path | None = None

    def __post_init__(self) -> None:
        named = {self.good, *self.checkpoints, *self.side_policies} - {None}
        labels = EvaluationConfig(policies=self.policies, out=self.out).labels
        if unknown := sorted(str(name) for name in named - set(labels)):
            raise InvalidConfig(f"expected names out of the ladder {list(labels)}, got {unknown}")

    @property
    def parts(self) -> tuple[str, ...]:
        """What there is to play."""
        wanted = {"ladder": True, "noise": self.good and self.noise, "axes": self.side_policies and self.axes}
        return tuple(part for part in PARTS if wanted[part])

    @cached_property
    def watcher(self) -> WatchingJudge:
        """The judge of both worlds."""
        return WatchingJudge(self.judge, every=self.judge_every)

    @cached_property
    def suites(self) -> dict[str, TaskSuite]:
        """Trials of each part; those of ``axes`` are of tasks ``axis/task``, each a usual one changed."""
        ladder = first_trials(load_suite(self.trials).select(tasks=self.tasks), self.per_task)
        few = first_trials(ladder, max(1, self.side_trials))
        unusual = vary_all(few, self.axes) if "axes" in self.parts else few
        return {"ladder": ladder, "noise": few, "axes": unusual}

    def folder(self, part: str, world: str) -> Path:
        """Run folder of one part in one world."""
        return (self.twin or self.out if world == "twin" else self.out) / f"{part}-{world}"

    def config(self, part: str, world: str) -> EvaluationConfig:
        """The evaluation of one part in one world."""
        chosen = {"ladder": None, "noise": (self.good,), "axes": self.side_policies}[part]
        labels = EvaluationConfig(policies=self.policies, out=self.out).labels
        return EvaluationConfig(
            policies=[
                policy
                for policy, label in zip(self.policies, labels, strict=True)
                if chosen is None or label in chosen
            ],
            out=self.folder(part, world),
            env=self.ids[WORLDS.index(world)],
            env_kwargs=(self.model_kwargs or {}) if world == "model" else {},
            trials=self.suites[part],
            judges=[TRUTH],  # others are asked afterwards, so that another judge needs no other run
            episode_frames=self.frames,
            num_envs=self.num_envs,
            perturbations=[f"noise:{level:g}" for level in self.noise] if part == "noise" else (),
            report=False,
        )


def first_trials(suite: TaskSuite, count: int) -> TaskSuite:
    """The first trials of each task."""
    return TaskSuite(trial for task in suite.tasks for trial in suite.trials(task)[:count])


def vary_all(suite: TaskSuite, axes: Sequence[str]) -> TaskSuite:
    """Every trial changed along every axis, as ``axis/task``; the name stays that of the usual trial.

    Raises:
        TrialError: If no trial can be changed along an axis.
    """
    from worldgym.envs.variations import vary

    changed: list[Trial] = []
    for axis in axes:
        found = []
        for trial in suite:
            try:
                varied = vary(trial, axis, 0)
            except TrialError:  # no room for a distractor, no other task that fits
                continue
            # under "instruction" the task is another one, and two may become the same
            name = f"{trial.task}-{trial.name}" if varied.task != trial.task else trial.name
            found.append(replace(varied, task=f"{axis}/{varied.task}", name=name))
        if not found:
            raise TrialError(f"none of {len(suite)} trials can be changed along the axis {axis!r}")
        changed += found
    return TaskSuite(changed)


def play(
    experiment: Experiment, world: str, part: str, *, on_progress: Callable[[Progress], None] = lambda _: None
) -> Path:
    """Play one part in one world and ask the judge, or do what is missing of it.

    Raises:
        WorldGymError: As ``evaluate``.
    """
    evaluate(experiment.config(part, world), on_progress=on_progress)
    folder = experiment.folder(part, world)
    rejudge(folder, experiment.watcher, report=False, on_progress=on_progress)
    return folder


def results(experiment: Experiment, *, draws: int = DRAWS) -> dict[str, Any]:
    """All numbers, from the run folders.

    Raises:
        RunError: If a run has not been made.
        InvalidConfig: If the two worlds share no episode.
    """
    judge = experiment.watcher.identity
    sides = {}
    for part in experiment.parts:
        twin, model = (experiment.folder(part, world) for world in WORLDS)
        suite = experiment.suites[part]
        sides[part] = Sides(
            outcomes(twin, TRUTH), outcomes(twin, judge), outcomes(model, judge), carried_out(model, suite)
        )
    axes = None
    if "axes" in sides:
        usual = {trial.key for trial in experiment.suites["noise"]}
        axes = Axes(sides["axes"], usual, experiment.side_policies)
    return measure(
        sides["ladder"],
        noise=sides.get("noise"),
        checkpoints=experiment.checkpoints,
        axes=axes,
        draws=draws,
    )


def main(  # noqa: PLR0913 - the options of a command
    out: Annotated[Path, typer.Option(help="Folder of runs and results; one that exists is continued.")],
    checkpoint: Annotated[
        str, typer.Option(help="World model: folder, packaged name or hub id.")
    ] = "packaged",
    policies: Annotated[str | None, typer.Option(help="The ladder, with commas; all packaged ones.")] = None,
    good: Annotated[str | None, typer.Option(help="Gets noise; the best learned one.")] = None,
    checkpoints: Annotated[
        str | None, typer.Option(help="Checkpoints of one training, first to last, with commas.")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="Keys of tasks, with commas; all packaged ones.")] = None,
    trials: Annotated[int, typer.Option(help="Trials per task on the ladder.", min=1)] = 20,
    side_trials: Annotated[int, typer.Option(help="Trials per task of the other parts; 0: none.", min=0)] = 5,
    judge: Annotated[str, typer.Option(help="'packaged', chat:MODEL@URL, local:FOLDER, ...")] = "packaged",
    num_envs: Annotated[int, typer.Option(help="Episodes at once; changes no result.", min=1)] = 8,
    device: Annotated[str, typer.Option(help="Torch device of the learned world.")] = "cpu",
    twin: Annotated[
        Path | None, typer.Option(help="Folder of an earlier call whose twin runs to use.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="'twin' or 'model': only play in this world.")] = None,
) -> None:
    """Play the ladder in both worlds and say how far they agree."""
    if only not in (None, *WORLDS):
        raise typer.BadParameter(f"--only takes one of {WORLDS}, got {only!r}")
    ladder = packaged_policies()
    chosen = _split(policies) or tuple(ladder)
    learned = [name for name in chosen if name in ladder and ladder[name].kind == "learned"]
    clean = [name for name in learned if not ladder[name].noise]
    steps = sorted((step, name) for name in learned if (step := getattr(ladder[name], "step", None)))
    experiment = Experiment(
        out=out,
        policies=tuple(f"{name}=packaged:{name}" if name in ladder else name for name in chosen),
        good=(good or next(iter(clean), None)) if side_trials else None,
        checkpoints=_split(checkpoints) or tuple(name for _, name in steps),
        tasks=_split(tasks) or None,
        per_task=trials,
        side_trials=side_trials,
        side_policies=_best_and_middle(clean) if side_trials else (),
        model_kwargs={"checkpoint": checkpoint, "device": device},
        judge=judge,
        num_envs=num_envs,
        twin=twin,
    )
    for world in WORLDS if only is None else (only,):
        for part in experiment.parts:
            with EvaluationBars() as bars:
                play(experiment, world, part, on_progress=bars)
    if only is not None:
        return
    found = results(experiment)
    runs = [experiment.folder("ladder", world) for world in WORLDS]
    write_results(found, out, runs=runs, judge=experiment.watcher.identity)
    print_results(found)


def _best_and_middle(names: Sequence[str]) -> tuple[str, ...]:
    """Of names from best to worst."""
    return tuple(dict.fromkeys([*names[:1], *names[len(names) // 2 :][:1]]))


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()


if __name__ == "__main__":
    typer.run(main)
