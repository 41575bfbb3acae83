"""Checkpoints on disk: where they are found, how they are read and written, how published files become one.

A checkpoint is a folder:

    world_model.json                                  ``WorldModelConfig``, and where the codec is
    transformer/config.json, *.safetensors            the network, in diffusers' layout
    codec/config.json, *.safetensors                  the codec (absent if ``world_model.json`` refers to one)

A name is looked up as a folder, then as a packaged checkpoint, then as a hub repository
(``user/repository`` or ``user/repository@revision``).
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from worldgym.errors import CheckpointError, CheckpointNotFound, InvalidConfig
from worldgym.fingerprint import content_hash
from worldgym.models.codec import load_codec
from worldgym.models.dit import WorldTransformer
from worldgym.models.world_model import WorldModel, WorldModelConfig

CONFIG_FILE = "world_model.json"
WEIGHTS_FILE = "diffusion_pytorch_model.safetensors"
DEFAULT_NAME = "packaged"
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class CodecSource(NamedTuple):
    """Where a checkpoint's codec is: a folder inside the checkpoint, another folder, or a hub id."""

    name: str
    subfolder: str | None = None


def packaged_names() -> list[str]:
    """Names of the checkpoints that come with the package; ``"packaged"`` is the first of them."""
    return sorted(path.parent.name for path in _weights_folder().glob(f"*/{CONFIG_FILE}"))


def find(name: str | Path) -> Path:
    """The folder of a checkpoint.

    Args:
        name: Folder, packaged name (``"packaged"`` for the default), or hub id.

    Returns:
        An existing folder.

    Raises:
        CheckpointNotFound: If nothing answers to the name; the message lists what was tried.
    """
    folder = Path(name)
    if folder.is_dir():
        return folder
    names = packaged_names()
    wanted = names[0] if name == DEFAULT_NAME and names else str(name)
    if wanted in names:
        return _weights_folder() / wanted
    if re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", wanted):
        return _download(wanted)
    raise CheckpointNotFound(
        f"no checkpoint {str(name)!r}: it is neither a folder, nor one of the packaged names {names}, nor of "
        f"the form 'user/repository' of a hub"
    )


def read_config(name: str | Path, **overrides: Any) -> WorldModelConfig:
    """Read only a checkpoint's configuration, without its weights.

    Args:
        name: As for ``find``.
        **overrides: Fields of ``WorldModelConfig`` to replace; None keeps the stored value.

    Raises:
        CheckpointNotFound: If there is no such checkpoint.
        CheckpointError: If the file is missing, unreadable or holds unknown fields.
        InvalidConfig: If an override is unknown or does not fit.
    """
    return _parse_config(find(name), overrides)[0]


def fingerprint(name: str | Path) -> dict[str, str]:
    """What a checkpoint holds, as one hash per part: ``world_model.json``, ``transformer``, ``codec``.

    Args:
        name: As for ``find``.

    Returns:
        Sixteen hex digits by part. A codec of a hub is named instead.

    Raises:
        CheckpointNotFound: If there is no such checkpoint.
        CheckpointError: If a file is missing or cannot be read.
    """
    folder = find(name)
    source = _parse_config(folder, {})[1]
    parts = {part: folder / part for part in (CONFIG_FILE, "transformer")}
    outside = Path(source.name, source.subfolder or "")
    codec = folder / source.name if (folder / source.name).is_dir() else outside
    try:
        hashes = {part: content_hash(path)[:16] for part, path in parts.items()}
        return hashes | {"codec": content_hash(codec)[:16] if codec.is_dir() else str(outside)}
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error}") from error


def load(name: str | Path, *, device: str = "cpu", dtype: str | None = None, **overrides: Any) -> WorldModel:
    """Load a world model.

    Weights are mapped from the file and, where the type fits, used in place, so that loading takes little
    more memory than they do.

    Args:
        name: As for ``find``.
        device: Torch device.
        dtype: ``"float32"`` (default), ``"float16"`` or ``"bfloat16"`` for the network; the codec and the
            sampler's arithmetic stay in float32.
        **overrides: Fields of ``WorldModelConfig`` to replace (``num_inference_steps``,
            ``guidance_scale``, ``context``, ``window``); None keeps the stored value.

    Raises:
        CheckpointNotFound: If there is no such checkpoint.
        CheckpointError: If a file is missing, corrupt or does not fit.
        InvalidConfig: If an option is unknown or does not fit.
    """
    if dtype is not None and dtype not in _DTYPES:
        raise InvalidConfig(f"dtype must be one of {sorted(_DTYPES)}, got {dtype!r}")
    folder = find(name)
    config, source = _parse_config(folder, overrides)
    transformer = _load_transformer(folder / "transformer", torch.device(device), _DTYPES[dtype or "float32"])
    inside = (folder / source.name).is_dir()
    codec = load_codec(
        folder / source.name if inside else source.name, subfolder=source.subfolder, device=device
    )
    return WorldModel(transformer, codec, config)


def save(
    model: WorldModel, folder: str | Path, *, codec: CodecSource | None = None, dtype: str | None = None
) -> None:
    """Write a checkpoint folder.

    Args:
        model: The model.
        folder: Where to; made if absent.
        codec: Refer to this codec instead of writing the model's own into the folder.
        dtype: Store the network in this type (default: as it is).
    """
    folder = Path(folder)
    target = folder / "transformer"
    target.mkdir(parents=True, exist_ok=True)
    model.transformer.save_config(target)
    state = model.transformer.state_dict()
    _write_weights(state if dtype is None else {k: v.to(_DTYPES[dtype]) for k, v in state.items()}, target)
    if codec is None:
        model.codec.save(folder / "codec")
    _write_config(model.config, codec or CodecSource("codec"), folder)


class PublishedOptions(NamedTuple):
    """What a published file does not say about itself (its name must not be trusted).

    Attributes:
        rope: ``"pixel"`` or ``"standard"``.
        guidance_scale: 3.0 for the checkpoints trained with action dropout, else 1.0.
        codec: The codec that its latents belong to.
        action_offset: 1 as the published runners use it, 0 as the published trainer does.
        window: Frames of attention.
        context: Context mode.
        heads: Attention heads; width / 64 by default.
        frame_size: (height, width) in pixels.
        fps: Frames per second of robot time.
    """

    rope: str
    guidance_scale: float
    codec: CodecSource
    action_offset: int = 1
    window: int = 20
    context: str = "window"
    heads: int | None = None
    frame_size: tuple[int, int] = (256, 256)
    fps: float = 5.0


def convert_published(file: str | Path, folder: str | Path, options: PublishedOptions) -> None:
    """Turn a published ``.pt`` file into a checkpoint folder, once.

    The file is mapped, not read: optimizer state and the copy that is not used are never loaded.

    Args:
        file: A dict with ``ema`` (preferred) or ``model``, or a bare state dict.
        folder: Where to write.
        options: What the file does not say.

    Raises:
        CheckpointError: If the file cannot be read or its keys are not the published ones.
    """
    state = _published_state(Path(file))
    config = _published_transformer_config(state, options)
    with torch.device("meta"):
        skeleton = WorldTransformer(**config)
    _check_keys(skeleton.state_dict(), state, Path(file))
    target = Path(folder) / "transformer"
    target.mkdir(parents=True, exist_ok=True)
    skeleton.save_config(target)
    _write_weights(state, target)
    height, width = options.frame_size
    world = WorldModelConfig(
        frame_height=height,
        frame_width=width,
        fps=options.fps,
        action_offset=options.action_offset,
        window=options.window,
        context=options.context,  # type: ignore[arg-type]
        guidance_scale=options.guidance_scale,
    )
    _write_config(world, options.codec, Path(folder))


# -- reading ---------------------------------------------------------------------------------------------


def _weights_folder() -> Path:
    return Path(str(resources.files("worldgym.weights")))


def _download(name: str) -> Path:
    """Fetch a hub repository (``user/repository[@revision]``) into the hub's cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None))
    except (OSError, HFValidationError) as error:  # all of the hub's other errors are OSErrors
        raise CheckpointNotFound(
            f"no checkpoint {name!r}: it is neither a folder nor packaged ({packaged_names()}), and the hub "
            f"could not provide it: {type(error).__name__}"
        ) from error


def _parse_config(folder: Path, overrides: Mapping[str, Any]) -> tuple[WorldModelConfig, CodecSource]:
    known = {field.name for field in fields(WorldModelConfig)}
    if unknown := sorted(set(overrides) - known):
        raise InvalidConfig(f"unknown world model option(s) {unknown}; known are {sorted(known)}")
    stored = _read_json(folder / CONFIG_FILE)
    source = stored.pop("codec", {"name": "codec"})
    if unknown := sorted(set(stored) - known):
        raise CheckpointError(
            f"{folder / CONFIG_FILE} has unknown field(s) {unknown}; known are {sorted(known)}"
        )
    try:
        config = WorldModelConfig(**stored)
    except (InvalidConfig, TypeError) as error:
        raise CheckpointError(f"{folder / CONFIG_FILE} does not fit: {error}") from error
    given = {key: value for key, value in overrides.items() if value is not None}
    return replace(config, **given), CodecSource(source["name"], source.get("subfolder"))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing: {path.parent} is not a complete checkpoint") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _load_transformer(folder: Path, device: torch.device, dtype: torch.dtype) -> WorldTransformer:
    """Build the network without memory, then put the mapped weights into it."""
    config = {key: value for key, value in _read_json(folder / "config.json").items() if key[0] != "_"}
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise CheckpointError(f"{path} is missing: the checkpoint is not complete")
    try:
        with torch.device("meta"):
            transformer = WorldTransformer(**config)
    except TypeError as error:
        raise CheckpointError(
            f"{folder / 'config.json'} does not describe a WorldTransformer: {error}"
        ) from error
    try:
        state = load_file(path, device=str(device))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is corrupt: {error}") from error
    _check_keys(transformer.state_dict(), state, path)
    transformer.load_state_dict({key: value.to(dtype) for key, value in state.items()}, assign=True)
    return transformer


def _check_keys(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], path: Path) -> None:
    """Compare names and shapes; name the first differences."""
    missing = [key for key in expected if key not in found]
    extra = [key for key in found if key not in expected]
    wrong = [
        f"{key} {tuple(found[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in expected
        if key in found and found[key].shape != expected[key].shape
    ]
    parts = [
        f"{len(names)} {what}, first {names[:3]}"
        for what, names in (("missing", missing), ("unexpected", extra), ("of another shape", wrong))
        if names
    ]
    if parts:
        raise CheckpointError(
            f"{path} does not fit the network of {len(expected)} tensors: {'; '.join(parts)}"
        )


# -- published files -------------------------------------------------------------------------------------


def _published_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise CheckpointNotFound(f"no file {path}")
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} is not a readable PyTorch file: {error}") from error
    if isinstance(content, dict):
        content = content.get("ema") or content.get("model") or content
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError(f"{path} holds neither a state dict nor a dict with 'ema' or 'model'")
    return content


def _published_transformer_config(state: Mapping[str, Tensor], options: PublishedOptions) -> dict[str, Any]:
    """Read the sizes off the shapes."""
    try:
        dim, channels, patch, _ = state["x_proj.weight"].shape
        outputs = state["final_layer.linear.weight"].shape[0]
        action_dim = state["action_embedder.weight"].shape[1]
        hidden = state["blocks.0.s_block.ffwd.0.weight"].shape[0]
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"not a published WorldGym state dict: {error} is missing or misshapen"
        ) from error
    return {
        "in_channels": channels,
        "out_channels": outputs // patch**2,
        "patch_size": patch,
        "dim": dim,
        "layers": len({key.split(".")[1] for key in state if key.startswith("blocks.")}),
        "heads": options.heads or max(1, dim // 64),
        "action_dim": action_dim,
        "mlp_ratio": hidden / dim,
        "rope": options.rope,
    }


# -- writing ---------------------------------------------------------------------------------------------


def _write_weights(state: Mapping[str, Tensor], folder: Path) -> None:
    save_file({key: value.contiguous() for key, value in state.items()}, folder / WEIGHTS_FILE)


def _write_config(config: WorldModelConfig, codec: CodecSource, folder: Path) -> None:
    content = {**asdict(config), "codec": {key: v for key, v in codec._asdict().items() if v is not None}}
    (folder / CONFIG_FILE).write_text(json.dumps(content, indent=2) + "\n")
