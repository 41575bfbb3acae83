"""Training of the inverse dynamics head, its folder, and what the packaged one knows."""

import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from worldgym.data.clips import ClipWriter
from worldgym.episode import Episode
from worldgym.errors import CheckpointError, CheckpointNotFound, DataError, InvalidConfig
from worldgym.models.inverse import LARGEST_ERROR, SMALLEST_ERROR, InverseNetwork, to_window
from worldgym.models.inverse_head import InverseConfig, InverseHead, disagreement, save_head, windows_of
from worldgym.training.inverse import InverseTraining, inverse_loss, load_clips, train_inverse
from worldgym.training.loop import LoopConfig
from worldgym.wrappers.consistency_rules import conformal_threshold, episode_scores

TINY = InverseConfig(widths=(8, 8, 8), hidden=16)
NOTHING = np.zeros((1, 2, 2), np.float32)
FAST = LoopConfig(
    steps=4,
    batch_size=24,
    learning_rate=1e-2,
    warm_up=2,
    ema=0.9,
    log_every=2,
    validate_every=4,
    save_every=2,
    precision="float32",
    device="cpu",
    compile=False,
)


def lamp(seed: int, *, length: int = 14, size: int = 64) -> Episode:
    """A lamp that gets brighter or darker as the first number of the action says; nothing else counts."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-0.2, 0.2, (length - 1, 7)).astype(np.float32)
    light, frames = 128.0, []
    for index in range(length):
        frames.append(np.full((size, size, 3), round(light), np.uint8))
        if index < length - 1:
            actions[index, 0] = rng.uniform(-0.9, 0.9)
            if not 50 < light + 40 * actions[index, 0] < 210:
                actions[index, 0] *= -1
            light += 40 * actions[index, 0]
    return Episode(np.stack(frames), actions)


def write_clips(folder, count, **options):
    writer = ClipWriter(folder, action_spec="worldgym", lossless=True)
    for seed in range(count):
        writer.append(lamp(seed, **options))
    return folder


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    return write_clips(tmp_path_factory.mktemp("clips"), 16)


def tiny_training(clips, **changes):
    loop = replace(FAST, **changes)
    return InverseTraining(str(clips), held_out=0.25, widths=TINY.widths, hidden=TINY.hidden, loop=loop)


@pytest.mark.slow
def test_a_trained_head_reads_actions_and_tells_who_disobeys(clips, tmp_path):
    folder = train_inverse(tiny_training(clips, steps=80), tmp_path / "run")
    head = InverseHead(folder)
    assert head.config.trained["clips"] == 12
    assert head.config.trained["calibration_episodes"] == 4
    assert head.calibration.shape == (4, 13, 2)
    assert np.isfinite(head.calibration).all()
    strangers = [lamp(seed) for seed in range(100, 120)]
    readings = [head.read_episode(episode.frames) for episode in strangers]
    missed = [
        np.abs(read[0] - episode.actions)[:, 0] for read, episode in zip(readings, strangers, strict=True)
    ]
    assert np.mean(missed) < 0.4 * np.mean([np.abs(episode.actions[:, 0]) for episode in strangers])
    assert head.config.weights[0] > 0.4 > max(head.config.weights[1:])
    threshold = conformal_threshold(episode_scores(head.calibration, 6), 0.25)
    pairs = list(zip(readings, strangers, strict=True))
    honest = [head.compare(episode.actions, *read) for read, episode in pairs]
    lying = [head.compare(np.roll(episode.actions, 5, axis=0), *read) for read, episode in pairs]
    assert (episode_scores(np.stack(lying), 6) > threshold).mean() >= 0.9
    assert (episode_scores(np.stack(honest), 6) > threshold).mean() <= 0.5


def test_a_stopped_run_goes_on_as_if_it_had_not_been(clips, tmp_path):
    whole = train_inverse(tiny_training(clips, decay_steps=0), tmp_path / "whole")
    train_inverse(tiny_training(clips, steps=2, decay_steps=0), tmp_path / "parts")
    parts = train_inverse(tiny_training(clips, decay_steps=0), tmp_path / "parts")
    for name in ("model.safetensors", "calibration.safetensors", "inverse.json"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    with pytest.raises(InvalidConfig, match="other values"):
        train_inverse(replace(tiny_training(clips), frames=2), tmp_path / "parts")


def test_clips_are_read_resized_converted_and_cut_off(tmp_path):
    write_clips(tmp_path / "clips", 3, size=128)
    loaded = load_clips(tmp_path / "clips", action_spec="physical_bridge", most=2)
    assert len(loaded) == 2
    assert loaded.frames.shape == (28, 64, 64, 3)
    np.testing.assert_array_equal(loaded.begin, [0, 14, 28])
    np.testing.assert_allclose(loaded.actions[1:14, :3], 0.05 * lamp(0).actions[:, :3], atol=1e-6)
    assert np.isnan(loaded.actions[[0, 14]]).all()
    numbers = loaded.caused([1])
    assert numbers.tolist() == list(range(15, 28))
    # windows never reach into the clip before: they repeat the first frame
    windows = loaded.windows(numbers, 3)
    np.testing.assert_array_equal(windows, windows_of(loaded.frames[14:], 3))
    np.testing.assert_array_equal(windows[0, 0], loaded.frames[14])
    np.testing.assert_array_equal(windows[0, 1], loaded.frames[14])


def test_clips_that_cannot_be_used_are_left_out_or_refused(tmp_path, caplog):
    write_clips(tmp_path / "clips", 3)
    (tmp_path / "clips" / "000000001.mp4").write_bytes(b"no video")
    with caplog.at_level(logging.WARNING):
        assert len(load_clips(tmp_path / "clips", action_spec="worldgym", most=None)) == 2
    assert "000000001" in caplog.text
    with pytest.raises(DataError, match="at least 2 clips"):
        load_clips(tmp_path / "clips", action_spec="worldgym", most=2)
    with pytest.raises(DataError):
        load_clips(tmp_path / "nothing", action_spec="worldgym", most=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out": 1.0}, "held_out"),
        ({"max_clips": 1}, "max_clips"),
        ({"frames": 1}, "at least 2 frames"),
        ({"widths": (8, 8)}, "three multiples of 8"),
        ({"action_spec": "mine"}, "unknown action convention"),
    ],
)
def test_what_cannot_work_is_refused_at_once(changes, message):
    with pytest.raises(InvalidConfig, match=message):
        InverseTraining("clips", **changes)


def test_the_network_says_what_error_to_expect():
    torch.manual_seed(0)
    network = InverseNetwork(frames=4, actions=5, widths=(8, 8, 16), hidden=8)
    read = network(to_window(torch.randint(0, 256, (2, 4, 64, 64, 3), dtype=torch.uint8)))
    assert read.action.shape == read.error.shape == (2, 5)
    assert (read.error >= SMALLEST_ERROR).all()
    assert (read.error <= LARGEST_ERROR).all()


def test_the_loss_is_least_for_the_true_action_and_the_true_error():
    def loss(action, error):
        read = torch.full((1, 1), action), torch.full((1, 1), error)
        true = torch.tensor([[0.1], [0.5]])  # their mean distance from 0.3 is 0.2
        answer = type("Read", (), {"action": read[0].expand(2, 1), "error": read[1].expand(2, 1)})
        return inverse_loss(lambda window: answer, None, true).item()

    assert loss(0.3, 0.2) < min(loss(0.3, 0.1), loss(0.3, 0.4), loss(0.9, 0.2))


def test_disagreement_is_the_part_that_is_not_seen(tmp_path):
    weights, usual = (1.0, 0.5, 0, 0, 0, 0, 0), (0.2, 0, 0, 0, 0, 0, 9)
    config = replace(TINY, weights=weights, usual=usual)
    head = InverseHead(save_head(TINY.network(), config, NOTHING, tmp_path))
    requested, read = np.zeros((2, 7), np.float32), np.zeros((2, 7), np.float32)
    requested[0, :2], read[0, :2] = (0.8, 0.5), (0.7, 0.2)
    compared = head.compare(requested, read, np.full((2, 7), 0.1, np.float32))
    np.testing.assert_allclose(compared, [[(1 + 1.5) / 1.5, (6 + 2.5) / 1.5], [0, 2 / 1.5]], rtol=1e-5)
    np.testing.assert_allclose(disagreement(compared), 2.5 / (8.5 + 2 + 2 * 1.5), rtol=1e-5)


def test_a_window_is_read_alike_in_any_batch(tmp_path):
    torch.manual_seed(0)
    head = InverseHead(save_head(TINY.network(), TINY, NOTHING, tmp_path))
    windows = windows_of(lamp(0).frames, 3)
    together = head.read(windows)
    for index in range(len(windows)):
        for mine, theirs in zip(head.read(windows[index : index + 1]), together, strict=True):
            np.testing.assert_allclose(mine[0], theirs[index], atol=1 / 1000)
    assert head.read(windows[:0])[0].shape == (0, 7)
    with pytest.raises(InvalidConfig, match=r"\(B, 3, H, W, 3\)"):
        head.read(windows[:, :2])


def test_a_broken_folder_says_what_is_wrong(tmp_path):
    with pytest.raises(CheckpointNotFound, match="calibration"):
        InverseHead(tmp_path)
    folder = save_head(TINY.network(), TINY, NOTHING, tmp_path)
    values = json.loads((folder / "inverse.json").read_text())
    (folder / "inverse.json").write_text(json.dumps({**values, "hidden": 24}))
    with pytest.raises(CheckpointError, match="does not fit"):
        InverseHead(folder).read(np.zeros((1, 3, 64, 64, 3), np.uint8))
    for broken in (
        "{",
        json.dumps({**values, "colour": 3}),
        json.dumps({**values, "frames": 1}),
        json.dumps({**values, "weights": [1]}),
    ):
        (folder / "inverse.json").write_text(broken)
        with pytest.raises(CheckpointError, match="does not describe a head"):
            InverseHead(folder)
    (folder / "inverse.json").write_text(json.dumps(values))
    (folder / "calibration.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="no calibration"):
        InverseHead(folder)


# -- the packaged head ------------------------------------------------------------------------------------


def twin_episodes(families, count=6):
    pytest.importorskip("mujoco")
    from worldgym.envs.camera import Renderer
    from worldgym.envs.twin_episode import record
    from worldgym.envs.twin_tasks import get_task
    from worldgym.tasks import load_suite

    suite, renderer = load_suite("packaged"), Renderer(64, 64)
    starts = [suite[(7 * number) % len(suite)] for number in range(count)]
    return [
        record(
            get_task(start.task),
            start.scene,
            families[number % len(families)],
            seed=900 + number,
            renderer=renderer,
            frames=20,
        )
        for number, start in enumerate(starts)
    ]


def test_the_packaged_head_knows_the_twin_and_is_small():
    head = InverseHead()
    assert sum(file.stat().st_size for file in head.folder.iterdir()) < 2e6
    assert len(head.calibration) >= 199  # for alpha from 0.005 on
    threshold = conformal_threshold(episode_scores(head.calibration, 8), 0.05)
    episodes = twin_episodes(["expert", "play", "noise_0.35"])
    readings = [head.read_episode(episode.frames) for episode in episodes]
    obeying = [head.compare(e.actions, *read) for e, read in zip(episodes, readings, strict=True)]
    shifted = [head.compare(np.roll(e.actions, 7, 0), *r) for e, r in zip(episodes, readings, strict=True)]
    assert (episode_scores(np.stack(obeying), 8) > threshold).sum() <= 1
    assert (episode_scores(np.stack(shifted), 8) > threshold).sum() >= 5
