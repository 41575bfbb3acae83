"""``ManiSkillNames``: loops written for ManiSkill's vector environment find their names."""

import numpy as np
import pytest
import torch
from stand_ins import paint_envs, painted_index

from worldgym.errors import InvalidConfig
from worldgym.wrappers import ManiSkillNames

STILL = np.zeros((2, 7), np.float32)


def made(**config):
    return ManiSkillNames(paint_envs(2, success=True, autoreset_mode="SameStep", **config))


def maniskill_loop(envs, steps):
    """How evaluation loops written for ManiSkill collect the records of finished episodes."""
    records = []
    envs.reset(seed=[0, 3])  # row 0 succeeds at frame 3, row 1 would at frame 6
    for _ in range(steps):
        _, _, _, _, infos = envs.step(STILL)
        if "final_info" in infos:
            mask = infos["_final_info"]
            episode = infos["final_info"]["episode"]
            records += [{key: value[row] for key, value in episode.items()} for row in np.flatnonzero(mask)]
    return records


def test_records_of_episodes_are_where_maniskills_loops_look():
    first, second = maniskill_loop(made(episode_frames=4), 4)
    assert first == {
        "success_once": True,
        "success_at_end": True,
        "return": 1.0,
        "episode_len": 3,
        "reward": pytest.approx(1 / 3),
    }
    assert (second["success_once"], second["return"], second["episode_len"]) == (False, 0.0, 4)


def test_final_observations_are_a_whole_batch_and_counters_start_again():
    envs = made(episode_frames=4)
    envs.reset(seed=[0, 3])
    for _ in range(3):
        observations, _, terminations, _, infos = envs.step(STILL)
    assert terminations.tolist() == infos["_final_observation"].tolist() == [True, False]
    assert painted_index(infos["final_observation"][0]) == 3
    np.testing.assert_array_equal(infos["final_observation"][1], observations[1])
    assert not np.array_equal(infos["final_observation"][0], observations[0])
    assert infos["final_info"]["elapsed_steps"].tolist() == [3, 3]
    assert infos["elapsed_steps"].tolist() == [0, 3]
    assert infos["success"].tolist() == [False, False], "of the episodes that run now"
    assert infos["final_info"]["success"].tolist() == [True, False]
    after = envs.step(STILL)[4]
    assert after["elapsed_steps"].tolist() == [1, 0], "row 1 has met its limit"


def test_rows_are_reset_by_number():
    envs = made(episode_frames=10)
    envs.reset(seed=0)
    envs.step(STILL)
    options = {"env_idx": torch.tensor([1])}
    _, infos = envs.reset(options=options)
    assert infos["_seed"].tolist() == [False, True]
    assert infos["elapsed_steps"].tolist() == [1, 0]
    assert list(options) == ["env_idx"]


def test_tensors_come_out_where_they_are_asked_for():
    envs = made(episode_frames=2, output="torch")
    envs.reset(seed=0)
    envs.step(torch.zeros(2, 7))
    observations, *_, infos = envs.step(torch.zeros(2, 7))
    assert isinstance(observations, torch.Tensor)
    assert isinstance(infos["final_observation"], torch.Tensor)
    assert infos["final_observation"].shape == observations.shape
    assert infos["final_info"]["episode"]["episode_len"].tolist() == [2, 2]


def test_without_known_truth_nothing_counts_as_a_success():
    envs = ManiSkillNames(paint_envs(2, autoreset_mode="SameStep", episode_frames=1))
    envs.reset(seed=0)
    infos = envs.step(STILL)[4]
    assert infos["final_info"]["episode"]["success_once"].tolist() == [False, False]


@pytest.mark.parametrize("mode", ["NextStep", "Disabled"])
def test_other_modes_and_environments_are_refused(mode):
    with pytest.raises(InvalidConfig, match="SameStep"):
        ManiSkillNames(paint_envs(2, autoreset_mode=mode))
    with pytest.raises(InvalidConfig, match="SameStep"):
        ManiSkillNames(None)
