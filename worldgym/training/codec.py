"""Training of the packaged codec on the frames of clips.

L1 loss with more weight on what differs from the usual frame (arm and objects are few pixels), a little
noise on the latents so that what the world model predicts nearly right is decoded right, and a penalty
that keeps them small. At the end latents are standardised per channel.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from worldgym.data.clips import ClipFolder, Skipped, summary
from worldgym.errors import DataError, InvalidConfig
from worldgym.models.codec import ConvolutionalCodec, FrameCodec, load_codec, to_bytes, to_unit
from worldgym.training.initial import start_from
from worldgym.training.loop import (
    Draw,
    LoopConfig,
    Run,
    batch_indices,
    batch_sampler,
    is_first_process,
    train,
)
from worldgym.video import psnr, resize

VALIDATION_FRAMES = 256
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CodecTraining:
    """What to train a codec on, and how.

    Attributes:
        data: Folder of clips.
        validation: Folder of held-out clips; None: ``held_out`` of ``data``.
        held_out: Share of the clips that is kept for validation.
        frame_size: (height, width) that frames are resized to; None: as they are.
        max_frames: Frames held in memory, spread evenly over all clips.
        channels: Latent channels.
        downsample: Pixels per latent pixel and side.
        widths: Channels of the network at 1/2, 1/4, ... of the size.
        depth: Residual blocks of the decoder at the smallest size.
        initial: Codec folder whose weights training starts from (fine-tuning); None: fresh ones.
        moving_weight: Weight of a pixel far from the median frame; others have 1.
        latent_noise: Standard deviation of the noise on the latents.
        latent_penalty: Weight of their mean square.
        loop: The loop.
    """

    data: str
    validation: str | None = None
    held_out: float = 0.05
    frame_size: tuple[int, int] | None = None
    max_frames: int = 30_000
    channels: int = 8
    downsample: int = 8
    widths: tuple[int, ...] = (32, 64, 96)
    depth: int = 2
    initial: str | None = None
    moving_weight: float = 9.0
    latent_noise: float = 0.05
    latent_penalty: float = 1e-3
    loop: LoopConfig = field(
        default_factory=lambda: LoopConfig(steps=12_000, weight_decay=0.0, validate_every=1_000)
    )


def train_codec(config: CodecTraining, run: str | Path, out: str | Path | None = None) -> ConvolutionalCodec:
    """Train a codec, or continue.

    Args:
        config: What and how.
        run: Folder of the run.
        out: Where the finished codec is written, by default ``codec`` in the run.

    Returns:
        The codec with averaged, standardised weights.

    Raises:
        DataError: If no clip can be used.
        InvalidConfig: If the configuration does not fit the frames, the run in the folder, or ``initial``.
        CheckpointError: If ``initial`` cannot be loaded.
    """
    network = _network(config)
    frames, check = training_frames(config)
    _check_sides(frames, config.downsample)
    network.to(memory_format=torch.channels_last)
    median = _median(frames)
    sampler = batch_sampler(len(frames), config.loop)

    def loss(network: nn.Module, draw: Draw, device: torch.device) -> Tensor:
        chosen = batch_indices(sampler, draw)
        pixels = to_unit(frames[chosen].to(device))
        return codec_loss(network, pixels, median.to(device), draw.generator(), config)

    def validate(network: nn.Module, step: int, folder: Path) -> dict[str, float]:
        return _validate(network, check, median, config)

    description = {key: value for key, value in asdict(config).items() if key != "loop"}
    trained = train(Run(network, loss, validate, description), config.loop, run)
    codec = ConvolutionalCodec(standardised(trained, frames))
    if is_first_process():
        codec.save(Path(out) if out is not None else Path(run) / "codec")
    return codec


def training_frames(config: CodecTraining) -> tuple[Tensor, Tensor]:
    """Frames to train on and held-out ones, both uint8 (N,H,W,3).

    Raises:
        DataError: If no clip can be read, or the frames differ in size.
    """
    clips = ClipFolder(config.data)
    held = set() if config.validation else held_out(len(clips), config.held_out)
    rest = [index for index in range(len(clips)) if index not in held]
    frames = _sample(clips, rest, config.max_frames, config.frame_size)
    if config.validation:
        clips = ClipFolder(config.validation)
        held = set(range(len(clips)))
    return frames, _sample(clips, sorted(held), VALIDATION_FRAMES, config.frame_size)


def held_out(clips: int, share: float) -> set[int]:
    """Which clips are kept for validation: at least one, evenly spread.

    Raises:
        DataError: If there are not two clips.
    """
    if clips < 2:
        raise DataError(f"keeping clips for validation needs at least 2, got {clips}: name another folder")
    count = min(max(1, round(clips * share)), clips - 1)
    return {int((index + 0.5) * clips / count) for index in range(count)}


def codec_loss(
    network: nn.Module, pixels: Tensor, median: Tensor, generator: torch.Generator, config: CodecTraining
) -> Tensor:
    """Weighted L1 of the reconstruction plus the latents' penalty.

    Args:
        network: A ``FrameCodec``.
        pixels: (M,3,H,W) in [-1, 1].
        median: The usual frame (3,H,W).
        generator: Source of the latent noise.
        config: Weights.
    """
    height, width = (side // config.downsample for side in pixels.shape[2:])
    noise = torch.randn(len(pixels), config.channels, height, width, generator=generator)
    latents, decoded = network(pixels, config.latent_noise * noise.to(pixels.device))
    unusual = ((pixels - median).abs().amax(1, keepdim=True) * 5).clamp(max=1)  # 1 from 0.2 of 2 upward
    weight = 1 + (config.moving_weight - 1) * unusual
    error = ((decoded - pixels).abs() * weight).mean() / weight.mean()
    return error + config.latent_penalty * latents.square().mean()


def standardised(network: Any, frames: Tensor, *, count: int = 2_000) -> FrameCodec:
    """Set mean and deviation of a trained ``FrameCodec`` from the latents of frames."""
    device = next(network.parameters()).device
    network.mean.zero_()
    network.deviation.fill_(1)
    with torch.no_grad():
        parts = frames[:: max(1, len(frames) // count)].split(64)
        latents = torch.cat([network.encode(to_unit(part.to(device))) for part in parts])
    network.mean.copy_(latents.mean((0, 2, 3)))
    network.deviation.copy_(latents.std((0, 2, 3)).clamp(min=1e-3))
    return network  # type: ignore[no-any-return]


def _network(config: CodecTraining) -> FrameCodec:
    """The network with the weights it starts from."""
    torch.manual_seed(config.loop.seed)
    network = FrameCodec(config.channels, config.downsample, config.widths, config.depth)
    if config.initial is not None:
        start_from(network, load_codec(config.initial).network, name=config.initial)
    return network


def _validate(network: Any, frames: Tensor, median: Tensor, config: CodecTraining) -> dict[str, float]:
    """Loss and PSNR on held-out frames, the latter after rounding to uint8."""
    device = next(network.parameters()).device
    losses, ratios = [], []
    for number, part in enumerate(frames.split(64)):
        pixels = to_unit(part.to(device))
        generator = Draw(config.loop.seed, number).generator(2)
        losses.append(codec_loss(network, pixels, median.to(device), generator, config).item())
        decoded = to_bytes(network.decoder(network.encoder(pixels))).cpu().numpy()
        ratios.append(psnr(part.numpy(), decoded))
    return {"loss": float(np.mean(losses)), "psnr": float(np.mean(np.concatenate(ratios)))}


def _median(frames: Tensor) -> Tensor:
    """The usual frame (3,H,W), over 256 frames spread over all."""
    return to_unit(frames[:: max(1, len(frames) // 256)].median(dim=0).values[None])[0]


def _sample(clips: ClipFolder, chosen: Sequence[int], most: int, size: tuple[int, int] | None) -> Tensor:
    """At most ``most`` frames, the same number from every chosen clip, evenly spread in each."""
    parts: list[npt.NDArray[np.uint8]] = []
    each = max(1, most // len(chosen))
    skipped: list[Skipped] = []
    for index in chosen[:: max(1, len(chosen) // most)]:
        try:
            frames = clips[index].frames
        except DataError as error:
            skipped.append(Skipped(clips.path / clips.names[index], str(error)))
            continue
        frames = frames[np.unique(np.linspace(0, len(frames) - 1, min(each, len(frames))).astype(int))]
        parts.append(frames if size is None else resize(frames, size))
    if not parts:
        raise DataError(f"no clip of {clips.path} can be read{summary(skipped)}")
    if len(sizes := {part.shape[1:] for part in parts}) > 1:
        raise DataError(f"clips of {clips.path} differ in size, {sorted(sizes)}: give a frame_size")
    for entry in skipped:
        logger.warning("left out: %s", entry.reason)
    return torch.from_numpy(np.concatenate(parts))


def _check_sides(frames: Tensor, downsample: int) -> None:
    sides: Sequence[int] = frames.shape[1:3]
    if any(side % downsample for side in sides):
        raise InvalidConfig(
            f"frames of {sides[0]}x{sides[1]} cannot be trained on with downsample={downsample}: choose a "
            f"frame_size whose sides are multiples of it"
        )
