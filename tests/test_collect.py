"""Collecting episodes of the twin: their truth, resuming, choosing, the same result whoever writes them."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

pytest.importorskip("mujoco")

from worldgym.cli import app
from worldgym.data.clips import ClipFolder, ClipWriter
from worldgym.data.contents import FamilyContents, family_contents, total_contents
from worldgym.envs.twin_scenes import make_scene
from worldgym.envs.twin_tasks import CORE_TASKS, get_task
from worldgym.episode import Episode
from worldgym.errors import DataError, InvalidConfig, TrialError
from worldgym.training.collect import CollectConfig, collect, episode_name, episode_plan, parse_mixture

SMALL = CollectConfig(seed=3, size=(32, 48), frames=6)
PER_FRAME = ["gripper", "gripper_height", "opening", "objects", "centroids", "visible", "heights", "held"]
PER_FRAME += ["success", "progress"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return collect(tmp_path_factory.mktemp("collect") / "clips", 3, config=SMALL, workers=1)


def same(left, right):
    assert left.names == right.names
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one.frames, other.frames)
        np.testing.assert_array_equal(one.actions, other.actions)
        assert one.metadata == other.metadata


def test_every_episode_comes_with_its_truth(folder):
    clips = ClipFolder(folder)
    assert len(clips) == 3
    for index, episode in enumerate(clips):
        key, family, seed = episode_plan(SMALL, index)
        assert episode.frames.shape == (7, 32, 48, 3)
        assert episode.action_spec == "published_bridge"
        assert (episode.task, episode.family, episode.seed) == (key, family, seed)
        assert episode.trial == episode_name(index)
        assert episode.instruction in get_task(key).instructions
        assert episode.success == any(episode.metadata["success"])
        assert episode.progress == max(episode.metadata["progress"])
        assert episode.metadata["scene"] == make_scene(get_task(key), seed, purpose="training")


def test_every_frame_says_where_things_are(folder):
    for episode in ClipFolder(folder):
        facts, count = episode.metadata, len(episode.metadata["names"])
        assert facts["names"] == [thing["name"] for thing in facts["scene"]["objects"]]
        assert all(len(facts[key]) == len(episode) for key in PER_FRAME)
        for key in ("objects", "centroids", "visible", "heights", "held"):
            assert all(len(values) == count for values in facts[key])
        places = np.array(facts["gripper"])
        assert ((places > 0) & (places < 1)).all()
        for seen, share in zip(facts["centroids"][0], facts["visible"][0], strict=True):
            assert (seen is None) == (share == 0)


def test_the_same_collection_is_written_whoever_writes_it(folder, tmp_path):
    other = collect(tmp_path / "clips", 3, config=SMALL, workers=2)
    same(ClipFolder(folder), ClipFolder(other))


def test_a_stopped_collection_goes_on_where_it_was(folder, tmp_path):
    part = collect(tmp_path / "clips", 2, config=SMALL, workers=1)
    (part / f"{episode_name(0)}.npz").unlink()  # as if it had been killed in between
    kept = part / f"{episode_name(1)}.mp4"
    before = kept.stat().st_mtime_ns
    calls = []
    collect(part, 3, config=SMALL, workers=1, on_episode=lambda done, total: calls.append((done, total)))
    assert calls[0] == (1, 3)
    assert calls[-1] == (3, 3)
    assert kept.stat().st_mtime_ns == before
    same(ClipFolder(folder), ClipFolder(part))


def test_a_killed_collection_leaves_no_worker_behind(tmp_path):
    command = [
        Path(sys.executable).with_name("worldgym"),
        "collect",
        str(tmp_path / "clips"),
        "--workers",
        "2",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    parent = psutil.Process(process.pid)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("clips/*.npz")) and time.monotonic() < deadline:
        time.sleep(0.1)
    workers = parent.children()
    assert len(workers) >= 2
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    assert len(ClipFolder(tmp_path / "clips")) >= 1


def test_a_folder_is_not_continued_with_something_else(folder, tmp_path):
    before = sorted(folder.iterdir())
    with pytest.raises(InvalidConfig, match="'frames': 6"):
        collect(folder, 4, config=replace(SMALL, frames=7), workers=1)
    assert sorted(folder.iterdir()) == before
    (tmp_path / "collection.json").write_text("{")
    with pytest.raises(DataError, match="json"):
        collect(tmp_path, 1, config=SMALL, workers=1)


def test_the_plan_is_a_function_of_seed_and_index_over_all_core_tasks():
    plans = [episode_plan(CollectConfig(seed=1), index) for index in range(400)]
    assert plans == [episode_plan(CollectConfig(seed=1), index) for index in range(400)]
    assert {key for key, _, _ in plans} == set(CORE_TASKS)
    assert len({seed for _, _, seed in plans}) == 400
    assert plans != [episode_plan(CollectConfig(seed=2), index) for index in range(400)]


def test_tasks_and_mixture_can_be_chosen():
    config = CollectConfig(tasks=("lift_cup",), mixture={"play": 1.0, "expert": 3.0})
    plans = [episode_plan(config, index) for index in range(200)]
    assert {key for key, _, _ in plans} == {"lift_cup"}
    share = np.mean([family == "expert" for _, family, _ in plans])
    assert 0.65 < share < 0.85


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tasks": ("fly",)}, TrialError),
        ({"mixture": {"genius": 1.0}}, InvalidConfig),
        ({"mixture": {"play": 0.0}}, InvalidConfig),
        ({"mixture": {"play": float("nan")}}, InvalidConfig),
        ({"mixture": {"play": float("inf")}}, InvalidConfig),
        ({"size": (8, 64)}, InvalidConfig),
        ({"frames": 0}, InvalidConfig),
        ({"seed": -1}, InvalidConfig),
    ],
)
def test_what_cannot_be_collected_is_refused_at_once(options, error):
    with pytest.raises(error):
        CollectConfig(**options)


@pytest.mark.parametrize(("episodes", "workers"), [(0, 1), (1, 0)])
def test_nothing_and_nobody_are_refused(episodes, workers, tmp_path):
    with pytest.raises(InvalidConfig, match="at least 1"):
        collect(tmp_path, episodes, config=SMALL, workers=workers)


def test_a_mixture_is_written_as_names_with_or_without_weights():
    assert parse_mixture([]) == {}
    assert parse_mixture(["play", "expert=0.5"]) == {"play": 1.0, "expert": 0.5}


@pytest.mark.parametrize(
    ("entries", "message"), [(["play=much"], "NAME=WEIGHT"), (["play=1", "play"], "given twice")]
)
def test_a_mixture_that_cannot_be_read_is_refused(entries, message):
    with pytest.raises(InvalidConfig, match=message):
        parse_mixture(entries)


def test_the_command_collects_the_tasks_families_and_frames_that_are_asked_for(tmp_path):
    options = "--episodes 3 --seed 4 --frames 2 --size 32 48 --workers 1 --task lift_can --task lift_eggplant"
    families = "--family play --family expert=2"
    result = CliRunner().invoke(app, ["collect", str(tmp_path), *options.split(), *families.split()])
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "collection.json").read_text())
    assert told["tasks"] == ["lift_can", "lift_eggplant"]
    assert told["mixture"] == {"play": 1.0, "expert": 2.0}
    episodes = list(ClipFolder(tmp_path))
    assert [episode.frames.shape for episode in episodes] == [(3, 32, 48, 3)] * 3
    assert {episode.task for episode in episodes} <= {"lift_can", "lift_eggplant"}
    assert {episode.family for episode in episodes} <= {"play", "expert"}


@pytest.mark.parametrize(
    "options", [("--task", "fly"), ("--family", "genius"), ("--family", "play=0"), ("--mixture", "play=x")]
)
def test_the_command_refuses_what_is_unknown_before_it_writes_anything(options, tmp_path):
    result = CliRunner().invoke(app, ["collect", str(tmp_path / "clips"), *options])
    assert isinstance(result.exception, InvalidConfig | TrialError)
    assert not (tmp_path / "clips").exists()


def test_the_contents_of_a_folder_are_counted_by_family(tmp_path):
    writer = ClipWriter(tmp_path)
    for family, success, frames in (
        ("play", False, 3),
        ("play", True, 5),
        ("expert", True, 2),
        (None, None, 2),
    ):
        video = np.zeros((frames, 16, 16, 3), np.uint8)
        writer.append(Episode(video, np.zeros((frames - 1, 7), np.float32), success=success, family=family))
    parts = family_contents(ClipFolder(tmp_path))
    assert parts == [
        FamilyContents("play", episodes=2, frames=8, judged=2, successes=1, failing_frames=3),
        FamilyContents("expert", episodes=1, frames=2, judged=1, successes=1, failing_frames=0),
        FamilyContents("unknown", episodes=1, frames=2, judged=0, successes=0, failing_frames=0),
    ]
    every = total_contents(parts)
    assert (every.episodes, every.frames, every.judged, every.successes) == (4, 12, 3, 2)


def test_info_says_what_a_folder_of_clips_holds(folder):
    result = CliRunner().invoke(app, ["info", str(folder)])
    assert result.exit_code == 0, result.output
    episodes = list(ClipFolder(folder))
    for family in {str(episode.family) for episode in episodes}:
        assert family in result.output
    failing = sum(len(episode) for episode in episodes if not episode.success)
    assert f"{failing / 21:.1%} of 21 frames are of episodes that fail" in result.output
