"""The identity of a run: all that can change a result. And its provenance: what else one wants to know.

What is here:
    * ``describe_run``: identity as a dict of JSON values.
    * ``provenance``: versions, machine and command.

How many rows are played at once, where the run is written and how long one waits are no part of the identity.
"""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from worldgym.evaluation.plan import EvaluationConfig, Plan, policy_label, policy_source
from worldgym.fingerprint import content_hash
from worldgym.policies.packaged import POLICIES, packaged_policies
from worldgym.tasks import Trial

if TYPE_CHECKING:
    from worldgym.evaluation.remote import RayRunner
    from worldgym.evaluation.runner import Runner

PACKAGES = ("worldgym", "gymnasium", "numpy", "torch", "diffusers", "mujoco", "transformers", "openai")


def describe_run(
    config: EvaluationConfig, plan: Plan, runner: Runner | RayRunner, judges: Sequence[str]
) -> dict[str, Any]:
    """The identity of a run.

    Args:
        config: The configuration.
        plan: Its plan.
        runner: Says what the environment knows of itself.
        judges: Identities of the judges.
    """
    files = [value for value in config.env_kwargs.values() if isinstance(value, str) and Path(value).exists()]
    return {
        "env": config.env,
        "env_kwargs": dict(config.env_kwargs),
        "env_files": {str(value): content_hash(value) for value in files},
        "env_identity": runner.identity,
        "policies": {
            policy_label(policy): _describe_policy(policy_source(policy)) for policy in config.policies
        },
        "trials": {} if plan.suite is None else {trial.key: _describe_trial(trial) for trial in plan.suite},
        "seeds": list(config.seeds),
        "judges": list(judges),
        "episode_frames": config.episode_frames,
        "chunk_size": config.chunk_size,
        "perturbations": {name: condition.describe() for name, condition in plan.conditions.items()},
    }


def provenance() -> dict[str, Any]:
    """Versions, machine, command and time."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name or "python", *sys.argv[1:]]),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
    }


def _describe_policy(source: Any) -> dict[str, Any]:
    """A text, with the content of the file or folder it names; for an object what it says of itself."""
    if not isinstance(source, str):
        kind = type(source) if not hasattr(source, "__qualname__") else source
        described = {"object": f"{kind.__module__}.{kind.__qualname__}"}
        own = getattr(source, "identity", None)
        return described if own is None else {**described, "identity": str(own)}
    text = source.partition("?")[0]
    pieces = [text, text.partition(":")[2], text.rpartition(":")[0]]
    files = {piece: Path(piece) for piece in pieces if piece and Path(piece).exists()}
    if text.startswith("packaged:"):
        files |= _packaged_files(text.removeprefix("packaged:"))
    return {"source": source, "files": {piece: content_hash(path) for piece, path in files.items()}}


def _packaged_files(name: str) -> dict[str, Path]:
    """The weights of a packaged policy; none for a name that will be refused when it is loaded."""
    policies = packaged_policies()
    file = policies[name].file if name in policies else ""
    return {file: POLICIES / file} if file and (POLICIES / file).exists() else {}


def _describe_trial(trial: Trial) -> dict[str, Any]:
    frame = trial.load_frame()
    return {
        "instructions": list(trial.instructions),
        "partial_credit_criteria": trial.partial_credit_criteria,
        "scene": trial.scene,
        "frame": sha256(str(frame.shape).encode() + frame.tobytes()).hexdigest()[:32],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
