"""``WorldTraining``: everything that can be chosen when a world model is trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from worldgym.errors import InvalidConfig
from worldgym.models.config import Context, WorldModelConfig
from worldgym.models.diffusion import Objective
from worldgym.training.loop import LoopConfig


@dataclass(frozen=True)
class WorldTraining:
    """What to train a world model on, and how.

    Attributes:
        data: Folder of encoded clips, or of clips, which are then encoded into the run folder first.
        validation: The same, held out; None: ``held_out`` of ``data``.
        held_out: Share of the clips that is kept for validation.
        codec: Codec folder or hub id; None: the one that ``data`` was encoded with.
        codec_subfolder: Where the codec is in ``codec``.
        frame_size: (height, width) that frames of clips are resized to; None: as they are.
        initial: Checkpoint (folder, packaged name, hub id) whose weights training starts from (fine-tuning);
            None: fresh ones. What it declares (window, objective, ...) is not taken over.
        dim: Width of a token.
        layers: Pairs of spatial and temporal blocks.
        heads: Attention heads.
        patch_size: Latent pixels per patch side.
        rope: ``"standard"`` or ``"pixel"``.
        objective: ``"v"`` or ``"flow"``.
        residual: Show the previous frame's latents and predict the difference to them.
        window: Frames that attention spans.
        n_frames: Frames per training window; longer than ``window`` for ``rolling``, whose band it learns.
        stride: Frames between the beginnings of windows of one clip.
        context: Context mode that the checkpoint declares.
        action_offset: 1: a frame is conditioned on the action that caused it; 0: on the one recorded with it.
        action_dropout: Share of windows whose actions are the null action (for guidance).
        guidance_scale: What the checkpoint declares.
        num_inference_steps: What the checkpoint declares.
        context_level: Noise level that the sampler labels and scales its context with; None: 0.05 of the
            way (flow) or 14 (v).
        noise_share: Share of frames that are nothing but noise, where sampling starts: what comes next must
            then be told from past and action alone.
        context_share: Share of frames that training gives as the sampler gives its context.
        corruption: Largest standard deviation of the noise on the previous frame's latents (residual).
        own_context: Share of steps in which the previous frame's latents are the network's own prediction.
        moving_weight: Weight added, before normalisation, where latents differ from the previous frame's.
        object_weight: Weight added where a moving object is (a quarter of it where one rests), for clips that
            say where their objects are.
        validation_windows: Windows of the validation loss.
        rollout_clips: Clips of the validation video; 0: none.
        rollout_frames: Frames of it.
        loop: The loop.
    """

    data: str
    validation: str | None = None
    held_out: float = 0.03
    codec: str | None = None
    codec_subfolder: str | None = None
    frame_size: tuple[int, int] | None = None
    initial: str | None = None
    dim: int = 192
    layers: int = 4
    heads: int = 6
    patch_size: int = 2
    rope: str = "standard"
    objective: Objective = "flow"
    residual: bool = True
    window: int = 6
    n_frames: int = 8
    stride: int = 1
    context: Context = "rolling"
    action_offset: Literal[0, 1] = 1
    action_dropout: float = 0.0
    guidance_scale: float = 1.0
    num_inference_steps: int = 3
    context_level: float | None = None
    noise_share: float = 0.0
    context_share: float = 0.2
    corruption: float = 0.08
    own_context: float = 0.0
    moving_weight: float = 4.0
    object_weight: float = 0.0
    validation_windows: int = 128
    rollout_clips: int = 8
    rollout_frames: int = 40
    loop: LoopConfig = field(default_factory=LoopConfig)

    def __post_init__(self) -> None:
        for name in ("action_dropout", "noise_share", "context_share", "own_context"):
            if not 0 <= getattr(self, name) <= 1:
                raise InvalidConfig(f"{name} must be from 0 to 1, got {getattr(self, name)}")
        if self.own_context and not self.residual:
            raise InvalidConfig("own_context needs the residual form, which is what shows a previous frame")
        if self.n_frames < 2:
            raise InvalidConfig(f"n_frames must be at least 2, got {self.n_frames}")
        if min(self.corruption, self.moving_weight, self.object_weight) < 0:
            raise InvalidConfig(f"corruption and the two weights must not be negative, got {self}")

    def world_model_config(
        self, *, frame_size: tuple[int, int], fps: float, action_spec: str
    ) -> WorldModelConfig:
        """What the checkpoint will declare.

        Raises:
            InvalidConfig: If a value does not fit.
        """
        return WorldModelConfig(
            frame_height=frame_size[0],
            frame_width=frame_size[1],
            fps=fps,
            action_spec=action_spec,
            action_offset=self.action_offset,
            window=self.window,
            context=self.context,
            objective=self.objective,
            residual=self.residual,
            num_inference_steps=self.num_inference_steps,
            guidance_scale=self.guidance_scale,
            context_level=self.level,
        )

    @property
    def level(self) -> float:
        """The context level, resolved."""
        default = 14.0 if self.objective == "v" else 0.05
        return default if self.context_level is None else self.context_level
