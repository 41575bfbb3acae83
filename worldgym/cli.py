"""The command line: one short function per verb, which only parses, calls and prints.

Errors of ours are printed without a traceback and end with status 2.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from worldgym import __version__, cli_evaluate
from worldgym.cli_fields import command_from_fields
from worldgym.cli_tables import comparison
from worldgym.errors import WorldGymError
from worldgym.registration import WORLD_ID

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
train_app = typer.Typer(
    no_args_is_help=True,
    help="Train the codec, the world model, a judge, a policy or an inverse head; every run resumes.",
)
app.add_typer(train_app, name="train")
# No markup: in "pip install 'worldgym[twin]'" rich would take the extra for a style and drop it.
console = Console(markup=False, highlight=False)
cli_evaluate.add_commands(app)


def main() -> None:
    """Run the command line; print errors of ours as one line."""
    if sys.argv[1:2] == ["train"]:
        add_train_commands()  # only then: their configurations import torch
    try:
        app()
    except WorldGymError as error:
        name = Text(type(error).__name__, style="bold red")
        Console(stderr=True, highlight=False).print(Text.assemble(name, f": {error}"))
        sys.exit(2)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """A learned video world model as a Gymnasium environment."""
    if version:
        console.print(__version__)
        raise typer.Exit


@app.command()
def rollout(
    actions: Annotated[str, typer.Option(help="random, zero, sweep, or a .npy/.npz file (T, A).")] = "random",
    env: Annotated[str, typer.Option(help="Gymnasium id.")] = WORLD_ID,
    checkpoint: Annotated[str | None, typer.Option(help="Folder, packaged name or hub id.")] = None,
    trials: Annotated[str, typer.Option(help="'packaged' or a folder of png + json.")] = "packaged",
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    trial: Annotated[str | None, typer.Option(help="Only this trial of the task.")] = None,
    every: Annotated[bool, typer.Option("--every-trial", help="Start from each selected trial.")] = False,
    frames: Annotated[int, typer.Option(help="New frames per rollout.", min=1)] = 40,
    chunk: Annotated[int, typer.Option(help="Actions per step.", min=1)] = 1,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    spec: Annotated[str, typer.Option(help="Convention of a file's actions.")] = "worldgym",
    device: Annotated[str | None, typer.Option(help="Torch device of the learned world.")] = None,
    steps: Annotated[int | None, typer.Option(help="Denoising steps per frame.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the videos.")] = Path("rollouts"),
) -> None:
    """Imagine rollouts with given actions and write them as mp4."""
    from worldgym.evaluation.rollout import action_plan
    from worldgym.tasks import load_suite

    suite = load_suite(trials)
    suite = suite if task is None else suite.select(tasks=[task], trials=None if trial is None else [trial])
    starts = list(suite) if every else [suite[0]]
    plans = action_plan(actions, frames, seed=seed, spec=spec)
    options = {"checkpoint": checkpoint, "device": device, "num_inference_steps": steps}
    kwargs = {key: value for key, value in options.items() if value is not None}
    written = _play_and_write(
        env, plans, starts, out, seed=seed, trials=trials, chunk_size=chunk, judge=None, **kwargs
    )
    console.print(f"{len(written)} videos in {out}")


def _play_and_write(
    env: str, plans: dict[str, Any], starts: list[Any], out: Path, *, seed: int, **kwargs: Any
) -> list[Path]:
    """Play every plan from every start, one batch per start; write a video each, and all side by side."""
    from worldgym.evaluation.rollout import rollout as play
    from worldgym.video import tile, write_video

    length = len(next(iter(plans.values()))) // kwargs["chunk_size"]
    written = []
    with _progress() as progress:
        bar = progress.add_task("rollout", total=length * len(starts))
        for start in starts:
            options = [{"task": start.task, "trial": start.name}] * len(plans)
            episodes = play(
                env,
                list(plans.values()),
                seed=seed,
                options=options,
                on_step=lambda: progress.advance(bar),
                **kwargs,
            )
            stem = f"{start.task.replace('/', '_')}__{start.name}"
            for name, episode in zip(plans, episodes, strict=True):
                written.append(write_video(out / f"{stem}__{name}.mp4", episode.frames, fps=episode.fps))
            if len(episodes) > 1:
                together = tile([episode.frames for episode in episodes], columns=4)
                written.append(write_video(out / f"{stem}__all.mp4", together, fps=episodes[0].fps))
    return written


@app.command()
def convert(
    file: Annotated[Path, typer.Argument(help="Published .pt file.")],
    out: Annotated[Path, typer.Argument(help="Checkpoint folder to write.")],
    rope: Annotated[str, typer.Option(help="pixel or standard; the file does not say.")],
    codec: Annotated[
        str, typer.Option(help="Codec as a folder or hub id, ':subfolder' optional.")
    ] = "stabilityai/stable-diffusion-3-medium-diffusers:vae",
    guidance: Annotated[float, typer.Option(help="3.0 for checkpoints trained with action dropout.")] = 1.0,
    offset: Annotated[int, typer.Option(help="1 as the published runners, 0 as the published trainer.")] = 1,
    window: Annotated[int, typer.Option(help="Frames of attention.")] = 20,
    context: Annotated[str, typer.Option(help="window or rolling.")] = "window",
    heads: Annotated[int | None, typer.Option(help="Attention heads; width / 64 by default.")] = None,
    height: Annotated[int, typer.Option(help="Frame height in pixels.")] = 256,
    width: Annotated[int, typer.Option(help="Frame width in pixels.")] = 256,
) -> None:
    """Turn a published .pt file into a checkpoint folder, once."""
    from worldgym.models.checkpoint import CodecSource, PublishedOptions, convert_published

    name, _, subfolder = codec.partition(":")
    options = PublishedOptions(
        rope=rope,
        guidance_scale=guidance,
        codec=CodecSource(str(Path(name).resolve()) if Path(name).is_dir() else name, subfolder or None),
        action_offset=offset,
        window=window,
        context=context,
        heads=heads,
        frame_size=(height, width),
    )
    convert_published(file, out, options)
    console.print(f"wrote {out}")


@app.command()
def info(
    what: Annotated[
        str, typer.Argument(help="Checkpoint (folder, packaged name or hub id), or a folder of clips.")
    ] = "packaged",
) -> None:
    """Show what a checkpoint is, or what a folder of clips holds; neither weights nor videos are read."""
    from dataclasses import asdict

    from worldgym.models.checkpoint import find, packaged_names, read_config

    if Path(what).is_dir() and next(Path(what).rglob("*.npz"), None):
        _describe_clips(Path(what))
        return
    table = Table(title=f"{what} ({find(what).name})", show_header=False)
    for key, value in asdict(read_config(what)).items():
        table.add_row(key, str(value))
    console.print(table)
    console.print(f"packaged checkpoints: {', '.join(packaged_names()) or 'none'}")


def _describe_clips(folder: Path) -> None:
    """Print who made the clips of a folder, and how often they succeeded."""
    from worldgym.data.clips import ClipFolder
    from worldgym.data.contents import family_contents, total_contents

    clips = ClipFolder(folder)
    parts = family_contents(clips)
    table = Table("family", "episodes", "share", "successes", title=str(folder))
    every = total_contents(parts)
    for part in (*parts, every):
        rate = f"{part.successes} of {part.judged}" if part.judged else "not known"
        table.add_row(part.family, str(part.episodes), f"{part.episodes / every.episodes:.1%}", rate)
    console.print(table)
    if every.judged == every.episodes:
        share = every.failing_frames / every.frames
        console.print(f"{share:.1%} of {every.frames} frames are of episodes that fail")
    for skipped in clips.skipped:
        console.print(f"left out {skipped.path}: {skipped.reason}")


@app.command()
def compare(
    file: Annotated[Path, typer.Argument(help="CSV with the columns policy, task, real, model.")],
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say how well a model's success rates agree with reference results."""
    from worldgym.evaluation import compare_table

    result = compare_table(file)
    if as_json:
        console.print_json(json.dumps(result.to_dict()))
        return
    console.print(comparison(result, file.name))
    for note in result.notes:
        console.print(f"note: {note}")


@app.command()
def collect(
    out: Annotated[Path, typer.Argument(help="Folder of clips; one that exists is continued.")],
    episodes: Annotated[int, typer.Option(help="Episodes that the folder shall hold.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="Decides every episode, with its index.", min=0)] = 0,
    size: Annotated[tuple[int, int], typer.Option(help="Height and width of the frames.")] = (64, 64),
    frames: Annotated[int, typer.Option(help="New frames per episode.", min=1)] = 40,
    task: Annotated[list[str] | None, typer.Option(help="Key of a task; repeat it. All core tasks.")] = None,
    family: Annotated[
        list[str] | None,
        typer.Option(
            "--family",
            "--mixture",
            help="NAME or NAME=WEIGHT of a family of behaviour; repeat it. The usual mixture.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
) -> None:
    """Record episodes of the twin: experts, flawed and aimless behaviour, with the truth about each."""
    from worldgym.training.collect import CollectConfig, parse_mixture
    from worldgym.training.collect import collect as run

    mixture = parse_mixture(family or ())
    config = CollectConfig(seed=seed, size=size, frames=frames, tasks=tuple(task or ()), mixture=mixture)
    with _progress() as progress:
        show = partial(progress.update, progress.add_task("collect", total=episodes))
        run(
            out,
            episodes,
            config=config,
            workers=workers,
            on_episode=lambda n, of: show(completed=n, total=of),
        )
    console.print(f"{episodes} episodes in {out}")


@app.command()
def imagine(
    clips: Annotated[Path, typer.Argument(help="Folder of recorded clips with their outcome.")],
    out: Annotated[Path, typer.Argument(help="Folder of imagined clips; one that exists is continued.")],
    checkpoint: Annotated[str, typer.Option(help="Folder, packaged name or hub id.")] = "packaged",
    episodes: Annotated[int, typer.Option(help="Episodes, spread over the recorded ones.", min=1)] = 600,
    seed: Annotated[int, typer.Option(help="Decides the noise of every episode.", min=0)] = 0,
    batch: Annotated[int, typer.Option(help="Episodes at once.", min=1)] = 16,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
) -> None:
    """Repeat recorded episodes in a world model, to train and to measure judges on its videos."""
    from worldgym.training.imagine import imagine as run

    with _progress() as progress:
        show = partial(progress.update, progress.add_task("imagine", total=episodes))
        run(
            clips,
            out,
            checkpoint=checkpoint,
            episodes=episodes,
            seed=seed,
            batch_size=batch,
            device=device,
            on_episode=lambda n, of: show(completed=n, total=of),
        )
    console.print(f"imagined episodes in {out}")


@app.command()
def policies(
    measure: Annotated[
        list[str] | None,
        typer.Option(help="Measure this one in the twin and store the result first; repeat it, or 'all'."),
    ] = None,
    per_task: Annotated[int | None, typer.Option(help="Episodes per task; all start scenes.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List the packaged policies with their success in the twin, best first."""
    from dataclasses import asdict

    from worldgym.policies.packaged import packaged_policies

    if measure:
        _measure_policies([] if "all" in measure else measure, per_task)
    if as_json:
        console.print_json(json.dumps([asdict(policy) for policy in packaged_policies().values()]))
        return
    whole = [Column(name, no_wrap=True) for name in ("packaged:", "success", "95% interval", "of")]
    table = Table(*whole, "what it is", title="success in the twin")
    for policy in packaged_policies().values():
        found = policy.measured
        numbers = ("not measured", "-", "-")
        if found:
            numbers = (f"{found.rate:.3f}", f"{found.low:.3f} to {found.high:.3f}", str(found.episodes))
        table.add_row(policy.name, *numbers, policy.summary)
    console.print(table)


def _measure_policies(names: list[str], per_task: int | None) -> None:
    """Play policies in the twin and store how often they solved its tasks."""
    from worldgym.evaluation.ladder import measure_packaged

    with _progress() as progress:
        bars: dict[str, Any] = {}

        def note(name: str, done: int, of: int) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=of)
            progress.update(bars[name], completed=done)

        measure_packaged(names, per_task=per_task, on_episode=note)


@app.command()
def serve(
    policy: Annotated[str, typer.Argument(help="random, sb3:PATH, module:attribute, ...")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
) -> None:
    """Serve a policy with openpi's websocket protocol."""
    from worldgym.policies import load_policy
    from worldgym.policies.serve import PolicyServer

    server = PolicyServer(load_policy(policy, target=None), host=host, port=port)
    console.print(
        f"{policy} at {server.url}, health at http://{host}:{port}/healthz; Ctrl-C stops", soft_wrap=True
    )
    server.serve_forever()


@app.command()
def encode(
    clips: Annotated[Path, typer.Argument(help="Folder of clips (mp4 + npz).")],
    codec: Annotated[str, typer.Argument(help="Codec folder or hub id.")],
    out: Annotated[Path, typer.Argument(help="Folder to write; must not exist.")],
) -> None:
    """Encode clips to latents once, so that a world model trains without decoding video."""
    from worldgym.training.encode import encode_clips

    with _progress() as progress:
        bar = progress.add_task("encode", total=None)
        show = partial(progress.update, bar)
        encoded = encode_clips(
            clips, codec, out, on_clip=lambda done, total: show(completed=done, total=total)
        )
    for skipped in encoded.skipped:
        console.print(f"left out {skipped.path}: {skipped.reason}")
    console.print(f"{len(encoded)} clips in {out}")


def add_train_commands() -> None:
    """Give ``train`` its verbs; their flags are the fields of the configurations."""
    from worldgym.training.codec import CodecTraining, train_codec
    from worldgym.training.inverse import InverseTraining, train_inverse
    from worldgym.training.judge import JudgeTraining, train_judge
    from worldgym.training.loop import LoopConfig
    from worldgym.training.policy import PolicyTraining, train_policy
    from worldgym.training.world import train_world
    from worldgym.training.world_config import WorldTraining

    def codec(config: CodecTraining, out: Path) -> None:
        """Train the packaged codec on the frames of clips."""
        train_codec(config, out)
        console.print(f"codec in {out / 'codec'}, loss curve in {out / 'loss.png'}")

    def world(config: WorldTraining, out: Path) -> None:
        """Train a world model on clips (mp4 + npz) or encoded clips."""
        train_world(config, out)
        console.print(f"checkpoint in {out / 'checkpoint'}, curve in {out / 'loss.png'}")

    def judge(config: JudgeTraining, out: Path) -> None:
        """Train a judge on clips with their outcome: the twin's, imagined ones, or your own."""
        folder = train_judge(config, out)
        console.print(f"judge in {folder}: load it as packaged:{folder}")

    def policy(config: PolicyTraining, out: Path) -> None:
        """Train a policy by imitation of the twin's expert; what it learns from is collected on the way."""
        folder = train_policy(config, out)
        console.print(f"policy in {folder}: load it as packaged:{folder}")

    def inverse(config: InverseTraining, out: Path) -> None:
        """Train the head that reads actions back from frames, on clips of a world that obeys."""
        folder = train_inverse(config, out)
        console.print(f"head in {folder}: use it as ActionConsistency(env, head='{folder}')")

    for function, config in (
        (codec, CodecTraining),
        (world, WorldTraining),
        (judge, JudgeTraining),
        (policy, PolicyTraining),
        (inverse, InverseTraining),
    ):
        command = command_from_fields(function, config, nested=LoopConfig, nested_name="loop")
        train_app.command(function.__name__)(command)

    @train_app.command()
    def plans(
        out: Annotated[Path, typer.Option(help="The file to write, .safetensors.")],
        noise: Annotated[float, typer.Option(help="Deviation of the noise on every action.", min=0)] = 0.0,
        seed: Annotated[int, typer.Option(min=0)] = 0,
    ) -> None:
        """Record what the twin's expert does from the packaged start scenes (no training)."""
        from worldgym.training.plans import record_plans

        solved: list[bool] = []
        record_plans(out, noise=noise, seed=seed, on_plan=lambda trial, success: solved.append(success))
        console.print(f"{len(solved)} plans in {out}, {sum(solved)} of them solve their task")


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))
