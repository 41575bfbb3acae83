"""The report: one page that needs nothing but itself, and says what the numbers say."""

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from line_world import BrightJudge, Pusher, line_config, line_suite, register

from worldgym.errors import RunError
from worldgym.evaluation.estimate import Estimate, undefined
from worldgym.evaluation.page import interval_bar, percent
from worldgym.evaluation.report import write_report
from worldgym.evaluation.run import evaluate
from worldgym.evaluation.summary import summarise
from worldgym.video import read_video

register()
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
VOID = {"meta", "link", "img", "br", "wbr", "path", "use"}


class Page(HTMLParser):
    """Checks that tags are balanced and gathers what the page refers to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.texts, self.tags = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "data", "action")]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Everything a report can show: missing, unscored and failed episodes, perturbations, several judges."""
    folder = tmp_path_factory.mktemp("runs") / "shown"
    policies = [Pusher("fast", 0.9), Pusher("slow <i>", 0.4), Pusher("broken", 0.9, breaks_at="go 3")]
    evaluate(
        line_config(
            folder,
            policies=policies,
            trials=line_suite(tasks=3, trials=2),
            perturbations=["delay:3", "swap"],
            judges=["truth", BrightJudge(100, unscored="go 1")],
            report=True,
        )
    )
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    path = tmp_path_factory.mktemp("reference") / "real.csv"
    rates = {("fast", t): 1.0 - t / 4 for t in range(3)} | {("slow <i>", t): 0.5 - t / 5 for t in range(3)}
    lines = [f"{policy},task_{task},{rate}" for (policy, task), rate in rates.items()]
    path.write_text("policy,task,real\n" + "\n".join(lines) + "\nelsewhere,task_0,0.5\n")
    return path


def test_the_page_is_well_formed_and_refers_only_to_itself(run, reference):
    pytest.importorskip("matplotlib")
    text = write_report(run, reference=reference).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert {address.partition(":")[0] for address in page.addresses if address} <= {"data", "#"} | {
        address for address in page.addresses if address.startswith("#")
    }
    outside = re.sub(r"base64,[A-Za-z0-9+/=]+", "", text)
    assert not re.findall(r"https?:|//[a-z]|@import|url\((?!#)", outside.partition("<h2>Provenance")[0])
    assert "svg" in page.tags
    assert "video" in page.tags


def test_the_page_shows_every_part(run):
    text = write_report(run).read_text(encoding="utf-8")
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    expected = ["Ranking", "Success by task", "Robustness", "Judges", "Side by side", "Failures", "6 errors"]
    assert titles == [*expected, "Provenance"]
    for words in ("planned episodes are missing", "cannot go 3", "delay:3", "bright 100", "identity"):
        assert words in text
    assert "viewport" in text
    assert "@media print" in text


def test_names_and_reasons_are_escaped(run):
    text = write_report(run).read_text(encoding="utf-8")
    assert "slow &lt;i&gt;" in text
    assert "<i>" not in text
    assert "&amp; more" in text


def test_the_same_start_is_shown_under_every_policy(run):
    text = write_report(run, starts=2, failures=3).read_text(encoding="utf-8")
    part = text.partition("Side by side")[2].partition("<h2>")[0]
    assert part.count("<h3>") == 2
    assert part.count("<video") in (5, 6)
    assert text.partition("<h2>Failures")[2].partition("<h2>")[0].count("<video") == 3


def test_another_world_can_be_shown_beside(run, tmp_path):
    other = tmp_path / "other"
    evaluate(line_config(other, trials=line_suite(tasks=3, trials=2)))
    text = write_report(run, beside=[other], starts=1).read_text(encoding="utf-8")
    assert "Line-v0 · fast" in text
    assert text.partition("Side by side")[2].partition("<h2>")[0].count("<video") >= 3


def test_large_videos_are_made_smaller(tmp_path, monkeypatch):
    from worldgym.evaluation import gallery

    evaluate(line_config(tmp_path, trials=line_suite(tasks=1, trials=1)))
    monkeypatch.setattr(gallery, "LARGEST_SIDE", 8)
    text = write_report(tmp_path).read_text()
    video = tmp_path / "small.mp4"
    video.write_bytes(base64.b64decode(re.search(r"video/mp4;base64,([^\"]+)", text).group(1)))
    assert read_video(video).shape[1:] == (8, 8, 3)


def test_the_summary_is_json_with_reasons_for_what_is_undefined(run):
    values = json.loads((run / "summary.json").read_text())
    assert values["identity_hash"] == summarise(run).info.identity_hash
    assert set(values["provenance"]) == {"time", "command", "python", "platform", "packages"}
    broken = next(p for p in values["statistics"]["policies"] if p["policy"] == "broken")
    assert broken["missing"] == 2
    empty = next(
        c for c in values["statistics"]["cells"] if c["policy"] == "broken" and c["task"] == "task_2"
    )
    assert empty["success"]["value"] is None
    assert empty["success"]["reason"]


def test_a_comparison_with_reference_results_is_part_of_the_summary(run, reference):
    comparison = summarise(run, reference=reference).comparison
    assert len(comparison.points) == 6
    assert ("elsewhere", "task_0") in comparison.unmatched


def test_a_run_without_episodes_has_a_report(tmp_path):
    evaluate(line_config(tmp_path, policies=["nonsense"], report=True))
    text = (tmp_path / "report.html").read_text()
    assert "No episode has been played yet" in text
    assert "unknown policy" in text


def test_a_report_that_cannot_be_written_is_said(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "report.html").unlink()
    (copy / "report.html").mkdir()
    with pytest.raises(RunError, match=r"report\.html cannot be written"):
        write_report(copy)


def test_what_is_undefined_is_shown_as_such():
    assert percent(None) == "–"
    assert percent(-0.001, sign=True) == "0\u202f%"
    assert percent(0.123, sign=True) == "+12\u202f%"
    assert "no episode" in interval_bar(undefined("no episode"))
    assert "left:25.0%" in interval_bar(Estimate(0.25, 0.0, 1.0, 4))


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_a_real_browser_plays_every_video_and_no_page_is_wider_than_a_phone(run, tmp_path):
    text = write_report(run).read_text(encoding="utf-8")
    probe = """<script>setTimeout(() => {
      const videos = [...document.querySelectorAll("video")];
      document.body.dataset.probe = JSON.stringify({
        videos: videos.length, ready: videos.filter(v => v.readyState > 0 && !v.error).length,
        pictures: [...document.images].every(i => i.naturalWidth > 0),
        wide: document.documentElement.scrollWidth - window.innerWidth });
    }, 3000);</script></body>"""
    file = tmp_path / "page.html"
    file.write_text(text.replace("</body>", probe), encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    flags += " --disable-background-networking --disable-component-update --virtual-time-budget=8000"
    command = [BROWSER, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", "--window-size=500,900"]
    done = subprocess.run(
        [*command, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    found = json.loads(re.search(r'data-probe="(.*?)"', done.stdout).group(1).replace("&quot;", '"'))
    assert found["videos"] > 6
    assert found["ready"] == found["videos"]
    assert found["pictures"]
    assert found["wide"] <= 0
