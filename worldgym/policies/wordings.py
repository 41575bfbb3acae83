"""From an instruction to what is asked: the closed vocabulary of the packaged policies.

What is here:
    * ``AskedTask``: one task: what is done, with which thing, and in which words it is asked.
    * ``Wordings``: finds the task of an instruction, always: the nearest one if no known wording equals it.

A judge must say when it does not know a task. A policy must move, so it takes an unknown instruction for the
known one that shares most words with it, and does something else than was asked if that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

from worldgym.errors import CheckpointError

GRIPPER = "gripper"
"""Name of the hand among the things that a policy looks for."""


@dataclass(frozen=True)
class AskedTask:
    """A task as a policy sees it.

    Attributes:
        key: Its name.
        kind: What is done: tasks of a kind are done in the same way.
        target: The thing that it is done to.
        goal: The thing that it is done with, if any.
        wordings: Instructions that ask for it.
    """

    key: str
    kind: str
    target: str
    goal: str | None
    wordings: tuple[str, ...]


class Wordings:
    """The tasks that a policy has learned, in a fixed order.

    Args:
        tasks: The tasks, at least one.
    """

    def __init__(self, tasks: Iterable[AskedTask]) -> None:
        self.tasks = tuple(tasks)
        self._words = [
            (number, _words(wording))
            for number, task in enumerate(self.tasks)
            for wording in (*task.wordings, task.key.replace("_", " "))
        ]

    @classmethod
    def from_list(cls, values: Iterable[Mapping[str, Any]]) -> Wordings:
        """The inverse of ``as_list``.

        Raises:
            CheckpointError: If it is no list of tasks.
        """
        try:
            return cls(AskedTask(**{**value, "wordings": tuple(value["wordings"])}) for value in values)
        except (TypeError, KeyError) as error:
            raise CheckpointError(f"expected the tasks of a policy, got something else: {error!r}") from error

    def as_list(self) -> list[dict[str, Any]]:
        """The tasks as values that json can hold."""
        return [asdict(task) | {"wordings": list(task.wordings)} for task in self.tasks]

    def find(self, instruction: str) -> int:
        """Number of the task whose words are most like an instruction's.

        Likeness is the share of common words among all words of the two (Jaccard index), case and
        punctuation left out. Of tasks with the same words the one with the likest order wins (to stack the
        green cube on the yellow one is not to stack the yellow one on the green one), then the first.
        """
        asked = _words(instruction)
        best, most = 0, (-1.0, -1.0)
        for number, words in self._words:
            common = len(set(asked) & set(words)) / max(len(set(asked) | set(words)), 1)
            if common >= most[0]:
                likeness = common, SequenceMatcher(None, asked, words, autojunk=False).ratio()
                if likeness > most:
                    best, most = number, likeness
        return best

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


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
