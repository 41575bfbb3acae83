"""The measure of ``benchmarks/consistency.py``: areas, intervals, corruptions."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from obeying_worlds import OBEYING, read_written, show_env, write_head

from worldgym.data.clips import ClipWriter
from worldgym.episode import Episode
from worldgym.models.inverse_head import InverseHead

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import consistency


def test_the_area_is_the_chance_to_be_told_apart():
    honest, bad = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0])
    assert consistency.area_under_roc(honest, bad) == pytest.approx((1.5 + 3) / 6)
    assert consistency.area_under_roc(honest, honest) == 0.5


def test_the_interval_holds_the_area_and_shrinks_with_episodes():
    rng = np.random.default_rng(0)
    widths = []
    for count in (20, 200):
        honest, bad = rng.normal(0, 1, count), rng.normal(1, 1, count)
        low, high = consistency.bootstrap(honest, bad, draws=200)
        assert low < consistency.area_under_roc(honest, bad) < high
        widths.append(high - low)
    assert widths[1] < 0.6 * widths[0]


def test_corruptions_begin_where_they_say():
    rng = np.random.default_rng(0)
    videos = rng.integers(0, 256, (4, 15, 8, 8, 3), np.uint8)
    actions = rng.uniform(-1, 1, (4, 14, 7)).astype(np.float32)
    kinds = consistency.corruptions(videos, actions, {"noised": videos}, seed=0)
    for frames, asked in kinds.values():
        np.testing.assert_array_equal(frames[:, : consistency.FROM + 1], videos[:, : consistency.FROM + 1])
        np.testing.assert_array_equal(asked[:, : consistency.FROM], actions[:, : consistency.FROM])
    np.testing.assert_array_equal(kinds["another episode"][0][0, -1], videos[2, -1])
    np.testing.assert_array_equal(kinds["frozen"][0][:, -1], videos[:, consistency.FROM])
    assert (np.sort(kinds["shuffled actions"][1], axis=1) == np.sort(actions, axis=1)).all()
    assert (kinds["shuffled actions"][1] != actions).any()


def test_it_measures_a_world_that_obeys(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(InverseHead, "read", read_written)
    writer, rng = (
        ClipWriter(tmp_path / "clips", action_spec="worldgym", lossless=True),
        np.random.default_rng(0),
    )
    for _ in range(4):
        env = show_env()
        frames, actions = [env.reset(seed=OBEYING)[0]], rng.uniform(-0.9, 0.9, (24, 7)).astype(np.float32)
        frames += [env.step(action)[0] for action in actions]
        writer.append(Episode(np.stack(frames), actions))
    consistency.main(tmp_path / "clips", tmp_path / "out", head=write_head(tmp_path / "head"))
    result = json.loads((tmp_path / "out" / "consistency.json").read_text())["twin"]
    assert result["ended"]["rate"] == 0
    shuffled = result["corruptions"]["shuffled actions"]
    assert shuffled["auc"] == 1
    assert shuffled["caught"]["rate"] == 1
    assert shuffled["by"]["disagreement"] == 4
    assert 0 < shuffled["median_frames_later"] <= 8
    assert result["corruptions"]["frozen"]["caught"]["rate"] == 1
    assert (tmp_path / "out" / "consistency.png").stat().st_size > 1000
