"""Layers whose result for one row does not depend on the batch, and fast ones for training on a CPU.

What is here:
    * ``RowLinear``, ``stable_linear``, ``stable_attention``: on a CPU, outside training, the same bits for a
      row whatever else is in the batch.
    * ``TanhGelu``: GELU in a form that compiles well.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class RowLinear(nn.Linear):
    """A linear layer whose result for one vector does not depend on how many are multiplied with it.

    Matrix libraries choose a kernel by the number of vectors, so a row's last bits would change with the
    batch size. On a CPU, outside training, the number is therefore padded to a multiple of 16, beyond
    which all use the same kernel (a test checks this).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        return stable_linear(x, self.weight, self.bias)


def stable_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``functional.linear`` as ``RowLinear`` needs it."""
    missing = -(x.numel() // x.shape[-1]) % 16
    if x.device.type != "cpu" or torch.is_grad_enabled() or not missing:
        return functional.linear(x, weight, bias)
    padded = functional.pad(x.reshape(-1, x.shape[-1]), (0, 0, 0, missing))
    return functional.linear(padded, weight, bias)[:-missing].reshape(*x.shape[:-1], -1)


def stable_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention whose result for one row of the batch does not depend on the batch.

    On a CPU, outside training, rows are computed one after the other: a kernel's last bits depend on how
    many rows there are and on which thread gets which.

    Args:
        q: (B, ..., Tq, d).
        k: (B, ..., Tk, d).
        v: (B, ..., Tk, d).
        mask: bool (B or 1, 1, Tq, Tk), or None.
    """
    attend = _written_out if q.device.type == "cpu" and k.shape[-2] <= SHORT else _fused
    if q.device.type != "cpu" or torch.is_grad_enabled() or len(q) == 1:
        return attend(q, k, v, mask)
    masks = [None] * len(q) if mask is None else mask.expand(len(q), *mask.shape[1:]).split(1)
    return torch.cat([attend(*row) for row in zip(q.split(1), k.split(1), v.split(1), masks, strict=True)])


SHORT = 64  # keys up to which attention written out is faster on a CPU than the fused kernel


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention as three operations, which ``torch.compile`` fuses with what is around them."""
    scores = q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1).to(v.dtype) @ v


class TanhGelu(nn.Module):
    """The tanh approximation of GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415).

    Compiled, it is written with a sigmoid, which is the same function: the compiler's kernel for that is
    twice as fast on a CPU.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        if not torch.compiler.is_compiling():
            return functional.gelu(x, approximate="tanh")
        u = x.float()
        return (u * torch.sigmoid(2 * (2 / math.pi) ** 0.5 * (u + 0.044715 * u**3))).to(x.dtype)
