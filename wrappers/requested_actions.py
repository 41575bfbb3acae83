"""``RequestedActions``: what an environment was asked to do, in another convention."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import SyncVectorEnv, VectorEnv

from worldgym.actions import ActionSpec, convert, get_spec, neutral
from worldgym.errors import InvalidConfig, SpecMismatch


class RequestedActions:
    """Converts the actions that an environment takes, one or a chunk of them per step.

    Args:
        env: The environment; its ``unwrapped.action_spec`` is used if it has one.
        space: Action space of one row.
        spec: Convention of its actions; None to ask the environment.
        target: Convention wanted.

    Attributes:
        spec: Convention of the environment's actions.

    Raises:
        InvalidConfig: If the convention is not known or does not fit the action space.
        SpecMismatch: If it cannot be converted.
    """

    def __init__(self, env: Any, space: gymnasium.Space[Any], spec: str | None, target: str) -> None:
        found = _declared(env) if spec is None else get_spec(spec)
        if found is None:
            raise InvalidConfig(
                "the environment does not say what its actions mean (unwrapped.action_spec): name their "
                "convention with action_spec='worldgym' or another of worldgym.actions.SPECS"
            )
        if (
            not isinstance(space, gymnasium.spaces.Box)
            or len(space.shape) not in (1, 2)
            or space.shape[-1] != found.dims
        ):
            raise InvalidConfig(
                f"{found.name!r} has actions of {found.dims} numbers, one or a chunk of them per step; the "
                f"action space is {space}"
            )
        self.spec, self._target = found, get_spec(target)
        try:
            convert(neutral(found), found, self._target)
        except SpecMismatch as error:
            raise SpecMismatch(
                f"the head reads {target!r} actions, which these cannot be compared with: {error}"
            ) from error

    def convert(self, actions: Any, frames: int) -> npt.NDArray[np.float32]:
        """The actions (A,) or (K, A) of a row's step, as float32 (K, A_target); clipped as the bounds say.

        Raises:
            InvalidConfig: If there is not one frame for each action.
        """
        chunk = np.asarray(actions.cpu() if hasattr(actions, "cpu") else actions, np.float32)
        chunk = chunk.reshape(-1, self.spec.dims)
        if len(chunk) != frames:
            raise InvalidConfig(
                f"a step of {len(chunk)} actions must show as many frames, got {frames}: give all of them in "
                "info['frames'], uint8 (K, H, W, 3), or use chunks of one action"
            )
        return convert(np.clip(chunk, self.spec.low, self.spec.high), self.spec, self._target)


def _declared(env: Any) -> ActionSpec | None:
    inside = env.unwrapped
    if isinstance(env, VectorEnv) and isinstance(inside, SyncVectorEnv):
        inside = inside.envs[0].unwrapped
    spec = getattr(inside, "action_spec", None)
    return spec if isinstance(spec, ActionSpec) else None
