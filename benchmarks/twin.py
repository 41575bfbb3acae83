"""The twin: how fast it is, and how often each family of behaviour solves its tasks.

    python benchmarks/twin.py speed                  steps per second of the vector environment at 128x128
    python benchmarks/twin.py success                all families on the core tasks, 20 scenes each
    python benchmarks/twin.py success --all-tasks --scenes 100 --family expert --family random

A step is one action in one row, its picture included. Success is the twin's own rule at any of 40 frames.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Annotated

import gymnasium
import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from worldgym.envs.behaviours import FAMILIES, actions_of
from worldgym.envs.physics import Physics
from worldgym.envs.twin_scenes import make_scene
from worldgym.envs.twin_tasks import CORE_TASKS, TASKS
from worldgym.errors import InvalidConfig

EPISODE_FRAMES = 40
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def solves(family: str, task: str, seed: int) -> bool:
    """Whether a family solves the task of one seeded scene."""
    physics = Physics(make_scene(TASKS[task], seed))
    script = actions_of(family, TASKS[task], physics, np.random.default_rng([seed, 7]))
    for _ in range(EPISODE_FRAMES):
        physics.act(np.clip(next(script), -1, 1).astype(np.float32))
        if TASKS[task].truth(physics).success:
            return True
    return False


def _count(cell: tuple[str, str, int]) -> int:
    family, task, scenes = cell
    return sum(solves(family, task, seed) for seed in range(scenes))


@app.command()
def speed(
    rows: Annotated[int, typer.Option(help="Rows of the vector environment.", min=1)] = 8,
    size: Annotated[int, typer.Option(help="Height and width of the frames.", min=16)] = 128,
    steps: Annotated[int, typer.Option(help="Timed steps of each row.", min=1)] = 100,
) -> None:
    """Steps per second of all rows together."""
    envs = gymnasium.make_vec(
        "worldgym:WorldGym-BridgeTwin-v0", rows, frame_size=(size, size), episode_frames=None
    )
    envs.reset(seed=0)
    envs.action_space.seed(0)
    actions = [envs.action_space.sample() * 0.3 for _ in range(steps)]
    envs.step(actions[0])
    wall, processor = time.perf_counter(), time.process_time()
    for action in actions:
        envs.step(action)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    envs.close()
    done = rows * steps
    Console().print(
        f"{rows} rows at {size}x{size}: {done / wall:.0f} steps/s; {1000 * processor / done:.1f} ms of one "
        f"processor per step, which is {os.cpu_count()} x {done / processor:.0f} steps/s on idle processors; "
        f"load average {os.getloadavg()[0]:.1f}"
    )


@app.command()
def success(
    family: Annotated[list[str] | None, typer.Option(help="A family; repeat it. All.")] = None,
    scenes: Annotated[int, typer.Option(help="Seeded scenes per task and family.", min=1)] = 20,
    all_tasks: Annotated[bool, typer.Option("--all-tasks", help="Not the core tasks only.")] = False,
    workers: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
) -> None:
    """Success rates of families, over all tasks and on the worst and best of them."""
    families, tasks = family or list(FAMILIES), list(TASKS if all_tasks else CORE_TASKS)
    if unknown := sorted(set(families) - set(FAMILIES)):
        raise InvalidConfig(f"there is no family {unknown}: there are {sorted(FAMILIES)}")
    cells = [(name, task, scenes) for name in families for task in tasks]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        counts = list(track(pool.map(_count, cells), "playing", total=len(cells), transient=True))
    table = Table("family", "successes", "rate", "lowest task", "highest task")
    for index, name in enumerate(families):
        found = dict(zip(tasks, counts[index * len(tasks) :], strict=False))
        low, high = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
        total = sum(found.values())
        table.add_row(
            name,
            f"{total} of {scenes * len(tasks)}",
            f"{total / scenes / len(tasks):.3f}",
            f"{found[low]} of {scenes}: {low}",
            f"{found[high]} of {scenes}: {high}",
        )
    Console().print(table)


if __name__ == "__main__":
    app()
