"""The world model's training stage: data, network, run, checkpoint."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from worldgym.data.encoded import EncodedClips
from worldgym.errors import CheckpointError, DataError, InvalidConfig
from worldgym.models.checkpoint import load, save
from worldgym.models.codec import Codec, load_codec
from worldgym.models.config import WorldModelConfig
from worldgym.models.dit import WorldTransformer, banded_mask
from worldgym.models.world_model import WorldModel
from worldgym.training.batches import LatentWindows
from worldgym.training.codec import held_out
from worldgym.training.encode import encode_clips, fingerprint
from worldgym.training.initial import start_from
from worldgym.training.loop import (
    CONFIG_FILE,
    Draw,
    LoopConfig,
    Run,
    batch_indices,
    batch_sampler,
    is_first_process,
    load_average,
    train,
)
from worldgym.training.objective import draw_noise, validation_loss, world_loss
from worldgym.training.rollout import write_rollouts
from worldgym.training.world_config import WorldTraining

logger = logging.getLogger(__name__)


def train_world(config: WorldTraining, run: str | Path, out: str | Path | None = None) -> WorldModel:
    """Train a world model, or continue.

    Args:
        config: What and how.
        run: Folder of the run.
        out: Where the finished checkpoint is written, by default ``checkpoint`` in the run.

    Returns:
        The model with averaged weights.

    Raises:
        DataError: If no window can be used, or latents and codec do not belong together.
        InvalidConfig: If the configuration does not fit, or differs from the run's in the folder.
        CheckpointError: If ``config.initial`` cannot be loaded.
    """
    run = Path(run)
    clips, training, validation = _windows(config, run)
    facts = _facts(config, clips)
    network = _network(config, clips)
    sampler = batch_sampler(len(training), config.loop)
    mask = banded_mask(config.n_frames, config.window)

    def step_loss(network: nn.Module, draw: Draw, device: torch.device) -> Tensor:
        batch = training.batch(batch_indices(sampler, draw))
        noised = draw_noise(batch, draw.generator(), config)
        return world_loss(network, batch.to(device), noised.to(device), config=config, mask=mask.to(device))

    def validate(network: nn.Module, step: int, folder: Path) -> dict[str, float]:
        numbers = {"loss": validation_loss(network, validation, config, mask)}
        if config.rollout_clips:
            longest = sorted(validation.chosen, key=lambda clip: -validation.clips.lengths[clip])
            numbers |= write_rollouts(
                _model(network, facts),
                validation.clips,
                longest[: config.rollout_clips],
                frames=config.rollout_frames,
                path=folder / f"step_{step:08d}.mp4",
            )
        return numbers

    description = {key: value for key, value in asdict(config).items() if key != "loop"}
    average = train(Run(network, step_loss, validate, description), config.loop, run)
    model = _model(average, facts)
    if is_first_process():
        model.save_pretrained(out if out is not None else run / "checkpoint")
    return model


def export_world(run: str | Path, out: str | Path, *, dtype: str | None = None) -> WorldModel:
    """Write the averaged weights of a run, finished or not, as a checkpoint.

    Args:
        run: Folder of a run of ``train_world``.
        out: Folder to write.
        dtype: Store the network in ``"float16"`` or ``"bfloat16"``; None: float32.

    Raises:
        CheckpointError: If the folder holds no readable run.
    """
    run = Path(run)
    config = read_world_training(run)
    clips, _, _ = _windows(config, run)
    network = _network(replace(config, initial=None), clips)
    network.load_state_dict(load_average(run))
    model = _model(network, _facts(config, clips))
    save(model, out, dtype=dtype)
    return model


def read_world_training(run: str | Path) -> WorldTraining:
    """The configuration of a run.

    Raises:
        CheckpointError: If the folder holds no run of a world model.
    """
    path = Path(run) / CONFIG_FILE
    try:
        stored = json.loads(path.read_text())
        names = {item.name for item in fields(LoopConfig)}
        loop = {name: _tuples(value) for name, value in stored.items() if name in names}
        rest = {name: _tuples(value) for name, value in stored.items() if name not in names}
        return WorldTraining(**rest, loop=LoopConfig(**loop))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{run} is no run of a world model: {error}") from error


class Facts(NamedTuple):
    """What the network does not know: codec and declaration."""

    codec: Codec
    config: WorldModelConfig


def _windows(config: WorldTraining, run: Path) -> tuple[EncodedClips, LatentWindows, LatentWindows]:
    """Encoded clips, and windows of them to train on and to validate with."""
    clips = _encoded(config, config.data, run / "encoded")
    if config.validation is None:
        held = held_out(len(clips), config.held_out)
        other = clips
    else:
        other = _encoded(config, config.validation, run / "encoded_validation")
        held = set(range(len(other)))
    rest = [clip for clip in range(len(clips)) if config.validation or clip not in held]
    options = {"n_frames": config.n_frames, "action_offset": config.action_offset}
    training = LatentWindows(clips, rest, stride=config.stride, **options)
    validation = LatentWindows(other, sorted(held), stride=config.n_frames, **options)
    for entry in (*training.skipped, *(validation.skipped if config.validation else ())):
        logger.warning("left out: %s", entry.reason)
    return clips, training, validation


def _encoded(config: WorldTraining, data: str, cache: Path) -> EncodedClips:
    """Open encoded clips; encode plain ones into ``cache`` first."""
    if (Path(data) / "clips.json").is_file():
        return EncodedClips(data)
    if (cache / "clips.json").is_file():
        return EncodedClips(cache)
    if config.codec is None:
        raise InvalidConfig(f"{data} holds no encoded clips: give a codec to encode them with")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InvalidConfig(
            f"{data} holds no encoded clips: encode them before training in several processes"
        )
    return encode_clips(
        data, config.codec, cache, subfolder=config.codec_subfolder, frame_size=config.frame_size
    )


def _facts(config: WorldTraining, clips: EncodedClips) -> Facts:
    name, subfolder = config.codec, config.codec_subfolder
    if name is None:
        name, subfolder = clips.extra.get("codec"), clips.extra.get("subfolder")
    if not name:
        raise InvalidConfig(f"{clips.path} does not say which codec made it: give one")
    codec = load_codec(name, subfolder=subfolder)
    if clips.extra.get("fingerprint") not in (None, fingerprint(codec)):
        raise DataError(f"{clips.path} was encoded with another codec than {name}: encode it again")
    height, width = clips.extra["frame_size"]
    declared = config.world_model_config(
        frame_size=(height, width), fps=clips.fps, action_spec=clips.action_spec
    )
    return Facts(codec, declared)


def _network(config: WorldTraining, clips: EncodedClips) -> WorldTransformer:
    """The network with the weights it starts from."""
    channels, height, width = clips.latents.shape[1:]
    if height % config.patch_size or width % config.patch_size:
        raise InvalidConfig(f"latents of {height}x{width} do not divide into patches of {config.patch_size}")
    torch.manual_seed(config.loop.seed)
    network = WorldTransformer(
        in_channels=channels * (2 if config.residual else 1),
        out_channels=channels,
        patch_size=config.patch_size,
        dim=config.dim,
        layers=config.layers,
        heads=config.heads,
        action_dim=clips.actions.shape[1],
        rope=config.rope,
    )
    if config.initial is not None:
        start_from(network, load(config.initial).transformer, name=config.initial)
    return network


def _model(network: nn.Module, facts: Facts) -> WorldModel:
    facts.codec.network.to(next(network.parameters()).device)
    return WorldModel(network, facts.codec, facts.config)  # type: ignore[arg-type]


def _tuples(value: Any) -> Any:
    """Lists as json gives them back to the tuples that they were."""
    return tuple(value) if isinstance(value, list) else value
