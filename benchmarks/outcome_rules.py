"""Whether a task of the twin is solved, from what the probe reads: the twin's rules, in terms of the table.

What is here:
    * ``unproject``: pixels at a known height to places on the table.
    * ``Seen``: what the probe has read of an episode, in metres. ``seen_of`` makes it.
    * ``solved``: whether a task is solved in each frame. ``outcome``: whether it was at any time.

The rules are those of ``worldgym.envs.twin_rules`` with contacts replaced by what can be seen: a thing is let
go of when it does not look held, and at rest when it has not moved since the frame before. Tolerances cover
the probe's own error; how well this reads the twin's own videos is a part of every result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from probe import Reading
from probe_frames import SIGHTS, SIZE

from worldgym.envs.objects import KINDS, ObjectKind
from worldgym.envs.scene import DEFAULT_CAMERA, place_camera
from worldgym.envs.twin_rules import CENTRE, DIRECTIONS, LIFTED, Lift, MoveSide, Push, PutOn, TakeOut
from worldgym.envs.twin_tasks import TwinTask

Vector = npt.NDArray[np.float64]
SLACK = 0.008
"""Metres by which heights may be misread."""
REST = 0.012
"""Metres between two frames below which a thing rests."""
LASTING = 2
"""Frames in a row in which a task must look solved; one at the very end of an episode."""


@dataclass(frozen=True)
class Seen:
    """An episode of T frames as the probe reads it; a thing that it does not see is where it was last seen.

    Attributes:
        place: Bottom of each thing (T, 3) by name, metres.
        held: Whether each thing looks held (T,) by name.
    """

    place: Mapping[str, Vector]
    held: Mapping[str, npt.NDArray[np.bool_]]


def unproject(scene: Mapping[str, Any], pixels: npt.ArrayLike, height: npt.ArrayLike) -> Vector:
    """Where a pixel looks at a height: the inverse of ``worldgym.envs.scene.project``.

    Args:
        scene: Only its camera counts.
        pixels: x and y (..., 2) in a frame of 64x64 pixels.
        height: Metres above the table (...).

    Returns:
        World coordinates (..., 3), metres.
    """
    camera = {**DEFAULT_CAMERA, **scene.get("camera", {})}
    position, axes = place_camera(camera)
    right, upward = axes[:3], axes[3:]
    half = np.tan(np.deg2rad(camera["fovy"]) / 2)
    x, y = np.moveaxis(np.asarray(pixels, np.float64) / SIZE, -1, 0)
    across, above = (2 * x - 1) * half, (1 - 2 * y) * half
    ray = across[..., None] * right + above[..., None] * upward - np.cross(right, upward)
    length = (np.asarray(height, np.float64) - position[2]) / ray[..., 2]
    return np.asarray(position + length[..., None] * ray)


def seen_of(reading: Reading, scene: Mapping[str, Any]) -> Seen:
    """What a reading of an episode's T frames says about the things of its scene.

    A thing that is not seen in the first frame is taken to have stood where the scene puts it.
    """
    place, held = {}, {}
    for thing in scene["objects"]:
        if thing["name"] not in SIGHTS:
            continue
        sight, kind = SIGHTS.index(thing["name"]), KINDS[thing["kind"]]
        bottom = np.maximum(reading.height[:, sight], 0.0)
        places = unproject(scene, reading.place[:, sight], bottom + kind.height / 2)
        places[:, 2] = bottom
        looks_held = reading.held[:, sight] > 0.5
        x, y, *z = thing["position"]
        last, grip = np.array([x, y, z[0] if z else 0.0]), False
        for frame in range(len(places)):
            if np.isnan(places[frame]).any():
                places[frame], looks_held[frame] = last, grip
            last, grip = places[frame], bool(looks_held[frame])
        place[thing["name"]], held[thing["name"]] = places, looks_held
    return Seen(place, held)


def solved(task: TwinTask, seen: Seen, kinds: Mapping[str, ObjectKind]) -> npt.NDArray[np.bool_]:
    """Whether a task looks solved in each of T frames (T,).

    Args:
        task: The task.
        seen: What was read.
        kinds: Kind of each thing by name.

    Raises:
        NotImplementedError: If the task's rule is of a kind that is not known here.
    """
    rule = task.rule
    place, held = seen.place[rule.target], seen.held[rule.target]
    start = place[0]
    rise = place[:, 2] - start[2]
    moved = np.linalg.norm(np.diff(place, axis=0, prepend=place[:1]), axis=1)
    free = ~held & (moved < REST)
    if isinstance(rule, Lift):
        return held & (rise > rule.height - SLACK)
    if isinstance(rule, PutOn):
        offset = place - seen.place[rule.goal]
        goal = kinds[rule.goal]
        floor = goal.floor or goal.height
        over = np.linalg.norm(offset[:, :2], axis=1) < (goal.inside or 0.02)
        low = (offset[:, 2] > floor - 0.004 - SLACK) & (offset[:, 2] < floor + 0.02)
        return over & low & free
    if isinstance(rule, MoveSide):
        along = (place[:, :2] - CENTRE) @ DIRECTIONS[rule.side]
        return (along >= rule.beyond) & (rise < LIFTED / 2 + SLACK) & free
    if isinstance(rule, Push):
        along = (place - start)[:, :2] @ DIRECTIONS[rule.side]
        return (along >= rule.distance) & (rise < LIFTED / 2 + SLACK) & ~held
    if isinstance(rule, TakeOut):
        away = np.linalg.norm((place - seen.place[rule.goal])[:, :2], axis=1)
        return (away > kinds[rule.goal].radius + 0.01) & (place[:, 2] < 0.012 + SLACK) & free
    raise NotImplementedError(f"no rule for {type(rule).__name__}: add one to {__name__}")


def outcome(frames: npt.NDArray[np.bool_]) -> bool:
    """Whether a task was solved at any time (T,): for ``LASTING`` frames in a row, or in the last one."""
    lasting = np.convolve(frames, np.ones(LASTING), "valid") == LASTING
    return bool(lasting.any() or frames[-1])


def read_outcome(task: TwinTask, reading: Reading, scene: Mapping[str, Any]) -> bool:
    """Whether the probe's reading of an episode's frames shows its task solved at any time."""
    kinds = {thing["name"]: KINDS[thing["kind"]] for thing in scene["objects"]}
    return outcome(solved(task, seen_of(reading, scene), kinds))
