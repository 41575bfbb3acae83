"""The world model: published rollouts, both context modes, rows that do not know of each other."""

import gc

import numpy as np
import psutil
import pytest
import torch
from test_models_dit import GOLDEN, golden_transformer
from tiny import full_pass_rollout, random_actions, start_frames, tiny_model

from worldgym.errors import InvalidAction, InvalidConfig
from worldgym.models.config import WorldModelConfig
from worldgym.models.sampler import Sampler

CONTEXTS = pytest.mark.parametrize("context", ["window", "rolling", "uncached"])
RESIDUAL = {"residual": True, "objective": "flow", "context_level": 0.1}
CHUNKS = pytest.mark.parametrize("chunk", [1, 3])


def roll(model, frames, actions, chunk, seeds=None):
    """All new latents of a rollout."""
    state = model.start(frames, seeds if seeds is not None else range(len(frames)))
    steps = [model.step(state, actions[:, k : k + chunk]) for k in range(0, actions.shape[1], chunk)]
    return torch.cat(steps, 1)


@pytest.mark.parametrize("rope", ["standard", "pixel"])
@pytest.mark.parametrize("context", ["window", "uncached"])
@pytest.mark.parametrize("chunk", [1, 4])
def test_rollouts_equal_the_published_sampler(rope, context, chunk):
    arrays = {k: torch.from_numpy(v) for k, v in np.load(GOLDEN / "dit_tiny_inputs.npz").items()}
    expected = np.load(GOLDEN / f"dit_tiny_outputs_{rope}.npz")[f"rollout_h{chunk}"]
    noise = arrays["rollout_noise"].movedim(-1, -3)  # (12, B, C, h, w)
    config = WorldModelConfig(window=6, context=context)
    sampler = Sampler(golden_transformer(rope), config, (4, 8, 8))
    sampler._noise = lambda state, count: noise[state.newest[0] :][:count].transpose(0, 1).clone()
    start, actions = arrays["context"].movedim(-1, -3), arrays["rollout_actions"]
    with torch.inference_mode():
        state = sampler.begin(start, actions[:, :1], [0, 1])
        steps = [sampler.generate(state, actions[:, 1 + k : 1 + k + chunk]) for k in range(0, 12, chunk)]
    video = torch.cat((start, *steps), 1).movedim(-3, -1)
    np.testing.assert_allclose(video.numpy(), expected, atol=1e-4)


@CHUNKS
@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize("form", [{}, RESIDUAL], ids=["published", "residual"])
def test_rolling_equals_one_full_banded_pass_over_several_windows(chunk, guidance, form):
    model = tiny_model(context="rolling", guidance_scale=guidance, **form)
    frames, actions = start_frames(2, 2), random_actions(2, 18)  # 20 frames, four windows of 5
    expected = full_pass_rollout(model, frames, actions, chunk)
    error = (roll(model, frames, actions, chunk) - expected[:, 2:]).abs().max()
    assert error <= 1e-5 * expected.abs().max(), (
        "of the largest latent: float32, 18 frames that build on each other"
    )


@CHUNKS
@pytest.mark.parametrize("options", [{}, {"guidance_scale": 2.0}, RESIDUAL], ids=str)
def test_the_window_mode_equals_its_uncached_form(chunk, options):
    frames, actions = start_frames(2), random_actions(2, 12)
    cached = roll(tiny_model(context="window", **options), frames, actions, chunk)
    plain = roll(tiny_model(context="uncached", **options), frames, actions, chunk)
    torch.testing.assert_close(cached, plain, atol=1e-5, rtol=1e-5)


def test_window_and_rolling_agree_until_the_first_frame_leaves_the_window():
    frames, actions = start_frames(1), random_actions(1, 8)
    window = roll(tiny_model(context="window"), frames, actions, 1)
    rolling = roll(tiny_model(context="rolling"), frames, actions, 1)
    torch.testing.assert_close(window[:, :4], rolling[:, :4], atol=1e-5, rtol=1e-5)
    assert (window[:, 6:] - rolling[:, 6:]).abs().max() > 1e-3


@CONTEXTS
@CHUNKS
def test_a_row_alone_is_bitwise_the_row_in_a_batch_of_eight(context, chunk):
    model = tiny_model(context=context, guidance_scale=2.0)
    frames, actions = start_frames(8), random_actions(8, 9)
    together = roll(model, frames, actions, chunk, seeds=range(8))
    for row in (0, 5):
        alone = roll(model, frames[row : row + 1], actions[row : row + 1], chunk, seeds=[row])
        assert torch.equal(together[row], alone[0])


@CONTEXTS
def test_resetting_one_row_leaves_the_others_bitwise_untouched_and_restarts_that_row(context):
    model = tiny_model(context=context)
    frames, actions = start_frames(3), random_actions(3, 12)
    undisturbed = roll(model, frames, actions, 1)
    state = model.start(frames, range(3))
    out = []
    for k in range(12):
        if k == 5:
            state.put([1], model.start(frames[1:2], [1]))
        out.append(model.step(state, actions[:, k : k + 1]))
    video = torch.cat(out, 1)
    assert torch.equal(video[[0, 2]], undisturbed[[0, 2]])
    again = roll(model, frames[1:2], actions[1:2, 5:], 1, seeds=[1])
    assert torch.equal(video[1, 5:], again[0])


@CONTEXTS
def test_rows_of_different_age_stepped_together_equal_rows_stepped_apart(context):
    model = tiny_model(context=context)
    frames, actions = start_frames(2), random_actions(2, 9)
    alone = roll(model, frames, actions, 1)
    state = model.start(frames, range(2))
    first = [model.step(young := state.select([0]), actions[:1, :3])]
    state.put([0], young)
    assert torch.isfinite(first[0]).all()
    state = model.start(frames, range(2))
    ahead = state.select([0])
    early = [model.step(ahead, actions[:1, k : k + 1]) for k in range(3)]
    state.put([0], ahead)
    late = [model.step(state, np.stack((actions[0, 3 + k : 4 + k], actions[1, k : k + 1]))) for k in range(6)]
    assert torch.equal(torch.cat(early + [step[:1] for step in late], 1)[0], alone[0])
    assert torch.equal(torch.cat([step[1:] for step in late], 1)[0], alone[1, :6])


@CONTEXTS
def test_a_clone_branches_and_leaves_the_original_alone(context):
    model = tiny_model(context=context)
    state = model.start(start_frames(2), [3, 4])
    model.step(state, random_actions(2, 1))
    branch = state.clone()
    model.step(branch, random_actions(2, 1, seed=9))
    follow = random_actions(2, 2, seed=5)
    expected = model.step(state.clone(), follow)
    assert torch.equal(model.step(state, follow), expected)
    assert branch.newest.tolist() == [2, 2]


def test_selected_rows_may_repeat_and_change_order():
    model = tiny_model()
    state = model.start(start_frames(3), [0, 1, 2])
    picked = state.select([2, 0, 2])
    assert picked.seeds == (2, 0, 2)
    out = model.step(picked, np.repeat(random_actions(1, 1), 3, 0))
    assert torch.equal(out[0], out[2])


def test_the_future_is_a_function_of_seed_and_actions():
    model = tiny_model()
    frames, actions = start_frames(1), random_actions(1, 4)
    first = roll(model, frames, actions, 1, seeds=[7])
    assert torch.equal(first, roll(model, frames, actions, 1, seeds=[7]))
    assert not torch.equal(first, roll(model, frames, actions, 1, seeds=[8]))
    assert not torch.equal(first, roll(model, frames, -actions, 1, seeds=[7]))


def test_large_seeds_are_told_apart():
    model = tiny_model()
    frames, actions = start_frames(1), random_actions(1, 1)
    assert not torch.equal(
        roll(model, frames, actions, 1, seeds=[2**63]), roll(model, frames, actions, 1, seeds=[2**63 + 1])
    )


@CONTEXTS
def test_with_offset_zero_an_action_conditions_the_frame_it_was_recorded_with(context):
    model = tiny_model(action_offset=0, context=context)
    state = model.start(start_frames(1), [0])
    actions = random_actions(1, 3)
    model.step(state, actions)
    stored = state.actions[0, :4].numpy()
    np.testing.assert_array_equal(stored[:3], actions[0])
    assert not stored[3].any()
    model.step(state, actions[:, :1])
    np.testing.assert_array_equal(state.actions[0, 3].numpy(), actions[0, 0])


def test_decoded_frames_have_the_declared_shape():
    model = tiny_model()
    state = model.start(start_frames(2), [0, 1])
    frames = model.decode(model.step(state, random_actions(2, 3)))
    assert frames.shape == (2, 3, 8, 8, 3)
    assert frames.dtype == torch.uint8


@pytest.mark.parametrize("context", ["window", "rolling"])
def test_two_thousand_steps_take_no_more_memory_than_two_hundred(context):
    model = tiny_model(context=context, num_inference_steps=1)
    state = model.start(start_frames(1), [0])
    action = random_actions(1, 1)
    process = psutil.Process()
    for step in range(2000):
        model.step(state, action)
        if step == 200:
            gc.collect()
            before = process.memory_info().rss
    gc.collect()
    assert process.memory_info().rss - before < 20 * 2**20
    assert state.newest.tolist() == [2000]
    assert torch.isfinite(state.latents).all()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((1, 1, 10)), r"rows=2, K, 10\), got \(1, 1, 10\)"),
        (np.zeros((2, 10)), r"got \(2, 10\)"),
        (np.zeros((2, 1, 7)), r"got \(2, 1, 7\)"),
        (np.zeros((2, 0, 10)), r"got \(2, 0, 10\)"),
        (np.full((2, 1, 10), np.nan), "action 0 of row 0 is not finite"),
    ],
)
def test_actions_that_do_not_fit_are_refused_before_the_state_changes(actions, message):
    model = tiny_model()
    state = model.start(start_frames(2), [0, 1])
    with pytest.raises(InvalidAction, match=message):
        model.step(state, actions)
    assert state.newest.tolist() == [0, 0]


def test_a_chunk_must_stay_below_the_window():
    model = tiny_model(window=5)
    state = model.start(start_frames(1), [0])
    assert model.step(state, random_actions(1, 4)).shape[1] == 4
    with pytest.raises(InvalidConfig, match="window of 5 frames, got 5"):
        model.step(state, random_actions(1, 5))


@pytest.mark.parametrize(
    ("frames", "seeds"),
    [
        (np.zeros((1, 8, 8, 3), np.uint8), [0]),
        (np.zeros((1, 1, 9, 8, 3), np.uint8), [0]),
        (np.zeros((1, 1, 8, 8, 3), np.float32), [0]),
        (np.zeros((2, 1, 8, 8, 3), np.uint8), [0]),
        (np.zeros((1, 0, 8, 8, 3), np.uint8), [0]),
    ],
    ids=["no time axis", "another size", "not uint8", "too few seeds", "no frame"],
)
def test_start_frames_that_do_not_fit_are_refused(frames, seeds):
    with pytest.raises(InvalidConfig):
        tiny_model().start(frames, seeds)


@pytest.mark.parametrize(
    "options",
    [
        {"num_inference_steps": 0},
        {"window": 1},
        {"context": "endless"},
        {"action_offset": 2},
        {"context_level": 2000},
        {"guidance_scale": float("nan")},
        {"fps": 0},
        {"objective": "eps"},
    ],
    ids=str,
)
def test_impossible_configurations_are_refused(options):
    with pytest.raises(InvalidConfig):
        WorldModelConfig(**options)


def test_a_codec_with_other_channels_than_the_network_is_refused():
    with pytest.raises(InvalidConfig, match="channels"):
        type(tiny_model())(tiny_model().transformer, tiny_model().codec, WorldModelConfig(residual=True))
