"""The ladder of packaged policies: small, fast, and of known, different skill in the twin.

What is here:
    * ``packaged_policies``: all of them by name, best first. ``get_packaged``: one by name.
    * ``load_packaged``: what ``load_policy("packaged:NAME")`` makes.
    * ``TwinSuccess``, ``read_measured``, ``write_measured``: the measured numbers, stored beside the weights.

Every one acts on frames, instruction and seed alone, so it plays in the learned world as it does in the twin.
How they were made and measured is in ``worldgym/weights/policies/README.md``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from worldgym.errors import CheckpointError, InvalidConfig
from worldgym.policies.protocol import Policy
from worldgym.video import atomic_path

POLICIES = Path(__file__).parents[1] / "weights" / "policies"
MEASURED_FILE = "twin_success.json"


@dataclass(frozen=True)
class TwinSuccess:
    """How often a policy solves the twin's tasks.

    Attributes:
        rate: Part of the episodes that were solved; every task has the same number of episodes.
        low: Lower end of the 95% Wilson interval.
        high: Upper end.
        episodes: How many.
        tasks: Part of the episodes that were solved, by task.
    """

    rate: float
    low: float
    high: float
    episodes: int
    tasks: Mapping[str, float]


@dataclass(frozen=True)
class PackagedPolicy:
    """One rung.

    Attributes:
        name: ``load_policy(f"packaged:{name}")`` loads it.
        summary: What it is.
        kind: ``"learned"``: a network that looks at every frame; ``"script"``: the plan recorded from the
            start scene that it recognises, so it is good for the packaged start scenes only; ``"blind"``: one
            plan per task; ``"simple"``: needs no file.
        file: Its folder or file in ``POLICIES``, if it has one.
        noise: Deviation of the noise on a network's actions, as a part of the full scale.
        measured: What was measured in the twin; None if nothing was.
    """

    name: str
    summary: str
    kind: Literal["learned", "script", "blind", "simple"]
    file: str = ""
    noise: float = 0.0
    measured: TwinSuccess | None = None

    @property
    def twin_success(self) -> float | None:
        """Part of the twin's episodes that it solves; None if not measured."""
        return self.measured.rate if self.measured else None

    @property
    def episodes(self) -> int:
        """How many episodes that rests on."""
        return self.measured.episodes if self.measured else 0


def _script(level: float) -> PackagedPolicy:
    name = f"script-noise-{level}" if level else "script"
    summary = f"plans of an expert that noise of {level} disturbed" if level else "plans of the expert"
    return PackagedPolicy(name, summary, "script", f"{name}.safetensors")


SCRIPT_NOISE = (0.0, 0.12, 0.15, 0.18, 0.25)
"""Noise of the scripted policies."""
LEARNED_NOISE = (0.15, 0.3)
"""Noise added to the policy ``learned``."""
_LADDER = (
    *(_script(level) for level in SCRIPT_NOISE),
    PackagedPolicy("learned", "3,600 demonstrations, end of training", "learned", "learned"),
    *(
        PackagedPolicy(
            f"learned-{step}", f"the same at step {step}: 2,000 demonstrations", "learned", f"learned-{step}"
        )
        for step in (4000, 1600, 800)
    ),
    PackagedPolicy("learned-third", "1,200 demonstrations, narrower", "learned", "learned-third"),
    PackagedPolicy("learned-tenth", "360 demonstrations, narrow", "learned", "learned-tenth"),
    *(
        PackagedPolicy(
            f"learned-noise-{level}",
            f"learned, with noise of {level} on every action",
            "learned",
            "learned",
            level,
        )
        for level in LEARNED_NOISE
    ),
    PackagedPolicy("blind", "the expert's plan for another start scene", "blind", "script.safetensors"),
    PackagedPolicy("random", "uniform actions", "simple"),
    PackagedPolicy("still", "stands still", "simple"),
)


def packaged_policies() -> dict[str, PackagedPolicy]:
    """All packaged policies by name, with what was measured in the twin: best first, unmeasured ones last.

    Raises:
        CheckpointError: If the measured numbers cannot be read.
    """
    measured = read_measured(POLICIES)
    rungs = [replace(rung, measured=measured.get(rung.name)) for rung in _LADDER]
    rungs.sort(key=lambda rung: -1.0 if rung.twin_success is None else rung.twin_success, reverse=True)
    return {rung.name: rung for rung in rungs}


def get_packaged(name: str) -> PackagedPolicy:
    """A packaged policy by its name.

    Raises:
        InvalidConfig: If there is none; the message names all.
    """
    policies = packaged_policies()
    if name not in policies:
        raise InvalidConfig(f"there is no packaged policy {name!r}: there are {', '.join(policies)}")
    return policies[name]


def load_packaged(name: str, *, device: str = "cpu") -> Policy:
    """Make a packaged policy, or one that was trained in the same way.

    Args:
        name: Its name, or the folder that ``worldgym train policy`` has written.
        device: Torch device of its network, if it has one.

    Raises:
        InvalidConfig: If there is none.
        CheckpointError: If its weights cannot be read.
    """
    if name not in packaged_policies() and Path(name).is_dir():
        from worldgym.policies.learned import LearnedPolicy

        return LearnedPolicy.load(name, device=device)
    rung = get_packaged(name)
    if rung.kind == "simple":
        from worldgym.policies.callable import random_policy, still_policy

        return random_policy() if name == "random" else still_policy()
    if rung.kind == "learned":
        from worldgym.policies.learned import LearnedPolicy

        return LearnedPolicy.load(POLICIES / rung.file, name=name, noise=rung.noise, device=device)
    from worldgym.policies.replay import Plans, ReplayPolicy
    from worldgym.tasks import load_suite

    return ReplayPolicy(Plans.load(POLICIES / rung.file), load_suite(), blind=rung.kind == "blind", name=name)


def read_measured(folder: Path) -> dict[str, TwinSuccess]:
    """The measured numbers in a folder, by the policy's name; empty if there are none.

    Raises:
        CheckpointError: If they cannot be read.
    """
    path = folder / MEASURED_FILE
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text())
        return {name: TwinSuccess(**value) for name, value in values.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} does not hold success rates: {error!r}") from error


def write_measured(folder: Path, measured: Mapping[str, TwinSuccess]) -> Path:
    """Write measured numbers, by the policy's name, best first."""
    best_first = sorted(measured.items(), key=lambda item: -item[1].rate)
    values = {name: asdict(success) for name, success in best_first}
    with atomic_path(folder / MEASURED_FILE) as target:
        target.write_text(json.dumps(values, indent=1) + "\n")
        target.chmod(0o644)
    return folder / MEASURED_FILE
