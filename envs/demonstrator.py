"""An expert without memory: what it does is a function of the present state alone.

What is here:
    * ``demonstrate``: the action that an expert would take now, whatever has happened before.

The scripts of ``expert`` go through their parts in order and cannot be asked in the middle of somebody
else's episode. This one can, so a learner's own episodes can be labelled with what would have been right
(Ross et al. 2011, "A reduction of imitation learning and structured prediction to no-regret online
learning"). It also never needs to know anything that the picture does not show, except how far a thing has
been pushed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from worldgym.envs.arm import WORKSPACE
from worldgym.envs.hand import CLOSED, OPEN, Action, up
from worldgym.envs.physics import Physics
from worldgym.envs.twin_rules import CENTRE, DIRECTIONS, Lift, MoveSide, Push, PutOn, Rule, TakeOut

Vector = npt.NDArray[np.float64]
SPEED = 0.022
"""Longest way per action, metres."""
NARROW = 0.2
"""How far the gripper is opened to reach into something."""
_CLEAR = 0.022
"""Room kept between what is carried and what it passes over, metres."""
_SAFE = 0.11
"""Height to which the hand goes when it is done, metres."""
_PUSH_HEIGHT = 0.018


def demonstrate(rule: Rule, physics: Physics) -> Action:
    """The action that brings a task nearer to its solution from wherever it is.

    Args:
        rule: The task's rule.
        physics: The scene, which is only asked.

    Returns:
        float32 (7,) in ``worldgym.actions.ENV_SPEC``; it also turns a tilted hand upright.
    """
    return _DEMONSTRATIONS[type(rule)](physics, rule)


def _put(physics: Physics, rule: PutOn) -> Action:
    kind = physics.kinds[rule.goal]
    floor = kind.floor or kind.height
    place = physics.position(rule.goal) + up(floor)
    offset = physics.position(rule.target) - place
    there = bool(np.linalg.norm(offset[:2]) < (kind.inside or 0.02) and -0.004 < offset[2] < 0.02)
    return _transport(physics, rule.target, place, kind.height, there)


def _move(physics: Physics, rule: MoveSide) -> Action:
    side = DIRECTIONS[rule.side]
    now = physics.position(rule.target)
    along = float((now[:2] - CENTRE) @ side)
    place = np.append(_reachable(now[:2] + (rule.beyond + 0.018 - along) * side), 0.0)
    heights = [kind.height for name, kind in physics.kinds.items() if name != rule.target]
    there = along >= rule.beyond and now[2] < 0.01
    return _transport(physics, rule.target, place, max(heights, default=0.0), there)


def _take(physics: Physics, rule: TakeOut) -> Action:
    kind = physics.kinds[rule.goal]
    goal, now = physics.position(rule.goal), physics.position(rule.target)
    away = now[:2] - goal[:2]
    distance = float(np.linalg.norm(away))
    # across the table, towards its middle; what is on its way already goes on
    way = away / distance if distance > 0.02 else np.array([0.0, -1.0 if goal[1] > 0 else 1.0])
    place = np.append(_reachable(goal[:2] + (kind.radius + 0.065) * way), 0.0)
    there = distance > kind.radius + 0.01 and now[2] < 0.012
    inside = distance < kind.radius
    return _transport(physics, rule.target, place, kind.height, there, wide=NARROW if inside else OPEN)


def _lift(physics: Physics, rule: Lift) -> Action:
    if not _holds(physics, rule.target):
        return _grasp(physics, rule.target)
    way = np.zeros(3)
    way[2] = physics.start[rule.target][2] + rule.height + 0.03 - physics.position(rule.target)[2]
    return _action(physics, way, CLOSED)


def _push(physics: Physics, rule: Push) -> Action:
    kind, side = physics.kinds[rule.target], DIRECTIONS[rule.side]
    across = np.array([-side[1], side[0]])
    hand, thing = physics.command.position, physics.position(rule.target)
    ahead, beside = float((hand - thing)[:2] @ side), float((hand - thing)[:2] @ across)
    if abs(beside) < 0.009 and ahead < -0.5 * kind.radius and hand[2] < 0.035:
        way = np.append(0.02 * side - beside * across, _PUSH_HEIGHT - hand[2])
        return _action(physics, way, CLOSED, yaw=0.0, speed=0.02)
    behind = thing[:2] - (kind.radius + 0.022) * side
    high = _PUSH_HEIGHT if ahead < -kind.radius - 0.014 else max(kind.height + 0.02, 0.06)
    return _action(physics, _funnel(hand, behind, _PUSH_HEIGHT, high), CLOSED, yaw=0.0)


def _transport(
    physics: Physics, name: str, place: Vector, clearance: float, there: bool, *, wide: float = OPEN
) -> Action:
    """Bring a thing to a place (3,) over what is ``clearance`` high; leave it alone once it is there."""
    hand = physics.command.position
    if not _holds(physics, name):
        if there:
            return _action(physics, np.array([0.0, 0.0, _SAFE - hand[2]]), OPEN)
        return _grasp(physics, name, wide)
    hold = hand - physics.position(name)
    high = max(clearance + _CLEAR, 0.05) + hold[2]
    low = place[2] + hold[2] + 0.004
    goal = place[:2] + hold[:2]
    near = np.linalg.norm(goal - hand[:2]) < 0.008 and abs(hand[2] - low) < 0.006
    if near or (there and np.linalg.norm(goal - hand[:2]) < 0.012):
        return _action(physics, np.zeros(3), OPEN)
    return _action(physics, _funnel(hand, goal, low, high), CLOSED)


def _grasp(physics: Physics, name: str, wide: float = OPEN) -> Action:
    """Go above a thing, down, and close the fingers across it."""
    kind, hand = physics.kinds[name], physics.command.position
    place = physics.position(name) + up(kind.grasp_height)
    yaw = _across(physics, name)
    turn = abs(yaw - physics.command.angles[2])
    if np.linalg.norm(place[:2] - hand[:2]) < 0.008 and abs(place[2] - hand[2]) < 0.008 and turn < 0.2:
        return _action(physics, np.zeros(3), CLOSED, yaw=yaw)
    high = place[2] + max(kind.height, _surroundings(physics, name)) + 0.012
    return _action(physics, _funnel(hand, place[:2], place[2], high, wait=turn), wide, yaw=yaw)


def _funnel(hand: Vector, goal: Vector, low: float, high: float, wait: float = 0.0) -> Vector:
    """The way (3,) to a place (2,): at the height ``high`` while far from it, ``low`` at it.

    A hand that is too low rises first; one that has ``wait`` radians to turn stays high.
    """
    way = goal - hand[:2]
    far = np.clip((np.linalg.norm(way) - 0.006) / 0.022, 0, 1)
    far = max(far, np.clip((wait - 0.15) / 0.3, 0, 1))
    height = min(low + far * (high - low), WORKSPACE[1, 2])
    rise = height - hand[2]
    return np.append(way * np.clip(1 - (rise - 0.01) / 0.02, 0, 1), rise)


def _action(
    physics: Physics, way: Vector, gripper: float, *, yaw: float | None = None, speed: float = SPEED
) -> Action:
    """A way (3,) in metres and a yaw to turn to as an action."""
    command = physics.command
    action = np.zeros(7, np.float32)
    action[:3] = way * min(1.0, speed / max(float(np.linalg.norm(way)), 1e-9)) / 0.05
    action[3:5] = np.clip(-command.angles[:2] / 0.25, -0.7, 0.7)
    if yaw is not None:
        action[5] = np.clip((yaw - command.angles[2]) / 0.25, -0.7, 0.7)
    action[6] = gripper
    return action


def _holds(physics: Physics, name: str) -> bool:
    """Whether the closed hand has a thing, also at a moment when one finger does not quite touch it."""
    if physics.command.gripper > 0:
        return False
    between = physics.position(name) + up(physics.kinds[name].grasp_height) - physics.hand
    return physics.held(name) or (
        physics.touched(name) and float(np.linalg.norm(between)) < 0.025 and physics.opening > 0.2
    )


def _across(physics: Physics, name: str) -> float:
    """The hand's yaw at which its fingers close across a thing."""
    kind = physics.kinds[name]
    if not kind.long:
        return 0.0
    period = np.pi / 2 if kind.name == "cube" else np.pi
    return float((physics.yaw(name) + period / 2) % period - period / 2)


def _surroundings(physics: Physics, name: str) -> float:
    """Top of what stands close around a thing, above its bottom, metres."""
    place = physics.position(name)
    return max(
        (
            float(physics.position(other)[2] + kind.height - place[2])
            for other, kind in physics.kinds.items()
            if other != name and np.linalg.norm((physics.position(other) - place)[:2]) < kind.radius + 0.05
        ),
        default=0.0,
    )


def _reachable(spot: Vector) -> Vector:
    return np.clip(spot, WORKSPACE[0, :2] + 0.012, WORKSPACE[1, :2] - 0.012)


_DEMONSTRATIONS: dict[type, Callable[..., Action]] = {
    PutOn: _put,
    Lift: _lift,
    MoveSide: _move,
    Push: _push,
    TakeOut: _take,
}
