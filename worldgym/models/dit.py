"""The diffusion transformer, read from top to bottom: cache, attention, block, network.

A video is latents (B,T,C,h,w). Each layer is a spatial block (full attention inside a frame) followed by
a temporal block (causal attention of one patch over the frames). Both are DiT blocks with adaLN-Zero
(Peebles & Xie 2023, arXiv:2212.09748); the condition of frame i is its noise level plus its action.

Shapes: B rows, T frames, N patches of a frame, D width, H heads, d head width, C channels.

The temporal blocks may read past frames from a ``KeyValueCache`` instead of recomputing them. What is not
here: positions and row-wise layers (``positions``, ``layers``), noise (``diffusion``), which frames are kept
(``sampler``), or pixels (``codec``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from worldgym.errors import InvalidConfig
from worldgym.models.layers import RowLinear, TanhGelu, stable_attention, stable_linear
from worldgym.models.positions import (
    level_embedding,
    rotary_angles,
    rotate,
    spatial_rotary,
    standard_frequencies,
)


@dataclass
class KeyValueCache:
    """Keys and values of past frames, one pair of tensors per layer, as a ring.

    Attributes:
        keys: Per layer (B, N*H, slots + scratch, d). Frame f of a row lives in slot ``f % slots``; what is
            behind the ring is scratch space for the frames of the current pass.
        values: Same shapes.
        slots: Size of the ring.
    """

    keys: list[Tensor]
    values: list[Tensor]
    slots: int

    def layer(self, index: int, write: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
        """What the temporal attention of one layer needs."""
        return self.keys[index], self.values[index], write, self.slots


@dataclass(frozen=True)
class CacheView:
    """How one pass uses a cache.

    Attributes:
        cache: The rings.
        mask: bool (B, F, slots + F): which ring slots and which frames of this pass each of the F frames
            attends to.
        write: int64 (B, M): ring slots that receive the first M frames of this pass (M may be 0).
    """

    cache: KeyValueCache
    mask: Tensor
    write: Tensor


class Attention(nn.Module):
    """Multi-head attention without query/key norms; ``qkv_proj`` rows are q, k, v thirds, heads outermost."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv_proj = RowLinear(dim, 3 * dim, bias=False)
        self.out_proj = RowLinear(dim, dim)

    def project(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """(..., D) to q, k, v of shape (..., H, d), the first two rotated by angles (..., d/2)."""
        qkv = self.qkv_proj(x).unflatten(-1, (3, self.heads, -1))
        q, k = rotate(qkv[..., :2, :, :], *(part[..., None, None, :] for part in rotary)).unbind(-3)
        return q, k, qkv[..., 2, :, :]


class SpatialAttention(Attention):
    """Every patch of a frame attends to every patch of the same frame."""

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """(B,T,N,D) to (B,T,N,D); ``rotary`` holds cosine and sine (N, d/2)."""
        q, k, v = (part.transpose(-3, -2) for part in self.project(x, rotary))  # (B,T,H,N,d)
        out = stable_attention(q, k, v)  # (B,T,H,N,d)
        return self.out_proj(out.transpose(-3, -2).flatten(-2))


class TemporalAttention(Attention):
    """A patch attends to the same patch in its own and earlier frames."""

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor, ring: Ring | None) -> Tensor:
        """Attend over time.

        Args:
            x: (B,T,N,D).
            rotary: Cosine and sine (B,T,d/2) of each frame's position.
            mask: bool (B,T,K): which keys each frame sees.
            ring: This layer's keys and values of past frames and the slots to write, or None.

        Returns:
            (B,T,N,D).
        """
        cosine, sine = (part[:, :, None] for part in rotary)  # (B,T,1,d/2)
        q, k, v = (part.flatten(2, 3).transpose(1, 2) for part in self.project(x, (cosine, sine)))
        keys, values = (k, v) if ring is None else _behind(ring, k, v)  # q (B,N*H,T,d), keys (B,N*H,K,d)
        out = stable_attention(q, keys, values, mask[:, None])  # (B,N*H,T,d)
        if ring is not None:
            _keep(ring, k, v)
        out = out.transpose(1, 2).unflatten(2, (-1, self.heads))  # (B,T,N,H,d)
        return self.out_proj(out.flatten(-2))


Ring = tuple[Tensor, Tensor, Tensor, int]  # keys, values, slots to write, size of the ring


def _behind(ring: Ring, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Write this pass's keys and values into the scratch space behind the ring; return ring and pass."""
    keys, values, _, slots = ring
    end = slots + k.shape[2]
    keys[:, :, slots:end], values[:, :, slots:end] = k, v
    return keys[:, :, :end], values[:, :, :end]


def _keep(ring: Ring, k: Tensor, v: Tensor) -> None:
    """Write the first frames of this pass into their ring slots for good."""
    keys, values, write, _ = ring
    count = write.shape[1]
    if not count:  # so in most passes
        return
    rows = torch.arange(len(k), device=k.device)[:, None]
    keys[rows, :, write] = k[:, :, :count].transpose(1, 2).to(keys)
    values[rows, :, write] = v[:, :, :count].transpose(1, 2).to(values)


class DiTBlock(nn.Module):
    """Attention and a feed-forward layer, each shifted, scaled and gated by the condition (adaLN-Zero)."""

    def __init__(self, dim: int, attention: Attention, mlp_ratio: float) -> None:
        super().__init__()
        hidden = int(dim * mlp_ratio)
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attn = attention
        self.ffwd = nn.Sequential(RowLinear(dim, hidden), TanhGelu(), RowLinear(hidden, dim))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), RowLinear(dim, 6 * dim))

    def forward(self, x: Tensor, modulation: Tensor, *attention_args: object) -> Tensor:
        """(B,T,N,D) and what ``adaLN_modulation`` makes of the condition (B,T,6D) to (B,T,N,D)."""
        six = modulation[:, :, None].chunk(6, dim=-1)  # six (B,T,1,D)
        shift1, scale1, gate1, shift2, scale2, gate2 = six
        x = x + gate1 * self.attn(self.norm(x) * (1 + scale1) + shift1, *attention_args)
        return x + gate2 * self.ffwd(self.norm(x) * (1 + scale2) + shift2)


class Layer(nn.Module):
    """A spatial block, then a temporal one."""

    def __init__(self, dim: int, heads: int, mlp_ratio: float) -> None:
        super().__init__()
        self.s_block = DiTBlock(dim, SpatialAttention(dim, heads), mlp_ratio)
        self.t_block = DiTBlock(dim, TemporalAttention(dim, heads), mlp_ratio)


class FinalLayer(nn.Module):
    """Shift, scale and project each token to the values of its patch."""

    def __init__(self, dim: int, values: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.linear = RowLinear(dim, values)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), RowLinear(dim, 2 * dim))

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        """(B,T,N,D) and the modulation (B,T,2D) to (B,T,N,values)."""
        shift, scale = modulation[:, :, None].chunk(2, dim=-1)
        return self.linear(self.norm(x) * (1 + scale) + shift)


class WorldTransformer(ModelMixin, ConfigMixin):
    """Predicts, for every frame of a video, what its noise level hides, given the actions.

    The defaults are the published configuration (300 tensors, 607,928,384 parameters), and the names of
    the parameters are the published ones.

    Args:
        in_channels: Latent channels of the input; twice the output's for a residual network, which sees
            the previous frame's latents beside the noisy ones.
        out_channels: Latent channels of the output.
        patch_size: Latent pixels per patch side.
        dim: Width of a token.
        layers: Number of (spatial, temporal) block pairs.
        heads: Attention heads.
        action_dim: Numbers in an action. If the last one is 1 and all others 0 it is the null action of
            guidance.
        mlp_ratio: Hidden width of the feed-forward layers over ``dim``.
        rope: ``"standard"`` or ``"pixel"`` spatial positions; it is not visible in the weights.
    """

    _supports_gradient_checkpointing = False
    _no_split_modules = ["Layer"]  # noqa: RUF012 - diffusers reads a plain list
    _repeated_blocks = ["DiTBlock"]  # noqa: RUF012 - compiled once, reused for every block

    @register_to_config
    def __init__(  # noqa: PLR0913 - the configuration of the network is this list
        self,
        in_channels: int = 16,
        out_channels: int = 16,
        patch_size: int = 2,
        dim: int = 1024,
        layers: int = 16,
        heads: int = 16,
        action_dim: int = 10,
        mlp_ratio: float = 4.0,
        rope: str = "standard",
    ) -> None:
        super().__init__()
        if rope not in ("standard", "pixel"):
            raise InvalidConfig(f"rope must be 'standard' or 'pixel', got {rope!r}")
        if dim % heads or (dim // heads) % 4:
            raise InvalidConfig(f"dim / heads must be a multiple of 4, got {dim} / {heads}")
        self.x_proj = nn.Conv2d(in_channels, dim, patch_size, stride=patch_size)
        self.timestep_mlp = nn.Sequential(RowLinear(256, dim), nn.SiLU(), RowLinear(dim, dim))
        self.action_embedder = RowLinear(action_dim, dim)
        self.blocks = nn.ModuleList(Layer(dim, heads, mlp_ratio) for _ in range(layers))
        self.final_layer = FinalLayer(dim, patch_size**2 * out_channels)
        self._rotary: dict[tuple[int, int, torch.device], tuple[Tensor, Tensor]] = {}
        self._initialise()

    def _initialise(self) -> None:
        """Xavier for every linear map, then zero for all that makes a block the identity at the start."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.xavier_uniform_(self.x_proj.weight.view(self.x_proj.weight.shape[0], -1))
        for name, parameter in self.named_parameters():
            if "adaLN_modulation" in name or name.startswith("final_layer.linear"):
                nn.init.zeros_(parameter)

    def forward(
        self, x: Tensor, level: Tensor, actions: Tensor, *, positions: Tensor, view: Tensor | CacheView
    ) -> Tensor:
        """Run the network.

        Args:
            x: Latents (B,T,C,h,w).
            level: Noise levels as ``Process.embedded`` gives them (B,T).
            actions: Conditioning action of each frame (B,T,A).
            positions: Frame index of each frame (B,T), any integers: only differences matter.
            view: What each frame attends to in time: a bool mask (B or 1, T, T), or a ``CacheView``.

        Returns:
            Network output (B,T,C_out,h,w).
        """
        return self.run(x, self.modulations(level, actions), positions=positions, view=view)

    def modulations(self, level: Tensor, actions: Tensor) -> list[Tensor]:
        """What levels (B,T) and actions (B,T,A) do to the blocks, whatever the latents are.

        A third of the weights is read here, so it pays to ask once for several passes.

        Returns:
            Per block, in the order they run, (B,T,6D), and (B,T,2D) for the final layer.
        """
        dtype = self.x_proj.weight.dtype
        condition = self.timestep_mlp(level_embedding(level).to(dtype)) + self.action_embedder(
            actions.to(dtype)
        )
        blocks: Any = [block for layer in self.blocks for block in layer.children()]
        return [part.adaLN_modulation(condition) for part in (*blocks, self.final_layer)]

    def run(
        self, x: Tensor, modulations: list[Tensor], *, positions: Tensor, view: Tensor | CacheView
    ) -> Tensor:
        """``forward`` with levels and actions already turned into ``modulations``."""
        height, width = (side // self.config.patch_size for side in x.shape[-2:])
        tokens = self._patchify(x)  # (B,T,N,D)
        spatial = self._spatial_rotary(height, width, x.device)
        head_dim = self.config.dim // self.config.heads
        temporal = rotary_angles(positions, standard_frequencies(head_dim // 2).to(positions.device))
        layer: Any  # what a ModuleList holds is a Tensor to type checkers
        for index, layer in enumerate(self.blocks):
            tokens = layer.s_block(tokens, modulations[2 * index], spatial)
            if isinstance(view, CacheView):
                mask, ring = view.mask, view.cache.layer(index, view.write)
            else:
                mask, ring = view, None
            tokens = layer.t_block(tokens, modulations[2 * index + 1], temporal, mask, ring)
        return self._unpatchify(self.final_layer(tokens, modulations[-1]), height, width)  # (B,T,C_out,h,w)

    def _patchify(self, x: Tensor) -> Tensor:
        """(B,T,C,h,w) to tokens (B,T,N,D): the stride-p convolution written as a row-wise product."""
        p = self.config.patch_size
        b, t, c, h, w = x.shape
        patches = x.reshape(b, t, c, h // p, p, w // p, p).permute(0, 1, 3, 5, 2, 4, 6)  # (B,T,h',w',C,p,p)
        patches = patches.reshape(b, t * (h // p) * (w // p), c * p * p).to(self.x_proj.weight.dtype)
        weight, bias = self.x_proj.weight.flatten(1), self.x_proj.bias
        return stable_linear(patches, weight, bias).unflatten(1, (t, -1))

    def _unpatchify(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """(B,T,N,p*p*C) in (row, column, channel) order to (B,T,C,h,w)."""
        p = self.config.patch_size
        b, t = tokens.shape[:2]
        pixels = tokens.reshape(b, t, height, width, p, p, -1).permute(0, 1, 6, 2, 4, 3, 5)
        return pixels.reshape(b, t, -1, height * p, width * p)

    def _spatial_rotary(self, height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
        key = (height, width, device)
        if key not in self._rotary:
            head_dim = self.config.dim // self.config.heads
            angles = spatial_rotary(height, width, head_dim, self.config.rope)
            self._rotary[key] = tuple(part.to(device) for part in angles)  # type: ignore[assignment]
        return self._rotary[key]


def banded_mask(frames: int, window: int | None, device: torch.device | None = None) -> Tensor:
    """Causal mask in which frame i sees frames i-window+1 to i (all earlier ones if ``window`` is None).

    Returns:
        bool (1, frames, frames).
    """
    index = torch.arange(frames, device=device)
    distance = index[:, None] - index[None]
    mask = distance >= 0
    return (mask if window is None else mask & (distance < window))[None]
