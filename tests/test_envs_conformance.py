"""What Gymnasium and Stable-Baselines3 check of environments, with a tiny checkpoint."""

import copy
import functools
import gc
import pickle
import subprocess
import sys
import textwrap

import gymnasium
import numpy as np
import psutil
import pytest
import stable_baselines3.common.env_checker
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stand_ins import assert_same, paint_env, paint_envs

import worldgym
from worldgym.envs.world import WorldEnv, WorldVectorEnv
from worldgym.errors import MissingExtra
from worldgym.video import read_video

WORLD_ID = "worldgym:WorldGym-Bridge-v0"
MODES = pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])


@pytest.fixture
def options(tiny_checkpoint, tiny_trials):
    return {"checkpoint": str(tiny_checkpoint), "trials": str(tiny_trials)}


# -- checkers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"chunk_size": 2}, {"context": "rolling"}], ids=str)
def test_gymnasiums_checker_passes_without_a_warning(options, extra):
    check_env(gymnasium.make(WORLD_ID, **options, **extra).unwrapped)


@pytest.mark.parametrize("chunk", [1, 2])
def test_stable_baselines_checker_passes_without_a_warning(options, chunk):
    env = gymnasium.make(WORLD_ID, chunk_size=chunk, render_mode="rgb_array", **options)
    stable_baselines3.common.env_checker.check_env(env.unwrapped)  # its render check closes, then goes on


def test_a_world_with_truth_passes_both_checkers():
    spec = EnvSpec("Paint-v0", entry_point="stand_ins:paint_env", kwargs={"success": True})
    check_env(gymnasium.make(spec).unwrapped)
    stable_baselines3.common.env_checker.check_env(gymnasium.make(spec).unwrapped)


# -- registration ---------------------------------------------------------------------------------


def test_the_ids_have_single_and_vector_entry_points_given_as_strings():
    for name in ("WorldGym-Bridge-v0", "WorldGym-BridgeTwin-v0"):
        spec = gymnasium.spec(name)
        assert isinstance(spec.entry_point, str)
        assert isinstance(spec.vector_entry_point, str)
        assert spec.max_episode_steps is None, "the limit lives in the environment alone"


def test_make_gives_the_declared_metadata_and_horizon(options):
    env = gymnasium.make(WORLD_ID, episode_frames=3, **options)
    assert isinstance(env.unwrapped, WorldEnv)
    assert env.metadata == {"render_modes": ["rgb_array"], "render_fps": 5.0, "judge_delay": 0}
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(3)] == [False, False, True]


def test_make_vec_gives_the_native_environment_with_the_same_arguments(options):
    envs = gymnasium.make_vec(WORLD_ID, num_envs=2, max_episode_steps=2, autoreset_mode="SameStep", **options)
    assert isinstance(envs.unwrapped, WorldVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    envs.reset(seed=0)
    assert [envs.step(envs.action_space.sample())[3].tolist() for _ in range(2)] == [[False] * 2, [True] * 2]
    assert envs.get_attr("spec")[0].id == "WorldGym-Bridge-v0"
    default = gymnasium.make_vec(WORLD_ID, **options)
    assert (default.num_envs, default.metadata["autoreset_mode"]) == (1, AutoresetMode.NEXT_STEP)


def test_single_and_vector_accept_the_same_arguments(options):
    options |= {"autoreset_mode": "NextStep"}
    sync = gymnasium.make_vec(WORLD_ID, num_envs=2, vectorization_mode="sync", **options)
    native = gymnasium.make_vec(WORLD_ID, num_envs=2, **options)
    assert_same(native.reset(seed=3), sync.reset(seed=3))


def test_lists_of_rendered_frames_are_collected_by_gymnasium(options):
    env = gymnasium.make(WORLD_ID, render_mode="rgb_array_list", **options)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    assert len(env.render()) == 2


def test_specs_go_through_json_pickle_and_deepcopy(options):
    env = gymnasium.make(WORLD_ID, chunk_size=2, **options)
    for spec in (
        EnvSpec.from_json(env.spec.to_json()),
        pickle.loads(pickle.dumps(env.spec)),
        copy.deepcopy(env.spec),
    ):
        again = gymnasium.make(spec)
        assert again.unwrapped.config == env.unwrapped.config
        assert_same(again.reset(seed=1), env.reset(seed=1))
    envs = gymnasium.make_vec(WORLD_ID, num_envs=3, **options)
    assert "chunk_size" not in envs.spec.to_json()
    assert gymnasium.make_vec(envs.spec).num_envs == 3


@pytest.mark.parametrize("make", [gymnasium.make, gymnasium.make_vec])
def test_the_twin_names_its_extra_when_mujoco_is_missing(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(MissingExtra, match=r"worldgym\[twin\]"):
        make("worldgym:WorldGym-BridgeTwin-v0")


def test_registering_again_keeps_what_is_registered():
    before = gymnasium.spec("WorldGym-Bridge-v0")
    worldgym.registration.register_all()
    assert gymnasium.spec("WorldGym-Bridge-v0") is before


# -- processes ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_async_vector_env_with_spawn_gives_the_same_as_the_native_one(options):
    made = functools.partial(gymnasium.make, WORLD_ID, episode_frames=2, **options)
    asynchronous = gymnasium.vector.AsyncVectorEnv([made] * 2, context="spawn")
    native = gymnasium.make_vec(WORLD_ID, num_envs=2, episode_frames=2, **options)
    try:
        assert_same(native.reset(seed=0), asynchronous.reset(seed=0))
        assert asynchronous.call("_max_episode_steps") == (2, 2)
        assert asynchronous.get_attr("task_description") == native.get_attr("task_description")
        for _ in range(4):
            actions = native.action_space.sample()
            assert_same(native.step(actions), asynchronous.step(actions))
    finally:
        asynchronous.close()


def test_a_script_that_never_closes_ends_silently_with_status_zero(options):
    script = f"""
        import gymnasium
        env = gymnasium.make({WORLD_ID!r}, **{options!r})
        envs = gymnasium.make_vec({WORLD_ID!r}, num_envs=2, **{options!r})
        env.reset(seed=0), envs.reset(seed=0)
        env.step(env.action_space.sample()), envs.step(envs.action_space.sample())
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- wrappers of Gymnasium --------------------------------------------------------------------------


@MODES
def test_recorded_statistics_equal_own_sums_in_every_mode(mode):
    envs = RecordEpisodeStatistics(paint_envs(3, success=True, episode_frames=6, autoreset_mode=mode))
    envs.reset(seed=0)
    totals, lengths, ended = np.zeros(3), np.zeros(3, int), np.zeros(3, bool)
    recorded = 0
    for _ in range(30):
        _, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        played = ~ended if mode == "NextStep" else np.ones(3, bool)
        totals, lengths = totals + rewards, lengths + played
        over = terminated | truncated
        for row in np.flatnonzero(over):
            assert infos["_episode"][row]
            assert (infos["episode"]["r"][row], infos["episode"]["l"][row]) == (totals[row], lengths[row])
            recorded += 1
        totals[over], lengths[over], ended = 0, 0, over
        if mode == "Disabled" and over.any():
            envs.reset(options={"reset_mask": over})
    assert recorded >= 12


def test_a_masked_reset_under_the_statistics_wrapper_leaves_the_other_rows_counting():
    envs = RecordEpisodeStatistics(paint_envs(2, episode_frames=5, autoreset_mode="Disabled"))
    envs.reset(seed=0)
    for _ in range(3):
        envs.step(envs.action_space.sample())
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs.episode_lengths.tolist() == [0, 3]


def test_gymnasiums_own_wrappers_work_around_both_forms():
    env = gymnasium.wrappers.TimeLimit(gymnasium.wrappers.RecordEpisodeStatistics(paint_env()), 3)
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(3)] == [False, False, True]
    envs = gymnasium.wrappers.vector.DictInfoToList(paint_envs(2))
    assert [info["frame_index"] for info in envs.reset(seed=0)[1]] == [0, 0]


def test_gymnasiums_recorder_writes_every_frame_of_every_episode(tmp_path, moviepy_stand_in):
    env = paint_env(render_mode="rgb_array", episode_frames=4)
    env = gymnasium.wrappers.RecordVideo(env, str(tmp_path / "new"), episode_trigger=lambda episode: True)
    starts = []
    for episode in range(3):
        starts.append(env.reset(seed=0 if episode == 0 else None)[0])
        for _ in range(4):
            env.step(env.action_space.sample())
    env.close()
    videos = [read_video(path) for path in sorted(tmp_path.glob("new/*.mp4"))]
    assert [len(video) for video in videos] == [5, 5, 5]
    for video, start in zip(videos, starts, strict=True):
        assert np.abs(video[0].astype(int) - start).mean() < 4, "the first frame is the start frame"
        assert video[1:].std(axis=(1, 2, 3)).min() > 10, "no frame is empty"


def test_gymnasiums_vector_recorder_works(tmp_path, moviepy_stand_in):
    envs = paint_envs(2, render_mode="rgb_array", episode_frames=4)
    envs = gymnasium.wrappers.vector.RecordVideo(
        envs, str(tmp_path / "new"), episode_trigger=lambda episode: True
    )
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(envs.action_space.sample())
    envs.close()
    lengths = [len(read_video(path)) for path in sorted(tmp_path.glob("new/*.mp4"))]
    assert lengths[0] == 5


# -- memory ---------------------------------------------------------------------------------------


def test_two_hundred_resets_keep_memory_flat(options):
    envs = gymnasium.make_vec(WORLD_ID, num_envs=2, num_inference_steps=1, **options)
    process = psutil.Process()
    for episode in range(200):
        envs.reset(seed=episode if episode % 2 else None)
        envs.step(envs.action_space.sample())
        if episode == 50:
            gc.collect()
            before = process.memory_info().rss
    gc.collect()
    assert process.memory_info().rss - before < 8 * 2**20


def test_two_thousand_steps_without_reset_keep_memory_and_pace():
    run_two_thousand_steps(paint_envs(2, episode_frames=None))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["window", "rolling"])
def test_two_thousand_steps_of_the_learned_world_keep_memory_and_pace(options, context):
    options |= {"context": context, "episode_frames": None, "num_inference_steps": 1}
    run_two_thousand_steps(gymnasium.make_vec(WORLD_ID, **options))


def run_two_thousand_steps(envs):
    envs.reset(seed=0)
    process, marks, action = psutil.Process(), [], envs.action_space.sample()
    for step in range(2001):
        envs.step(action)
        if step % 500 == 0:
            gc.collect()
            marks.append((process.cpu_times().user, process.memory_info().rss))
    assert marks[4][1] - marks[1][1] < 8 * 2**20
    assert marks[4][0] - marks[3][0] < 1.5 * (marks[2][0] - marks[1][0]) + 0.1
