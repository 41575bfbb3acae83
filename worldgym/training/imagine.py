"""Episodes of the twin once more, imagined by a world model: videos of it whose outcome is known.

What is here:
    * ``imagine``: start frames and actions of recorded episodes, rolled out in a checkpoint.

Each imagined clip keeps the truth of the episode that it repeats: the same actions from the same start have
that outcome, and a model that shows another one is wrong. Judges are trained and measured on such clips.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from worldgym.actions import convert
from worldgym.data.clips import ClipFolder, ClipWriter
from worldgym.episode import Episode
from worldgym.errors import DataError, InvalidConfig
from worldgym.models.world_model import WorldModel
from worldgym.video import resize


def imagine(
    clips: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    checkpoint: str = "packaged",
    episodes: int = 600,
    seed: int = 0,
    batch_size: int = 16,
    device: str = "cpu",
    on_episode: Callable[[int, int], None] | None = None,
) -> Path:
    """Repeat recorded episodes in a world model; those that are in ``out`` already are kept.

    Args:
        clips: Folder of clips with ``success``; all of one length, as ``worldgym collect`` makes them.
        out: The folder of imagined clips. They have the names, actions and truths of the recorded ones, and
            the checkpoint in ``metadata["world"]``.
        checkpoint: Folder, packaged name or hub id of the world model.
        episodes: How many, evenly spread over the recorded ones.
        seed: Episode i is imagined with the noise of ``seed + i``.
        batch_size: Episodes that are imagined at once.
        device: Torch device of the world model.
        on_episode: Called now and then with the number of episodes done and of all.

    Returns:
        ``out``.

    Raises:
        DataError: If a clip cannot be read or written, or clips of a batch differ in length.
        CheckpointError: If the checkpoint cannot be used.
        InvalidConfig: If an argument cannot work.
    """
    if episodes < 1 or batch_size < 1:
        raise InvalidConfig(f"expected at least 1 episode and batch, got {episodes} and {batch_size}")
    recorded, writer = ClipFolder(clips), ClipWriter(out, lossless=True)
    numbers = np.linspace(0, len(recorded) - 1, min(episodes, len(recorded))).round().astype(int)
    missing = [int(n) for n in numbers if Path(recorded.names[n]).name not in writer]
    model = WorldModel.from_pretrained(checkpoint, device=device)
    report = on_episode or (lambda _done, _all: None)
    done = len(numbers) - len(missing)
    report(done, len(numbers))
    for first in range(0, len(missing), batch_size):
        part = missing[first : first + batch_size]
        originals = [recorded[number] for number in part]
        videos = replay(model, originals, seeds=[seed + number for number in part])
        for number, original, video in zip(part, originals, videos, strict=True):
            metadata: dict[str, Any] = {**original.metadata, "world": str(checkpoint), "noise": seed + number}
            writer.append(
                replace(original, frames=video, metadata=metadata), name=Path(recorded.names[number]).name
            )
        done += len(part)
        report(done, len(numbers))
    return Path(out)


def replay(model: WorldModel, episodes: list[Episode], *, seeds: list[int]) -> npt.NDArray[np.uint8]:
    """The videos (B, T, H, W, 3) that a model makes of the starts and actions of episodes.

    The first frame is the recorded one, in the size of the model.

    Raises:
        DataError: If the episodes differ in length.
    """
    lengths = {len(episode) for episode in episodes}
    if len(lengths) > 1:
        raise DataError(f"episodes that are imagined together must have one length, got {sorted(lengths)}")
    config = model.config
    size = (config.frame_height, config.frame_width)
    starts = np.concatenate([resize(episode.frames[:1], size) for episode in episodes])
    actions = np.stack([convert(e.actions, e.action_spec, config.action_spec) for e in episodes])
    state = model.start(starts[:, None], seeds)
    frames = [starts[:, None]]
    with torch.inference_mode():
        for step in range(actions.shape[1]):
            latents = model.step(state, actions[:, step : step + 1])
            frames.append(model.decode(latents).cpu().numpy())
    return np.concatenate(frames, axis=1)
