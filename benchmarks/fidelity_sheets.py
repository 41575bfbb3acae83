"""Contact sheets: the twin above the model, to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from worldgym.episode import Episode
from worldgym.video import resize, side_by_side, tile, write_video

Frames = npt.NDArray[np.uint8]
SHOWN = (0, 1, 5, 10, 15, 20, 25, 30, 35, 40)
"""Frames that a sheet shows."""
_SIDE, _LABEL, _GAP = 96, 150, 6  # pixels


def write_sheets(out: Path, episodes: Sequence[Episode], twin: Frames, model: Frames) -> list[Path]:
    """Write a sheet for every task and every family, and a video for every family.

    A sheet holds one episode of each family (task): a row of the twin's frames above a row of the model's.

    Args:
        out: Folder.
        episodes: B of them.
        twin: Their videos, uint8 (B, T, H, W, 3).
        model: The model's videos of the same start and actions.

    Returns:
        What was written.
    """
    written = []
    for kind, other in (("task", "family"), ("family", "task")):
        for name in sorted({str(getattr(e, kind)) for e in episodes}):
            rows: dict[str, int] = {}
            for number, episode in enumerate(episodes):
                if getattr(episode, kind) == name:
                    rows.setdefault(str(getattr(episode, other)), number)
            labels = {f"{key}: {_outcome(episodes[n])}": n for key, n in sorted(rows.items())}
            written.append(_sheet(out / f"{kind}_{name}.png", labels, twin, model))
            if kind == "family":
                pairs = [side_by_side(twin[n], model[n]) for n in rows.values()]
                written.append(write_video(out / f"family_{name}.mp4", tile(pairs, columns=3), fps=5))
    return written


def _outcome(episode: Episode) -> str:
    return "success" if episode.success else "failure"


def _sheet(path: Path, rows: dict[str, int], twin: Frames, model: Frames) -> Path:
    shown = [frame for frame in SHOWN if frame < twin.shape[1]]
    height = len(rows) * (2 * _SIDE + _GAP)
    sheet = Image.new("RGB", (_LABEL + len(shown) * _SIDE, height), "white")
    draw = ImageDraw.Draw(sheet)
    for row, (label, number) in enumerate(rows.items()):
        top = row * (2 * _SIDE + _GAP)
        draw.text((4, top + 4), label.replace(": ", "\n"), "black")
        for below, (world, videos) in enumerate((("twin", twin), ("model", model))):
            draw.text((4, top + below * _SIDE + _SIDE // 2), world, "black")
            for column, frame in enumerate(resize(videos[number, shown], (_SIDE, _SIDE))):
                sheet.paste(Image.fromarray(frame), (_LABEL + column * _SIDE, top + below * _SIDE))
    sheet.save(path)
    return path
