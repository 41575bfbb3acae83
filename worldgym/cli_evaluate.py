"""The verbs around evaluations: ``eval``, ``judge``, ``export``, ``report``, ``planning``.

``eval`` ends with status 0, with 1 if something failed and was recorded, with 130 if it was interrupted.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from worldgym.cli_tables import EvaluationBars, agreement, comparison, ranking, robustness, verdicts
from worldgym.errors import InvalidConfig
from worldgym.registration import WORLD_ID

if TYPE_CHECKING:
    from worldgym.evaluation.summary import Summary

PACKAGED = "packaged"
FIRST_TASKS = ("lift_can", "push_yellow_cube_left", "put_carrot_on_plate", "put_eggplant_in_pot")
"""Tasks of a run that names none, from the packaged start scenes."""
FIRST_TRIALS = 5
"""Trials per task of such a run."""
INTERRUPTED = 130
console = Console(markup=False, highlight=False)
_errors = Console(markup=False, highlight=False, stderr=True)


def add_commands(app: typer.Typer) -> None:
    """Give the command line these verbs."""
    app.command("eval")(evaluate)
    for verb in (judge, export, report, planning):
        app.command()(verb)


def evaluate(  # noqa: PLR0913 - one parameter per flag
    out: Annotated[Path, typer.Option(help="Folder of the run; one that exists is continued.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="packaged:NAME, FILE.py:FUNCTION, sb3:PATH, openpi:URL, ...; LABEL=POLICY to name it; "
            "repeat it. Three packaged ones."
        ),
    ] = None,
    env: Annotated[str, typer.Option(help="Gymnasium id.")] = WORLD_ID,
    checkpoint: Annotated[str | None, typer.Option(help="Folder, packaged name or hub id.")] = None,
    trials: Annotated[
        str, typer.Option(help="'packaged', a folder of png + json, or 'none': start by seed alone.")
    ] = PACKAGED,
    tasks: Annotated[
        list[str] | None,
        typer.Option(help="Keys of tasks, with commas or repeated; 'all'. Four of the packaged ones."),
    ] = None,
    trials_per_task: Annotated[
        int | None,
        typer.Option(help="Only the first so many trials of each task; 5 if no --tasks are given.", min=1),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Try each trial with the seeds 0 to N - 1.", min=1)] = 1,
    judge: Annotated[
        list[str] | None,
        typer.Option(
            help="'packaged', 'truth' (the world's own), chat:MODEL@URL, local:FOLDER, ...; repeat it, the "
            "first decides the ranking."
        ),
    ] = None,
    perturb: Annotated[
        list[str] | None,
        typer.Option(
            help="distractor, colour, crop, blur, occlusion, wording, swap, delay, noise, frame:FUNCTION; "
            "with an amount and a seed noise:0.2@7; together crop+delay; repeat it."
        ),
    ] = None,
    frames: Annotated[int, typer.Option(help="Horizon of an episode in frames.", min=1)] = 40,
    chunk: Annotated[int, typer.Option(help="Actions per step of the environment.", min=1)] = 1,
    num_envs: Annotated[int, typer.Option(help="Episodes at once; changes no result.", min=1)] = 8,
    device: Annotated[str | None, typer.Option(help="Torch device of the learned world.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps per frame.")] = None,
    env_option: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for the environment, the value as JSON; repeat it.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Play on Ray: local, auto or HOST:PORT; options after '?', gpus=0.25.")
    ] = None,
    html: Annotated[bool, typer.Option("--report/--no-report", help="Write report.html.")] = True,
) -> None:
    """Play policies, judge them, and say how good each one is and how sure that is."""
    from worldgym.evaluation.plan import EvaluationConfig
    from worldgym.evaluation.run import evaluate as run

    if tasks is None and trials == PACKAGED:
        tasks, trials_per_task = list(FIRST_TASKS), trials_per_task or FIRST_TRIALS
    _check_policies(policy or ())
    options = {"checkpoint": checkpoint, "device": device, "num_inference_steps": steps}
    given = {name: value for name, value in options.items() if value is not None}
    config = EvaluationConfig(
        policies=policy or first_policies(),
        out=out,
        env=env,
        env_kwargs=given | _env_options(env_option or ()),
        trials=None if trials == "none" else trials,
        tasks=_task_keys(tasks),
        trials_per_task=trials_per_task,
        seeds=range(seeds),
        judges=judge or None,
        episode_frames=frames,
        chunk_size=chunk,
        num_envs=num_envs,
        perturbations=perturb or (),
        ray=ray,
        report=html,
    )
    with _resumable(out), EvaluationBars() as bars:
        summary = run(config, on_progress=bars)
    _show(summary, report=html)
    if summary.failures:
        raise typer.Exit(1)


def judge(
    what: Annotated[list[Path], typer.Argument(help="The folder of a run, or mp4 files or folders of them.")],
    judge: Annotated[str, typer.Option(help="'packaged', chat:MODEL@URL, local:FOLDER, ...")] = PACKAGED,
    instruction: Annotated[
        str | None, typer.Option(help="What the robot was told; else NAME.json beside NAME.mp4 says it.")
    ] = None,
    criteria: Annotated[str | None, typer.Option(help="What counts as half a success.")] = None,
    rubric: Annotated[str, typer.Option(help="Of videos: success, partial or progress.")] = "success",
    cache: Annotated[Path | None, typer.Option(help="Folder that keeps verdicts of videos.")] = None,
    again: Annotated[
        bool, typer.Option(help="Of a run: ask again where this judge gave no verdict.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Ask a judge about the episodes of a run, which keeps the verdicts, or about video files."""
    from worldgym.evaluation.database import DATABASE

    if len(what) == 1 and (what[0] / DATABASE).is_file():
        if instruction or criteria or cache or rubric != "success":
            raise InvalidConfig(
                "a run knows its instructions and criteria and keeps verdicts: leave out --instruction, "
                "--criteria, --rubric and --cache"
            )
        _judge_run(what[0], judge, again=again, as_json=as_json)
        return
    from worldgym.judges import find_videos, judge_videos, load_judge

    loaded = load_judge(judge, cache_folder=cache)
    videos = [video for path in what for video in find_videos(path)]
    with EvaluationBars() as bars:
        judged = judge_videos(
            videos,
            loaded,
            instruction=instruction,
            criteria=criteria,
            rubric=rubric,
            on_verdict=lambda _: bars.advance("judge", len(videos)),
        )
    if as_json:
        console.print_json(json.dumps([video.as_dict() for video in judged]))
    else:
        console.print(f"judged by {loaded.identity}")
        console.print(verdicts(judged))


def export(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    out: Annotated[Path, typer.Argument(help="File or, for lerobot, a new folder.")],
    format: Annotated[
        str | None, typer.Option(help="jsonl, csv, parquet or lerobot; else the file's suffix.")
    ] = None,
) -> None:
    """Write the episodes of a run for other tools."""
    from worldgym.evaluation.export import export as write

    console.print(f"wrote {write(run, out, format=format)}")


def report(
    run: Annotated[Path, typer.Argument(help="Folder of the run.")],
    judge: Annotated[str | None, typer.Option(help="Identity of the judge to rest on; the first.")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="CSV with policy, task, real: results to compare with.")
    ] = None,
    beside: Annotated[
        list[Path] | None, typer.Option(help="Another run whose videos are shown beside; repeat it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary for machines.")] = False,
) -> None:
    """Write report.html and summary.json of a run anew, under another judge or against reference results."""
    from worldgym.evaluation.report import write_report, write_summary
    from worldgym.evaluation.summary import summarise

    summary = summarise(run, judge=judge, reference=reference)
    write_report(run, beside=beside or (), summary=summary)
    write_summary(summary)
    if as_json:
        console.print_json(json.dumps(summary.to_dict()))
    else:
        _show(summary, report=True)
        if summary.comparison is not None and reference is not None:
            console.print(comparison(summary.comparison, f"against {reference.name}"))


def planning(
    first: Annotated[float, typer.Argument(help="Success rate of one policy, 0 to 1.")] = 0.6,
    second: Annotated[float, typer.Argument(help="Success rate of the other.")] = 0.7,
    power: Annotated[float, typer.Option(help="Wanted chance of seeing the difference.")] = 0.8,
    alpha: Annotated[float, typer.Option(help="Level of the two-sided test.")] = 0.05,
    correlation: Annotated[
        float,
        typer.Option(help="Of both outcomes from one start. Starts that are hard for all make it positive."),
    ] = 0.0,
    episodes: Annotated[
        int | None, typer.Option(help="Say instead how likely so many episodes per policy see it.", min=1)
    ] = None,
) -> None:
    """Say how many episodes it takes to tell two success rates apart."""
    from worldgym.evaluation import episodes_to_separate, power_to_separate

    designs: dict[str, dict[str, Any]] = {
        f"same starts, correlation {correlation:g} (McNemar's exact test)": {"correlation": correlation},
        "different starts (z-test)": {"paired": False},
    }
    goal = (
        f"chance with {episodes} episodes each" if episodes else f"episodes each, for a chance of {power:g}"
    )
    table = Table("design", goal, title=f"telling {first:g} from {second:g}, level {alpha:g}")
    for name, design in designs.items():
        options: dict[str, Any] = {"alpha": alpha, **design}
        if episodes is None:
            answer = str(episodes_to_separate(first, second, power=power, **options))
        else:
            answer = f"{power_to_separate(first, second, episodes, **options):.2f}"
        table.add_row(name, answer)
    console.print(table)
    if not correlation:
        console.print("Outcomes from the same start usually go together; --correlation 0.4 needs fewer.")


def first_policies() -> tuple[str, ...]:
    """The best, a middling and the worst of the packaged policies, for a run that names none."""
    from worldgym.policies.packaged import packaged_policies

    rates = {name: policy.twin_success or 0.0 for name, policy in packaged_policies().items()}
    best, *others, worst = rates
    half = (rates[best] + rates[worst]) / 2
    middle = min(others, key=lambda name: abs(rates[name] - half))
    return tuple(f"{name}=packaged:{name}" for name in (best, middle, worst))


def _judge_run(run: Path, judge: str, *, again: bool, as_json: bool) -> None:
    from worldgym.evaluation.run import rejudge

    with _resumable(run), EvaluationBars() as bars:
        summary = rejudge(run, judge, unscored_again=again, on_progress=bars)
    if as_json:
        console.print_json(json.dumps(summary.to_dict()))
    else:
        _show(summary, report=True)
    if summary.failures:
        raise typer.Exit(1)


def _show(summary: Summary, *, report: bool) -> None:
    """Print what a run says, and where more of it is."""
    counted = f"{summary.played} of {summary.planned} episodes"
    console.print(f"{summary.run.name}: {counted}, judged by {summary.judge}", soft_wrap=True)
    if summary.statistics is not None:
        console.print(ranking(summary))
        console.print("Policies that share a group letter cannot be told apart; intervals are over tasks.")
    if summary.robustness:
        console.print("Robustness: success under each condition, and its change against the clean one.")
        console.print(robustness(summary))
    if summary.agreement:
        console.print("Judges against each other and against the truth.")
        console.print(agreement(summary))
    for reason, count in list(summary.unscored_reasons.items())[:1]:
        console.print(f"{sum(summary.unscored_reasons.values())} unscored, {count} of them: {reason}")
    for failure in summary.failures[:3]:
        where = " ".join(map(str, (failure.policy, *(failure.start or ())[1:])))
        console.print(f"failed: {failure.stage} {where}: {failure.error}", soft_wrap=True)
    if summary.failures:
        console.print(f"{len(summary.failures)} failures are recorded; the same command tries them again.")
    console.print(f"numbers: {summary.run / 'summary.json'}", soft_wrap=True)
    if report:
        console.print(f"report:  {summary.run / 'report.html'}", soft_wrap=True)


@contextmanager
def _resumable(run: Path) -> Iterator[None]:
    """Say after Ctrl-C what is stored and how to go on."""
    from worldgym.errors import RunError
    from worldgym.evaluation.store import RunStore

    try:
        yield
    except KeyboardInterrupt:
        try:
            with RunStore(run, readonly=True) as store:
                info = store.info()
                planned = len(info.policies) * len(info.starts)
                stored = f"{len(store.finished())} of {planned} episodes are stored in {run}"
        except RunError:
            stored = "nothing was stored yet"
        command = shlex.join(["worldgym", *sys.argv[1:]])
        _errors.print(f"Interrupted: {stored}. To go on, run the same command:", soft_wrap=True)
        _errors.print(f"    {command}", soft_wrap=True)
        raise typer.Exit(INTERRUPTED) from None


def _check_policies(given: Sequence[str]) -> None:
    """Refuse what cannot be loaded before a folder is bound to it; load nothing big."""
    from worldgym.evaluation.plan import policy_source
    from worldgym.policies.loading import load_policy
    from worldgym.policies.packaged import get_packaged

    for text in given:
        source = str(policy_source(text)).partition("?")[0]
        home, colon, rest = source.partition(":")
        if home == "packaged" and not Path(rest).is_dir():
            get_packaged(rest)
        elif not colon:
            load_policy(source)  # two are made at once, all others are refused
        elif home.endswith(".py") and not Path(home).is_file():
            raise InvalidConfig(f"policy {text!r} names the file {home}, which is not there")


def _task_keys(given: Sequence[str] | None) -> list[str] | None:
    keys = [key.strip() for text in given or () for key in text.split(",") if key.strip()]
    return None if keys in ([], ["all"]) else keys


def _env_options(given: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise InvalidConfig(f"--env-option must be KEY=VALUE, got {text!r}")
        try:
            options[key] = json.loads(value)
        except ValueError:
            options[key] = value
    return options
