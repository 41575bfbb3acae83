"""How new frames are generated: passes, the ring of past keys and values, and what each pass sees.

A step. New frames begin as noise and are denoised in passes, each frame at a level of its own. A pass sees
the frames that are still being denoised and, through a ring of keys and values, the frames before them. A
frame enters the ring in the first pass in which it is clean, so the newest frame of an episode is always
still *pending*; it enters together with the first pass of the next step.

Ways of remembering. ``window``: the ring is recomputed at every step from the latents of the last
``window`` frames, as if older ones had never been; equal to the published sampler. ``rolling``: the ring is
kept for good and only forgets its oldest entry; equal to one pass over the whole episode with a banded
mask, so train with that band. ``uncached`` is ``window`` without any ring, everything recomputed at every
pass: slow, kept as the yardstick.

Every row's future is a function of its own history, actions, seed and frame index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worldgym.models.config import WorldModelConfig
from worldgym.models.diffusion import Process, denoise, denoising_plan, sampling_levels
from worldgym.models.dit import CacheView, KeyValueCache, WorldTransformer
from worldgym.models.state import Pass, WorldState, frame_noise, pass_mask, ring_mask


@dataclass(frozen=True)
class PlannedPass:
    """What a pass does to every row alike.

    Attributes:
        part: Which of the pending frame (0) and the new ones (1 to K) it runs over.
        level: Their levels before it, negative for clean.
        target: Their levels after it.
        commit: How many of the leading ones are clean and enter the ring.
    """

    part: slice
    level: list[float]
    target: list[float]
    commit: int


class Sampler:
    """Advances latents.

    Args:
        transformer: The denoising network.
        config: How to use it.
        latent_shape: (C, h, w) of one frame.
    """

    def __init__(
        self, transformer: WorldTransformer, config: WorldModelConfig, latent_shape: tuple[int, int, int]
    ) -> None:
        self.transformer = transformer
        self.config = config
        self.latent_shape = latent_shape
        self.process = Process(config.objective)
        self.levels = sampling_levels(self.process, config.num_inference_steps)

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        return self.transformer.device

    def begin(self, latents: Tensor, actions: Tensor, seeds: Sequence[int]) -> WorldState:
        """A state whose history is the given clean frames.

        Args:
            latents: float32 (B, T0, C, h, w).
            actions: float32 (B, T0, A), the conditioning action of each.
            seeds: One per row.
        """
        count, window = latents.shape[1], self.config.window
        state = self._empty(len(latents), seeds)
        if self.config.context == "rolling":
            for first in range(0, count - 1, window):  # all but the newest enter the ring
                self._commit_context(state, latents, actions, slice(first, min(first + window, count - 1)))
        for frame in range(max(0, count - window), count):
            state.latents[:, frame % window] = latents[:, frame]
            state.actions[:, frame % window] = actions[:, frame]
        state.newest[:] = count - 1
        return state

    def generate(self, state: WorldState, actions: Tensor) -> Tensor:
        """Denoise K frames after each row's newest one, then append them to the state."""
        count = actions.shape[1]
        plan = self._plan(count)
        frames = torch.cat((self._recent(state, 1), self._noise(state, count)), dim=1)  # (B,K+1,C,h,w)
        conditions = self._conditions(state, actions)  # (B,K+1,A)
        if self.config.context == "window":
            self._refill(state, count)
        modulations = self._modulations(plan, conditions)
        for step, modulation in zip(plan, modulations, strict=True):
            run = Pass(
                latents=frames[:, step.part],
                previous=self._predecessors(state, frames, step.part),
                level=step.level,
                actions=conditions[:, step.part],
                first=state.newest + step.part.start,
                oldest=self._oldest(state, step.part, count),
                commit=step.commit,
                modulations=modulation,
            )
            frames[:, step.part] = self._denoised(state, run, step.target)
        self._append(state, frames[:, 1:], conditions)
        return frames[:, 1:]

    def _plan(self, count: int) -> list[PlannedPass]:
        """The passes that denoise ``count`` frames; frame 0 is the pending one."""
        # a residual needs its finished predecessor
        delay = len(self.levels) - 1 if self.config.residual else 1
        levels = [[-1.0, *row] for row in denoising_plan(self.levels, count, delay)]
        passes, committed = [], 0
        for now, after in pairwise(levels):
            changed = zip(now, after, strict=True)
            started = sum(level != self.levels[0] or target != level for level, target in changed)
            clean = sum(level < 0 for level in now)
            part = slice(committed, started)
            passes.append(PlannedPass(part, now[part], after[part], clean - committed))
            committed = 0 if self.config.context == "uncached" else clean
        return passes

    def _modulations(self, plan: list[PlannedPass], conditions: Tensor) -> Iterator[list[Tensor] | None]:
        """What levels and actions do to the network in each pass, all computed at once.

        They do not depend on the latents, and a third of the weights is read for them.
        """
        if self.config.context == "uncached":  # the yardstick saves nothing
            return iter([None] * len(plan))
        level = [value for step in plan for value in step.level]
        actions = torch.cat([conditions[:, step.part] for step in plan], dim=1)
        every = self._modulate(level, actions)
        sizes = [len(step.level) for step in plan]
        return (list(parts) for parts in zip(*(part.split(sizes, dim=1) for part in every), strict=True))

    def _modulate(self, level: list[float], actions: Tensor) -> list[Tensor]:
        """``WorldTransformer.modulations`` at levels (F,), negative for clean, and actions (B,F,A).

        With guidance each row is followed by its null branch.
        """
        rows, frames = actions.shape[:2]
        label = [self.config.context_level if value < 0 else value for value in level]
        embedded = self.process.embedded(torch.tensor(label, device=self.device))  # (F,)
        if self.config.branches == 2:
            actions = torch.stack((actions, self._null(rows, frames)), dim=1).flatten(0, 1)
        return self.transformer.modulations(embedded.expand(len(actions), -1), actions)

    def _denoised(self, state: WorldState, run: Pass, target: list[float]) -> Tensor:
        """The frames of a pass at their next levels."""
        output = (
            self._uncached(state, run) if self.config.context == "uncached" else self._predict(state, run)
        )
        now, after = (torch.tensor([levels], device=self.device) for levels in (run.level, target))  # (1,F)
        if self.config.residual:
            estimate = self.process.split_residual(run.latents, output, now, run.previous)
        else:
            estimate = self.process.split(run.latents, output, now)
        return denoise(self.process, run.latents, estimate, level=now, target=after)

    def _predict(self, state: WorldState, run: Pass) -> Tensor:
        """Run the network through the ring."""
        frames = run.latents.shape[1]
        cache = self._with_scratch(state, frames)
        write = torch.from_numpy((run.first[:, None] + np.arange(run.commit)) % cache.slots)
        mask = ring_mask(run.first, run.oldest, cache.slots)
        branches = self.config.branches
        view = CacheView(
            cache=cache,
            mask=torch.from_numpy(mask).to(self.device).repeat_interleave(branches, 0),
            write=write.to(self.device).repeat_interleave(branches, 0),
        )
        positions = torch.from_numpy(run.first[:, None] + np.arange(frames)).to(self.device)
        return self._network(run, positions, view)

    def _network(self, run: Pass, positions: Tensor, view: CacheView | Tensor) -> Tensor:
        """The network's output (B,F,C,h,w) with guidance, in float32."""
        clean = torch.tensor([[level < 0 for level in run.level]], device=self.device)[..., None, None, None]
        alpha, _ = self.process.coefficients(torch.tensor(self.config.context_level, device=self.device))
        x = torch.where(clean, alpha * run.latents, run.latents)
        if self.config.residual:
            x = torch.cat((x, run.previous), dim=2)
        modulations = run.modulations or self._modulate(run.level, run.actions)
        scale, branches = self.config.guidance_scale, self.config.branches
        output = self.transformer.run(
            x.repeat_interleave(branches, 0),
            modulations,
            positions=positions.repeat_interleave(branches, 0),
            view=view,
        ).float()
        if branches == 1:
            return output
        conditional, null = output.unflatten(0, (-1, 2)).unbind(1)
        return (1 - scale) * null + scale * conditional

    def _uncached(self, state: WorldState, run: Pass) -> Tensor:
        """Run the network over the whole window, as the published sampler does at every pass."""
        frames = run.latents.shape[1]
        context = self._context_pass(state, run.oldest[:, 0])
        joined = Pass(
            latents=torch.cat((context.latents, run.latents), 1),
            previous=torch.cat((context.previous, run.previous), 1),
            level=context.level + run.level,
            actions=torch.cat((context.actions, run.actions), 1),
            first=context.first,
            oldest=context.oldest,
            commit=0,
        )
        index = joined.first[:, None] + np.arange(joined.latents.shape[1])  # (B,F) frame numbers
        mask = pass_mask(index, np.repeat(run.oldest[:, :1], index.shape[1], axis=1))
        positions = torch.from_numpy(index).to(self.device)
        view = torch.from_numpy(mask).to(self.device).repeat_interleave(self.config.branches, 0)
        return self._network(joined, positions, view)[:, -frames:]

    # -- context -------------------------------------------------------------------------------------

    def _refill(self, state: WorldState, count: int) -> None:
        """Recompute the ring from the latents of the window's context (all but the newest frame)."""
        start = state.newest + count - self.config.window + 1  # first frame of the window
        if self.config.window - count > 1:
            self._predict(state, self._context_pass(state, start))

    def _context_pass(self, state: WorldState, start: npt.NDArray[np.int64]) -> Pass:
        """The clean frames from ``start`` (B,) up to before the newest one, as a pass that commits them."""
        frames = int(state.newest[0] - start[0])
        index = start[:, None] + np.arange(frames)  # (B,F), may begin before frame 0
        return Pass(
            latents=self._gather(state.latents, index),
            previous=self._gather(state.latents, np.where(index > 0, index - 1, index)),
            level=[-1.0] * frames,
            actions=self._gather(state.actions, index),
            first=start,
            oldest=np.repeat(start[:, None], frames, axis=1),
            commit=frames,
        )

    def _commit_context(self, state: WorldState, latents: Tensor, actions: Tensor, block: slice) -> None:
        """Enter given clean frames into the ring (rolling mode)."""
        count = block.stop - block.start
        index = np.arange(block.start, block.stop)
        run = Pass(
            latents=latents[:, block],
            previous=latents[:, np.maximum(index - 1, 0)],
            level=[-1.0] * count,
            actions=actions[:, block],
            first=np.full(state.rows, block.start),
            oldest=np.repeat(index[None] - self.config.window + 1, state.rows, axis=0),
            commit=count,
        )
        self._predict(state, run)

    def _oldest(self, state: WorldState, part: slice, count: int) -> npt.NDArray[np.int64]:
        """Oldest visible frame (B,F) for each frame of a pass."""
        index = state.newest[:, None] + np.arange(part.start, part.stop)
        if self.config.context == "rolling":
            return index - self.config.window + 1
        return np.broadcast_to(state.newest[:, None] + count - self.config.window + 1, index.shape)

    def _predecessors(self, state: WorldState, frames: Tensor, part: slice) -> Tensor:
        """The latents of the frame before each frame of a pass (itself before frame 0)."""
        if part.start > 0:
            return frames[:, part.start - 1 : part.stop - 1]
        before = self._gather(state.latents, np.maximum(state.newest[:, None] - 1, 0))
        return torch.cat((before, frames[:, : part.stop - 1]), dim=1)

    def _gather(self, ring: Tensor, index: npt.NDArray[np.int64]) -> Tensor:
        """Entries of a (B, W, ...) ring by frame index (B,F)."""
        rows = torch.arange(len(ring), device=ring.device)[:, None]
        return ring[rows, torch.from_numpy(index % self.config.window).to(ring.device)]

    def _recent(self, state: WorldState, count: int) -> Tensor:
        return self._gather(state.latents, state.newest[:, None] + np.arange(1 - count, 1))

    def _append(self, state: WorldState, new: Tensor, conditions: Tensor) -> None:
        """Write new frames, and the conditions of the pending one and of them, into the rings."""
        rows = torch.arange(state.rows, device=self.device)[:, None]
        slots = (state.newest[:, None] + np.arange(conditions.shape[1])) % self.config.window
        index = torch.from_numpy(slots).to(self.device)
        state.latents[rows, index[:, 1:]] = new
        state.actions[rows, index] = conditions
        state.newest += new.shape[1]

    # -- inputs --------------------------------------------------------------------------------------

    def _conditions(self, state: WorldState, actions: Tensor) -> Tensor:
        """Conditioning actions (B,K+1,A) of the pending frame and the K new ones."""
        if self.config.action_offset == 1:
            return torch.cat((self._gather(state.actions, state.newest[:, None]), actions), dim=1)
        return torch.cat((actions, torch.zeros_like(actions[:, :1])), dim=1)  # the last one is not known yet

    def _noise(self, state: WorldState, count: int) -> Tensor:
        """Standard normal (B,K,C,h,w), a function of (seed, frame index) for each frame."""
        shape = self.latent_shape
        draws = [
            [frame_noise(seed, int(newest) + 1 + k, shape) for k in range(count)]
            for seed, newest in zip(state.seeds, state.newest, strict=True)
        ]
        return torch.from_numpy(np.asarray(draws)).to(self.device)

    def _null(self, rows: int, frames: int) -> Tensor:
        """The null action of guidance: last component 1, all others 0."""
        null = torch.zeros(rows, frames, self.transformer.config.action_dim, device=self.device)
        null[..., -1] = 1
        return null

    # -- memory ------------------------------------------------------------

    def _empty(self, rows: int, seeds: Sequence[int]) -> WorldState:
        """A state without frames."""
        window, device = self.config.window, self.device
        return WorldState(
            latents=torch.zeros(rows, window, *self.latent_shape, device=device),
            actions=torch.zeros(rows, window, self.transformer.config.action_dim, device=device),
            newest=np.zeros(rows, np.int64),
            seeds=tuple(int(seed) for seed in seeds),
            cache=None if self.config.context == "uncached" else self._empty_cache(rows, window),
        )

    def _empty_cache(self, rows: int, slots: int) -> KeyValueCache:
        network = self.transformer.config
        _, height, width = self.latent_shape
        tokens = (height // network.patch_size) * (width // network.patch_size)
        shape = (rows * self.config.branches, tokens * network.heads, slots, network.dim // network.heads)
        rings = [
            torch.zeros(shape, dtype=self.transformer.dtype, device=self.device)
            for _ in range(2 * network.layers)
        ]
        return KeyValueCache(rings[: network.layers], rings[network.layers :], self.config.window)

    def _with_scratch(self, state: WorldState, frames: int) -> KeyValueCache:
        """The state's cache with room for ``frames`` frames behind the ring."""
        cache = state.cache
        assert cache is not None
        if cache.keys[0].shape[2] < cache.slots + frames:
            larger = self._empty_cache(state.rows, cache.slots + frames)
            for old, new in zip(cache.keys + cache.values, larger.keys + larger.values, strict=True):
                new[:, :, : cache.slots] = old[:, :, : cache.slots]
            state.cache = cache = larger
        return cache
