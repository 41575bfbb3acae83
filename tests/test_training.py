"""Training: the loop's promises (resume, refusal, files), batches, the loss, and both stages end to end."""

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from worldgym.data.clips import ClipFolder, ClipWriter
from worldgym.data.encoded import EncodedClips
from worldgym.episode import Episode
from worldgym.errors import CheckpointError, DataError, InvalidConfig, RunError
from worldgym.models.codec import ConvolutionalCodec, FrameCodec, load_codec
from worldgym.models.dit import WorldTransformer, banded_mask
from worldgym.models.world_model import WorldModel
from worldgym.training.batches import LatentWindows
from worldgym.training.codec import CodecTraining, train_codec
from worldgym.training.emphasis import object_emphasis
from worldgym.training.encode import encode_clips
from worldgym.training.log import read_log
from worldgym.training.loop import Draw, LoopConfig, Run, batch_indices, batch_sampler, train
from worldgym.training.objective import draw_noise, pixel_weight, world_loss
from worldgym.training.world import export_world, read_world_training, train_world
from worldgym.training.world_config import WorldTraining
from worldgym.video import read_video

FAST = LoopConfig(
    steps=6,
    batch_size=4,
    warm_up=2,
    log_every=2,
    validate_every=3,
    save_every=3,
    precision="float32",
    device="cpu",
)
SMALL = {
    "dim": 16,
    "layers": 1,
    "heads": 2,
    "n_frames": 4,
    "window": 3,
    "rollout_clips": 2,
    "rollout_frames": 5,
}


# -- the loop --------------------------------------------------------------------------------------------


class Line(nn.Module):
    """Fits one number to noisy draws around 3."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.zeros(4))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return (self.value - 3 - noise).square().mean()


def line_run(**description) -> Run:
    def loss(network: nn.Module, draw: Draw, device: torch.device) -> torch.Tensor:
        return network(torch.randn(4, generator=draw.generator()) * 0.1)

    def validate(network: nn.Module, step: int, folder: Path) -> dict[str, float]:
        (folder / f"{step}.txt").write_text("seen")
        return {"loss": float(network(torch.zeros(4)))}

    return Run(Line(), loss, validate, description)


def test_training_lowers_the_loss_and_leaves_its_files(tmp_path: Path):
    average = train(line_run(), replace(FAST, steps=200, learning_rate=0.1, validate_every=100), tmp_path)
    assert (average.value - 3).abs().max() < 0.3
    lines = read_log(tmp_path)
    validation = [line["validation_loss"] for line in lines if "validation_loss" in line]
    assert len(validation) == 2
    assert validation[1] < validation[0]
    assert (tmp_path / "loss.png").stat().st_size > 1000
    assert {file.name for file in (tmp_path / "validation").iterdir()} == {"100.txt", "200.txt"}
    assert not list(tmp_path.glob("*.part"))


def test_an_interrupted_run_continues_to_the_same_bits(tmp_path: Path):
    whole = train(line_run(), FAST, tmp_path / "whole")
    train(
        line_run(), replace(FAST, steps=3, decay_steps=2), tmp_path / "parts"
    )  # the schedule is constant so far
    other = replace(FAST, decay_steps=2)
    expected = train(line_run(), other, tmp_path / "other")
    assert not torch.equal(whole.value, expected.value)
    stopped = replace(other, max_minutes=0.0)
    for _ in range(6):  # stops after every single step
        result = train(line_run(), stopped, tmp_path / "steps")
    assert torch.equal(result.value, expected.value)
    first, second = (torch.load(tmp_path / name / "state.pt") for name in ("other", "steps"))
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_the_log_of_a_resumed_run_has_each_step_once(tmp_path: Path):
    train(line_run(), replace(FAST, steps=4, save_every=3, log_every=1), tmp_path)
    state = torch.load(tmp_path / "state.pt")
    torch.save(state | {"step": 3}, tmp_path / "state.pt")  # as if killed before step 4 was saved
    train(line_run(), replace(FAST, log_every=1), tmp_path)
    steps = [line["step"] for line in read_log(tmp_path) if "loss" in line]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_folder_with_another_configuration_is_refused(tmp_path: Path):
    train(line_run(width=1), FAST, tmp_path)
    with pytest.raises(InvalidConfig, match="width"):
        train(line_run(width=2), FAST, tmp_path)
    with pytest.raises(InvalidConfig, match="learning_rate"):
        train(line_run(width=1), replace(FAST, learning_rate=0.5), tmp_path)
    train(line_run(width=1), replace(FAST, steps=8), tmp_path)  # a longer run may go on


def test_a_corrupt_state_is_refused(tmp_path: Path):
    train(line_run(), FAST, tmp_path)
    (tmp_path / "state.pt").write_bytes(b"not a state")
    with pytest.raises(CheckpointError, match=r"state\.pt"):
        train(line_run(), FAST, tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_saved(tmp_path: Path):
    run = line_run()._replace(loss=lambda network, draw, device: network(torch.full((4,), torch.nan)))
    with pytest.raises(RunError, match="lower the learning rate"):
        train(run, replace(FAST, log_every=100), tmp_path)
    assert not (tmp_path / "state.pt").exists()


def test_the_learning_rate_warms_up_and_falls_to_zero():
    config = LoopConfig(steps=100, warm_up=10, learning_rate=1.0)
    rates = [config.rate(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert rates[100] == 0.0
    late = replace(config, decay_steps=20, decay="cosine")
    assert late.rate(79) == 1.0
    assert late.rate(90) == pytest.approx(0.5)


def test_the_moving_average_follows_slowly_after_its_warm_up(tmp_path: Path):
    config = replace(FAST, steps=20, learning_rate=0.1, decay_steps=0, validate_every=20, save_every=20)
    latest = train(line_run(), replace(config, ema=0.0), tmp_path / "latest")
    slow = train(line_run(), replace(config, ema=0.999), tmp_path / "slow")
    assert 0.2 < slow.value.mean() / latest.value.mean() < 0.95  # without the warm-up it would be 0.01


def test_processes_share_a_batch_without_overlap():
    sampler = batch_sampler(12, replace(FAST, batch_size=6))
    parts = [batch_indices(sampler, Draw(0, 1, process, 2)) for process in range(2)]
    assert not set(parts[0]) & set(parts[1])
    assert len(parts[0]) == 3


def test_draws_differ_by_step_process_and_stream_and_repeat():
    def number(*place: int, stream: int = 0) -> float:
        return torch.rand((), generator=Draw(*place).generator(stream)).item()

    assert number(0, 1) == number(0, 1)
    values = [number(0, 1), number(0, 2), number(1, 1), number(0, 1, 1, 2), number(0, 1, stream=1)]
    assert len(set(values)) == 5


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("batch_size", -1),
        ("ema", 1.0),
        ("precision", "half"),
        ("decay", "steps"),
        ("warm_up", -1),
    ],
)
def test_impossible_loop_options_are_refused(name: str, value: object):
    with pytest.raises(InvalidConfig, match=name):
        LoopConfig(**{name: value})


def test_a_missing_gpu_is_said(tmp_path: Path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(InvalidConfig, match="no GPU"):
        train(line_run(), replace(FAST, device="cuda"), tmp_path)


# -- data ------------------------------------------------------------------------------------------------


def ball_clips(folder: Path, *, clips: int = 6, frames: int = 9, size: int = 32) -> Path:
    """A bright square that its actions push around a dark table."""
    writer = ClipWriter(folder, lossless=True)
    rng = np.random.default_rng(0)
    for number in range(clips):
        place, video = rng.uniform(8, size - 8, 2), []
        actions = np.zeros((frames - 1, 7), np.float32)
        actions[:, :2] = rng.choice([-1, 1], (frames - 1, 2))
        actions[:, 6] = 1
        for step in range(frames):
            image = np.full((size, size, 3), 40, np.uint8)
            y, x = place.astype(int)
            image[y - 3 : y + 3, x - 3 : x + 3] = (250, 200, 50)
            video.append(image)
            if step < frames - 1:
                place = np.clip(place + 2 * actions[step, :2], 4, size - 4)
        writer.append(Episode(frames=np.stack(video), actions=actions), name=f"{number:03d}")
    return folder


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ball_clips(tmp_path_factory.mktemp("data") / "clips")


@pytest.fixture(scope="module")
def codec_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("data") / "codec"
    ConvolutionalCodec(FrameCodec(channels=4, widths=(8, 8, 8), depth=1)).save(folder)
    return folder


@pytest.fixture(scope="module")
def encoded(clips: Path, codec_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> EncodedClips:
    return encode_clips(clips, str(codec_folder), tmp_path_factory.mktemp("data") / "encoded")


def test_encoding_keeps_latents_actions_and_where_they_come_from(
    clips: Path, codec_folder: Path, encoded: EncodedClips
):
    reader = ClipFolder(clips)
    expected = load_codec(codec_folder).encode(torch.from_numpy(reader[1].frames)).half()
    assert np.array_equal(encoded.content(1, 0, 9), expected.numpy())
    assert np.array_equal(encoded.rows(1), reader.rows(1))
    assert encoded.extra["frame_size"] == [32, 32]
    assert encoded.extra["codec"] == str(codec_folder)


def test_windows_carry_their_true_predecessors(encoded: EncodedClips):
    windows = LatentWindows(encoded, [2, 4], n_frames=4, stride=1, action_offset=1)
    assert len(windows) == 2 * (9 - 4 + 1)
    batch = windows.batch(np.array([0, 3, 6]))
    second = torch.from_numpy(encoded.content(2, 0, 9)).float()
    other = torch.from_numpy(encoded.content(4, 0, 9)).float()
    assert torch.equal(batch.clean[0], second[:4])
    assert torch.equal(batch.previous[0], second[[0, 0, 1, 2]])  # the first frame is its own predecessor
    assert torch.equal(batch.clean[1], second[3:7])
    assert torch.equal(batch.previous[1], second[2:6])
    assert torch.equal(batch.previous[2], other[[0, 0, 1, 2]])


@pytest.mark.parametrize("offset", [0, 1])
def test_the_action_offset_says_which_action_belongs_to_a_frame(encoded: EncodedClips, offset: int):
    batch = LatentWindows(encoded, [1], n_frames=4, stride=1, action_offset=offset).batch(np.array([0, 2]))
    rows = torch.from_numpy(encoded.rows(1))
    if offset:
        assert torch.equal(batch.actions[0], torch.cat((torch.zeros(1, 10), rows[:3])))
        assert torch.equal(batch.actions[1], rows[1:5])
    else:
        assert torch.equal(batch.actions[0], rows[:4])
        assert torch.equal(batch.actions[1], rows[2:6])


def test_clips_without_a_window_are_listed_and_none_left_is_an_error(encoded: EncodedClips):
    with pytest.raises(DataError, match="9 frames"):
        LatentWindows(encoded, [0], n_frames=10, stride=1, action_offset=1)


def test_unreadable_clips_are_listed_and_left_out(codec_folder: Path, tmp_path: Path):
    folder = ball_clips(tmp_path / "clips", clips=3)
    (folder / "001.mp4").write_bytes(b"broken")
    made = encode_clips(folder, str(codec_folder), tmp_path / "encoded")
    assert made.names == ["000", "002"]
    assert [entry.path.stem for entry in made.skipped] == ["001"]


# -- the loss --------------------------------------------------------------------------------------------


def network_for(config: WorldTraining) -> WorldTransformer:
    torch.manual_seed(0)
    return WorldTransformer(
        in_channels=8 if config.residual else 4, out_channels=4, patch_size=2, dim=16, layers=1, heads=2
    )


@pytest.fixture
def batch(encoded: EncodedClips):
    return LatentWindows(encoded, range(6), n_frames=4, stride=1, action_offset=1).batch(np.arange(6))


def test_dropped_actions_are_the_null_action_of_a_whole_window(batch):
    config = WorldTraining(data="", action_dropout=0.5)
    noised = draw_noise(batch, torch.Generator().manual_seed(0), config)
    null = torch.zeros(10)
    null[-1] = 1
    dropped = (noised.actions == null).all(-1)
    assert 0 < dropped[:, 0].sum() < 6
    assert torch.equal(dropped, dropped[:, :1].expand(-1, 4))
    assert torch.equal(noised.actions[~dropped[:, 0]], batch.actions[~dropped[:, 0]])


@pytest.mark.parametrize("objective", ["v", "flow"])
def test_a_share_of_frames_is_nothing_but_noise(batch, objective: str):
    config = WorldTraining(data="", objective=objective, noise_share=0.5, context_share=0.0)
    noised = draw_noise(batch, torch.Generator().manual_seed(0), config)
    top = noised.level == (999 if objective == "v" else 1)
    assert 4 < top.sum() < 20
    torch.testing.assert_close(noised.noisy[top], noised.noise[top], atol=2e-3, rtol=0)


def test_context_frames_are_given_as_the_sampler_gives_them(batch):
    config = WorldTraining(data="", context_share=1.0, corruption=0.0)
    noised = draw_noise(batch, torch.Generator().manual_seed(0), config)
    assert (noised.level == 0.05).all()
    torch.testing.assert_close(noised.noisy, 0.95 * batch.clean)
    assert torch.equal(noised.previous, batch.previous)


@pytest.mark.parametrize("objective", ["v", "flow"])
@pytest.mark.parametrize("residual", [False, True])
def test_every_form_has_a_finite_loss_with_gradients(batch, objective: str, residual: bool):
    config = WorldTraining(
        data="", objective=objective, residual=residual, own_context=float(residual), window=3
    )
    network = network_for(config)
    noised = draw_noise(batch, torch.Generator().manual_seed(0), config)
    value = world_loss(network, batch, noised, config=config, mask=banded_mask(4, 3))
    value.backward()
    assert torch.isfinite(value)
    assert network.final_layer.linear.weight.grad.abs().sum() > 0


def test_own_context_shows_the_networks_own_prediction_and_asks_for_the_truth(batch):
    config = WorldTraining(data="", own_context=1.0, corruption=0.0, moving_weight=0.0)
    noised = draw_noise(batch, torch.Generator().manual_seed(0), config)
    given = []

    class Shift(nn.Module):
        def forward(self, x, level, actions, *, positions, view):
            given.append(x[:, :, 4:])
            return torch.ones_like(x[:, :, :4])

    world_loss(Shift(), batch, noised, config=config, mask=banded_mask(4, 3))
    assert torch.equal(given[0], batch.previous)
    assert torch.equal(given[1][:, 0], batch.previous[:, 0])
    assert torch.equal(given[1][:, 1:], batch.previous[:, :-1] + 1)


def test_what_moves_weighs_more_and_the_mean_weight_is_one(batch):
    weight = pixel_weight(batch, moving=4.0, objects=0.0)
    moved = (batch.clean - batch.previous).abs().mean(2, keepdim=True)
    assert weight.mean() == pytest.approx(1.0, abs=1e-5)
    ordered = weight.flatten()[moved.flatten().argsort()]
    assert (ordered.diff() >= 0).all()
    assert ordered[-1] > 1 > ordered[0]
    assert pixel_weight(batch, moving=0.0, objects=0.0) is None


def test_a_moving_object_weighs_more_than_one_at_rest_and_an_unseen_one_nothing(tmp_path):
    places = [[[0.25, 0.25], [0.75, 0.75], None]] * 4
    middles = np.array([[[0.25, 0.25], [0.75, 0.75], [0.25, 0.75]]] * 4)
    middles[2:, 0] += 0.05  # the first one moves between frames 1 and 2
    facts = {"centroids": places, "objects": middles.tolist()}
    frames = np.zeros((4, 32, 32, 3), np.uint8)
    for name, metadata in (("0", facts), ("1", {})):
        episode = Episode(frames, np.zeros((3, 7), np.float32), trial=name, metadata=metadata)
        ClipWriter(tmp_path / "clips").append(episode)
    clips = EncodedClips.encode(
        ClipFolder(tmp_path / "clips"), lambda frames: np.zeros((len(frames), 2, 4, 4)), path=tmp_path / "out"
    )
    emphasis = object_emphasis(clips)[:, 0].astype(float)
    assert emphasis.shape == (8, 4, 4)
    np.testing.assert_array_equal(
        emphasis[:, 1, 1] > emphasis[:, 3, 3], [False, True, True, False, *[False] * 4]
    )
    assert (emphasis[:4, 2:, :2] <= emphasis[:4, 1:2, 1:2] * 0.5).all()
    assert emphasis[4:].max() == 0
    batch = LatentWindows(clips, [0], n_frames=4, stride=1, action_offset=1).batch(np.array([0]))
    weight = pixel_weight(batch, moving=0.0, objects=6.0)
    assert weight.mean() == pytest.approx(1.0, abs=1e-5)
    assert weight[0, 1, 0, 1, 1] > weight[0, 0, 0, 1, 1] > weight[0, 0, 0, 3, 0]


@pytest.mark.parametrize(
    ("name", "value"), [("action_dropout", 2.0), ("n_frames", 1), ("corruption", -1.0), ("own_context", 1.5)]
)
def test_impossible_training_options_are_refused(name: str, value: float):
    with pytest.raises(InvalidConfig, match=name):
        WorldTraining(data="", **{name: value})


# -- the stages ------------------------------------------------------------------------------------------


def test_a_codec_learns_to_show_the_ball(clips: Path, tmp_path: Path):
    loop = replace(FAST, steps=150, batch_size=8, learning_rate=3e-3, validate_every=75)
    config = CodecTraining(data=str(clips), channels=4, widths=(8, 16, 16), depth=1, loop=loop)
    codec = train_codec(config, tmp_path / "run")
    ratios = [line["validation_psnr"] for line in read_log(tmp_path / "run") if "validation_psnr" in line]
    assert ratios[-1] > max(ratios[0], 20)
    frames = torch.from_numpy(ClipFolder(clips)[0].frames)
    latents = load_codec(tmp_path / "run" / "codec").encode(frames)
    assert torch.equal(latents, codec.encode(frames))
    assert latents.std() == pytest.approx(1.0, abs=0.5)


def test_a_codec_refuses_frames_that_do_not_divide(clips: Path, tmp_path: Path):
    with pytest.raises(InvalidConfig, match="30x30"):
        train_codec(CodecTraining(data=str(clips), frame_size=(30, 30), loop=FAST), tmp_path)


def test_a_world_model_learns_and_its_checkpoint_loads(clips: Path, encoded: EncodedClips, tmp_path: Path):
    loop = replace(FAST, steps=120, batch_size=8, learning_rate=3e-3, validate_every=60)
    config = WorldTraining(data=str(encoded.path), own_context=0.2, loop=loop, **SMALL)
    model = train_world(config, tmp_path / "run")
    losses = [line["validation_loss"] for line in read_log(tmp_path / "run") if "validation_loss" in line]
    assert losses[-1] < losses[0]
    loaded = WorldModel.from_pretrained(tmp_path / "run" / "checkpoint")
    assert loaded.config == model.config
    assert (loaded.config.frame_height, loaded.config.window, loaded.config.residual) == (32, 3, True)
    video = read_video(tmp_path / "run" / "validation" / "step_00000120.mp4")
    assert video.shape == (6, 32, 64, 3)  # truth and rollout of the one held-out clip
    start = ClipFolder(clips)[0].frames[None, :1]
    states = [world.start(start, [0]) for world in (model, loaded)]
    actions = np.zeros((1, 2, 10), np.float32)
    assert torch.equal(model.step(states[0], actions), loaded.step(states[1], actions))


def test_training_can_start_from_other_weights(clips: Path, encoded: EncodedClips, tmp_path: Path):
    still = replace(FAST, steps=1, learning_rate=1e-12, weight_decay=0.0)  # a step that changes nothing
    codec = CodecTraining(
        data=str(clips), channels=4, widths=(8, 16, 16), depth=1, loop=replace(still, seed=1)
    )
    first = train_codec(codec, tmp_path / "codec")
    again = replace(codec, initial=str(tmp_path / "codec" / "codec"), loop=still)
    frames = torch.from_numpy(ClipFolder(clips)[0].frames)
    torch.testing.assert_close(
        train_codec(again, tmp_path / "codec2").encode(frames), first.encode(frames), atol=1e-4, rtol=0
    )

    world = WorldTraining(data=str(encoded.path), loop=replace(still, seed=1), **SMALL)
    train_world(world, tmp_path / "world")
    folder = tmp_path / "world" / "checkpoint"
    tuned = train_world(replace(world, initial=str(folder), loop=still), tmp_path / "world2").transformer
    for ours, theirs in zip(
        tuned.parameters(), WorldModel.from_pretrained(folder).transformer.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(InvalidConfig, match="another form"):
        train_world(replace(world, initial=str(folder), **{"layers": 2}), tmp_path / "world3")


def test_a_resumed_world_model_equals_one_trained_in_one_go(encoded: EncodedClips, tmp_path: Path):
    config = WorldTraining(
        data=str(encoded.path),
        action_dropout=0.3,
        own_context=0.5,
        loop=replace(FAST, decay_steps=1),
        **SMALL,
    )
    train_world(config, tmp_path / "whole")
    stopping = replace(config, loop=replace(config.loop, max_minutes=0.0))
    for _ in range(6):
        train_world(stopping, tmp_path / "parts")
    whole, parts = (torch.load(tmp_path / name / "state.pt") for name in ("whole", "parts"))
    torch.testing.assert_close(whole, parts, rtol=0, atol=0)


def test_plain_clips_are_encoded_once_and_then_trained_on(clips: Path, codec_folder: Path, tmp_path: Path):
    loop = replace(FAST, steps=2, validate_every=2)
    config = WorldTraining(data=str(clips), codec=str(codec_folder), loop=loop, **SMALL)
    train_world(config, tmp_path / "run")
    assert len(EncodedClips(tmp_path / "run" / "encoded")) == 6
    half = export_world(tmp_path / "run", tmp_path / "half", dtype="float16")
    assert read_world_training(tmp_path / "run") == config
    loaded = WorldModel.from_pretrained(tmp_path / "half")
    for mine, theirs in zip(half.transformer.parameters(), loaded.transformer.parameters(), strict=True):
        assert torch.equal(mine.half().float(), theirs)
    with pytest.raises(InvalidConfig, match="give a codec"):
        train_world(replace(config, codec=None), tmp_path / "other")


def test_latents_of_another_codec_are_refused(encoded: EncodedClips, tmp_path: Path):
    torch.manual_seed(1)
    ConvolutionalCodec(FrameCodec(channels=4, widths=(8, 8, 8), depth=1)).save(tmp_path / "codec")
    config = WorldTraining(data=str(encoded.path), codec=str(tmp_path / "codec"), loop=FAST, **SMALL)
    with pytest.raises(DataError, match="another codec"):
        train_world(config, tmp_path / "run")


def test_a_folder_without_a_run_cannot_be_exported(tmp_path: Path):
    with pytest.raises(CheckpointError, match="no run"):
        export_world(tmp_path, tmp_path / "out")


def test_short_clips_are_said_and_no_clip_left_is_an_error(
    encoded: EncodedClips, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    config = WorldTraining(data=str(encoded.path), loop=FAST, **(SMALL | {"n_frames": 30}))
    with caplog.at_level(logging.WARNING), pytest.raises(DataError, match="6 were left out"):
        train_world(config, tmp_path / "run")


@pytest.mark.slow
def test_a_few_hundred_steps_on_real_clips_lower_the_validation_loss(shared_data: Path, tmp_path: Path):
    data = shared_data / "bridge_clips"
    loop = replace(FAST, steps=300, batch_size=8, validate_every=100, warm_up=20, precision="auto")
    codec = CodecTraining(
        data=str(data / "train"),
        validation=str(data / "test"),
        frame_size=(64, 64),
        loop=replace(loop, steps=200),
    )
    train_codec(codec, tmp_path / "codec")
    config = WorldTraining(
        data=str(data / "train"),
        validation=str(data / "test"),
        codec=str(tmp_path / "codec" / "codec"),
        frame_size=(64, 64),
        dim=64,
        layers=2,
        heads=2,
        n_frames=6,
        rollout_frames=20,
        loop=loop,
    )
    train_world(config, tmp_path / "world")
    losses = [line["validation_loss"] for line in read_log(tmp_path / "world") if "validation_loss" in line]
    assert losses[-1] < losses[0]
    assert read_video(tmp_path / "world" / "validation" / "step_00000300.mp4").shape == (21, 64, 128, 3)
    json.loads((tmp_path / "world" / "config.json").read_text())


@pytest.mark.slow
def test_two_processes_train_one_model(encoded: EncodedClips, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from worldgym.training.loop import LoopConfig\n"
        "from worldgym.training.world import train_world\n"
        "from worldgym.training.world_config import WorldTraining\n"
        "loop = LoopConfig(steps=4, batch_size=2, warm_up=1, precision='float32', device='cpu')\n"
        f"config = WorldTraining(data=sys.argv[1], loop=loop, **{SMALL!r})\n"
        "train_world(config, sys.argv[2])\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*command, str(script), str(encoded.path), str(tmp_path / "run")], check=True, timeout=120)
    alone = WorldTraining(
        data=str(encoded.path), loop=replace(FAST, steps=4, batch_size=4, warm_up=1, save_every=4), **SMALL
    )
    train_world(alone, tmp_path / "alone")
    together, single = (torch.load(tmp_path / name / "state.pt") for name in ("run", "alone"))
    assert together["step"] == 4
    assert WorldModel.from_pretrained(tmp_path / "run" / "checkpoint").action_dim == 10
    names = list(single["network"])
    assert list(together["network"]) == names
    changed = [not torch.equal(together["network"][name], single["network"][name]) for name in names]
    assert any(changed)  # the processes draw other noise


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler itself warns while it works
def test_a_compiled_step_computes_what_an_eager_one_does(encoded: EncodedClips, tmp_path: Path):
    config = WorldTraining(data=str(encoded.path), own_context=0.5, loop=FAST, **SMALL)
    train_world(config, tmp_path / "eager")
    train_world(replace(config, loop=replace(FAST, compile=True)), tmp_path / "compiled")
    eager, compiled = (torch.load(tmp_path / name / "state.pt")["average"] for name in ("eager", "compiled"))
    torch.testing.assert_close(eager, compiled, rtol=0, atol=2e-4)
