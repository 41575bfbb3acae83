"""The first stage of the recipe: episodes of the twin, as mp4 + npz with their truth.

What is here:
    * ``collect``: writes any number of episodes, over several processes, and goes on where it was stopped.
    * ``episode_plan``: what episode i of a collection is: a function of (seed, i) alone.
    * ``parse_mixture``: a mixture of families from texts such as ``"play=2"``.

Beside the keys of ``worldgym.data.clips`` each npz holds in ``metadata`` where gripper and objects are in
every frame (``worldgym.envs.twin_episode.Facts``). ``collection.json`` says what is collected, so that no
folder is continued with something else. Videos are lossless by default: at 64x64 the usual lossy encoding
smears objects of a few pixels.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from worldgym.data.clips import ClipWriter
from worldgym.errors import DataError, InvalidConfig
from worldgym.video import atomic_path

_BATCH = 8
"""Episodes per call of a worker."""


@dataclass(frozen=True)
class CollectConfig:
    """What is collected.

    Attributes:
        seed: With it and the index of an episode everything about the episode is decided.
        size: Height and width of the frames.
        frames: New frames per episode; it has one more.
        tasks: Keys of the tasks; empty for the core tasks.
        mixture: Weight of each family of behaviour; empty for the usual one.
        lossless: Keep every bit of the frames.
    """

    seed: int = 0
    size: tuple[int, int] = (64, 64)
    frames: int = 40
    tasks: tuple[str, ...] = ()
    mixture: dict[str, float] = field(default_factory=dict)
    lossless: bool = True

    def __post_init__(self) -> None:
        from worldgym.envs.behaviours import FAMILIES
        from worldgym.envs.twin_tasks import get_task

        for key in self.tasks:
            get_task(key)
        for name, weight in self.mixture.items():
            if name not in FAMILIES or not 0 < weight < math.inf:
                raise InvalidConfig(
                    f"a mixture gives positive weights to {sorted(FAMILIES)}, got {name!r}: {weight!r}"
                )
        if self.seed < 0 or self.frames < 1 or min(self.size) < 16:
            raise InvalidConfig(
                "collecting needs a seed from 0, at least 1 frame and at least 16x16 pixels, got "
                f"seed={self.seed}, frames={self.frames}, size={self.size}"
            )


def collect(
    out: str | os.PathLike[str],
    episodes: int,
    *,
    config: CollectConfig | None = None,
    workers: int = 2,
    on_episode: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the first ``episodes`` episodes of a collection; those that are there already are kept.

    An episode takes about 0.2 seconds of one processor and, at 64x64 and lossless, 30 kB. A script that calls
    this with several workers needs the usual ``if __name__ == "__main__"`` guard: they are spawned.

    Args:
        out: The folder. It may hold a part of the same collection.
        episodes: How many it shall hold.
        config: What is collected.
        workers: Processes.
        on_episode: Called now and then with the number of episodes done and of all.

    Returns:
        The folder.

    Raises:
        InvalidConfig: If an argument cannot work, or the folder holds a collection of something else.
        DataError: If an episode cannot be written, or a worker has died.
        MissingExtra: If MuJoCo is not installed.
    """
    config = config or CollectConfig()
    if episodes < 1 or workers < 1:
        raise InvalidConfig(f"collect needs at least 1 episode and 1 worker, got {episodes} and {workers}")
    out = Path(out)
    _claim(out, config)
    there = ClipWriter(out)
    missing = [index for index in range(episodes) if episode_name(index) not in there]
    done = episodes - len(missing)
    batches = [missing[start : start + _BATCH] for start in range(0, len(missing), _BATCH)]
    report = on_episode or (lambda _done, _all: None)
    report(done, episodes)
    if workers == 1:
        for batch in batches:
            done += _write(str(out), batch, config)
            report(done, episodes)
        return out
    # spawned, not forked: a forked OpenGL context is broken
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_the_parent)
    try:
        for future in as_completed([pool.submit(_write, str(out), batch, config) for batch in batches]):
            done += future.result()
            report(done, episodes)
    except BrokenProcessPool as error:
        raise DataError(
            f"a worker has died, maybe for want of memory: call again to go on in {out}"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
    return out


def _end_with_the_parent() -> None:
    """End this worker when the process that started it is killed: the pool would wait for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def episode_plan(config: CollectConfig, index: int) -> tuple[str, str, int]:
    """Task, family and seed of an episode."""
    from worldgym.envs.behaviours import FAMILIES
    from worldgym.envs.twin_tasks import CORE_TASKS

    rng = np.random.default_rng([config.seed, index])
    tasks = config.tasks or tuple(CORE_TASKS)
    mixture = config.mixture or {name: family.weight for name, family in FAMILIES.items()}
    weights = np.array(list(mixture.values()))
    family = list(mixture)[int(rng.choice(len(mixture), p=weights / weights.sum()))]
    return tasks[int(rng.integers(len(tasks)))], family, int(rng.integers(2**62))


def parse_mixture(entries: Sequence[str]) -> dict[str, float]:
    """A mixture from ``NAME`` (weight 1) or ``NAME=WEIGHT`` texts; no text gives the usual mixture, ``{}``.

    Raises:
        InvalidConfig: If a weight is no number, or a family is named twice. The rest is checked by
            ``CollectConfig``.
    """
    mixture: dict[str, float] = {}
    for entry in entries:
        name, equals, weight = entry.partition("=")
        if name in mixture:
            raise InvalidConfig(f"the family {name!r} is given twice: give each family once")
        try:
            mixture[name] = float(weight) if equals else 1.0
        except ValueError:
            raise InvalidConfig(f"expected NAME or NAME=WEIGHT, for example play=2, got {entry!r}") from None
    return mixture


def episode_name(index: int) -> str:
    """Name of an episode's files."""
    return f"{index:09d}"


def _claim(out: Path, config: CollectConfig) -> None:
    """Note in the folder what is collected, or refuse one in which something else is."""
    wanted = json.loads(json.dumps(asdict(config)))
    file = out / "collection.json"
    if not file.exists():
        with atomic_path(file) as unfinished:
            unfinished.write_text(json.dumps(wanted, indent=1) + "\n")
        return
    try:
        there = dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{file} cannot be read as json: {error}") from error
    other = {key: there.get(key) for key in wanted if there.get(key) != wanted[key]}
    if other:
        raise InvalidConfig(f"{out} was collected with {other}: go on with that, or choose another folder")


def _write(out: str, indices: Sequence[int], config: CollectConfig) -> int:
    """Record and write some episodes; how many."""
    from worldgym.envs.camera import Renderer
    from worldgym.envs.twin_episode import record
    from worldgym.envs.twin_scenes import make_scene
    from worldgym.envs.twin_tasks import get_task

    writer = ClipWriter(out, lossless=config.lossless)
    renderer = Renderer(*config.size)
    try:
        for index in indices:
            key, family, seed = episode_plan(config, index)
            task = get_task(key)
            scene = make_scene(task, seed, purpose="training")
            episode = record(
                task,
                scene,
                family,
                seed=seed,
                renderer=renderer,
                frames=config.frames,
                trial=episode_name(index),
            )
            try:
                writer.append(episode, name=episode_name(index))
            except OSError as error:
                raise DataError(f"episode {index} cannot be written to {out}: {error}") from error
    finally:
        renderer.close()
    return len(indices)
