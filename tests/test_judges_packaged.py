"""The packaged judge: what it answers, to whom it does not, and rewards of environments that it judges."""

import json
import pickle
import shutil

import gymnasium
import numpy as np
import pytest

from worldgym.episode import Outcome
from worldgym.errors import CheckpointError
from worldgym.judges import Clip, Rubric, load_judge
from worldgym.judges.network import moments
from worldgym.judges.packaged import CONFIG_FILE, PACKAGED_JUDGE, WEIGHTS_FILE, PackagedJudge
from worldgym.judges.vocabulary import KnownTask, Vocabulary
from worldgym.tasks import load_suite

CARROT = "put the carrot on the plate"


@pytest.fixture(scope="module")
def judge():
    return PackagedJudge()


def noise(seed=0, frames=12, size=64, instruction=CARROT, **options):
    images = np.random.default_rng(seed).integers(0, 256, (frames, size, size, 3), np.uint8)
    return Clip(images, instruction, **options)


def plain(verdict):
    return verdict.outcome, verdict.reason, verdict.frame_indices


# -- what it knows ----------------------------------------------------------------------------------


def test_every_wording_of_every_core_task_is_judged(judge):
    pytest.importorskip("mujoco")
    from worldgym.envs.twin_tasks import CORE_TASKS

    wordings = {text: key for key, task in CORE_TASKS.items() for text in (*task.instructions, *task.unseen)}
    verdicts = judge.judge([noise(instruction=text.upper() + "!") for text in wordings])
    assert len(verdicts) > 30
    for verdict, key in zip(verdicts, wordings.values(), strict=True):
        assert verdict.outcome is not Outcome.UNSCORED
        assert verdict.reason.startswith(f"{key}: success 0.")


@pytest.mark.parametrize(
    "wording", ["put the banana on the plate", "carrot", "do not put the carrot on the plate", "stop"]
)
def test_a_wording_that_it_does_not_know_is_unscored_not_guessed(judge, wording):
    known, other = judge.judge([noise(), noise(instruction=wording)])
    assert known.outcome is not Outcome.UNSCORED
    assert (other.outcome, other.score) == (Outcome.UNSCORED, None)
    assert wording in other.reason


def test_the_first_of_two_tasks_has_the_wording_that_they_share():
    first = KnownTask("a", "lift", "cup", None, ("Lift the cup!",))
    tasks = Vocabulary([first, KnownTask("b", "lift", "mug", None, ("lift  the CUP", "lift the mug"))])
    assert (tasks.find("lift the cup"), tasks.find("Lift the mug."), tasks.find("lift")) == (0, 1, None)
    assert Vocabulary.from_list(json.loads(json.dumps(tasks.as_list()))).tasks == tasks.tasks


# -- how it answers ---------------------------------------------------------------------------------


def test_a_verdict_depends_neither_on_its_neighbours_nor_on_who_asks(judge):
    clips = [noise(seed, frames=5 + 3 * seed, size=40 + 12 * seed) for seed in range(5)]
    together, again = judge.judge(clips), PackagedJudge().judge(clips)
    alone = [judge.judge([clip])[0] for clip in clips]
    assert [plain(one) for one in together] == [plain(one) for one in again] == [plain(one) for one in alone]
    np.testing.assert_allclose([v.score for v in together], [v.score for v in alone], atol=1e-4)
    assert load_judge("packaged").identity == judge.identity


def test_it_looks_at_the_same_moments_of_a_video_with_fewer_frames(judge):
    full = noise(frames=21, fps=5.0)
    some = [0, 3, 8, *range(16, 21)]
    thinned = Clip(full.frames[some], CARROT, frame_indices=tuple(some), fps=5.0)
    one, other = judge.judge([full, thinned])
    assert one.frame_indices == other.frame_indices == (0, 16, 18, 19, 20)
    assert one.score == pytest.approx(other.score, abs=1e-5)
    assert moments(range(41), 10.0) == [0, 32, 36, 38, 40]
    assert moments([0], None) == [0] * 5


def test_the_score_is_the_chance_the_grade_or_the_progress(judge):
    task = judge.config.vocabulary.tasks[0]
    ways = [{}, {"rubric": Rubric.PROGRESS}, {"rubric": Rubric.PARTIAL, "criteria": task.criteria}]
    chance, progress, grade = judge.judge([noise(**way) for way in ways])
    assert chance.reason == progress.reason == grade.reason
    assert f"success {chance.score:.2f}, progress {progress.score:.2f}" in chance.reason
    assert (chance.score >= judge.config.threshold) is chance.success
    assert grade.score in (0.0, 0.5, 1.0)
    (unknown,) = judge.judge([noise(rubric=Rubric.PARTIAL, criteria="the robot waves")])
    assert unknown.outcome is Outcome.UNSCORED
    assert "the robot waves" in unknown.reason


def test_it_is_small_and_its_card_says_how_it_was_made(judge):
    assert sum(file.stat().st_size for file in PACKAGED_JUDGE.iterdir()) < 10e6
    assert {"twin", "model", "steps"} <= set(judge.config.trained)


def test_it_can_be_pickled_before_and_after_use():
    fresh = PackagedJudge()
    (verdict,) = fresh.judge([noise()])
    (again,) = pickle.loads(pickle.dumps(fresh)).judge([noise()])
    assert plain(again) == plain(verdict)


@pytest.mark.parametrize(
    ("file", "content"), [(CONFIG_FILE, "{"), (CONFIG_FILE, '{"vocabulary": []}'), (WEIGHTS_FILE, "x")]
)
def test_a_broken_judge_folder_is_named(tmp_path, file, content):
    folder = tmp_path / "judge"
    shutil.copytree(PACKAGED_JUDGE, folder)
    (folder / file).write_text(content)
    with pytest.raises(CheckpointError, match=file):
        PackagedJudge(folder).judge([noise()])


# -- whether it is right ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def watched():
    """Episodes of the twin that no training has seen: each task once by an expert, once by a random arm."""
    pytest.importorskip("mujoco")
    from worldgym.envs.camera import Renderer
    from worldgym.envs.twin_episode import record
    from worldgym.envs.twin_scenes import make_scene
    from worldgym.envs.twin_tasks import CORE_TASKS

    renderer = Renderer(64, 64)
    episodes = []
    for number, task in enumerate(CORE_TASKS.values()):
        scene = make_scene(task, 10_000 + number, purpose="trial")
        for family in ("expert", "random"):
            episodes.append(record(task, scene, family, seed=number, renderer=renderer))
    renderer.close()
    return episodes


def questions(episode):
    """What an environment asks: every five frames, with the truth."""
    for end in range(5, len(episode), 5):
        yield Clip(episode.frames[: end + 1], episode.instruction, fps=5.0), episode.metadata["success"][end]


def test_it_tells_successes_from_failures_of_the_twin(judge, watched):
    said, true, chances, truths = [], [], [], []
    for episode in watched:
        clips, truth = zip(*questions(episode), strict=True)
        verdicts = judge.judge(clips)
        said.append(any(verdict.success for verdict in verdicts))
        true.append(any(truth))
        chances += [verdict.score for verdict in verdicts]
        truths += truth
    said, true = np.array(said), np.array(true)
    assert true.sum() >= 8
    assert said[true].mean() >= 0.75, "13 experts at most: a judge with 92 % passes nearly always"
    assert said[~true].mean() <= 0.2
    assert np.square(np.array(chances) - truths).mean() < 0.5 * np.var(truths), (
        "Brier: better than the base rate"
    )


def test_another_instruction_flips_the_verdict_on_a_success(judge, watched):
    from worldgym.training.judge_truth import task_truths

    tasks, flips = {task.key: task for task in judge.config.vocabulary.tasks}, []
    for episode in watched[::2]:
        success = np.flatnonzero(episode.metadata["success"])
        if not len(success):
            continue
        end, there = int(success[-1]), set(episode.metadata["names"])
        others = [
            k for k, t in tasks.items() if k != episode.task and {t.target, t.goal or t.target} <= there
        ]
        unsolved = [k for k, t in zip(others, task_truths(episode, others)[:, end, 0], strict=True) if t == 0]
        clips = [Clip(episode.frames[: end + 1], tasks[key].instructions[0], fps=5.0) for key in unsolved]
        flips += [verdict.outcome is Outcome.FAILURE for verdict in judge.judge(clips)]
    assert len(flips) >= 8
    assert np.mean(flips) >= 0.8


def play(env, actions, **reset):
    """Rewards and flags of an episode, and the last info."""
    env.reset(**reset)
    rewards, terminated, truncated, info = [], False, False, {}
    for action in actions:
        _, reward, terminated, truncated, info = env.step(action)
        rewards.append(reward)
        if terminated or truncated:
            break
    return rewards, terminated, truncated, info


def expert_actions(trial, task):
    from worldgym.envs.expert import expert
    from worldgym.envs.physics import Physics

    physics = Physics(trial.scene)
    script = expert(task.rule, physics, np.random.default_rng(0))
    for _ in range(40):
        action = np.clip(next(script), -1, 1).astype(np.float32)
        yield action
        physics.act(action)


@pytest.mark.parametrize("task", ["put_carrot_on_plate", "lift_can"])
def test_judged_by_it_an_expert_earns_one_and_ends_early(task):
    pytest.importorskip("mujoco")
    from worldgym.envs.twin_tasks import get_task

    env = gymnasium.make("worldgym:WorldGym-BridgeTwin-v0", judge="packaged")
    earned = []
    for trial in load_suite().trials(task)[:4]:
        actions = expert_actions(trial, get_task(task))
        rewards, terminated, _, info = play(env, actions, seed=0, options={"task": task, "trial": trial.name})
        assert info["reward_verdict"]["frame_index"] == len(rewards)
        earned.append(terminated and len(rewards) < 40 and rewards[-1] == 1.0 == sum(rewards))
    env.close()
    assert sum(earned) >= 3


@pytest.mark.parametrize("world", ["WorldGym-Bridge-v0", "WorldGym-BridgeTwin-v0"])
def test_judged_by_it_a_random_arm_earns_nothing(world):
    pytest.importorskip("mujoco")
    env = gymnasium.make(f"worldgym:{world}", judge="packaged", episode_frames=20)
    env.action_space.seed(0)
    totals = [sum(play(env, (env.action_space.sample() for _ in range(20)), seed=seed)[0]) for seed in (0, 1)]
    env.close()
    assert totals == [0.0, 0.0]


@pytest.mark.slow
def test_the_learned_world_rewards_and_ends_an_experts_replay_by_default():
    pytest.importorskip("mujoco")
    from worldgym.envs.twin_tasks import CORE_TASKS

    env = gymnasium.make("worldgym:WorldGym-Bridge-v0")
    earned = []
    for key, task in CORE_TASKS.items():
        trial = load_suite().trials(key)[0]
        actions = expert_actions(trial, task)
        rewards, terminated, _, _ = play(env, actions, seed=0, options={"task": key, "trial": trial.name})
        earned.append(terminated and sum(rewards) == 1.0)
    env.close()
    assert np.mean(earned) >= 0.5
