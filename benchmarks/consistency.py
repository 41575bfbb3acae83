"""How well ``ActionConsistency`` tells rollouts that left the requested actions from rollouts that did not.

    worldgym collect held --episodes 160 --seed 1
    python benchmarks/consistency.py held --out runs/consistency                       # videos of the twin
    python benchmarks/consistency.py held --checkpoint packaged --out runs/consistency  # and of a world model

Every episode is checked as it is, and corrupted from frame 10 on in four ways:

    shuffled actions   the frames stay; the requested actions are those of the episode in another order
    another episode    from there on the frames are those of another episode
    frozen             from there on the frame stands still
    noised context     the twin: noise on the frames. The model: before every step noise on the newest latents
                       that it goes on from, of half and of all their deviation

The ROC is of an episode's score, its greatest disagreement over a window; its interval is a bootstrap over
episodes. "Caught" and "ended" count all three checks (disagreement, frozen, exploded) at the calibrated
threshold, as the wrapper uses them. For rollouts of a model the truth about "ended" is not known: a model
that is wrong about the robot should be ended; beside it stands the PSNR to the twin of both groups.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch
import typer
from rich.console import Console
from rich.table import Table

from worldgym.actions import convert
from worldgym.data.clips import ClipFolder
from worldgym.evaluation.intervals import wilson
from worldgym.models.inverse_head import InverseHead
from worldgym.models.world_model import WorldModel
from worldgym.video import psnr, resize
from worldgym.wrappers.consistency_rules import ConsistencyConfig, ConsistencyRule, episode_scores

FROM = 10
"""Frame at which a corruption begins."""
NOISE = 40.0
"""Deviation of the noise on frames, in grey levels."""
LATENT_NOISE = (0.5, 1.0)
"""Deviations of the noise on latents, in deviations of the latents."""
AT_ONCE = 16
"""Episodes that a model imagines together."""
Videos = npt.NDArray[np.uint8]
Actions = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Checked:
    """What the wrapper would say of E episodes.

    Attributes:
        scores: (E,) greatest disagreement over a window.
        alarms: Of each episode the check that gives the first alarm, and its frame; None without an alarm.
    """

    scores: npt.NDArray[np.float64]
    alarms: list[tuple[str, int] | None]

    @property
    def ended(self) -> int:
        """Episodes with an alarm."""
        return sum(alarm is not None for alarm in self.alarms)


def check(rule: ConsistencyRule, videos: Videos, actions: Actions) -> Checked:
    """Check whole episodes (E, T, H, W, 3) against their requested actions (E, T - 1, 7)."""
    compared, alarms = [], list[tuple[str, int] | None]()
    for video, asked in zip(videos, actions, strict=True):
        ((_, finding),) = rule.check([rule.begin(video[0])], [video[1:]], [asked])  # as one chunk
        compared.append(finding.compared)
        alarms.append(None if finding.alarm is None else (finding.alarm, finding.alarm_frame or 0))
    return Checked(episode_scores(np.stack(compared), rule.config.window), alarms)


def area_under_roc(honest: npt.NDArray[np.float64], corrupted: npt.NDArray[np.float64]) -> float:
    """Chance that a corrupted episode has the larger score; ties count half (Hanley & McNeil 1982)."""
    larger = corrupted[:, None] > honest
    equal = corrupted[:, None] == honest
    return float((larger + 0.5 * equal).mean())


def bootstrap(
    honest: npt.NDArray[np.float64], corrupted: npt.NDArray[np.float64], *, seed: int = 0, draws: int = 1000
) -> tuple[float, float]:
    """95 % percentile interval of the area; an episode is drawn together with its corrupted form."""
    rng, count = np.random.default_rng(seed), len(honest)
    picks = rng.integers(count, size=(draws, count))
    areas = [area_under_roc(honest[pick], corrupted[pick]) for pick in picks]
    low, high = np.quantile(areas, [0.025, 0.975])
    return float(low), float(high)


def corruptions(
    videos: Videos, actions: Actions, noised: dict[str, Videos], *, seed: int
) -> dict[str, tuple[Videos, Actions]]:
    """Videos and requested actions of each kind of corruption."""
    rng, count = np.random.default_rng(seed), len(videos)
    shuffled = actions.copy()
    for row in range(count):
        shuffled[row, FROM:] = rng.permutation(actions[row, FROM:])
    other, frozen = videos.copy(), videos.copy()
    other[:, FROM + 1 :] = np.roll(videos, max(1, count // 2), axis=0)[:, FROM + 1 :]
    frozen[:, FROM + 1 :] = frozen[:, FROM, None]
    return {
        "shuffled actions": (videos, shuffled),
        "another episode": (other, actions),
        "frozen": (frozen, actions),
        **{name: (frames, actions) for name, frames in noised.items()},
    }


def with_noise(videos: Videos, *, seed: int) -> Videos:
    """Videos with noise."""
    noise = np.random.default_rng(seed).normal(0, NOISE, videos.shape)
    return np.clip(videos + noise, 0, 255).round().astype(np.uint8)


def imagine(
    model: WorldModel, context: Videos, numbers: Actions, seeds: list[int], *, noise: float = 0.0
) -> Videos:
    """What a model shows (B, K, H, W, 3) after its context (B, T0, H, W, 3) for K actions."""
    state = model.start(context, seeds)
    rows, generator, new = torch.arange(state.rows), torch.Generator().manual_seed(seeds[0]), []
    for step in range(numbers.shape[1]):
        if noise:
            slots = torch.from_numpy(state.newest % state.latents.shape[1])
            newest = state.latents[rows, slots]
            drawn = torch.randn(newest.shape, generator=generator).to(newest)
            state.latents[rows, slots] = newest + noise * newest.std() * drawn
        new.append(model.decode(model.step(state, numbers[:, step : step + 1])).cpu().numpy())
    return np.concatenate(new, axis=1)


def model_videos(
    checkpoint: str, videos: Videos, actions: Actions, *, device: str, seed: int
) -> tuple[Videos, dict[str, Videos]]:
    """The episodes in a world model, and once more with noise on its context from ``FROM`` on."""
    model = WorldModel.from_pretrained(checkpoint, device=device)
    size = (model.config.frame_height, model.config.frame_width)
    numbers = convert(actions, "worldgym", model.config.action_spec)
    honest = list[Videos]()
    noised: dict[str, list[Videos]] = {f"noised context, {noise:g}": [] for noise in LATENT_NOISE}
    for first in range(0, len(videos), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        seeds = [seed + row for row in range(first, first + len(videos[part]))]
        starts = resize(videos[part, :1], size)
        with torch.inference_mode():
            honest.append(np.concatenate([starts, imagine(model, starts, numbers[part], seeds)], axis=1))
            before = honest[-1][:, : FROM + 1]
            context = before[:, -model.config.window :]
            for noise, parts in zip(LATENT_NOISE, noised.values(), strict=True):
                rest = imagine(model, context, numbers[part, FROM:], seeds, noise=noise)
                parts.append(np.concatenate([before, rest], axis=1))
    return np.concatenate(honest), {name: np.concatenate(parts) for name, parts in noised.items()}


def measure(
    rule: ConsistencyRule, videos: Videos, actions: Actions, noised: dict[str, Videos], *, seed: int
) -> tuple[dict[str, Any], dict[str, Checked]]:
    """Everything about one source of videos, and the checks for the plot."""
    honest = check(rule, videos, actions)
    found = {"honest": honest}
    rate = wilson(honest.ended, len(videos))
    by_check = [alarm[0] for alarm in honest.alarms if alarm is not None]
    result: dict[str, Any] = {
        "episodes": len(videos),
        "threshold": rule.threshold,
        "ended": {"rate": rate.value, "low": rate.low, "high": rate.high},
        "ended_by": {name: by_check.count(name) for name in ("disagreement", "frozen", "exploded")},
        "corruptions": {},
    }
    for name, (frames, asked) in corruptions(videos, actions, noised, seed=seed).items():
        bad = found[name] = check(rule, frames, asked)
        caught = wilson(bad.ended, len(videos))
        low, high = bootstrap(honest.scores, bad.scores, seed=seed)
        alarms = [alarm for alarm in bad.alarms if alarm is not None]
        result["corruptions"][name] = {
            "auc": area_under_roc(honest.scores, bad.scores),
            "auc_low": low,
            "auc_high": high,
            "caught": {"rate": caught.value, "low": caught.low, "high": caught.high},
            "by": {
                kind: sum(a[0] == kind for a in alarms) for kind in ("disagreement", "frozen", "exploded")
            },
            "median_frames_later": float(np.median([a[1] - FROM for a in alarms])) if alarms else None,
        }
    return result, found


def plot(found: dict[str, dict[str, Checked]], threshold: float, file: Path) -> None:
    """ROC curves, one panel per source; the dot is the calibrated threshold."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(5 * len(found), 4.6), squeeze=False)
    for axis, (source, checks) in zip(axes[0], found.items(), strict=True):
        honest = checks["honest"].scores
        for name, bad in checks.items():
            if name == "honest":
                continue
            levels = np.concatenate(
                [[np.inf], np.sort(np.concatenate([honest, bad.scores]))[::-1], [-np.inf]]
            )
            false = [(honest >= level).mean() for level in levels]
            true = [(bad.scores >= level).mean() for level in levels]
            (line,) = axis.plot(false, true, label=f"{name} ({area_under_roc(honest, bad.scores):.3f})")
            at = (honest > threshold).mean(), (bad.scores > threshold).mean()
            axis.plot(*at, "o", color=line.get_color())
        axis.set(title=source, xlabel="honest episodes above", ylabel="corrupted episodes above")
        axis.legend(loc="lower right", title="corruption (area)")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def show(results: dict[str, Any], alpha: float, console: Console) -> None:
    """Print the tables."""

    def interval(part: dict[str, Any]) -> str:
        return f"{part['rate']:.3f} ({part['low']:.3f} to {part['high']:.3f})"

    for source, result in results.items():
        title = f"{source}: {result['episodes']} episodes, threshold {result['threshold']:.3f}, alpha {alpha}"
        table = Table("videos", "area under ROC", "ended or caught", "by", "median frames later", title=title)
        by = ", ".join(f"{name} {count}" for name, count in result["ended_by"].items() if count)
        table.add_row("as they are", "", interval(result["ended"]), by, "")
        for name, part in result["corruptions"].items():
            area = f"{part['auc']:.3f} ({part['auc_low']:.3f} to {part['auc_high']:.3f})"
            by = ", ".join(f"{kind} {count}" for kind, count in part["by"].items() if count)
            later = part["median_frames_later"]
            table.add_row(name, area, interval(part["caught"]), by, "-" if later is None else f"{later:g}")
        console.print(table)
        if "psnr" in result:
            console.print(f"PSNR to the twin, dB: {result['psnr']}")


def psnr_of_groups(videos: Videos, truth: Videos, checked: Checked) -> dict[str, float | None]:
    """Mean PSNR to the twin over the last ten frames, of the episodes that were ended and of the others."""
    near = np.array([psnr(mine[-10:], true[-10:]).mean() for mine, true in zip(videos, truth, strict=True)])
    ended = np.array([alarm is not None for alarm in checked.alarms])
    groups = {"ended": near[ended], "not ended": near[~ended]}
    return {name: round(float(group.mean()), 2) if len(group) else None for name, group in groups.items()}


def main(  # noqa: PLR0913 - each is a flag
    clips: Annotated[Path, typer.Argument(help="Folder of held-out clips of the twin, all of one length.")],
    out: Annotated[Path, typer.Option(help="Folder for consistency.json and consistency.png.")],
    checkpoint: Annotated[str | None, typer.Option(help="World model to check, too.")] = None,
    head: Annotated[str | None, typer.Option(help="Folder of a head; the packaged one by default.")] = None,
    episodes: Annotated[int, typer.Option(help="Most episodes of the twin.", min=2)] = 200,
    model_episodes: Annotated[int, typer.Option(help="Most episodes of the model.", min=2)] = 64,
    alpha: Annotated[float, typer.Option(help="Share of false alarms.")] = 0.05,
    window: Annotated[int, typer.Option(help="Frames that are averaged.", min=1)] = 8,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    device: Annotated[str, typer.Option(help="Torch device.")] = "cpu",
) -> None:
    """Measure, print, and write the files."""
    rule = ConsistencyRule(InverseHead(head, device=device), ConsistencyConfig(alpha=alpha, window=window))
    folder = ClipFolder(clips)
    chosen = [folder[index] for index in range(min(episodes, len(folder)))]
    spec = rule.head.config.action_spec
    videos = np.stack([episode.frames for episode in chosen])
    actions = np.stack([convert(episode.actions, episode.action_spec, spec) for episode in chosen])
    noisy = videos.copy()
    noisy[:, FROM + 1 :] = with_noise(videos[:, FROM + 1 :], seed=seed)
    results, found = dict[str, Any](), dict[str, dict[str, Checked]]()
    results["twin"], found["twin"] = measure(rule, videos, actions, {"noised context": noisy}, seed=seed)
    if checkpoint is not None:
        picked = np.linspace(0, len(videos) - 1, min(model_episodes, len(videos))).round().astype(int)
        truth, asked = videos[picked], actions[picked]
        mine, noised = model_videos(checkpoint, truth, asked, device=device, seed=seed)
        results["model"], found["model"] = measure(rule, mine, asked, noised, seed=seed)
        truth = resize(truth, mine.shape[2:4])
        results["model"]["psnr"] = psnr_of_groups(mine, truth, found["model"]["honest"])
        results["model"]["checkpoint"] = checkpoint
    console = Console(width=140)
    show(results, alpha, console)
    out.mkdir(parents=True, exist_ok=True)
    options = {"alpha": alpha, "window": window, "seed": seed, "from": FROM, "noise": NOISE}
    everything = {"options": options, **results}
    scores = {source: {k: v.scores.tolist() for k, v in checks.items()} for source, checks in found.items()}
    (out / "consistency.json").write_text(json.dumps({**everything, "scores": scores}, indent=1) + "\n")
    plot(found, rule.threshold, out / "consistency.png")
    console.print(f"{out / 'consistency.json'}, {out / 'consistency.png'}")


if __name__ == "__main__":
    typer.run(main)
