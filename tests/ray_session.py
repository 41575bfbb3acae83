"""Evaluations on a Ray cluster of this machine, in a process of its own: ``python ray_session.py OUT``.

Ray leaves sockets and threads behind that the tests' own process would take for errors. Each scenario leaves
run folders in a folder of OUT that has its name, or the text of its error.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import ray
import torch
from line_world import BrightJudge, Pusher, line_config
from ray_line import RAY_LINE_ID, Deadly

from worldgym.errors import WorldGymError
from worldgym.evaluation.plan import EvaluationConfig
from worldgym.evaluation.remote import RayConfig
from worldgym.evaluation.run import evaluate

CLUSTER = RayConfig(address="auto", cpus=1)


def play(out: Path, **changes) -> None:
    evaluate(line_config(out, env=RAY_LINE_ID, **{"num_envs": 2, "ray": CLUSTER, **changes}))


def same(out: Path) -> None:
    changes = {"seeds": [0, 1], "perturbations": ["noise:0.2", "occlusion"]}
    play(out / "here", **changes, ray=None, num_envs=3)
    play(out / "ray", **changes)


def losses(out: Path) -> None:
    """An actor that dies once, and an episode that no actor survives."""
    policies = [Deadly("p", 0.4, marker=out / "died"), Pusher("q", 0.9), Deadly("r", 0.9, told="go 2")]
    play(out / "here", policies=[Pusher("p", 0.4), policies[1]], trials_per_task=1, ray=None)
    play(out / "ray", policies=policies, trials_per_task=1)


def refusals(out: Path) -> None:
    wrong = {
        "env": {"env_kwargs": {"gravity": 1}},
        "judge": {"judges": ["chat:"]},
        "room": {"ray": replace(CLUSTER, gpus=1.0)},
    }
    for name, changes in wrong.items():
        try:
            play(out / "refused" / name, **changes)
        except WorldGymError as error:
            (out / f"{name}.txt").write_text(f"{type(error).__name__}: {error}")
    judge = BrightJudge(100, breaks_at="go 2")
    play(out / "failures", policies=["nonsense", Pusher("p", 0.9, breaks_at="go 1")], judges=[judge])


def learned(out: Path) -> None:
    """The learned world, with the checkpoint in OUT."""
    config = EvaluationConfig(
        policies=["random"],
        out=out / "here",
        env_kwargs={"checkpoint": str(out / "checkpoint")},
        trials=out / "trials",
        judges=["python:ray_session:JUDGE"],
        episode_frames=6,
        num_envs=3,
        report=False,
    )
    torch.set_num_threads(1)
    evaluate(config)
    evaluate(replace(config, out=out / "ray", num_envs=1, ray=CLUSTER))


JUDGE = BrightJudge(100)
SCENARIOS = (same, losses, refusals, learned)

if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
    try:
        for scenario in SCENARIOS:
            folder = Path(sys.argv[1], scenario.__name__)
            folder.mkdir(exist_ok=True)
            scenario(folder)
    finally:
        ray.shutdown()
