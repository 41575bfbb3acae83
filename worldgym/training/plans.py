"""Plans for ``worldgym.policies.replay``: what the scripted expert does from the packaged start scenes.

What is here:
    * ``record_plans``: plays the expert in the twin, with noise or without, and writes what it did.

The expert sees the state and corrects what the noise did to it, so its skill falls slowly with the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from worldgym.errors import InvalidConfig, require
from worldgym.policies.noise import noisy
from worldgym.policies.replay import Plans
from worldgym.tasks import TaskSuite, Trial, load_suite

ACTIONS = 40
"""Length of a plan, which is that of an episode."""


def record_plans(
    path: Path,
    *,
    noise: float = 0.0,
    seed: int = 0,
    trials: str | Path | TaskSuite = "packaged",
    on_plan: Callable[[str, bool], None] = lambda trial, success: None,
) -> Plans:
    """Play the expert from every start scene of a suite and write its actions.

    Args:
        path: The file.
        noise: Standard deviation of the noise on every action; see ``worldgym.policies.noise``.
        seed: With the number of the start scene it decides the noise.
        trials: Start scenes; see ``worldgym.tasks.load_suite``.
        on_plan: Called with the key of the start scene and whether the task was solved.

    Returns:
        The plans.

    Raises:
        InvalidConfig: If ``noise`` is negative.
        TrialError: If the start scenes are not the twin's.
        MissingExtra: If MuJoCo is not installed.
    """
    require("mujoco", extra="twin")
    if not noise >= 0:
        raise InvalidConfig(f"noise must not be negative, got {noise}")
    suite = load_suite(trials)
    recorded = []
    for number, trial in enumerate(suite):
        actions, success = _play(trial, noise, np.random.default_rng([seed, number]))
        recorded.append(actions)
        on_plan(trial.key, success)
    plans = Plans(tuple(trial.key for trial in suite), np.stack(recorded))
    plans.save(path)
    return plans


def _play(trial: Trial, noise: float, rng: np.random.Generator) -> tuple[npt.NDArray[np.float16], bool]:
    """Actions (T, 7) from a start scene, and whether they solved the task."""
    from worldgym.envs.demonstrator import demonstrate
    from worldgym.envs.physics import Physics
    from worldgym.envs.twin import twin_task

    task = twin_task(trial)
    assert trial.scene is not None, "twin_task has refused trials without a scene"
    physics = Physics(trial.scene)
    # stands still once the task is solved, as an episode ends there
    actions = np.zeros((ACTIONS, 7), np.float16)
    for step in range(ACTIONS):
        # rounded before it is played, so that the plan repeats exactly what happened
        actions[step] = noisy(demonstrate(task.rule, physics), noise, rng)
        physics.act(actions[step].astype(np.float32))
        if task.truth(physics).success:
            actions[step + 1 :, 6] = actions[step, 6]
            return actions, True
    return actions, False
