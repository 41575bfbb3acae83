"""``load_policy``: a policy from one line of text.

    random   still
    packaged:NAME                   one of ``worldgym.policies.packaged``
    sb3:PATH                        a saved Stable-Baselines3 model
    openpi:ws://HOST:PORT           a policy server (openpi's, or ``worldgym.policies.serve``)
    lerobot:PATH                    a LeRobot checkpoint
    openvla:ID                      OpenVLA or OpenVLA-OFT
    simpler:MODULE:FACTORY          a policy object written for SimplerEnv
    MODULE:ATTRIBUTE  FILE.py:ATTRIBUTE   a function (frame, instruction), a policy, or a class that makes one

Options follow a question mark, ``sb3:ppo.zip?algorithm=PPO&deterministic=false``, or are given as keywords.
Values are read as JSON where they can be, else as text.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from worldgym.actions import ENV_SPEC, ActionSpec
from worldgym.errors import InvalidConfig, PolicyError
from worldgym.policies.driver import convert_policy
from worldgym.policies.images import ImageForm
from worldgym.policies.protocol import Policy
from worldgym.policies.statistics import Statistics

SCHEMES = ("sb3", "openpi", "lerobot", "openvla", "simpler", "packaged")


def load_policy(spec: str, *, target: str | ActionSpec | None = ENV_SPEC, **options: Any) -> Policy:
    """Make a policy.

    Args:
        spec: See the module's description.
        target: The convention to answer in; the policy's declared one is converted. None keeps its own.
        **options: More options of the adapter; they win over those in the text. ``images`` and
            ``statistics`` may be maps of the fields of ``ImageForm`` and of one data set's statistics.

    Returns:
        The policy.

    Raises:
        InvalidConfig: If the text or an option is not understood.
        PolicyError: If the policy cannot be loaded.
        SpecMismatch: If its declared convention does not fit the policy or cannot be converted.
        MissingExtra: If a package is not installed.
    """
    text, _, query = spec.partition("?")
    options = {**_parse(query), **options}
    if isinstance(options.get("images"), dict):
        options["images"] = ImageForm(**options["images"])
    if isinstance(options.get("statistics"), dict):
        options["statistics"] = Statistics.from_mapping(options["statistics"])
    scheme, _, rest = text.partition(":")
    try:
        policy = _build(scheme, rest, text, options)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise InvalidConfig(f"an option of policy {spec!r} does not fit: {error}") from error
    return policy if target is None else convert_policy(policy, target)


def _build(scheme: str, rest: str, text: str, options: dict[str, Any]) -> Policy:
    if text in ("random", "still"):
        from worldgym.policies.callable import random_policy, still_policy

        return (random_policy if text == "random" else still_policy)(**options)
    if scheme in SCHEMES and not rest:
        raise InvalidConfig(f"{text!r} lacks what to load: {scheme}:...")
    if scheme == "packaged":
        from worldgym.policies.packaged import load_packaged

        return load_packaged(rest, **options)
    if scheme == "sb3":
        from worldgym.policies.sb3 import SB3Policy

        return SB3Policy.load(rest, **options)
    if scheme == "openpi":
        return _openpi(rest, options)
    if scheme == "lerobot":
        from worldgym.policies.lerobot import LeRobotPolicy

        return LeRobotPolicy.load(rest, **options)
    if scheme == "openvla":
        from worldgym.policies.openvla import OpenVLAPolicy

        return OpenVLAPolicy.load(rest, **options)
    if scheme == "simpler":
        from worldgym.policies.simpler import SimplerPolicy

        return SimplerPolicy(_attribute(rest), **options)
    if ":" in text:
        return _from_attribute(_attribute(text), text, options)
    raise InvalidConfig(
        f"unknown policy {text!r}: give random, still, {', '.join(f'{name}:...' for name in SCHEMES)}, or "
        "the place of a Python function, module:attribute or file.py:attribute"
    )


def _openpi(url: str, options: dict[str, Any]) -> Policy:
    from dataclasses import fields

    from worldgym.policies.openpi import OpenPIOptions, OpenPIPolicy

    talk = {field.name for field in fields(OpenPIOptions)}
    settings = OpenPIOptions(**{key: value for key, value in options.items() if key in talk})
    rest = {key: value for key, value in options.items() if key not in talk}
    return OpenPIPolicy(url, **{"options": settings, **rest})


def _from_attribute(found: Any, text: str, options: dict[str, Any]) -> Policy:
    if isinstance(found, type):
        found, options = found(**options), {}
    if isinstance(found, Policy):
        if options:
            raise InvalidConfig(f"{text!r} is a policy already, it takes no options: {sorted(options)}")
        return found
    if not callable(found):
        raise PolicyError(
            f"{text!r} is neither a function of (frame, instruction) nor a policy, got {type(found).__name__}"
        )
    from worldgym.policies.callable import CallablePolicy

    return CallablePolicy(found, **options)


def _attribute(place: str) -> Any:
    """What is found at ``module:attribute`` or ``file.py:attribute``."""
    home, _, name = place.rpartition(":")
    if not home or not name:
        raise InvalidConfig(f"expected module:attribute or file.py:attribute, got {place!r}")
    module = _load_file(Path(home)) if home.endswith(".py") else _load_module(home)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise PolicyError(f"{home} has no attribute {name!r}")
        found = getattr(found, part)
    return found


def _load_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PolicyError(f"the module {name!r} cannot be imported: {error}") from error


def _load_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise PolicyError(f"there is no file {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _parse(query: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, strict_parsing=True) if query else []
    except ValueError as error:
        raise InvalidConfig(f"options must look like key=value&key=value, got {query!r}") from error
    return {key: _value(text) for key, text in pairs}


def _value(text: str) -> Any:
    parse: Callable[[str], Any] = json.loads
    try:
        return parse(text)
    except ValueError:
        return text
