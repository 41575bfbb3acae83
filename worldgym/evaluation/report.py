"""``report.html`` and ``summary.json`` of a run.

What is here:
    * ``write_report``: one page that needs no network, with all videos and plots inside.
    * ``write_summary``: the same numbers for machines.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from worldgym.errors import RunError
from worldgym.evaluation import gallery
from worldgym.evaluation.page import (
    breakable,
    details,
    interval,
    interval_bar,
    page,
    paragraph,
    percent,
    preformatted,
    rate_cell,
    section,
    table,
)
from worldgym.evaluation.plots import scatter
from worldgym.evaluation.store import RunStore
from worldgym.evaluation.summary import Summary, summarise
from worldgym.video import atomic_path

REPORT = "report.html"
SUMMARY = "summary.json"
FEW_STARTS = 2


def write_report(
    run: str | Path,
    *,
    judge: str | None = None,
    reference: str | Path | None = None,
    beside: Sequence[str | Path] = (),
    summary: Summary | None = None,
    starts: int = 6,
    failures: int = 12,
) -> Path:
    """Write ``report.html`` into the run folder.

    Args:
        run: The run folder.
        judge: Identity of the judge to rest on; the run's first one by default.
        reference: CSV with the columns ``policy``, ``task`` and ``real`` to compare with.
        beside: Other runs of the same policies (another world) whose videos are shown beside these.
        summary: If it has been computed already; ``judge`` and ``reference`` are then not looked at.
        starts: Starts shown side by side.
        failures: Failed episodes shown.

    Returns:
        Its path.

    Raises:
        RunError: If there is no run, or the report cannot be written.
        DataError: If the reference cannot be read.
        MissingExtra: If a reference is given and matplotlib is not installed.
    """
    summary = summary or summarise(run, judge=judge, reference=reference)
    worlds = _worlds(summary, beside)
    ranked = [policy.policy for policy in summary.policies]
    sections = [
        _header(summary),
        _ranking(summary),
        _tasks(summary),
        _robustness(summary),
        _reference(summary),
        _judges(summary),
    ]
    if summary.played:
        clips = gallery.side_by_side(worlds, ranked, starts=starts)
        wrong = gallery.failures(worlds[0], ranked, most=failures)
        note = "The same start under every policy, first where they differ. A click plays a video."
        sections += [section("Side by side", paragraph(note, kind="soft"), clips), section("Failures", wrong)]
    sections += [_errors(summary), _provenance(summary)]
    return _write(summary.run / REPORT, page(f"WorldGym evaluation: {summary.run.name}", sections))


def write_summary(summary: Summary) -> Path:
    """Write ``summary.json`` into the run folder.

    Raises:
        RunError: If it cannot be written.
    """
    return _write(summary.run / SUMMARY, json.dumps(summary.to_dict(), indent=1, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> Path:
    try:
        with atomic_path(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error}") from error
    return path


def _worlds(summary: Summary, beside: Sequence[str | Path]) -> list[gallery.World]:
    worlds = []
    for run in (summary.run, *beside):
        with RunStore(run, readonly=True) as store:
            info = store.info()
            first = summary.judge if run is summary.run else info.judges[0]
            judges = [first, *(name for name in store.judges() if name != first)]
            worlds.append(
                gallery.World(
                    name=str(info.identity["env"]) if beside else "",
                    episodes={episode.key: episode for episode in store.episodes()},
                    verdicts={name: store.verdicts(name) for name in judges},
                )
            )
    return worlds


def _header(summary: Summary) -> str:
    info = summary.info
    lines = [
        f"{info.identity['env']} · judged by {summary.judge} · {summary.played} of {summary.planned} episodes"
    ]
    starts = {(start.task, start.trial) for start in info.starts}
    tasks = {start.task for start in info.starts}
    lines.append(
        f"{_count(len(info.policies), 'policy', 'policies')}, {_count(len(tasks), 'task')}, "
        f"{_count(len(starts), 'start')}, {_count(len(info.identity['seeds']), 'seed')}, "
        f"horizon {_count(info.identity['episode_frames'], 'frame')}"
    )
    notes = []
    if summary.played < summary.planned:
        notes.append(
            f"{summary.planned - summary.played} planned episodes are missing: run the same command again."
        )
    unscored = sum(policy.unscored for policy in summary.policies)
    if unscored:
        notes.append(
            f"{unscored} episodes have no verdict. They are neither successes nor failures; the bounds say "
            "what they could change."
        )
        reason, count = next(iter(summary.unscored_reasons.items()))
        notes.append(f"The most frequent reason ({count} times): {reason}")
    if len(starts) < FEW_STARTS * len(tasks):
        notes.append("Some tasks have a single start: their rates say little about the task.")
    return (
        f"<header><h1>{escape(summary.run.name)}</h1>"
        + "".join(paragraph(line, kind="soft") for line in lines)
        + "".join(paragraph(note, kind="note") for note in notes)
        + "</header>"
    )


def _ranking(summary: Summary) -> str:
    if summary.statistics is None:
        return section("Ranking", paragraph("No episode has been played yet.", kind="note"))
    compared = summary.statistics.success
    rows = [
        [
            breakable(policy.policy),
            interval_bar(policy.success),
            percent(policy.success.value),
            escape(compared.letters.get(policy.policy, "")),
            interval(policy.success),
            percent(policy.score.value),
            str(policy.episodes),
            f"{percent(policy.bounds.lowest)} to {percent(policy.bounds.highest)}"
            if policy.bounds.unknown
            else "",
        ]
        for policy in summary.policies
    ]
    head = [
        "policy",
        "success",
        "#rate",
        "#group",
        "#95 % interval",
        "?partial credit",
        "?episodes",
        "?bounds",
    ]
    explained = (
        "Each task weighs the same; intervals are clustered by task. Policies that share a letter cannot be "
        f"told apart (paired tests, Holm-corrected, level {compared.alpha:g}). Bounds: what unscored and "
        "missing episodes could make of the rate."
    )
    pairs = [
        [
            breakable(pair.first),
            breakable(pair.second),
            percent(pair.difference.value, sign=True),
            interval(pair.difference, sign=True),
            "–" if pair.adjusted_p_value is None else f"{pair.adjusted_p_value:.3g}",
            escape(pair.test or pair.reason or ""),
        ]
        for pair in compared.pairs
    ]
    heads = ["policy", "against", "#difference", "#95 % interval", "#corrected p", "test"]
    all_pairs = details(_count(len(pairs), "comparison"), table(heads, pairs)) if pairs else ""
    return section("Ranking", table(head, rows, kind="ranking"), paragraph(explained, kind="soft"), all_pairs)


def _tasks(summary: Summary) -> str:
    if summary.statistics is None:
        return ""
    cells = {(cell.policy, cell.task): cell for cell in summary.statistics.cells}
    policies = [policy.policy for policy in summary.policies]
    rows = []
    for task in dict.fromkeys(start.task for start in summary.info.starts):
        row = [breakable(task)]
        for policy in policies:
            cell = cells[policy, task]
            scored = cell.successes + cell.failures
            title = f"{policy}, {task}: {interval(cell.success)}"
            title += f"; {cell.unscored} unscored, {cell.missing} missing"
            row.append(rate_cell(cell.success.value, title=title, note=f"{cell.successes}/{scored}"))
        rows.append(row)
    return section("Success by task", table(["task", *policies], rows, kind="heat"))


def _robustness(summary: Summary) -> str:
    if not summary.robustness:
        return ""
    conditions = list(dict.fromkeys(entry.condition for entry in summary.robustness))
    by_key = {(entry.policy, entry.condition): entry for entry in summary.robustness}
    rows = []
    for policy in dict.fromkeys(entry.policy for entry in summary.robustness):
        row = [breakable(policy)]
        for condition in conditions:
            entry = by_key.get((policy, condition))
            if entry is None:
                row.append("–")
                continue
            change, title = "", interval(entry.success)
            if entry.difference is not None:
                change = percent(entry.difference.value, sign=True)
                title += f"; against clean {interval(entry.difference, sign=True)}"
                if entry.p_value is not None:
                    title += f", corrected p = {entry.p_value:.3g}"
                    change += "*" if entry.p_value <= 0.05 else ""
            row.append(rate_cell(entry.success.value, title=title, note=change))
        rows.append(row)
    note = (
        "Success under each perturbation, and its change against clean on the same starts (* where the "
        "paired test, Holm-corrected per policy, is below 0.05). Episodes are judged by the task's own goal: "
        "under a swapped instruction a low rate means that the policy listens."
    )
    return section(
        "Robustness", table(["policy", *conditions], rows, kind="heat"), paragraph(note, kind="soft")
    )


def _reference(summary: Summary) -> str:
    if summary.comparison is None or summary.statistics is None:
        return ""
    estimates = {(cell.policy, cell.task): cell.success for cell in summary.statistics.cells}
    comparison = summary.comparison
    rows = []
    for name, agreement in comparison.agreements.items():
        value = "–" if agreement.value is None else f"{agreement.value:.3f}"
        parts = [
            "–" if part.low is None or part.high is None else f"{part.low:.2f} to {part.high:.2f}"
            for part in (agreement.over_tasks, agreement.over_policies, agreement.over_both)
        ]
        rows.append([escape(name.replace("_", " ")), value, *parts])
    undefined = [
        f"{name.replace('_', ' ')}: {agreement.reason}"
        for name, agreement in comparison.agreements.items()
        if agreement.reason
    ]
    notes = [*undefined, *comparison.notes]
    head = ["measure", "#value", "#over tasks", "#over policies", "#over both"]
    plot = f'<div class="plot">{scatter(comparison, estimates)}</div>' if comparison.points else ""
    return section(
        "Against the reference", plot, table(head, rows), *(paragraph(note, kind="soft") for note in notes)
    )


def _judges(summary: Summary) -> str:
    if not summary.agreement:
        return ""
    rows = []
    for entry in summary.agreement:
        kappa = "–" if entry.kappa.value is None else f"{entry.kappa.value:.2f}"
        bounds = "–" if entry.kappa.low is None else f"{entry.kappa.low:.2f} to {entry.kappa.high:.2f}"
        rates = ["", ""]
        if entry.quality is not None:
            both = (entry.quality.true_positive_rate, entry.quality.false_positive_rate)
            rates = [f"{percent(rate.value)}<br><small>{interval(rate)}</small>" for rate in both]
        rows.append(
            [breakable(entry.first), breakable(entry.second), kappa, bounds, str(entry.kappa.n), *rates]
        )
    head = [
        "judge",
        "against",
        "#kappa",
        "#95 % interval",
        "#episodes",
        "#true positives",
        "#false positives",
    ]
    return section("Judges", table(head, rows))


def _errors(summary: Summary) -> str:
    if not summary.failures:
        return ""
    parts = []
    for failure in summary.failures:
        what = [
            failure.stage,
            failure.policy or "",
            "/".join(map(str, failure.start or ())),
            failure.judge or "",
        ]
        title = " · ".join(part for part in what if part)
        parts.append(
            details(f"{title}: {failure.error[:200]}", preformatted(failure.traceback or failure.error))
        )
    note = "These raised; nothing else was lost. The same command tries them again."
    return section(_count(len(parts), "error"), paragraph(note, kind="soft"), *parts)


def _count(number: int, one: str, many: str | None = None) -> str:
    """A number of things in words."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _provenance(summary: Summary) -> str:
    info = summary.info
    facts = info.provenance
    rows = [
        ["command", f"<code>{escape(str(facts['command']))}</code>"],
        ["started", escape(str(facts["time"]))],
        ["identity", f"<code>{info.identity_hash}</code>"],
        ["environment", escape(f"{info.identity['env']} {json.dumps(info.identity['env_kwargs'])}")],
        ["checkpoint", escape(json.dumps({**info.identity["env_files"], **info.identity["env_identity"]}))],
        ["seeds", escape(", ".join(map(str, info.identity["seeds"])))],
        ["judges", escape(", ".join(info.judges))],
        ["versions", escape(", ".join(f"{name} {found}" for name, found in facts["packages"].items()))],
        ["machine", escape(f"Python {facts['python']}, {facts['platform']}")],
    ]
    identity = preformatted(json.dumps(info.identity, indent=1, ensure_ascii=False))
    return section(
        "Provenance", table(["what", "value"], rows), details("Everything that can change a result", identity)
    )
