"""``load_judge``: a judge from what an environment's or a command's ``judge=`` holds."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from worldgym.errors import InvalidConfig, JudgeError
from worldgym.judges.cache import CachedJudge
from worldgym.judges.protocol import Clip, Judge

JudgeSpec = str | Mapping[str, Any] | Judge | Callable[[Clip], Any]
"""What ``load_judge`` takes. The first two can be written as JSON."""

_FORMS = (
    '"packaged", "packaged:FOLDER" (a judge that you trained), '
    '"chat:MODEL" (OpenAI), "chat:MODEL@URL" (any server that speaks its protocol), "local:FOLDER_OR_ID" '
    '(transformers), "python:MODULE:FUNCTION", {"judge": one of these, more options}, a function of a clip, '
    "or an object with `identity` and `judge(clips)`"
)


def load_judge(spec: JudgeSpec, *, cache_folder: str | Path | None = None) -> Judge:
    """A judge that keeps its verdicts.

    | ``spec`` | judge |
    |---|---|
    | ``"packaged"`` | the small network that comes with the package, for the twin's tasks |
    | ``"packaged:FOLDER"`` | one of its kind from ``worldgym train judge`` |
    | ``"chat:MODEL"`` | OpenAI's API, key in ``OPENAI_API_KEY`` |
    | ``"chat:MODEL@URL"`` | an OpenAI-compatible server; its key, if any, in ``WORLDGYM_JUDGE_API_KEY`` |
    | ``"local:FOLDER_OR_ID"`` | a transformers model in this process |
    | ``"python:MODULE:NAME"`` | a function of a clip, or an object that is a judge |
    | a mapping | the key ``judge`` holds one of the above, the others are its options: the fields of its
      configuration (``ChatConfig``, ``LocalConfig``) and of ``PromptConfig`` |
    | a callable | asked clip by clip; see ``FunctionJudge`` for what it may return |
    | a judge | used as it is, with a cache unless it has one |

    Args:
        spec: What to load.
        cache_folder: Keep verdicts there as well, for later runs.

    Raises:
        InvalidConfig: If ``spec`` is none of these, or an option cannot work.
        MissingExtra: If the package behind it is not installed.
        JudgeError: If the judge cannot be built, for example for want of a key.

    Example:
        >>> from worldgym.judges import Clip, load_judge
        >>> import numpy as np
        >>> judge = load_judge(lambda clip: bool(clip.frames[-1].mean() > 100))
        >>> bright = np.full((2, 8, 8, 3), 200, np.uint8)
        >>> judge.judge([Clip(bright, "light it up")])[0].outcome.value
        'success'
    """
    if isinstance(spec, CachedJudge):
        return spec if cache_folder is None else CachedJudge(spec.inner, folder=cache_folder)
    return CachedJudge(_build(spec), folder=cache_folder)


def _build(spec: JudgeSpec) -> Judge:
    if isinstance(spec, str):
        return _named(spec, {})
    if isinstance(spec, Mapping):
        options = dict(spec)
        name = options.pop("judge", None)
        if not isinstance(name, str):
            raise InvalidConfig(f'a judge given as a mapping needs the key "judge", got {sorted(spec)}')
        return _named(name, options)
    if isinstance(spec, Judge):
        return spec
    if callable(spec):
        from worldgym.judges.function import FunctionJudge

        return FunctionJudge(spec)
    raise InvalidConfig(f"a judge must be {_FORMS}; got {spec!r}")


def _named(name: str, options: dict[str, Any]) -> Judge:
    kind, _, rest = name.partition(":")
    if kind == "packaged":
        if options:
            raise InvalidConfig(f"the packaged judge has no options, got {sorted(options)}")
        from worldgym.judges.packaged import PackagedJudge

        return PackagedJudge(rest or None)
    if not rest:
        raise InvalidConfig(f"a judge must be {_FORMS}; got {name!r}")
    if kind == "chat":
        from worldgym.judges.chat import ChatConfig, ChatJudge

        model, _, url = rest.partition("@http")
        address = {"url": f"http{url}"} if url else {}
        return ChatJudge(_configured(ChatConfig, {"model": model, **address}, options))
    if kind == "local":
        from worldgym.judges.local import LocalConfig, LocalJudge

        return LocalJudge.from_pretrained(rest, config=_configured(LocalConfig, {}, options))
    if kind == "python":
        return _imported(rest, options)
    raise InvalidConfig(f"a judge must be {_FORMS}; got {name!r}")


def _configured(kind: type[Any], given: dict[str, Any], options: dict[str, Any]) -> Any:
    """A configuration whose ``prompt`` is filled from the options that belong to ``PromptConfig``."""
    from worldgym.judges.prompt import PromptConfig

    names = {field.name for field in fields(kind)} - {"prompt"} - set(given)
    prompt_names = {field.name for field in fields(PromptConfig)}
    if unknown := sorted(set(options) - names - prompt_names):
        raise InvalidConfig(f"this judge has the options {sorted(names | prompt_names)}, got {unknown}")
    prompt = PromptConfig(**{name: value for name, value in options.items() if name in prompt_names})
    own = {name: value for name, value in options.items() if name in names}
    return kind(prompt=prompt, **given, **own)


def _imported(path: str, options: dict[str, Any]) -> Judge:
    module, _, name = path.rpartition(":")
    if not module or options:
        raise InvalidConfig(f'expected "python:MODULE:NAME" without further options, got {path!r} {options}')
    try:
        target = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise JudgeError(f"the judge python:{path} cannot be imported: {error}") from error
    return _build(target)
