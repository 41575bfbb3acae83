"""Judges over stored episodes.

What is here:
    * ``judge_pending``: one judge on all episodes that it has not judged yet, each verdict stored at once.
    * ``load_judges``: the judges of a configuration, loaded before anything is played.

Truth is no judge here: it is stored with its episode. A judge that raises is recorded and can be asked again
by running the same command; the episode counts as unscored until then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from worldgym.episode import Outcome, Verdict
from worldgym.errors import JudgeError, RunError
from worldgym.evaluation.plan import TRUTH
from worldgym.evaluation.records import StoredEpisode
from worldgym.evaluation.runner import Failure, attempt
from worldgym.evaluation.store import RunStore

if TYPE_CHECKING:
    from worldgym.judges.loading import JudgeSpec
    from worldgym.judges.protocol import Clip, Judge

BATCH = 8
"""Clips handed to a judge at once."""


def load_judges(sources: Sequence[JudgeSpec]) -> dict[str, Judge | None]:
    """Judges by identity, in order; ``"truth"`` has none.

    Raises:
        WorldGymError: As ``load_judge``.
    """
    judges: dict[str, Judge | None] = {}
    for source in sources:
        if source == TRUTH:
            judges[TRUTH] = None
            continue
        from worldgym.judges.loading import load_judge

        judge = load_judge(source)
        judges[judge.identity] = judge
    return judges


def judge_pending(
    store: RunStore,
    judge: Judge,
    *,
    unscored_again: bool = False,
    on_verdict: Callable[[int, int], None] = lambda done, total: None,
) -> int:
    """Judge the stored episodes that have no verdict of this judge yet.

    Args:
        store: The run.
        judge: The judge.
        unscored_again: Ask also about those that it left unscored.
        on_verdict: Called with how many are judged, and of how many.

    Returns:
        How many verdicts were added.

    Raises:
        RunError: If the run folder fails. A video that is missing is recorded as a failure instead.
    """
    identity = judge.identity
    known = store.verdicts(identity)
    if unscored_again:
        known = {key: said for key, said in known.items() if said.outcome is not Outcome.UNSCORED}
    pending = [episode for episode in store.episodes() if episode.key not in known]
    added = 0
    for first in range(0, len(pending), BATCH):
        batch = pending[first : first + BATCH]
        clips = {episode.key: _load_clip(episode) for episode in batch}
        readable = [episode for episode in batch if not isinstance(clips[episode.key], Failure)]
        answers = _ask(judge, [clips[episode.key] for episode in readable])  # type: ignore[misc]
        results = {episode.key: answer for episode, answer in zip(readable, answers, strict=True)}
        for episode in batch:
            answer = results.get(episode.key, clips[episode.key])
            if isinstance(answer, Verdict):
                store.add_verdict(episode.key, answer, judge=identity)
                added += 1
            elif isinstance(answer, Failure):
                _record(store, answer, episode, identity)
        on_verdict(first + len(batch), len(pending))
    return added


def _load_clip(episode: StoredEpisode) -> Clip | Failure:
    """The stored video with its question, see ``RunStore`` for why not the frames in memory."""
    from worldgym.judges.protocol import Clip, Rubric

    try:
        frames = episode.load_frames()
    except RunError as error:
        return Failure(f"RunError: {error}", "")
    rubric = Rubric.PARTIAL if episode.criteria else Rubric.SUCCESS
    return Clip(frames, episode.instruction, criteria=episode.criteria, fps=episode.fps, rubric=rubric)


def _ask(judge: Judge, clips: Sequence[Clip]) -> list[Verdict | Failure]:
    """Verdicts; if the judge fails on a batch, one clip at a time."""
    if not clips:
        return []

    def ask() -> list[Verdict]:
        answers = judge.judge(clips)
        if len(answers) != len(clips):
            raise JudgeError(f"judge {judge.identity!r} gave {len(answers)} verdicts for {len(clips)} clips")
        return answers

    answers = attempt(ask)
    if not isinstance(answers, Failure):
        return list(answers)
    if len(clips) == 1:
        return [answers]
    return [answer for clip in clips for answer in _ask(judge, [clip])]


def _record(store: RunStore, failure: Failure, episode: StoredEpisode, judge: str) -> None:
    store.add_failure("judge", failure, policy=episode.key.policy, start=episode.key.start, judge=judge)
