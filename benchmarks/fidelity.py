"""How true a world model is to the twin, when both play the same actions from the same start.

    worldgym collect held --episodes 200 --seed 1
    python benchmarks/fidelity.py held --out fidelity

On held-out episodes of all families of behaviour, at frames 1, 10, 20 and 40: pictures (PSNR, SSIM, a
perceptual distance) beside the first frame repeated, the previous true frame, and the codec alone; positions
of gripper and things as the probe (``probe.py``) reads them, also with another episode's actions; how often
things vanish or multiply; whether both worlds agree on the outcome; speed. Everything per family as well.
Writes ``fidelity.json``, ``fidelity.md``, and contact sheets of every task and family, the twin beside the
model.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import gymnasium
import numpy as np
import torch
import typer
from fidelity_measures import (
    BEST,
    Frames,
    Outcomes,
    multiplied,
    picture_scores,
    position_errors,
    spread,
    vanished,
)
from fidelity_sheets import write_sheets
from fidelity_tables import markdown, print_report
from outcome_rules import read_outcome
from probe import WEIGHTS, Probe, Reading
from probe_frames import Label, labels_of
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from worldgym.data.clips import ClipFolder
from worldgym.envs.twin_tasks import get_task
from worldgym.episode import Episode, Outcome
from worldgym.errors import DataError
from worldgym.judges import Clip, load_judge
from worldgym.models.world_model import WorldModel
from worldgym.training.imagine import replay
from worldgym.video import psnr, resize

HORIZONS = (1, 10, 20, 40)
FAILING = (
    *("noise_0.35", "noise_0.5", "offset_grasp", "early_release", "wrong_object", "stop_half_way"),
    *("random_walk", "random", "play", "drift"),
)
"""Families of behaviour that mostly fail, or want nothing."""
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())


@dataclass(frozen=True)
class Played:
    """Videos of one world for some episodes, with what the probe reads in them.

    Attributes:
        videos: uint8 (B, T, H, W, 3).
        readings: Of each episode's T frames.
    """

    videos: Frames
    readings: list[Reading]


def read_episodes(folder: Path, count: int) -> list[Episode]:
    """At most ``count`` episodes, evenly spread over the folder.

    Raises:
        DataError: If they are too short, or come without the truth.
    """
    clips = ClipFolder(folder)
    chosen = np.linspace(0, len(clips) - 1, min(count, len(clips))).round().astype(int)
    episodes = [clips[int(number)] for number in chosen]
    for number, episode in zip(chosen, episodes, strict=True):
        if episode.success is None or "centroids" not in episode.metadata or len(episode) <= HORIZONS[-1]:
            raise DataError(
                f"{clips.names[number]} of {folder} is no twin episode of {HORIZONS[-1]} new frames: make a "
                "folder with `worldgym collect`"
            )
    return [
        replace(e, frames=e.frames[: HORIZONS[-1] + 1], actions=e.actions[: HORIZONS[-1]]) for e in episodes
    ]


def play(model: WorldModel, episodes: Sequence[Episode], *, batch: int, bar: Progress, name: str) -> Frames:
    """Videos (B, T, H, W, 3) that a model makes of the starts and actions of episodes."""
    task = bar.add_task(name, total=len(episodes))
    parts = []
    for first in range(0, len(episodes), batch):
        part = list(episodes[first : first + batch])
        parts.append(replay(model, part, seeds=list(range(first, first + len(part)))))
        bar.advance(task, len(part))
    return np.concatenate(parts)


def read(probe: Probe, videos: Frames) -> Played:
    """Let the probe read videos (B, T, H, W, 3)."""
    rows, length = videos.shape[:2]
    flat = probe.read(videos.reshape(-1, *videos.shape[2:]))
    fields = [value.reshape(rows, length, *value.shape[1:]) for value in vars(flat).values()]
    return Played(videos, [Reading(*values) for values in zip(*fields, strict=True)])


def with_others_actions(episodes: Sequence[Episode]) -> list[Episode]:
    """The same starts with another episode's actions: of the one half of the list further."""
    shift = max(1, len(episodes) // 2)
    others = [*episodes[shift:], *episodes[:shift]]
    return [
        replace(e, actions=o.actions, action_spec=o.action_spec)
        for e, o in zip(episodes, others, strict=True)
    ]


def pictures(probe: Probe, truth: Frames, videos: dict[str, Frames]) -> dict[str, Any]:
    """Scores of every video and of two references at every horizon."""
    result: dict[str, Any] = {}
    for horizon in HORIZONS:
        columns = {name: video[:, horizon] for name, video in videos.items()}
        columns["first frame repeated"] = truth[:, 0]
        columns["previous true frame"] = truth[:, horizon - 1]
        result[str(horizon)] = {
            name: picture_scores(probe, frames, truth[: len(frames), horizon])
            for name, frames in columns.items()
        }
    return result


def positions(readings: Sequence[Reading], episodes: Sequence[Episode]) -> dict[str, Any]:
    """Errors of gripper and things at every horizon, over the episodes."""
    errors = [
        position_errors(reading, labels_of(e.metadata)[: HORIZONS[-1] + 1])
        for reading, e in zip(readings, episodes, strict=True)
    ]
    return {
        str(horizon): {
            what: spread(np.concatenate([np.atleast_1d(error[what][horizon]) for error in errors]))
            for what in ("gripper", "plain", "moved", "hidden")
        }
        for horizon in HORIZONS
    }


def still_positions(episodes: Sequence[Episode]) -> dict[str, Any]:
    """The same for a world in which nothing ever moves, from the true positions in the first frames."""
    readings = []
    for episode in episodes:
        first = np.repeat(labels_of(episode.metadata)[:1], HORIZONS[-1] + 1, axis=0)
        place = first[..., [Label.X, Label.Y]]
        nothing = np.zeros(first.shape[:2], np.float32)
        readings.append(Reading(place, nothing, nothing, (~np.isnan(place[..., 0])).astype(np.int64)))
    return positions(readings, episodes)


def keeping(readings: Sequence[Reading], episodes: Sequence[Episode]) -> dict[str, float]:
    """Shares of rollouts in which something vanishes, something multiplies, or neither."""
    labels = [labels_of(e.metadata)[: HORIZONS[-1] + 1] for e in episodes]
    lost = np.array([vanished(*pair) for pair in zip(readings, labels, strict=True)])
    more = np.array([multiplied(*pair) for pair in zip(readings, labels, strict=True)])
    return {
        "vanished": float(lost.mean()),
        "multiplied": float(more.mean()),
        "neither": float((~lost & ~more).mean()),
    }


def probe_outcomes(readings: Sequence[Reading], episodes: Sequence[Episode]) -> Outcomes:
    """Outcomes as the probe reads them beside the twin's."""
    shown = [
        Outcome.SUCCESS if read_outcome(get_task(e.task), reading, e.metadata["scene"]) else Outcome.FAILURE
        for reading, e in zip(readings, episodes, strict=True)
    ]
    return Outcomes(shown, [bool(e.success) for e in episodes], [str(e.family) for e in episodes])


def judge_outcomes(judge: str, videos: Frames, episodes: Sequence[Episode]) -> Outcomes:
    """Outcomes at the last frame as a judge sees them, beside the twin's at its last frame."""
    asked = load_judge(judge)
    clips = [
        Clip(video, e.instruction, criteria=get_task(e.task).partial_credit_criteria, fps=e.fps)
        for video, e in zip(videos, episodes, strict=True)
    ]
    shown = [verdict.outcome for verdict in asked.judge(clips)]
    truth = [bool(e.metadata["success"][HORIZONS[-1]]) for e in episodes]
    return Outcomes(shown, truth, [str(e.family) for e in episodes])


def agreement(outcomes: Outcomes) -> dict[str, Any]:
    """Over all families, and over those that fail."""
    return {"all": outcomes.to_dict(), "failing families": outcomes.of(FAILING).to_dict()}


def speed(checkpoint: str, *, frames: int = 40) -> dict[str, float]:
    """Steps per second of one row, and seconds for 8 rows of a rollout, through the environment."""
    result: dict[str, float] = {"load_average": os.getloadavg()[0], "threads": torch.get_num_threads()}
    for rows in (1, 8):
        envs = gymnasium.make_vec(
            "worldgym:WorldGym-Bridge-v0", rows, checkpoint=checkpoint, judge=None, episode_frames=None
        )
        envs.reset(seed=0)
        actions = envs.action_space.sample() * 0.2
        envs.step(actions)
        wall, processor = time.perf_counter(), time.process_time()
        for _ in range(frames):
            envs.step(actions)
        result[f"rows_{rows}_seconds"] = time.perf_counter() - wall
        result[f"rows_{rows}_processor_seconds"] = time.process_time() - processor
        envs.close()
    result["rows_1_hz"] = frames / result["rows_1_seconds"]
    result["rows_1_hz_on_an_idle_machine"] = frames / result["rows_1_processor_seconds"]
    return result


def by_family(
    model: Played, episodes: Sequence[Episode], truth: Frames, outcomes: Outcomes
) -> dict[str, Any]:
    """The main figures of each family."""
    result: dict[str, Any] = {}
    for family in sorted(set(outcomes.families)):
        rows = [i for i, name in enumerate(outcomes.families) if name == family]
        part, readings = [episodes[i] for i in rows], [model.readings[i] for i in rows]
        own = outcomes.of([family])
        result[family] = {
            "episodes": len(rows),
            "psnr_20": float(np.minimum(psnr(model.videos[rows, 20], truth[rows, 20]), BEST).mean()),
            "positions": positions(readings, part),
            **keeping(readings, part),
            "twin_successes": sum(own.truth),
            "shown_successes": sum(shown is Outcome.SUCCESS for shown in own.shown),
            "agree": sum((s is Outcome.SUCCESS) == t for s, t in zip(own.shown, own.truth, strict=True)),
        }
    return result


def measure(
    checkpoint: str, episodes: list[Episode], *, probe: Probe, shuffled: int, batch: int, judge: str | None
) -> tuple[dict[str, Any], Frames, Frames]:
    """Everything but the speed: the report, and the videos of twin and model (B, T, H, W, 3)."""
    model = WorldModel.from_pretrained(checkpoint)
    truth = np.stack([resize(episode.frames, model.frame_shape[:2]) for episode in episodes])
    few = episodes[:: max(1, len(episodes) // shuffled)][:shuffled]
    with Progress(*_COLUMNS) as bar:
        played = read(probe, play(model, episodes, batch=batch, bar=bar, name="model"))
        other = play(model, with_others_actions(few), batch=batch, bar=bar, name="others' actions")
        coded = np.zeros_like(truth)
        for horizon in HORIZONS:
            latents = model.encode(torch.from_numpy(truth[:, horizon : horizon + 1]))
            coded[:, horizon] = model.decode(latents).cpu().numpy()[:, 0]
    twin = read(probe, truth)
    shown = probe_outcomes(played.readings, episodes)
    report: dict[str, Any] = {
        "checkpoint": checkpoint,
        "episodes": len(episodes),
        "shuffled_episodes": len(few),
        "pictures": pictures(probe, truth, {"model": played.videos, "codec alone": coded}),
        "positions": {
            "model": positions(played.readings, episodes),
            "another episode's actions": positions(read(probe, other).readings, few),
            "first frame repeated": still_positions(episodes),
            "probe on the codec alone": positions(read(probe, coded).readings, episodes),
            "probe on the twin": positions(twin.readings, episodes),
        },
        "keeping": {
            "model": keeping(played.readings, episodes),
            "probe on the twin": keeping(twin.readings, episodes),
        },
        "outcome": {
            "model": agreement(shown),
            "probe on the twin": agreement(probe_outcomes(twin.readings, episodes)),
        },
        "families": by_family(played, episodes, truth, shown),
    }
    if judge is not None:
        report["outcome"][f"{judge} on the model"] = agreement(judge_outcomes(judge, played.videos, episodes))
        report["outcome"][f"{judge} on the twin"] = agreement(judge_outcomes(judge, truth, episodes))
    return report, truth, played.videos


def main(  # noqa: PLR0913
    clips: Annotated[Path, typer.Argument(help="Folder of held-out clips from `worldgym collect`.")],
    checkpoint: Annotated[str, typer.Option(help="Folder, packaged name or hub id.")] = "packaged",
    episodes: Annotated[int, typer.Option(help="Episodes, evenly spread over the folder.", min=2)] = 260,
    shuffled: Annotated[int, typer.Option(help="Episodes replayed with others' actions.", min=2)] = 64,
    batch: Annotated[int, typer.Option(help="Rows that are rolled out at once.", min=1)] = 32,
    judge: Annotated[str | None, typer.Option(help="A judge to ask as well, such as 'packaged'.")] = None,
    probe: Annotated[Path, typer.Option(help="Weights of the probe.")] = WEIGHTS,
    timed: Annotated[bool, typer.Option(help="Measure the speed too.")] = True,
    out: Annotated[Path, typer.Option(help="Folder of the results and the contact sheets.")] = Path(
        "fidelity"
    ),
) -> None:
    """Measure, print the tables, and write them with the contact sheets."""
    loaded, chosen = Probe.load(probe), read_episodes(clips, episodes)
    begin = time.perf_counter()
    report, truth, videos = measure(
        checkpoint, chosen, probe=loaded, shuffled=min(shuffled, len(chosen)), batch=batch, judge=judge
    )
    if timed:
        report["speed"] = speed(checkpoint)
    report["minutes"] = (time.perf_counter() - begin) / 60
    out.mkdir(parents=True, exist_ok=True)
    (out / "fidelity.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / "fidelity.md").write_text(markdown(report))
    write_sheets(out, chosen, truth, videos)
    print_report(report)


if __name__ == "__main__":
    typer.run(main)
