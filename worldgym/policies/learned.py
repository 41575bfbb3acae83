"""``LearnedPolicy``: a small network from a folder as a policy, alone or with noise.

What is here:
    * ``LearnedPolicy``: acts from the newest frame and the instruction.
    * ``PolicyConfig``, ``save_policy``, ``LearnedPolicy.load``: the folder, ``policy.json`` and
      ``model.safetensors``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from worldgym.actions import ENV_SPEC
from worldgym.errors import CheckpointError, CheckpointNotFound, InvalidConfig
from worldgym.policies.network import GRIPPER_LEVELS, PolicyNetwork
from worldgym.policies.noise import noisy
from worldgym.policies.palette import FORM
from worldgym.policies.protocol import RowEpisode, RowPolicy
from worldgym.policies.wordings import Wordings
from worldgym.video import atomic_path

CONFIG_FILE = "policy.json"
WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True)
class PolicyConfig:
    """What a policy folder holds beside the weights.

    Attributes:
        wordings: The tasks it has learned.
        palette: The colours that it tells apart, each from 0 to 255.
        hidden: Width of its network.
        trained: How it was made; for the reader.
    """

    wordings: Wordings
    palette: tuple[tuple[int, ...], ...]
    hidden: int = 256
    trained: Mapping[str, Any] = field(default_factory=dict)

    def network(self) -> PolicyNetwork:
        """A network of this form with fresh weights."""
        return PolicyNetwork(self.wordings, self.palette, hidden=self.hidden)

    def as_dict(self) -> dict[str, Any]:
        """The configuration as values that json can hold."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {"wordings": self.wordings.as_list(), "palette": [list(c) for c in self.palette]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PolicyConfig:
        """The inverse of ``as_dict``.

        Raises:
            CheckpointError: If a field is missing or unknown.
        """
        try:
            wordings = Wordings.from_list(values["wordings"])
            palette = tuple(tuple(int(level) for level in colour) for colour in values["palette"])
            return cls(**{**values, "wordings": wordings, "palette": palette})
        except (TypeError, KeyError) as error:
            raise CheckpointError(f"{CONFIG_FILE} does not describe a policy: {error!r}") from error


class LearnedPolicy(RowPolicy):
    """A network as a policy in the environment's convention.

    It remembers nothing: an answer depends on the newest frame and the instruction, with noise also on the
    row's seed and the number of frames seen. Frames of other sizes are resized to 64x64.

    Args:
        network: The network; it is put into evaluation mode.
        config: What belongs to it.
        name: A name for tables.
        noise: Standard deviation of noise on every action; see ``worldgym.policies.noise``.

    Raises:
        InvalidConfig: If ``noise`` is negative.
    """

    def __init__(
        self, network: PolicyNetwork, config: PolicyConfig, *, name: str = "learned", noise: float = 0.0
    ) -> None:
        super().__init__(name, ENV_SPEC, images=FORM)
        if not noise >= 0:
            raise InvalidConfig(f"noise must not be negative, got {noise}")
        self.config = config
        self.noise = noise
        self.stateless = noise == 0
        self._network = network.eval()

    @classmethod
    def load(
        cls, folder: str | Path, *, name: str | None = None, noise: float = 0.0, device: str = "cpu"
    ) -> LearnedPolicy:
        """The policy in a folder.

        Raises:
            CheckpointNotFound: If there is none.
            CheckpointError: If it cannot be read.
        """
        folder = Path(folder)
        config = read_config(folder)
        network = config.network()
        try:
            weights = load_file(folder / WEIGHTS_FILE)
            network.load_state_dict({key: value.float() for key, value in weights.items()})
        except (OSError, SafetensorError, RuntimeError) as error:
            raise CheckpointError(f"{folder / WEIGHTS_FILE} does not hold the policy: {error}") from error
        return cls(network.to(device), config, name=name or folder.name, noise=noise)

    def _start(self, episode: RowEpisode) -> None:
        episode.memory["task"] = self.config.wordings.find(episode.instruction)

    def _answer(self, episode: RowEpisode, frame: npt.NDArray[np.uint8]) -> npt.ArrayLike:
        device = next(self._network.parameters()).device
        with torch.inference_mode():
            task = torch.tensor([episode.memory["task"]], device=device)
            looks = self._network.look(torch.from_numpy(frame)[None].to(device))
            motion, gripper, _ = self._network(looks, task)
        action = np.append(motion[0].cpu().numpy(), GRIPPER_LEVELS[int(gripper[0].argmax())])
        if self.noise:
            action = noisy(action, self.noise, np.random.default_rng(episode.noise_seed()))
        return np.clip(action, -1, 1)


def save_policy(folder: str | Path, network: PolicyNetwork, config: PolicyConfig) -> Path:
    """Write a policy folder; weights are kept in half precision."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {key: value.cpu().half().contiguous() for key, value in network.state_dict().items()}
    with atomic_path(folder / WEIGHTS_FILE) as target:
        save_file(weights, target)
        target.chmod(0o644)
    with atomic_path(folder / CONFIG_FILE) as target:
        target.write_text(json.dumps(config.as_dict(), indent=1) + "\n")
    return folder


def read_config(folder: Path) -> PolicyConfig:
    """What a policy folder says about itself.

    Raises:
        CheckpointNotFound: If there is no policy.
        CheckpointError: If its configuration cannot be read.
    """
    path = folder / CONFIG_FILE
    if not path.is_file() or not (folder / WEIGHTS_FILE).is_file():
        raise CheckpointNotFound(f"{folder} holds no policy: expected {CONFIG_FILE} and {WEIGHTS_FILE}")
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as json: {error}") from error
    return PolicyConfig.from_dict(values)
