"""Families of behaviour, from the expert to aimless play: what data are made of.

What is here:
    * ``FAMILIES``: every family by name, with its weight in the mixture; ``actions_of`` starts one.

A family is a generator of actions float32 (7,) in ``worldgym.actions.ENV_SPEC``. It may look into the
physics, and its caller plays each action before asking for the next. Most frames come from behaviour that
fails or wants nothing: a model that has only seen successes turns every attempt into one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from worldgym.envs.arm import WORKSPACE
from worldgym.envs.expert import Flaws, expert, grasp, hover, push
from worldgym.envs.hand import CLOSED, OPEN, Actions, Hand
from worldgym.envs.physics import Physics
from worldgym.envs.twin_rules import Lift, Push
from worldgym.envs.twin_tasks import TwinTask
from worldgym.errors import InvalidConfig

Rng = np.random.Generator
Start = Callable[[TwinTask, Physics, Rng], Actions]


@dataclass(frozen=True)
class Family:
    """A kind of behaviour.

    Attributes:
        start: Makes its actions.
        weight: Its share of the mixture, relative to the others; 0: only when it is asked for.
    """

    start: Start
    weight: float


def actions_of(family: str, task: TwinTask, physics: Physics, rng: Rng) -> Actions:
    """The endless actions of a family in a scene.

    Raises:
        InvalidConfig: If there is no such family.
    """
    if family not in FAMILIES:
        raise InvalidConfig(f"there is no family of behaviour {family!r}: there are {sorted(FAMILIES)}")
    return FAMILIES[family].start(task, physics, rng)


def _expert(task: TwinTask, physics: Physics, rng: Rng) -> Actions:
    return expert(task.rule, physics, rng)


def _noisy(level: float) -> Start:
    """The expert with normal noise on every action, its deviation a part of the full scale."""

    def start(task: TwinTask, physics: Physics, rng: Rng) -> Actions:
        for action in expert(task.rule, physics, rng):
            noise = rng.normal(0, level, 7)
            noise[3:6] *= 0.5  # half of it for turns
            if rng.random() < 0.3 * level:
                action[6] = -action[6]
            yield np.clip(action + noise, -1, 1).astype(np.float32)

    return start


def _offset_grasp(task: TwinTask, physics: Physics, rng: Rng) -> Actions:
    """Grasps beside the thing, or above it."""
    angle, distance = rng.uniform(0, 2 * np.pi), rng.uniform(0.018, 0.05)
    offset = np.array([np.cos(angle) * distance, np.sin(angle) * distance, 0.0])
    if rng.random() < 0.3:
        offset = np.array([*rng.normal(0, 0.004, 2), rng.uniform(0.03, 0.05)])
    return expert(task.rule, physics, rng, flaws=Flaws(offset=offset))


def _early_release(task: TwinTask, physics: Physics, rng: Rng) -> Actions:
    return expert(task.rule, physics, rng, flaws=Flaws(release_after=int(rng.integers(0, 5))))


def _wrong_object(task: TwinTask, physics: Physics, rng: Rng) -> Actions:
    """Does the task with another thing, or leaves off too early if there is no other."""
    goal = getattr(task.rule, "goal", None)
    others = [n for n, kind in physics.kinds.items() if kind.graspable and n not in (task.rule.target, goal)]
    if not others:
        return _early_release(task, physics, rng)
    return expert(task.rule, physics, rng, flaws=Flaws(target=others[int(rng.integers(len(others)))]))


def _stop_half_way(task: TwinTask, physics: Physics, rng: Rng) -> Actions:
    """The expert up to some moment, then it only hovers."""
    latest = 10 if isinstance(task.rule, Lift | Push) else 20  # about where the way ends
    yield from islice(expert(task.rule, physics, rng), int(rng.integers(4, latest)))
    yield from hover(Hand(physics), rng)


def _random_walk(task: TwinTask, physics: Physics, rng: Rng) -> Actions:
    """Smooth motion to nowhere; the gripper opens and closes now and then."""
    scale = float(rng.choice([0.2, 0.35, 0.5, 0.8]))
    velocity, gripper = np.zeros(6), float(rng.choice([OPEN, CLOSED]))
    while True:
        velocity = 0.85 * velocity + rng.normal(0, 0.55 * scale, 6)
        velocity[2] -= 0.1 * scale * (physics.command.position[2] > 0.06)
        velocity[3:5] *= 0.6
        if rng.random() < 0.08:
            gripper = -gripper
        yield np.clip(np.append(velocity, gripper), -1, 1).astype(np.float32)


def _drift(task: TwinTask, physics: Physics, rng: Rng) -> Actions:
    """One steady motion after another, as weak policies make: on and on, to the edge of the workspace."""
    while True:
        moving = rng.random(6) < [0.6, 0.6, 0.6, 0.1, 0.1, 0.3]
        motion = moving * rng.uniform(-1, 1, 6) * float(rng.choice([0.15, 0.4, 0.7, 1.0]))
        gripper = float(rng.choice([OPEN, CLOSED]))
        for _ in range(int(rng.integers(3, 20))):
            wobble = motion + rng.normal(0, 0.03, 6)
            yield np.clip(np.append(wobble, gripper), -1, 1).astype(np.float32)


def _uniform(task: TwinTask, physics: Physics, rng: Rng) -> Actions:
    """Every action drawn from the whole space: the random policy."""
    while True:
        yield rng.uniform(-1, 1, 7).astype(np.float32)


def _play(task: TwinTask, physics: Physics, rng: Rng) -> Actions:
    """One thing after another that a curious hand would do."""
    hand = Hand(physics, float(rng.uniform(0.014, 0.028)))
    while True:
        yield from _PLAYS[int(rng.integers(len(_PLAYS)))](hand, rng)


def _some_point(rng: Rng, *, low: float = 0.0, high: float = 1.0) -> np.ndarray[Any, Any]:
    """A place in the workspace, its height between two parts of the whole."""
    span = WORKSPACE[1] - WORKSPACE[0]
    return np.asarray(WORKSPACE[0] + rng.uniform([0.05, 0.05, low], [0.95, 0.95, high]) * span)


def _some_thing(hand: Hand, rng: Rng, *, graspable: bool = False) -> str:
    names = [n for n, kind in hand.physics.kinds.items() if kind.graspable or not graspable]
    return names[int(rng.integers(len(names)))]


def _wander(hand: Hand, rng: Rng) -> Actions:
    goal = _some_point(rng)
    hand.gripper = float(rng.choice([OPEN, CLOSED, hand.gripper]))
    hand.yaw = float(rng.uniform(-0.6, 0.6))
    yield from hand.go(lambda: goal, near=0.01, most=10)


def _sweep(hand: Hand, rng: Rng) -> Actions:
    """Low over the table, through whatever is there."""
    goal = _some_point(rng, high=0.15)
    hand.gripper = float(rng.choice([OPEN, CLOSED]))
    thing = hand.physics.position(_some_thing(hand, rng))
    yield from hand.go(lambda: np.append(thing[:2] + rng.normal(0, 0.02, 2), goal[2]), near=0.02, most=10)
    yield from hand.go(lambda: goal, near=0.01, most=8)


def _shove(hand: Hand, rng: Rng) -> Actions:
    angle = rng.uniform(0, 2 * np.pi)
    name = _some_thing(hand, rng)
    yield from push(hand, name, np.array([np.cos(angle), np.sin(angle)]), float(rng.uniform(0.02, 0.08)))
    yield from hand.shift([0, 0, rng.uniform(0.02, 0.06)])


def _lift_and_drop(hand: Hand, rng: Rng) -> Actions:
    yield from grasp(hand, _some_thing(hand, rng, graspable=True), offset=_slip(rng))
    yield from hand.shift([0, 0, rng.uniform(0.02, 0.09)])
    goal = _some_point(rng, low=0.3)
    yield from hand.go(lambda: goal, near=0.01, most=int(rng.integers(0, 9)))
    yield from hand.release(int(rng.integers(1, 3)))


def _drag(hand: Hand, rng: Rng) -> Actions:
    """Grasps and moves without lifting."""
    yield from grasp(hand, _some_thing(hand, rng, graspable=True), offset=_slip(rng))
    way = np.append(rng.uniform(-0.08, 0.08, 2), rng.uniform(0, 0.004))
    yield from hand.shift(way, speed=0.015, most=8)
    yield from hand.release(1)
    yield from hand.shift([0, 0, rng.uniform(0.02, 0.06)])


def _close_on_nothing(hand: Hand, rng: Rng) -> Actions:
    goal = _some_point(rng, high=0.5)
    hand.gripper = OPEN
    yield from hand.go(lambda: goal, near=0.01, most=12)
    yield from hand.squeeze(int(rng.integers(1, 4)))
    yield from hand.shift(rng.uniform([-0.06, -0.06, 0.0], [0.06, 0.06, 0.08]), most=6)


def _put_anywhere(hand: Hand, rng: Rng) -> Actions:
    """Takes something and lets it go low over a place or another thing."""
    name = _some_thing(hand, rng, graspable=True)
    yield from grasp(hand, name)
    yield from hand.shift([0, 0, 0.07], most=5)
    other = _some_thing(hand, rng)
    goal = _some_point(rng) if other == name else hand.physics.position(other)
    goal = np.append(goal[:2] + rng.normal(0, 0.015, 2), 0.09)
    yield from hand.go(lambda: goal, near=0.01, most=14)
    yield from hand.shift([0, 0, -rng.uniform(0.0, 0.05)], most=4)
    yield from hand.release()
    yield from hand.shift([0, 0, 0.04])


def _slip(rng: Rng) -> np.ndarray[Any, Any]:
    """A grasp that is a little, sometimes far, beside the middle."""
    return np.append(rng.normal(0, float(rng.choice([0.003, 0.014])), 2), rng.uniform(-0.004, 0.012))


_PLAYS: tuple[Callable[[Hand, Rng], Actions], ...] = (
    _wander,
    _sweep,
    _shove,
    _shove,
    _lift_and_drop,
    _lift_and_drop,
    _drag,
    _close_on_nothing,
    _put_anywhere,
)

FAMILIES: dict[str, Family] = {
    "expert": Family(_expert, 0.20),
    "noise_0.05": Family(_noisy(0.05), 0.05),
    "noise_0.1": Family(_noisy(0.1), 0.06),
    "noise_0.2": Family(_noisy(0.2), 0.06),
    "noise_0.35": Family(_noisy(0.35), 0.05),
    "noise_0.5": Family(_noisy(0.5), 0.03),
    "offset_grasp": Family(_offset_grasp, 0.10),
    "early_release": Family(_early_release, 0.07),
    "wrong_object": Family(_wrong_object, 0.06),
    "stop_half_way": Family(_stop_half_way, 0.05),
    "random_walk": Family(_random_walk, 0.08),
    "random": Family(_uniform, 0.01),
    "play": Family(_play, 0.18),
    "drift": Family(_drift, 0.0),
}
"""Every family, with its share."""
