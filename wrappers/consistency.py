"""The end of episodes whose imagination has left the requested actions, for single environments.

What is here:
    * ``ActionConsistency``: tells how far the frames are from what was asked for, and ends the episode there.
    * ``ConsistencyState``: a branch point that knows what has been seen.

The idea is that of inverse dynamics as a check of a video model: read the action back from the frames, and
compare. For vector environments there is ``VectorActionConsistency``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv

from worldgym.errors import InvalidConfig, ResetNeeded
from worldgym.models.inverse_head import InverseHead
from worldgym.wrappers.consistency_rules import ConsistencyConfig, ConsistencyRule, Watched
from worldgym.wrappers.frame_source import FrameSource, chunk_frames
from worldgym.wrappers.layers import layer_with
from worldgym.wrappers.requested_actions import RequestedActions


@dataclass(frozen=True)
class ConsistencyState:
    """A copy of a running episode under ``ActionConsistency``.

    Attributes:
        inner: State of the environment inside.
        watched: What has been seen.
        over: Whether the episode is over.
        ended_here: Whether this wrapper alone has ended it, while the environment inside could go on.
    """

    inner: Any
    watched: Watched
    over: bool
    ended_here: bool = False


class ActionConsistency(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Truncates an episode when its frames no longer show the actions that were asked for.

    ``info["consistency"]`` holds after every step what ``Finding`` lists: the disagreement of each frame, its
    mean over the last ones, the threshold, the actions that were read, and, if something is wrong, ``alarm``
    (``"disagreement"``, ``"frozen"`` or ``"exploded"``) and ``reason``. An alarm sets ``truncated`` unless
    the environment has ended the episode itself.

    The threshold comes from held-out episodes of the world that the head was trained on, by split-conformal
    prediction: at most a share of ``alpha`` of episodes like those, and no longer than those, is ended for
    its disagreement. The packaged head knows the twin at 64x64; frames of other sizes are resized. For a
    robot or a camera that looks otherwise, train a head of your own (``worldgym train inverse``).

    Outside of a judge wrapper an episode that is truncated here gets no verdict about its end; inside, the
    judge is asked as at any end.

    Args:
        env: A single environment with images, and with actions whose convention is known.
        head: Folder of the head; None for the packaged one.
        device: Torch device of the head.
        **options: Fields of ``ConsistencyConfig``.

    Raises:
        InvalidConfig: If an option cannot work, there are no frames, or the actions' convention is not known.
        SpecMismatch: If the actions cannot be compared with those that the head reads.
        CheckpointError: If there is no head in the folder.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        head: str | None = None,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        RecordConstructorArgs.__init__(self, _disable_deepcopy=True, head=head, device=device, **options)
        if isinstance(env, VectorEnv):
            raise InvalidConfig("ActionConsistency takes a single environment; use VectorActionConsistency")
        super().__init__(env)
        self.config = consistency_config(options)
        self._source = FrameSource(env.observation_space, env.render_mode, self.config.image_key)
        self.rule = ConsistencyRule(InverseHead(head, device=device), self.config)
        self._requested = RequestedActions(
            env, env.action_space, self.config.action_spec, self.rule.head.config.action_spec
        )
        self._watched: Watched | None = None
        self._over = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._watched = self.rule.begin(self._source.newest(self.env, observation, vector=False)[0])
        self._over = False
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and compare the new frames with the action.

        Raises:
            ResetNeeded: Before the first reset, and if this wrapper has ended the episode.
            InvalidConfig: If there is not one frame for each action.
        """
        if self._over or self._watched is None:
            raise ResetNeeded("there is no running episode: call reset() before the next step()")
        observation, reward, terminated, truncated, info = self.env.step(action)
        frames = chunk_frames(info.get("frames"))
        shown = self._source.newest(self.env, observation, vector=False) if frames is None else frames
        requested = self._requested.convert(action, len(shown))
        ((self._watched, finding),) = self.rule.check([self._watched], [shown], [requested])
        check_index(self._watched, info.get("frame_index"), 0)
        info["consistency"] = finding.info()
        if finding.alarm is not None and self.config.truncate and not (terminated or truncated):
            truncated = self._over = True
        return observation, reward, terminated, truncated, info

    def get_state(self) -> ConsistencyState:
        """A copy of the running episode, if the environment inside can be copied.

        Raises:
            AttributeError: If it cannot.
            ResetNeeded: Before the first reset.
        """
        inner = layer_with("get_state", self.env).get_state()
        if self._watched is None:
            raise ResetNeeded("there is no episode to copy: call reset() first")
        return ConsistencyState(inner, self._watched, self._over)

    def set_state(self, state: ConsistencyState) -> None:
        """Continue from a copied state."""
        layer_with("set_state", self.env).set_state(state.inner)
        self._watched, self._over = state.watched, state.over


def consistency_config(options: dict[str, Any]) -> ConsistencyConfig:
    """The options as a configuration.

    Raises:
        InvalidConfig: If one is unknown or cannot work.
    """
    known = ConsistencyConfig.__dataclass_fields__
    if unknown := sorted(set(options) - set(known)):
        raise InvalidConfig(f"options are {sorted(known)}, got {unknown}")
    return ConsistencyConfig(**options)


def check_index(watched: Watched, index: Any, row: int) -> None:
    """Refuse frames that do not follow those that are known.

    Raises:
        InvalidConfig: If the environment is at another frame.
    """
    if index is not None and index != watched.frame_index:
        raise InvalidConfig(
            f"row {row} is at frame {index}, {watched.frame_index} was expected: use get_state and set_state "
            "of the outermost wrapper, which know the frames, not those of the environment inside"
        )


__all__ = ["ActionConsistency", "ConsistencyState"]
