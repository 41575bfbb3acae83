"""The learned world as an environment.

What is here:
    * ``WorldEnv`` and ``WorldVectorEnv``: what ``WorldGym-Bridge-v0`` makes.
    * ``WorldEnvConfig``: their keyword arguments.
    * ``LearnedWorld``: a ``WorldModel`` behind the ``World`` protocol.

Weights are loaded, and a GPU is touched, at the first reset and not before; the spaces come from the
checkpoint's configuration alone. The learned world does not know whether a task was solved: rewards are 0.0
and episodes are never terminated unless a judge is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium.utils import EzPickle

from worldgym.actions import ENV_SPEC, convert, get_spec
from worldgym.envs.memory import check_fits
from worldgym.envs.protocol import WorldStep
from worldgym.envs.requests import RowsConfig
from worldgym.envs.rows import RowsEnv
from worldgym.envs.single import SingleEnv
from worldgym.errors import CheckpointError, InvalidConfig, OutOfMemory
from worldgym.models import checkpoint
from worldgym.models.world_model import WorldModel, WorldModelConfig, WorldState
from worldgym.tasks import Trial
from worldgym.video import resize


@dataclass(frozen=True, kw_only=True)
class WorldEnvConfig(RowsConfig):
    """The keyword arguments of the learned world, beside those of ``RowsConfig``. JSON-able.

    Attributes:
        checkpoint: Folder, packaged name or hub id.
        num_inference_steps: Denoising steps per frame; None as the checkpoint says, as for the next three.
        guidance_scale: Weight of the actions; 1 needs half the work.
        context: ``"window"``, ``"rolling"`` or ``"uncached"``.
        window: Frames of context, the new ones included.
        device: Torch device.
        dtype: ``"float32"`` (default), ``"float16"`` or ``"bfloat16"``.
    """

    checkpoint: str | Path = "packaged"
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    context: str | None = None
    window: int | None = None
    device: str = "cpu"
    dtype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype not in (None, "float32", "float16", "bfloat16"):
            raise InvalidConfig(f"dtype must be 'float32', 'float16' or 'bfloat16', got {self.dtype!r}")
        try:
            torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise InvalidConfig(
                f"device must name a torch device such as 'cpu' or 'cuda:0', got {self.device!r}"
            ) from error

    @property
    def overrides(self) -> dict[str, Any]:
        """What replaces fields of the checkpoint's configuration where it is not None."""
        names = ("num_inference_steps", "guidance_scale", "context", "window")
        return {name: getattr(self, name) for name in names}

    def read_model_config(self) -> WorldModelConfig:
        """The checkpoint's configuration with the overrides in it, checked against the chunk size.

        Raises:
            CheckpointError: If there is no such checkpoint or its configuration is broken.
            InvalidConfig: If an override cannot work, or a chunk does not fit into the window.
        """
        model = checkpoint.read_config(self.checkpoint, **self.overrides)
        if self.chunk_size >= model.window:
            raise InvalidConfig(
                f"chunk_size must stay below the window of {model.window} frames, got {self.chunk_size}"
            )
        return model


class LearnedWorld:
    """Runs rows in a ``WorldModel``; see ``worldgym.envs.protocol.World``.

    All rows live in one ``WorldState``. When only some rows move, they are selected, stepped and put back;
    when all move, nothing is copied.

    Args:
        config: The options.
        num_rows: Number of rows.

    Raises:
        CheckpointError: If there is no such checkpoint or its configuration is broken.
        InvalidConfig: If an option does not fit the checkpoint.
    """

    def __init__(self, config: WorldEnvConfig, num_rows: int) -> None:
        model_config = config.read_model_config()
        self.frame_shape = (model_config.frame_height, model_config.frame_width, 3)
        self.fps = model_config.fps
        self.action_spec = get_spec(model_config.action_spec)
        self.config = config
        self.num_rows = num_rows
        self._model: WorldModel | None = None
        self._state: WorldState | None = None

    @property
    def identity(self) -> dict[str, str]:
        """Hashes of the checkpoint's content, by part, so that other weights under its name are noticed."""
        return checkpoint.fingerprint(self.config.checkpoint)

    @property
    def model(self) -> WorldModel:
        """The world model; loaded when first asked for.

        Raises:
            CheckpointError: If a file is missing, corrupt or does not fit.
            InvalidConfig: If the device is not there.
            OutOfMemory: If the state of all rows does not fit the device.
        """
        if self._model is None:
            self._model = self._load()
        return self._model

    def reset(
        self, rows: Sequence[int], trials: Sequence[Trial], seeds: Sequence[int], instructions: Sequence[str]
    ) -> npt.NDArray[np.uint8]:
        """Start rows from the trials' frames, resized where they have another size than the model's."""
        model = self.model
        frames = np.stack([self._fit(trial.load_frame()) for trial in trials])
        with self._memory():
            started = model.start(frames[:, None], seeds)
        if len(rows) == self.num_rows:
            self._state = started
        else:
            self._running().put(rows, started)
        return frames

    def step(self, rows: Sequence[int], actions: npt.NDArray[np.float32]) -> WorldStep:
        """Generate one chunk of frames; the truth is not known."""
        converted = convert(actions, ENV_SPEC, self.action_spec)
        state, model = self._running(), self.model
        with self._memory():
            if len(rows) == self.num_rows:
                latents = model.step(state, converted)
            else:
                moving = state.select(rows)
                latents = model.step(moving, converted)
                state.put(rows, moving)
            frames = model.decode(latents).cpu().numpy()
        return WorldStep(frames, [None] * len(rows))

    def get_state(self, row: int) -> WorldState:
        """The row as a state of one row."""
        return self._running().select([row])

    def set_state(self, row: int, state: WorldState) -> None:
        """Put a state of one row into a row."""
        if self._state is None:  # no reset yet: rows not set remain unused until they are reset
            self._state = state.select([0] * self.num_rows)
        self._state.put([row], state)

    def close(self) -> None:
        """Drop the model and all rows."""
        self._model = self._state = None

    def _load(self) -> WorldModel:
        config = self.config
        if torch.device(config.device).type == "cuda" and not torch.cuda.is_available():
            raise InvalidConfig(f"device {config.device!r} is not there: torch sees no CUDA device")
        with self._memory():
            model = WorldModel.from_pretrained(
                config.checkpoint, device=config.device, dtype=config.dtype, **config.overrides
            )
        if model.action_dim != self.action_spec.dims:
            raise CheckpointError(
                f"checkpoint {str(config.checkpoint)!r} takes {model.action_dim} numbers per action, but its "
                f"action convention {self.action_spec.name!r} has {self.action_spec.dims}"
            )
        what = f"{self.num_rows} rows with a window of {model.config.window} frames"
        check_fits(what, self.num_rows * model.bytes_per_row(config.chunk_size), device=config.device)
        return model

    def _running(self) -> WorldState:
        assert self._state is not None, "the environment resets rows before it uses them"
        return self._state

    def _fit(self, frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        return frame if frame.shape == self.frame_shape else resize(frame, self.frame_shape[:2])

    @contextmanager
    def _memory(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"{self.num_rows} rows do not fit {self.config.device}: use fewer rows, a shorter window or "
                f"dtype='float16' ({error})"
            ) from error


class WorldEnv(EzPickle, SingleEnv):
    """The learned world, one episode at a time.

    A pickled environment is made anew from its arguments; its running episode is not kept.

    Args:
        **kwargs: Fields of ``WorldEnvConfig``.

    Raises:
        CheckpointError: If the checkpoint cannot be used.
        TrialError: If the trials cannot be used.
        InvalidConfig: If an option cannot work.

    Example:
        >>> env = WorldEnv(episode_frames=2)
        >>> observation, info = env.reset(seed=0)
        >>> truncated = False
        >>> while not truncated:
        ...     observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        >>> info["frame_index"]
        2
    """

    def __init__(self, **kwargs: Any) -> None:
        EzPickle.__init__(self, **kwargs)
        config = WorldEnvConfig(**kwargs)
        SingleEnv.__init__(self, LearnedWorld(config, 1), config=config, output_device=config.device)


class WorldVectorEnv(EzPickle, RowsEnv):
    """The learned world, a batch of episodes in one batch of the model.

    A pickled environment is made anew from its arguments; its running episodes are not kept.

    Args:
        num_envs: Number of rows.
        **kwargs: Fields of ``WorldEnvConfig``.

    Raises:
        CheckpointError: If the checkpoint cannot be used.
        TrialError: If the trials cannot be used.
        InvalidConfig: If an option cannot work.
        OutOfMemory: If so many rows do not fit (the frames here, the model's state at the first reset).

    Example:
        >>> envs = WorldVectorEnv(2)
        >>> observations, infos = envs.reset(seed=0)
        >>> observations, *_ = envs.step(envs.action_space.sample())
        >>> len(observations)
        2
    """

    def __init__(self, num_envs: int = 1, **kwargs: Any) -> None:
        EzPickle.__init__(self, num_envs, **kwargs)
        config = WorldEnvConfig(**kwargs)
        world = LearnedWorld(config, num_envs)
        RowsEnv.__init__(self, world, num_envs, config=config, output_device=config.device)
