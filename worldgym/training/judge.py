"""Training of the packaged judge, from nothing or from a judge that is there, on the one training loop.

What is here:
    * ``JudgeTraining``: what to train on, and how.
    * ``train_judge``: trains, calibrates on held-out clips, and writes a judge folder.
    * ``judge_loss``: success, progress, and where things are.

The loss on places, heights and grasps is what makes a few thousand episodes enough: the network learns to
see from every frame, and to judge from a few numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldgym.errors import InvalidConfig
from worldgym.judges.network import JudgeNetwork, Sight
from worldgym.judges.packaged import PACKAGED_JUDGE, JudgeConfig, load_network, read_config, save_judge
from worldgym.training.codec import held_out
from worldgym.training.judge_batches import JudgeBatch, draw_batch
from worldgym.training.judge_calibration import (
    Watched,
    calibration_error,
    choose_threshold,
    fit_probability,
    watch,
)
from worldgym.training.judge_data import JudgeClips, load_clips
from worldgym.training.loop import (
    Draw,
    LoopConfig,
    Run,
    batch_indices,
    batch_sampler,
    is_first_process,
    train,
)

_CELL = 0.7 / 16
"""Deviation of the blob that a thing's map should be, as a part of the frame: 0.7 of a cell."""


@dataclass(frozen=True)
class JudgeTraining:
    """What to train a judge on, and how.

    Attributes:
        data: Folder of clips with an instruction and ``success`` (mp4 + npz).
        more: Further folders, for example of imagined episodes.
        init: Judge folder to begin with, or "packaged"; None: begin with nothing.
        held_out: Share of each folder's clips that is kept for calibration and threshold.
        max_clips: Most clips that are read of each folder; 500 kB of memory each.
        replays: Most of the twin's clips of each folder that are replayed, 0.1 s each, to learn which other
            tasks they solve.
        false_positives: Share of failed held-out episodes that may be called a success.
        widths: Channels of the network at 1/4 and 1/8 of the frame.
        hidden: Width of the decision.
        sight: Weight of the loss on where things are.
        loop: The loop.
    """

    data: str
    more: tuple[str, ...] | None = None
    init: str | None = None
    held_out: float = 0.08
    max_clips: int = 5_000
    replays: int = 1_500
    false_positives: float = 0.06
    widths: tuple[int, ...] = (48, 64)
    hidden: int = 192
    sight: float = 1.0
    loop: LoopConfig = field(
        default_factory=lambda: LoopConfig(
            steps=2_500,
            batch_size=24,
            learning_rate=1.5e-3,
            weight_decay=0.02,
            ema=0.998,
            validate_every=500,
            save_every=250,
            compile=False,
        )
    )

    def __post_init__(self) -> None:
        if len(self.widths) != 2 or any(width < 8 or width % 8 for width in self.widths):
            raise InvalidConfig(f"widths must be two multiples of 8, got {self.widths}")
        if not 0 < self.held_out < 1 or not 0 < self.false_positives < 1:
            raise InvalidConfig(
                f"held_out and false_positives must be between 0 and 1, got {self.held_out} and "
                f"{self.false_positives}"
            )


def train_judge(config: JudgeTraining, run: str | Path, out: str | Path | None = None) -> Path:
    """Train a judge, or continue, and write it with its calibration.

    Args:
        config: What and how.
        run: Folder of the run; replays of the twin's clips are kept in it.
        out: Where the judge is written, by default ``judge`` in the run.

    Returns:
        The judge folder; ``worldgym.judges.load_judge("packaged:FOLDER")`` loads it.

    Raises:
        DataError: If no clip can be used.
        CheckpointError: If ``init`` is no judge.
        InvalidConfig: If the configuration does not fit the run in the folder.
        MissingExtra: If a package is missing: MuJoCo for clips of the twin, or those of the extra "train".
    """
    start = None if config.init is None else _judge_folder(config.init)
    known = None if start is None else read_config(start)
    folders = [config.data, *(config.more or ())]
    clips, vocabulary = load_clips(
        folders,
        truths=Path(run) / "truths",
        known=None if known is None else known.vocabulary,
        max_clips=config.max_clips,
        replays=config.replays,
    )
    if known is not None:
        config = replace(config, widths=known.widths, hidden=known.hidden)
    torch.manual_seed(config.loop.seed)
    network = JudgeNetwork(vocabulary, widths=config.widths, hidden=config.hidden)
    if start is not None and known is not None:
        network = grown(network, load_network(start, known))
    kept = held_out(len(clips), config.held_out)
    rest = np.array([clip for clip in range(len(clips)) if clip not in kept])
    sampler = batch_sampler(len(rest), config.loop)

    def loss(network: nn.Module, draw: Draw, device: torch.device) -> Tensor:
        chosen = rest[batch_indices(sampler, draw)]
        return judge_loss(network, draw_batch(clips, chosen, draw.generator()).to(device), sight=config.sight)

    def validate(network: nn.Module, step: int, folder: Path) -> dict[str, float]:
        found = calibrated(network, clips, sorted(kept), false_positives=config.false_positives)  # type: ignore[arg-type]
        return {
            f"{source}_{name}": value
            for source, part in found["trained"].items()
            for name, value in part.items()
        } | {"threshold": found["threshold"]}

    description = {key: value for key, value in asdict(config).items() if key != "loop"}
    trained: Any = train(Run(network, loss, validate, description), config.loop, run)
    if not is_first_process():
        return Path(out) if out is not None else Path(run) / "judge"
    found = calibrated(trained, clips, sorted(kept), false_positives=config.false_positives)
    found["trained"] |= {"clips": len(rest), "steps": config.loop.steps, "init": config.init}
    finished = JudgeConfig(vocabulary, widths=tuple(config.widths), hidden=config.hidden, **found)
    return save_judge(trained, finished, Path(out) if out is not None else Path(run) / "judge")


def judge_loss(network: nn.Module, batch: JudgeBatch, *, sight: float) -> Tensor:
    """Cross-entropy of success and of progress over all tasks that are known, plus ``sight_loss``.

    Args:
        network: A ``JudgeNetwork``.
        batch: Videos and truths.
        sight: Weight of ``sight_loss``.
    """
    tasks = torch.arange(batch.truths.shape[1], device=batch.pick.device).expand(len(batch.pick), -1)
    seen, logits = network(batch.pixels, batch.pick, tasks)
    known = ~batch.truths.isnan()
    errors = F.binary_cross_entropy_with_logits(logits.float(), batch.truths.nan_to_num(), reduction="none")
    weights = known * batch.weights[..., None] * errors.new_tensor([1.0, 0.5])
    judged = (errors * weights).sum() / len(batch.pick)
    return judged + sight * sight_loss(seen, batch.sight)


def sight_loss(seen: Sight, truth: Tensor) -> Tensor:
    """How wrong it is about what is in the frames: places, visibility, heights and grasps.

    Args:
        seen: Of F frames.
        truth: (F, S, 5) as in ``JudgeClips.sight``.
    """
    known = ~truth.isnan().any(-1)  # (F, S); things that are not there have no place
    place, visible, height, held = truth[..., :2], truth[..., 2], truth[..., 3], truth[..., 4]
    there = known * (0.1 + 0.9 * visible.nan_to_num())
    cells = (torch.arange(16, device=truth.device) + 0.5) / 16
    grid = torch.stack([cells.repeat(16), cells.repeat_interleave(16)], dim=-1)
    distance = (grid - place.nan_to_num()[..., None, :]).square().sum(-1)  # (F, S, 256)
    blob = torch.softmax(-distance / (2 * _CELL**2), dim=-1)
    mapped = -(blob * seen.map.log_softmax(-1)).sum(-1)
    placed = F.smooth_l1_loss(seen.place, place.nan_to_num(), reduction="none", beta=0.02).sum(-1) * 20
    high = F.smooth_l1_loss(seen.height, height.nan_to_num(), reduction="none", beta=0.05) * 4
    grasp = F.binary_cross_entropy_with_logits(seen.held, held.nan_to_num(), reduction="none")
    told = ~visible.isnan()
    shown = F.binary_cross_entropy_with_logits(seen.visible, visible.nan_to_num(), reduction="none")
    of_places = ((0.3 * mapped + placed + high + grasp) * there).sum() / there.sum().clamp(min=1)
    return of_places + (shown * told).sum() / told.sum().clamp(min=1)


def grown(network: JudgeNetwork, start: JudgeNetwork) -> JudgeNetwork:
    """Copy a judge into one that knows more tasks; what is new keeps its random weights."""
    state = network.state_dict()
    for name, value in start.state_dict().items():
        state[name][: len(value)] = value
    network.load_state_dict(state)
    return network


def _judge_folder(name: str) -> Path:
    return PACKAGED_JUDGE if name == "packaged" else Path(name)


def calibrated(
    network: JudgeNetwork, clips: JudgeClips, kept: Sequence[int], *, false_positives: float
) -> dict[str, Any]:
    """Calibration and threshold from held-out clips, and what was measured on them.

    The threshold is chosen for each source of clips (the twin, world models) and the larger one taken.

    Returns:
        ``scale``, ``bias``, ``threshold`` and ``trained``, fields of ``JudgeConfig``.
    """
    watched = watch(network.eval(), clips, kept)
    scale, bias = fit_probability(watched)
    threshold, trained = 0.5, dict[str, Any]()
    for source in sorted({clips.sources[clip] for clip in kept}):
        part = [seen for clip, seen in zip(kept, watched, strict=True) if clips.sources[clip] == source]
        chances = [seen.largest(scale, bias) for seen in part]
        ever = [seen.ever for seen in part]
        threshold = max(threshold, choose_threshold(chances, ever, most=false_positives))
    for source in sorted({clips.sources[clip] for clip in kept}):
        part = [seen for clip, seen in zip(kept, watched, strict=True) if clips.sources[clip] == source]
        trained[source] = rates(part, scale, bias, threshold)
    return {"scale": scale, "bias": bias, "threshold": threshold, "trained": trained}


def rates(watched: Sequence[Watched], scale: float, bias: float, threshold: float) -> dict[str, float]:
    """Of whole episodes: ``tpr``, ``fpr`` and their numbers; of single questions: ``calibration_error``."""
    said = np.array([seen.largest(scale, bias) >= threshold for seen in watched])
    ever = np.array([seen.ever for seen in watched])
    chances = np.concatenate([seen.chances(scale, bias) for seen in watched])
    truth = np.concatenate([seen.success for seen in watched])
    known = ~np.isnan(truth)
    return {
        "successes": int(ever.sum()),
        "failures": int((~ever).sum()),
        "tpr": float(said[ever].mean()) if ever.any() else float("nan"),
        "fpr": float(said[~ever].mean()) if (~ever).any() else float("nan"),
        "calibration_error": calibration_error(chances[known], truth[known]),
    }
