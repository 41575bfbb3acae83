"""Windows of encoded clips as batches of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worldgym.data.clips import summary
from worldgym.data.encoded import EncodedClips
from worldgym.data.windows import Windows
from worldgym.errors import DataError
from worldgym.training.emphasis import object_emphasis


class Batch(NamedTuple):
    """Windows of encoded clips.

    Attributes:
        clean: float32 (B,T,C,h,w).
        previous: Latents of the frame before each; the first frame of a clip is its own predecessor.
        actions: float32 (B,T,A), what each frame is conditioned on.
        emphasis: float32 (B,T,1,h,w), how much each latent pixel shows of an object.
    """

    clean: Tensor
    previous: Tensor
    actions: Tensor
    emphasis: Tensor

    def to(self, device: torch.device) -> Batch:
        """The same on a device."""
        return Batch(*(part.to(device) for part in self))


class LatentWindows:
    """All windows of chosen clips; ``batch`` gathers any of them at once.

    Args:
        clips: The encoded clips.
        chosen: Which of them.
        n_frames: Frames per window, T.
        stride: Frames between the beginnings of windows of one clip.
        action_offset: 1 to condition a frame on the action that caused it, 0 on the one recorded with it.

    Attributes:
        skipped: Clips that could not be encoded or are too short, and why.

    Raises:
        DataError: If no window is long enough.
    """

    def __init__(
        self, clips: EncodedClips, chosen: Sequence[int], *, n_frames: int, stride: int, action_offset: int
    ) -> None:
        self.clips, self.chosen = clips, tuple(chosen)
        self.n_frames, self.action_offset = n_frames, action_offset
        self._emphasis = object_emphasis(clips)
        self.skipped = Windows(clips, n_frames, stride=stride).skipped
        begin = np.concatenate([[0], np.cumsum(clips.lengths)])
        positions = [np.arange(0, clips.lengths[clip] - n_frames + 1, stride) for clip in chosen]
        self._position = np.concatenate([np.zeros(0, np.int64), *positions]).astype(np.int64)
        lengths = [len(part) for part in positions]
        self._first = self._position + np.repeat(begin[list(chosen)], lengths)
        if not len(self):
            raise DataError(
                f"{clips.path} has no window of {n_frames} frames in the {len(self.chosen)} clips chosen"
                f"{summary(self.skipped)}"
            )

    def __len__(self) -> int:
        return len(self._first)

    def batch(self, indices: npt.NDArray[np.int64]) -> Batch:
        """The windows of the given numbers."""
        at_start = self._position[indices] == 0
        index = self._first[indices][:, None] + np.arange(-1, self.n_frames)  # (B,T+1)
        index[at_start, 0] += 1  # there is no frame before the first one of a clip
        latents = torch.from_numpy(self.clips.latents[index]).float()
        rows: npt.NDArray[Any] = np.array(self.clips.actions[index], np.float32)
        if self.action_offset:
            rows[at_start, 0] = 0  # nothing caused the first frame
        actions = rows[:, :-1] if self.action_offset else rows[:, 1:]
        emphasis = torch.from_numpy(self._emphasis[index[:, 1:]]).float()
        return Batch(latents[:, 1:], latents[:, :-1], torch.from_numpy(actions), emphasis)
