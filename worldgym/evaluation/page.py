"""The look of the report: one page of HTML, with its style and the few lines of script it needs.

What is here:
    * ``page``: sections put into the page.
    * ``section``, ``table``, ``breakable``, ``interval_bar``, ``rate_cell``: the pieces of sections.

Everything is inline; the page names no address outside itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from worldgym.evaluation.estimate import Estimate

_STYLE = """
:root { --ink: #1d2528; --soft: #5f6b70; --line: #d9dfe1; --mark: #0b6e75; --paper: #ffffff;
        --warn: #8a4b00; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 72rem; color: var(--ink); background: var(--paper);
       font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; padding-bottom: .2rem;
     border-bottom: 2px solid var(--line); }
h3 { font-size: 1rem; margin: 1.2rem 0 .4rem; font-weight: 600; }
p { margin: .3rem 0 .7rem; max-width: 48rem; }
.soft, caption, figcaption, small { color: var(--soft); font-size: .85rem; }
.note { color: var(--warn); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.name { overflow-wrap: break-word; }
.heat td { text-align: center; min-width: 3.6rem; border: 1px solid var(--paper); }
.heat td.name { text-align: left; }
.heat th { overflow-wrap: break-word; max-width: 9rem; }
.heat thead th { vertical-align: bottom; }
.bar { position: relative; width: 14rem; height: 1.1rem; margin: .2rem 0; border-left: 1px solid var(--line);
       border-right: 1px solid var(--line);
       background: linear-gradient(90deg, transparent 49.8%, var(--line) 49.8% 50.2%, transparent 50.2%); }
.bar i { position: absolute; top: .42rem; height: .26rem; background: #8fc3c7; border-radius: 2px; }
.bar b { position: absolute; top: .2rem; width: .7rem; height: .7rem; margin-left: -.35rem;
         border-radius: 50%; background: var(--mark); }
.clips { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: .9rem; }
figure { margin: 0; break-inside: avoid; }
video { width: 100%; aspect-ratio: 1; object-fit: contain; background: #111; border-radius: 4px;
        display: block; cursor: pointer; }
figure img { width: 100%; display: block; margin-top: 2px; border-radius: 3px; }
figcaption { margin-top: .2rem; overflow-wrap: anywhere; }
.success, .failure, .unscored { font-weight: 600; }
.success { color: #0b6e4f; } .failure { color: #a4262c; } .unscored { color: #6b5b00; }
button { font: inherit; font-size: .85rem; padding: .15rem .7rem; border: 1px solid var(--line);
         border-radius: 4px; background: #f3f6f6; color: var(--ink); cursor: pointer;
         margin-bottom: .4rem; }
details { margin: .4rem 0; } summary { cursor: pointer; color: var(--mark); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: .78rem; padding: .6rem;
      background: #f3f6f6; }
.plot svg { width: 100%; max-width: 34rem; height: auto; }
@media (max-width: 40rem) {
  body { padding: .8rem; font-size: 15px; }
  .bar { width: 5.5rem; }
  th, td { padding: .3rem .4rem; }
  .clips { grid-template-columns: repeat(2, 1fr); gap: .6rem; }
  .ranking .optional { display: none; }
}
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  video, button { display: none; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  .wide { overflow: visible; }
  .clips { grid-template-columns: repeat(4, 1fr); }
  h2, h3 { break-after: avoid; }
  tr, .start { break-inside: avoid; }
}
"""

_SCRIPT = """
for (const video of document.querySelectorAll("video")) {
  const toggle = () => video.paused ? video.play() : video.pause();
  video.addEventListener("click", toggle);
  video.addEventListener("keydown", (event) => { if (event.key === "Enter") toggle(); });
}
for (const button of document.querySelectorAll("button")) button.addEventListener("click", () => {
  for (const video of button.closest("section, div").querySelectorAll("video")) {
    video.currentTime = 0; video.play();
  }
});
"""


def page(title: str, sections: Sequence[str]) -> str:
    """The whole page."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)}</title><style>{_STYLE}</style><link rel="icon" href="data:,"></head><body>\n'
        + "\n".join(part for part in sections if part)
        + f"\n<script>{_SCRIPT}</script></body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    """A titled part of the page."""
    return f"<section><h2>{escape(title)}</h2>\n" + "\n".join(part for part in parts if part) + "</section>"


def paragraph(text: str, *, kind: str = "") -> str:
    """A paragraph; ``kind`` is ``"soft"`` or ``"note"``."""
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, kind: str = "") -> str:
    """A table that scrolls sideways by itself where the screen is narrow.

    Args:
        head: Texts of the header; one that begins with ``#`` is a column of numbers, ``?`` one that small
            screens leave out.
        rows: HTML of each cell.
        kind: Class of the table.
    """
    classes = [{"#": "number", "?": "number optional"}.get(text[:1], "name") for text in head]
    heads = "".join(
        f'<th class="{kind_}">{breakable(text.lstrip("#?"))}</th>'
        for kind_, text in zip(classes, head, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(_cell(cell, kind_) for kind_, cell in zip(classes, row, strict=True)) + "</tr>\n"
        for row in rows
    )
    content = f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table class="{kind}">{content}</table></div>'


def breakable(text: str) -> str:
    """A name that may go on in the next line after a colon, dot, slash, dash or underscore."""
    return re.sub(r"([:./_-])(?=\w)", r"\1<wbr>", escape(text))


def details(title: str, content: str) -> str:
    """A part that opens on demand."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def preformatted(text: str) -> str:
    """Text as it is."""
    return f"<pre>{escape(text)}</pre>"


def percent(value: float | None, *, sign: bool = False) -> str:
    """A rate in per cent, a dash where there is none."""
    if value is None:
        return "–"
    number = round(100 * value) or 0  # no minus before a zero
    return f"{number:{'+' if sign and number else ''}d}\u202f%"


def interval(estimate: Estimate, *, sign: bool = False) -> str:
    """``low to high``, or why there is no interval."""
    if estimate.low is None or estimate.high is None:
        return escape(estimate.reason or "")
    return f"{percent(estimate.low, sign=sign)} to {percent(estimate.high, sign=sign)}"


def interval_bar(estimate: Estimate) -> str:
    """A rate and its interval on a line from 0 to 1."""
    if estimate.value is None:
        return f"<small>{escape(estimate.reason or '')}</small>"
    line = ""
    if estimate.low is not None and estimate.high is not None:
        low, high = 100 * max(0.0, estimate.low), 100 * min(1.0, estimate.high)
        line = f'<i style="left:{low:.1f}%;width:{high - low:.1f}%"></i>'
    label = f"{percent(estimate.value)}, {interval(estimate)}"
    point = f'<b style="left:{100 * estimate.value:.1f}%"></b>'
    return f'<div class="bar" role="img" aria-label="{label}">{line}{point}</div>'


def rate_cell(value: float | None, *, title: str, note: str = "") -> str:
    """A cell of a heat map: its colour goes from white to teal as the rate goes from 0 to 1."""
    if value is None:
        return f'<td title="{escape(title)}" class="soft">–</td>'
    share = min(1.0, max(0.0, value))
    low, high = (244, 247, 247), (11, 110, 117)
    colour = ",".join(str(round(a + (b - a) * share)) for a, b in zip(low, high, strict=True))
    ink = "#fff" if share > 0.55 else "var(--ink)"
    small = f"<br><small style='color:inherit'>{escape(note)}</small>" if note else ""
    style = f"background:rgb({colour});color:{ink}"
    return f'<td title="{escape(title)}" style="{style}">{percent(value)}{small}</td>'


def _cell(content: str, kind: str) -> str:
    return content if content.startswith("<td") else f'<td class="{kind}">{content}</td>'
