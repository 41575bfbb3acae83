"""``worldgym eval`` and the verbs around it, on a world that needs no model."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from line_world import BARE_ID, LINE_ID, line_suite, register
from PIL import Image

from worldgym import EvaluationConfig, cli, evaluate
from worldgym.evaluation.database import DATABASE
from worldgym.evaluation.store import RunStore
from worldgym.evaluation.summary import summarise
from worldgym.video import read_video, write_video

register()
POLICIES = """
import numpy as np

calls = 0
break_at = None


def push(speed):
    def act(frame, instruction):
        global calls
        calls += 1
        if calls == break_at:
            raise KeyboardInterrupt
        return np.array([speed, 0, 0, 0, 0, 0, 1], np.float32)

    return act


fast, slow = push(0.9), push(0.2)


def refuses_two(frame, instruction):
    if "2" in instruction:
        raise ValueError("cannot go 2")
    return fast(frame, instruction)


def bright(clip):
    return bool(clip.frames[-1, 8:].mean() >= 100)
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command line; return its exit status, output and errors."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["worldgym", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, " ".join(captured.err.split())

    return call


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with start scenes and a module of policies and a judge."""
    folder = tmp_path_factory.mktemp("home")
    for trial in line_suite():
        place = folder / "trials" / trial.task
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(trial.load_frame()).save(place / f"{trial.name}.png")
        (place / f"{trial.name}.json").write_text(json.dumps({"instruction": trial.instruction}))
    (folder / "line_policies.py").write_text(POLICIES)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("line_policies", None)


@pytest.fixture
def line(home):
    """Arguments of ``eval`` that make it quick; policies are added with ``--policy``."""
    trials = ("--trials", home / "trials", "--frames", 6, "--judge", "truth")
    return "eval", "--env", LINE_ID, *trials


TWO = ("--policy", "fast=line_policies:fast", "--policy", "slow=line_policies:slow")


@pytest.fixture(scope="module")
def finished(home, tmp_path_factory):
    """A run that is complete, made without the command line: two policies, twelve episodes."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    evaluate(
        EvaluationConfig(
            policies=TWO[1::2],
            out=folder,
            env=LINE_ID,
            trials=home / "trials",
            episode_frames=6,
            judges=["truth"],
            report=False,
        )
    )
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def results(folder):
    with RunStore(folder, readonly=True) as store:
        return [(e.key, e.actions.tobytes(), e.success, e.progress, e.frames) for e in store.episodes()]


def test_an_evaluation_ends_with_a_ranking_and_a_report(run, line, tmp_path):
    status, out, errors = run(*line, *TWO, "--perturb", "delay:4", "--out", tmp_path / "first")
    assert status == 0
    assert out.index("fast") < out.index("slow")
    for words in ("24 of 24 episodes", "95 % interval", "Robustness", "delay:4", "report.html"):
        assert words in out
    assert "24/24" in errors
    assert "/s" in errors or "s/episode" in errors
    assert "<h2>Robustness" in (tmp_path / "first" / "report.html").read_text()
    assert json.loads((tmp_path / "first" / "summary.json").read_text())["played"] == 24


def test_flags_choose_tasks_trials_and_seeds(run, line, tmp_path):
    choice = ("--tasks", "task_1", "--trials-per-task", 2, "--seeds", 3, "--num-envs", 5, "--no-report")
    assert run(*line, "--policy", "line_policies:fast", *choice, "--out", tmp_path)[0] == 0
    keys = [key for key, *_ in results(tmp_path)]
    assert {(key.policy, key.task) for key in keys} == {("line_policies:fast", "task_1")}
    assert sorted((key.trial, key.seed) for key in keys) == [
        (trial, seed) for trial in ("goal_2", "goal_3") for seed in range(3)
    ]
    assert not (tmp_path / "report.html").exists()


def test_tasks_may_be_joined_by_commas_and_options_reach_the_environment(run, line, tmp_path):
    choice = (
        "--tasks",
        "task_0, task_1",
        "--trials-per-task",
        1,
        "--env-option",
        "truth=false",
        "--no-report",
    )
    status, out, _ = run(*line, "--policy", "line_policies:fast", *choice, "--out", tmp_path)
    assert status == 0
    assert summarise(tmp_path).policies[0].unscored == 2  # such a world does not know its truth
    assert "2 unscored, 2 of them: the world does not know" in out


def test_an_environment_of_ones_own_is_started_by_seed(run, home, tmp_path):
    own = ("eval", "--env", BARE_ID, "--trials", "none", "--seeds", 3, "--frames", 6)
    assert run(*own, "--policy", "line_policies:fast", "--out", tmp_path)[0] == 0
    assert summarise(tmp_path).played == 3


def test_an_interrupted_run_says_how_to_go_on_and_equals_the_whole_one(
    run, line, finished, tmp_path, monkeypatch
):
    import line_policies

    folder = tmp_path / "run"
    monkeypatch.setattr(line_policies, "break_at", line_policies.calls + 40)
    status, _, errors = run(*line, *TWO, "--num-envs", 2, "--out", folder)
    assert status == 130
    kept = len(results(folder))
    assert 0 < kept < 12
    assert f"{kept} of 12 episodes are stored" in errors
    assert f"worldgym {' '.join(map(str, line))}" in errors
    assert "Traceback" not in errors
    monkeypatch.setattr(line_policies, "break_at", None)
    assert run(*line, *TWO, "--out", folder)[0] == 0
    assert results(folder) == results(finished)


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_stops_the_whole_process_group_cleanly(line, finished, tmp_path):
    folder, here = tmp_path / "run", Path(__file__).parent
    (tmp_path / "slowly.py").write_text(
        "import time, line_world; from line_policies import fast, slow; line_world.register()\n"
        "def wait(policy): return lambda *a: (time.sleep(0.05), policy(*a))[1]\n"
        "fast, slow = wait(fast), wait(slow)\n"
    )
    paths = [str(tmp_path), str(here), str(Path(line[line.index("--trials") + 1]).parent)]
    policies = ("--policy", "fast=slowly:fast", "--policy", "slow=slowly:slow")
    arguments = ["eval", "--env", f"slowly:{LINE_ID}", *map(str, line[3:]), *policies, "--out", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-c", "from worldgym.cli import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not list(folder.glob("videos/*/*/*/*.mp4")) and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "run the same command" in errors
    assert "Traceback" not in errors
    assert not list(folder.rglob("*.part*"))
    stored = {key: row for key, *row in results(folder)}
    whole = {key: row for key, *row in results(finished)}
    assert stored.items() <= whole.items()


def test_another_configuration_is_refused_with_what_differs(run, line, copy):
    before = results(copy)
    status, _, errors = run(*line, *TWO, "--seeds", 2, "--out", copy)
    assert status == 2
    assert "RunError" in errors
    assert "seeds (there [0], here [0, 1])" in errors
    assert results(copy) == before


def test_what_failed_gives_status_one_and_is_tried_again_by_the_same_command(
    run, line, home, tmp_path, monkeypatch
):
    import line_policies

    command = (*line, "--policy", "fast=line_policies:fast", "--policy", "p=line_policies:refuses_two")
    status, out, errors = run(*command, "--out", tmp_path)
    assert status == 1
    assert "3 failures are recorded; the same command tries them again" in out
    assert "cannot go 2" in out
    assert "3 failed" in errors
    monkeypatch.setattr(line_policies, "refuses_two", line_policies.fast)
    before = line_policies.calls
    status, out, _ = run(*command, "--out", tmp_path)
    assert (status, summarise(tmp_path).failures) == (0, ())
    assert 0 < line_policies.calls - before <= 3 * 6  # and nothing else is played again


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--perturb", "sandstorm"), "InvalidConfig: a perturbation is name"),
        (("--tasks", "sing"), "TrialError"),
        (("--trials", "missing"), "TrialError: expected a folder of trials"),
        (("--env", "Nowhere-v0"), "InvalidConfig: the environment 'Nowhere-v0' cannot be made"),
        (("--judge", "oracle"), "InvalidConfig: a judge must be"),
        (("--frames", 5, "--chunk", 2), "InvalidConfig: episode_frames must be a multiple"),
        (("--env-option", "truth"), "InvalidConfig: --env-option must be KEY=VALUE"),
        (("--checkpoint", "x"), "does not take these keyword arguments"),
        (("--policy", "fast=line_policies:slow"), "InvalidConfig: policies must differ"),
        (("--policy", "clever"), "InvalidConfig: unknown policy 'clever'"),
        (("--policy", "packaged:clever"), "InvalidConfig: there is no packaged policy 'clever'"),
        (("--policy", "clever.py:act"), "names the file clever.py, which is not there"),
        (("--out", "/proc/nothing/here"), "RunError"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_an_option_that_cannot_work_is_one_line_before_anything_is_played(
    run, line, arguments, words, tmp_path
):
    import line_policies

    before = line_policies.calls
    status, out, errors = run(*line, *TWO, "--out", tmp_path / "run", *arguments)
    assert (status, out) == (2, "")
    assert words in errors
    assert "Traceback" not in errors
    assert line_policies.calls == before


def test_a_damaged_database_is_said_by_every_verb_and_the_videos_stay(run, line, copy):
    (copy / DATABASE).write_bytes(b"not a database" * 100)
    verbs = [(*line, *TWO, "--out", copy), ("judge", copy, "--judge", "python:line_policies:bright")]
    for command in (*verbs, ("report", copy), ("export", copy, copy / "x.csv")):
        status, _, errors = run(*command)
        assert status == 2
        assert "RunError" in errors
        assert "damaged" in errors
    assert len(list(copy.rglob("*.mp4"))) == 12


def test_a_missing_video_costs_one_verdict_and_the_run_brings_it_back(run, line, copy):
    (missing, *_) = sorted(copy.rglob("*.mp4"))
    missing.unlink()
    status, out, _ = run("judge", copy, "--judge", "python:line_policies:bright")
    assert status == 1
    assert "1 failures are recorded" in out
    assert run("report", copy)[0] == 0
    assert "no video" in (copy / "report.html").read_text()
    assert run("export", copy, copy / "episodes.csv")[0] == 0
    assert run(*line, *TWO, "--out", copy)[0] == 1  # the other judge's gap is still recorded
    assert len(read_video(missing)) > 1
    assert run("judge", copy, "--judge", "python:line_policies:bright")[0] == 0


_COMMAND = "import line_world as l; l.register(); from worldgym.cli import main; main()"
_ON_A_SMALL_DISK = """
set -e
mount -t tmpfs -o size=150k tmpfs "$1"
status=0
"$2" -c "$3" "${@:4}" || status=$?
cp -r "$1/run" "$1.kept" && exit $status
"""
_ON_A_READ_ONLY_DISK = """
set -e
mount -t tmpfs tmpfs "$1" && cp -r "$1.before" "$1/run" && mount -o remount,ro "$1"
"$2" -c "$3" export "$1/run" "$1.csv"
"$2" -c "$3" "${@:4}"
"""


def on_a_disk_of_its_own(script, disk, line):
    """Run ``eval`` into ``disk/run``, which only the process itself sees; skip where that cannot be."""
    disk.mkdir()
    apart = ["unshare", "--mount", "--map-root-user"]
    probe = [*apart, "mount", "-t", "tmpfs", "tmpfs", str(disk)]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here")
    home = str(Path(line[line.index("--trials") + 1]).parent)
    command = [*map(str, line), *TWO, "--out", str(disk / "run")]
    return subprocess.run(
        [*apart, "bash", "-c", script, "-", str(disk), sys.executable, _COMMAND, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), home])},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_what_is_finished_is_kept(line, finished, tmp_path):
    disk = tmp_path / "disk"
    done = on_a_disk_of_its_own(_ON_A_SMALL_DISK, disk, line)
    assert done.returncode == 2, done.stderr
    assert "RunError" in done.stderr
    assert "Traceback" not in done.stderr
    kept = {key: row for key, *row in results(Path(f"{disk}.kept"))}
    assert kept.items() <= {key: row for key, *row in results(finished)}.items()


@pytest.mark.slow
def test_a_run_on_a_read_only_disk_is_exported_and_not_continued(line, finished, tmp_path):
    disk = tmp_path / "disk"
    shutil.copytree(finished, f"{disk}.before")
    done = on_a_disk_of_its_own(_ON_A_READ_ONLY_DISK, disk, line)
    assert done.returncode == 2, done.stderr
    assert "RunError" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(Path(f"{disk}.csv").read_text().splitlines()) == 13


def test_rejudging_a_run_adds_a_judge_and_its_agreement(run, copy):
    status, out, errors = run("judge", copy, "--judge", "python:line_policies:bright")
    assert status == 0
    for words in ("judged by python:line_policies:bright", "kappa", "true positives", "truth"):
        assert words in out
    assert "12/12" in errors
    status, out, _ = run("judge", copy, "--judge", "python:line_policies:bright", "--json")
    assert status == 0
    values = json.loads(out)
    assert values["played"] == 12
    assert values["agreement"][0]["kappa"]["n"] == 12
    assert summarise(copy).judge == "truth"  # the ranking of the run stays where it was


def test_questions_about_a_run_cannot_be_changed(run, copy):
    status, _, errors = run("judge", copy, "--judge", "python:line_policies:bright", "--instruction", "dance")
    assert status == 2
    assert "leave out --instruction" in errors


def test_video_files_are_judged_with_their_instructions(run, home, tmp_path):
    for name, grey in (("dark", 10), ("light", 200)):
        write_video(tmp_path / f"{name}.mp4", np.full((4, 16, 16, 3), grey, np.uint8), fps=5)
    (tmp_path / "light.json").write_text(json.dumps({"instruction": "shine"}))
    ask = ("judge", tmp_path, "--judge", "python:line_policies:bright")
    status, _, errors = run(*ask)
    assert status == 2
    assert "dark.mp4 has no instruction" in errors
    status, out, _ = run(*ask, "--instruction", "be light", "--json")
    assert status == 0
    outcomes = {Path(entry["path"]).stem: entry["verdict"]["outcome"] for entry in json.loads(out)}
    assert outcomes == {"dark": "failure", "light": "success"}
    status, out, _ = run("judge", tmp_path / "light.mp4", "--judge", "python:line_policies:bright")
    assert status == 0
    assert "shine" in out
    assert "success" in out


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_run_is_exported(run, finished, tmp_path, kind):
    status, out, _ = run("export", finished, tmp_path / f"episodes.{kind}")
    assert status == 0
    assert f"episodes.{kind}" in out
    lines = (tmp_path / f"episodes.{kind}").read_text().splitlines()
    assert len(lines) == 12 + (kind == "csv")
    status, _, errors = run("export", finished, tmp_path / "episodes.doc")
    assert status == 2
    assert "export knows the formats" in errors


def test_a_report_is_written_anew_against_reference_results(run, copy, tmp_path):
    pytest.importorskip("matplotlib")
    reference = tmp_path / "real.csv"
    rates = {("fast", 0): 1.0, ("fast", 1): 0.8, ("slow", 0): 0.3, ("slow", 1): 0.0}
    lines = [f"{policy},task_{task},{rate}" for (policy, task), rate in rates.items()]
    reference.write_text("policy,task,real\n" + "\n".join(lines))
    status, out, _ = run("report", copy, "--reference", reference)
    assert status == 0
    assert "against real.csv" in out
    assert "pearson" in out
    assert "Against the reference" in (copy / "report.html").read_text()
    written = json.loads((copy / "summary.json").read_text())
    assert written["comparison"]["pearson"]["value"] > 0.5


def test_planning_says_how_many_episodes_a_comparison_needs(run):
    status, out, _ = run("planning")
    assert status == 0
    assert "377" in out  # the same as in the examples of episodes_to_separate
    assert "356" in out
    assert "232" in run("planning", 0.6, 0.7, "--correlation", 0.4)[1]
    assert "0.94" in run("planning", 0.5, 0.9, "--episodes", 30)[1]
    status, _, errors = run("planning", 0.6, 0.6)
    assert status == 2
    assert "equal rates" in errors


def test_a_run_that_names_nothing_plays_packaged_policies_on_packaged_tasks():
    from worldgym import cli_evaluate
    from worldgym.policies.packaged import packaged_policies
    from worldgym.tasks import load_suite

    suite = load_suite("packaged")
    first = suite.select(tasks=list(cli_evaluate.FIRST_TASKS))
    assert len(first.tasks) == 4
    assert min(len(first.trials(task)) for task in first.tasks) >= cli_evaluate.FIRST_TRIALS
    assert 3 * 4 * cli_evaluate.FIRST_TRIALS >= 60
    names = [spec.partition("=packaged:")[2] for spec in cli_evaluate.first_policies()]
    rates = [packaged_policies()[name].twin_success for name in names]
    assert len(set(names)) == 3
    assert rates[0] > rates[1] > rates[2]


@pytest.mark.slow
def test_a_run_that_names_nothing_but_its_folder_needs_no_network(run, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    status, out, _ = run("eval", "--out", tmp_path, "--frames", 4)
    assert status == 0
    assert "60 of 60 episodes, judged by packaged:" in out
    assert (tmp_path / "report.html").stat().st_size > 100_000
