"""When frames no longer show what was asked for.

What is here:
    * ``ConsistencyConfig``: the options of ``ActionConsistency``.
    * ``ConsistencyRule``: checks the frames and actions of a step, for any number of rows at once.
    * ``Watched``: what is remembered of a running episode. ``Finding``: what a check says.
    * ``conformal_threshold`` and ``episode_scores``: the threshold that an obeying world seldom passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from worldgym.actions import get_spec
from worldgym.errors import InvalidConfig
from worldgym.models.inverse_head import InverseHead, disagreement, fit
from worldgym.wrappers.frame_source import Frames

CHANGED_LEVEL = 12
"""Grey levels from which a pixel has changed; the flicker of a learned world is below."""
STILL_SHARE = 0.002
"""Share of changed pixels up to which a picture stands still: 8 of 64x64."""
ASKED = 0.1
"""Part of the largest motion from which a robot that obeys is seen to move."""
STRAYED_LEVEL = 48
"""Grey levels by which a pixel has strayed from the start frame."""
STRAYED_SHARE = 0.6
"""Share of strayed pixels from which a picture has exploded. In the twin at most 0.46 of them were."""
SHARPNESS = (0.15, 3.0)
"""Least and greatest sharpness of a picture, relative to the start frame. In the twin 0.3 to 1.9."""


@dataclass(frozen=True, kw_only=True)
class ConsistencyConfig:
    """What is checked, and what follows. JSON-able.

    Attributes:
        alpha: Share of the episodes of an obeying world that may be ended for their disagreement.
        window: Frames over which the disagreement is averaged; there is no alarm before so many.
        frozen_after: Frames in a row that stand still although motion was asked for, from which the episode
            is frozen; None: never.
        exploded: Whether to look for pictures that are blown up, washed out or full of noise.
        truncate: Whether an alarm ends the episode; without it is only told in ``info``.
        action_spec: Convention of the environment's actions; None to ask the environment.
        image_key: Key of the image in a dict observation.
    """

    alpha: float = 0.05
    window: int = 8
    frozen_after: int | None = 4
    exploded: bool = True
    truncate: bool = True
    action_spec: str | None = None
    image_key: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.alpha, bool) or not 0 < self.alpha < 1:
            raise InvalidConfig(f"alpha must be between 0 and 1, got {self.alpha!r}")
        for name, value in (("window", self.window), ("frozen_after", self.frozen_after)):
            if value is None and name == "frozen_after":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidConfig(f"{name} must be a positive int, got {value!r}")
        if self.action_spec is not None:
            get_spec(self.action_spec)


@dataclass(frozen=True)
class Watched:
    """A running episode as the rule knows it.

    Attributes:
        start: The start frame in the head's size.
        sharpness: Of the start frame.
        recent: The newest frames in the head's size, as many as a window needs before the next one.
        last: What was missed and asked for in the last frames, at most ``window`` of them.
        still: Frames in a row that stood still although motion was asked for.
        frame_index: Index of the newest frame; 0 is the start frame.
    """

    start: Frames
    sharpness: float
    recent: tuple[Frames, ...]
    last: tuple[tuple[float, float], ...] = ()
    still: int = 0
    frame_index: int = 0


@dataclass(frozen=True)
class Finding:
    """What a check says about the frames of a step.

    Attributes:
        compared: float32 (K, 2) of each frame: what was missed and asked for (``InverseHead.compare``).
        action_read: float32 (K, A) the actions that were read, in the head's convention.
        mean_disagreement: The same over the last frames together, at most ``window`` of them.
        threshold: What the mean must not pass.
        still_frames: Frames in a row that stand still although motion was asked for.
        strayed: Share of the newest frame's pixels that are far from the start frame.
        sharpness: Of the newest frame, relative to the start frame.
        alarm: ``"disagreement"``, ``"frozen"`` or ``"exploded"``; None if all is well.
        reason: The alarm in words.
        alarm_frame: Index of the frame that gave it.
    """

    compared: npt.NDArray[np.float32]
    action_read: npt.NDArray[np.float32]
    mean_disagreement: float
    threshold: float
    still_frames: int
    strayed: float
    sharpness: float
    alarm: str | None = None
    reason: str = ""
    alarm_frame: int | None = None

    @property
    def disagreement(self) -> npt.NDArray[np.float32]:
        """float32 (K,) of each frame by itself: what part of the action is not seen."""
        return disagreement(self.compared[:, None]).astype(np.float32)

    def info(self) -> dict[str, Any]:
        """For ``info``: the disagreement in place of ``compared``; the alarm's keys only if there is one."""
        told = {name: value for name, value in vars(self).items() if name != "compared"}
        if self.alarm is None:
            del told["alarm"], told["reason"], told["alarm_frame"]
        return {"disagreement": self.disagreement, **told}


class ConsistencyRule:
    """Compares what was asked for with what is seen.

    Args:
        head: Reads the actions.
        config: The options.

    Attributes:
        threshold: Greatest mean disagreement over ``config.window`` frames.

    Raises:
        InvalidConfig: If the head has too few calibration episodes for this ``alpha`` and ``window``.
    """

    def __init__(self, head: InverseHead, config: ConsistencyConfig) -> None:
        self.head = head
        self.config = config
        longest = head.calibration.shape[1]
        if config.window > longest:
            raise InvalidConfig(
                f"the head was calibrated on episodes of {longest} frames: window must be at most that, got "
                f"{config.window}"
            )
        self.threshold = conformal_threshold(episode_scores(head.calibration, config.window), config.alpha)
        spec = get_spec(head.config.action_spec)
        self._moving = [index for index, name in enumerate(spec.components) if name != "gripper"]
        self._largest = spec.high[self._moving]

    def begin(self, frame: Frames) -> Watched:
        """An episode starts with this frame, uint8 (H, W, 3)."""
        start = fit(np.array(frame))
        return Watched(start, _sharpness(start), (start,) * (self.head.config.frames - 1))

    def check(
        self,
        episodes: Sequence[Watched],
        frames: Sequence[Sequence[Frames] | Frames],
        requested: Sequence[npt.NDArray[np.float32]],
    ) -> list[tuple[Watched, Finding]]:
        """Check the new frames of some rows, all at once.

        Args:
            episodes: What is known of each.
            frames: The new frames of each, (K, H, W, 3) with K at least 1.
            requested: The actions (K, A) that caused them, in the head's convention.

        Returns:
            What is known of each now, and what was found. An alarm is that of the first frame that gives one.
        """
        shown = [fit(np.stack(list(new))) for new in frames]
        size, windows = self.head.config.frames, []
        for episode, new in zip(episodes, shown, strict=True):
            together = np.concatenate([np.stack(episode.recent), new])
            windows += [together[index : index + size] for index in range(len(new))]
        if not windows:
            return []
        actions, errors = self.head.read(np.stack(windows))
        found, first = [], 0
        for episode, new, asked in zip(episodes, shown, requested, strict=True):
            part = slice(first, first + len(new))
            first += len(new)
            compared = self.head.compare(asked, actions[part], errors[part])
            found.append(self._follow(episode, new, asked, compared, actions[part]))
        return found

    def _follow(
        self,
        episode: Watched,
        frames: Frames,
        asked: npt.NDArray[np.float32],
        compared: npt.NDArray[np.float32],
        read: npt.NDArray[np.float32],
    ) -> tuple[Watched, Finding]:
        """Go through the frames of a step one by one."""
        alarm: tuple[str, str] | None = None
        alarm_frame = 0
        finding: Finding | None = None
        motion = (np.abs(asked[:, self._moving]) / self._largest).max(-1)
        for frame, moved, pair in zip(frames, motion, compared, strict=True):
            previous = episode.recent[-1]
            stands = moved >= ASKED and changed_share(previous, frame, CHANGED_LEVEL) <= STILL_SHARE
            episode = replace(
                episode,
                recent=(*episode.recent[1:], frame),
                last=(*episode.last, (float(pair[0]), float(pair[1])))[-self.config.window :],
                still=episode.still + 1 if stands else 0,
                frame_index=episode.frame_index + 1,
            )
            finding = self._describe(episode, frame, compared, read)
            if alarm is None:
                alarm, alarm_frame = self._alarm(episode, finding), episode.frame_index
        assert finding is not None, "a step has at least one frame"
        if alarm is not None:
            finding = replace(finding, alarm=alarm[0], reason=alarm[1], alarm_frame=alarm_frame)
        return episode, finding

    def _describe(
        self,
        episode: Watched,
        frame: Frames,
        compared: npt.NDArray[np.float32],
        read: npt.NDArray[np.float32],
    ) -> Finding:
        return Finding(
            compared=compared,
            action_read=read,
            mean_disagreement=float(disagreement(np.array(episode.last))),
            threshold=self.threshold,
            still_frames=episode.still,
            strayed=changed_share(episode.start, frame, STRAYED_LEVEL),
            sharpness=(_sharpness(frame) + 0.5) / (episode.sharpness + 0.5),  # flat pictures have none
        )

    def _alarm(self, episode: Watched, finding: Finding) -> tuple[str, str] | None:
        """What is wrong at the newest frame, and in words."""
        config, at = self.config, f"frame {episode.frame_index}"
        if config.exploded and finding.strayed > STRAYED_SHARE:
            return "exploded", f"{finding.strayed:.0%} of the picture has left the start frame at {at}"
        if config.exploded and not SHARPNESS[0] <= finding.sharpness <= SHARPNESS[1]:
            return "exploded", f"{at} is {finding.sharpness:.2f} times as sharp as the start frame"
        if config.frozen_after is not None and episode.still >= config.frozen_after:
            return (
                "frozen",
                f"nothing has moved for {episode.still} frames up to {at}, though it was asked to",
            )
        if len(episode.last) == config.window and finding.mean_disagreement > self.threshold:
            return "disagreement", (
                f"the frames do not show the requested actions: disagreement {finding.mean_disagreement:.2f} "
                f"over {config.window} frames up to {at}, more than {self.threshold:.2f}"
            )
        return None


def conformal_threshold(scores: npt.ArrayLike, alpha: float) -> float:
    """The value that the score of a further episode passes with a probability of at most ``alpha``.

    It is the ceil((n + 1)(1 - alpha))-th smallest of n scores. The bound holds for every n and every
    distribution if the further episode is exchangeable with those of the scores, none of which was trained on
    (split-conformal prediction: Papadopoulos et al. 2002; Lei et al. 2018, theorem 2.2).

    Args:
        scores: (n,) one per calibration episode; NaN ones are left out.
        alpha: Between 0 and 1.

    Raises:
        InvalidConfig: If there are too few scores for this ``alpha``.
    """
    values = np.asarray(scores, np.float64)
    values = np.sort(values[~np.isnan(values)])
    rank = math.ceil((len(values) + 1) * (1 - alpha) - 1e-9)  # 0.95 is a little more than 0.95
    if rank > len(values):
        raise InvalidConfig(
            f"alpha={alpha} needs at least {math.ceil(1 / alpha - 1e-9) - 1} calibration episodes, "
            f"there are {len(values)}: use a larger alpha, or a head that was calibrated on more"
        )
    return float(values[max(rank, 1) - 1])


def episode_scores(compared: npt.NDArray[np.float32], window: int) -> npt.NDArray[np.float64]:
    """The greatest disagreement over ``window`` frames in each episode, float64 (E,).

    Args:
        compared: (E, T, 2) of each frame; NaN after the end of an episode.
        window: Frames.

    Returns:
        NaN for episodes with fewer frames.
    """
    if compared.shape[1] < window:
        return np.full(len(compared), np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(
        compared, window, axis=1
    )  # (E, T - window + 1, 2, window)
    values = disagreement(windows.swapaxes(-1, -2))
    known = ~np.isnan(values)
    best = np.where(known, values, -np.inf).max(1)
    return np.where(known.any(1), best, np.nan)


def changed_share(before: Frames, after: Frames, level: int) -> float:
    """Share of the pixels of a frame (H, W, 3) in which a channel differs by more than ``level``."""
    differs = np.abs(before.astype(np.int16) - after).max(-1) > level
    return float(differs.mean())


def _sharpness(frame: Frames) -> float:
    """Mean difference, in grey levels, between a pixel and its four neighbours' mean."""
    grey = frame.astype(np.float32).mean(-1)
    around = (grey[:-2, 1:-1] + grey[2:, 1:-1] + grey[1:-1, :-2] + grey[1:-1, 2:]) / 4
    return float(np.abs(grey[1:-1, 1:-1] - around).mean())


__all__ = [
    "ConsistencyConfig",
    "ConsistencyRule",
    "Finding",
    "Watched",
    "conformal_threshold",
    "episode_scores",
]
