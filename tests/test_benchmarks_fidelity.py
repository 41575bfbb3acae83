"""The arithmetic of the fidelity benchmark and of its probe, on made-up scenes whose answers are known."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("mujoco")

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import fidelity
import fidelity_measures as measures
import outcome_rules
import probe as probing
from fidelity_sheets import write_sheets
from fidelity_tables import markdown, print_report
from probe_frames import (
    INSTANCES,
    SIGHTS,
    SIZE,
    Label,
    LabelledFrames,
    draw_batch,
    labels_of,
    paste,
    read_frames,
)

from worldgym.data.clips import ClipFolder
from worldgym.envs.objects import KINDS
from worldgym.envs.scene import project
from worldgym.envs.twin_rules import CENTRE, DIRECTIONS
from worldgym.envs.twin_tasks import CORE_TASKS, EXTRA_TASKS
from worldgym.episode import Episode, Outcome
from worldgym.errors import CheckpointError, CheckpointNotFound, DataError
from worldgym.training.collect import CollectConfig, collect

CAN, PLATE, GREEN = (SIGHTS.index(name) for name in ("can", "plate", "green cube"))


def made_labels(length, places):
    """Labels (T, sights, labels) of things that stand still in plain sight, the gripper at (20, 20)."""
    labels = np.full((length, len(SIGHTS), len(Label)), np.nan, np.float32)
    for sight, (x, y) in {0: (20, 20), **places}.items():
        labels[:, sight] = [x, y, 80, x, y, 0.0, 0.0]
    return labels


def reading_of(labels):
    """What a perfect probe would read."""
    count = (~np.isnan(labels[..., Label.X])).astype(np.int64)
    return probing.Reading(
        labels[..., [Label.X, Label.Y]].copy(), labels[..., Label.HEIGHT], labels[..., Label.HELD], count
    )


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    config = CollectConfig(seed=5, frames=40, mixture={"expert": 1.0, "play": 1.0})
    return collect(tmp_path_factory.mktemp("fidelity") / "clips", 4, config=config, workers=1)


# -- positions, vanishing, multiplying ----------------------------------------------------------------------


def test_a_perfect_reading_has_no_error_and_keeps_everything():
    labels = made_labels(6, {CAN: (30, 30), PLATE: (40, 50)})
    reading = reading_of(labels)
    errors = measures.position_errors(reading, labels)
    assert errors["gripper"].max() == 0
    assert np.nansum(errors["plain"]) == 0
    assert not measures.vanished(reading, labels)
    assert not measures.multiplied(reading, labels)


def test_errors_are_distances_in_pixels_and_a_thing_that_is_not_found_is_infinitely_far():
    labels = made_labels(3, {CAN: (30, 30)})
    reading = reading_of(labels)
    reading.place[1, CAN] += (3, 4)
    reading.place[2, CAN] = np.nan
    np.testing.assert_allclose(measures.position_errors(reading, labels)["plain"][:, CAN], [0, 5, np.inf])


def test_things_half_hidden_by_the_arm_are_counted_apart_and_may_be_missing():
    labels = made_labels(6, {CAN: (30, 30)})
    labels[2:5, CAN, Label.PIXELS] = 10
    reading = reading_of(labels)
    reading.count[2:5, CAN] = 0
    errors = measures.position_errors(reading, labels)
    assert np.isnan(errors["plain"][2:5, CAN]).all()
    assert (errors["hidden"][2:5, CAN] == 0).all()
    assert not measures.vanished(reading, labels)


def test_only_what_has_moved_is_among_the_moved_things():
    labels = made_labels(3, {CAN: (30, 30), PLATE: (40, 50)})
    labels[2, CAN, [Label.X, Label.SEEN_X]] += 5
    moved = measures.position_errors(reading_of(made_labels(3, {CAN: (30, 30), PLATE: (40, 50)})), labels)[
        "moved"
    ]
    assert moved[2, CAN] == 5
    assert np.isnan(moved[:2]).all()
    assert np.isnan(moved[2, PLATE])


@pytest.mark.parametrize(("frames", "expected"), [(2, False), (3, True)])
def test_a_thing_has_vanished_when_it_is_missing_for_three_frames(frames, expected):
    labels = made_labels(8, {CAN: (30, 30)})
    reading = reading_of(labels)
    reading.count[3 : 3 + frames, CAN] = 0
    assert measures.vanished(reading, labels) is expected


def test_two_of_a_thing_or_one_that_does_not_belong_there_have_multiplied():
    labels = made_labels(8, {CAN: (30, 30)})
    twice, invented, blink = (reading_of(labels) for _ in range(3))
    twice.count[2:5, CAN] = 2
    invented.count[2:5, PLATE] = 1
    blink.count[2:4, PLATE] = 1
    assert measures.multiplied(twice, labels)
    assert measures.multiplied(invented, labels)
    assert not measures.multiplied(blink, labels)


def test_losing_things_never_improves_a_median():
    assert measures.spread([1.0, 2.0, np.inf, np.nan])["median_px"] == 2.0
    assert measures.spread([1.0, np.inf, np.inf])["median_px"] is None
    assert measures.spread([1.0, np.inf, np.inf])["lost"] == pytest.approx(2 / 3)
    assert measures.spread([np.nan])["n"] == 0
    assert measures.spread([6.4])["median_percent"] == pytest.approx(10.0)


# -- pictures -----------------------------------------------------------------------------------------------


def test_equal_pictures_have_the_best_scores_and_noise_makes_each_worse():
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 256, (3, SIZE, SIZE, 3), np.uint8)
    torch.manual_seed(0)
    probe = probing.Probe(probing.ProbeNetwork())
    noisy = [
        np.clip(truth + rng.normal(0, level, truth.shape), 0, 255).astype(np.uint8) for level in (0, 8, 40)
    ]
    same, little, much = (measures.picture_scores(probe, frames, truth) for frames in noisy)
    assert same == {
        "psnr": measures.BEST,
        "ssim": pytest.approx(1.0),
        "perceptual": pytest.approx(0.0, abs=1e-6),
    }
    assert same["psnr"] > little["psnr"] > much["psnr"]
    assert same["ssim"] > little["ssim"] > much["ssim"]
    assert same["perceptual"] < little["perceptual"] < much["perceptual"]


# -- outcomes -----------------------------------------------------------------------------------------------


def scene_of(**places):
    kinds = {"green_cube": "cube", "yellow_cube": "cube"}
    objects = [
        {"name": name.replace("_", " "), "kind": kinds.get(name, name), "position": list(place)}
        for name, place in places.items()
    ]
    return {"objects": objects}


def seen_reading(scene, paths, held=()):
    """What the probe would read when things take paths: {name: (T, 3) metres of their bottoms}."""
    length = len(next(iter(paths.values())))
    place = np.full((length, len(SIGHTS), 2), np.nan, np.float32)
    height, grip = np.zeros((2, length, len(SIGHTS)), np.float32)
    for thing in scene["objects"]:
        sight = SIGHTS.index(thing["name"])
        path = np.array(paths[thing["name"]], float)
        middles = path + np.array([0, 0, KINDS[thing["kind"]].height / 2])
        place[:, sight], height[:, sight] = SIZE * project(scene, middles), path[:, 2]
        grip[:, sight] = thing["name"] in held
    return probing.Reading(place, height, grip, (~np.isnan(place[..., 0])).astype(np.int64))


def path(start, end, *, length=8, rest=4):
    """A way from start to end (3,), then at rest."""
    moving = np.linspace(start, end, length)
    return np.concatenate([moving, np.repeat(moving[-1:], rest, axis=0)])


def still(place, length=12):
    return np.repeat(np.array([[*place, 0.0][:3]], float), length, axis=0)


def test_a_pixel_at_a_known_height_is_a_place_on_the_table():
    points = np.random.default_rng(0).uniform([0.2, -0.1, 0], [0.34, 0.1, 0.1], (20, 3))
    found = outcome_rules.unproject({}, SIZE * project({}, points), points[:, 2])
    np.testing.assert_allclose(found, points, atol=1e-9)


def test_a_carrot_that_comes_to_rest_on_the_plate_is_a_success_and_beside_it_or_in_the_hand_is_not():
    task, plate = CORE_TASKS["put_carrot_on_plate"], (0.30, 0.05)
    scene = scene_of(carrot=(0.24, -0.05), plate=plate, eggplant=(0.25, 0.0))

    def shown(end, held=()):
        paths = {"carrot": path((0.24, -0.05, 0), end), "plate": still(plate), "eggplant": still((0.25, 0.0))}
        return outcome_rules.read_outcome(task, seen_reading(scene, paths, held), scene)

    assert shown((0.30, 0.05, 0.008))
    assert not shown((0.21, 0.05, 0.0))
    assert not shown((0.30, 0.05, 0.06))
    assert not shown((0.30, 0.05, 0.008), held=("carrot",))


def test_a_can_must_be_held_up_high_to_be_lifted():
    task, scene = CORE_TASKS["lift_can"], scene_of(can=(0.25, 0.0))

    def shown(height, held):
        reading = seen_reading(scene, {"can": path((0.25, 0, 0), (0.25, 0, height))}, held)
        return outcome_rules.read_outcome(task, reading, scene)

    assert shown(0.07, ("can",))
    assert not shown(0.03, ("can",))
    assert not shown(0.07, ())


@pytest.mark.parametrize(
    ("key", "name"), [("move_can_left", "can"), ("push_yellow_cube_left", "yellow cube")]
)
def test_moving_and_pushing_need_the_right_side_and_the_whole_way(key, name):
    scene = scene_of(**{name.replace(" ", "_"): CENTRE - 0.01 * DIRECTIONS["left"]})

    def shown(way):
        start = np.append(CENTRE - 0.01 * DIRECTIONS["left"], 0.0)
        end = start + np.append(way * DIRECTIONS["left"], 0.0)
        reading = seen_reading(scene, {name: path(start, end)})
        return outcome_rules.read_outcome(CORE_TASKS[key], reading, scene)

    assert shown(0.08)
    assert not shown(0.03)
    assert not shown(-0.08)


def test_a_carrot_is_out_of_the_pot_when_it_lies_beside_it():
    task, scene = CORE_TASKS["take_carrot_out_of_pot"], scene_of(carrot=(0.27, 0.0, 0.005), pot=(0.27, 0.0))
    for end, expected in (((0.27, 0.09, 0.0), True), ((0.27, 0.02, 0.005), False)):
        paths = {"carrot": path((0.27, 0.0, 0.005), end), "pot": still((0.27, 0.0))}
        assert outcome_rules.read_outcome(task, seen_reading(scene, paths), scene) is expected


def test_a_thing_out_of_sight_is_where_it_was_seen_last():
    scene = scene_of(can=(0.25, 0.0))
    reading = seen_reading(scene, {"can": path((0.25, 0, 0), (0.30, 0, 0))})
    reading.place[5:, CAN] = np.nan
    places = outcome_rules.seen_of(reading, scene).place["can"]
    np.testing.assert_array_equal(places[5:], np.repeat(places[4:5], len(places) - 5, axis=0))


def test_a_glimpse_of_success_counts_at_the_end_only():
    frames = np.array([False, True, False, False])
    assert not outcome_rules.outcome(frames)
    assert outcome_rules.outcome(np.append(frames, True))
    assert outcome_rules.outcome(np.array([False, True, True, False]))


def test_balanced_accuracy_weighs_successes_and_failures_alike():
    shown = [Outcome.SUCCESS, Outcome.FAILURE, *[Outcome.FAILURE] * 7, Outcome.SUCCESS]
    outcomes = measures.Outcomes(shown, [True] * 2 + [False] * 8, ["expert"] * 2 + ["play"] * 8)
    estimate = outcomes.balanced_accuracy()
    assert estimate.value == pytest.approx((1 / 2 + 7 / 8) / 2)
    assert 0 <= estimate.low < estimate.value < estimate.high <= 1
    assert outcomes.to_dict()["false_positives"] == 1
    failing = outcomes.of(["play"])
    assert len(failing.truth) == 8
    assert failing.balanced_accuracy().value is None


# -- the probe ----------------------------------------------------------------------------------------------


def test_labels_say_where_everything_is_in_pixels(clips):
    episode = ClipFolder(clips)[0]
    labels, facts = labels_of(episode.metadata), episode.metadata
    np.testing.assert_allclose(labels[:, 0, [Label.X, Label.Y]], SIZE * np.array(facts["gripper"]), atol=1e-4)
    assert (~np.isnan(labels[0, 1:, Label.X])).sum() == len(facts["names"])
    first = SIGHTS.index(facts["names"][0])
    assert labels[3, first, Label.HEIGHT] == pytest.approx(facts["heights"][3][0])
    with pytest.raises(DataError, match="clips of the twin"):
        labels_of({"gripper": [[0.5, 0.5]]})


def test_pasting_adds_a_thing_or_covers_one_and_labels_say_so():
    rng = np.random.default_rng(0)
    frames = np.full((2, SIZE, SIZE, 3), 200, np.uint8)
    for frame, x in zip(frames, (15, 40), strict=True):
        frame[40:46, x : x + 6] = (200, 20, 20)
    labels = np.concatenate([made_labels(1, {CAN: (18, 43)}), made_labels(1, {CAN: (43, 43)})])
    source = LabelledFrames(frames, labels)
    added = covered = 0
    for _ in range(400):
        frame = frames[1].copy()
        label = np.full((len(SIGHTS), INSTANCES, len(Label)), np.nan, np.float32)
        label[:, 0] = labels[1]
        if not paste(frame, label, source, rng):
            np.testing.assert_array_equal(frame, frames[1])
            continue
        there = int((~np.isnan(label[CAN, :, Label.X])).sum())
        red = (frame[..., 1] < 60).sum()
        assert abs(red - 36 * there) <= 8
        added, covered = added + (there == 2), covered + (there == 0)
    assert added > 5
    assert covered > 5


def test_maps_with_one_peak_are_read_to_a_fraction_of_a_pixel_and_two_peaks_as_two():
    side = SIZE // probing.CELL
    maps = torch.zeros(2, len(SIGHTS), 5, side, side)
    maps[:, :, 0] = -6
    maps[0, CAN, 0, 10, 12] = 4
    maps[0, CAN, 1] = 0.25  # the middle of the whole is a quarter of a pixel to the right of every cell
    maps[1, CAN, 0, 10, 12] = maps[1, CAN, 0, 20, 5] = 4
    maps[0, CAN, 3] = 0.3
    place, height, held, count = probing.decode_maps(maps)
    np.testing.assert_allclose(place[0, CAN], [2 * 12.5 + 0.25, 2 * 10.5], atol=0.05)
    assert height[0, CAN] == pytest.approx(0.03)
    assert held[0, CAN] == pytest.approx(0.5)
    assert count[:, CAN].tolist() == [1, 2]
    assert np.isnan(place[:, PLATE]).all()
    assert count[:, PLATE].tolist() == [0, 0]


def test_the_loss_is_least_at_the_right_maps():
    labels = np.full((1, len(SIGHTS), INSTANCES, len(Label)), np.nan, np.float32)
    labels[0, CAN, 0] = [25, 21, 80, 26, 21, 0.02, 1.0]
    side = SIZE // probing.CELL
    cells = probing.CELL * (np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1) + 0.5)
    bump = np.exp(-((cells - [25, 21]) ** 2).sum(-1) / (2 * probing.SPREAD**2)).clip(1e-6, 1 - 1e-6)
    right = np.zeros((1, len(SIGHTS), 5, side, side), np.float32)
    right[:, :, 0] = -14
    right[0, CAN, 0] = np.log(bump / (1 - bump))
    right[0, CAN, 1:3] = np.moveaxis([26, 21] - cells, -1, 0)
    right[0, CAN, 3], right[0, CAN, 4] = 0.2, 12
    wrong = {
        "elsewhere": np.roll(right, 4, axis=-1),
        "nothing": np.where(np.arange(5)[:, None, None] == 0, -14, right),
        "too high": right + 0.3 * (np.arange(5) == 3)[:, None, None],
        "not held": right * np.where(np.arange(5) == 4, -1, 1)[:, None, None],
    }
    least = probing.probe_loss(torch.from_numpy(right), torch.from_numpy(labels)).item()
    for name, maps in wrong.items():
        loss = probing.probe_loss(torch.from_numpy(maps.astype(np.float32)), torch.from_numpy(labels)).item()
        assert loss > least + 0.1, name


def test_a_few_steps_of_training_bring_the_probe_nearer_to_the_gripper(clips):
    source = read_frames(ClipFolder(clips), [0, 1], per_clip=12)
    torch.manual_seed(0)
    network = probing.ProbeNetwork()
    optimizer = torch.optim.AdamW(network.parameters(), 4e-3)
    losses = []
    for step in range(12):
        frames, labels = draw_batch(source, np.arange(12), np.random.default_rng(step))
        loss = probing.probe_loss(
            network(probing.to_unit(torch.from_numpy(frames))), torch.from_numpy(labels)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_weights_are_written_and_read_and_others_are_refused(tmp_path):
    torch.manual_seed(0)
    probe = probing.Probe(probing.ProbeNetwork().half().float())
    probe.save(tmp_path / "probe.safetensors")
    frames = np.random.default_rng(0).integers(0, 256, (3, SIZE, SIZE, 3), np.uint8)
    again = probing.Probe.load(tmp_path / "probe.safetensors").read(frames)
    for field in dataclasses.fields(probing.Reading):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(probe.read(frames), field.name))
    with pytest.raises(CheckpointNotFound, match="train one"):
        probing.Probe.load(tmp_path / "missing.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="no weights of a probe"):
        probing.Probe.load(tmp_path / "broken.safetensors")


# -- the whole ----------------------------------------------------------------------------------------------


class Perfect:
    """A stand-in for a world model: it knows the twin's frames."""

    frame_shape = (SIZE, SIZE, 3)

    def encode(self, frames):
        return frames

    decode = encode


def test_a_world_that_shows_the_twins_own_frames_is_perfect_and_the_report_says_so(
    clips, tmp_path, monkeypatch
):
    episodes = fidelity.read_episodes(clips, 4)
    truths = {frames.tobytes(): labels_of(e.metadata) for e in episodes for frames in [e.frames]}

    class Knowing(probing.Probe):
        """Reads the twin's frames rightly, and sees an empty table in all others."""

        def read(self, frames, *, at_once=128):
            known = {
                e.frames[t].tobytes(): truths[e.frames.tobytes()][t] for e in episodes for t in range(41)
            }
            nothing = np.full((len(SIGHTS), len(Label)), np.nan, np.float32)
            return reading_of(np.stack([known.get(frame.tobytes(), nothing) for frame in frames]))

    monkeypatch.setattr(fidelity.WorldModel, "from_pretrained", lambda name: Perfect())
    monkeypatch.setattr(fidelity, "replay", lambda model, part, seeds: np.stack([e.frames for e in part]))
    torch.manual_seed(0)
    report, truth, videos = fidelity.measure(
        "perfect", episodes, probe=Knowing(probing.ProbeNetwork()), shuffled=2, batch=3, judge=None
    )
    assert report["pictures"]["40"]["model"]["psnr"] == measures.BEST
    assert report["pictures"]["40"]["first frame repeated"]["psnr"] < 30
    assert report["positions"]["model"]["20"]["gripper"]["median_px"] == 0
    assert report["positions"]["first frame repeated"]["20"]["gripper"]["median_px"] > 2
    assert report["keeping"]["model"] == {"vanished": 0.0, "multiplied": 0.0, "neither": 1.0}
    assert set(report["families"]) == {str(e.family) for e in episodes}
    json.dumps(report, allow_nan=False)
    print_report(report)
    page = markdown(report)
    assert "| model | 60.0 |" in " ".join(page.split())
    assert "reached  PSNR above the first frame repeated at every horizon" in page
    written = write_sheets(tmp_path, episodes, truth, videos)
    names = {path.name for path in written}
    assert {f"task_{e.task}.png" for e in episodes} | {f"family_{e.family}.mp4" for e in episodes} <= names
    assert all(path.stat().st_size > 1000 for path in written)


def test_every_start_gets_the_actions_of_another_episode():
    episodes = [
        Episode(np.zeros((3, 8, 8, 3), np.uint8), np.full((2, 7), number, np.float32)) for number in range(5)
    ]
    swapped = fidelity.with_others_actions(episodes)
    assert all(a.actions[0, 0] != b.actions[0, 0] for a, b in zip(swapped, episodes, strict=True))
    assert sorted(float(e.actions[0, 0]) for e in swapped) == [0, 1, 2, 3, 4]


def test_clips_without_the_truth_are_refused(tmp_path):
    from worldgym.data.clips import ClipWriter

    frames = np.zeros((41, 64, 64, 3), np.uint8)
    ClipWriter(tmp_path).append(Episode(frames, np.zeros((40, 7), np.float32)))
    with pytest.raises(DataError, match="worldgym collect"):
        fidelity.read_episodes(tmp_path, 1)


def test_the_rules_know_every_task_of_the_twin():
    for task in (*CORE_TASKS.values(), *EXTRA_TASKS.values()):
        names = {task.rule.target, getattr(task.rule, "goal", task.rule.target)}
        things = {thing.name: KINDS[thing.kind] for thing in (*task.things, *task.extras)}
        seen = outcome_rules.Seen(
            {name: still((0.25 + 0.05 * i, 0.0), 4) for i, name in enumerate(names)},
            {name: np.zeros(4, bool) for name in names},
        )
        assert outcome_rules.solved(task, seen, things).shape == (4,)
