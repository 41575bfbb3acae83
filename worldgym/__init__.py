"""WorldGym: a learned video world model that any Gymnasium user can treat as a simulator.

Importing this package registers the environments ``WorldGym-Bridge-v0`` (learned) and
``WorldGym-BridgeTwin-v0`` (MuJoCo) and loads nothing heavy; the names below load their module on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from worldgym import registration

__version__ = "0.1.0"

_HOMES = {
    "ActionSpec": "worldgym.actions",
    "Episode": "worldgym.episode",
    "EvaluationConfig": "worldgym.evaluation.plan",
    "Outcome": "worldgym.episode",
    "TaskSuite": "worldgym.tasks",
    "Trial": "worldgym.tasks",
    "Verdict": "worldgym.episode",
    "WorldGymError": "worldgym.errors",
    "WorldModel": "worldgym.models.world_model",
    "evaluate": "worldgym.evaluation.run",
    "load_suite": "worldgym.tasks",
    "rejudge": "worldgym.evaluation.run",
}

__all__ = [
    "ActionSpec",
    "Episode",
    "EvaluationConfig",
    "Outcome",
    "TaskSuite",
    "Trial",
    "Verdict",
    "WorldGymError",
    "WorldModel",
    "__version__",
    "evaluate",
    "load_suite",
    "rejudge",
]

registration.register_all()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
