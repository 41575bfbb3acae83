"""The trained inverse dynamics head and its folder.

What is here:
    * ``InverseHead``: reads actions back from frames; loaded from a folder, by default the packaged one.
    * ``InverseConfig``: what is beside the weights.
    * ``save_head``: the folder format: ``inverse.json``, ``model.safetensors`` (float16) and
      ``calibration.safetensors`` (how far the head is off in episodes it was not trained on).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from worldgym.actions import get_spec
from worldgym.errors import CheckpointError, CheckpointNotFound, InvalidConfig
from worldgym.models.inverse import FRAME_SIZE, InverseNetwork, to_window
from worldgym.video import atomic_path, resize

PACKAGED_HEAD = Path(__file__).parents[1] / "weights" / "inverse"
CONFIG_FILE = "inverse.json"
WEIGHTS_FILE = "model.safetensors"
CALIBRATION_FILE = "calibration.safetensors"
_AT_ONCE = 256
"""Windows that are read in one batch; bounds the memory."""


@dataclass(frozen=True)
class InverseConfig:
    """What a head's folder holds beside the weights.

    Attributes:
        action_spec: Convention of the actions that it reads.
        frames: Frames in a window: those before the action, and the one that it causes.
        widths: Channels of the network; see ``InverseNetwork``.
        hidden: Width of its decision.
        weights: How much each number of an action counts: 1 where the head reads it without a mistake, 0
            where it does no better than ``usual``. Empty: all alike.
        usual: The usual action. Empty: zeros.
        trained: How it was made and what was measured; for the reader.
    """

    action_spec: str = "worldgym"
    frames: int = 3
    widths: tuple[int, ...] = (32, 48, 64)
    hidden: int = 192
    weights: tuple[float, ...] = ()
    usual: tuple[float, ...] = ()
    trained: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.frames < 2:
            raise InvalidConfig(f"a window needs at least 2 frames, got {self.frames}")
        if len(self.widths) != 3 or any(width < 8 or width % 8 for width in self.widths):
            raise InvalidConfig(f"widths must be three multiples of 8, got {self.widths}")
        dims = get_spec(self.action_spec).dims
        for name, values in (("weights", self.weights), ("usual", self.usual)):
            if values and len(values) != dims:
                raise InvalidConfig(f"{name} must be {dims} numbers, one per component, got {values}")
        if self.weights and (min(self.weights) < 0 or not sum(self.weights) > 0):
            raise InvalidConfig(f"weights must be from 0 on, and one above, got {self.weights}")

    def network(self) -> InverseNetwork:
        """A network of this form with random weights."""
        dims = get_spec(self.action_spec).dims
        return InverseNetwork(frames=self.frames, actions=dims, widths=self.widths, hidden=self.hidden)


class InverseHead:
    """Reads the action back from frames. The network is loaded at the first reading.

    Args:
        folder: Folder of the head; None for the packaged one.
        device: Torch device that it runs on.

    Attributes:
        config: What the folder says.
        calibration: float32 (E, T, 2) ``compare`` at each frame after the first, of E episodes that were not
            trained on; NaN after the end of an episode.

    Raises:
        CheckpointNotFound: If there is no head in the folder.
        CheckpointError: If it cannot be read.
    """

    def __init__(self, folder: str | Path | None = None, *, device: str = "cpu") -> None:
        self.folder = PACKAGED_HEAD if folder is None else Path(folder)
        self.device = device
        self.config = _read_config(self.folder)
        self.calibration = _read_calibration(self.folder)
        self._network: InverseNetwork | None = None

    def read(self, windows: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The action between the last two frames of each window, and the error to expect of it.

        Args:
            windows: uint8 (B, frames, H, W, 3), the oldest frame first; other sizes than 64x64 are resized.
                Where an episode has no earlier frames, its first one is repeated.

        Returns:
            Actions and errors, float32 (B, A) each, in ``config.action_spec``. Rounded to 1/1024: the same
            window gives the same answer in batches of any size.

        Raises:
            InvalidConfig: If the windows have another shape.
            CheckpointError: If the weights cannot be used.
        """
        if windows.dtype != np.uint8 or windows.ndim != 5 or windows.shape[1] != self.config.frames:
            raise InvalidConfig(
                f"expected windows uint8 (B, {self.config.frames}, H, W, 3), got {windows.dtype} "
                f"{windows.shape}"
            )
        if self._network is None:
            self._network = _load_network(self.folder, self.config).to(self.device)
        small = fit(windows)
        parts = []
        with torch.inference_mode():
            for first in range(0, len(small), _AT_ONCE):
                window = torch.from_numpy(small[first : first + _AT_ONCE]).to(self.device)
                parts.append(torch.stack(self._network(to_window(window))).cpu().numpy())
        if not parts:
            nothing = np.zeros((0, get_spec(self.config.action_spec).dims), np.float32)
            return nothing, nothing.copy()
        action, error = np.round(np.concatenate(parts, axis=1) * 1024) / 1024
        return action, np.maximum(error, 1 / 1024)

    def read_episode(
        self, frames: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """All T-1 actions of an episode of T frames; see ``read``."""
        return self.read(windows_of(fit(frames), self.config.frames))

    def compare(
        self,
        requested: npt.NDArray[np.float32],
        action: npt.NDArray[np.float32],
        error: npt.NDArray[np.float32],
    ) -> npt.NDArray[np.float32]:
        """How much was missed, and how much was asked for, in units of the errors that are to be expected.

        Args:
            requested: (..., A) in ``config.action_spec``.
            action: (..., A) as read.
            error: (..., A) to be expected.

        Returns:
            (..., 2): the weighted means, over the components, of |requested - read| / error and of
            |requested - usual| / error.
        """
        weights = np.asarray(self.config.weights or np.ones(requested.shape[-1]), np.float32)
        usual = np.asarray(self.config.usual or np.zeros(requested.shape[-1]), np.float32)
        missed, asked = np.abs(requested - action) / error, np.abs(requested - usual) / error
        both = np.stack([missed @ weights, asked @ weights], axis=-1) / weights.sum()
        return both.astype(np.float32)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_network": None}


def windows_of(frames: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """The window (T-1, size, H, W, 3) that ends with each frame but the first of an episode (T, H, W, 3)."""
    ends = np.arange(1, len(frames))
    picks: npt.NDArray[np.uint8] = frames[np.maximum(ends[:, None] + np.arange(1 - size, 1), 0)]
    return picks


def fit(frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Frames (..., H, W, 3) in the size that the network takes."""
    size = (FRAME_SIZE, FRAME_SIZE)
    return frames if frames.shape[-3:-1] == size else resize(frames, size)


def disagreement(compared: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What part of the requested actions is not seen in some frames.

    Args:
        compared: (..., W, 2) ``InverseHead.compare`` of W frames.

    Returns:
        (...) sum of what was missed / (sum of what was asked for + W): near 0 where a world obeys, about 1
        where its frames tell nothing of the actions, more where they show others. The W in the denominator
        is one expected error per frame, so that frames in which nothing is asked for count little.
    """
    missed, asked = compared.astype(np.float64).sum(-2).T
    return np.asarray((missed / (asked + compared.shape[-2])).T)


def save_head(
    network: torch.nn.Module,
    config: InverseConfig,
    calibration: npt.NDArray[np.float32],
    folder: str | Path,
) -> Path:
    """Write the folder of a head, readable by everybody."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.detach().cpu().half().contiguous() for key, value in network.state_dict().items()}
    with atomic_path(folder / WEIGHTS_FILE) as target:
        save_file(weights, target)
        target.chmod(0o644)  # safetensors creates files that only their owner can read
    with atomic_path(folder / CALIBRATION_FILE) as target:
        save_arrays({"compared": calibration.astype(np.float16)}, target)
        target.chmod(0o644)
    values = {entry.name: getattr(config, entry.name) for entry in fields(config)}
    with atomic_path(folder / CONFIG_FILE) as target:
        target.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return folder


def _read_config(folder: Path) -> InverseConfig:
    files = (CONFIG_FILE, WEIGHTS_FILE, CALIBRATION_FILE)
    if missing := [name for name in files if not (folder / name).is_file()]:
        raise CheckpointNotFound(f"expected an inverse dynamics head in {folder}; it has no {missing}")
    try:
        values = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        lists = {name: tuple(values[name]) for name in ("widths", "weights", "usual")}
        config = InverseConfig(**{**values, **lists})
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{folder / CONFIG_FILE} does not describe a head: {error}") from error
    return config


def _read_calibration(folder: Path) -> npt.NDArray[np.float32]:
    try:
        found = load_arrays(folder / CALIBRATION_FILE)["compared"]
    except (SafetensorError, OSError, KeyError) as error:
        raise CheckpointError(f"{folder / CALIBRATION_FILE} holds no calibration: {error}") from error
    if found.ndim != 3 or found.shape[-1] != 2:
        raise CheckpointError(f"{folder / CALIBRATION_FILE} must hold (E, T, 2) numbers, got {found.shape}")
    return found.astype(np.float32)


def _load_network(folder: Path, config: InverseConfig) -> InverseNetwork:
    network = config.network()
    try:
        network.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(f"{folder / WEIGHTS_FILE} does not fit its head: {error}") from error
    return network.eval().requires_grad_(False)


__all__ = [
    "PACKAGED_HEAD",
    "InverseConfig",
    "InverseHead",
    "disagreement",
    "fit",
    "save_head",
    "windows_of",
]
