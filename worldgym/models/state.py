"""What changes while a world runs, and what one run of the network needs.

What is here:
    * ``WorldState``: a batch of running worlds, one row per episode (``select``, ``put``, ``clone``).
    * ``Pass``: the frames of one run of the network.
    * ``ring_mask`` and ``pass_mask``: which frames see which.
    * ``frame_noise``: the noise of a frame as a function of (seed, frame index).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worldgym.errors import InvalidConfig
from worldgym.models.dit import KeyValueCache


@dataclass
class WorldState:
    """A batch of running worlds. Rows are independent; all tensors lead with the row axis.

    Attributes:
        latents: float32 (B, W, C, h, w), ring of the last W clean frames; frame f lives in slot f % W.
        actions: float32 (B, W, A), the conditioning action of each of these frames.
        newest: int64 (B,), index of each row's newest frame.
        seeds: One seed per row.
        cache: Keys and values of all but the newest frame, (B * branches) rows; None if uncached.
    """

    latents: Tensor
    actions: Tensor
    newest: npt.NDArray[np.int64]
    seeds: tuple[int, ...]
    cache: KeyValueCache | None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.seeds)

    def select(self, rows: Sequence[int]) -> WorldState:
        """A copy of some rows, in the given order."""
        index = torch.as_tensor(list(rows), device=self.latents.device)
        return WorldState(
            latents=self.latents[index],
            actions=self.actions[index],
            newest=self.newest[list(rows)],
            seeds=tuple(self.seeds[row] for row in rows),
            cache=None if self.cache is None else self._map_cache(lambda ring: ring[index]),
        )

    @torch.inference_mode()
    def put(self, rows: Sequence[int], other: WorldState) -> None:
        """Overwrite some rows with the rows of ``other``, in order."""
        if len(rows) != other.rows:
            raise InvalidConfig(f"put got {len(rows)} row numbers for a state of {other.rows} rows")
        index = torch.as_tensor(list(rows), device=self.latents.device)
        self.latents[index], self.actions[index] = other.latents, other.actions
        self.newest[list(rows)] = other.newest
        seeds = list(self.seeds)
        for row, seed in zip(rows, other.seeds, strict=True):
            seeds[row] = seed
        self.seeds = tuple(seeds)
        if self.cache is not None and other.cache is not None:
            slots = self.cache.slots
            for mine, theirs in zip(self._rings(), other._rings(), strict=True):
                mine[index, ..., :slots, :] = theirs[..., :slots, :]

    def clone(self) -> WorldState:
        """An independent copy."""
        return self.select(range(self.rows))

    def _rings(self) -> list[Tensor]:
        """Every key and value tensor as (B, branches, N*H, slots + scratch, d)."""
        cache = self.cache
        assert cache is not None
        return [ring.unflatten(0, (self.rows, -1)) for ring in cache.keys + cache.values]

    def _map_cache(self, change: Callable[[Tensor], Tensor]) -> KeyValueCache:
        assert self.cache is not None
        rings = [change(ring).flatten(0, 1) for ring in self._rings()]
        half = len(rings) // 2
        return KeyValueCache(rings[:half], rings[half:], self.cache.slots)


@dataclass
class Pass:
    """One run of the network: frames ``first`` .. ``first + F - 1`` of every row.

    Attributes:
        latents: (B,F,C,h,w), already at their levels.
        previous: (B,F,C,h,w), the clean frame before each, for residual networks.
        level: (F,) noise levels.
        actions: (B,F,A).
        first: int64 (B,), frame index of the first one.
        oldest: int64 (B,F), oldest frame that each frame may attend to.
        commit: How many of the leading frames are clean and enter the ring.
        modulations: ``WorldTransformer.modulations`` of levels and actions where it is known already.
    """

    latents: Tensor
    previous: Tensor
    level: list[float]
    actions: Tensor
    first: npt.NDArray[np.int64]
    oldest: npt.NDArray[np.int64]
    commit: int
    modulations: list[Tensor] | None = None


def frame_noise(seed: int, frame: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The noise that frame number ``frame`` of a row with ``seed`` starts from.

    Philox is counter-based (Salmon et al. 2011), so any frame's noise is found without the ones before.
    """
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, frame])))
    return generator.standard_normal(shape, dtype=np.float32)


def ring_mask(
    first: npt.NDArray[np.int64], oldest: npt.NDArray[np.int64], slots: int
) -> npt.NDArray[np.bool_]:
    """What the frames of a pass see: bool (B, F, slots + F) over the ring and the pass itself.

    The ring holds the frames before ``first``: slot s has the youngest of them with index = s mod slots.
    """
    frames = oldest.shape[1]
    last = first[:, None] - 1
    held = last - (last - np.arange(slots)) % slots  # (B,slots) frame in each slot
    ring = (held[:, None] >= 0) & (held[:, None] >= oldest[:, :, None])
    index = first[:, None] + np.arange(frames)
    return np.concatenate((ring, pass_mask(index, oldest)), axis=-1)


def pass_mask(index: npt.NDArray[np.int64], oldest: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Causal mask (B,F,F) among frames ``index`` (B,F). Every frame sees itself, also before frame 0."""
    key, query = index[:, None, :], index[:, :, None]
    visible = (key <= query) & (key >= oldest[:, :, None]) & (key >= 0)
    return visible | (key == query)
