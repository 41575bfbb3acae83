"""``ReplayPolicy``: recorded plans, recognised by the first picture and played with closed eyes.

What is here:
    * ``Plans``: the actions recorded from every start scene of a suite; ``load``, ``save``.
    * ``ReplayPolicy``: plays them.

A script cannot look into a learned world, so what it did in the twin is recorded once per start scene. Played
from the same scene in the twin, a plan does exactly what it did when it was recorded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from worldgym.actions import ENV_SPEC
from worldgym.errors import CheckpointError, CheckpointNotFound, InvalidConfig
from worldgym.policies.images import ImageForm, prepare
from worldgym.policies.protocol import RowEpisode, RowPolicy
from worldgym.policies.wordings import AskedTask, Wordings
from worldgym.tasks import TaskSuite
from worldgym.video import atomic_path

_SIZE = 32
"""Height and width at which pictures are compared."""


@dataclass(frozen=True)
class Plans:
    """Actions from start scenes.

    Attributes:
        trials: Key of each start scene, ``task/name``.
        actions: float16 (P, T, 7) in ``worldgym.actions.ENV_SPEC``, which a plan was played with.
    """

    trials: tuple[str, ...]
    actions: npt.NDArray[np.float16]

    def __post_init__(self) -> None:
        if self.actions.shape != (len(self.trials), *self.actions.shape[1:2], ENV_SPEC.dims):
            raise InvalidConfig(
                f"{len(self.trials)} plans need actions (P, T, {ENV_SPEC.dims}), got {self.actions.shape}"
            )

    @classmethod
    def load(cls, path: Path) -> Plans:
        """The plans in a file of safetensors.

        Raises:
            CheckpointNotFound: If there is none.
            CheckpointError: If it cannot be read.
        """
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise CheckpointNotFound(f"there are no plans in {path}")
        try:
            with safe_open(path, framework="np") as stored:
                trials = json.loads(stored.metadata()["trials"])
                return cls(tuple(trials), stored.get_tensor("actions"))
        except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{path} does not hold plans: {error!r}") from error

    def save(self, path: Path) -> Path:
        """Write them."""
        from safetensors.numpy import save_file

        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as target:
            save_file({"actions": self.actions}, target, {"trials": json.dumps(self.trials)})
            target.chmod(0o644)
        return path


class ReplayPolicy(RowPolicy):
    """Plays the plan of the start scene whose picture is most like its first frame, then stands still.

    Only start scenes of the task that the instruction asks for are looked at (the task whose words are most
    like it). A start scene that has no plan is taken for the one that looks most like it.

    Args:
        plans: The plans.
        suite: Where their start scenes are.
        blind: Always play the plan of the task's first start scene.
        name: A name for tables.

    Raises:
        TrialError: If the suite lacks a plan's start scene.
    """

    stateless = False

    def __init__(self, plans: Plans, suite: TaskSuite, *, blind: bool = False, name: str = "replay") -> None:
        super().__init__(name, ENV_SPEC, images=ImageForm(_SIZE, _SIZE, filter="area"))
        self.plans = plans
        self._blind = blind
        self._numbers: dict[str, list[int]] = {}
        for number, key in enumerate(plans.trials):
            self._numbers.setdefault(key.rpartition("/")[0], []).append(number)
        self._trials = [suite.get(*key.rsplit("/", 1)) for key in plans.trials]
        self._pictures: dict[str, npt.NDArray[np.float32]] = {}
        self._wordings = Wordings(
            # what is done to what does not matter here, only the words do
            AskedTask(task, task, task, None, self._trials[numbers[0]].instructions)
            for task, numbers in self._numbers.items()
        )

    def _start(self, episode: RowEpisode) -> None:
        episode.memory["task"] = self._wordings.tasks[self._wordings.find(episode.instruction)].key

    def _see(self, episode: RowEpisode, frame: npt.NDArray[np.uint8]) -> None:
        if episode.frames_seen == 0:
            episode.memory["plan"] = self._recognise(episode.memory["task"], frame)

    def _answer(self, episode: RowEpisode, frame: npt.NDArray[np.uint8]) -> npt.ArrayLike:
        self._see(episode, frame)
        actions = self.plans.actions[episode.memory["plan"]]
        if episode.frames_seen < len(actions):
            return actions[episode.frames_seen]
        return np.append(np.zeros(6), actions[-1, 6:])

    def _recognise(self, task: str, frame: npt.NDArray[np.uint8]) -> int:
        """Number of the plan for a prepared first frame."""
        numbers = self._numbers[task]
        if self._blind:
            return numbers[0]
        if task not in self._pictures:
            self._pictures[task] = self._look(numbers)
        difference = np.abs(self._pictures[task] - frame.astype(np.float32)).mean((1, 2, 3))
        return numbers[int(difference.argmin())]

    def _look(self, numbers: Sequence[int]) -> npt.NDArray[np.float32]:
        assert self.images is not None
        frames = [prepare(self._trials[number].load_frame(), self.images) for number in numbers]
        return np.stack(frames).astype(np.float32)
