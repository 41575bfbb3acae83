"""Folders of recorded episodes in the published layout: ``<name>.mp4`` beside ``<name>.npz``.

``arr_0`` in the npz is float32 (T, A): row i is the action recorded with frame i, which causes frame i+1. The
last row therefore causes nothing. Other keys are ours and optional: ``success``, ``progress``, ``task``,
``trial``, ``instruction``, ``seed``, ``family``, ``fps``, ``action_spec`` and ``metadata`` (json). The
published trainer ignores them.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from worldgym.actions import PUBLISHED_BRIDGE, ActionSpec, check_actions, convert, get_spec
from worldgym.episode import Episode
from worldgym.errors import DataError, InvalidAction, InvalidConfig
from worldgym.video import atomic_path, read_video, write_video

KEPT_VIDEOS = 4  # decoded clips kept by a reader: windows of one clip are often asked for together


class Skipped(NamedTuple):
    """A file that is left out, and why."""

    path: Path
    reason: str


class ClipFolder:
    """Reads a folder of clips; ``folder[i]`` is an ``Episode``.

    Building it reads the npz files only. Clips whose npz is missing or unusable are left out and listed in
    ``skipped``; so are, after ``check``, those whose video is.

    Args:
        path: The folder that holds the files, at any depth.
        action_spec: Convention of the actions in files that do not name their own.
        fps: Frames per second of robot time in files that do not say. Published videos declare 20 whatever
            the robot's rate was, so theirs is not used.

    Attributes:
        names: Name of each clip, sorted; with its folder, if it is in one below ``path``.
        lengths: Number of frames of each clip, int64 (N,).
        skipped: What was left out, and why.

    Raises:
        DataError: If the folder is missing or holds no clip that can be used.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        action_spec: str | ActionSpec = PUBLISHED_BRIDGE,
        fps: float = 5.0,
    ):
        self.path = Path(path)
        self.action_spec = get_spec(action_spec)
        self.fps = fps
        if not self.path.is_dir():
            raise DataError(f"expected a folder of clips (<name>.mp4 beside <name>.npz), {self.path} is none")
        self.names: list[str] = []
        self.skipped: list[Skipped] = []
        lengths: list[int] = []
        inside = [file.relative_to(self.path) for file in self.path.rglob("*")]
        files = [file for file in inside if not any(part.startswith(".") for part in file.parts)]
        stems = {
            suffix: {file.with_suffix("").as_posix() for file in files if file.suffix == suffix}
            for suffix in (".mp4", ".npz")
        }
        for name in sorted(stems[".mp4"] | stems[".npz"]):
            try:
                if name not in stems[".mp4"]:
                    raise DataError(f"{self._npz(name)} has no video {name}.mp4 beside it")
                lengths.append(len(self._read_record(name)["arr_0"]))
                self.names.append(name)
            except DataError as error:
                self.skipped.append(Skipped(self._npz(name), str(error)))
        self.lengths = np.array(lengths, np.int64)
        self._videos: OrderedDict[int, npt.NDArray[np.uint8]] = OrderedDict()
        self._require_some()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Episode:
        """One clip.

        Raises:
            DataError: If its video cannot be read, or has another number of frames than its npz has rows.
        """
        name = self.names[index]
        record = self._read_record(name)
        frames = self._read_frames(name, len(record["arr_0"]))
        known = {key: record[key] for key in _TRUTH if key in record}
        return Episode(
            frames=frames,
            actions=record["arr_0"][:-1],
            **{"trial": name, "fps": self.fps, "action_spec": self.action_spec.name, **known},
        )

    def __iter__(self) -> Iterator[Episode]:
        return (self[index] for index in range(len(self)))

    def rows(self, index: int) -> npt.NDArray[np.float32]:
        """``arr_0`` of a clip, float32 (T, A), the last row included."""
        rows: npt.NDArray[np.float32] = self._read_record(self.names[index])["arr_0"]
        return rows

    def record(self, index: int) -> dict[str, Any]:
        """What the npz of a clip holds, its video unread: ``arr_0`` and the optional keys that it has."""
        return self._read_record(self.names[index])

    def content(self, index: int, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Frames ``start`` to ``stop`` of a clip, uint8 (stop - start, H, W, 3).

        Raises:
            DataError: As ``folder[index]``.
        """
        if index not in self._videos:
            self._videos[index] = self._read_frames(self.names[index], int(self.lengths[index]))
            if len(self._videos) > KEPT_VIDEOS:
                self._videos.popitem(last=False)
        return self._videos[index][start:stop].copy()

    def check(self) -> list[Skipped]:
        """Read every video; clips that fail are taken out of the folder's list and put into ``skipped``.

        Returns:
            What this call has left out.

        Raises:
            DataError: If no clip remains.
        """
        failed: dict[int, Skipped] = {}
        for index, name in enumerate(self.names):
            try:
                self._read_frames(name, int(self.lengths[index]))
            except DataError as error:
                failed[index] = Skipped(self.path / f"{name}.mp4", str(error))
        keep = [index for index in range(len(self.names)) if index not in failed]
        self.names = [self.names[index] for index in keep]
        self.lengths = self.lengths[keep]
        self.skipped.extend(failed.values())
        self._videos.clear()
        self._require_some()
        return list(failed.values())

    def _npz(self, name: str) -> Path:
        return self.path / f"{name}.npz"

    def _read_record(self, name: str) -> dict[str, Any]:
        record = _read_npz(self._npz(name))
        own_spec = record.get("action_spec", self.action_spec.name)
        try:
            spec = self.action_spec if own_spec == self.action_spec.name else get_spec(own_spec)
            record["arr_0"] = check_actions(record["arr_0"], spec, shape=(None, spec.dims))
        except (InvalidAction, InvalidConfig) as error:
            raise DataError(f"{self._npz(name)}: {error}") from error
        if not len(record["arr_0"]):
            raise DataError(f"{self._npz(name)}: arr_0 has no rows")
        return record

    def _read_frames(self, name: str, length: int) -> npt.NDArray[np.uint8]:
        video = self.path / f"{name}.mp4"
        frames = read_video(video)
        if len(frames) != length:
            raise DataError(f"{video} has {len(frames)} frames, but {self._npz(name)} has {length} rows")
        return frames

    def _require_some(self) -> None:
        if not self.names:
            raise DataError(f"there is no clip to use in {self.path}{summary(self.skipped)}")


class ClipWriter:
    """Writes episodes into a folder of clips.

    The npz appears last, by a rename, so that a clip with an npz is complete, and a killed writer can go on:
    a name that is complete is left as it is.

    Args:
        path: The folder; made if need be.
        action_spec: Convention to store actions in; episodes are converted to it.
        lossless: Whether videos keep every bit (they are then about eight times larger).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        action_spec: str | ActionSpec = PUBLISHED_BRIDGE,
        lossless: bool = False,
    ):
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.action_spec = get_spec(action_spec)
        self.lossless = lossless
        self._names = {file.stem for file in self.path.glob("*.npz") if not file.name.startswith(".")}

    def __len__(self) -> int:
        """Number of complete clips in the folder."""
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        """Whether a clip of this name is complete."""
        return name in self._names

    def append(self, episode: Episode, *, name: str | None = None) -> Path:
        """Write one episode, unless a clip of its name is already there.

        Args:
            episode: What to write.
            name: Name of the clip; the next free number of nine digits if None.

        Returns:
            Path of the npz.

        Raises:
            InvalidAction: If an action cannot be converted to the folder's convention.
            DataError: If the name is no plain file name, or the metadata is not something json can hold.
        """
        name = self._next_name() if name is None else name
        target = self.path / f"{name}.npz"
        if not name or name.startswith(".") or target.parent != self.path or target.stem != name:
            raise DataError(f"a clip's name must be a plain file name without a suffix, got {name!r}")
        if name in self:
            return target
        record = self._record(episode)
        write_video(self.path / f"{name}.mp4", episode.frames, fps=episode.fps, lossless=self.lossless)
        with atomic_path(target) as unfinished:
            np.savez_compressed(unfinished, **record)
        self._names.add(name)
        return target

    def _next_name(self) -> str:
        numbers = [int(name) for name in self._names if name.isdecimal()]
        return f"{max(numbers, default=-1) + 1:09d}"

    def _record(self, episode: Episode) -> dict[str, Any]:
        spec = self.action_spec
        actions = convert(episode.actions, episode.action_spec, spec)
        last = np.zeros((1, spec.dims), np.float32)  # nothing moves after the last frame; the gripper stays
        if len(actions) and spec.gripper_open is not None:
            gripper = spec.columns(["gripper"])
            last[0, gripper] = actions[-1, gripper]
        record: dict[str, Any] = {"arr_0": np.concatenate([actions, last])}
        values = {key: getattr(episode, key) for key in _TRUTH} | {"action_spec": spec.name}
        try:
            values["metadata"] = json.dumps(episode.metadata) if episode.metadata else None
        except TypeError as error:
            raise DataError(f"an episode's metadata must be something json can hold: {error}") from error
        record.update({key: np.asarray(value) for key, value in values.items() if value is not None})
        return record


# Keys of an npz, beside arr_0, that are fields of an Episode, and how each is read.
_TRUTH: dict[str, Any] = {
    "success": bool,
    "progress": float,
    "task": str,
    "trial": str,
    "instruction": str,
    "seed": int,
    "family": str,
    "fps": float,
    "action_spec": str,
    "metadata": json.loads,
}


def summary(skipped: list[Skipped], *, most: int = 5) -> str:
    """How many were left out, with the first few reasons, to end a message with; empty if none was."""
    if not skipped:
        return ""
    reasons = "; ".join(entry.reason for entry in skipped[:most])
    more = f"; and {len(skipped) - most} more" if len(skipped) > most else ""
    return f": {len(skipped)} were left out: {reasons}{more}"


def _read_npz(path: Path) -> dict[str, Any]:
    """``arr_0`` as it is and the known other keys as Python values."""
    if not path.is_file():
        raise DataError(f"{path} is missing: a clip is an mp4 and an npz of one name")
    try:
        # opened here, because np.load leaves the file open if it is no zip archive
        with open(path, "rb") as file, np.load(file) as arrays:
            if "arr_0" not in arrays:
                raise DataError(f"{path} has no arr_0, it has {sorted(arrays)}")
            record: dict[str, Any] = {"arr_0": arrays["arr_0"]}
            record.update({key: read(arrays[key].item()) for key, read in _TRUTH.items() if key in arrays})
            return record
    except (
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as an npz: {error}") from error
