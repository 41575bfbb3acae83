"""Demonstrations as a policy's network takes them: looked at once, kept in memory.

What is here:
    * ``Lessons``: rounds of demonstrations, what the network sees in them, and batches of both.
    * ``choose_palette``: the colours that are worth telling apart.
    * ``disturb``: frames as a world model or another camera may show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from scipy.cluster.vq import kmeans2
from torch import Tensor

from worldgym.policies.network import PolicyNetwork
from worldgym.policies.palette import cells_of, colour_space
from worldgym.training.demonstrations import Demonstrations, read_demonstrations

_HELD_OUT = 33
"""One of so many episodes is kept for validation."""
_CHECKED = 1000
"""Most frames in a validation."""
_DISTURBED = 3
"""One of so many frames is seen a second time, disturbed."""
_AT_ONCE = 256
_SHAKING = 0.01
"""Deviation of the noise on what is seen."""


class Lessons:
    """Rounds of demonstrations in memory.

    Args:
        folder: Of the demonstrations.
        share: Part of the episodes that is used.

    Attributes:
        chosen: Numbers of what is trained on.
        held_out: Numbers of what is kept for validation.
    """

    chosen: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.int64]

    def __init__(self, folder: str, *, share: float = 1.0) -> None:
        self._folder, self._share = folder, share
        self._rounds: list[Demonstrations] = []
        self._looks: list[npt.NDArray[np.float16]] = []
        self._numbers: list[npt.NDArray[np.int64]] = []

    @property
    def frames(self) -> npt.NDArray[np.uint8]:
        """The frames of the newest round."""
        return self._rounds[-1].frames

    def read(self, number: int) -> None:
        """Take in a round.

        Raises:
            DataError: If it cannot be read.
        """
        found = read_demonstrations(self._folder, number)
        self._rounds.append(found if self._share == 1 else found.some(self._share))

    def acquaint(self, network: PolicyNetwork) -> None:
        """Show a fresh network some frames of the newest round with the things in them."""
        newest = self._rounds[-1]
        frames, facts = (torch.from_numpy(part[::10]) for part in (newest.frames, newest.facts))
        network.acquaint(frames, facts)

    def look(self, network: PolicyNetwork) -> None:
        """See the newest round, some of its frames twice, and settle what is trained on."""
        newest, number = self._rounds[-1], len(self._rounds)
        generator = torch.Generator().manual_seed(number)
        twice = np.arange(0, len(newest), _DISTURBED)
        first = sum(len(part) for part in self._rounds[:-1])
        for frames, rows in ((newest.frames, np.arange(len(newest))), (newest.frames[twice], twice)):
            disturbing = None if len(rows) == len(newest) else generator
            self._looks.extend(_looks(network, frames, disturbing))
            self._numbers.append(rows + first)
        self._data = {
            field.name: np.concatenate([getattr(part, field.name) for part in self._rounds])
            for field in fields(Demonstrations)
            if field.name != "frames"
        }
        self._seen, self._of = np.concatenate(self._looks), np.concatenate(self._numbers)
        held = self._data["episodes"][self._of] % _HELD_OUT == _HELD_OUT - 1
        self.chosen, every = np.flatnonzero(~held), np.flatnonzero(held)
        self.held_out = every[:: -(-len(every) // _CHECKED) or 1]

    def batch(
        self, numbers: npt.NDArray[np.int64], device: torch.device, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What is seen (M, D), the expert's actions (M, 7), tasks (M,) and facts (M, N, FACTS).

        Args:
            numbers: Which, (M,).
            device: Where to.
            generator: Of a little noise on what is seen; None: no noise.
        """
        rows = self._of[numbers]
        looks = torch.from_numpy(self._seen[numbers]).float()
        if generator is not None:
            looks += _SHAKING * torch.randn(looks.shape, generator=generator)
        rest = [torch.from_numpy(self._data[name][rows]) for name in ("actions", "tasks", "facts")]
        actions, tasks, facts = (part.to(device) for part in rest)
        return looks.to(device), actions, tasks.long(), facts


def _looks(
    network: PolicyNetwork, frames: npt.NDArray[np.uint8], generator: torch.Generator | None
) -> Iterator[npt.NDArray[np.float16]]:
    device = next(network.parameters()).device
    for start in range(0, len(frames), _AT_ONCE):
        some = torch.from_numpy(frames[start : start + _AT_ONCE])
        some = some if generator is None else disturb(some, generator)
        yield network.look(some.to(device)).half().cpu().numpy()


def choose_palette(
    frames: npt.NDArray[np.uint8], colours: int, *, seed: int = 0
) -> tuple[tuple[int, ...], ...]:
    """Colours that lie amid those of frames (k-means); a rare colour counts almost like a frequent one.

    Args:
        frames: uint8 (F, 64, 64, 3); every tenth is looked at.
        colours: How many.
        seed: Of the search.
    """
    cells = cells_of(torch.from_numpy(frames[::10])).flatten().long()
    counts = torch.bincount(cells, minlength=2**15).numpy()
    there = np.flatnonzero(counts)
    found = np.stack([there >> 10, (there >> 5) & 31, there & 31], axis=1) * 8 + 4
    weights = counts[there] ** 0.3
    rng = np.random.default_rng(seed)
    drawn = found[rng.choice(len(found), 8192, p=weights / weights.sum())]
    _, labels = kmeans2(colour_space(drawn), min(colours, len(found)), minit="++", seed=rng)
    middles = [drawn[labels == label].mean(0) for label in np.unique(labels)]
    return tuple(tuple(round(float(level)) for level in middle) for middle in middles)


def disturb(frames: Tensor, generator: torch.Generator) -> Tensor:
    """Frames uint8 (M, H, W, 3) in other light, with blur and noise, as a world model may show them."""

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(len(frames), *shape, generator=generator) * (high - low) + low

    pixels = frames.movedim(-1, 1).float()
    light, shift = uniform(0.9, 1.1, 1, 1, 1), uniform(-8, 8, 3, 1, 1)
    blurred = F.avg_pool2d(F.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    blur = uniform(-0.3, 1.0, 1, 1, 1).clamp(min=0)
    noise = torch.randn(pixels.shape, generator=generator) * uniform(-4, 8, 1, 1, 1).clamp(min=0)
    changed = (pixels + blur * (blurred - pixels)) * light + shift + noise
    return changed.clamp(0, 255).round().byte().movedim(1, -1).contiguous()
