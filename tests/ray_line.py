"""The line world where Ray's actors find it, as ``ray_line:Line-v0``; policies that kill their process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from line_world import Pusher, register

register()
RAY_LINE_ID = "ray_line:Line-v0"


class Deadly(Pusher):
    """Kills the process that it is in: at its eighth answer, once; or whenever it is told so."""

    def __init__(self, name: str, speed: float, *, marker: Path | None = None, told: str = "") -> None:
        super().__init__(name, speed)
        self.marker = marker
        self.word = told
        self.answers = 0

    def act(self, rows, frames):
        self.answers += len(rows)
        now = self.marker is not None and self.answers >= 8 and not self.marker.exists()
        if now and self.marker is not None:
            self.marker.touch()
        if now or (self.word and any(self.word in self.told[row] for row in rows)):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().act(rows, frames)
