"""Batches for training a judge: moments of clips, as a world model or a camera might have shown them.

What is here:
    * ``draw_batch``: some moments of some clips, more often those around which something happens.
    * ``disturb``: blur, noise, and changes of light and colour, as the codec and other cameras make them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from worldgym.judges.network import FPS, moments, to_pixels
from worldgym.training.judge_data import JudgeClips

ENDS = 5
"""Moments of a clip in a batch; they are neighbours and share most of the frames that are looked at."""
_EVENTFUL = 0.6
"""Share of the clips that are seen around an event, if they have one."""
_DISTURBED = 0.6
"""Share of the clips whose frames are disturbed."""


class JudgeBatch(NamedTuple):
    """Videos to judge.

    Attributes:
        pixels: (F, 3, 64, 64) in [-1, 1], every frame once.
        pick: int64 (E, P) the frames of each video.
        truths: (E, M, 2) success and progress of every task at the end of each video; NaN where not known.
        weights: (E, M) of the tasks.
        sight: (F, S, 5) what is true in each frame; NaN where not known.
    """

    pixels: Tensor
    pick: Tensor
    truths: Tensor
    weights: Tensor
    sight: Tensor

    def to(self, device: torch.device) -> JudgeBatch:
        """The same on a device."""
        return JudgeBatch(*(part.to(device) for part in self))


def draw_batch(clips: JudgeClips, chosen: npt.NDArray[np.int64], generator: torch.Generator) -> JudgeBatch:
    """``ENDS`` moments of each chosen clip; most clips have their frames disturbed, each in its own way.

    The clip's own task counts fully, others whose things are in the scene by half, those with things that
    are not there little: there are many of them, and they are easy.
    """
    rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    ends = [_ends(clips, int(clip), rng) for clip in chosen]
    batch, way = gather(clips, chosen, ends)
    disturbed = torch.from_numpy(np.isin(way.numpy(), chosen[rng.random(len(chosen)) < _DISTURBED]))
    if disturbed.any():
        with torch.autocast("cpu", enabled=False):  # the training step may be in bfloat16
            batch.pixels[disturbed] = disturb(batch.pixels[disturbed], way[disturbed], generator)
    return batch


def gather(
    clips: JudgeClips, chosen: npt.NDArray[np.int64], ends: list[npt.NDArray[np.int64]]
) -> tuple[JudgeBatch, Tensor]:
    """The videos of chosen clips up to given frames, undisturbed; and which clip each frame is of."""
    picks, owners = [], []
    for place, (clip, at) in enumerate(zip(chosen, ends, strict=True)):
        for end in at:
            picks.append(clips.begin[clip] + np.array(moments(range(int(end) + 1), clips.fps[clip])))
            owners.append(place)
    numbers, pick = np.unique(np.array(picks), return_inverse=True)
    last = np.array([places[-1] for places in picks])
    owner = np.asarray(chosen)[owners]
    weights = np.where(clips.present[owner], 0.5, 0.05)
    weights[np.arange(len(owner)), clips.own[owner]] = 1.0
    batch = JudgeBatch(
        pixels=to_pixels(torch.from_numpy(clips.frames[numbers])),
        pick=torch.from_numpy(pick.reshape(len(picks), -1)),
        truths=torch.from_numpy(clips.truths[last].astype(np.float32)),
        weights=torch.from_numpy(weights.astype(np.float32)),
        sight=torch.from_numpy(clips.sight[numbers].astype(np.float32)),
    )
    return batch, torch.from_numpy(np.searchsorted(clips.begin, numbers, side="right") - 1)


def disturb(pixels: Tensor, way: Tensor, generator: torch.Generator) -> Tensor:
    """Change frames (F, 3, H, W) in [-1, 1] as cameras and codecs do; frames of one ``way`` (F,) alike."""
    _, group = torch.unique(way, return_inverse=True)
    groups = int(group.max()) + 1

    def each(low: float, high: float, *shape: int) -> Tensor:
        values = torch.rand(groups, *shape, generator=generator) * (high - low) + low
        return values[group]

    blur = each(-1.0, 1.0, 1, 1, 1).clamp(min=0)
    coarse = (
        each(-1.5, 1.0, 1, 1, 1) * (0.5 + 0.5 * torch.rand(len(pixels), 1, 1, 1, generator=generator))
    ).clamp(min=0)
    noise = each(-0.05, 0.1, 1, 1, 1).clamp(min=0)
    patches = each(-0.08, 0.12, 1, 1, 1).clamp(min=0)
    gain = each(0.85, 1.15, 1, 1, 1) * each(0.94, 1.06, 3, 1, 1)
    shift = each(-0.12, 0.12, 1, 1, 1)
    kernel = torch.tensor([1.0, 2.0, 1.0]) / 4
    smooth = F.conv2d(
        F.pad(pixels, (1, 1, 1, 1), mode="replicate"),
        (kernel[:, None] * kernel).expand(3, 1, 3, 3),
        groups=3,
    )
    pixels = torch.lerp(pixels, smooth, blur)
    small = F.avg_pool2d(pixels, 2)
    pixels = torch.lerp(pixels, F.interpolate(small, scale_factor=2.0, mode="bilinear"), coarse)
    pixels = pixels * gain + shift
    spots = torch.randn(len(pixels), 3, 8, 8, generator=generator)
    pixels = pixels + patches * F.interpolate(spots, size=pixels.shape[2:], mode="bilinear")
    grain = torch.rand(pixels.shape, generator=generator) - 0.5  # twice as fast as normal noise
    return (pixels + 3.5 * noise * grain).clamp(-1, 1)


def _ends(clips: JudgeClips, clip: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Last frames of the videos drawn from a clip, from its own first frame."""
    length = int(clips.begin[clip + 1] - clips.begin[clip])
    step = max(1, round(clips.fps[clip] / FPS))
    events = clips.events(clip)
    middle = int(rng.integers(length))
    if len(events) and rng.random() < _EVENTFUL:
        middle = int(events[rng.integers(len(events))])
    first = middle - step * int(rng.integers(ENDS))
    return np.clip(first + step * np.arange(ENDS), 0, length - 1)
