"""Hostile text in every place of the page that shows text, and what a finger can do there."""

import json

import pytest

from debate_protocol.types import Question, Transcript, Turn
from debate_report import browsing as data
from debate_report import report_main, write_report
from report.test_report_browser import HOSTILE, debate, fill, listed, shot, watched

MARK = "onerror='window.hacked"
NAME = "<img src=x onerror='window.hacked=8'>\u202ebad"
"""What may be the name of a folder."""


def poison(run):
    """Put hostile text wherever files of a run hold text."""
    text = json.dumps(HOSTILE, ensure_ascii=False)
    streams = "advantage: {streams: {judge: {weight: 1.0}}}"
    (run.path / "recipe.yaml").write_text(
        f"name: {text}\nseed: {text}\nmodel: {{name: {text}}}\nreward: {{type: {text}}}\n"
        f"{streams}\n"
        f"phases: {{{text}: {{exit_criterion: {{metric: {text}, at_least: 0.5}}}}}}\n"
    )
    for step in (7, 8):
        named = {HOSTILE: step / 9, f"reward/role/{HOSTILE}": step / 9, f"eval/{HOSTILE}/x": 0.5}
        run.metrics.log(HOSTILE, step, named | {f"health/alarm/{HOSTILE}": 1.0})
    row = {"measure": HOSTILE, "name": "eval/format", "before": {"mean": 0.4, "questions": 5}}
    row |= {"after": {"mean": 0.6, "questions": 5}, "change": {"low": 0.1, "high": 0.3}}
    run.write_results({"summary": HOSTILE, "table": [row], HOSTILE: HOSTILE})
    (run.path / "environment.json").write_text(
        json.dumps({"device": HOSTILE, "started": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}})
    )
    base = debate("poison", "444", "444")
    thinking = Turn(0, 0, f"<think>{HOSTILE}</think><solution>{HOSTILE}</solution>")
    question = Question("q", f"poison, {HOSTILE}?", HOSTILE, {"kind": "text", "passage": HOSTILE})
    poisoned = Transcript(HOSTILE, question, base.protocol, (thinking, *base.turns[1:]))
    run.write_transcripts("self_play", 9, [poisoned])
    return run


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    return poison(fill(tmp_path_factory.mktemp("runs") / NAME)).path


@pytest.fixture
def visit(browser):
    """Open a page as wide as a phone."""
    contexts = []

    def opened(path, shown="#debate h3", **settings):
        context = browser.new_context(viewport={"width": 420, "height": 800}, **settings)
        contexts.append(context)
        page = context.new_page()
        return watched(page, path, shown)

    yield opened
    for context in contexts:
        context.close()


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def is_unharmed(page):
    assert page.evaluate("window.hacked") is None and page.problems == []
    assert page.locator("img, iframe, object, body style").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    assert "\u202e" not in page.content()


def test_hostile_text_in_every_file_of_a_run_is_only_text(visit, poisoned):
    page = visit(write_report(poisoned))
    assert MARK in page.inner_text("h1")
    unfold(page)
    page.locator("#debate-list button", has_text="poison").click()
    page.locator("#debate", has_text="poison, ").wait_for()
    unfold(page)
    for part in ("header", "#results", "#curves", "#debate", "#repeat"):
        assert MARK in page.inner_text(part), part
    assert "cannot be shown" not in page.inner_text("main")
    assert "<think>" in page.inner_text("#debate")
    names = page.locator("#debate .question, #debate .answers, #debate .text").all_inner_texts()
    assert sum(MARK in name for name in names) >= 3
    is_unharmed(page)
    shot(page, "poisoned-420")


def test_what_is_typed_into_the_search_box_is_only_text(visit, poisoned):
    page = visit(write_report(poisoned))
    page.fill("[name=search]", "<IMG SRC=X onerror='window.hacked = 2'>")
    page.locator("#found", has_text="3 of 6 debates").wait_for()
    page.fill("[name=search]", "${7*7}\u202e</script><b>")
    page.locator("#debate", has_text="No debate is like this").wait_for()
    assert page.inner_text("#found").startswith("0 of 6 debates")
    is_unharmed(page)


def test_names_of_compared_runs_are_only_text(visit, poisoned, tmp_path):
    output = tmp_path / "comparison.html"
    other = poison(fill(tmp_path / f"{NAME}2")).path
    assert report_main([str(poisoned), str(other), "--output", str(output)]) == 0
    page = visit(output, shown="#runs table")
    unfold(page)
    text = page.inner_text("#runs")
    assert text.count("onerror='window.hacked=8'") == 2 and "window.hacked = 2" in text
    is_unharmed(page)
    shot(page, "comparison-420")


def test_a_finger_reads_values_advantages_and_explanations(visit, poisoned):
    page = visit(write_report(poisoned), has_touch=True)
    chart = page.locator("figure.panel", has_text="Loss").first
    assert not chart.locator(".why p").is_visible()
    chart.locator(".why summary").tap()
    assert "Compare it within a phase alone" in chart.locator(".why p").inner_text()
    chart.locator(".hover rect").first.tap()
    assert page.inner_text(".tip").startswith("warm_start, step 1\nloss: 1.000")
    page.locator("#debate-list button", has_text="mended").tap()
    page.locator("#debate .note", has_text="mended").first.wait_for()
    page.locator("#debate .token.up").first.tap()
    assert page.inner_text(".tip") == "advantage +0.25 in generator"
    assert page.problems == []


def test_advantages_are_kept_of_so_many_debates_and_demonstrations_are_named(
    visit, tmp_path, monkeypatch
):
    monkeypatch.setattr(data, "MOST_CREDITED", 2)
    page = visit(write_report(fill(tmp_path / "run").path))
    page.check("[name=tokens]")
    page.locator("#found", has_text="2 of 5 debates").wait_for()
    assert page.locator("#debate .token").count() > 0
    page.uncheck("[name=tokens]")
    page.select_option("[name=source]", "shown")
    page.locator("#found", has_text="1 of 5 debates").wait_for()
    assert "demonstration" in page.inner_text("#debate-list") and len(listed(page)) == 1
    assert "a script wrote these replies" in page.inner_text("#debate")
    page.select_option("[name=source]", "sampled")
    page.locator("#found", has_text="4 of 5 debates").wait_for()
    assert "emonstration" not in page.inner_text("#debate")


def test_the_first_debate_is_shown_before_the_rest_of_the_page_is_there(
    visit, tmp_path, monkeypatch
):
    monkeypatch.setattr(data, "BLOCK", 1)
    report = write_report(fill(tmp_path / "run").path)
    text = report.read_text()
    script = text.index('"use strict"')
    # Before the script stands the block of the debate that is open: the first of self-play.
    assert text.index('id="texts-1"') < script < text.index('id="texts-0"')
    page = visit(report)
    page.locator("#debate-list button", has_text="spoiled").click()
    page.locator("#debate .note", has_text="spoiled").first.wait_for()
