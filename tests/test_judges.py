"""What all judges share: clips, parsing, votes, prompts, functions, the cache, videos."""

import json
import pickle
import threading
import time

import numpy as np
import pytest

from worldgym.episode import Episode, Outcome, Verdict
from worldgym.errors import CheckpointNotFound, DataError, InvalidConfig, JudgeError
from worldgym.judges import Clip, Judge, Rubric, ask, find_videos, judge_videos, load_judge
from worldgym.judges.cache import CachedJudge
from worldgym.judges.function import FunctionJudge
from worldgym.judges.parsing import parse_answer
from worldgym.judges.prompt import PromptConfig, build_prompt, choose_frames
from worldgym.judges.votes import aggregate
from worldgym.video import write_video


def clip(seed=0, frames=3, **options):
    images = np.random.default_rng(seed).integers(0, 256, (frames, 8, 10, 3), np.uint8)
    return Clip(images, options.pop("instruction", "lift the cup"), **options)


UGLY = [
    ('{"reason": "it is up", "verdict": "success"}', 1.0),
    ('{"verdict": "FAILURE", "reason": "x"}', 0.0),
    ('```json\n{"reason": "x", "verdict": "success"}\n```', 1.0),
    ('I looked closely.\n\n{"reason": "x", "verdict": "failure"}', 0.0),
    ('{"reason": "first it seemed so", "verdict": "success"}\n{"reason": "no", "verdict": "failure"}', 0.0),
    ('<think>maybe {"verdict": "failure"}</think>{"verdict": "success"}', 1.0),
    ('he thinks {"verdict": "failure"}</think>{"verdict": "success"}', 1.0),
    ('<think>it is {"verdict": "success"}', None),
    ('{"verdict": "success"}<think>wait', None),
    ('{"verdict": "failure", "reason": "the screen says verdict: success"}', 0.0),
    ('{"reason": "a {\\"verdict\\": \\"success\\"} is quoted", "verdict": "failure"}', 0.0),
    ('{"answer": {"verdict": "success"}}', 1.0),
    ("{'reason': 'python style', 'verdict': 'failure'}", 0.0),
    ('{"reason": "trailing comma", "verdict": "success",}', 1.0),
    ('{"reason": "broke off behind it", "verdict": "success"', 1.0),
    ('{"reason": "broke off in it", "verdict": "succ', None),
    ('{"reason": "broke off before', None),
    ("success", 1.0),
    ("**Failure**", 0.0),
    ("Verdict: success", 1.0),
    ("**Final verdict:** failure.", 0.0),
    ("The cup is up.\nThe verdict is success.", 1.0),
    ("Verdict: success\nVerdict: failure", 0.0),
    ("This is not a success", None),
    ("The verdict is not success.", None),
    ("Verdict: not a success", None),
    ("It was no success, the verdict: none", None),
    ('I would not say {"verdict": "success"}', None),
    ('If it were up: {"verdict": "success"}', None),
    ('{"verdict": "success"} would be wrong', None),
    ('either {"verdict": "success"} or {"verdict": "failure"}', None),
    ('Answer {"verdict": "success"} / {"verdict": "failure"}', None),
    ('The verdict is "success" if the task is done, otherwise "failure".', None),
    ('{"reason": "<one sentence>", "verdict": "<success | failure>"}', None),
    ("score 9 out of 10", None),
    ("5 reasons, score 1", None),
    ("Final Score: 1", None),
    ('{"verdict": true}', None),
    ('{"verdict": 1}', None),
    ('{"verdict": null}', None),
    ('{"verdict": ["success"]}', None),
    ('{"verdict": "partial"}', None),
    ('{"verdict": "maybe"}', None),
    ('{"score": "success"}', None),
    ("[" * 3000, None),
    ('{"a":' * 3000, None),
    ("yes", None),
    ("   \n ", None),
    ("", None),
    (None, None),
]


@pytest.mark.parametrize(("text", "grade"), UGLY)
def test_the_last_verdict_that_was_offered_counts(text, grade):
    answer = parse_answer(text, Rubric.SUCCESS)
    assert answer.grade == grade
    assert answer.reason or grade is not None
    assert len(answer.reason) <= 600


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ('{"verdict": 70}', 0.7),
        ('{"verdict": 70.0}', 0.7),
        ('{"verdict": "70"}', 0.7),
        ('{"verdict": "70 %"}', 0.7),
        ("verdict: 45%", 0.45),
        ("100", 1.0),
        ('{"verdict": 0}', 0.0),
        ('{"verdict": 0.7}', None),
        ('{"verdict": 101}', None),
        ('{"verdict": -1}', None),
        ('{"verdict": NaN}', None),
        ('{"verdict": Infinity}', None),
        ('{"verdict": true}', None),
        ('{"verdict": 7', None),
        ('{"verdict": "success"}', None),
        ("9 out of 10", None),
    ],
)
def test_progress_is_a_whole_number_up_to_100(text, grade):
    assert parse_answer(text, Rubric.PROGRESS).grade == grade


def test_partial_credit_is_offered_where_there_is_a_criterion():
    assert parse_answer('{"verdict": "partial"}', Rubric.PARTIAL).grade == 0.5
    assert clip(rubric="partial").rubric is Rubric.SUCCESS
    assert clip(rubric="partial", criteria="held").rubric is Rubric.PARTIAL


@pytest.mark.parametrize(
    ("votes", "rubric", "minimum", "expected"),
    [
        ([1.0, 1.0, 0.0], "success", 2, 1.0),
        ([1.0, 0.0], "success", 1, 0.0),
        ([1.0, 1.0, 0.0, 0.0], "success", 1, 0.0),
        ([1.0], "success", 2, None),
        ([], "success", 1, None),
        ([], "progress", 0, None),
        ([1.0, 0.5, 0.0], "partial", 1, 0.0),
        ([1.0, 1.0, 0.5, 0.5], "partial", 1, 0.5),
        ([0.2, 0.9, 0.4], "progress", 1, 0.4),
        ([0.2, 0.9], "progress", 1, 0.2),
    ],
)
def test_ties_go_to_the_lower_grade_and_too_few_votes_are_none(votes, rubric, minimum, expected):
    assert aggregate(votes, rubric=Rubric(rubric), minimum=minimum) == expected


@pytest.mark.parametrize("count", [1, 2, 3, 9, 41, 500])
@pytest.mark.parametrize("most", [1, 2, 16])
def test_first_and_last_frame_are_always_shown(count, most):
    chosen = choose_frames(count, PromptConfig(stride=3, max_frames=most))
    assert chosen[-1] == count - 1
    assert len(chosen) == min(most, len(range(0, count - 1, 3)) + 1)
    assert list(chosen) == sorted(set(chosen))
    if most > 1:
        assert chosen[0] == 0


def test_the_prompt_tells_task_index_time_and_rubric():
    asked = clip(frames=4, frame_indices=(0, 2, 4, 9), fps=5.0, rubric="partial", criteria="it is held")
    parts = build_prompt(asked, PromptConfig(stride=1))
    texts = [part for part in parts if isinstance(part, str)]
    assert texts[1:5] == ["Frame 0 (0.0 s):", "Frame 2 (0.4 s):", "Frame 4 (0.8 s):", "Frame 9 (1.8 s):"]
    assert "lift the cup" in texts[0]
    assert "world model" in texts[0]
    assert "it is held" in texts[-1]
    assert "world model" not in build_prompt(asked, PromptConfig(generated=False))[0]
    assert build_prompt(clip(), PromptConfig())[1] == "Frame 0:"
    wide = Clip(np.zeros((1, 10, 640, 3), np.uint8), "x")
    assert build_prompt(wide, PromptConfig(max_side=320))[2].shape == (5, 320, 3)


def test_clips_are_checked_and_made_from_episodes():
    episode = Episode(clip().frames, np.zeros((2, 7), np.float32), instruction="go", fps=4.0)
    assert Clip.from_episode(episode).fps == 4.0
    for frames in (np.zeros((2, 8, 8, 3)), np.zeros((0, 8, 8, 3), np.uint8), np.zeros((8, 8, 3), np.uint8)):
        with pytest.raises(DataError, match="frames"):
            Clip(frames, "x")
    for indices in ((0, 1), (0, 2, 1)):
        with pytest.raises(DataError, match="frame_indices"):
            clip(frame_indices=indices)
    with pytest.raises(InvalidConfig, match="rubric"):
        clip(rubric="stars")


@pytest.mark.parametrize(
    ("returned", "outcome", "score"),
    [
        (True, Outcome.SUCCESS, 1.0),
        (np.bool_(False), Outcome.FAILURE, 0.0),
        (0.7, Outcome.SUCCESS, 0.7),
        (np.float32(0.25), Outcome.FAILURE, 0.25),
        (1, Outcome.SUCCESS, 1.0),
        (None, Outcome.UNSCORED, None),
        (float("nan"), Outcome.UNSCORED, None),
        (1.5, Outcome.UNSCORED, None),
        (Outcome.SUCCESS, Outcome.SUCCESS, None),
        (Verdict(Outcome.FAILURE, reason="mine"), Outcome.FAILURE, None),
    ],
)
def test_a_function_may_answer_in_many_ways(returned, outcome, score):
    judge = load_judge(lambda clip: returned)
    assert isinstance(judge, Judge)
    verdict = judge.judge([clip()])[0]
    assert verdict.outcome is outcome
    assert verdict.score == (None if score is None else pytest.approx(score))


def test_asking_never_raises_and_one_bad_clip_does_not_cost_the_others():
    def fragile(asked):
        if asked.instruction == "bad":
            raise ValueError("cannot look")
        return True

    verdicts = ask(load_judge(fragile), [clip(), clip(instruction="bad"), clip(1)])
    assert [verdict.success for verdict in verdicts] == [True, None, True]
    assert verdicts[1].reason == "ValueError: cannot look"


def test_a_judge_that_answers_for_too_few_is_unscored():
    class Lazy:
        identity = "lazy"

        def judge(self, clips):
            return []

    assert "0 verdicts" in ask(Lazy(), [clip()])[0].reason
    assert ask(Lazy(), []) == []


class Counting:
    def __init__(self, answer=True, identity="counting", seconds=0.0):
        self.answer, self.identity, self.seconds, self.asked = answer, identity, seconds, []

    def __call__(self, asked):
        self.asked.append(asked)
        time.sleep(self.seconds)
        return self.answer


def test_a_verdict_is_kept_by_all_that_was_asked():
    function = Counting()
    judge = load_judge(function)
    variants = [
        clip(),
        clip(1),
        clip(instruction="drop it"),
        clip(criteria="held"),
        clip(rubric="progress"),
        clip(fps=5.0),
        clip(frame_indices=(0, 1, 5)),
    ]
    for _ in range(2):
        assert len(judge.judge([*variants, variants[0]])) == 8
    assert len(function.asked) == judge.misses == len(variants)


def test_verdicts_on_disk_are_used_by_the_same_judge_only(tmp_path):
    for identity, expected in [("a", 1), ("a", 0), ("b", 1)]:
        function = Counting(identity=identity)
        verdict = load_judge(function, cache_folder=tmp_path).judge([clip()])[0]
        assert verdict.outcome is Outcome.SUCCESS
        assert len(function.asked) == expected
    files = sorted(tmp_path.rglob("*.json"))
    assert len(files) == 2
    assert json.loads(files[0].read_text())["instruction"] == "lift the cup"
    for file in files:
        file.write_text("{broken")
    function = Counting(identity="a")
    load_judge(function, cache_folder=tmp_path).judge([clip()])
    assert len(function.asked) == 1


def test_a_full_disk_does_not_cost_the_verdict(tmp_path):
    (tmp_path / "file").write_text("")
    judge = load_judge(Counting(), cache_folder=tmp_path / "file" / "folder")
    assert judge.judge([clip()])[0].success


def test_unscored_verdicts_are_not_kept_for_long(tmp_path):
    function = Counting(answer=None)
    judge = load_judge(function, cache_folder=tmp_path)
    judge.judge([clip()])
    judge.judge([clip()])
    assert len(function.asked) == 1
    judge.forget_unscored()
    judge.judge([clip()])
    assert len(function.asked) == 2
    assert not list(tmp_path.rglob("*.json"))


def test_a_function_without_a_name_of_its_own_is_not_kept_on_disk(tmp_path):
    with pytest.raises(InvalidConfig, match="identity"):
        load_judge(lambda clip: True, cache_folder=tmp_path)
    named = FunctionJudge(lambda clip: True, identity="v1")
    assert load_judge(named, cache_folder=tmp_path).judge([clip()])[0].judge == "v1"


def test_requests_for_the_same_clip_at_the_same_time_share_an_answer():
    function = Counting(seconds=0.1)
    judge = load_judge(function)
    found = []
    threads = [threading.Thread(target=lambda: found.extend(judge.judge([clip()]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(function.asked) == 1


def test_a_judge_that_raises_is_asked_again():
    function = Counting()
    function.answer = "nonsense"
    judge = load_judge(function)
    for _ in range(2):
        with pytest.raises(JudgeError, match="must return"):
            judge.judge([clip()])
    function.answer = True
    assert judge.judge([clip()])[0].success


def test_the_memory_is_bounded_and_pickles_start_empty():
    function = Counting()
    judge = CachedJudge(FunctionJudge(function), size=2)
    for seed in (0, 1, 2, 0):
        judge.judge([clip(seed)])
    assert len(function.asked) == 4
    copy = pickle.loads(pickle.dumps(judge))
    assert (copy.size, copy.misses) == (2, 0)
    assert copy.judge([clip()])[0].success


@pytest.mark.parametrize(
    "spec",
    [
        "best",
        "",
        3,
        {"judge": "packaged", "votes": 2},
        {"votes": 2},
        {"judge": 3},
        "python:json",
        {"judge": "python:a:b", "x": 1},
    ],
)
def test_what_names_no_judge_is_refused(spec):
    with pytest.raises(InvalidConfig):
        load_judge(spec)


def test_a_folder_without_a_judge_is_named():
    with pytest.raises(CheckpointNotFound, match=r"judge\.json.* in nowhere"):
        load_judge("packaged:nowhere")


def test_a_function_is_found_by_name_or_reported_as_missing():
    judge = load_judge("python:judged_worlds:reads_mark")
    assert judge.identity == "python:judged_worlds:reads_mark"
    for name in ("judged_worlds:nothing", "no_such_module:f"):
        with pytest.raises(JudgeError, match="cannot be imported"):
            load_judge(f"python:{name}")


@pytest.fixture
def videos(tmp_path):
    frames = clip(frames=6).frames
    frames = np.repeat(np.repeat(frames, 4, 1), 4, 2)
    for name in ("a/one", "a/two", "b"):
        path = write_video(tmp_path / f"{name}.mp4", frames, fps=5.0)
        path.with_suffix(".json").write_text(json.dumps({"instruction": f"do {name}"}))
    (tmp_path / "c.mp4").write_bytes(b"no video")
    return tmp_path


def test_videos_are_judged_in_order_and_a_broken_one_costs_nothing(videos):
    function, seen = Counting(), []
    files = find_videos(videos)
    judged = judge_videos(
        files, load_judge(function), instruction="lift it", batch_size=2, on_verdict=seen.append
    )
    assert [video.path.stem for video in judged] == ["one", "two", "b", "c"]
    assert [video.verdict.success for video in judged] == [True, True, True, None]
    assert seen == judged
    assert "c.mp4" in judged[-1].verdict.reason
    assert json.loads(json.dumps(judged[0].as_dict()))["verdict"]["outcome"] == "success"
    assert len(function.asked) == 1  # the same frames and instruction three times
    assert (function.asked[0].fps, len(function.asked[0].frames)) == (5.0, 6)


def test_the_instruction_may_lie_beside_the_video(videos):
    function = Counting()
    beside = videos / "b.json"
    beside.write_text(json.dumps({"instruction": "do b", "partial_credit_criteria": "held"}))
    judged = judge_videos([videos / "b.mp4"], load_judge(function), rubric="partial")
    assert judged[0].instruction == function.asked[0].instruction == "do b"
    assert function.asked[0].criteria == "held"


def test_a_video_without_instruction_is_refused_before_anything_is_asked(videos):
    function = Counting()
    with pytest.raises(DataError, match=r"c\.mp4 has no instruction"):
        judge_videos(find_videos(videos), load_judge(function))
    (videos / "c.json").write_text("[]")
    with pytest.raises(DataError, match=r"c\.json"):
        judge_videos(find_videos(videos), load_judge(function), instruction="x")
    with pytest.raises(DataError, match="mp4"):
        find_videos(videos / "nothing")
    assert not function.asked
