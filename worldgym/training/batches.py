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
        imagined: ``clean`` as a world model imagined it; the truth where none has.
        imagined_previous: ``previous``, likewise.
    """

    clean: Tensor
    previous: Tensor
    actions: Tensor
    emphasis: Tensor
    imagined: Tensor
    imagined_previous: Tensor

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
        imagined: Some of the clips, under their names, as a world model imagined them.

    Attributes:
        skipped: Clips that could not be encoded or are too short, and why.

    Raises:
        DataError: If no window is long enough, or an imagined clip does not fit the clip of its name.
    """

    def __init__(
        self,
        clips: EncodedClips,
        chosen: Sequence[int],
        *,
        n_frames: int,
        stride: int,
        action_offset: int,
        imagined: EncodedClips | None = None,
    ) -> None:
        self.clips, self.chosen = clips, tuple(chosen)
        self.n_frames, self.action_offset = n_frames, action_offset
        self._emphasis = object_emphasis(clips)
        self._imagined = clips.latents if imagined is None else _imagined_latents(clips, imagined)
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
        imagined = torch.from_numpy(self._imagined[index]).float()
        return Batch(
            latents[:, 1:],
            latents[:, :-1],
            torch.from_numpy(actions),
            emphasis,
            imagined[:, 1:],
            imagined[:, :-1],
        )


def _imagined_latents(clips: EncodedClips, imagined: EncodedClips) -> npt.NDArray[np.float16]:
    """The latents of all clips, some of them replaced by what was imagined of them."""
    latents = np.array(clips.latents)
    begin = dict(zip(clips.names, np.cumsum(clips.lengths) - clips.lengths, strict=True))
    length = dict(zip(clips.names, clips.lengths, strict=True))
    for number, name in enumerate(imagined.names):
        count = int(imagined.lengths[number])
        if length.get(name) != count:
            raise DataError(
                f"{imagined.path} imagines {name} in {count} frames, {clips.path} has "
                f"{length.get(name, 'no')} frames of it: imagine those clips again"
            )
        latents[begin[name] : begin[name] + count] = imagined.content(number, 0, count)
    return latents
