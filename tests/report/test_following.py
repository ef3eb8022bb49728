"""The page of a run that goes on: `debate report RUN --follow`."""

import json
import os
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from debate_report import report_main, write_report
from debate_report.following import GONE_AFTER_S, Clock, follow_report, progress_of
from debate_report.page_templates import Live
from report.report_runs import debate, fill, run_of, watched

Event = Callable[[Path], object]


def log(step: int, text: str = "", end: str = "\n") -> Event:
    row = text or json.dumps({"phase": "train", "step": step, "loss": 1 / step})

    def write(run: Path) -> None:
        with (run / "metrics.jsonl").open("a") as file:
            file.write(row + end)

    return write


def end_run(run: Path) -> None:
    (run / "results.json").write_text('{"table": [], "summary": "Done."}')


class Story:
    """A run whose files change while somebody waits, and what the page holds each time."""

    def __init__(self, run: Path, events: Sequence[Event], cost_s: float = 0.0) -> None:
        self.run = run
        self.events = list(events)
        self.time = 0.0
        self.cost_s = cost_s
        self.pages: list[str] = []
        self.words: list[str] = []

    def wait(self, seconds: float) -> None:
        page = (self.run / "report.html").read_text()
        progress = re.search(r"Under way: ([^<]*)\.</b>", page)
        self.pages.append(progress[1] if progress else "")
        self.time += seconds
        if not self.events:
            raise KeyboardInterrupt
        self.events.pop(0)(self.run)

    def now(self) -> float:
        self.time += self.cost_s
        return self.time

    def follow(self) -> str:
        clock = Clock(now=self.now, wait=self.wait)
        follow_report(self.run, self.run / "report.html", self.words.append, clock)
        return (self.run / "report.html").read_text()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    (path / "recipe.yaml").write_text("steps: 9\n")
    (path / ".lock").write_text(f"{os.getpid()}\n")
    return path


def pass_time(run: Path) -> None:
    """Nothing happens for a look of 2 seconds."""


def test_the_page_is_written_when_the_run_has_grown_and_ends_with_it(run: Path) -> None:
    pauses = [pass_time] * 3  # Pages are 5 s apart, looks 2 s.
    story = Story(run, [*pauses, log(1), *pauses, log(2), log(3), *pauses, end_run])
    page = story.follow()
    steps = ["step 1 of 9", "step 2 of 9", "step 3 of 9"]
    assert list(dict.fromkeys(story.pages)) == ["before its first step", *steps]
    # The row of step 3 is there at the next look, its page 5 s after the last.
    assert story.pages.count("step 2 of 9") == 3
    assert 'id="following"' not in page and "Under way" not in page
    assert len(story.words) == 2 and "the run is over: it has results" in story.words[1]


def test_a_line_in_the_middle_of_being_written_costs_that_line_alone(run: Path) -> None:
    row = json.dumps({"phase": "train", "step": 2, "loss": 0.5})
    (run / "transcripts").mkdir()
    torn = run / "transcripts" / "train-000001.jsonl"
    events = [
        log(1),
        log(2, row[:20], end=""),
        lambda run: torn.write_text('{"id": "to'),
        pass_time,
        pass_time,
        pass_time,
        log(2, row[20:]),
        pass_time,
        pass_time,
        pass_time,
        end_run,
    ]
    story = Story(run, events)
    page = story.follow()
    assert "step 1 of 9" in story.pages and story.pages[-1] == "step 2 of 9"
    assert "cannot be shown" not in page and "could not be read" not in page


def test_an_interrupt_writes_the_last_page_without_its_reload(run: Path) -> None:
    story = Story(run, [log(1)])
    with pytest.raises(KeyboardInterrupt):
        story.follow()
    assert story.pages == ["before its first step"] * 2
    page = (run / "report.html").read_text()
    assert 'id="following"' not in page and page == write_report(run).read_text()


@pytest.mark.parametrize(
    ("lock", "reason"), [("", "no process writes there"), (None, "no process")]
)
def test_a_run_that_nobody_writes_is_over(run: Path, lock: str | None, reason: str) -> None:
    if lock is None:
        (run / ".lock").unlink()
    else:
        (run / ".lock").write_text(lock)
    story = Story(run, [])
    assert 'id="following"' not in story.follow() and story.pages == []
    assert len(story.words) == 1 and "no process writes there" in story.words[0]


def test_what_cannot_be_followed_is_refused(run: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "rollouts.jsonl"
    file.write_text('{"prompt": "1 + 1", "completion": "2"}\n')
    for arguments in ([file], [tmp_path], [tmp_path / "none"], [f"{tmp_path}/*.jsonl"]):
        assert report_main(["--follow", *map(str, arguments)]) == 2
        assert "expected the folder of a run of debate train" in capsys.readouterr().err
    for others in ([str(run)], ["--csv", "x.csv"], ["--what-if"], ["--svg", "x"]):
        assert report_main(["--follow", str(run), *others]) == 2
        assert "expected one RUN" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.html"))


INTERVAL_S = 600.0


def live(progress: str) -> Live:
    return Live(progress, datetime.now(UTC), INTERVAL_S)


def pass_interval(page) -> None:
    """Fire the timers of the page that are due within an interval."""
    page.clock.fast_forward(int(1000 * INTERVAL_S) + 5000)


def test_the_page_reloads_itself_where_the_reader_was(browser, tmp_path: Path) -> None:
    filled = fill(tmp_path / "run")
    report = write_report(filled.path, live=live("step 6 of 9"))
    with browser.new_context(viewport={"width": 900, "height": 500}) as context:
        page = context.new_page()
        page.clock.install()
        watched(page, report)
        page.locator("#debate-list button", has_text="spoiled").click()
        page.locator("#debate .note", has_text="spoiled").first.wait_for()
        page.evaluate("document.querySelector('#debate h4').scrollIntoView()")
        top = page.locator("#debates").evaluate("it => it.getBoundingClientRect().top")
        # The run grows: above the debates the page becomes longer.
        for step in (7, 8, 9):
            filled.metrics.log("self_play", step, {"loss": 1.0, "judge/accuracy": 0.5 + step / 99})
        filled.write_transcripts("self_play", 9, [debate("newest", "455", "444")])
        write_report(filled.path, live=live("step 9 of 9"))
        pass_interval(page)
        page.locator("#following", has_text="step 9 of 9").wait_for()
        page.locator("#debate .note", has_text="spoiled").first.wait_for()
        page.wait_for_function("() => window.reportPlace.restore === null")
        new_top = page.locator("#debates").evaluate("it => it.getBoundingClientRect().top")
        assert top < 0 and new_top == pytest.approx(top, abs=3)
        # Nothing but the page itself is asked for, and nothing is complained of.
        assert set(page.problems) <= {report.as_uri()}


def test_progress_counts_the_steps_of_all_phases() -> None:
    rows = [{"phase": "a", "step": 3}, {"phase": "b", "step": 4}]
    phases: dict[str, object] = {"a": {"steps": 3}, "b": {}}
    assert progress_of(run_of(rows, {"steps": 5, "phases": phases})) == "step 4 of 8, phase b"
    # An exit criterion decides how long a phase takes.
    phases["a"] = {"steps": 3, "exit_criterion": {"metric": "loss"}}
    assert progress_of(run_of(rows, {"steps": 5, "phases": phases})) == "step 4, phase b"
    assert progress_of(run_of([], {"steps": 5})) == "before its first step"


def test_a_killed_run_is_over_once_its_files_stopped_growing(run: Path) -> None:
    (run / ".lock").write_text("999999999\n")
    looks = int(GONE_AFTER_S / 2) + 2
    story = Story(run, [pass_time] * looks)
    story.follow()
    assert "process 999999999 is gone" in story.words[-1]
    assert story.time >= GONE_AFTER_S
