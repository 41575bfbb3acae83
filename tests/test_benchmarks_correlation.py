"""``benchmarks/correlation.py`` on stand-in worlds, and its replays and variations in the twin."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from line_world import LINE_ID, BrightJudge, Pusher, line_suite, register

from worldgym.errors import InvalidConfig
from worldgym.evaluation.plan import TRUTH, EpisodeKey, EvaluationConfig
from worldgym.evaluation.run import evaluate
from worldgym.evaluation.store import RunStore
from worldgym.registration import TWIN_ID
from worldgym.tasks import TaskSuite, load_suite

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import correlation
from correlation import AXES, Experiment, first_trials, play, results, vary_all
from correlation_numbers import Axes, Sides, carried_out, measure, outcomes
from correlation_page import page, write_results

register()

POLICIES = ("strong", "middle", "weak")
TASKS = ("a", "b", "c", "d")


def episodes(rate, *, trials=20, condition="clean"):
    """Outcomes with ``rate(policy, task)`` of the trials solved: the first ones."""
    return {
        EpisodeKey(policy, condition, task, str(trial), 0): trial < round(rate(policy, task) * trials)
        for policy in POLICIES
        for task in TASKS
        for trial in range(trials)
    }


def skill(policy, task):
    return (0.9, 0.5, 0.2)[POLICIES.index(policy)] - 0.05 * TASKS.index(task)


TRUTH_TABLE = episodes(skill)


def value(comparison, name):
    return getattr(comparison, name).over_tasks.value


def test_worlds_that_agree_have_a_perfect_score():
    found = measure(Sides(TRUTH_TABLE, TRUTH_TABLE, TRUTH_TABLE, TRUTH_TABLE), draws=200)
    assert set(found["comparisons"]) == {"whole", "judge", "world", "behaviour"}
    for comparison in found["comparisons"].values():
        assert value(comparison, "pearson") == pytest.approx(1)
        assert value(comparison, "within_policy_pearson") == pytest.approx(1)
        assert value(comparison, "mmrv") == value(comparison, "bias") == 0
    assert found["judge"]["model"]["true_positive_rate"]["value"] == 1
    assert found["per_cell"] == 20


def test_an_error_of_the_judge_is_told_from_one_of_the_world():
    kind = episodes(lambda policy, task: min(1, skill(policy, task) + 0.2))
    judge_errs = measure(Sides(TRUTH_TABLE, kind, kind, TRUTH_TABLE), draws=200)["comparisons"]
    world_errs = measure(Sides(TRUTH_TABLE, TRUTH_TABLE, kind, kind), draws=200)["comparisons"]
    assert value(judge_errs["whole"], "bias") == value(world_errs["whole"], "bias") > 0.1
    assert value(judge_errs["judge"], "bias") == value(world_errs["world"], "bias") > 0.1
    assert value(judge_errs["world"], "bias") == value(world_errs["judge"], "bias") == 0
    assert value(judge_errs["behaviour"], "bias") == 0


def test_an_episode_that_one_side_has_not_scored_counts_on_neither():
    unscored = {key: said for key, said in TRUTH_TABLE.items() if int(key.trial) % 2}
    found = measure(Sides(TRUTH_TABLE, TRUTH_TABLE, unscored, {}), draws=200)
    assert value(found["comparisons"]["whole"], "bias") == 0
    assert found["episodes"] == {"truth": 240, "judged_twin": 240, "judged_model": 120, "carried": 0}
    assert found["per_cell"] == 10
    assert "behaviour" not in found["comparisons"]
    with pytest.raises(InvalidConfig, match="share no scored episode"):
        measure(Sides(TRUTH_TABLE, TRUTH_TABLE, {}, {}), draws=200)


def test_the_bias_on_noisy_actions_leaves_the_clean_ones_out():
    def both(clean, noisy):
        return {
            **episodes(lambda *_: clean),
            **episodes(lambda *_: noisy, condition="noise:0.1"),
            **episodes(lambda *_: noisy - 0.1, condition="noise:0.5"),
        }

    real, model = both(0.9, 0.4), both(0.5, 0.7)
    noise = measure(Sides(*[TRUTH_TABLE] * 4), noise=Sides(real, real, model, model), draws=200)["noise"]
    assert noise["bias"]["value"] == pytest.approx(0.3)
    assert [(level["condition"], level["real"], level["model"]) for level in noise["levels"]] == [
        ("clean", pytest.approx(0.9), pytest.approx(0.5)),
        ("noise:0.1", pytest.approx(0.4), pytest.approx(0.7)),
        ("noise:0.5", pytest.approx(0.3), pytest.approx(0.6)),
    ]


def test_choosing_a_checkpoint_by_the_learned_world_has_a_price():
    upside_down = episodes(lambda policy, task: 1 - skill(policy, task))
    ladder = Sides(TRUTH_TABLE, TRUTH_TABLE, upside_down, {})
    found = measure(ladder, checkpoints=POLICIES[::-1], draws=200)["checkpoints"]
    assert (found["chosen"], found["kendall"]) == ("weak", -1)
    assert found["regret"] == pytest.approx(0.7)
    right = measure(Sides(*[TRUTH_TABLE] * 4), checkpoints=POLICIES, draws=200)["checkpoints"]
    assert (right["chosen"], right["kendall"], right["regret"]) == ("strong", 1, 0)


def test_unusual_scenes_stand_beside_the_usual_ones_that_they_were_made_from():
    unusual = {
        key._replace(task=f"light/{key.task}"): False
        for key in TRUTH_TABLE
        if key.policy == "strong" and int(key.trial) < 2
    }
    known = {key: True for key in unusual if not key.task.endswith("d")}
    axes = Axes(
        Sides(unusual, unusual, known, {}), {f"{task}/{n}" for task in TASKS for n in "01"}, ["strong"]
    )
    found = measure(Sides(*[TRUTH_TABLE] * 4), axes=axes, draws=200)["axes"]
    assert found["rates"] == [
        {"policy": "strong", "axis": "usual", "real": 1.0, "model": 1.0, "episodes": 8},
        {"policy": "strong", "axis": "light", "real": 0.0, "model": 1.0, "episodes": 6},
    ]
    assert found["left_out"] == 2


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    return Experiment(
        out=tmp_path_factory.mktemp("correlation"),
        policies=(Pusher("fast", 0.9), Pusher("slow", 0.3), Pusher("lame", 0.05)),
        good="fast",
        checkpoints=("lame", "slow", "fast"),
        trials=line_suite(tasks=3, trials=1),
        side_trials=1,
        noise=(0.5,),
        ids=(LINE_ID, LINE_ID),
        judge=BrightJudge(100),
        judge_every=2,
        frames=6,
    )


def test_the_whole_experiment_is_played_once_and_written(experiment):
    for world in ("twin", "model"):
        for part in experiment.parts:
            play(experiment, world, part)
    assert experiment.parts == ("ladder", "noise")
    seen = []
    play(experiment, "model", "ladder", on_progress=seen.append)
    assert {(told.per_second, told.done) for told in seen if told.stage == "play"} == {(None, 9)}
    found = results(experiment, draws=200)
    assert found["episodes"] == {"truth": 9, "judged_twin": 9, "judged_model": 9, "carried": 0}
    # the same world under the same judge
    assert value(found["comparisons"]["world"], "mean_absolute_error") == 0
    # in this world a judge without knowledge of the goal calls two steps a success
    assert value(found["comparisons"]["judge"], "mean_absolute_error") > 0
    out = experiment.out
    runs = [out / "ladder-twin", out / "ladder-model"]
    write_results(found, out, runs=runs, judge=experiment.watcher.identity)
    stored = json.loads((out / "correlation.json").read_text())
    assert len(stored["comparisons"]["whole"]["points"]) == 9
    assert (out / "correlation.md").read_text() == page(found)
    assert (out / "scatter.svg").read_text().startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert (out / "reference.csv").read_text().splitlines()[0] == "policy,task,real,model"
    assert "reference success rate" in (out / "ladder-model" / "report.html").read_text()


def test_names_that_are_not_on_the_ladder_are_refused(tmp_path):
    with pytest.raises(InvalidConfig, match=r"out of the ladder \['still'\], got \['expert', 'first'\]"):
        Experiment(out=tmp_path, policies=("still",), good="expert", checkpoints=("first",))


def test_the_command_plays_the_learned_world_alone(tmp_path, tiny_checkpoint):
    correlation.main(
        tmp_path,
        checkpoint=str(tiny_checkpoint),
        policies="still,random",
        tasks="lift_can",
        trials=1,
        side_trials=0,
        only="model",
    )
    with RunStore(tmp_path / "ladder-model") as store:
        assert {episode.key.policy for episode in store.episodes()} == {"still", "random"}
        assert store.judges()[0].startswith("every 5 frames packaged:")
    assert not (tmp_path / "ladder-twin").exists()


def loud(frame, instruction):
    return np.array([2.0, 0, 0, 0, 0, 0, 1.5], np.float32)  # beyond the limits, as noise makes it


def test_the_actions_of_a_run_have_the_same_outcome_when_they_are_carried_out(tmp_path):
    pytest.importorskip("mujoco")
    suite = first_trials(load_suite("packaged").select(tasks=["push_yellow_cube_left"]), 2)
    config = EvaluationConfig(
        policies=["packaged:script", "still", f"{__file__}:loud"],
        out=tmp_path,
        env=TWIN_ID,
        trials=suite,
        report=False,
    )
    evaluate(config)
    truth = outcomes(tmp_path, TRUTH)
    assert set(truth.values()) == {True, False}
    assert carried_out(tmp_path, suite) == truth


def test_every_trial_is_changed_along_every_axis():
    pytest.importorskip("mujoco")
    suite = first_trials(load_suite("packaged").select(tasks=["lift_can", "put_carrot_on_plate"]), 1)
    changed = vary_all(suite, AXES)
    assert {trial.task.partition("/")[0] for trial in changed} == set(AXES)
    assert isinstance(changed, TaskSuite)
    wording = [trial.instruction for trial in changed if trial.task == "wording/lift_can"]
    assert wording == ["hold the can up in the air"]
    swapped = [trial for trial in changed if trial.task.startswith("instruction/")]
    assert all(trial.task.removeprefix("instruction/") not in suite.tasks for trial in swapped)
