"""The tables that ``fidelity.py`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

Report = Mapping[str, Any]
FLOORS = {"20": (2.5, 5.0), "40": (3.5, 7.0)}
"""Frame: most that gripper and things may be off, medians in % of the width."""


def print_report(report: Report) -> None:
    """Print everything that ``measure`` and ``speed`` have found."""
    console = Console(width=132)
    console.print(_heading(report))
    for table in _tables(report):
        console.print(table)
    for line in [*_floors(report), *_speed(report)]:
        console.print(line)


def markdown(report: Report) -> str:
    """The same for a README."""
    text = StringIO()
    console = Console(file=text, width=220)
    for table in _tables(report):
        table.box, title = box.MARKDOWN, table.title
        table.title = None
        text.write(f"{title}\n\n")
        console.print(table)
        text.write("\n")
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    lines = [line for line in lines if not set(line) <= set("| ") or not line]
    points = [f"- {line}" for line in [*_floors(report), *_speed(report)]]
    return "\n".join([_heading(report), "", *lines, *points, ""])


def _heading(report: Report) -> str:
    return (
        f"{report['checkpoint']}: {report['episodes']} held-out episodes of the twin, others' actions on "
        f"{report['shuffled_episodes']} of them"
    )


def _tables(report: Report) -> list[Table]:
    makers = (_pictures, _positions, _keeping, _outcomes, _families)
    return [make(report) for make in makers]


def _speed(report: Report) -> list[str]:
    if "speed" not in report:
        return []
    found = report["speed"]
    return [
        f"speed: {found['rows_1_hz']:.1f} Hz for one row ({found['rows_1_hz_on_an_idle_machine']:.1f} by "
        f"processor time), 8 rows x 40 frames in {found['rows_8_seconds']:.0f} s "
        f"({found['rows_8_processor_seconds']:.0f} s of processor time); {found['threads']} thread(s), "
        f"load average {found['load_average']:.1f}"
    ]


def _pictures(report: Report) -> Table:
    horizons = list(report["pictures"])
    columns = [f"{score} {h}" for score in ("PSNR", "SSIM", "perc.") for h in horizons]
    table = Table(
        "frame", *columns, title="pictures: PSNR in dB, SSIM, distance in the probe's maps (0: equal)"
    )
    for name in report["pictures"][horizons[0]]:
        cells = [
            f"{report['pictures'][h][name][score]:.{digits}f}"
            for score, digits in (("psnr", 1), ("ssim", 3), ("perceptual", 3))
            for h in horizons
        ]
        table.add_row(name, *cells)
    return table


def _positions(report: Report) -> Table:
    kinds = {"gripper": "gripper", "plain": "things in sight", "moved": "moved ones", "hidden": "half hidden"}
    table = Table("world", "of", title="positions, median error in pixels (in % of the width)")
    horizons = list(next(iter(report["positions"].values())))
    for horizon in horizons:
        table.add_column(f"frame {horizon}", justify="right")
    for world, errors in report["positions"].items():
        for kind, name in kinds.items():
            table.add_row(world, name, *(_median(errors[h][kind]) for h in horizons))
        table.add_section()
    return table


def _median(found: Report) -> str:
    if not found["n"]:
        return "-"
    if found["median_px"] is None:
        return "mostly not found"
    return f"{found['median_px']:.2f} ({found['median_percent']:.1f} %)"


def _keeping(report: Report) -> Table:
    table = Table(
        "world", "vanished", "multiplied", "neither", title="rollouts in which a thing vanishes or multiplies"
    )
    for world, rates in report["keeping"].items():
        table.add_row(world, *(f"{rates[key]:.1%}" for key in ("vanished", "multiplied", "neither")))
    return table


def _outcomes(report: Report) -> Table:
    table = Table("read from", "families", title="outcome against the twin's, the same actions in both")
    headings = ("successes shown", "failures shown as success", "balanced accuracy", "unscored")
    for heading in headings:
        table.add_column(heading, justify="right")
    for world, groups in report["outcome"].items():
        for group, found in groups.items():
            table.add_row(
                world,
                group,
                f"{found['true_positives']} of {found['successes']}",
                f"{found['false_positives']} of {found['failures']}{_range(found['false_positive_rate'])}",
                _value(found["balanced_accuracy"]),
                str(found["unscored"]),
            )
    return table


def _range(estimate: Report) -> str:
    if estimate["low"] is None:
        return ""
    return f" ({estimate['low']:.1%} to {estimate['high']:.1%})"


def _value(estimate: Report) -> str:
    if estimate["value"] is None:
        return f"none: {estimate['reason']}"
    return f"{estimate['value']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"


def _families(report: Report) -> Table:
    table = Table(
        "family", "n", "PSNR 20", title="by family; positions are medians in pixels at frames 20 and 40"
    )
    headings = (
        "gripper",
        "things",
        "moved ones",
        "vanished",
        "multiplied",
        "successes: twin, shown",
        "agree",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for family, found in report["families"].items():
        errors = [
            " / ".join(_short(found["positions"][h][kind]) for h in ("20", "40"))
            for kind in ("gripper", "plain", "moved")
        ]
        table.add_row(
            family,
            str(found["episodes"]),
            f"{found['psnr_20']:.1f}",
            *errors,
            f"{found['vanished']:.0%}",
            f"{found['multiplied']:.0%}",
            f"{found['twin_successes']}, {found['shown_successes']}",
            f"{found['agree']} of {found['episodes']}",
        )
    return table


def _short(found: Report) -> str:
    if not found["n"]:
        return "-"
    return "lost" if found["median_px"] is None else f"{found['median_px']:.1f}"


def _floors(report: Report) -> list[str]:
    """What was asked for, and whether it is reached."""
    found = report["positions"]["model"]
    lines = []
    for horizon, (gripper, things) in FLOORS.items():
        for kind, most in (("gripper", gripper), ("plain", things)):
            value = found[horizon][kind]["median_percent"]
            met = value is not None and value < most
            lines.append(_line(met, f"frame {horizon}: {kind} {_percent(value)}, asked for: under {most} %"))
    own, other = (
        report["positions"][world]["20"]["gripper"]["median_px"]
        for world in ("model", "another episode's actions")
    )
    if own and other:
        lines.append(
            _line(other >= 5 * own, f"others' actions: the gripper is {other / own:.1f} times as far off (5)")
        )
    still = [
        scores["model"]["psnr"] > scores["first frame repeated"]["psnr"]
        for scores in report["pictures"].values()
    ]
    lines.append(_line(all(still), "PSNR above the first frame repeated at every horizon"))
    neither = report["keeping"]["model"]["neither"]
    lines.append(
        _line(neither >= 0.95, f"nothing vanishes or multiplies in {neither:.1%} of rollouts (95 %)")
    )
    outcome = report["outcome"]["model"]
    balanced = outcome["all"]["balanced_accuracy"]["value"]
    lines.append(
        _line((balanced or 0) >= 0.85, f"balanced accuracy of the outcome {balanced or 0:.3f} (0.85)")
    )
    false = outcome["failing families"]["false_positive_rate"]["value"]
    lines.append(
        _line(
            false is not None and false <= 0.1,
            f"false successes on failing families {_percent(_100(false))} (10 %)",
        )
    )
    return lines


def _line(met: bool, text: str) -> str:
    return f"{'reached' if met else 'MISSED '}  {text}"


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.1f} %"


def _100(value: float | None) -> float | None:
    return None if value is None else 100 * value
