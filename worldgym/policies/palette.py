"""Where in a picture which colour is: what the packaged learned policies see.

What is here:
    * ``label_table``: from any colour to the nearest one of a palette.
    * ``colour_sums``: for each colour of a palette how much of it there is, and sums from which its middle
      and its spread follow, also those of mixtures of colours. ``moments``: these.
    * ``thumbnails``: a small picture.

Things on the twin's table differ in colour, so the middle of a colour is where a thing is, to a fraction of
a pixel. That takes no learning, and a network on top of it learns in minutes what one on pixels learns in
hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from worldgym.policies.images import ImageForm

FRAME_SIZE = 64
"""Height and width of the frames."""
FORM = ImageForm(FRAME_SIZE, FRAME_SIZE, filter="area")
"""How frames of other sizes are brought to that."""
_BITS = 5
"""Bits of each channel that tell colours apart."""
SUMS = 6
"""Numbers about each colour."""
SMALL = 16
"""Height and width of the small picture."""

Palette = Sequence[Sequence[int]]


def colour_space(colours: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Colours (..., 3) from 0 to 255 where hue counts more than brightness, which shadows change."""
    values = np.asarray(colours, np.float64)
    light = values.mean(-1, keepdims=True)
    return np.concatenate([1.5 * (values - light), 0.6 * light], axis=-1)


def label_table(palette: Palette) -> npt.NDArray[np.uint8]:
    """Number of the palette's nearest colour for each colour in five bits per channel: (32768,)."""
    levels = (np.arange(2**_BITS) << (8 - _BITS)) + 2 ** (7 - _BITS)
    colours = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), -1).reshape(-1, 3)
    ways = colour_space(colours)[:, None] - colour_space(palette)
    return np.asarray((ways**2).sum(-1).argmin(1), np.uint8)


def cells_of(frames: Tensor) -> Tensor:
    """Each pixel's place in the table: uint8 (..., 3) to int32 (...)."""
    levels = (frames >> (8 - _BITS)).int()
    return (levels[..., 0] << (2 * _BITS)) | (levels[..., 1] << _BITS) | levels[..., 2]


def colour_sums(frames: Tensor, table: Tensor, colours: int) -> Tensor:
    """How much there is of each colour, and where.

    Args:
        frames: uint8 (F, 64, 64, 3).
        table: uint8 (32768,), see ``label_table``.
        colours: Number of colours in it, K.

    Returns:
        float32 (F, K, 6): sums over the colour's pixels of 1, x, y, xx, yy and xy, in 64 pixels; x and y go
        from -1 to 1.
    """
    count = len(frames)
    labels = table[cells_of(frames).flatten(1).long()].long()  # (F, 4096)
    labels += colours * torch.arange(count, device=frames.device)[:, None]
    sums = torch.zeros(count * colours, SUMS, device=frames.device)
    sums.index_add_(0, labels.flatten(), _powers().to(frames.device).repeat(count, 1))
    return sums.view(count, colours, SUMS) / FRAME_SIZE


def moments(sums: Tensor) -> Tensor:
    """Amount, middle (x, y), spread in both directions and how they go together, of sums (..., 6)."""
    amount = sums[..., 0]
    x, y, xx, yy, xy = (sums[..., 1:] / (amount[..., None] + 0.01)).unbind(-1)
    spread_x, spread_y = (xx - x * x).clamp(min=1e-5).sqrt(), (yy - y * y).clamp(min=1e-5).sqrt()
    return torch.stack([amount.log1p(), 2 * x, 2 * y, 4 * spread_x, 4 * spread_y, 20 * (xy - x * y)], dim=-1)


def thumbnails(frames: Tensor) -> Tensor:
    """Small pictures (F, 768) of frames uint8 (F, 64, 64, 3), from -2 to 2."""
    small = F.avg_pool2d(frames.movedim(-1, 1).float(), FRAME_SIZE // SMALL)
    return (small / 64 - 2).flatten(1)


@cache
def _powers() -> Tensor:
    """1, x, y, xx, yy and xy of each pixel's place (4096, 6)."""
    side = (torch.arange(FRAME_SIZE) + 0.5) / (FRAME_SIZE / 2) - 1
    y, x = (grid.flatten() for grid in torch.meshgrid(side, side, indexing="ij"))
    return torch.stack([torch.ones_like(x), x, y, x * x, y * y, x * y], dim=1)
