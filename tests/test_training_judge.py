"""Training a judge: on a user's own episodes, on the twin's, on imagined ones; and what its numbers mean."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from worldgym.data.clips import ClipFolder, ClipWriter
from worldgym.episode import Episode, Outcome
from worldgym.errors import DataError, InvalidConfig
from worldgym.judges import Clip, Rubric, load_judge
from worldgym.judges.packaged import PACKAGED_JUDGE, PackagedJudge, read_config
from worldgym.training.judge import JudgeTraining, train_judge
from worldgym.training.judge_calibration import (
    Watched,
    calibration_error,
    choose_threshold,
    fit_probability,
)
from worldgym.training.judge_data import load_clips
from worldgym.training.loop import LoopConfig

pytest.importorskip("matplotlib")
WAVE = "wave the flag"


def own_episode(number, *, frames=9, instruction=WAVE):
    """A red square that goes up if the task is solved, and stays down if not."""
    rng, success = np.random.default_rng(number), number % 2 == 0
    images = rng.integers(90, 110, (frames, 48, 48, 3), np.uint8)
    column = int(rng.integers(4, 34))
    for frame in range(frames):
        top = 34 - (4 * frame if success else 0)
        images[frame, max(top, 2) : max(top, 2) + 10, column : column + 10] = (250, 20, 20)
    actions = np.zeros((frames - 1, 7), np.float32)
    return Episode(images, actions, instruction=instruction, success=success, action_spec="worldgym")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    writer = ClipWriter(folder)
    for number in range(24):
        writer.append(own_episode(number), name=f"{number:03d}")
    return folder


def quick(data, *, steps=60, **options):
    loop = LoopConfig(steps=steps, batch_size=8, learning_rate=4e-3, warm_up=5, ema=0.9, compile=False)
    loop = replace(loop, save_every=steps, validate_every=steps, log_every=steps)
    return JudgeTraining(str(data), widths=(16, 16), hidden=32, held_out=0.25, loop=loop, **options)


def clip(number):
    return Clip.from_episode(own_episode(number))


def test_a_judge_of_ones_own_episodes_is_trained_and_loaded_in_two_calls(own, tmp_path):
    folder = train_judge(quick(own), tmp_path / "run")
    judge = load_judge(f"packaged:{folder}")
    scores = [verdict.score for verdict in judge.judge([clip(number) for number in range(100, 120)])]
    assert min(scores[::2]) > max(scores[1::2]), "episodes that it has not seen"
    (other,) = judge.judge([Clip(own_episode(0).frames, "put the carrot on the plate")])
    assert other.outcome is Outcome.UNSCORED
    trained = read_config(folder).trained
    assert trained["other"]["tpr"] == 1.0
    assert (trained["clips"], trained["steps"], trained["init"]) == (18, 60, None)


def test_the_packaged_judge_learns_a_new_task_and_keeps_its_own(own, tmp_path):
    folder = train_judge(quick(own, steps=2, init="packaged"), tmp_path / "run")
    before, after = read_config(PACKAGED_JUDGE), read_config(folder)
    assert after.vocabulary.tasks[: len(before.vocabulary)] == before.vocabulary.tasks
    assert [task.key for task in after.vocabulary.tasks[len(before.vocabulary) :]] == [WAVE]
    assert (after.widths, after.hidden) == (before.widths, before.hidden)
    (verdict,) = PackagedJudge(folder).judge([clip(0)])
    assert verdict.outcome is not Outcome.UNSCORED


def test_clips_without_a_label_are_left_out_by_name(own, tmp_path, caplog):
    writer = ClipWriter(tmp_path / "clips")
    for number in range(3):
        writer.append(replace(own_episode(number), success=None if number else True), name=f"{number}")
    with caplog.at_level(logging.WARNING):
        clips, vocabulary = load_clips([tmp_path / "clips"], truths=tmp_path)
    assert (len(clips), len(vocabulary)) == (1, 1)
    assert sorted(record.message.split()[2] for record in caplog.records) == ["1", "2"]
    writer = ClipWriter(tmp_path / "none")
    writer.append(replace(own_episode(0), instruction=""), name="0")
    with pytest.raises(DataError, match="both an instruction and a success"):
        load_clips([tmp_path / "none"], truths=tmp_path)


@pytest.mark.parametrize("wrong", [{"widths": (8,)}, {"widths": (8, 9)}, {"held_out": 0.0}])
def test_a_configuration_that_cannot_work_is_refused(wrong):
    with pytest.raises(InvalidConfig):
        JudgeTraining("data", **wrong)


# -- the twin's episodes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    pytest.importorskip("mujoco")
    from worldgym.training.collect import CollectConfig, collect

    config = CollectConfig(seed=5, tasks=("put_carrot_on_plate",), mixture={"expert": 1.0})
    return collect(tmp_path_factory.mktemp("twins") / "clips", 2, config=config, workers=1)


def test_a_replay_knows_which_other_tasks_an_episode_solves(twins, tmp_path):
    clips, vocabulary = load_clips([twins], truths=tmp_path)
    number = {task.key: index for index, task in enumerate(vocabulary.tasks)}
    put, lift, other = (
        number[k] for k in ("put_carrot_on_plate", "lift_carrot", "stack_green_cube_on_yellow_cube")
    )
    for index, episode in enumerate(ClipFolder(twins)):
        truths = clips.truths[clips.begin[index] : clips.begin[index + 1]].astype(np.float32)
        np.testing.assert_array_equal(truths[:, put, 0], episode.metadata["success"])
        assert truths[-1, put, 0] == 1
        lifted = np.nan_to_num(truths[:, lift, 1])
        assert lifted.max() > 0.25, "on its way the carrot is lifted"
        assert not lifted[truths[:, put, 0] == 1].any(), "on the plate it is not"
        assert not truths[:, other].any(), "there are no cubes"
    assert len(list(tmp_path.iterdir())) == 2, "replays are kept"
    few, _ = load_clips([twins], truths=tmp_path / "other", replays=1)
    replayed = ~np.isnan(few.truths[:, lift, 0].astype(np.float32))
    assert replayed[: few.begin[1]].mean() > 0.5
    assert not replayed[few.begin[1] :].any(), "what was not replayed is not known"
    assert not np.isnan(few.truths[:, put].astype(np.float32)).any()


def test_imagined_episodes_keep_names_actions_and_truth(twins, tmp_path, tiny_checkpoint):
    from worldgym.training.imagine import imagine

    done = []
    for _ in range(2):
        imagine(
            twins,
            tmp_path / "out",
            checkpoint=str(tiny_checkpoint),
            episodes=2,
            batch_size=2,
            on_episode=lambda n, of: done.append((n, of)),
        )
    assert done == [(0, 2), (2, 2), (2, 2)], "the second call finds all of them there"
    for real, imagined in zip(ClipFolder(twins), ClipFolder(tmp_path / "out"), strict=True):
        assert imagined.frames.shape == (41, 48, 48, 3)
        assert (imagined.trial, imagined.instruction, imagined.success) == (
            real.trial,
            real.instruction,
            real.success,
        )
        np.testing.assert_allclose(imagined.actions, real.actions, atol=1e-6)
        assert imagined.metadata["world"] == str(tiny_checkpoint)
    clips, _ = load_clips([tmp_path / "out", twins], truths=tmp_path / "truths")
    assert clips.sources == ("model", "model", "twin", "twin")
    assert len(list((tmp_path / "truths").iterdir())) == 2, (
        "an imagined episode shares the replay of the real one"
    )
    assert np.isnan(clips.sight[: clips.begin[2]].astype(np.float32)).all()


# -- what the numbers mean --------------------------------------------------------------------------


def test_logits_of_a_known_law_get_its_probabilities():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, 20_000)
    truth = (rng.random(20_000) < 1 / (1 + np.exp(-(0.5 * logits - 1)))).astype(float)
    watched = [Watched(logits, logits, truth, True)]
    scale, bias = fit_probability(watched)
    assert (scale, bias) == (pytest.approx(0.5, abs=0.02), pytest.approx(-1, abs=0.06))
    assert calibration_error(watched[0].chances(scale, bias), truth) < 0.01
    assert calibration_error(watched[0].chances(3.0, 2.0), truth) > 0.2


def test_the_threshold_lets_few_failures_pass():
    chances = [0.1, 0.7, 0.9, 0.6, 0.95, 0.2, 0.3, 0.4, 0.55, 0.65]
    never = [False] * 10
    threshold = choose_threshold(chances, never, most=0.1)
    assert 0.9 < threshold < 0.95
    assert sum(chance >= threshold for chance in chances) == 1
    assert choose_threshold(chances, [True] * 10, most=0.1) == 0.5
    assert choose_threshold([0.1, 0.2], [False, False], most=0.1) == 0.5


def test_a_judge_that_is_never_wrong_keeps_a_finite_scale():
    watched = [Watched(np.array([-9.0, 9.0]), np.zeros(2), np.array([0.0, 1.0]), True)]
    scale, bias = fit_probability(watched)
    assert 0.05 <= scale < 2
    assert abs(bias) < 1
    assert Rubric.SUCCESS == "success"
