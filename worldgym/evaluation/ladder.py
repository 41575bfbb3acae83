"""How often policies solve the twin's tasks: the numbers that are stored beside packaged policies.

What is here:
    * ``twin_success``: one policy, played from start scenes in the twin and judged by the tasks' own rules.
    * ``measure_packaged``: the packaged ones, written beside their weights one by one.

``worldgym.evaluation.evaluate`` does the same with a store, videos and a report. This keeps a number only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np

from worldgym.evaluation.intervals import wilson
from worldgym.policies.driver import Driver, convert_policy
from worldgym.policies.packaged import (
    POLICIES,
    TwinSuccess,
    get_packaged,
    load_packaged,
    packaged_policies,
    read_measured,
    write_measured,
)
from worldgym.policies.protocol import Policy
from worldgym.tasks import TaskSuite, Trial, load_suite

TWIN = "worldgym:WorldGym-BridgeTwin-v0"


def twin_success(
    policy: Policy,
    *,
    trials: str | Path | TaskSuite = "packaged",
    per_task: int | None = None,
    on_episode: Callable[[int, int], None] = lambda done, of: None,
) -> TwinSuccess:
    """Play a policy in the twin, one episode from each start scene.

    Args:
        policy: The policy.
        trials: Start scenes: ``"packaged"``, a folder, or a suite.
        per_task: How many of each task, from the first; None: all.
        on_episode: Called with the number of episodes done and of all.

    Returns:
        The numbers. The seed of an episode is the number of its start scene.

    Raises:
        MissingExtra: If MuJoCo is not installed.
    """
    suite = load_suite(trials)
    starts = [trial for task in suite.tasks for trial in suite.trials(task)[:per_task]]
    solved: dict[str, list[bool]] = {task: [] for task in suite.tasks}
    env = gymnasium.make(TWIN, trials=suite, disable_env_checker=True)
    driver = Driver.for_env(convert_policy(policy), env)
    try:
        for done, trial in enumerate(starts):
            successes = solved[trial.task]
            successes.append(_episode(env, driver, trial, seed=len(successes)))
            on_episode(done + 1, len(starts))
    finally:
        env.close()
    every = [success for successes in solved.values() for success in successes]
    estimate = wilson(sum(every), len(every))
    rates = {task: round(float(np.mean(successes)), 4) for task, successes in solved.items()}
    rate, low, high = (round(float(v or 0.0), 4) for v in (estimate.value, estimate.low, estimate.high))
    return TwinSuccess(rate, low, high, len(every), rates)


def _episode(env: gymnasium.Env[np.ndarray, np.ndarray], driver: Driver, trial: Trial, *, seed: int) -> bool:
    frame, info = env.reset(seed=seed, options={"task": trial.task, "trial": trial.name})
    driver.reset([0], [info["instruction"]], [seed])
    ended = False
    while not ended:
        action = driver.act([0], np.asarray(frame)[None])[0]
        frame, _, terminated, truncated, info = env.step(action)
        ended = terminated or truncated
    return bool(info["is_success"])


def measure_packaged(
    names: Sequence[str] = (),
    *,
    folder: Path = POLICIES,
    per_task: int | None = None,
    on_episode: Callable[[str, int, int], None] = lambda name, done, of: None,
) -> dict[str, TwinSuccess]:
    """Measure packaged policies and store the numbers after each.

    Args:
        names: Which; empty: all.
        folder: Where the numbers are kept.
        per_task: Episodes per task; None: all packaged trials.
        on_episode: Called with the policy's name, the number of its episodes done and of all.

    Returns:
        What is stored now, by name.

    Raises:
        InvalidConfig: If there is no such policy.
        MissingExtra: If MuJoCo is not installed.
    """
    chosen = [get_packaged(name).name for name in names] or list(packaged_policies())
    for name in chosen:
        success = twin_success(load_packaged(name), per_task=per_task, on_episode=partial(on_episode, name))
        # read anew: several processes may measure some policies each
        measured = {**read_measured(folder), name: success}
        write_measured(folder, {key: measured[key] for key in packaged_policies() if key in measured})
    return read_measured(folder)
