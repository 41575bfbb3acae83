"""A converted published checkpoint, rolled out from real Bridge start frames through the command line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from test_models_checkpoint import published_file

from worldgym import cli
from worldgym.models.codec import ConvolutionalCodec, FrameCodec
from worldgym.tasks import load_suite
from worldgym.video import read_video, video_fps

FRAMES = 5


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Run one verb of the command line."""

    def call(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["worldgym", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code

    return call


@pytest.mark.parametrize("size", [(64, 64), (61, 75)], ids=["even", "odd"])
def test_every_real_start_frame_gives_a_video_as_declared(shared_data: Path, tmp_path: Path, verb, size):
    published_file(tmp_path / "published.pt")
    torch.manual_seed(0)
    ConvolutionalCodec(FrameCodec(channels=4, widths=(8, 8, 8), depth=1)).save(tmp_path / "codec")
    model = ("--rope", "pixel", "--heads", 4, "--window", 6, "--codec", tmp_path / "codec")
    frame = ("--height", size[0], "--width", size[1])
    verb("convert", tmp_path / "published.pt", tmp_path / "checkpoint", *model, *frame)

    trials = shared_data / "bridge_trials"
    world = ("--checkpoint", tmp_path / "checkpoint", "--steps", 1, "--trials", trials, "--every-trial")
    verb("rollout", *world, "--frames", FRAMES, "--out", tmp_path / "videos")
    starts = load_suite(trials)
    videos = {path.stem: path for path in (tmp_path / "videos").iterdir()}
    assert set(videos) == {f"{start.task}__{start.name}__random" for start in starts}
    assert len(videos) == 11
    for video in videos.values():
        assert read_video(video).shape == (1 + FRAMES, *size, 3)
        assert video_fps(video) == 5
