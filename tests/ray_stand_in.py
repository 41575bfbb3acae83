"""What ``remote`` uses of Ray, in this process and thread; actors are lost where a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Reference:
    """Computed when it is asked for."""

    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute


class StandIn:
    """A cluster.

    Args:
        loses: From (number of the actor, method, number of the item of a stream) to whether it is lost then.
        resources: What the cluster has.
    """

    class exceptions:
        RayError = RayError
        RayTaskError = RayTaskError

    def __init__(self, loses: Callable[[int, str, int], bool] = lambda *_: False, **resources: float) -> None:
        self.loses = loses
        self.resources = {"CPU": 2.0, **resources}
        self.actors: list[Actor] = []
        self.joined: list[str] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, *, address: str, **_: Any) -> None:
        if address == "nowhere:1":
            raise ConnectionError("no route")
        self.joined.append(address)

    def shutdown(self) -> None:
        self.joined.append("left")

    def cluster_resources(self) -> dict[str, float]:
        return self.resources

    available_resources = cluster_resources

    def put(self, value: Any) -> Reference:
        return Reference(lambda: value)

    def get(self, reference: Reference) -> Any:
        try:
            return reference.compute()
        except RayError:
            raise
        except Exception as error:
            raise RayTaskError(error) from error

    def wait(self, waiting: list[Any], *, num_returns: int) -> tuple[list[Any], list[Any]]:
        return waiting[-num_returns:], waiting[:-num_returns]  # the last one first: nothing relies on order

    def kill(self, actor: Actor) -> None:
        actor.alive = False

    def remote(self, kind: type) -> Kind:
        return Kind(self, kind)


class Kind:
    def __init__(self, cluster: StandIn, kind: type) -> None:
        self.cluster, self.kind, self.reserved = cluster, kind, {}

    def options(self, **reserved: Any) -> Kind:
        self.reserved = reserved
        return self

    def remote(self, *arguments: Any) -> Actor:
        actor = Actor(self.cluster, self.kind(*arguments), self.reserved)
        self.cluster.actors.append(actor)
        return actor


class Actor:
    def __init__(self, cluster: StandIn, instance: Any, reserved: dict[str, Any]) -> None:
        self.cluster, self.instance, self.reserved, self.alive = cluster, instance, reserved, True
        self.number = len(cluster.actors)

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)

    def check(self, name: str, item: int) -> None:
        self.alive = self.alive and not self.cluster.loses(self.number, name, item)
        if not self.alive:
            raise RayError(f"actor {self.number} was lost\nin {name}")


class Method:
    def __init__(self, actor: Actor, name: str, streams: bool = False) -> None:
        self.actor, self.name, self.streams = actor, name, streams

    def options(self, *, num_returns: str) -> Method:
        return Method(self.actor, self.name, num_returns == "streaming")

    def remote(self, *arguments: Any) -> Any:
        def call() -> Any:
            self.actor.check(self.name, 0)
            given = [item.compute() if isinstance(item, Reference) else item for item in arguments]
            return getattr(self.actor.instance, self.name)(*given)

        def stream() -> Iterator[Reference]:
            for number, result in enumerate(call(), start=1):
                self.actor.check(self.name, number)
                yield Reference(lambda result=result: result)

        return stream() if self.streams else Reference(call)
