"""What a judge wrapper needs to know of the wrappers inside of it.

What is here:
    * ``layers``: an environment and all that it wraps.
    * ``find_judge``: the judge of a wrapper, shared with the wrappers inside.
    * ``check_inside``: refuses an order of wrappers in which rewards would be lost.
    * ``layer_with``: the outermost layer that can do something.
    * ``RowCalls``: hands ``call``, ``get_attr`` and ``set_attr`` on to a vector environment inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from worldgym.errors import InvalidConfig
from worldgym.judges import Judge, load_judge
from worldgym.judges.loading import JudgeSpec


def layers(env: Any) -> Iterator[Any]:
    """The environment and what it wraps, from the outside to the innermost."""
    yield env
    while env is not env.unwrapped:
        env = env.env
        yield env


def find_judge(env: Any, spec: JudgeSpec, cache_folder: str | None) -> tuple[Judge, bool]:
    """The judge for a wrapper around ``env``, and whether it is the wrapper's own to close.

    A wrapper inside that was given the same judge lends its own, so that both together pay once.
    """
    for layer in layers(env):
        if hasattr(layer, "judge_spec") and _same(layer.judge_spec, spec):
            return layer.desk.judge, False
    return load_judge(spec, cache_folder=cache_folder), isinstance(spec, (str, Mapping))


def check_inside(env: Any, *, refused: type[Any]) -> None:
    """Refuse to terminate outside of a reward: the reward would never see the end of the episode.

    Raises:
        InvalidConfig: If such a wrapper is inside.
    """
    if any(isinstance(layer, refused) for layer in layers(env)):
        raise InvalidConfig(
            "put the reward outside, VLMReward(VLMTermination(env, judge), judge): inside it would not see "
            "where the judge ends an episode"
        )


def layer_with(name: str, env: Any) -> Any:
    """The outermost layer that has a method of this name.

    Raises:
        AttributeError: If none has.
    """
    for layer in layers(env):
        if hasattr(layer, name):
            return layer
    raise AttributeError(f"{type(env.unwrapped).__name__} has no {name}: its episodes cannot be copied")


class RowCalls:
    """For wrappers of vector environments: Gymnasium's base class hides these three."""

    env: Any

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every row, or read an attribute.

        Raises:
            AttributeError: If rows have no such name.
        """
        found: tuple[Any, ...] = layer_with("call", self.env).call(name, *args, **kwargs)
        return found

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every row."""
        found: tuple[Any, ...] = layer_with("get_attr", self.env).get_attr(name)
        return found

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every row."""
        layer_with("set_attr", self.env).set_attr(name, values)


def _same(one: JudgeSpec, other: JudgeSpec) -> bool:
    plain = isinstance(one, (str, Mapping)) and isinstance(other, (str, Mapping))
    return one == other if plain else one is other
