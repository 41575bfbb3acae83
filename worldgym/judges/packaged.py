"""The packaged judge: a small video network that needs neither a network connection nor a GPU.

What is here:
    * ``PackagedJudge``: verdicts of a judge folder, by default the one that comes with the package.
    * ``JudgeConfig``: what is beside the weights: tasks, calibration, threshold.
    * ``save_judge``, ``load_network``: the folder format, ``judge.json`` and ``model.safetensors``.

It knows the tasks and wordings in its vocabulary. An instruction that it does not know is unscored.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from worldgym.episode import Outcome, Verdict
from worldgym.errors import CheckpointError, CheckpointNotFound
from worldgym.judges.network import FRAME_SIZE, JudgeNetwork, moments, to_pixels
from worldgym.judges.protocol import Clip, Rubric, unscored
from worldgym.judges.vocabulary import KnownTask, Vocabulary, plain
from worldgym.video import atomic_path, resize

PACKAGED_JUDGE = Path(__file__).parents[1] / "weights" / "judge"
CONFIG_FILE = "judge.json"
WEIGHTS_FILE = "model.safetensors"
_AT_ONCE = 64
"""Clips that are judged in one batch; bounds the memory."""


@dataclass(frozen=True)
class JudgeConfig:
    """What a judge folder holds beside the weights.

    Attributes:
        vocabulary: The tasks it knows.
        widths: Channels of the network; see ``JudgeNetwork``.
        hidden: Width of its decision.
        scale: The calibrated logit of success is ``scale`` times the network's plus ``bias``.
        bias: See there.
        threshold: Least probability of a success, chosen on held-out videos.
        trained: How it was made and what was measured; for the reader.
    """

    vocabulary: Vocabulary
    widths: tuple[int, ...] = (48, 64)
    hidden: int = 192
    scale: float = 1.0
    bias: float = 0.0
    threshold: float = 0.5
    trained: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The configuration as values that json can hold."""
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return values | {"vocabulary": self.vocabulary.as_list(), "widths": list(self.widths)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> JudgeConfig:
        """The inverse of ``as_dict``.

        Raises:
            CheckpointError: If a field is missing or unknown.
        """
        try:
            vocabulary = Vocabulary.from_list(values["vocabulary"])
            return cls(**{**values, "vocabulary": vocabulary, "widths": tuple(values["widths"])})
        except (TypeError, KeyError) as error:
            raise CheckpointError(f"{CONFIG_FILE} does not describe a judge: {error!r}") from error


class PackagedJudge:
    """Judges clips with a network from a folder; it is loaded at the first question.

    A verdict's score is the calibrated probability of success under ``Rubric.SUCCESS``, the grade (0, 0.5 or
    1) under ``Rubric.PARTIAL``, and the progress under ``Rubric.PROGRESS``; the outcome is a success if the
    probability reaches the threshold, under every rubric. Unscored are instructions that are not in the
    vocabulary, and criteria for partial credit that are not those of their task.

    Args:
        folder: The judge folder; None for the packaged one.

    Raises:
        CheckpointNotFound: If there is no judge in the folder.
        CheckpointError: If its configuration is broken.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder = PACKAGED_JUDGE if folder is None else Path(folder)
        self.config = read_config(self.folder)
        content = b"".join((self.folder / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE))
        self._identity = f"packaged:{hashlib.sha256(content).hexdigest()[:12]}"
        self._network: JudgeNetwork | None = None

    @property
    def identity(self) -> str:
        """Contains a hash of weights and configuration."""
        return self._identity

    def judge(self, clips: Sequence[Clip]) -> list[Verdict]:
        """One verdict per clip.

        Raises:
            CheckpointError: If the weights cannot be used.
        """
        tasks = [self.config.vocabulary.find(clip.instruction) for clip in clips]
        known = [number for number, task in enumerate(tasks) if task is not None]
        verdicts = [self._unknown(clip) for clip in clips]
        for first in range(0, len(known), _AT_ONCE):
            part = known[first : first + _AT_ONCE]
            for number, verdict in zip(part, self._answer([clips[n] for n in part]), strict=True):
                verdicts[number] = verdict
        return verdicts

    def close(self) -> None:
        """Drop the network; it is loaded again when needed."""
        self._network = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_network": None}

    def _unknown(self, clip: Clip) -> Verdict:
        known = len(self.config.vocabulary)
        reason = f"the packaged judge knows the wordings of {known} tasks, not {clip.instruction!r}"
        return unscored(reason, judge=self.identity, seconds=0.0)

    def _answer(self, clips: Sequence[Clip]) -> list[Verdict]:
        """Verdicts on clips whose instructions are known."""
        started = time.perf_counter()
        tasks = [self.config.vocabulary.find(clip.instruction) or 0 for clip in clips]
        chosen = [moments(clip.frame_indices, clip.fps) for clip in clips]
        if self._network is None:
            self._network = load_network(self.folder, self.config)
        chances, progress = self._look(clips, chosen, tasks)
        seconds = (time.perf_counter() - started) / len(clips)
        return [
            self._verdict(
                clip,
                self.config.vocabulary.tasks[tasks[number]],
                float(chances[number]),
                float(progress[number]),
                seconds=seconds,
                frame_indices=tuple(clip.frame_indices[place] for place in sorted(set(chosen[number]))),
            )
            for number, clip in enumerate(clips)
        ]

    def _look(
        self, clips: Sequence[Clip], chosen: Sequence[Sequence[int]], tasks: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Calibrated chance of success and progress of each clip (E,); each frame is looked at once."""
        frames: list[npt.NDArray[np.uint8]] = []
        pick = []
        for clip, places in zip(clips, chosen, strict=True):
            unique = sorted(set(places))
            pick.append([len(frames) + unique.index(place) for place in places])
            frames.extend(resize(clip.frames[unique], (FRAME_SIZE, FRAME_SIZE)))
        assert self._network is not None
        with torch.inference_mode():
            _, logits = self._network(
                to_pixels(torch.from_numpy(np.stack(frames))),
                torch.tensor(pick),
                torch.tensor(tasks)[:, None],
            )
            success = torch.sigmoid(self.config.scale * logits[:, 0, 0] + self.config.bias)
            return success, torch.sigmoid(logits[:, 0, 1])

    def _verdict(
        self, clip: Clip, task: KnownTask, chance: float, progress: float, **details: Any
    ) -> Verdict:
        details["judge"] = self.identity
        solved = chance >= self.config.threshold
        reason = f"{task.key}: success {chance:.2f}, progress {progress:.2f}"
        score = chance
        if clip.rubric is Rubric.PROGRESS:
            score = progress
        elif clip.rubric is Rubric.PARTIAL:
            if task.criteria is None or plain(clip.criteria or "") != plain(task.criteria):
                known = f"for {task.key} it knows the criterion {task.criteria!r}, not {clip.criteria!r}"
                return unscored(known, **details)
            score = 1.0 if solved else 0.5 * (progress >= task.half_from)
        outcome = Outcome.SUCCESS if solved else Outcome.FAILURE
        return Verdict(outcome, score=score, reason=reason, **details)


def read_config(folder: Path) -> JudgeConfig:
    """The configuration in a judge folder.

    Raises:
        CheckpointNotFound: If there is no judge.
        CheckpointError: If it cannot be read.
    """
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if not (folder / name).is_file()]
    if missing:
        raise CheckpointNotFound(f"expected a judge ({CONFIG_FILE} and {WEIGHTS_FILE}) in {folder}")
    try:
        return JudgeConfig.from_dict(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{folder / CONFIG_FILE} cannot be read as json: {error}") from error


def load_network(folder: Path, config: JudgeConfig) -> JudgeNetwork:
    """The network in a judge folder, ready to judge.

    Raises:
        CheckpointError: If the weights cannot be read, or do not fit the configuration.
    """
    network = JudgeNetwork(config.vocabulary, widths=config.widths, hidden=config.hidden)
    try:
        network.load_state_dict(load_file(folder / WEIGHTS_FILE))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise CheckpointError(f"{folder / WEIGHTS_FILE} does not fit its judge: {error}") from error
    return network.eval().requires_grad_(False)


def save_judge(network: JudgeNetwork, config: JudgeConfig, folder: str | Path) -> Path:
    """Write a judge folder, readable by everybody."""
    folder = Path(folder)
    weights = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    with atomic_path(folder / WEIGHTS_FILE) as target:
        save_file(weights, target)
        target.chmod(0o644)  # safetensors creates files that only their owner can read
    with atomic_path(folder / CONFIG_FILE) as target:
        target.write_text(json.dumps(config.as_dict(), indent=1) + "\n", encoding="utf-8")
    return folder
