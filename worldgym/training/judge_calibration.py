"""What a trained judge's scores mean: probabilities, and from where on it says success.

What is here:
    * ``watch``: the scores of held-out clips, at the moments at which an environment asks.
    * ``fit_probability``: Platt's scale and bias for the logits.
    * ``choose_threshold``: the least threshold that calls few failed episodes a success.
    * ``calibration_error``: how far probabilities are from frequencies.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from worldgym.judges.network import JudgeNetwork
from worldgym.training.judge_batches import gather
from worldgym.training.judge_data import JudgeClips

EVERY = 5
"""Frames between two questions, as ``VLMTermination`` asks by default."""
_MEMORY = 16
"""Clips that are watched at once."""


@dataclass(frozen=True)
class Watched:
    """What a judge says of a clip about its own task, at each question.

    Attributes:
        logits: (Q,) of success.
        progress: (Q,) in [0, 1].
        success: (Q,) the truth; NaN where not known.
        ever: Whether the clip was a success at any frame.
    """

    logits: npt.NDArray[np.float64]
    progress: npt.NDArray[np.float64]
    success: npt.NDArray[np.float64]
    ever: bool

    def chances(self, scale: float, bias: float) -> npt.NDArray[np.float64]:
        """(Q,) calibrated probabilities of success."""
        return np.asarray(1 / (1 + np.exp(-np.clip(scale * self.logits + bias, -30, 30))))

    def largest(self, scale: float, bias: float) -> float:
        """The largest of ``chances``: what decides about the episode."""
        return float(self.chances(scale, bias).max())


def watch(network: JudgeNetwork, clips: JudgeClips, chosen: Iterable[int]) -> list[Watched]:
    """Ask about chosen clips every ``EVERY`` frames and at their end."""
    found, numbers = [], np.array(list(chosen), np.int64)
    device = next(network.parameters()).device
    for first in range(0, len(numbers), _MEMORY):
        part = numbers[first : first + _MEMORY]
        ends = [_questions(int(clips.begin[clip + 1] - clips.begin[clip])) for clip in part]
        batch = gather(clips, part, ends)[0].to(device)
        own = np.repeat(clips.own[part], [len(at) for at in ends])
        with torch.no_grad():
            _, logits = network(batch.pixels, batch.pick, torch.from_numpy(own)[:, None].to(device))
        said = logits[:, 0].double().cpu().numpy()
        true = batch.truths[np.arange(len(own)), own, 0].double().cpu().numpy()
        splits = np.cumsum([len(at) for at in ends])[:-1]
        for clip, answers, truth in zip(part, np.split(said, splits), np.split(true, splits), strict=True):
            all_of_it = clips.truths[clips.begin[clip] : clips.begin[clip + 1], clips.own[clip], 0]
            progress = 1 / (1 + np.exp(-answers[:, 1]))
            found.append(Watched(answers[:, 0], progress, truth, bool(np.nanmax(all_of_it) > 0.5)))
    return found


def fit_probability(watched: Iterable[Watched], *, steps: int = 50) -> tuple[float, float]:
    """Scale and bias with which the logits are the log-odds of success (Platt 1999), by Newton's method.

    The targets are his smoothed ones, so that a judge without a mistake keeps a finite scale.
    """
    logits, truth = _known(watched)
    positive, negative = float(truth.sum()), float((1 - truth).sum())
    if not positive or not negative:
        return 1.0, 0.0
    target = np.where(truth > 0.5, (positive + 1) / (positive + 2), 1 / (negative + 2))
    inputs = np.stack([logits, np.ones_like(logits)], axis=1)
    weights = np.array([1.0, 0.0])
    for _ in range(steps):
        chance = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
        slope = inputs.T @ (chance - target) + 1e-3 * (weights - [1.0, 0.0])
        curvature = (inputs.T * (chance * (1 - chance))) @ inputs + 1e-3 * np.eye(2)
        weights = weights - np.clip(np.linalg.solve(curvature, slope), -1, 1)
    return float(max(weights[0], 0.05)), float(weights[1])


def choose_threshold(chances: Iterable[float], ever: Iterable[bool], *, most: float) -> float:
    """The least threshold, at least one half, at which the share of failures called a success is ``most``.

    Args:
        chances: The largest probability of success that was said about each episode.
        ever: Whether it was one.
        most: Largest false positive rate.
    """
    failed = sorted(chance for chance, success in zip(chances, ever, strict=True) if not success)
    allowed = int(most * len(failed))
    if not failed or allowed >= len(failed):
        return 0.5
    bound = failed[len(failed) - 1 - allowed]
    return float(min(max(0.5, np.nextafter(bound, 1.0)), 1.0))


def calibration_error(chances: npt.ArrayLike, truths: npt.ArrayLike, *, bins: int = 10) -> float:
    """Expected calibration error (Naeini 2015): mean gap of probability and frequency over equal bins."""
    chance, truth = np.asarray(chances, np.float64), np.asarray(truths, np.float64)
    number = np.minimum((chance * bins).astype(int), bins - 1)
    gaps = [abs(float((chance - truth)[number == n].sum())) for n in range(bins)]
    return float(sum(gaps) / max(1, len(chance)))


def _known(watched: Iterable[Watched]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Logits and truths of the questions whose truth is known."""
    seen = list(watched)
    logits = np.concatenate([clip.logits for clip in seen])
    truth = np.concatenate([clip.success for clip in seen])
    return logits[~np.isnan(truth)], truth[~np.isnan(truth)]


def _questions(length: int) -> npt.NDArray[np.int64]:
    return np.unique([*range(EVERY, length, EVERY), length - 1]).astype(np.int64)
