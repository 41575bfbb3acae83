"""``WatchingJudge``: solved as soon as it looks solved.

Judges say whether a task is solved at the last frame of a clip (``Rubric``). A policy that goes on after that
may undo it, and a recording of fixed length would then count as a failure, where a world that knows the truth
has ended the episode with a success. Who judges whole recordings asks on the way.
"""

from __future__ import annotations

from collections.abc import Sequence

from worldgym.episode import Outcome, Verdict
from worldgym.errors import InvalidConfig
from worldgym.judges.loading import JudgeSpec, load_judge
from worldgym.judges.protocol import Clip, close_judge


class WatchingJudge:
    """Asks another judge about an episode after every so many frames, and at its last frame.

    The verdict is the first success. Without one it is that of the moment with the highest score, or an
    unscored one if any was: it might have been the success.

    Args:
        judge: The other judge, or what ``load_judge`` takes.
        every: Frames between two questions.

    Raises:
        InvalidConfig: If ``every`` is not positive.
        WorldGymError: As ``load_judge``.

    Example:
        >>> import numpy as np
        >>> judge = WatchingJudge(lambda clip: bool(clip.frames[-1].mean() > 100), every=2)
        >>> frames = np.zeros((6, 8, 8, 3), np.uint8)
        >>> frames[2] = 200
        >>> judge.judge([Clip(frames, "light it up")])[0].outcome.value
        'success'
    """

    def __init__(self, judge: JudgeSpec = "packaged", *, every: int = 5) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InvalidConfig(f"every must be a positive number of frames, got {every!r}")
        self.inner = load_judge(judge)
        self.every = every

    @property
    def identity(self) -> str:
        """Contains that of the other judge."""
        return f"every {self.every} frames {self.inner.identity}"

    def judge(self, clips: Sequence[Clip]) -> list[Verdict]:
        """One verdict per clip; the questions about all clips at one moment are asked together."""
        said: list[list[Verdict]] = [[] for _ in clips]
        looks = [self._looks(clip) for clip in clips]
        for turn in range(max(map(len, looks), default=0)):
            waiting = [n for n, ends in enumerate(looks) if turn < len(ends) and not _solved(said[n])]
            parts = [_until(clips[n], looks[n][turn]) for n in waiting]
            for n, verdict in zip(waiting, self.inner.judge(parts) if parts else [], strict=True):
                said[n].append(verdict)
        return [_conclude(verdicts) for verdicts in said]

    def close(self) -> None:
        """Let the other judge release what it holds."""
        close_judge(self.inner)

    def _looks(self, clip: Clip) -> list[int]:
        """Positions of the frames at which is asked, the last one included."""
        last = len(clip.frames) - 1
        inner = [k for k, index in enumerate(clip.frame_indices[:last]) if index and index % self.every == 0]
        return [*inner, last]


def _until(clip: Clip, last: int) -> Clip:
    """A clip up to one of its frames."""
    return Clip(
        clip.frames[: last + 1],
        clip.instruction,
        criteria=clip.criteria,
        frame_indices=clip.frame_indices[: last + 1],
        fps=clip.fps,
        rubric=clip.rubric,
    )


def _solved(verdicts: Sequence[Verdict]) -> bool:
    return bool(verdicts) and verdicts[-1].outcome is Outcome.SUCCESS


def _conclude(verdicts: Sequence[Verdict]) -> Verdict:
    if _solved(verdicts):
        return verdicts[-1]
    for verdict in verdicts:
        if verdict.outcome is Outcome.UNSCORED:
            return verdict
    return max(reversed(verdicts), key=lambda verdict: verdict.score or 0.0)
