"""Inverse dynamics: a small network that reads the action back from a few consecutive frames.

What is here:
    * ``InverseNetwork``: frames to the action between the last two of them, and how sure it is of it.
    * ``Reading``: what it answers.
    * ``to_window``: uint8 frames as the network takes them.

A world that obeys shows what it was asked to do. ``worldgym.wrappers.ActionConsistency`` compares the action
that was requested with the one that is read here; ``inverse_head`` holds the trained network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FRAME_SIZE = 64
"""Height and width of the frames that the network takes."""
SMALLEST_ERROR, LARGEST_ERROR = 0.03, 1.0
"""Bounds of the error that the network may expect of itself, in units of the action."""
_CONTRAST = 4.0
"""Factor of the differences between frames: what moves is a small part of the picture."""


class Reading(NamedTuple):
    """Actions read from B windows of frames.

    Attributes:
        action: (B, A) the action between the last two frames.
        error: (B, A) the absolute error that is to be expected of it.
    """

    action: Tensor
    error: Tensor


class _Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.second(F.silu(self.first(F.silu(self.norm(x)))))
        return x + hidden


class InverseNetwork(nn.Module):
    """Reads actions back.

    Args:
        frames: Frames in a window, at least 2.
        actions: Numbers of an action, A.
        widths: Channels at 1/2, 1/4 and 1/8 of the frame, multiples of 8.
        hidden: Width of the decision.
    """

    def __init__(
        self, *, frames: int = 3, actions: int = 7, widths: Sequence[int] = (32, 48, 64), hidden: int = 192
    ) -> None:
        super().__init__()
        fine, middle, coarse = widths
        self.stem = nn.Conv2d(12 * frames + 2, fine, 3, padding=1)
        self.halve = nn.Conv2d(fine, middle, 4, stride=2, padding=1)
        self.middle = _Block(middle)
        self.quarter = nn.Conv2d(middle, coarse, 4, stride=2, padding=1)
        self.coarse = nn.Sequential(_Block(coarse), _Block(coarse))
        self.squeeze = nn.Conv2d(coarse, 24, 1)  # its map is kept whole: where something moves matters
        self.hidden = nn.Linear(24 * (FRAME_SIZE // 8) ** 2, hidden)
        self.out = nn.Linear(hidden, 2 * actions)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, window: Tensor) -> Reading:
        """Read the actions between the last two frames of windows.

        Args:
            window: (B, frames, 3, 64, 64) in [-1, 1], the oldest frame first.
        """
        changes = (window[:, 1:] - window[:, :-1]) * _CONTRAST
        x = F.pixel_unshuffle(torch.cat([window[:, -1], changes.flatten(1, 2)], dim=1), 2)
        half = torch.linspace(-1, 1, FRAME_SIZE // 2, device=x.device, dtype=x.dtype)
        where = torch.stack(torch.meshgrid(half, half, indexing="xy")).expand(len(x), -1, -1, -1)
        x = torch.cat([x, where], dim=1).contiguous(memory_format=torch.channels_last)
        x = F.silu(self.stem(x))
        x = self.middle(self.halve(x))
        x = self.coarse(self.quarter(x))
        x = F.silu(self.hidden(F.silu(self.squeeze(x)).flatten(1)))
        action, error = self.out(x).float().chunk(2, dim=-1)
        return Reading(action, F.softplus(error).clamp(SMALLEST_ERROR, LARGEST_ERROR))


def to_window(frames: Tensor) -> Tensor:
    """Frames uint8 (B, K, 64, 64, 3) as the network takes them: (B, K, 3, 64, 64) in [-1, 1]."""
    return frames.movedim(-1, 2).float() / 127.5 - 1
