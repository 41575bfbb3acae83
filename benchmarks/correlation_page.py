"""The results of ``correlation.py`` as files and for a terminal.

What is here:
    * ``write_results``: ``correlation.json``, ``correlation.md``, ``scatter.svg``, ``reference.csv``, and the
      report of the learned world's run with the twin's rates and videos beside its own.
    * ``print_results``: the same text, rendered.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from worldgym.evaluation.estimate import Estimate
from worldgym.evaluation.intervals import wilson
from worldgym.evaluation.plots import scatter
from worldgym.evaluation.reference import Comparison
from worldgym.evaluation.report import write_report
from worldgym.video import atomic_path

NAMES = {
    "pearson": "Pearson, all cells",
    "within_policy_pearson": "Pearson within policies",
    "policy_mean_pearson": "Pearson of policy means",
    "spearman": "Spearman",
    "kendall": "Kendall tau-b",
    "mmrv": "MMRV",
    "bias": "bias",
    "mean_absolute_gap": "mean gap of policy means",
}
GOALS = {"pearson": (0.90, True), "within_policy_pearson": (0.60, True), "mmrv": (0.05, False)}
"""What is aimed at, and whether more is better."""
NOISE_GOAL = 0.10
SIDES = {
    "whole": "learned world + judge / twin's truth",
    "judge": "twin + judge / twin's truth",
    "world": "learned world + judge / twin + judge",
    "behaviour": "its actions in the twin / twin's truth",
}


def write_results(found: Mapping[str, Any], out: Path, *, runs: Sequence[Path], judge: str) -> Path:
    """Write all files.

    Args:
        found: What ``measure`` returned.
        out: Folder of the results.
        runs: Run folders of the ladder in the twin and in the learned world, whose report is written anew.
        judge: Identity of the judge that it rests on.

    Returns:
        Path of ``correlation.md``.

    Raises:
        RunError: If a run cannot be read.
        MissingExtra: If matplotlib is not installed.
    """
    out.mkdir(parents=True, exist_ok=True)
    whole: Comparison = found["comparisons"]["whole"]
    _write(out / "correlation.json", json.dumps(_plain(found), indent=1) + "\n")
    _write(out / "scatter.svg", _drawing(whole, found["per_cell"]))
    reference = out / "reference.csv"
    with atomic_path(reference) as target, target.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["policy", "task", "real", "model"])
        rows.writerows([p.policy, p.task, p.real, p.model] for p in whole.points)
    write_report(runs[1], judge=judge, reference=reference, beside=[runs[0]])
    _write(out / "correlation.md", page(found))
    return out / "correlation.md"


def print_results(found: Mapping[str, Any]) -> None:
    """Show the tables in the terminal."""
    Console().print(Markdown(page(found)))


def page(found: Mapping[str, Any]) -> str:
    """All tables as Markdown."""
    comparisons: Mapping[str, Comparison] = found["comparisons"]
    whole = comparisons["whole"]
    tasks = len({point.task for point in whole.points})
    parts = [
        f"## Ladder: {len(whole.policies)} policies, {tasks} tasks, {found['per_cell']:g} episodes of each\n",
        _agreement(comparisons),
        "Intervals: 95 %, bootstrap over tasks; for the first column also over policies and over both:\n",
        _table(
            ["quantity", "over policies", "over both"],
            [
                [NAMES[name], _interval(value.over_policies), _interval(value.over_both)]
                for name, value in whole.agreements.items()
                if name in NAMES
            ],
        ),
        *(f"- {note}\n" for note in whole.notes),
        "## Policies\n",
        _table(
            ["policy", "twin", "learned world", "gap", "Pearson over its tasks"],
            [
                [p.policy, _rate(p.real), _rate(p.model), f"{100 * p.gap:+.0f}", _number(p.pearson.value)]
                for p in sorted(whole.policies, key=lambda policy: -policy.real)
            ],
        ),
        _judge(found["judge"]),
    ]
    parts += [_noise(found["noise"])] if "noise" in found else []
    parts += [_checkpoints(found["checkpoints"])] if "checkpoints" in found else []
    parts += [_axes(found["axes"])] if "axes" in found else []
    return "\n".join(parts)


def _agreement(comparisons: Mapping[str, Comparison]) -> str:
    rows = []
    for name, title in NAMES.items():
        goal = ""
        if name in GOALS:
            bound, more = GOALS[name]
            value = getattr(comparisons["whole"], name).over_tasks.value
            met = value is not None and (value >= bound if more else value <= bound)
            goal = f"{'≥' if more else '≤'} {bound:.2f}: {'yes' if met else 'no'}"
        estimates = [getattr(comparison, name).over_tasks for comparison in comparisons.values()]
        rows.append([title, goal, *(f"{_number(e.value)} ({_interval(e)})" for e in estimates)])
    return _table(["", "goal", *(SIDES[name] for name in comparisons)], rows)


def _judge(qualities: Mapping[str, Mapping[str, Any]]) -> str:
    where = {"twin": "twin's videos", "model": "imagined videos, truth: their actions in the twin"}
    rows = [
        [
            where[name],
            _share(quality["true_positive_rate"]),
            _share(quality["false_positive_rate"]),
            _number(quality["kappa"]["value"]),
            str(quality["successes"] + quality["failures"]),
        ]
        for name, quality in qualities.items()
    ]
    head = ["videos", "successes seen as such", "failures taken for successes", "kappa", "episodes"]
    return "## Judge\n\n" + _table(head, rows)


def _noise(noise: Mapping[str, Any]) -> str:
    bias = noise["bias"]
    met = bias["value"] is not None and bias["value"] <= NOISE_GOAL
    rows = [
        [level["condition"], _rate(level["real"]), _rate(level["model"]), _points(level["bias"])]
        for level in noise["levels"]
    ]
    text = f"Over all noisy ones {_points(bias)}; goal: at most {100 * NOISE_GOAL:+.0f}: "
    table = _table(["actions", "twin", "learned world", "gap"], rows)
    return f"## Noise on a good policy\n\n{table}\n{text}{'yes' if met else 'no'}.\n"


def _checkpoints(found: Mapping[str, Any]) -> str:
    rows = [[c["policy"], _rate(c["real"]), _rate(c["model"])] for c in found["checkpoints"]]
    text = (
        f"Kendall tau {_number(found['kendall'])}; the learned world would choose {found['chosen']}, "
        f"which costs {100 * found['regret']:.0f} points."
    )
    table = _table(["checkpoint", "twin", "learned world"], rows)
    return f"## Training checkpoints\n\n{table}\n{text}\n"


def _axes(found: Mapping[str, Any]) -> str:
    rows = [
        [row["policy"], row["axis"], _rate(row["real"]), _rate(row["model"]), str(row["episodes"])]
        for row in found["rates"]
    ]
    text = f"{found['left_out']} episodes were left out: the judge does not know their words.\n"
    table = _table(["policy", "axis", "twin", "learned world", "episodes"], rows)
    return f"## Unusual scenes and words\n\n{table}\n" + (text if found["left_out"] else "")


def _drawing(comparison: Comparison, per_cell: float) -> str:
    estimates: dict[tuple[str, str], Estimate] = {
        (p.policy, p.task): wilson(round(p.model * per_cell), round(per_cell)) for p in comparison.points
    }
    # the report's drawing has no name space, which a file of its own needs
    return scatter(comparison, estimates).replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


def _plain(value: Any) -> Any:
    if isinstance(value, Comparison):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as target:
        target.write_text(text, encoding="utf-8")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rate(rate: float) -> str:
    return f"{100 * rate:.0f} %"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _interval(estimate: Estimate) -> str:
    return "–" if estimate.low is None else f"{estimate.low:.2f} to {estimate.high:.2f}"


def _share(estimate: Mapping[str, Any]) -> str:
    if estimate["value"] is None:
        return "–"
    return f"{_rate(estimate['value'])} ({100 * estimate['low']:.0f} to {100 * estimate['high']:.0f})"


def _points(estimate: Mapping[str, Any]) -> str:
    if estimate["value"] is None:
        return "–"
    ends = (
        "" if estimate["low"] is None else f" ({100 * estimate['low']:+.0f} to {100 * estimate['high']:+.0f})"
    )
    return f"{100 * estimate['value']:+.0f}{ends}"
