"""The tasks that the packaged judge knows, and the wordings by which it knows them.

What is here:
    * ``KnownTask``: one task: what is done, with which thing, and in which words it may be asked.
    * ``Vocabulary``: finds the task of an instruction, and says that there is none rather than guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from worldgym.errors import CheckpointError

GRIPPER = "gripper"
"""Name of the hand among the things that a judge looks for."""


@dataclass(frozen=True)
class KnownTask:
    """A task as a judge sees it.

    Attributes:
        key: Its name.
        kind: What is done: tasks of a kind share their rule.
        target: The thing that it is done to.
        goal: The thing that it is done with, if any.
        instructions: Wordings.
        criteria: What counts as half a success, if anything does.
        half_from: Progress from which that is so.
    """

    key: str
    kind: str
    target: str
    goal: str | None
    instructions: tuple[str, ...]
    criteria: str | None = None
    half_from: float = 0.5


class Vocabulary:
    """The tasks of a judge, in a fixed order.

    Args:
        tasks: The tasks. A wording that two of them share belongs to the first.
    """

    def __init__(self, tasks: Iterable[KnownTask]) -> None:
        self.tasks = tuple(tasks)
        self._index: dict[str, int] = {}
        for number, task in enumerate(self.tasks):
            for wording in task.instructions:
                self._index.setdefault(plain(wording), number)

    @classmethod
    def from_list(cls, values: Iterable[Mapping[str, Any]]) -> Vocabulary:
        """The inverse of ``as_list``.

        Raises:
            CheckpointError: If it is no list of tasks.
        """
        try:
            return cls(
                KnownTask(**{**value, "instructions": tuple(value["instructions"])}) for value in values
            )
        except (TypeError, KeyError) as error:
            raise CheckpointError(f"expected the tasks of a judge, got something else: {error}") from error

    def as_list(self) -> list[dict[str, Any]]:
        """The tasks as values that json can hold."""
        return [asdict(task) | {"instructions": list(task.instructions)} for task in self.tasks]

    def find(self, instruction: str) -> int | None:
        """Number of the task that an instruction asks for; None if no known wording equals it.

        Case, punctuation and spaces do not count.
        """
        return self._index.get(plain(instruction))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """What the tasks do, each once, in the order of the tasks."""
        return tuple(dict.fromkeys(task.kind for task in self.tasks))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The gripper, and all things that tasks are about."""
        things = [name for task in self.tasks for name in (task.target, task.goal) if name]
        return tuple(dict.fromkeys([GRIPPER, *things]))

    def __len__(self) -> int:
        return len(self.tasks)


def plain(text: str) -> str:
    """A wording without case, punctuation and surplus spaces."""
    return " ".join(re.sub(r"[^\w\s]", " ", text.lower()).split())
