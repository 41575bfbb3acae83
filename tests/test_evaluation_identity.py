"""The identity of a run holds the content of what it names: other weights under one name are another run."""

import shutil
from pathlib import Path

import gymnasium
import pytest
import torch
from safetensors.torch import load_file, save_file

import worldgym  # noqa: F401 - registers the ids
from worldgym.errors import RunError
from worldgym.evaluation import identity
from worldgym.evaluation.plan import EvaluationConfig
from worldgym.evaluation.run import evaluate
from worldgym.evaluation.store import RunStore
from worldgym.fingerprint import content_hash
from worldgym.judges.packaged import PACKAGED_JUDGE
from worldgym.models import checkpoint


def change(weights: Path) -> None:
    """One number of a weights file becomes another."""
    content = load_file(weights)
    name = next(name for name, value in content.items() if value.is_floating_point())
    content[name].view(-1)[0] += 1
    save_file(content, weights)


@pytest.fixture
def packaged(tiny_checkpoint, tmp_path, monkeypatch):
    """A checkpoint that is packaged under the name ``tiny``."""
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "weights" / "tiny"))
    monkeypatch.setattr(checkpoint, "_weights_folder", lambda: folder.parent)
    return folder


@pytest.fixture
def config(packaged, tiny_trials, tmp_path):
    judge = Path(shutil.copytree(PACKAGED_JUDGE, tmp_path / "judge"))
    return EvaluationConfig(
        policies=["still"],
        out=tmp_path / "run",
        env_kwargs={"checkpoint": "tiny"},
        trials=tiny_trials,
        judges=[f"packaged:{judge}"],
        episode_frames=2,
        trials_per_task=1,
        report=False,
    )


@pytest.mark.parametrize(
    ("file", "field"),
    [
        ("weights/tiny/transformer/diffusion_pytorch_model.safetensors", "env_identity: transformer"),
        ("weights/tiny/codec/diffusion_pytorch_model.safetensors", "env_identity: codec"),
        ("judge/model.safetensors", "judges"),
    ],
    ids=["network", "codec", "judge"],
)
def test_swapped_weights_under_one_name_are_refused_with_what_differs(config, file, field, tmp_path):
    evaluate(config)
    assert evaluate(config).played == 2  # the same again is no other run
    with RunStore(config.out, readonly=True) as store:
        before = [episode.key for episode in store.episodes()]
    change(tmp_path / file)
    with pytest.raises(RunError, match=rf"holds another run, it differs in {field}"):
        evaluate(config)
    with RunStore(config.out, readonly=True) as store:
        assert [episode.key for episode in store.episodes()] == before


def test_a_changed_sampler_setting_in_the_checkpoint_is_another_run(packaged):
    before = checkpoint.fingerprint("tiny")
    file = packaged / "world_model.json"
    file.write_text(file.read_text().replace('"num_inference_steps": 2', '"num_inference_steps": 4'))
    after = checkpoint.fingerprint("tiny")
    assert {name for name in before if before[name] != after[name]} == {"world_model.json"}


def test_a_checkpoint_has_the_same_fingerprint_wherever_it_lies(packaged, tmp_path):
    copy = shutil.copytree(packaged, tmp_path / "elsewhere")
    assert checkpoint.fingerprint(copy) == checkpoint.fingerprint("tiny")


def test_a_codec_outside_the_checkpoint_counts_and_one_of_a_hub_is_named(packaged, tmp_path):
    codec = packaged.rename(tmp_path / "moved") / "codec"
    file, text = codec.parent / "world_model.json", (codec.parent / "world_model.json").read_text()
    away = codec.rename(tmp_path / "away")
    file.write_text(text.replace('"name": "codec"', f'"name": "{away}"'))
    assert checkpoint.fingerprint(codec.parent)["codec"] == content_hash(away)[:16]
    file.write_text(text.replace('"name": "codec"', '"name": "somebody/codec", "subfolder": "vae"'))
    assert checkpoint.fingerprint(codec.parent)["codec"] == "somebody/codec/vae"


def test_the_weights_of_a_packaged_policy_are_part_of_the_identity(tmp_path, monkeypatch):
    from worldgym.policies.packaged import packaged_policies

    name, file = next((policy.name, policy.file) for policy in packaged_policies().values() if policy.file)
    monkeypatch.setattr(identity, "POLICIES", tmp_path)
    described = []
    for content in (torch.zeros(1), torch.ones(1)):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        save_file({"x": content}, tmp_path / file)
        described.append(identity._describe_policy(f"packaged:{name}"))
    assert described[0]["source"] == described[1]["source"]
    assert described[0]["files"] != described[1]["files"]


def test_the_twin_says_which_physics_and_which_scene_it_has():
    pytest.importorskip("mujoco")
    envs = gymnasium.make_vec("WorldGym-BridgeTwin-v0", 1, judge=None)
    assert set(envs.unwrapped.identity) == {"mujoco", "twin"}
    envs.close()
