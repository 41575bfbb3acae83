"""The environment ids, and the factories behind them.

What is here:
    * ``register_all``: registers ``WorldGym-Bridge-v0`` and ``WorldGym-BridgeTwin-v0``, each with a single
      and a vector entry point.
    * ``make_world``, ``make_world_vec``, ``make_twin``, ``make_twin_vec``: the entry points.

The learned world is judged by the packaged judge unless it is made with another one or with ``judge=None``.

The horizon is no field of the spec but the environments' own ``episode_frames``, so the limit exists once
and holds for both entry points. ``gymnasium.make(..., max_episode_steps=N)`` adds Gymnasium's ``TimeLimit``
on top, which can only shorten an episode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium

from worldgym.errors import require

if TYPE_CHECKING:
    from worldgym.judges.loading import JudgeSpec

WORLD_ID = "WorldGym-Bridge-v0"
TWIN_ID = "WorldGym-BridgeTwin-v0"
JUDGE_EVERY = 5
"""Frames between two questions to the judge, unless something else is asked for."""
_ENTRY_POINTS = {WORLD_ID: "make_world", TWIN_ID: "make_twin"}


def register_all() -> None:
    """Register every id of this package; registered ones are left as they are."""
    for name, factory in _ENTRY_POINTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(
                name,
                entry_point=f"{__name__}:{factory}",
                vector_entry_point=f"{__name__}:{factory}_vec",
            )


def make_world(
    *, judge: JudgeSpec | None = "packaged", judge_every: int = JUDGE_EVERY, **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """The learned world as a single environment, rewarded and ended by a judge.

    Args:
        judge: Who says what is a success: ``"packaged"``, or whatever else ``worldgym.judges.load_judge``
            takes. ``VLMTermination`` ends the episode at a success, ``VLMReward`` gives 1.0 for it. None: the
            bare world, with reward 0.0 and never terminated.
        judge_every: Frames between two questions; the last frame is always judged.
        **kwargs: Fields of ``worldgym.envs.world.WorldEnvConfig``.

    Raises:
        InvalidConfig: If an option cannot work.
        CheckpointError: If the checkpoint cannot be used.
        TrialError: If the trials cannot be used.
        JudgeError: If the judge cannot be built.
    """
    from worldgym.envs.world import WorldEnv

    return _judged(WorldEnv(**kwargs), judge, judge_every)


def make_world_vec(
    num_envs: int = 1,
    *,
    judge: JudgeSpec | None = "packaged",
    judge_every: int = JUDGE_EVERY,
    **kwargs: Any,
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """The learned world as a vector environment; see ``make_world``."""
    from worldgym.envs.world import WorldVectorEnv

    return _judged_rows(WorldVectorEnv(num_envs, **kwargs), judge, judge_every)


def make_twin(
    *, judge: JudgeSpec | None = None, judge_every: int = JUDGE_EVERY, **kwargs: Any
) -> gymnasium.Env[Any, Any]:
    """The MuJoCo twin as a single environment.

    Args:
        judge: None: reward and termination are the twin's truth. With a judge, as in ``make_world``, the
            reward is the judge's, and episodes end when either says so; ``info["is_success"]`` stays true.
        judge_every: Frames between two questions; the last frame is always judged.
        **kwargs: Fields of ``worldgym.envs.twin.TwinEnvConfig``.

    Raises:
        MissingExtra: If MuJoCo is not installed.
        InvalidConfig: If an option cannot work.
        JudgeError: If the judge cannot be built.
    """
    require("mujoco", extra="twin")
    from worldgym.envs.twin import TwinEnv

    return _judged(TwinEnv(**kwargs), judge, judge_every)


def make_twin_vec(
    num_envs: int = 1, *, judge: JudgeSpec | None = None, judge_every: int = JUDGE_EVERY, **kwargs: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """The MuJoCo twin as a vector environment; see ``make_twin``."""
    require("mujoco", extra="twin")
    from worldgym.envs.twin import TwinVectorEnv

    return _judged_rows(TwinVectorEnv(num_envs, **kwargs), judge, judge_every)


def _judged(env: gymnasium.Env[Any, Any], judge: JudgeSpec | None, every: int) -> gymnasium.Env[Any, Any]:
    """Around a single environment; both wrappers share one judge and pay once."""
    if judge is None:
        return env
    from worldgym.wrappers.judged import VLMReward, VLMTermination

    return VLMReward(VLMTermination(env, judge, every=every), judge)


def _judged_rows(
    envs: gymnasium.vector.VectorEnv[Any, Any, Any], judge: JudgeSpec | None, every: int
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Around a vector environment."""
    if judge is None:
        return envs
    from worldgym.wrappers.judged_vector import VectorVLMReward, VectorVLMTermination

    return VectorVLMReward(VectorVLMTermination(envs, judge, every=every), judge)


for _factory in (make_world, make_twin):  # where gymnasium.make looks before it builds anything
    _factory.metadata = {"render_modes": ["rgb_array"]}  # type: ignore[attr-defined]
