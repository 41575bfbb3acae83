"""Evaluation on a Ray cluster: the same results, whatever becomes of the actors."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from line_world import BrightJudge, Pusher, line_config, register
from ray_stand_in import StandIn

from worldgym.errors import InvalidConfig, JudgeError, MissingExtra, PolicyError, RunError
from worldgym.evaluation import remote
from worldgym.evaluation.plan import build_plan
from worldgym.evaluation.remote import MOST_LOSSES, RayConfig, RayRunner
from worldgym.evaluation.run import evaluate
from worldgym.evaluation.store import RunStore
from worldgym.evaluation.summary import summarise

register()


@pytest.fixture
def cluster(monkeypatch):
    """A function that puts a stand-in for Ray in place."""

    def start(loses=lambda *_: False, **resources):
        stand_in = StandIn(loses, **resources)
        monkeypatch.setattr(remote, "require", lambda name, extra: stand_in)
        return stand_in

    return start


def table(run):
    """Everything in a run that must not depend on where it was played."""
    with RunStore(run) as store:
        verdicts = {judge: store.verdicts(judge) for judge in store.judges()}
        return {
            episode.key: (
                episode.load_frames().tobytes(),
                episode.actions.tobytes(),
                episode.success,
                episode.progress,
                episode.told,
                episode.ended,
                {judge: (of[episode.key].outcome, of[episode.key].score) for judge, of in verdicts.items()},
            )
            for episode in store.episodes()
        }


def failures(run):
    return [(failure.stage, failure.policy, failure.error) for failure in summarise(run).failures]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The run of ``line_config``, played in this process."""
    folder = tmp_path_factory.mktemp("here")
    evaluate(line_config(folder))
    return folder


def test_a_cluster_gives_the_results_of_a_local_run(tmp_path, cluster, here):
    ray = cluster()
    seen = []
    summary = evaluate(line_config(tmp_path, ray="auto?cpus=0.5"), on_progress=seen.append)
    assert table(tmp_path) == table(here)
    assert len(table(here)) == 12
    assert summary.info.identity_hash == summarise(here).info.identity_hash
    judges = [actor for actor in ray.actors if "max_restarts" in actor.reserved]
    assert (len(ray.actors), len(judges)) == (3, 1)
    assert not any(actor.alive for actor in ray.actors)
    assert ray.joined == ["auto", "left"]
    assert seen[-1].stage == "judge"


def test_a_run_begun_here_is_continued_on_a_cluster(tmp_path, cluster):
    changes = {"policies": [Pusher("fast", 0.9), "nonsense"], "trials_per_task": 1}
    evaluate(line_config(tmp_path, **changes))
    ray = cluster()
    assert evaluate(line_config(tmp_path, **changes, ray="local?actors=2")).played == 2
    assert failures(tmp_path)[0][:2] == ("policy", "nonsense")
    assert len(ray.actors) == 3  # the judge and two that found nothing to play


@pytest.mark.parametrize(
    "loses",
    [
        lambda actor, method, item: (actor, method, item) == (2, "play", 2),
        lambda actor, method, item: actor in (2, 3) and method == "play",
        lambda actor, method, item: actor in (2, 3) and method == "open",
        lambda actor, method, item: (actor, method) == (1, "load"),
    ],
    ids=["with results on their way", "two of them", "before they are open", "while loading"],
)
def test_what_a_lost_actor_was_playing_is_played_again(tmp_path, cluster, here, loses):
    ray = cluster(loses)
    summary = evaluate(line_config(tmp_path, ray="local"))
    assert summary.failures == ()
    assert table(tmp_path) == table(here)
    assert len(ray.actors) > 3


def test_an_episode_that_no_actor_survives_is_a_failure_and_costs_no_other(tmp_path, cluster):
    class Sinking(Pusher):
        def act(self, rows, frames):
            if any(self.told[row] == "go 2" for row in rows):
                ray.actors[-1].alive = False
            return super().act(rows, frames)

    ray = cluster()
    summary = evaluate(line_config(tmp_path, policies=[Sinking("p", 0.9)], ray="local?actors=1"))
    assert summary.played == 3
    assert {failure.start.task for failure in summary.failures} == {"task_1"}
    assert all(f"{MOST_LOSSES} actors were lost" in failure.error for failure in summary.failures)


def test_a_cluster_on_which_nothing_survives_ends_the_run(tmp_path, cluster):
    cluster(lambda actor, method, item: method == "play")
    with pytest.raises(RunError, match="lost in a row"):
        evaluate(line_config(tmp_path, seeds=range(5), ray="local?actors=1", num_envs=2))
    cluster(lambda actor, method, item: method == "load")
    summary = evaluate(line_config(tmp_path, seeds=range(5), ray="local?actors=1"))
    assert {failure.error.partition(":")[0] for failure in summary.failures} == {PolicyError.__name__}


def test_failures_of_policies_and_episodes_come_back(tmp_path, cluster):
    policies = ["nonsense", Pusher("half", 0.9, breaks_at="go 2"), Pusher("none", 0.9, breaks_at="go")]
    evaluate(line_config(tmp_path / "here", policies=policies, give_up_after=4))
    cluster()
    evaluate(line_config(tmp_path / "ray", policies=policies, give_up_after=4, ray="local?actors=1"))
    assert failures(tmp_path / "ray") == failures(tmp_path / "here")
    assert table(tmp_path / "ray") == table(tmp_path / "here")


def test_a_judge_that_raises_is_recorded(tmp_path, cluster):
    judge = BrightJudge(100, breaks_at="go 2")
    changes = {"policies": [Pusher("p", 0.9)], "judges": [judge], "trials_per_task": 1}
    cluster()
    evaluate(line_config(tmp_path, **changes, ray="local"))
    ((stage, policy, error),) = failures(tmp_path)
    assert (stage, policy, error) == ("judge", "p", "RuntimeError: the judge is out of order")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"env_kwargs": {"gravity": 1}}, InvalidConfig, "does not take these keyword arguments"),
        ({"judges": ["python:nowhere:judge"]}, JudgeError, "cannot be imported"),
        ({"ray": "local?gpus=0.5"}, InvalidConfig, r"needs 0.5 GPU, the Ray cluster has 0"),
        ({"ray": "local?judge_gpus=1"}, InvalidConfig, r"needs 1 GPU, the Ray cluster has 0"),
        ({"ray": "nowhere:1"}, RunError, "no Ray cluster answers at 'nowhere:1'"),
        ({"ray": "ray://head:10001"}, InvalidConfig, "ray job submit"),
        ({"ray": "local?speed=2"}, InvalidConfig, "gpus"),
        ({"ray": "local?actors=0.5"}, InvalidConfig, "gpus"),
        ({"ray": "local?actors=0"}, InvalidConfig, "actors must be a positive int"),
        ({"ray": "local?gpus=-1"}, InvalidConfig, "from 0 on"),
        ({"ray": "local?cpus=0"}, InvalidConfig, "cannot both be 0"),
        ({"ray": ""}, InvalidConfig, "HOST:PORT"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_the_run_folder_is_made(tmp_path, cluster, changes, error, words):
    cluster()
    with pytest.raises(error, match=words):
        evaluate(line_config(tmp_path / "run", **{"ray": "local", **changes}))
    assert not (tmp_path / "run").exists()


def test_actors_share_gpus_and_leave_room_for_judges(tmp_path, cluster):
    ray = cluster(GPU=1.0)
    config = line_config(tmp_path, ray=RayConfig(gpus=0.25, cpus=0, judge_gpus=0.25, threads=1), num_envs=1)
    with RayRunner(config, build_plan(config)) as runner:
        runner.load(config.policies[0])
        shares = [actor.reserved["num_gpus"] for actor in ray.actors]
    assert shares == [0.25] * 5
    assert ray.joined == ["local", "left"]


def test_without_ray_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"worldgym\[ray\]"):
        evaluate(line_config(tmp_path / "run", ray="local"))


@pytest.fixture(scope="module")
def session(tmp_path_factory, tiny_checkpoint, tiny_trials):
    """The run folders of ``ray_session.py``, played on a real cluster of this machine."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    out = tmp_path_factory.mktemp("ray")
    shutil.copytree(tiny_checkpoint, out / "learned" / "checkpoint")
    shutil.copytree(tiny_trials, out / "learned" / "trials")
    script = Path(__file__).with_name("ray_session.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    done = subprocess.run(
        [sys.executable, script, out], capture_output=True, text=True, env=environment, timeout=3600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["same", "learned"])
def test_a_real_cluster_gives_the_results_of_a_local_run_bit_for_bit(session, scenario):
    here = table(session / scenario / "here")
    assert len(here) > 3
    assert table(session / scenario / "ray") == here


@pytest.mark.slow
def test_a_killed_process_loses_and_repeats_nothing(session):
    assert (session / "losses" / "died").exists()
    found = table(session / "losses" / "ray")
    survivors = {key: row for key, row in found.items() if key.policy != "r"}
    assert survivors == table(session / "losses" / "here")
    assert {key.task for key in found if key.policy == "r"} == {"task_0"}
    assert len(failures(session / "losses" / "ray")) == 1


@pytest.mark.slow
def test_errors_of_real_actors_are_those_of_a_local_run(session):
    texts = {name: (session / "refusals" / f"{name}.txt").read_text() for name in ("env", "judge", "room")}
    assert all(text.startswith("InvalidConfig") for text in texts.values()), texts
    assert not (session / "refusals" / "refused").exists()
    stages = [(stage, policy) for stage, policy, _ in failures(session / "refusals" / "failures")]
    assert stages.count(("policy", "nonsense")) == 1
    assert stages.count(("episode", "p")) == 3
    assert sum(stage == "judge" for stage, _ in stages) == 3
