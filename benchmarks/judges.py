"""How good a judge is: any judge against the truth about recorded and imagined episodes.

    worldgym collect held --episodes 200 --seed 1
    worldgym imagine held imagined --episodes 200
    python benchmarks/judges.py twin=held model=imagined --out judges.json
    python benchmarks/judges.py twin=held --judge chat:MODEL@http://127.0.0.1:8000/v1 --every 0 --episodes 40

The judge is asked as ``VLMTermination`` asks: every few frames and at the end, until it says success. An
episode counts as called a success if it ever does, and is one if its task was ever solved. With ``--every 0``
it is asked about the last frame alone, and the truth is that of the last frame. Then successes are asked
about once more with the instruction of another task, which those frames do not solve: a judge that reads the
instruction says failure. Latency is per question and includes waiting for a busy machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from worldgym.data.clips import ClipFolder
from worldgym.episode import Episode, Outcome, Verdict
from worldgym.errors import InvalidConfig, WorldGymError
from worldgym.evaluation.intervals import wilson
from worldgym.judges import Clip, Judge, ask, load_judge
from worldgym.training.judge_calibration import calibration_error
from worldgym.training.judge_truth import task_truths, twin_tasks

AT_ONCE = 32
"""Episodes in memory, and clips per call of the judge."""


@dataclass
class Asked:
    """An episode, and what the judge said of it.

    Attributes:
        task: Key of its task.
        family: What made it.
        success: The truth about the episode.
        truths: The truth at each question; None where only that of the episode is known.
        verdicts: The answers.
        swapped: The answer with the instruction of another task; None if it was not asked.
    """

    task: str
    family: str
    success: bool
    truths: list[bool | None] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    swapped: Verdict | None = None

    @property
    def said(self) -> Outcome:
        """Success if it was ever said; otherwise the last answer."""
        outcomes = [verdict.outcome for verdict in self.verdicts]
        return Outcome.SUCCESS if Outcome.SUCCESS in outcomes else outcomes[-1]


def measure(
    judge: Judge, clips: ClipFolder, *, every: int, episodes: int | None = None, swaps: int = 100
) -> list[Asked]:
    """Ask about the episodes of a folder, evenly spread over it.

    Args:
        judge: Any judge.
        clips: With ``success``; with the facts of ``worldgym collect`` more is known.
        every: Frames between two questions; 0 for the last frame alone.
        episodes: How many; None for all.
        swaps: Successes that are asked about with another instruction.
    """
    count = len(clips) if episodes is None else min(episodes, len(clips))
    numbers = np.linspace(0, len(clips) - 1, count).round().astype(int).tolist()
    found: list[Asked] = []
    for first in range(0, len(numbers), AT_ONCE):
        batch = [clips[number] for number in numbers[first : first + AT_ONCE]]
        batch = [episode for episode in batch if episode.success is not None and episode.instruction]
        asked = [_begin(episode, every) for episode in batch]
        for frame, open_ in _questions(batch, asked, every):
            chosen = [batch[number] for number in open_]
            answers = ask(judge, [_clip(episode, min(frame, len(episode) - 1)) for episode in chosen])
            for number, answer in zip(open_, answers, strict=True):
                asked[number].verdicts.append(answer)
                asked[number].truths.append(_truth(batch[number], min(frame, len(batch[number]) - 1)))
        found += asked
        swaps -= _swap(judge, batch, asked, every, most=swaps)
    if not found:
        raise InvalidConfig(f"no clip in {clips.path} has an instruction and a success")
    return found


def _begin(episode: Episode, every: int) -> Asked:
    last = _truth(episode, len(episode) - 1)
    success = bool(episode.success) if every or last is None else last
    return Asked(episode.task or episode.instruction, episode.family or "", success)


def _questions(
    batch: Sequence[Episode], asked: Sequence[Asked], every: int
) -> Iterator[tuple[int, list[int]]]:
    """Frames, and the episodes that are asked about there: those that go on and are no success yet."""
    longest = max((len(episode) for episode in batch), default=1)
    for frame in range(every, longest - 1 + every, every) if every else [longest - 1]:
        open_ = [
            number
            for number, (episode, so_far) in enumerate(zip(batch, asked, strict=True))
            if not (so_far.verdicts and so_far.said is Outcome.SUCCESS)
            and (not every or frame - every < len(episode) - 1)
        ]
        if open_:
            yield frame, open_


def _clip(episode: Episode, frame: int, instruction: str | None = None) -> Clip:
    return Clip(episode.frames[: frame + 1], instruction or episode.instruction, fps=episode.fps)


def _truth(episode: Episode, frame: int) -> bool | None:
    known = episode.metadata.get("success")
    return None if known is None else bool(known[frame])


def _swap(judge: Judge, batch: Sequence[Episode], asked: Sequence[Asked], every: int, *, most: int) -> int:
    """Ask about rightly called successes with another instruction; how many were."""
    clips, rows = [], []
    tasks = {task.key: task for task in twin_tasks()}
    for number, (episode, so_far) in enumerate(zip(batch, asked, strict=True)):
        right = so_far.success and so_far.said is Outcome.SUCCESS
        if not right or len(rows) >= most or "scene" not in episode.metadata:
            continue
        frame = min(every * len(so_far.verdicts), len(episode) - 1) if every else len(episode) - 1
        there = set(episode.metadata["names"])
        others = [
            key
            for key, task in tasks.items()
            if key != episode.task and {task.target, task.goal or task.target} <= there
        ]
        if others:
            truths = task_truths(episode, others)[:, frame, 0]
            others = [key for key, truth in zip(others, truths, strict=True) if truth == 0]
        if others:
            rng = np.random.default_rng([episode.seed or 0, frame])
            other = tasks[others[int(rng.integers(len(others)))]]
            clips.append(_clip(episode, frame, other.instructions[0]))
            rows.append(number)
    for number, verdict in zip(rows, ask(judge, clips), strict=True):
        asked[number].swapped = verdict
    return len(rows)


# -- numbers ------------------------------------------------------------------------------------------


def summary(found: Sequence[Asked]) -> dict[str, Any]:
    """All figures of a source, as values that json can hold."""
    whole = rates(found)
    parts = {
        name: {value: rates(group) for value, group in _groups(found, key).items()}
        for name, key in (("by_task", lambda one: one.task), ("by_family", lambda one: one.family))
    }
    verdicts = [verdict for one in found for verdict in one.verdicts]
    graded = [
        (verdict.score, truth)
        for one in found
        for verdict, truth in zip(one.verdicts, one.truths, strict=True)
        if verdict.score is not None and truth is not None
    ]
    swapped = [one.swapped for one in found if one.swapped is not None]
    seconds = np.array([verdict.seconds for verdict in verdicts if verdict.seconds is not None])
    return {
        **whole,
        "flipped_by_another_instruction": wilson(
            sum(verdict.outcome is Outcome.FAILURE for verdict in swapped), len(swapped)
        ).to_dict(),
        "calibration_error": calibration_error(*zip(*graded, strict=True)) if graded else None,
        "questions": len(verdicts),
        "unscored_questions": sum(verdict.outcome is Outcome.UNSCORED for verdict in verdicts),
        "seconds_per_question": {
            "median": float(np.median(seconds)) if len(seconds) else None,
            "p95": float(np.quantile(seconds, 0.95)) if len(seconds) else None,
        },
        "tokens": _total([verdict.tokens for verdict in verdicts]),
        "dollars": _total([verdict.cost for verdict in verdicts]),
        **parts,
    }


def rates(found: Sequence[Asked]) -> dict[str, Any]:
    """True and false positive rate with Wilson intervals; what is unscored counts in neither."""
    scored = [one for one in found if one.said is not Outcome.UNSCORED]
    successes = [one.said is Outcome.SUCCESS for one in scored if one.success]
    failures = [one.said is Outcome.SUCCESS for one in scored if not one.success]
    return {
        "episodes": len(found),
        "unscored_episodes": len(found) - len(scored),
        "true_positive_rate": wilson(sum(successes), len(successes)).to_dict(),
        "false_positive_rate": wilson(sum(failures), len(failures)).to_dict(),
    }


def _groups(found: Sequence[Asked], key: Callable[[Asked], str]) -> dict[str, list[Asked]]:
    groups: dict[str, list[Asked]] = {}
    for one in sorted(found, key=key):
        groups.setdefault(key(one), []).append(one)
    return groups


def _total(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# -- tables -------------------------------------------------------------------------------------------


def show(results: dict[str, dict[str, Any]], console: Console) -> None:
    """One table of the sources, and one per source of its tasks and families."""
    table = Table(title="judged against the truth (95 % Wilson intervals)")
    for name in ("source", "episodes", "TPR", "FPR", "swap flips", "ECE", "unscored", "median s", "dollars"):
        table.add_column(name)
    for source, result in results.items():
        error, seconds = result["calibration_error"], result["seconds_per_question"]["median"]
        table.add_row(
            source,
            str(result["episodes"]),
            _shown(result["true_positive_rate"]),
            _shown(result["false_positive_rate"]),
            _shown(result["flipped_by_another_instruction"]),
            "-" if error is None else f"{error:.3f}",
            f"{result['unscored_questions']} of {result['questions']}",
            "-" if seconds is None else f"{seconds:.3f}",
            "-" if result["dollars"] is None else f"{result['dollars']:.2f}",
        )
    console.print(table)
    for source, result in results.items():
        table = Table("part", "episodes", "TPR", "FPR", title=f"{source}, by task and by family")
        for group in ("by_task", "by_family"):
            for name, part in result[group].items():
                found = (part["true_positive_rate"], part["false_positive_rate"])
                table.add_row(name or "-", str(part["episodes"]), *map(_shown, found))
            table.add_section()
        console.print(table)


def _shown(estimate: dict[str, Any]) -> str:
    if estimate["value"] is None:
        return "-"
    low, high = estimate["low"], estimate["high"]
    return f"{estimate['value']:.3f} ({low:.2f} to {high:.2f}, n={estimate['n']})"


def main(
    sources: Annotated[list[str], typer.Argument(help="NAME=FOLDER of clips with their truth.")],
    judge: Annotated[str, typer.Option(help="packaged, chat:MODEL@URL, ...")] = "packaged",
    every: Annotated[int, typer.Option(help="Frames between questions; 0: the last alone.", min=0)] = 5,
    episodes: Annotated[int | None, typer.Option(help="Episodes of each source; all.", min=1)] = None,
    swaps: Annotated[int, typer.Option(help="Successes asked with another instruction.", min=0)] = 100,
    out: Annotated[Path | None, typer.Option(help="Also write the figures as JSON.")] = None,
) -> None:
    """Measure a judge on folders of clips."""
    try:
        folders = dict(source.split("=", 1) for source in sources)
    except ValueError:
        raise typer.BadParameter(f"expected NAME=FOLDER, for example twin=held, got {sources}") from None
    try:
        asked = load_judge(judge)
        results = {
            name: summary(
                measure(asked, ClipFolder(folder), every=every, episodes=episodes, swaps=swaps),
            )
            for name, folder in folders.items()
        }
    except WorldGymError as error:
        raise SystemExit(f"error: {error}") from error
    show(results, Console(width=150))
    if out is not None:
        about = {"judge": asked.identity, "every": every, "sources": folders}
        out.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
