"""The end of rollouts whose frames left the requested actions, in single and vector environments."""

import json
import pickle
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from judged_worlds import Counting, never
from obeying_worlds import read_written, show_env, show_envs, write_head
from stand_ins import assert_same

from worldgym.actions import ENV_SPEC, convert, get_spec
from worldgym.errors import CheckpointNotFound, InvalidConfig, ResetNeeded, SpecMismatch
from worldgym.models.inverse_head import InverseHead
from worldgym.wrappers import (
    ActionConsistency,
    SB3VecEnv,
    VectorActionConsistency,
    VectorVLMReward,
    VectorVLMTermination,
)
from worldgym.wrappers.consistency_rules import conformal_threshold, episode_scores

MODES = pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
OBEYS, DISOBEYS, FREEZES, EXPLODES, WASHES_OUT = range(5)
WINDOW = 4
ALARM_AT = {OBEYS: None, DISOBEYS: 4, FREEZES: 6, EXPLODES: 3, WASHES_OUT: 3}
"""Frame of the alarm: worlds go wrong at frame 3; 4 frames are averaged, and 4 must stand still."""


@pytest.fixture
def head(tmp_path, monkeypatch):
    monkeypatch.setattr(InverseHead, "read", read_written)
    return write_head(tmp_path / "head")


def watched(env, head, **options):
    wrapper = VectorActionConsistency if isinstance(env, gymnasium.vector.VectorEnv) else ActionConsistency
    return wrapper(env, head=head, **{"window": WINDOW, **options})


def actions_for(step, shape=(7,)):
    """Far from zero, so that a world that plays the opposite shows it."""
    rng = np.random.default_rng(step)
    return (rng.uniform(0.4, 0.9, shape) * rng.choice([-1, 1], shape)).astype(np.float32)


def run(env, *, seed, steps=10):
    """Infos of one episode, up to its end."""
    env.reset(seed=seed)
    infos = []
    for step in range(steps):
        _, _, terminated, truncated, info = env.step(actions_for(step, env.action_space.shape))
        infos.append(info)
        if terminated or truncated:
            break
    return infos, terminated, truncated


# -- single -----------------------------------------------------------------------------------------------


def test_a_world_that_obeys_is_left_alone(head):
    env, bare = watched(show_env(episode_frames=9), head), show_env(episode_frames=9)
    env.reset(seed=OBEYS)
    bare.reset(seed=OBEYS)
    for step in range(9):
        mine, plain = env.step(actions_for(step)), bare.step(actions_for(step))
        told = mine[4].pop("consistency")
        assert_same(mine, plain)
        assert set(told) == {
            "disagreement",
            "action_read",
            "mean_disagreement",
            "threshold",
            "still_frames",
            "strayed",
            "sharpness",
        }
        assert told["mean_disagreement"] < 0.1
        np.testing.assert_allclose(told["action_read"][0], actions_for(step), atol=0.01)


@pytest.mark.parametrize(
    ("fault", "alarm", "word"),
    [
        (DISOBEYS, "disagreement", "requested actions"),
        (FREEZES, "frozen", "nothing has moved for 4 frames"),
        (EXPLODES, "exploded", "sharp|left the start"),
        (WASHES_OUT, "exploded", "sharp"),
    ],
)
def test_every_fault_truncates_with_its_reason(head, fault, alarm, word):
    # read from still frames the last action stays, so the disagreement must not be what ends it
    alpha = {"window": 9} if fault == FREEZES else {}
    infos, terminated, truncated = run(watched(show_env(), head, **alpha), seed=fault)
    assert (terminated, truncated) == (False, True)
    assert len(infos) == ALARM_AT[fault]
    told = infos[-1]["consistency"]
    assert told["alarm"] == alarm
    assert any(part in told["reason"] for part in word.split("|"))
    assert all("alarm" not in info["consistency"] for info in infos[:-1])


def test_nothing_is_said_before_a_window_is_full(head):
    infos, _, _ = run(watched(show_env(), head, window=7), seed=DISOBEYS)
    assert len(infos) == 7
    told = infos[-1]["consistency"]
    assert told["mean_disagreement"] > told["threshold"]
    lies = [info["consistency"]["disagreement"][0] > 1 for info in infos]
    assert lies == [False, False, True, True, True, True, True]


def test_standing_still_when_nothing_was_asked_for_is_not_frozen(head):
    env = watched(show_env(), head, window=20)
    env.reset(seed=FREEZES)
    for _ in range(12):
        _, _, _, truncated, info = env.step(np.array([0.05, 0, 0, 0, 0, 0, 1], np.float32))
        assert not truncated
        assert info["consistency"]["still_frames"] == 0


@pytest.mark.parametrize(
    ("fault", "off"), [(FREEZES, {"frozen_after": None, "window": 20}), (WASHES_OUT, {"exploded": False})]
)
def test_checks_can_be_turned_off(head, fault, off):
    infos, _, truncated = run(watched(show_env(episode_frames=10), head, **off), seed=fault)
    alarms = {info["consistency"].get("alarm") for info in infos}
    assert alarms <= ({None} if fault == FREEZES else {None, "disagreement", "frozen"})
    assert truncated


def test_an_alarm_can_be_told_only(head):
    infos, _, truncated = run(watched(show_env(episode_frames=9), head, truncate=False), seed=DISOBEYS)
    assert len(infos) == 9
    assert truncated
    assert [info["consistency"].get("alarm") for info in infos] == [None] * 3 + ["disagreement"] * 6


def test_every_frame_of_a_chunk_is_checked(head):
    env = watched(show_env(chunk_size=3, episode_frames=9), head)
    infos, _, truncated = run(env, seed=DISOBEYS)
    assert truncated
    assert [info["frame_index"] for info in infos] == [3, 6]
    told = infos[-1]["consistency"]
    assert told["disagreement"].shape == (3,)
    assert told["action_read"].shape == (3, 7)
    assert "frame 4" in told["reason"]


def test_after_its_end_an_episode_must_be_reset(head):
    env = watched(show_env(), head)
    with pytest.raises(ResetNeeded):
        env.step(actions_for(0))
    run(env, seed=WASHES_OUT)
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(actions_for(0))
    env.reset(seed=OBEYS)
    assert not env.step(actions_for(0))[3]


def test_an_end_of_the_environment_itself_stays_what_it_is(head):
    infos, terminated, truncated = run(watched(show_env(episode_frames=4), head), seed=DISOBEYS)
    assert (len(infos), terminated, truncated) == (4, False, True)
    assert infos[-1]["consistency"]["alarm"] == "disagreement"


def test_frames_of_another_size_are_resized(head):
    infos, _, _ = run(watched(show_env(size=192), head), seed=DISOBEYS)
    assert len(infos) == ALARM_AT[DISOBEYS]
    infos, _, _ = run(watched(show_env(size=192), head), seed=OBEYS)
    assert max(info["consistency"]["mean_disagreement"] for info in infos) < 0.1


class Other(gymnasium.ActionWrapper):
    """The same world with actions in another convention."""

    def __init__(self, env, spec):
        super().__init__(env)
        self.action_spec = get_spec(spec)
        self.action_space = gymnasium.spaces.Box(self.action_spec.low, self.action_spec.high)

    @property
    def unwrapped(self):
        return self

    def action(self, action):
        return convert(action, self.action_spec, ENV_SPEC)


@pytest.mark.parametrize("spec", ["physical_bridge", "simpler_widowx", "published_bridge"])
@pytest.mark.parametrize("named", [False, True])
def test_other_action_conventions_are_converted(head, spec, named):
    env = Other(show_env(episode_frames=9), spec)
    options = {}
    if named:
        env.action_spec, options = None, {"action_spec": spec}
        env.action = lambda action: convert(action, spec, ENV_SPEC)
    env = watched(env, head, **options)
    env.reset(seed=OBEYS)
    for step in range(6):
        action = np.append(0.9 * actions_for(step)[:6], 1 if step % 2 else -1).astype(np.float32)
        info = env.step(convert(action, ENV_SPEC, spec))[4]
        np.testing.assert_allclose(info["consistency"]["action_read"][0], action, atol=0.02)
        assert info["consistency"]["mean_disagreement"] < 0.2


def test_actions_out_of_bounds_count_as_the_environment_plays_them(head):
    env = watched(show_env(), head)
    env.reset(seed=OBEYS)
    info = env.step(10 * actions_for(0))[4]
    assert info["consistency"]["mean_disagreement"] < 0.1


def test_what_cannot_work_is_refused(head, tmp_path):
    silent = Other(show_env(), "worldgym")
    silent.action_spec = None
    with pytest.raises(InvalidConfig, match="action_spec='worldgym'"):
        watched(silent, head)
    with pytest.raises(InvalidConfig, match="10 numbers"):
        watched(show_env(), head, action_spec="published_bridge")
    with pytest.raises(InvalidConfig, match="unknown action convention"):
        watched(show_env(), head, action_spec="mine")
    with pytest.raises(InvalidConfig, match="VectorActionConsistency"):
        ActionConsistency(show_envs(2), head=head)
    with pytest.raises(InvalidConfig, match="single wrapper"):
        VectorActionConsistency(show_env(), head=head)
    with pytest.raises(InvalidConfig, match="image"):
        watched(gymnasium.make("CartPole-v1"), head, action_spec="worldgym")
    with pytest.raises(CheckpointNotFound, match="no \\['inverse"):
        watched(show_env(), str(tmp_path))
    with pytest.raises(InvalidConfig, match="options are"):
        watched(show_env(), head, treshold=3)
    with pytest.raises(InvalidConfig, match=r"at least 99 calibration episodes, there are 40"):
        watched(show_env(), head, alpha=0.01)
    with pytest.raises(InvalidConfig, match="episodes of 20 frames"):
        watched(show_env(), head, window=21)
    for wrong in ({"alpha": 0}, {"alpha": 1.0}, {"window": 0}, {"window": 2.5}, {"frozen_after": 0}):
        with pytest.raises(InvalidConfig, match=next(iter(wrong))):
            watched(show_env(), head, **wrong)
    turned = Other(show_env(), "worldgym")
    turned.action_spec = replace(ENV_SPEC, name="of_the_tool", frame="tool")
    with pytest.raises(SpecMismatch, match="head reads"):
        watched(turned, head)


def test_a_chunk_whose_frames_are_not_shown_is_refused(head):
    class NoFrames(gymnasium.Wrapper):
        def step(self, action):
            *rest, info = self.env.step(action)
            del info["frames"]
            return *rest, info

    env = watched(NoFrames(show_env(chunk_size=2)), head)
    env.reset(seed=0)
    with pytest.raises(InvalidConfig, match="2 actions must show as many frames, got 1"):
        env.step(actions_for(0, (2, 7)))
    env = watched(NoFrames(show_env()), head)
    assert len(run(env, seed=DISOBEYS)[0]) == ALARM_AT[DISOBEYS]


def test_it_is_made_again_from_the_spec_and_can_be_pickled(head):
    gymnasium.register("Show-v0", entry_point="obeying_worlds:show_env")
    try:
        env = watched(gymnasium.make("Show-v0", episode_frames=9), head, alpha=0.1)
        text = env.spec.to_json()
        assert json.loads(text)["additional_wrappers"][-1]["kwargs"] == {
            "head": head,
            "device": "cpu",
            "window": WINDOW,
            "alpha": 0.1,
        }
        again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(text))
        assert str(again) == str(env)
        expected = run(env, seed=DISOBEYS)
        assert_same(run(again, seed=DISOBEYS), expected)
        env.reset(seed=DISOBEYS)
        env.step(actions_for(0))
        other = pickle.loads(pickle.dumps(env))
        for step in range(1, 4):
            assert_same(env.step(actions_for(step)), other.step(actions_for(step)))
    finally:
        gymnasium.registry.pop("Show-v0")


def test_branching_takes_along_what_was_seen(head):
    env = watched(show_env(), head)
    env.reset(seed=DISOBEYS)
    for step in range(2):
        env.step(actions_for(step))
    state = env.get_state()
    first = [env.step(actions_for(step)) for step in range(2, 4)]
    assert first[-1][3]
    env.set_state(state)
    assert_same([env.step(actions_for(step)) for step in range(2, 4)], first)
    env.unwrapped.set_state(state.inner)
    env.reset(seed=1)
    env.unwrapped.set_state(state.inner)
    with pytest.raises(InvalidConfig, match="outermost"):
        env.step(actions_for(2))


# -- vector -----------------------------------------------------------------------------------------------


@MODES
def test_disobedience_in_two_rows_ends_and_resets_exactly_these(head, mode):
    """Rows 1 and 3 leave the actions at frame 3; at frame 4 that is noticed."""
    seeds = [10, 11, 20, 21]
    bare = show_envs(4, autoreset_mode=mode, episode_frames=20)
    envs = RecordEpisodeStatistics(watched(show_envs(4, autoreset_mode=mode, episode_frames=20), head))
    expected, got = [bare.reset(seed=seeds)[0]], [envs.reset(seed=seeds)[0]]
    for step in range(1, 8):
        actions = actions_for(step, (4, 7))
        theirs = bare.step(actions)
        if mode != "SameStep" and step == 5:
            actions[[1, 3]] = np.nan  # nobody may look at the actions of rows that are over
        mine = envs.step(actions)
        got.append(mine[0])
        expected.append(theirs[0])
        ended = step == 4 or (step > 4 and mode == "Disabled")
        assert not mine[2].any()
        assert mine[3].tolist() == [False, ended, False, ended]
        if step == 4:
            assert mine[4]["episode"]["l"].tolist() == [0, 4, 0, 4]
            last = mine[4]["final_info"] if mode == "SameStep" else mine[4]
            assert last["consistency"]["alarm"][[1, 3]].tolist() == ["disagreement"] * 2
            assert last["consistency"]["_alarm"].tolist() == [False, True, False, True]
            if mode == "SameStep":
                np.testing.assert_array_equal(mine[4]["final_obs"][1], theirs[0][1])
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(mine[[0, 2]], theirs[[0, 2]])
    calls = [call for call in envs.unwrapped.engine.world.calls if call[0] == "reset"]
    assert calls == [("reset", (0, 1, 2, 3))] + ([] if mode == "Disabled" else [("reset", (1, 3))])
    if mode == "Disabled":
        assert envs.unwrapped.engine.world.calls[-1] == ("step", (0, 2))
        np.testing.assert_array_equal(got[-1][[1, 3]], got[4][[1, 3]])
        envs.reset(options={"reset_mask": np.array([False, True, False, True])})
        assert not envs.step(actions_for(9, (4, 7)))[3].any()


@MODES
def test_a_row_that_was_reset_starts_anew(head, mode):
    """The next episode of a row has another seed, so it obeys or has its own fault: as a single one does."""
    envs = watched(show_envs(3, autoreset_mode=mode, episode_frames=8), head)
    _, infos = envs.reset(seed=[1, 2, 10])
    lengths, now = [], np.zeros(3, int)
    over = np.zeros(3, bool)
    for step in range(40):
        _, _, _, truncated, infos = envs.step(actions_for(step, (3, 7)))
        if mode == "NextStep":
            now = np.where(over, 0, now + 1)
        else:
            now = now + 1
        told = infos.get("consistency", {"_mean_disagreement": np.zeros(3, bool)})
        if mode == "NextStep":  # a row that is being reset has nothing to tell
            assert told["_mean_disagreement"].tolist() == (~over).tolist()
        over = truncated.copy()
        lengths += [(row, int(now[row])) for row in np.flatnonzero(over)]
        if mode == "SameStep":
            now[over] = 0
        if mode == "Disabled" and over.any():
            envs.reset(options={"reset_mask": over})
            now[over] = 0
    assert lengths[:2] == [(0, 4), (1, 6)] or lengths[:2] == [(0, 4), (1, 4)]
    assert {length for _, length in lengths} <= {3, 4, 5, 6, 8}
    assert len(lengths) >= 12


@MODES
@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_gymnasiums_vector_environments_are_watched_alike(head, mode, kind):
    makers = [lambda: show_env(episode_frames=6)] * 2
    mine = watched(kind(makers, autoreset_mode=mode), head, action_spec="worldgym")
    true = watched(show_envs(2, episode_frames=6, autoreset_mode=mode), head)
    for envs in (mine, true):
        envs.reset(seed=[1, 0])
    for step in range(12):
        actions = actions_for(step, (2, 7))
        results = [envs.step(actions.copy()) for envs in (mine, true)]
        assert_same(results[0][:4], results[1][:4], f"step {step}")
        final = [result[4].get("final_info", {}).get("consistency") for result in results]
        assert_same(*final)
        over = results[0][3]
        if mode == "Disabled" and over.any():
            for envs in (mine, true):
                envs.reset(options={"reset_mask": over.copy()})
    mine.close()


def test_a_foreign_environment_must_not_be_stepped_past_the_end(head):
    envs = watched(SyncVectorEnv([show_env] * 2, autoreset_mode="Disabled"), head)
    envs.reset(seed=[1, 0])
    for step in range(4):
        envs.step(actions_for(step, (2, 7)))
    with pytest.raises(ResetNeeded, match=r"rows \[0\]"):
        envs.step(actions_for(5, (2, 7)))


@MODES
def test_rows_equal_single_environments(head, mode):
    envs = watched(show_envs(2, autoreset_mode=mode, chunk_size=2), head)
    envs.reset(seed=[0, 1])
    single = watched(show_env(chunk_size=2), head)
    single.reset(seed=1)
    for step in range(2):
        actions = actions_for(step, (2, 2, 7))
        one, many = single.step(actions[1]), envs.step(actions)
        assert one[3] == many[3][1]
        infos = many[4]["final_info"] if one[3] and mode == "SameStep" else many[4]
        for key, value in one[4]["consistency"].items():
            np.testing.assert_array_equal(infos["consistency"][key][1], value)
    assert one[3]


@MODES
@pytest.mark.parametrize("outside", [False, True])
def test_it_goes_inside_and_outside_of_a_judge(head, mode, outside):
    judge = Counting(never)
    envs = show_envs(2, autoreset_mode=mode, episode_frames=20)
    if outside:
        envs = VectorVLMReward(VectorVLMTermination(envs, judge, every=50), judge, every=50)
        envs = watched(envs, head)
    else:
        envs = watched(envs, head)
        envs = VectorVLMReward(VectorVLMTermination(envs, judge, every=50), judge, every=50)
    envs.reset(seed=[1, 0])
    ends = []
    for step in range(7):
        _, _, terminated, truncated, _ = envs.step(actions_for(step, (2, 7)))
        assert not terminated.any()
        ends.append(truncated.tolist())
    held = mode == "Disabled"
    assert ends == [[False, False]] * 3 + [[True, False]] + [[held, False]] * 3
    # inside, the judge sees an end; outside, nobody asks about an imagination that is not to be trusted
    assert [clip.frame_indices[-1] for clip in judge.clips] == ([] if outside else [4])


@MODES
def test_it_works_in_stable_baselines3(head, mode):
    venv = SB3VecEnv(watched(show_envs(2, autoreset_mode=mode, episode_frames=20), head))
    venv.seed(1)
    venv.reset()
    ends = {}
    for step in range(1, 7):
        _, _, dones, infos = venv.step(actions_for(step, (2, 7)))
        for row in np.flatnonzero(dones):
            ends.setdefault(int(row), (step, infos[row]["consistency"]["alarm"]))
            assert infos[row]["TimeLimit.truncated"]
    assert ends[0] == (4, "disagreement")
    assert ends[1] == (4, "disagreement")  # a frozen picture does not show the action either


@MODES
def test_tensors_stay_tensors(head, mode):
    import torch

    tensors = watched(show_envs(2, autoreset_mode=mode, output="torch"), head)
    arrays = watched(show_envs(2, autoreset_mode=mode), head)
    for envs in (tensors, arrays):
        envs.reset(seed=[1, 0])
    for step in range(6):
        actions = actions_for(step, (2, 7))
        mine, theirs = tensors.step(torch.from_numpy(actions)), arrays.step(actions)
        for left, right in zip(mine[:4], theirs[:4], strict=True):
            assert isinstance(left, torch.Tensor)
            np.testing.assert_array_equal(left.numpy(), right)


def test_rows_can_be_branched(head):
    envs = watched(show_envs(2), head)
    envs.reset(seed=[1, 0])
    for step in range(2):
        envs.step(actions_for(step, (2, 7)))
    envs.set_state(envs.get_state(0), 1)
    flags = []
    for step in range(2, 4):
        actions = actions_for(step, (2, 7))
        actions[1] = actions[0]
        flags.append(envs.step(actions)[3].tolist())
    assert flags == [[False, False], [True, True]]
    envs.set_state(envs.get_state())
    with pytest.raises(InvalidConfig, match="one state per row"):
        envs.set_state([envs.get_state(0)])


# -- the threshold ----------------------------------------------------------------------------------------


def test_the_threshold_is_the_conformal_quantile():
    assert conformal_threshold(np.arange(1, 20), 0.05) == 19  # ceil(20 * 0.95) = 19th of 19
    assert conformal_threshold(np.arange(1, 100), 0.1) == 90
    assert conformal_threshold([3.0, np.nan, 1.0], 0.5) == 3.0
    with pytest.raises(InvalidConfig, match="at least 19"):
        conformal_threshold(np.arange(1, 19), 0.05)


@pytest.mark.parametrize("alpha", [0.05, 0.2])
@pytest.mark.parametrize("episodes", [59, 200])
def test_a_share_of_alpha_of_obeying_episodes_is_ended(alpha, episodes):
    """Coverage over many calibrations: between alpha - 1/(n+1) and alpha, whatever the distribution."""
    rng = np.random.default_rng(5)
    rates = []
    for _ in range(300):
        scale = rng.lognormal(0, 0.5, (episodes + 200, 1))  # frames of an episode have much in common
        missed = scale * rng.exponential(1.0, (episodes + 200, 30))
        gaps = np.stack([missed, rng.exponential(2.0, missed.shape)], axis=-1)
        scores = episode_scores(gaps, 8)
        rates.append(float((scores[episodes:] > conformal_threshold(scores[:episodes], alpha)).mean()))
    rate, error = np.mean(rates), np.std(rates) / np.sqrt(len(rates))
    assert alpha - 1 / (episodes + 1) - 3 * error < rate < alpha + 3 * error


def test_an_episodes_score_is_its_worst_window():
    nan = np.nan
    missed = np.array([[1, 1, 5, 3, 1], [9, 1, 1, nan, nan], [2, nan, nan, nan, nan]])
    compared = np.stack([missed, np.ones_like(missed)], axis=-1)
    assert episode_scores(compared, 2)[:2].tolist() == [8 / 4, 10 / 4]  # (5 + 3) / (1 + 1 + 2)
    assert np.isnan(episode_scores(compared, 2)[2])
    assert np.isnan(episode_scores(compared, 6)).all()
