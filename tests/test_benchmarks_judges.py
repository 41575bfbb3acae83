"""The benchmark of judges, on judges whose quality is known."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("mujoco")

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import judges as benchmark

from worldgym.data.clips import ClipFolder
from worldgym.judges import load_judge
from worldgym.training.collect import CollectConfig, collect


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    tasks = ("put_carrot_on_plate", "stack_green_cube_on_yellow_cube")
    config = CollectConfig(seed=2, size=(32, 32), tasks=tasks, mixture={"expert": 0.6, "random": 0.4})
    return ClipFolder(collect(tmp_path_factory.mktemp("judged") / "clips", 6, config=config, workers=1))


class Knowing:
    """Knows the episodes by their first frame, and answers what ``answer`` makes of the truth."""

    def __init__(self, clips, answer=lambda truth, frame: truth):
        self.episodes = {episode.frames[0].tobytes(): episode for episode in clips}
        self.answer = answer
        self.asked = []

    def __call__(self, clip):
        episode, frame = self.episodes[clip.frames[0].tobytes()], len(clip.frames) - 1
        self.asked.append((episode.trial, frame, clip.instruction))
        mine = clip.instruction == episode.instruction
        return self.answer(mine and episode.metadata["success"][frame], frame)


def measured(clips, judge, **options):
    return benchmark.summary(benchmark.measure(load_judge(judge), clips, **{"every": 5, **options}))


def value(result, name):
    return result[name]["value"], result[name]["n"]


def test_a_judge_that_knows_the_truth_is_perfect(clips):
    judge = Knowing(clips)
    result = measured(clips, judge)
    successes = sum(episode.success for episode in clips)
    assert 1 <= successes <= 3
    assert value(result, "true_positive_rate") == (1.0, successes)
    assert value(result, "false_positive_rate") == (0.0, 6 - successes)
    assert value(result, "flipped_by_another_instruction") == (1.0, successes)
    assert result["calibration_error"] == 0.0
    assert (result["unscored_questions"], result["dollars"]) == (0, None)
    assert sum(part["episodes"] for part in result["by_task"].values()) == 6
    assert set(result["by_family"]) == {"expert", "random"}
    for episode in clips:
        frames = [
            frame
            for trial, frame, text in judge.asked
            if (trial, text) == (episode.trial, episode.instruction)
        ]
        first = next((f for f in range(5, 41, 5) if episode.metadata["success"][f]), 40)
        assert frames == list(range(5, first + 1, 5)), "it is asked every five frames until it says success"


def test_a_judge_that_ignores_the_instruction_is_found_out(clips):
    result = measured(clips, Knowing(clips, answer=lambda truth, frame: frame >= 20))
    assert value(result, "true_positive_rate")[0] == 1.0
    assert value(result, "false_positive_rate")[0] == 1.0
    assert value(result, "flipped_by_another_instruction")[0] < 1.0
    assert result["calibration_error"] > 0.1


def test_what_is_unscored_is_counted_and_belongs_to_neither_rate(clips):
    result = measured(clips, Knowing(clips, answer=lambda truth, frame: truth if frame < 40 else None))
    failures = sum(not episode.success for episode in clips)
    assert result["unscored_episodes"] == result["unscored_questions"] == failures
    assert value(result, "false_positive_rate") == (None, 0)


def test_the_last_frame_alone_is_asked_about_once(clips):
    judge = Knowing(clips)
    result = measured(clips, judge, every=0, swaps=0, episodes=3)
    assert [frame for _, frame, _ in judge.asked] == [40] * 3
    assert (result["questions"], result["flipped_by_another_instruction"]["n"]) == (3, 0)


def test_tables_are_printed_and_figures_written(clips, tmp_path, capsys):
    out = tmp_path / "judges.json"
    benchmark.main([f"twin={clips.path}"], judge="packaged", every=20, episodes=2, swaps=1, out=out)
    written = json.loads(out.read_text())
    assert written["judge"].startswith("packaged:")
    assert written["results"]["twin"]["questions"] in range(2, 5)
    assert "judged against the truth" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="nowhere"):
        benchmark.main(["twin=nowhere"], judge="packaged", every=5, episodes=None, swaps=0, out=None)
