"""The runner and the whole of ``evaluate``: every start once, rows independent, failures recorded."""

import numpy as np
import pytest
from line_world import BARE_ID, LINE_ID, BrightJudge, Pusher, line_suite, register

from worldgym.errors import InvalidConfig, PolicyError
from worldgym.evaluation.plan import EvaluationConfig, build_plan
from worldgym.evaluation.run import evaluate, rejudge
from worldgym.evaluation.runner import Failure, Rollout, Runner
from worldgym.evaluation.store import RunStore
from worldgym.evaluation.summary import summarise

register()


def config(out="unused", policies=None, **changes):
    options = {"env": LINE_ID, "trials": line_suite(), "episode_frames": 6, "num_envs": 3, "report": False}
    return EvaluationConfig(policies=policies or [Pusher("p", 0.7)], out=out, **{**options, **changes})


def play(settings, policy=None, starts=None):
    plan = build_plan(settings)
    with Runner(settings, plan) as runner:
        loaded = runner.load(policy or settings.policies[0])
        return list(runner.run(loaded, plan.starts if starts is None else starts))


def as_table(results):
    return {
        result.start: (
            result.episode.frames.tobytes(),
            result.episode.actions.tobytes(),
            result.episode.success,
            result.episode.progress,
            result.told,
            result.ended,
        )
        for result in results
    }


@pytest.mark.parametrize("changes", [{"num_envs": 1}, {"num_envs": 5}, {"num_envs": 50}], ids=str)
@pytest.mark.parametrize("extra", [{}, {"chunk_size": 2}], ids=["steps", "chunks"])
def test_results_depend_neither_on_the_number_of_rows_nor_on_the_order(changes, extra):
    policy = Pusher("p", 0.7, chunk=2)
    settings = config(seeds=[0, 1], perturbations=["noise:0.2"], policies=[policy], **extra)
    usual = play(settings)
    plan = build_plan(settings)
    assert len(usual) == len(plan.starts)
    other = config(seeds=[0, 1], perturbations=["noise:0.2"], policies=[policy], **extra, **changes)
    assert as_table(play(other, starts=plan.starts[::-1])) == as_table(usual)


def test_an_episode_holds_all_frames_and_the_actions_that_caused_them():
    result = play(config(policies=[Pusher("p", 0.1)], tasks=["task_1"], trials_per_task=1))[0]
    assert isinstance(result, Rollout)
    episode = result.episode
    assert episode.frames.shape == (7, 16, 16, 3)
    assert episode.actions.shape == (6, 7)
    np.testing.assert_array_equal(episode.frames[0], line_suite()[3].load_frame())
    assert (episode.success, result.ended) == (False, "truncated")
    assert 0 < episode.progress < 1
    assert (episode.fps, episode.family, episode.instruction) == (5.0, "p", "go 2")
    assert result.criteria == "it moved"


def test_a_success_ends_its_episode_and_the_row_takes_the_next_start():
    results = play(config(policies=[Pusher("p", 0.9)], num_envs=1, episode_frames=10))
    assert all(result.ended == "terminated" and result.episode.success for result in results)
    assert len({len(result.episode) for result in results}) > 1


def test_the_horizon_counts_frames_whatever_the_chunk():
    for chunk in (1, 3):
        results = play(config(policies=[Pusher("p", 0.0, chunk=chunk)], episode_frames=6))
        assert {len(result.episode) for result in results} == {7}


def test_a_broken_episode_is_recorded_and_costs_no_other():
    healthy = as_table(play(config(seeds=[0, 1])))
    results = play(config(seeds=[0, 1], policies=[Pusher("p", 0.7, breaks_at="go 2")]))
    failures = [result for result in results if isinstance(result, Failure)]
    assert {failure.start.task for failure in failures} == {"task_1"}
    assert len(failures) == 6
    assert all("ValueError: cannot go 2" in failure.error for failure in failures)
    assert all("line_world.py" in failure.traceback for failure in failures)
    rest = as_table(result for result in results if isinstance(result, Rollout))
    assert rest == {start: row for start, row in healthy.items() if start.task == "task_0"}


def test_swapped_words_reach_the_policy_and_not_the_judge(tmp_path):
    policy = Pusher("p", 0.7)
    heard = []
    policy.reset, reset = (
        (lambda rows, told, seeds: (heard.extend(told), reset(rows, told, seeds))),
        policy.reset,
    )
    evaluate(
        config(tmp_path, [policy], tasks=["task_0", "task_1"], trials_per_task=1, perturbations=["swap"])
    )
    assert sorted(heard) == ["go 1", "go 1", "go 2", "go 2"]
    with RunStore(tmp_path) as store:
        swapped = [episode for episode in store.episodes() if episode.key.condition == "swap"]
    assert {(episode.instruction, episode.told) for episode in swapped} == {
        ("go 1", "go 2"),
        ("go 2", "go 1"),
    }


def test_an_environment_of_ones_own_runs_by_seed_alone(tmp_path):
    settings = config(tmp_path, [Pusher("p", 0.9)], env=BARE_ID, trials=None, seeds=range(5), num_envs=2)
    summary = evaluate(settings)
    assert summary.played == 5
    assert summary.policies[0].success.value == 1.0
    single = play(config(tmp_path, [Pusher("p", 0.9)], env=BARE_ID, trials=None, seeds=range(5), num_envs=1))
    assert as_table(play(settings)) == as_table(single)
    assert {result.episode.fps for result in single} == {10.0}


def test_the_horizon_holds_in_an_environment_of_ones_own():
    results = play(config(policies=[Pusher("p", 0.0)], env=BARE_ID, trials=None, seeds=range(5), num_envs=2))
    assert {(len(result.episode), result.ended) for result in results} == {(7, "truncated")}


def test_edited_frames_are_refused_where_the_world_does_not_start_from_them(monkeypatch):
    import line_world

    blind = np.zeros(line_world.SHAPE, np.uint8)
    monkeypatch.setattr(line_world.LineWorld, "reset", lambda self, rows, *_: np.stack([blind] * len(rows)))
    settings = config(perturbations=["occlusion"])
    with pytest.raises(InvalidConfig, match="does not start from frames"):
        Runner(settings, build_plan(settings))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": "Nowhere-v0"}, "cannot be made"),
        ({"env_kwargs": {"gravity": 1}}, "does not take these keyword arguments"),
        ({"env": BARE_ID}, "cannot be made|does not take"),
    ],
    ids=["id", "keyword", "trials"],
)
def test_an_environment_that_cannot_be_made_is_refused(changes, words):
    settings = config(**changes)
    with pytest.raises(InvalidConfig, match=words):
        Runner(settings, build_plan(settings))


def test_evaluate_ranks_policies_and_counts_what_is_missing(tmp_path):
    policies = [Pusher("weak", 0.2), Pusher("strong", 0.9), Pusher("broken", 0.9, breaks_at="go 2")]
    seen = []
    summary = evaluate(config(tmp_path, [*policies, "nonsense"]), on_progress=seen.append)
    ranked = [policy.policy for policy in summary.policies]
    assert sorted(ranked) == ["broken", "strong", "weak"]
    assert ranked[-1] == "weak"
    assert (summary.played, summary.planned) == (15, 24)
    by_name = {policy.policy: policy for policy in summary.policies}
    assert by_name["broken"].missing == 3
    assert by_name["broken"].bounds.lowest < by_name["broken"].bounds.highest
    stages = sorted({(failure.stage, failure.policy) for failure in summary.failures})
    assert stages == [("episode", "broken"), ("policy", "nonsense")]
    assert (seen[-1].done, seen[-1].failed, seen[-1].total) == (15, 9, 24)
    assert seen[2].per_second > 0
    assert (tmp_path / "summary.json").is_file()


def test_what_failed_is_tried_again_and_what_is_there_is_not(tmp_path):
    broken = Pusher("p", 0.9, breaks_at="go 2")
    assert len(evaluate(config(tmp_path, [broken])).failures) == 3
    broken.breaks_at = ""
    acted = []
    broken.act, act = (lambda rows, frames: (acted.append(len(rows)), act(rows, frames))[1]), broken.act
    summary = evaluate(config(tmp_path, [broken]))
    assert summary.failures == ()
    assert summary.played == 6
    assert 0 < sum(acted) <= 3 * 6


def test_a_policy_that_always_fails_is_left_after_a_few_episodes(tmp_path):
    broken = Pusher("p", 0.9, breaks_at="go")
    summary = evaluate(config(tmp_path, [broken, Pusher("q", 0.9)], give_up_after=2))
    assert len(summary.failures) == 2
    assert summary.played == 6


def test_a_policy_of_another_convention_fails_before_its_first_step(tmp_path):
    from worldgym.actions import get_spec

    policy = Pusher("p", 0.5)
    policy.action_spec = get_spec("worldgym")
    policy.chunk = 3
    settings = config(tmp_path, [policy], chunk_size=2)
    (failure,) = evaluate(settings).failures
    assert (failure.stage, failure.start) == ("policy", None)
    assert "chunk_size" in failure.error


def test_ctrl_c_keeps_what_is_finished(tmp_path):
    policy = Pusher("p", 0.7)
    calls = []

    def act(rows, frames):
        calls.append(rows)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return np.zeros((len(rows), 7), np.float32) + 0.9

    policy.act = act
    with pytest.raises(KeyboardInterrupt):
        evaluate(config(tmp_path, [policy]))
    kept = summarise(tmp_path).played
    assert 0 < kept < 6
    assert evaluate(config(tmp_path, [policy])).played == 6


def test_verdicts_come_from_truth_and_judges_and_unscored_is_neither(tmp_path):
    judge = BrightJudge(100, unscored="go 2")
    summary = evaluate(config(tmp_path, [Pusher("p", 0.9)], judges=[judge, "truth"]))
    (policy,) = summary.policies
    assert summary.judge == "bright 100"
    assert (policy.unscored, policy.successes + policy.failures) == (3, 3)
    assert (policy.bounds.lowest, policy.bounds.highest) != (0.0, 1.0)
    truth = summarise(tmp_path, judge="truth").policies[0]
    assert truth.unscored == 0
    (agreement,) = summary.agreement
    assert (agreement.first, agreement.second) == ("bright 100", "truth")
    assert agreement.quality.unscored == 3


def test_a_world_without_truth_leaves_episodes_unscored(tmp_path):
    summary = evaluate(config(tmp_path, env_kwargs={"truth": False}, judges=["truth"]))
    assert summary.policies[0].unscored == 6
    assert summary.policies[0].success.value is None


def test_a_judge_that_raises_is_recorded_and_asked_again(tmp_path):
    judge = BrightJudge(100, breaks_at="go 2")
    summary = evaluate(config(tmp_path, judges=[judge]))
    assert {(failure.stage, failure.start.task) for failure in summary.failures} == {("judge", "task_1")}
    assert summary.policies[0].unscored == 3
    repaired = BrightJudge(100)
    again = evaluate(config(tmp_path, judges=[repaired]))
    assert (again.failures, again.policies[0].unscored, repaired.asked) == ((), 0, 3)


def test_rejudging_adds_a_judge_and_leaves_the_ranking(tmp_path):
    evaluate(config(tmp_path, [Pusher("p", 0.9), Pusher("q", 0.3)]))
    lenient = BrightJudge(1)
    summary = rejudge(tmp_path, lenient, report=False)
    assert summary.judge == "bright 1"
    assert [policy.success.value for policy in summary.policies] == [1.0, 1.0]
    assert summarise(tmp_path).judge == "truth"
    asked = lenient.asked
    assert 0 < asked <= 12  # the same frames are not shown twice
    rejudge(tmp_path, lenient, report=False)
    assert lenient.asked == asked
    with pytest.raises(InvalidConfig, match="no judge that could be asked"):
        rejudge(tmp_path, "truth")


def test_what_a_judge_left_unscored_is_asked_again_only_on_request(tmp_path):
    evaluate(config(tmp_path, [Pusher("p", 0.9)]))
    away = BrightJudge(100, unscored="go 2")
    assert rejudge(tmp_path, away, report=False).policies[0].unscored == 3
    back = BrightJudge(100)
    assert rejudge(tmp_path, back, report=False).policies[0].unscored == 3
    seen = []
    summary = rejudge(tmp_path, back, unscored_again=True, report=False, on_progress=seen.append)
    assert (summary.policies[0].unscored, back.asked) == (0, 3)
    assert (seen[-1].done, seen[-1].total) == (6, 6)


def test_robustness_is_a_paired_table(tmp_path):
    settings = config(tmp_path, [Pusher("p", 0.9)], episode_frames=4, perturbations=["delay:4", "occlusion"])
    table = {entry.condition: entry for entry in evaluate(settings).robustness}
    assert table["clean"].difference is None
    assert table["delay:4"].success.value == 0.0
    assert table["delay:4"].difference.value == pytest.approx(-table["clean"].success.value)
    assert table["occlusion"].difference.value == 0.0
    assert 0 < table["delay:4"].p_value <= 1


def test_a_function_is_a_policy(tmp_path):
    def half_speed(frame, instruction):
        return np.full(7, 0.5, np.float32)

    summary = evaluate(config(tmp_path, [half_speed, "stands=still"]))
    assert {policy.policy for policy in summary.policies} == {"half_speed", "stands"}


def test_results_of_a_policy_that_answers_nonsense_are_failures(tmp_path):
    policy = Pusher("p", 0.5)
    policy.act = lambda rows, frames: np.full((len(rows), 7), np.nan, np.float32)
    summary = evaluate(config(tmp_path, [policy], trials_per_task=1))
    assert all(PolicyError.__name__ in failure.error for failure in summary.failures)
    assert (summary.played, summary.statistics, summary.policies) == (0, None, ())
