"""Wrappers around environments.

* ``ActionConsistency``, ``VectorActionConsistency``: end episodes whose frames left the requested actions.
* ``ManiSkillNames``: for loops written for ManiSkill.
* ``SB3VecEnv``: for Stable-Baselines3.
* ``VLMReward``, ``VLMTermination``: reward and termination from a judge, for single environments.
* ``VectorVLMReward``, ``VectorVLMTermination``: the same for vector environments.

``from worldgym.wrappers import SB3VecEnv`` loads the wrapper's own dependencies only then.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

if __name__ != "worldgym.wrappers":
    raise ImportError(
        f"import this package as 'worldgym.wrappers', not as {__name__!r}: under another name every class in "
        "it would exist twice"
    )

_HOMES = {
    "ActionConsistency": "worldgym.wrappers.consistency",
    "ManiSkillNames": "worldgym.wrappers.maniskill",
    "SB3VecEnv": "worldgym.wrappers.sb3",
    "VLMReward": "worldgym.wrappers.judged",
    "VLMTermination": "worldgym.wrappers.judged",
    "VectorActionConsistency": "worldgym.wrappers.consistency_vector",
    "VectorVLMReward": "worldgym.wrappers.judged_vector",
    "VectorVLMTermination": "worldgym.wrappers.judged_vector",
}

__all__ = [
    "ActionConsistency",
    "ManiSkillNames",
    "SB3VecEnv",
    "VLMReward",
    "VLMTermination",
    "VectorActionConsistency",
    "VectorVLMReward",
    "VectorVLMTermination",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
