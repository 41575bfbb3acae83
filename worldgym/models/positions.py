"""Where a token is: rotary angles in space and time, and the embedding of a noise level."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def rotary_angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position times frequency, computed in float64 so that long episodes stay exact.

    Args:
        positions: (...,) any real positions.
        frequencies: (n,) float64.

    Returns:
        Two float32 tensors (..., n).
    """
    angles = positions.double()[..., None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate adjacent pairs (2i, 2i+1) of the last axis (Su et al. 2021, arXiv:2104.09864, eq. 34).

    Args:
        x: (..., d).
        cosine: (..., d/2), broadcast over the leading axes of ``x``.
        sine: Same shape.
    """
    if torch.compiler.is_compiling():  # fused with what is around it; complex numbers would not be
        even, odd = x[..., 0::2].float(), x[..., 1::2].float()
        pairs = torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1)
    else:  # the same bits in one pass over memory
        turned = torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * torch.complex(cosine, sine)
        pairs = torch.view_as_real(turned)
    return pairs.flatten(-2).to(x.dtype)


def spatial_rotary(height: int, width: int, head_dim: int, mode: str) -> tuple[Tensor, Tensor]:
    """Axial rotation angles of a grid of patches: first half of a head turns by row, second by column.

    Args:
        height: Patches per column.
        width: Patches per row.
        head_dim: Width of a head, a multiple of 4.
        mode: ``"standard"`` (positions 0, 1, ...; base 10,000) or ``"pixel"`` (positions in [-1, 1];
            frequencies from 1 to 128 times pi). The published checkpoints exist in both.

    Returns:
        Cosine and sine, float32 (height * width, head_dim / 2).
    """
    pairs = head_dim // 4
    if mode == "pixel":
        frequencies = torch.linspace(1.0, 128.0, pairs, dtype=torch.float64) * math.pi
        axes = [torch.linspace(-1, 1, n, dtype=torch.float64) for n in (height, width)]
    else:
        frequencies = standard_frequencies(pairs)
        axes = [torch.arange(n, dtype=torch.float64) for n in (height, width)]
    rows, columns = (grid.flatten() for grid in torch.meshgrid(*axes, indexing="ij"))
    parts = [rotary_angles(positions, frequencies) for positions in (rows, columns)]
    return torch.cat([p[0] for p in parts], -1), torch.cat([p[1] for p in parts], -1)


def standard_frequencies(pairs: int) -> Tensor:
    """``10000 ** (-i / pairs)``, float64 (pairs,)."""
    return 10_000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)


def level_embedding(level: Tensor, width: int = 256) -> Tensor:
    """Sinusoidal embedding of a noise level, cosines first (Vaswani et al. 2017, section 3.5).

    Args:
        level: (...,) numbers from 0 to 1,000.
        width: Even width of the embedding.

    Returns:
        (..., width) float32.
    """
    half = width // 2
    frequencies = torch.exp(-math.log(10_000.0) * torch.arange(half, device=level.device) / half)
    angles = level.float()[..., None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
