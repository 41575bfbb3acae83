"""The ladder of packaged policies: what is listed, how they act, how they are trained and measured."""

import csv
import json
from itertools import pairwise

import numpy as np
import pytest
from contracts import CHECKS, it_depends_on_what_it_sees, roll

from worldgym.errors import CheckpointError, CheckpointNotFound, InvalidConfig
from worldgym.policies import load_policy
from worldgym.policies.noise import noisy
from worldgym.policies.packaged import (
    POLICIES,
    TwinSuccess,
    packaged_policies,
    read_measured,
    write_measured,
)
from worldgym.policies.replay import Plans, ReplayPolicy
from worldgym.tasks import load_suite

LADDER = packaged_policies()
LEARNED = [name for name, rung in LADDER.items() if rung.kind == "learned"]
EYES_CLOSED = [name for name, rung in LADDER.items() if rung.kind != "learned"]


@pytest.fixture(scope="module")
def suite():
    return load_suite()


# -- the list


def test_the_ladder_has_at_least_twelve_measured_policies_best_first():
    rates = [rung.twin_success for rung in LADDER.values()]
    assert len(LADDER) >= 12
    assert len(LEARNED) >= 5
    assert None not in rates
    assert rates == sorted(rates, reverse=True)
    assert rates[0] >= 0.9
    assert rates[-1] <= 0.05
    assert max(a - b for a, b in pairwise(rates)) <= 0.25, "a rung is missing"


def test_every_success_rate_comes_with_its_interval_and_its_number_of_episodes():
    for rung in LADDER.values():
        found = rung.measured
        assert 0 <= found.low <= found.rate <= found.high <= 1
        assert found.episodes == rung.episodes >= 130
        assert len(found.tasks) == 13
        assert np.mean(list(found.tasks.values())) == pytest.approx(found.rate, abs=1e-3)


def test_all_weights_together_stay_below_15_megabytes():
    assert sum(file.stat().st_size for file in POLICIES.rglob("*") if file.is_file()) < 15e6


def test_the_command_lists_them():
    from typer.testing import CliRunner

    from worldgym.cli import app

    listed = CliRunner().invoke(app, ["policies"], env={"COLUMNS": "200"})
    assert listed.exit_code == 0
    for rung in LADDER.values():
        (line,) = (line for line in listed.stdout.splitlines() if f" {rung.name} " in line)
        assert f"{rung.twin_success:.3f}" in line
        assert f"{rung.measured.low:.3f} to {rung.measured.high:.3f}" in line
    stored = CliRunner().invoke(app, ["policies", "--json"])
    assert [rung["name"] for rung in json.loads(stored.stdout)] == list(LADDER)


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(InvalidConfig, match=r"no packaged policy 'best'.*script.*random"):
        load_policy("packaged:best")


def test_measured_numbers_survive_the_file_and_a_broken_file_is_named(tmp_path):
    measured = {
        "b": TwinSuccess(0.25, 0.1, 0.5, 8, {"lift": 0.25}),
        "a": TwinSuccess(0.5, 0.2, 0.8, 8, {"lift": 0.5}),
    }
    file = write_measured(tmp_path, measured)
    assert read_measured(tmp_path) == measured
    assert list(read_measured(tmp_path)) == ["a", "b"]
    file.write_text('{"a": 1}')
    with pytest.raises(CheckpointError, match=file.name):
        read_measured(tmp_path)


# -- how they act


@pytest.mark.parametrize("name", LADDER)
def test_every_packaged_policy_passes_the_contract(name):
    policy = load_policy(f"packaged:{name}")
    assert policy.name == name
    for check in CHECKS:
        if check is not it_depends_on_what_it_sees or name in LEARNED:
            check(policy)


@pytest.mark.parametrize("name", LADDER)
def test_only_noisy_policies_act_differently_with_another_seed(name):
    policy = load_policy(f"packaged:{name}")
    answers = []
    for seed in (1, 2):
        policy.reset([0], ["lift the can"], [seed])
        frame = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3)).astype(np.uint8)
        answers.append(policy.act([0], frame))
    assert (answers[0] != answers[1]).any() == (LADDER[name].noise > 0 or name == "random")


@pytest.mark.parametrize("name", LEARNED[:1])
def test_a_learned_policy_heeds_the_instruction(name, suite):
    policy = load_policy(f"packaged:{name}")
    frame = suite.get("put_carrot_on_plate", "000").load_frame()[None]
    answers = []
    for text in ("put the carrot on the plate", "put the eggplant on the plate"):
        policy.reset([0], [text], [0])
        answers.append(policy.act([0], frame)[0, :3])
    assert np.abs(answers[0] - answers[1]).max() > 0.05


def test_noise_is_of_the_asked_size_and_turns_get_half_of_it():
    rng = np.random.default_rng(0)
    drawn = np.stack([noisy(np.zeros(7), 0.1, rng) for _ in range(4000)])
    assert drawn[:, :3].std() == pytest.approx(0.1, rel=0.05)
    assert drawn[:, 3:6].std() == pytest.approx(0.05, rel=0.05)
    assert (noisy(np.full(7, 0.4), 0.0, rng) == np.float32(0.4)).all()


def test_every_wording_finds_its_own_task_and_an_unknown_one_the_likest():
    pytest.importorskip("mujoco")
    from worldgym.envs.twin_tasks import CORE_TASKS
    from worldgym.training.demonstrations import asked_tasks

    wordings = asked_tasks()
    for task in CORE_TASKS.values():
        for text in (*task.instructions, task.instructions[0].upper() + "!"):
            assert wordings.tasks[wordings.find(text)].key == task.key, text
    for text, key in (
        ("build a tower with the green cube above the yellow cube", "stack_green_cube_on_yellow_cube"),
        ("build a tower with the yellow cube above the green cube", "stack_yellow_cube_on_green_cube"),
        ("the carrot goes on the plate", "put_carrot_on_plate"),
    ):
        assert wordings.tasks[wordings.find(text)].key == key


# -- plans


def some_plans(suite, task="lift_can", count=4):
    keys = [trial.key for trial in suite.trials(task)][:count]
    marks = np.linspace(-0.9, 0.9, count)[:, None, None]
    return Plans(tuple(keys), np.broadcast_to(marks, (count, 3, 7)).astype(np.float16))


def test_a_plan_is_recognised_by_its_start_frame_in_any_size_and_by_a_degraded_one(suite):
    from PIL import Image

    plans = some_plans(suite)
    policy = ReplayPolicy(plans, suite)
    for number, key in enumerate(plans.trials):
        frame = suite.get(*key.split("/")).load_frame()
        small = np.asarray(Image.fromarray(frame).resize((48, 48)))
        noise = np.random.default_rng(number).normal(0, 12, frame.shape)
        rough = np.clip(frame * 0.9 + noise, 0, 255).astype(np.uint8)
        for seen in (frame, small, rough):
            policy.reset([0], ["lift the can"], [0])
            np.testing.assert_allclose(policy.act([0], seen[None])[0], plans.actions[number, 0], atol=1e-3)


def test_a_plan_is_chosen_once_and_at_its_end_the_hand_stands_still(suite):
    plans = some_plans(suite)
    policy = ReplayPolicy(plans, suite)
    policy.reset([0], ["lift the can"], [0])
    frames = [suite.get(*key.split("/")).load_frame() for key in plans.trials]
    answers = np.concatenate([policy.act([0], frame[None]) for frame in frames])
    np.testing.assert_allclose(answers[:3], -0.9, atol=1e-3)
    np.testing.assert_allclose(answers[3], [0, 0, 0, 0, 0, 0, -0.9], atol=1e-3)


def test_a_blind_policy_plays_the_same_plan_whatever_it_sees(suite):
    plans = some_plans(suite)
    policy = ReplayPolicy(plans, suite, blind=True)
    for key in plans.trials:
        policy.reset([0], ["lift the can"], [0])
        frame = suite.get(*key.split("/")).load_frame()[None]
        np.testing.assert_allclose(policy.act([0], frame)[0], -0.9, atol=1e-3)


def test_plans_survive_the_file_and_what_is_none_is_refused(tmp_path, suite):
    plans = some_plans(suite)
    loaded = Plans.load(plans.save(tmp_path / "plans.safetensors"))
    assert loaded.trials == plans.trials
    np.testing.assert_array_equal(loaded.actions, plans.actions)
    with pytest.raises(CheckpointNotFound, match="no plans in"):
        Plans.load(tmp_path / "other.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"not plans")
    with pytest.raises(CheckpointError, match="broken"):
        Plans.load(tmp_path / "broken.safetensors")
    with pytest.raises(InvalidConfig, match="4 plans need"):
        Plans(plans.trials, plans.actions[:3])


def test_a_recorded_plan_does_in_the_twin_what_it_did_when_it_was_recorded(tmp_path, suite):
    pytest.importorskip("mujoco")
    from worldgym.evaluation.ladder import twin_success
    from worldgym.tasks import TaskSuite
    from worldgym.training.plans import record_plans

    few = TaskSuite([*suite.trials("push_yellow_cube_left")[:2], *suite.trials("lift_can")[:2]])
    outcomes = {}
    plans = record_plans(
        tmp_path / "p.safetensors", noise=0.25, seed=3, trials=few, on_plan=outcomes.__setitem__
    )
    again = record_plans(tmp_path / "q.safetensors", noise=0.25, seed=3, trials=few)
    np.testing.assert_array_equal(plans.actions, again.actions)
    found = twin_success(ReplayPolicy(plans, few), trials=few)
    for task in few.tasks:
        assert found.tasks[task] == np.mean([outcomes[trial.key] for trial in few.trials(task)])


# -- training


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    """A finished tiny run, with a policy kept on the way."""
    return train_tiny(tmp_path_factory.mktemp("tiny"), keep=(12,))


def train_tiny(folder, **options):
    pytest.importorskip("mujoco")
    from worldgym.training.loop import LoopConfig
    from worldgym.training.policy import PolicyTraining, train_policy

    loop = LoopConfig(
        steps=24, batch_size=16, learning_rate=3e-3, warm_up=4, ema=0.9, log_every=4, validate_every=12,
        save_every=4, compile=False, precision="float32", device="cpu",
    )  # fmt: skip
    config = PolicyTraining(
        str(folder / "data"), rounds=(3, 2), colours=16, hidden=32, workers=1, loop=loop, **options
    )
    train_policy(config, folder / "run")
    return folder / "run"


def test_a_tiny_training_lowers_its_loss_and_its_policy_acts(tiny_run):
    with (tiny_run / "log.csv").open() as file:
        losses = [float(line["loss"]) for line in csv.DictReader(file) if line.get("loss")]
    assert losses[-1] < 0.8 * losses[0]
    policy = load_policy(f"packaged:{tiny_run / 'policy'}")
    assert np.isfinite(roll(policy, [0, 1])).all()
    kept = load_policy(f"packaged:{tiny_run / 'policy_12'}")
    assert (roll(kept, [0]) != roll(policy, [0])).any()
    assert policy.config.trained["steps"] == 24
    assert kept.config.trained == {"steps": 12, "share": 1.0, "rounds": [3]}


def test_a_training_that_was_killed_goes_on_to_the_same_policy(tiny_run, tmp_path, monkeypatch):
    from safetensors.numpy import load_file

    from worldgym.training import policy as training

    calls = 0
    untouched = training.policy_loss

    def killed_at_the_18th(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == 18:
            raise KeyboardInterrupt
        return untouched(*arguments, **options)

    monkeypatch.setattr(training, "policy_loss", killed_at_the_18th)
    with pytest.raises(KeyboardInterrupt):
        train_tiny(tmp_path, keep=(12,))
    monkeypatch.setattr(training, "policy_loss", untouched)
    run = train_tiny(tmp_path, keep=(12,))
    for folder in ("policy", "policy_12"):
        expected, found = (load_file(root / folder / "model.safetensors") for root in (tiny_run, run))
        for key, values in expected.items():
            np.testing.assert_array_equal(found[key], values, err_msg=key)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": ()}, "rounds must hold"),
        ({"share": 0.0}, "share must be above 0"),
        ({"colours": 1}, "colours and hidden"),
        ({"keep": (0,)}, "keep must hold steps"),
        ({"workers": 0}, "workers must be at least 1"),
    ],
)
def test_a_training_that_cannot_work_is_refused_before_anything_is_collected(tmp_path, options, message):
    pytest.importorskip("mujoco")
    from worldgym.training.policy import PolicyTraining

    with pytest.raises(InvalidConfig, match=message):
        PolicyTraining(str(tmp_path), **options)


def test_the_label_of_a_demonstration_solves_the_task_from_where_a_shove_has_left_it():
    pytest.importorskip("mujoco")
    from worldgym.envs.demonstrator import demonstrate
    from worldgym.envs.physics import Physics
    from worldgym.envs.twin_scenes import make_scene
    from worldgym.envs.twin_tasks import CORE_TASKS

    for key in ("put_carrot_in_pot", "push_yellow_cube_left"):
        task = CORE_TASKS[key]
        physics = Physics(make_scene(task, 7, purpose="training"))
        rng = np.random.default_rng(0)
        for step in range(40):
            shoved = step in range(5, 9)
            right = demonstrate(task.rule, physics)
            physics.act(rng.uniform(-0.5, 0.5, 7).astype(np.float32) if shoved else right)
            if task.truth(physics).success:
                break
        assert task.truth(physics).success, key


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LEARNED[:1], "script"])
def test_the_measured_success_is_found_again(name):
    pytest.importorskip("mujoco")
    from worldgym.evaluation.ladder import twin_success

    stored = LADDER[name].measured
    found = twin_success(load_policy(f"packaged:{name}"))
    # other processors round a network otherwise, which turns single episodes around
    assert found.episodes == stored.episodes
    assert abs(found.rate - stored.rate) <= (0.0 if name == "script" else 0.04)
