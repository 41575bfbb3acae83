"""The loss of the world model: what is drawn for a batch, and what is asked of the network.

Each frame gets a noise level of its own (diffusion forcing), so that one network can be used with any split
into context and new frames. Three things prepare it for its own rollouts, in which errors would otherwise
feed themselves: some frames are given exactly as the sampler gives its context, the previous frame's latents
carry noise, and in some windows the past is what a model imagined there (DAgger: Ross et al. 2011,
arXiv:1011.0686), while the truth is asked for all the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from worldgym.models.diffusion import Process, loss
from worldgym.training.batches import Batch, LatentWindows
from worldgym.training.loop import Draw
from worldgym.training.world_config import WorldTraining

MOVED = 0.5  # a latent pixel that differs by this much, on average over channels, counts as moved


class Noised(NamedTuple):
    """A batch as the network is given it.

    Attributes:
        level: (B,T), as the network is told.
        noise: (B,T,C,h,w).
        noisy: (B,T,C,h,w).
        previous: (B,T,C,h,w), corrupted.
        actions: (B,T,A), some windows with the null action.
        asked: bool (B,T); the frames that count. Imagined ones are context only.
    """

    level: Tensor
    noise: Tensor
    noisy: Tensor
    previous: Tensor
    actions: Tensor
    asked: Tensor

    def to(self, device: torch.device) -> Noised:
        """The same on a device."""
        return Noised(*(part.to(device) for part in self))


def draw_noise(batch: Batch, generator: torch.Generator, config: WorldTraining) -> Noised:
    """Draw levels, noise, corruption and dropped actions of a batch (on the CPU)."""
    process, shape = Process(config.objective), batch.clean.shape
    rows, frames = shape[:2]
    level = process.sample_levels((rows, frames), generator)
    share = 0.0 if config.imagined is None else config.imagined_share
    imagined = torch.rand(rows, 1, generator=generator) < share
    as_noise = (torch.rand(rows, frames, generator=generator) < config.noise_share) | imagined
    level = torch.where(as_noise, process.top, level)
    noise = torch.randn(shape, generator=generator)
    noisy = process.mix(batch.clean, noise, level)
    as_context = torch.rand(rows, frames, generator=generator) < config.context_share
    level = torch.where(as_context, config.level, level)
    alpha, _ = process.coefficients(torch.tensor(config.level))
    shown = torch.where(imagined[..., None, None, None], batch.imagined, batch.clean)
    noisy = torch.where(as_context[..., None, None, None], alpha * shown, noisy)
    strength = config.corruption * torch.rand(rows, frames, 1, 1, 1, generator=generator)
    previous = torch.where(imagined[..., None, None, None], batch.imagined_previous, batch.previous)
    previous = previous + strength * torch.randn(shape, generator=generator)
    dropped = torch.rand(rows, 1, 1, generator=generator) < config.action_dropout
    null = torch.zeros(batch.actions.shape[-1])
    null[-1] = 1
    actions = torch.where(dropped, null, batch.actions)
    return Noised(level, noise, noisy, previous, actions, ~(imagined & as_context))


def world_loss(
    network: nn.Module, batch: Batch, noised: Noised, *, config: WorldTraining, mask: Tensor
) -> Tensor:
    """Loss of one batch; everything must be on the network's device.

    Args:
        network: A ``WorldTransformer``.
        batch: The windows.
        noised: What was drawn for them.
        config: The training configuration.
        mask: Temporal mask bool (1,T,T).
    """
    output = _predict(network, noised, config, mask)
    weight = pixel_weight(batch, moving=config.moving_weight, objects=config.object_weight)
    return loss(
        Process(config.objective),
        output,
        clean=batch.clean,
        noise=noised.noise,
        level=noised.level,
        previous=noised.previous if config.residual else None,
        weight=weight * noised.asked[..., None, None, None],
    )


def pixel_weight(batch: Batch, *, moving: float, objects: float) -> Tensor:
    """More weight on latent pixels that differ from the previous frame's, or show an object; mean one.

    Returns:
        (B,T,1,h,w).
    """
    moved = (batch.clean - batch.previous).abs().mean(2, keepdim=True) / MOVED
    weight = 1 + moving * moved.clamp(max=1) + objects * batch.emphasis
    return weight / weight.mean()


def validation_loss(network: nn.Module, windows: LatentWindows, config: WorldTraining, mask: Tensor) -> float:
    """The training loss on held-out windows with draws that are the same every time.

    Without action dropout, extra pure noise and imagined context, so that runs with other shares
    compare.
    """
    plain = replace(config, action_dropout=0.0, noise_share=0.0, imagined=None)
    device = next(network.parameters()).device
    count = min(config.validation_windows, len(windows))
    chosen = np.linspace(0, len(windows) - 1, count).astype(np.int64)
    losses = []
    for number, part in enumerate(np.array_split(chosen, -(-count // config.loop.batch_size))):
        batch = windows.batch(part)
        noised = draw_noise(batch, Draw(0, number).generator(1), plain)
        with torch.no_grad():
            value = world_loss(
                network, batch.to(device), noised.to(device), config=plain, mask=mask.to(device)
            )
        losses.append(value.item() * len(part))
    return sum(losses) / count


def _predict(network: nn.Module, noised: Noised, config: WorldTraining, mask: Tensor) -> Tensor:
    x = torch.cat((noised.noisy, noised.previous), dim=2) if config.residual else noised.noisy
    rows, frames = noised.level.shape
    positions = torch.arange(frames, device=x.device).expand(rows, -1)
    level = Process(config.objective).embedded(noised.level)
    output: Tensor = network(x, level, noised.actions, positions=positions, view=mask)
    return output.float()
