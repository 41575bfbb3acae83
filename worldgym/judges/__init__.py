"""Judges: whether a robot solved its task, read from the frames.

What is here:
    * ``load_judge``: a judge from a short text such as ``"packaged"`` or ``"chat:MODEL@URL"``, or a function.
    * ``Clip``, ``Rubric``, ``Judge``: what is asked, how it is graded, and what a judge must do.
    * ``ask``: ask a judge without ever raising; what it cannot answer is unscored.
    * ``judge_videos``: verdicts on video files.

Each kind of judge has a file of its own (``packaged``, ``chat``, ``local``, ``function``) and loads its
packages when used.
"""

from __future__ import annotations

from worldgym.judges.asking import ask
from worldgym.judges.loading import load_judge
from worldgym.judges.protocol import Clip, Judge, Rubric
from worldgym.judges.videos import JudgedVideo, find_videos, judge_videos

__all__ = ["Clip", "Judge", "JudgedVideo", "Rubric", "ask", "find_videos", "judge_videos", "load_judge"]
