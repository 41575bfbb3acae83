"""Where the objects are in latents, for clips that say so: a few pixels that decide how an episode ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from worldgym.data.encoded import EncodedClips

AT_REST = 0.25  # emphasis of an object that does not move, which only has to be copied
MOVES = 0.004  # of the picture's width between two frames
REACH = 1.6  # latent pixels from the middle of an object at which its emphasis ends


def object_emphasis(clips: EncodedClips) -> npt.NDArray[np.float16]:
    """How much each latent pixel shows of an object, mostly of one that moves.

    Clips of the twin say where their objects are (``worldgym.envs.twin_episode.Facts``); others get zeros.

    Returns:
        float16 (N,1,h,w), from 0 to 1, for the frames of all clips one after the other.
    """
    height, width = clips.latents.shape[-2:]
    parts = [np.zeros((0, 1, height, width), np.float16)]
    for record, length in zip(clips.records, clips.lengths, strict=True):
        facts = record["metadata"] or {}
        part = np.zeros((length, 1, height, width), np.float16)
        if facts.get("centroids"):
            part[:, 0] = _of_clip(facts, (height, width))
        parts.append(part)
    return np.concatenate(parts)


def _of_clip(facts: Mapping[str, Any], size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """(T,h,w) of one clip."""
    unseen = [np.nan, np.nan]
    seen = np.array([[unseen if place is None else place for place in row] for row in facts["centroids"]])
    middles = np.array(facts["objects"], float)  # (T,objects,2)
    moved = np.abs(np.diff(middles, axis=0)).max(-1) > MOVES
    still = np.zeros((1, moved.shape[1]), bool)
    moving = np.concatenate([still, moved]) | np.concatenate([moved, still])
    strength = np.where(moving, 1.0, AT_REST)
    rows, columns = (np.arange(side) + 0.5 for side in size)
    dx = seen[..., 0, None, None] * size[1] - columns  # (T,objects,1,w)
    dy = seen[..., 1, None, None] * size[0] - rows[:, None]  # (T,objects,h,1)
    near = np.clip(REACH - np.hypot(dx, dy), 0, 1) * strength[..., None, None]
    result: npt.NDArray[np.float32] = np.nan_to_num(near).max(axis=1).astype(np.float32)
    return result
