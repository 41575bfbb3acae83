"""The arithmetic of ``fidelity.py``: pictures, positions, things that vanish or multiply, and outcomes.

What is here:
    * ``picture_scores``: PSNR, SSIM and a perceptual distance of videos against the truth.
    * ``position_errors``: how far gripper and things are from where the twin has them.
    * ``vanished`` and ``multiplied``: whether a rollout has lost a thing, or has one too many.
    * ``Outcomes``: two lists of outcomes beside each other: confusion table and balanced accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from probe import Probe, Reading
from probe_frames import PLAIN, SIZE, Label

from worldgym.episode import Outcome
from worldgym.evaluation.estimate import Estimate, undefined
from worldgym.evaluation.judge_quality import judge_quality
from worldgym.video import psnr, ssim

Frames = npt.NDArray[np.uint8]
Array = npt.NDArray[np.float64]
CLEAR = 0.4
"""Part of its largest area in an episode from which a thing counts as in plain sight."""
LASTING = 3
"""Frames in a row for which a thing must be missing, or there twice, to count as vanished or multiplied."""
MOVED = 2.0
"""Pixels from its first place from which a thing counts as moved."""
BEST = 60.0
"""PSNR in dB at which equal frames are counted."""


def picture_scores(probe: Probe, frames: Frames, truth: Frames) -> dict[str, float]:
    """Means over frames (N, H, W, 3): ``psnr`` in dB, ``ssim``, and ``perceptual``."""
    return {
        "psnr": float(np.minimum(psnr(frames, truth), BEST).mean()),
        "ssim": float(ssim(frames, truth).mean()),
        "perceptual": float(perceptual_distance(probe, frames, truth).mean()),
    }


def perceptual_distance(probe: Probe, frames: Frames, truth: Frames) -> Array:
    """Distance (N,) in the probe's inner maps, computed as LPIPS is (Zhang et al., 2018) without its weights.

    Maps are normalised over channels at each place, squared differences summed over channels, averaged over
    places and over two layers. 0 for equal frames. No figure of LPIPS proper compares with it.
    """
    total = torch.zeros(len(frames))
    layers = list(zip(probe.features(frames), probe.features(truth), strict=True))
    for one, other in layers:
        one, other = (torch.nn.functional.normalize(maps, dim=1) for maps in (one, other))
        total += (one - other).square().sum(1).mean((1, 2))
    return np.asarray((total / len(layers)).double().numpy())


def in_plain_sight(labels: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Which things the twin shows clearly, bool (T, sights), from an episode's labels (T, sights, labels)."""
    area = np.nan_to_num(labels[..., Label.PIXELS])
    return (area >= 2 * PLAIN) & (area >= CLEAR * area.max(axis=0))


def position_errors(reading: Reading, labels: npt.NDArray[np.float32]) -> dict[str, Array]:
    """Distances in pixels between a reading of T frames and the episode's truth (T, sights, labels).

    Returns:
        ``gripper`` (T,), and (T, sights): ``plain``, things that the twin shows clearly; ``moved``, those of
        them that have moved since the first frame; ``hidden``, those that it shows in part;
        what it does not show at all is not measured.
        Infinite where the reading has none; NaN where there is nothing to measure.
    """
    way = np.hypot(*np.moveaxis(reading.place - labels[..., [Label.X, Label.Y]], -1, 0)).astype(np.float64)
    way = np.where(np.isnan(reading.place[..., 0]), np.inf, way)
    there = ~np.isnan(labels[..., Label.X])
    there[:, 0] = False
    plain = in_plain_sight(labels)
    shown = np.nan_to_num(labels[..., Label.PIXELS]) >= PLAIN
    places = labels[..., [Label.X, Label.Y]]
    moved = np.hypot(*np.moveaxis(places - places[:1], -1, 0)) > MOVED
    return {
        "gripper": way[:, 0],
        "plain": np.where(there & plain, way, np.nan),
        "moved": np.where(there & plain & moved, way, np.nan),
        "hidden": np.where(there & shown & ~plain, way, np.nan),
    }


def vanished(reading: Reading, labels: npt.NDArray[np.float32]) -> bool:
    """Whether a thing that the twin shows clearly is missing for ``LASTING`` frames in a row."""
    missing = in_plain_sight(labels) & (reading.count == 0)
    return bool(_lasting(missing[:, 1:]))


def multiplied(reading: Reading, labels: npt.NDArray[np.float32]) -> bool:
    """Whether for ``LASTING`` frames in a row a thing is there twice, or one that the scene does not have."""
    allowed = ~np.isnan(labels[..., Label.X])
    return bool(_lasting((reading.count > allowed)[:, 1:]))


def _lasting(frames: npt.NDArray[np.bool_]) -> bool:
    """Whether any column of (T, N) is true ``LASTING`` times in a row."""
    runs = np.lib.stride_tricks.sliding_window_view(frames, min(LASTING, len(frames)), axis=0)
    return bool(runs.all(-1).any())


def spread(values: npt.ArrayLike) -> dict[str, float | int | None]:
    """Median and 90th percentile in pixels, the median in % of the width, and how many; NaN do not count.

    Infinite values (a thing that is not found) count as far off, so losing things cannot make this better.
    """
    known = np.asarray(values, float)
    known = known[~np.isnan(known)]
    if not len(known):
        return {"median_px": None, "p90_px": None, "median_percent": None, "lost": None, "n": 0}
    median, high = (float(v) for v in np.quantile(known, [0.5, 0.9], method="higher"))
    finite = np.isfinite([median, high])
    return {
        "median_px": median if finite[0] else None,
        "p90_px": high if finite[1] else None,
        "median_percent": 100 * median / SIZE if finite[0] else None,
        "lost": float(np.isinf(known).mean()),
        "n": len(known),
    }


@dataclass(frozen=True)
class Outcomes:
    """What a world showed beside what the twin did, for the same episodes.

    Attributes:
        shown: Outcome in the world, as read.
        truth: Outcome in the twin.
        families: What made the actions.
    """

    shown: Sequence[Outcome]
    truth: Sequence[bool]
    families: Sequence[str]

    def of(self, families: Sequence[str]) -> Outcomes:
        """Only the episodes of some families."""
        keep = [index for index, family in enumerate(self.families) if family in families]
        columns = (self.shown, self.truth, self.families)
        return Outcomes(*([column[index] for index in keep] for column in columns))  # type: ignore[index]

    def to_dict(self) -> dict[str, Any]:
        """Counts, rates with intervals, and the balanced accuracy."""
        quality = judge_quality(list(self.shown), list(self.truth))
        return {**quality.to_dict(), "balanced_accuracy": self.balanced_accuracy().to_dict()}

    def balanced_accuracy(self, *, draws: int = 20_000) -> Estimate:
        """Mean of the shares of successes and of failures that are shown as such.

        The interval holds the middle 95 % of its posterior under Jeffreys' prior on both shares.
        """
        hits = [[], []]  # type: list[list[bool]]
        for shown, truth in zip(self.shown, self.truth, strict=True):
            if shown is not Outcome.UNSCORED:
                hits[int(truth)].append((shown is Outcome.SUCCESS) == truth)
        if not all(hits):
            return undefined("it needs successes and failures of the twin", n=len(self.truth))
        value = float(np.mean([np.mean(part) for part in hits]))
        rng = np.random.default_rng(0)
        shares = [rng.beta(sum(part) + 0.5, len(part) - sum(part) + 0.5, draws) for part in hits]
        low, high = np.quantile(np.mean(shares, axis=0), [0.025, 0.975])
        count = sum(map(len, hits))
        return Estimate(
            value, min(float(low), value), max(float(high), value), count, method="Jeffreys, both shares"
        )
