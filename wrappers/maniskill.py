"""``ManiSkillNames``: a native vector environment under the names that ManiSkill's vector environment uses.

Training and evaluation loops written for ``ManiSkillVectorEnv`` then find what they look for: the last
observations in ``infos["final_observation"]``, ``success``, ``elapsed_steps``, and the record of an
episode in ``infos["final_info"]["episode"]``. Resetting some rows by ``options={"env_idx": rows}`` works in
every environment of this package, wrapped or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from worldgym.envs.rows import RowsEnv
from worldgym.errors import InvalidConfig
from worldgym.wrappers.batches import on_host, put_rows


class ManiSkillNames(VectorWrapper):
    """Adds ManiSkill's info keys; everything else stays as it is.

    After a step ``infos`` also holds ``success`` bool (N,) (false where nobody knows) and ``elapsed_steps``
    int64 (N,), steps since the row's reset. Where episodes ended, ``final_observation`` is the whole batch of
    observations with their last ones, ``_final_observation`` and ``_final_info`` say in which rows, and
    ``final_info`` holds ``success``, ``elapsed_steps`` and ``episode`` of the episodes before the reset:
    ``success_once``, ``success_at_end``, ``return``, ``episode_len``, ``reward`` (return per step).

    Args:
        env: A vector environment of this package in the SAME_STEP mode, ManiSkill's only one. With
            ``output="torch"`` observations, rewards and flags are tensors, as there; infos stay arrays.

    Raises:
        InvalidConfig: If the environment is another one.

    Example:
        >>> import gymnasium
        >>> envs = gymnasium.make_vec(
        ...     "worldgym:WorldGym-Bridge-v0", num_envs=2, autoreset_mode="SameStep"
        ... )
        >>> ManiSkillNames(envs).reset(seed=0, options={"env_idx": [0, 1]})[0].shape[0]
        2
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        rows = env.unwrapped if isinstance(env, VectorEnv) else None
        if not isinstance(rows, RowsEnv) or rows.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise InvalidConfig(
                "ManiSkillNames takes a vector environment of this package made with "
                f"autoreset_mode='SameStep', got {env}"
            )
        super().__init__(env)
        self._steps = np.zeros(self.num_envs, np.int64)
        self._returns = np.zeros(self.num_envs)
        self._once = np.zeros(self.num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start episodes; ``options={"env_idx": [2, 5]}`` in some rows only."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._forget(infos["_frame_index"])
        return observations, infos | {"elapsed_steps": self._steps.copy()}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Play one step in every row."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        over = on_host(terminations) | on_host(truncations)
        success = _successes(infos, over)
        self._steps += 1
        self._returns += on_host(rewards)
        self._once |= success
        infos = dict(infos)
        if over.any():
            ended = np.flatnonzero(over)
            last = {int(row): infos["final_obs"][row] for row in ended}
            infos["final_observation"] = put_rows(observations, last, list(last))
            infos["_final_observation"] = over.copy()
            infos["final_info"] = infos["final_info"] | self._record(success)
            self._forget(over)
        infos |= {"success": success & ~over, "elapsed_steps": self._steps.copy()}
        return observations, rewards, terminations, truncations, infos

    def _record(self, success: npt.NDArray[np.bool_]) -> dict[str, Any]:
        episode = {
            "success_once": self._once.copy(),
            "success_at_end": success.copy(),
            "return": self._returns.copy(),
            "episode_len": self._steps.copy(),
            "reward": self._returns / np.maximum(self._steps, 1),
        }
        return {"success": success.copy(), "elapsed_steps": self._steps.copy(), "episode": episode}

    def _forget(self, rows: npt.NDArray[np.bool_]) -> None:
        self._steps[rows], self._returns[rows], self._once[rows] = 0, 0, False


def _successes(infos: dict[str, Any], over: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Success of the step just played in each row; where it ended an episode it is in ``final_info``."""
    success = np.zeros(len(over), np.bool_)
    for part, rows in ((infos, ~over), (infos.get("final_info", {}), over)):
        if "is_success" in part:
            success |= part["is_success"] & part["_is_success"] & rows
    return success
