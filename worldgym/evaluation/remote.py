"""Rollouts on a Ray cluster: the same run, played by actors.

What is here:
    * ``RayConfig``: which cluster, how many actors, and what each of them needs.
    * ``RayRunner``: stands in for ``Runner`` in the process that writes the run folder.

Each actor (``remote_actors``) plays batches of rows; judges have actors of their own; only the process that
called ``evaluate`` writes. Results come back one episode at a time, so when an actor is lost, only what it
was playing is played again, by another one. An episode depends on its start alone, and the actors compute
with as many threads as this process: on a CPU the results are those of a local run, bit for bit.

The cluster's nodes need this package, and the files that policies, judges and ``checkpoint`` name; trials are
carried there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from worldgym.errors import InvalidConfig, PolicyError, RunError, require
from worldgym.evaluation.plan import TRUTH, EvaluationConfig, Plan, Start, policy_label, policy_source
from worldgym.evaluation.remote_actors import JudgeActor, RolloutActor
from worldgym.evaluation.runner import Failure, Rollout
from worldgym.tasks import TaskSuite

if TYPE_CHECKING:
    from worldgym.episode import Verdict
    from worldgym.evaluation.plan import PolicySource
    from worldgym.judges.loading import JudgeSpec
    from worldgym.judges.protocol import Clip, Judge

LOCAL = "local"
MOST_LOSSES = 3
"""An episode that so many actors were lost with is a failure; from the second time on it is played alone."""


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """Where rollouts are played and what they need; changes no result.

    Attributes:
        address: ``"local"`` starts a cluster on this machine for this run, ``"auto"`` takes the one that this
            machine belongs to, ``"HOST:PORT"`` one by its address.
        actors: Rollout actors; None for as many as there is room for.
        cpus: CPUs that each of them reserves.
        gpus: GPUs that each of them reserves; 0.25 lets four share one. With 0 they see none.
        judge_cpus: CPUs that each judge reserves.
        judge_gpus: GPUs that each judge reserves.
        threads: Threads that torch computes with in each actor; None for as many as in this process, which
            the results of a CPU depend on in the last bits.
    """

    address: str = LOCAL
    actors: int | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    judge_cpus: float = 0.0
    judge_gpus: float = 0.0
    threads: int | None = None

    def __post_init__(self) -> None:
        if not self.address or "://" in self.address:
            raise InvalidConfig(
                "ray must be 'local', 'auto' or 'HOST:PORT' of a cluster that this machine belongs to, got "
                f"{self.address!r}; to use another one, start this command there (`ray job submit`)"
            )
        for name in ("actors", "threads"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidConfig(f"ray's {name} must be a positive int, got {value!r}")
        for name in ("cpus", "gpus", "judge_cpus", "judge_gpus"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidConfig(f"ray's {name} must be a number from 0 on, got {getattr(self, name)!r}")
        if not self.cpus and not self.gpus:
            raise InvalidConfig("ray's cpus and gpus cannot both be 0: actors would have no limit")

    @classmethod
    def parse(cls, source: str | RayConfig) -> RayConfig:
        """From text: an address, and options after a question mark, ``auto?gpus=0.25&actors=8``.

        Raises:
            InvalidConfig: If an option is unknown or its value cannot be.
        """
        if isinstance(source, RayConfig):
            return source
        address, _, query = source.partition("?")
        kinds = {field.name: int if "int" in str(field.type) else float for field in fields(cls)[1:]}
        try:
            pairs = parse_qsl(query, strict_parsing=True) if query else []
            options: dict[str, Any] = {name: kinds[name](text) for name, text in pairs}
        except (KeyError, ValueError) as error:
            raise InvalidConfig(
                f"ray's options are {sorted(kinds)}, as in 'auto?gpus=0.25&actors=8', got {query!r}"
            ) from error
        return cls(address=address, **options)


class RemoteJudge:
    """A judge that lives in an actor; see ``worldgym.judges.protocol.Judge``.

    Args:
        ray: The package.
        actor: Handle of a ``JudgeActor``.
    """

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor = ray, actor
        self.identity: str = _answer(ray, actor.identity.remote())

    def judge(self, clips: Sequence[Clip]) -> list[Verdict]:
        """One verdict per clip, in their order."""
        verdicts: list[Verdict] = _answer(self._ray, self._actor.judge.remote(list(clips)))
        return verdicts


@dataclass(eq=False)
class _Worker:
    """A rollout actor as it is seen from here.

    Attributes:
        actor: Its handle.
        pending: What it will answer next: that it is open, or a stream of results; None when it is free.
        share: The starts it was given and has not answered.
        opened: Whether its environment is there.
    """

    actor: Any
    pending: Any
    share: list[Start] = field(default_factory=list)
    opened: bool = False


class _Queue:
    """The starts that are still to be given to somebody."""

    def __init__(self, starts: Iterable[Start]) -> None:
        self._fresh = deque(starts)
        self._alone: deque[Start] = deque()
        self._losses: dict[Start, int] = {}

    def __len__(self) -> int:
        return len(self._fresh) + len(self._alone)

    def take(self, rows: int, workers: int) -> list[Start]:
        """A share for one of so many workers: smaller ones towards the end, but no less than its rows."""
        if not self._fresh:
            return [self._alone.popleft()]
        size = max(rows, len(self._fresh) // (2 * workers))
        return [self._fresh.popleft() for _ in range(min(size, len(self._fresh)))]

    def lost(self, share: Iterable[Start], reason: str) -> list[Failure]:
        """Queue a share again whose actor was lost; failures for those it happened to too often."""
        failures = []
        for start in share:
            losses = self._losses[start] = self._losses.get(start, 0) + 1
            if losses == MOST_LOSSES:
                failures.append(Failure(f"RunError: {losses} actors were lost with it: {reason}", "", start))
            else:
                (self._fresh if losses == 1 else self._alone).append(start)
        return failures


class RayRunner:
    """Plays episodes on a cluster; a context manager that lets go of it.

    Args:
        config: The evaluation; ``config.ray`` says where.
        plan: Its plan.

    Raises:
        MissingExtra: If ray is not installed.
        InvalidConfig: If the environment cannot be used, or an actor finds no room.
        RunError: If there is no such cluster.
        WorldGymError: As ``load_judge``.
    """

    def __init__(self, config: EvaluationConfig, plan: Plan) -> None:
        self._ray = require("ray", extra="ray")
        self.config, self.plan = config, plan
        self._where = RayConfig.parse(LOCAL if config.ray is None else config.ray)
        self._workers: list[_Worker] = []
        self._judges: list[Any] = []
        self._ours = _connect(self._ray, self._where.address)
        try:
            # judges first: rollouts take what room there is
            self.judges = self._load_judges(config.judge_sources)
            self._size = self._count()
            self._parcel = self._ray.put(_carried(config, plan))
            # what is wrong with the environment one actor finds out before the others are made
            self._workers.append(first := self._spawn())
            self.identity: dict[str, Any] = _answer(self._ray, first.pending)
            first.pending, first.opened = None, True
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> RayRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for actor in self._judges:
            self._ray.kill(actor)
        self._judges.clear()
        if self._ours:
            self._ray.shutdown()

    def close(self) -> None:
        """Let go of the rollout actors, whatever they are doing; the next ``run`` makes new ones."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers.clear()

    def load(self, policy: PolicySource) -> Any:
        """The policy, loaded by an actor once, so that one that cannot be is found out here.

        Raises:
            WorldGymError: As ``load_policy``.
            PolicyError: If no actor survives it.
        """
        label, parcel = policy_label(policy), self._ray.put([policy_source(policy)])
        for _ in range(MOST_LOSSES):
            self._enlist()
            worker = next((worker for worker in self._workers if worker.opened), self._workers[0])
            try:
                if not worker.opened:
                    self._receive(worker)
                _answer(self._ray, worker.actor.load.remote(label, parcel))
            except self._ray.exceptions.RayError as error:
                lost = _first_line(error)
                self._replace(worker)
            else:
                return parcel
        raise PolicyError(f"{MOST_LOSSES} actors were lost while they loaded policy {label!r}: {lost}")

    def run(
        self, policy: Any, starts: Iterable[Start], *, label: str
    ) -> Generator[Rollout | Failure, None, None]:
        """Play every start once.

        Args:
            policy: What ``load`` returned.
            starts: Starts of the plan.
            label: Name of the policy in the results.

        Yields:
            One result per start, in the order in which they arrive. Whoever stops early loses only the
            episodes that are being played.

        Raises:
            RunError: If actors are lost again and again before they have done anything.
        """
        queue, lost_in_a_row = _Queue(starts), 0
        self._enlist()
        try:
            while queue or any(worker.share for worker in self._workers):
                self._hand_out(queue, policy, label)
                worker = self._next_ready()
                try:
                    result = self._receive(worker)
                except self._ray.exceptions.RayError as error:
                    lost_in_a_row += 1
                    if lost_in_a_row > 2 * MOST_LOSSES + len(self._workers):
                        raise RunError(f"{lost_in_a_row} Ray actors were lost in a row: {error}") from error
                    yield from queue.lost(worker.share, _first_line(error))
                    self._replace(worker)
                    continue
                if result is None:
                    continue
                lost_in_a_row = 0
                yield result
                if result.start is None:  # the policy does not fit at all
                    return
        finally:
            if any(worker.share for worker in self._workers):
                self.close()  # a stream cannot be stopped otherwise

    def _hand_out(self, queue: _Queue, policy: Any, label: str) -> None:
        for worker in self._workers:
            if queue and worker.opened and worker.pending is None:
                worker.share = queue.take(self.config.num_envs, len(self._workers))
                stream = worker.actor.play.options(num_returns="streaming")
                worker.pending = stream.remote(label, policy, worker.share)

    def _next_ready(self) -> _Worker:
        waiting = {worker.pending: worker for worker in self._workers if worker.pending is not None}
        ready, _ = self._ray.wait(list(waiting), num_returns=1)
        return waiting[ready[0]]

    def _receive(self, worker: _Worker) -> Rollout | Failure | None:
        """What a worker has to say; None if it was not a result. Raises Ray's error if it was lost."""
        if not worker.opened:
            _answer(self._ray, worker.pending)
            worker.pending, worker.opened = None, True
            return None
        try:
            result: Rollout | Failure = _answer(self._ray, next(worker.pending))
        except StopIteration:
            worker.pending = None
            return None
        if result.start is not None:
            worker.share.remove(result.start)
        return result

    def _replace(self, worker: _Worker) -> None:
        self._ray.kill(worker.actor)  # it may only have been out of reach
        self._workers[self._workers.index(worker)] = self._spawn()

    def _enlist(self) -> None:
        """Make the rollout actors that are not there."""
        while len(self._workers) < self._size:
            self._workers.append(self._spawn())

    def _spawn(self) -> _Worker:
        where = self._where
        kind = self._ray.remote(RolloutActor).options(num_cpus=where.cpus, num_gpus=where.gpus)
        actor = kind.remote(where.threads or _threads_here())
        return _Worker(actor, actor.open.remote(self._parcel))

    def _count(self) -> int:
        """How many rollout actors: as wished, or as many as there is room and work for."""
        where = self._where
        if where.actors is not None:
            return where.actors
        needs = {"CPU": where.cpus, "GPU": where.gpus}
        work = -(-len(self.plan.starts) // self.config.num_envs)
        return max(1, min(work, *(self._room(kind, need) for kind, need in needs.items() if need)))

    def _room(self, kind: str, need: float) -> int:
        """How many actors have room now; at least one must have on the idle cluster."""
        there = self._ray.cluster_resources().get(kind, 0.0)
        if there < need:
            raise InvalidConfig(f"each actor needs {need:g} {kind}, the Ray cluster has {there:g} in all")
        return int(self._ray.available_resources().get(kind, 0.0) / need + 1e-9)

    def _load_judges(self, sources: Sequence[JudgeSpec]) -> dict[str, Judge | None]:
        """Judges by identity, each in an actor of its own; ``"truth"`` has none."""
        judges: dict[str, Judge | None] = {}
        for source in sources:
            if source == TRUTH:
                judges[TRUTH] = None
                continue
            for kind, need in (("CPU", self._where.judge_cpus), ("GPU", self._where.judge_gpus)):
                if need:
                    self._room(kind, need)
            options = {"num_cpus": self._where.judge_cpus, "num_gpus": self._where.judge_gpus}
            kind_of_actor = self._ray.remote(JudgeActor).options(
                max_restarts=MOST_LOSSES, max_task_retries=MOST_LOSSES, **options
            )
            actor = kind_of_actor.remote([source], self._where.threads or _threads_here())
            self._judges.append(actor)
            judge = RemoteJudge(self._ray, actor)
            judges[judge.identity] = judge
        return judges


def _connect(ray: Any, address: str) -> bool:
    """Join the cluster; whether it is this run's own affair."""
    if ray.is_initialized():
        return False
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level="ERROR",
            **({"include_dashboard": False} if address == LOCAL else {}),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise RunError(f"no Ray cluster answers at {address!r}: {error}") from error
    return True


def _answer(ray: Any, reference: Any) -> Any:
    """An actor's answer; what it raised is raised here as it was there."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def _carried(config: EvaluationConfig, plan: Plan) -> tuple[EvaluationConfig, Plan]:
    """What a rollout actor needs of both, with frames in place of image files."""

    def carry(suite: TaskSuite | None) -> TaskSuite | None:
        if suite is None:
            return None
        return TaskSuite(replace(trial, image=trial.load_frame()) for trial in suite)

    plan = replace(plan, suite=carry(plan.suite), world_suite=carry(plan.world_suite))
    # policies are sent one by one and judges live elsewhere
    return replace(config, policies=("still",), judges=(TRUTH,), trials=plan.suite, ray=None), plan


def _threads_here() -> int:
    import torch

    return torch.get_num_threads()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
