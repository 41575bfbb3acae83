"""The judge that asks on the way."""

import pickle

import numpy as np
import pytest
from line_world import BrightJudge

from worldgym.episode import Outcome, Verdict
from worldgym.errors import InvalidConfig
from worldgym.judges import Clip, Judge
from worldgym.judges.watching import WatchingJudge


def clip(*light, instruction="go 1", **options):
    """A clip whose frames have these brightnesses."""
    frames = np.stack([np.full((16, 16, 3), value, np.uint8) for value in light])
    return Clip(frames, instruction, **options)


def outcomes(judge, *clips):
    return [verdict.outcome for verdict in judge.judge(clips)]


def test_a_success_that_is_undone_later_counts():
    judge = WatchingJudge(BrightJudge(100), every=2)
    assert isinstance(judge, Judge)
    assert outcomes(judge, clip(0, 0, 200, 0, 0), clip(0, 0, 0, 0, 0)) == [Outcome.SUCCESS, Outcome.FAILURE]
    assert outcomes(BrightJudge(100), clip(0, 0, 200, 0, 0)) == [Outcome.FAILURE]


def test_it_looks_at_every_so_many_frames_of_the_episode_and_at_the_last_one():
    judge = WatchingJudge(BrightJudge(100), every=2)
    assert outcomes(judge, clip(200, 200, 0, 200, 0)) == [Outcome.FAILURE]
    assert outcomes(judge, clip(0, 0, 0, 200)) == [Outcome.SUCCESS]
    assert outcomes(judge, clip(200)) == [Outcome.SUCCESS]
    # frame 4 of the episode is the second that was kept
    assert outcomes(judge, clip(0, 200, 0, frame_indices=(1, 4, 5))) == [Outcome.SUCCESS]


def test_nobody_is_asked_about_an_episode_after_its_success():
    inner = BrightJudge(100)
    judge = WatchingJudge(inner, every=1)
    judge.judge([clip(0, 200, 1, 2, 3, 4), clip(0, 1, 2)])
    assert inner.asked == 1 + 2
    assert judge.judge([]) == []


def test_without_a_success_the_best_moment_is_the_verdict():
    judge = WatchingJudge(BrightJudge(250), every=1)
    (verdict,) = judge.judge([clip(0, 51, 102, 51)])
    assert verdict.score == pytest.approx(0.4)


def test_an_unscored_moment_makes_the_verdict_unscored_unless_there_is_a_success():
    class Blinking(BrightJudge):
        def judge(self, clips):
            said = super().judge(clips)
            return [
                Verdict(Outcome.UNSCORED, reason="blink") if len(clip.frames) == 2 else verdict
                for clip, verdict in zip(clips, said, strict=True)
            ]

    judge = WatchingJudge(Blinking(100), every=1)
    assert outcomes(judge, clip(0, 0, 0), clip(0, 0, 200)) == [Outcome.UNSCORED, Outcome.SUCCESS]


def test_its_identity_says_how_often_it_looks_and_it_can_be_sent_elsewhere():
    judge = WatchingJudge(BrightJudge(100), every=7)
    assert judge.identity == "every 7 frames bright 100"
    assert pickle.loads(pickle.dumps(judge)).identity == judge.identity
    judge.close()
    with pytest.raises(InvalidConfig, match="positive number of frames"):
        WatchingJudge(BrightJudge(100), every=0)
