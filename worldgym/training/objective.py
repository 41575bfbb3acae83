"""The loss of the world model: what is drawn for a batch, and what is asked of the network.

Each frame gets a noise level of its own (diffusion forcing), so that one network can be used with any split
into context and new frames. Three things prepare it for its own rollouts, in which errors would otherwise
feed themselves: some frames are given exactly as the sampler gives its context, the previous frame's latents
carry noise, and in some steps they are the network's own prediction of that frame.
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
        own: Whether the previous latents are to be replaced by the network's own prediction.
    """

    level: Tensor
    noise: Tensor
    noisy: Tensor
    previous: Tensor
    actions: Tensor
    own: bool

    def to(self, device: torch.device) -> Noised:
        """The same on a device."""
        level, noise, noisy, previous, actions = (part.to(device) for part in self[:5])
        return Noised(level, noise, noisy, previous, actions, self.own)


def draw_noise(batch: Batch, generator: torch.Generator, config: WorldTraining) -> Noised:
    """Draw levels, noise, corruption and dropped actions of a batch (on the CPU)."""
    process, shape = Process(config.objective), batch.clean.shape
    rows, frames = shape[:2]
    level = process.sample_levels((rows, frames), generator)
    as_noise = torch.rand(rows, frames, generator=generator) < config.noise_share
    level = torch.where(as_noise, process.top, level)
    noise = torch.randn(shape, generator=generator)
    noisy = process.mix(batch.clean, noise, level)
    as_context = torch.rand(rows, frames, generator=generator) < config.context_share
    level = torch.where(as_context, config.level, level)
    alpha, _ = process.coefficients(torch.tensor(config.level))
    noisy = torch.where(as_context[..., None, None, None], alpha * batch.clean, noisy)
    strength = config.corruption * torch.rand(rows, frames, 1, 1, 1, generator=generator)
    previous = batch.previous + strength * torch.randn(shape, generator=generator)
    dropped = torch.rand(rows, 1, 1, generator=generator) < config.action_dropout
    null = torch.zeros(batch.actions.shape[-1])
    null[-1] = 1
    own = bool(torch.rand((), generator=generator) < config.own_context)
    return Noised(level, noise, noisy, previous, torch.where(dropped, null, batch.actions), own)


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
    previous = noised.previous
    if noised.own:
        # not under no_grad, which would compile another variant of the network and take its slower path
        clean = previous + _predict(network, noised, previous, config, mask).detach()
        shifted = torch.cat((previous[:, :1], clean[:, :-1]), dim=1)
        previous = shifted
    output = _predict(network, noised, previous, config, mask)
    return loss(
        Process(config.objective),
        output,
        clean=batch.clean,
        noise=noised.noise,
        level=noised.level,
        previous=previous if config.residual else None,
        weight=pixel_weight(batch, moving=config.moving_weight, objects=config.object_weight),
    )


def pixel_weight(batch: Batch, *, moving: float, objects: float) -> Tensor | None:
    """More weight on latent pixels that differ from the previous frame's, or show an object; mean one.

    Returns:
        (B,T,1,h,w), or None if neither has any.
    """
    if not moving and not objects:
        return None
    moved = (batch.clean - batch.previous).abs().mean(2, keepdim=True) / MOVED
    weight = 1 + moving * moved.clamp(max=1) + objects * batch.emphasis
    return weight / weight.mean()


def validation_loss(network: nn.Module, windows: LatentWindows, config: WorldTraining, mask: Tensor) -> float:
    """The training loss on held-out windows with draws that are the same every time.

    Without action dropout, extra pure noise and the network's own context, so that runs with other shares
    compare.
    """
    plain = replace(config, action_dropout=0.0, noise_share=0.0, own_context=0.0)
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


def _predict(
    network: nn.Module, noised: Noised, previous: Tensor, config: WorldTraining, mask: Tensor
) -> Tensor:
    x = torch.cat((noised.noisy, previous), dim=2) if config.residual else noised.noisy
    rows, frames = noised.level.shape
    positions = torch.arange(frames, device=x.device).expand(rows, -1)
    level = Process(config.objective).embedded(noised.level)
    output: Tensor = network(x, level, noised.actions, positions=positions, view=mask)
    return output.float()
