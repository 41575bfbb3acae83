"""Training of the inverse dynamics head, which reads actions back from frames, on the one training loop.

What is here:
    * ``InverseTraining``: what to train on, and how.
    * ``train_inverse``: trains, measures held-out clips, and writes the folder of a head.
    * ``inverse_loss``: how unlikely the true actions are.
    * ``InverseClips``, ``load_clips``: frames and actions in memory.

The clips must come from a world that obeys, such as the twin: the head learns what obeying looks like. The
held-out clips are the calibration of ``worldgym.wrappers.ActionConsistency``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from worldgym.actions import convert, get_spec
from worldgym.data.clips import ClipFolder
from worldgym.errors import DataError, InvalidAction, InvalidConfig
from worldgym.models.inverse import SMALLEST_ERROR, to_window
from worldgym.models.inverse_head import InverseConfig, InverseHead, fit, save_head, windows_of
from worldgym.training.codec import held_out
from worldgym.training.judge_batches import disturb
from worldgym.training.loop import (
    Draw,
    LoopConfig,
    Run,
    batch_indices,
    batch_sampler,
    is_first_process,
    train,
)

HEAD_FOLDER = "head"
_CHECKED = 40
"""Held-out clips that a validation during the run looks at."""
_WEIGHED = 60
"""Clips of the training that say which components the head can read."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class InverseTraining:
    """What to train a head on, and how.

    Attributes:
        data: Folder of clips (mp4 + npz) of a world that does what it is asked.
        held_out: Share of the clips that is kept for validation and calibration.
        max_clips: Clips that are read, the first ones; None for all. Each takes 500 kB of memory.
        action_spec: Convention of the actions that the head reads; those of the clips are converted.
        frames: Frames in a window.
        widths: Channels of the network at 1/2, 1/4 and 1/8 of the frame.
        hidden: Width of its decision.
        loop: The loop.
    """

    data: str
    held_out: float = 0.1
    max_clips: int | None = 4_000
    action_spec: str = "worldgym"
    frames: int = 3
    widths: tuple[int, ...] = (32, 48, 64)
    hidden: int = 192
    loop: LoopConfig = field(
        default_factory=lambda: LoopConfig(
            steps=4_000,
            batch_size=64,
            learning_rate=2e-3,
            warm_up=100,
            ema=0.995,
            validate_every=500,
            save_every=250,
            compile=False,
        )
    )

    def __post_init__(self) -> None:
        get_spec(self.action_spec)
        self.head()
        if not 0 < self.held_out < 1:
            raise InvalidConfig(f"held_out must be between 0 and 1, got {self.held_out}")
        if self.max_clips is not None and self.max_clips < 2:
            raise InvalidConfig(f"max_clips must be at least 2, or None, got {self.max_clips}")

    def head(self) -> InverseConfig:
        """The configuration of the head."""
        return InverseConfig(self.action_spec, self.frames, tuple(self.widths), self.hidden)


@dataclass(frozen=True)
class InverseClips:
    """C clips end to end, N frames.

    Attributes:
        frames: uint8 (N, 64, 64, 3).
        actions: float32 (N, A); row i caused frame i. The first row of each clip is no action: NaN.
        begin: int64 (C + 1,) first frame of each clip, and N.
    """

    frames: npt.NDArray[np.uint8]
    actions: npt.NDArray[np.float32]
    begin: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Number of clips."""
        return len(self.begin) - 1

    def caused(self, clips: Sequence[int]) -> npt.NDArray[np.int64]:
        """Numbers of the frames of some clips that an action caused."""
        ranges = [np.arange(self.begin[clip] + 1, self.begin[clip + 1]) for clip in clips]
        return np.concatenate(ranges)

    def windows(self, numbers: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.uint8]:
        """The windows (B, size, 64, 64, 3) that end with some frames."""
        first = self.begin[np.searchsorted(self.begin, numbers, side="right") - 1]
        picks: npt.NDArray[np.uint8] = self.frames[
            np.maximum(numbers[:, None] + np.arange(1 - size, 1), first[:, None])
        ]
        return picks


def train_inverse(config: InverseTraining, run: str | Path, out: str | Path | None = None) -> Path:
    """Train a head, or continue, and write it with its calibration.

    Args:
        config: What and how.
        run: Folder of the run.
        out: Where the head is written, by default ``head`` in the run.

    Returns:
        The folder of the head.

    Raises:
        DataError: If fewer than two clips can be used.
        InvalidConfig: If the configuration does not fit the run in the folder.
        MissingExtra: If a package of the extra "train" is missing.
    """
    clips = load_clips(config.data, action_spec=config.action_spec, most=config.max_clips)
    kept = held_out(len(clips), config.held_out)
    chosen = clips.caused([clip for clip in range(len(clips)) if clip not in kept])
    checked = clips.caused(sorted(kept)[:: max(1, len(kept) // _CHECKED)])
    torch.manual_seed(config.loop.seed)
    head = config.head()
    sampler = batch_sampler(len(chosen), config.loop)

    def loss(network: nn.Module, draw: Draw, device: torch.device) -> Tensor:
        numbers = chosen[batch_indices(sampler, draw)]
        window = to_window(torch.from_numpy(clips.windows(numbers, head.frames)))
        way = torch.arange(len(window)).repeat_interleave(head.frames)  # a window's frames alike
        with torch.autocast("cpu", enabled=False):  # the training step may be in bfloat16
            window = disturb(window.flatten(0, 1), way, draw.generator()).unflatten(0, (-1, head.frames))
        actions = torch.from_numpy(clips.actions[numbers]).to(device)
        return inverse_loss(network, window.to(device), actions)

    def validate(network: nn.Module, step: int, folder: Path) -> dict[str, float]:
        device = next(network.parameters()).device
        total, missed, parts = 0.0, 0.0, np.array_split(checked, max(1, len(checked) // 128))
        for numbers in parts:
            window = to_window(torch.from_numpy(clips.windows(numbers, head.frames))).to(device)
            actions = torch.from_numpy(clips.actions[numbers]).to(device)
            total += inverse_loss(network, window, actions).item() / len(parts)
            missed += (network(window).action - actions).abs().mean().item() / len(parts)
        return {"loss": total, "error": missed}

    description = {key: value for key, value in asdict(config).items() if key != "loop"}
    network = train(Run(head.network(), loss, validate, description), config.loop, run)
    folder = Path(out) if out is not None else Path(run) / HEAD_FOLDER
    if is_first_process():
        trained = {"clips": len(clips) - len(kept), "steps": config.loop.steps}
        known = [clip for clip in range(len(clips)) if clip not in kept]
        head = with_weights(
            network, replace(head, trained=trained), clips, known[:: -(-len(known) // _WEIGHED)]
        )
        write_calibrated(network, head, clips, sorted(kept), folder)
    return folder


def inverse_loss(network: nn.Module, window: Tensor, actions: Tensor) -> Tensor:
    """Mean negative log-likelihood of the actions under Laplace distributions, but for a constant: 0 at best.

    A Laplace distribution's scale is its mean absolute error: what the network says of its error is right
    where this is smallest (Kendall & Gal 2017, with the L1 norm).

    Args:
        network: An ``InverseNetwork``.
        window: (B, frames, 3, 64, 64) in [-1, 1].
        actions: (B, A).
    """
    read = network(window)
    return ((actions - read.action).abs() / read.error + (read.error / SMALLEST_ERROR).log()).mean()


def with_weights(
    network: nn.Module, config: InverseConfig, clips: InverseClips, chosen: Sequence[int]
) -> InverseConfig:
    """The configuration with ``weights`` and ``usual``, from clips that are not the calibration's.

    A component's weight is 1 - (mean absolute error of the head / that of the median), not below 0.
    """
    numbers = clips.caused(chosen)
    actions, device = clips.actions[numbers], next(network.parameters()).device
    read = []
    with torch.inference_mode():
        for part in np.array_split(numbers, max(1, len(numbers) // 256)):
            window = to_window(torch.from_numpy(clips.windows(part, config.frames))).to(device)
            read.append(network(window).action.cpu().numpy())
    usual = np.median(actions, axis=0)
    missed = np.abs(actions - np.concatenate(read)).mean(0)
    weights = np.clip(1 - missed / np.maximum(np.abs(actions - usual).mean(0), 1e-6), 0, 1)
    if not weights.any():
        logger.warning("the head reads no component of the actions better than chance: train it for longer")
        weights[:] = 1
    return replace(config, weights=_rounded(weights), usual=_rounded(usual))


def write_calibrated(
    network: nn.Module, config: InverseConfig, clips: InverseClips, kept: Sequence[int], folder: Path
) -> InverseHead:
    """Write a head together with what it says of clips that it was not trained on, as it will be used."""
    longest = int(max(np.diff(clips.begin)))
    found = np.full((len(kept), longest - 1, 2), np.nan, np.float32)
    save_head(network, config, found, folder)
    head, errors = InverseHead(folder), []
    for row, clip in enumerate(kept):
        first, last = clips.begin[clip : clip + 2]
        requested = clips.actions[first + 1 : last]
        action, error = head.read(windows_of(clips.frames[first:last], config.frames))
        found[row, : last - first - 1] = head.compare(requested, action, error)
        errors.append(np.abs(action - requested).mean(0))
    measured = dict(zip(get_spec(config.action_spec).components, _rounded(np.mean(errors, 0)), strict=True))
    trained = {**config.trained, "calibration_episodes": len(kept), "held_out_error": measured}
    save_head(network, replace(config, trained=trained), found, folder)
    return InverseHead(folder)


def _rounded(values: npt.NDArray[Any]) -> tuple[float, ...]:
    return tuple(np.round(values.astype(np.float64), 4).tolist())


def load_clips(folder: str | Path, *, action_spec: str, most: int | None) -> InverseClips:
    """Read the first clips of a folder.

    Raises:
        DataError: If fewer than two can be used; others that cannot are logged and left out.
        SpecMismatch: If actions of this convention cannot be had from theirs.
    """
    reader = ClipFolder(folder)
    frames: list[npt.NDArray[np.uint8]] = []
    actions: list[npt.NDArray[np.float32]] = []
    nothing = np.full((1, get_spec(action_spec).dims), np.nan, np.float32)
    for number in range(len(reader) if most is None else min(most, len(reader))):
        try:
            episode = reader[number]
            if len(episode) < 2:
                raise DataError("it has no action")
            converted = convert(episode.actions, episode.action_spec, action_spec)
        except (DataError, InvalidAction) as error:
            logger.warning("left out clip %s: %s", reader.names[number], error)
            continue
        frames.append(fit(episode.frames))
        actions += [nothing, converted]
    if len(frames) < 2:
        raise DataError(f"training needs at least 2 clips with actions, {folder} has {len(frames)}")
    begin = np.cumsum([0, *(len(clip) for clip in frames)])
    return InverseClips(np.concatenate(frames), np.concatenate(actions), begin.astype(np.int64))


__all__ = ["InverseClips", "InverseTraining", "inverse_loss", "load_clips", "train_inverse"]
