"""Episodes once more, imagined by a world model.

What is here:
    * ``imagine``: start frames and actions of recorded episodes, rolled out in a checkpoint, as videos.
    * ``imagine_encoded``: the same of encoded clips, as latents.

Each imagined clip keeps the truth of the episode that it repeats: the same actions from the same start have
that outcome, and a model that shows another one is wrong. Judges are trained and measured on such videos;
world models learn from such latents to find back to the truth (``WorldTraining.imagined``).
"""

from __future__ import annotations

import json
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
from worldgym.data.encoded import EncodedClips
from worldgym.episode import Episode
from worldgym.errors import DataError, InvalidConfig
from worldgym.models.world_model import WorldModel
from worldgym.training.encode import fingerprint
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


def imagine_encoded(
    clips: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    checkpoint: str = "packaged",
    episodes: int = 600,
    seed: int = 0,
    batch_size: int = 16,
    device: str = "cpu",
    on_episode: Callable[[int, int], None] | None = None,
) -> EncodedClips:
    """Repeat encoded clips in a world model that has their codec; arguments as for ``imagine``.

    Returns:
        The imagined latents, under the names of the clips. What is in ``out`` already is kept.

    Raises:
        DataError: If the folder holds no encoded clips, or clips of another codec.
        CheckpointError: If the checkpoint cannot be used.
    """
    recorded, out = EncodedClips(clips), Path(out)
    model = WorldModel.from_pretrained(checkpoint, device=device)
    if recorded.extra.get("fingerprint") != fingerprint(model.codec):
        raise DataError(f"{clips} was encoded with another codec than that of {checkpoint}")
    numbers = np.linspace(0, len(recorded) - 1, min(episodes, len(recorded))).round().astype(int)
    begin = np.concatenate([[0], np.cumsum(recorded.lengths[numbers])])
    latents = _unfinished(out, (int(begin[-1]), *recorded.latents.shape[1:]))
    for first in range(0, len(numbers), batch_size):
        last = min(first + batch_size, len(numbers))
        frames = slice(begin[first], begin[last])
        if np.isnan(latents[frames]).any():
            latents[frames] = _rolled_out(model, recorded, numbers[first:last], seed)
            latents.flush()
        if on_episode is not None:
            on_episode(last, len(numbers))
    _finish(out, recorded, numbers, {"world": str(checkpoint), "seed": seed})
    return EncodedClips(out)


def _rolled_out(
    model: WorldModel, recorded: EncodedClips, numbers: npt.NDArray[np.int64], seed: int
) -> npt.NDArray[np.float16]:
    """Latents (N, C, h, w) of clips, one after the other; the first frame of each is the recorded one."""
    lengths = recorded.lengths[numbers]
    starts = np.stack([recorded.content(number, 0, 1) for number in numbers])
    actions = np.zeros((len(numbers), lengths.max(), model.action_dim), np.float32)
    for row, number in enumerate(numbers):
        actions[row, : lengths[row]] = recorded.rows(number)
    state = model.start_from_latents(torch.from_numpy(starts).float(), [seed + int(n) for n in numbers])
    new = [model.step(state, actions[:, k : k + 1]).cpu().numpy() for k in range(lengths.max() - 1)]
    videos = np.concatenate([starts, *new], axis=1).astype(np.float16)
    return np.concatenate([video[:length] for video, length in zip(videos, lengths, strict=True)])


def _unfinished(out: Path, shape: tuple[int, ...]) -> np.memmap[Any, np.dtype[np.float16]]:
    """The latents in a folder, NaN where nothing was imagined yet."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "latents.npy"
    if file.exists():
        stored = np.lib.format.open_memmap(file, mode="r+")
        if stored.shape != shape:
            raise DataError(
                f"{out} holds latents {stored.shape}, these would be {shape}: choose another folder"
            )
    else:
        begun = file.with_suffix(".begun")
        stored = np.lib.format.open_memmap(begun, mode="w+", dtype=np.float16, shape=shape)
        stored[:] = np.nan
        stored.flush()
        begun.replace(file)
    return stored


def _finish(out: Path, recorded: EncodedClips, numbers: npt.NDArray[np.int64], made: dict[str, Any]) -> None:
    """Write what makes latents a folder of encoded clips; the index comes last."""
    np.save(out / "actions.npy", np.concatenate([recorded.rows(number) for number in numbers]))
    index = json.loads((recorded.path / "clips.json").read_text(encoding="utf-8"))
    for key in ("names", "lengths", "records"):
        index[key] = [index[key][number] for number in numbers]
    index["extra"] |= made
    partial = out / "clips.json.begun"
    partial.write_text(json.dumps(index), encoding="utf-8")
    partial.replace(out / "clips.json")
