"""What runs in the actors of a Ray cluster: plain classes, which ``remote`` turns into actors.

What is here:
    * ``RolloutActor``: a ``Runner`` whose starts are handed in and whose episodes are handed back.
    * ``JudgeActor``: a judge apart from the rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from worldgym.evaluation.runner import Failure, Rollout, Runner, attempt, close_policy

if TYPE_CHECKING:
    from worldgym.episode import Verdict
    from worldgym.evaluation.plan import EvaluationConfig, Plan, PolicySource, Start
    from worldgym.judges.loading import JudgeSpec
    from worldgym.judges.protocol import Clip, Judge
    from worldgym.policies.protocol import Policy


class RolloutActor:
    """Plays episodes in its own process.

    Args:
        threads: Threads that torch computes with.
    """

    def __init__(self, threads: int) -> None:
        _use_threads(threads)
        self._runner: Runner | None = None
        self._label: str | None = None
        self._policy: Policy | None = None

    def open(self, parcel: tuple[EvaluationConfig, Plan]) -> dict[str, Any]:
        """Make the environment.

        Returns:
            What it says of its identity.

        Raises:
            InvalidConfig: If it cannot be used.
        """
        self._runner = Runner(*parcel)
        return self._runner.identity

    def load(self, label: str, source: Sequence[PolicySource]) -> None:
        """Load a policy in place of the one before.

        Args:
            label: Its name in the results.
            source: One item: what to load.

        Raises:
            WorldGymError: As ``load_policy``.
        """
        if label != self._label:
            attempt(lambda: close_policy(self._policy))
            self._label = None
            self._policy = self._opened.load(source[0])
            self._label = label

    def play(
        self, label: str, source: Sequence[PolicySource], starts: Sequence[Start]
    ) -> Iterator[Rollout | Failure]:
        """Play every start once; see ``Runner.run``."""
        loaded = attempt(lambda: self.load(label, source))
        if isinstance(loaded, Failure):
            yield loaded
            return
        assert self._policy is not None
        yield from self._opened.run(self._policy, starts, label=label)

    @property
    def _opened(self) -> Runner:
        assert self._runner is not None, "the driver opens an actor before it uses it"
        return self._runner


class JudgeActor:
    """Judges in its own process.

    Args:
        source: One item: what ``load_judge`` takes.
        threads: Threads that torch computes with.
    """

    def __init__(self, source: Sequence[JudgeSpec], threads: int) -> None:
        _use_threads(threads)
        self._source = source
        self._loaded: Judge | None = None

    def identity(self) -> str:
        """The judge's identity.

        Raises:
            WorldGymError: As ``load_judge``.
        """
        return self._judge.identity

    def judge(self, clips: Sequence[Clip]) -> list[Verdict]:
        """One verdict per clip, in their order."""
        return self._judge.judge(clips)

    @property
    def _judge(self) -> Judge:
        # not in __init__: what an actor's constructor raises reaches the driver as text only
        if self._loaded is None:
            from worldgym.judges.loading import load_judge

            self._loaded = load_judge(self._source[0])
        return self._loaded


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
