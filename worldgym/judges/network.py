"""The network of the packaged judge.

What is here:
    * ``JudgeNetwork``: frames and tasks to success and progress.
    * ``Sight``: what it sees in frames: for each thing it knows, where it is and how it looks.
    * ``MOMENTS`` and ``moments``: which frames of a video it looks at. ``to_pixels``: frames for it.

Success is a rule about where things are. So the network first finds each thing by attention over the frame
(which the twin can supervise), and then decides from the task's two things and the gripper at a few moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldgym.judges.vocabulary import Vocabulary

FRAME_SIZE = 64
"""Height and width of the frames that the network takes."""
FPS = 5.0
"""Frames per second of the videos that it was trained on."""
MOMENTS = (0.8, 0.4, 0.2, 0.0)
"""Seconds before the newest frame at which it looks, after the start frame."""
FEATURES = 16
"""Numbers that describe the look of a thing, beside those that are named in ``Sight``."""
SLOT = 5 + FEATURES
"""Numbers about a thing at one moment."""
_PATCH = 4
_GRID = FRAME_SIZE // _PATCH


class Sight(NamedTuple):
    """What is seen in F frames of each of N things; the first thing is the gripper.

    Attributes:
        slots: (F, N, SLOT) all of the following, squashed, and ``FEATURES`` more.
        map: (F, N, 16 * 16) logits of where it is, row by row.
        place: (F, N, 2) x and y, 0 to 1 across the frame.
        visible: (F, N) logit of whether it is seen.
        height: (F, N) decimetres above the table.
        held: (F, N) logit of whether it is held; of the gripper, whether it is open.
    """

    slots: Tensor
    map: Tensor
    place: Tensor
    visible: Tensor
    height: Tensor
    held: Tensor


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


class JudgeNetwork(nn.Module):
    """Says of videos whether tasks are solved.

    Args:
        vocabulary: The tasks.
        widths: Channels at 1/4 and 1/8 of the frame.
        hidden: Width of the decision.
    """

    targets: Tensor
    goals: Tensor
    kinds: Tensor
    grid: Tensor

    def __init__(
        self, vocabulary: Vocabulary, *, widths: Sequence[int] = (48, 64), hidden: int = 192
    ) -> None:
        super().__init__()
        middle, coarse = widths
        names, kinds = vocabulary.names, vocabulary.kinds
        self.stem = nn.Conv2d(3 * _PATCH**2 + 2, middle, 3, padding=1)
        self.middle = _Block(middle)
        self.quarter = nn.Conv2d(middle, coarse, 4, stride=2, padding=1)
        self.coarse = nn.Sequential(_Block(coarse), _Block(coarse))
        self.back = nn.Conv2d(coarse, middle, 1)
        self.out = nn.Conv2d(middle, 64, 3, padding=1)
        self.maps = nn.Conv2d(64, len(names), 1)
        self.name_embedding = nn.Embedding(len(names), 8)
        self.look = nn.Sequential(nn.Linear(64 + 3 + 8, 96), nn.SiLU(), nn.Linear(96, SLOT))
        seen = 3 * SLOT * (len(MOMENTS) + 1)
        self.kind_embedding = nn.Embedding(len(kinds), 16)
        self.into = nn.Linear(seen + 16 + 16, hidden)
        self.gate = nn.Linear(16 + 16, hidden)
        self.decide_hidden = nn.Linear(hidden, hidden)
        self.decide_out = nn.Linear(hidden, 2)
        number = {name: index for index, name in enumerate(names)}
        tasks = vocabulary.tasks
        # a task without a goal looks at its target twice; its kind tells it apart
        goals = [number[task.goal or task.target] for task in tasks]
        self.register_buffer("targets", torch.tensor([number[t.target] for t in tasks]), persistent=False)
        self.register_buffer("goals", torch.tensor(goals), persistent=False)
        self.register_buffer("kinds", torch.tensor([kinds.index(t.kind) for t in tasks]), persistent=False)
        steps = (torch.arange(_GRID) + 0.5) / _GRID
        grid = torch.stack([steps.repeat(_GRID), steps.repeat_interleave(_GRID)], dim=-1)  # (256, 2): x, y
        self.register_buffer("grid", grid, persistent=False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def see(self, frames: Tensor) -> Sight:
        """Look at frames.

        Args:
            frames: (F, 3, 64, 64) in [-1, 1].
        """
        x = F.pixel_unshuffle(frames, _PATCH)  # (F, 48, 16, 16)
        side = torch.linspace(-1, 1, _GRID, device=x.device, dtype=x.dtype)
        where = torch.stack(torch.meshgrid(side, side, indexing="xy")).expand(len(x), -1, -1, -1)
        x = torch.cat([x, where], dim=1).contiguous(memory_format=torch.channels_last)
        x = self.middle(F.silu(self.stem(x)))
        small = self.coarse(self.quarter(x))
        x = F.silu(x + F.interpolate(self.back(small), scale_factor=2.0, mode="nearest"))
        x = F.silu(self.out(x))  # (F, 64, 16, 16)
        logits = self.maps(x).flatten(2).float()  # (F, N, 256)
        attention = logits.softmax(-1)
        cells = x.flatten(2).transpose(1, 2).float()  # (F, 256, 64)
        place = attention @ self.grid
        peak = logits.amax(-1, keepdim=True) * 0.1
        names = self.name_embedding.weight.expand(len(x), -1, -1).float()
        told = self.look(torch.cat([attention @ cells, place, peak, names], dim=-1)).float()
        place = place + told[..., :2] * 0.1
        visible, height, held = told[..., 2], told[..., 3], told[..., 4]
        named = [visible.sigmoid(), height, held.sigmoid()]
        slots = torch.cat([place, torch.stack(named, dim=-1), told[..., 5:].tanh()], dim=-1)
        return Sight(slots, logits, place, visible, height, held)

    def decide(self, slots: Tensor, tasks: Tensor) -> Tensor:
        """Success and progress, as logits.

        Args:
            slots: (E, MOMENTS + 1, N, SLOT) of the start frame and the moments, for E videos.
            tasks: int64 (E, M) numbers of the tasks to decide about.

        Returns:
            (E, M, 2).
        """
        kind, target, goal = self.kinds[tasks], self.targets[tasks], self.goals[tasks]
        row = torch.arange(len(slots), device=slots.device)[:, None]
        by_name = slots.transpose(1, 2)  # (E, N, moments, SLOT)
        hand = by_name[:, :1].expand(-1, tasks.shape[1], -1, -1)
        seen = torch.cat([by_name[row, target], by_name[row, goal], hand], dim=-1).flatten(2)
        names = torch.cat([self.name_embedding(target), self.name_embedding(goal)], dim=-1)
        what = torch.cat([self.kind_embedding(kind), names], dim=-1)
        hidden = F.silu(self.into(torch.cat([seen, what], dim=-1))) * (1 + self.gate(what))
        answer: Tensor = self.decide_out(F.silu(self.decide_hidden(hidden)))
        return answer

    def forward(self, frames: Tensor, pick: Tensor, tasks: Tensor) -> tuple[Sight, Tensor]:
        """Look at frames and decide about videos made of them.

        Args:
            frames: (F, 3, 64, 64) in [-1, 1].
            pick: int64 (E, MOMENTS + 1) numbers of the frames that each video consists of.
            tasks: int64 (E, M).

        Returns:
            What is seen, and (E, M, 2) logits of success and progress.
        """
        sight = self.see(frames)
        return sight, self.decide(sight.slots[pick], tasks)


def to_pixels(frames: Tensor) -> Tensor:
    """Frames uint8 (F, 64, 64, 3) as the network takes them: (F, 3, 64, 64) in [-1, 1]."""
    return frames.movedim(-1, 1).float() / 127.5 - 1


def moments(indices: Sequence[int], fps: float | None) -> list[int]:
    """Positions of the start frame and the frames nearest to ``MOMENTS`` before the last one.

    Args:
        indices: Index of each frame in its episode, increasing.
        fps: Frames per second; None for those of the training.
    """
    times = np.asarray(indices, np.float64) / (fps or FPS)
    wanted = np.maximum(times[-1] - np.array(MOMENTS), times[0])
    return [0, *(int(np.abs(times - time).argmin()) for time in wanted)]
