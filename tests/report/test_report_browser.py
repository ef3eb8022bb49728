"""The report in a real browser: what it shows, and that nothing in a model's text runs."""

import json

import pytest

from debate_protocol.types import Question, Transcript, Turn
from debate_report import browsing as data
from debate_report import write_report
from report.report_runs import HOSTILE, debate, fill, listed, shot, watched

MARK = "onerror='window.hacked"
NAME = "<img src=x onerror='window.hacked=8'>\u202ebad"
"""What may be the name of a folder."""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(fill(tmp_path_factory.mktemp("runs") / "demo").path)


@pytest.fixture
def page(browser, report):
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        yield watched(context.new_page(), report)


def chosen(page, number):
    """Wait until so many debates are listed; return what is asked in them, up to its comma."""
    page.locator("#found", has_text=f"{number} of 5 debates").wait_for()
    return [text.split(", ")[1].split("?")[0][:7] for text in listed(page)]


def opened(page, name):
    page.locator("#debate-list button", has_text=name).click()
    page.locator("#debate .note", has_text=name).first.wait_for()


def test_debates_are_filtered_searched_and_turned_over(page):
    assert chosen(page, 5) == ["warm", "mended", "spoiled", "broken", "hostile"]
    for control, number, names in (
        ("spoiled", 1, ["spoiled"]),
        # Of the hostile texts several numbers are first answers, which cannot be read.
        ("mended", 2, ["mended", "hostile"]),
        ("errors", 1, ["broken"]),
    ):
        page.check(f"[name={control}]")
        assert chosen(page, number) == names
        page.uncheck(f"[name={control}]")
        chosen(page, 5)
    page.select_option("[name=outcome]", "wrong")
    assert chosen(page, 2) == ["spoiled", "broken"]
    page.select_option("[name=outcome]", "")
    page.select_option("[name=phase]", "1")
    assert chosen(page, 4) == ["mended", "spoiled", "broken", "hostile"]
    page.fill("[name=search]", "NO TAGS")
    assert chosen(page, 1) == ["broken"]
    page.fill("[name=search]", "")
    chosen(page, 4)
    page.click("#next")
    page.locator("#debate", has_text="spoiled").wait_for()
    page.locator("body").press("k")
    page.locator("#debate .note", has_text="mended").wait_for()
    page.fill("[name=search]", "nothing of the kind")
    page.locator("#debate", has_text="No debate is like this").wait_for()
    assert page.problems == []


def test_an_open_debate_shows_votes_decision_reward_and_prompt_on_demand(page):
    opened(page, "mended")
    text = page.inner_text("#debate")
    for expected in ("✗ 5", "✓ 4", "majority: 4 ✓ right", "Agent 2 > Agent 0", "generator +0.5"):
        assert expected in text, expected
    assert page.inner_text(".answers tbody tr:nth-child(3) td:last-child") == "−1.5"
    assert "Demonstration" not in text
    assert "Asked of 1" not in text
    page.locator("#debate .turn details", has_text="Prompt").nth(1).locator("summary").click()
    page.locator("#debate", has_text="Asked of 1 in 0.").wait_for()
    opened(page, "warm")
    assert "Demonstration: a script wrote" in page.inner_text("#debate")
    assert page.locator(".section.generator h6").first.inner_text() == "solution"
    assert page.locator(".section.judge h6").first.inner_text() == "evaluation"
    assert page.problems == []


def test_the_pointer_shows_the_advantage_of_a_token(page):
    opened(page, "mended")
    token = page.locator("#debate .token.up").first
    assert token.inner_text() == "<solution>"
    token.hover()
    assert page.inner_text(".tip") == "advantage +0.25 in generator"
    page.locator("#debate .token.down").first.hover()
    assert page.inner_text(".tip") == "advantage −1.5 in judge"
    shot(page, "debate")


def test_hostile_text_neither_runs_nor_breaks_the_page(page):
    opened(page, "hostile")
    for summary in page.locator("#debate summary").all():
        summary.click()
    page.locator("#debate", has_text="Asked of 2 in 0.").wait_for()
    text = page.inner_text("#debate")
    assert "<script>window.hacked = 1</script>" in text
    assert "{{ 7 * 7 }} ${7 * 7}" in text
    assert "[U+202E]gnitirwer[U+202C]" in text
    assert "🦉👩‍👩‍👧‍👦 漢字かな" in text
    assert page.evaluate("window.hacked") is None
    assert page.locator("#debate img, #debate svg, #debate style, #debate script").count() == 0
    assert page.is_visible("#repeat h2")
    assert page.problems == []
    shot(page, "hostile")


def test_the_policy_refuses_scripts_and_requests_that_no_escape_would_stop(page):
    page.evaluate(
        """() => {
        const bad = document.createElement("div");
        bad.innerHTML = "<img src='http://127.0.0.1:9/x.png' onerror='window.hacked = 4'>";
        document.body.append(bad);
        const script = document.createElement("script");
        script.textContent = "window.hacked = 5";
        document.body.append(script);
        }"""
    )
    page.locator("body").click()
    assert page.evaluate("window.hacked") is None
    refused = [text for text in page.problems if "Content Security Policy" in text]
    assert any("127.0.0.1" in text for text in refused)
    assert len(refused) >= 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_no_width_makes_the_page_scroll_sideways(page, scheme, width):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, "hostile")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shot(page, f"{scheme}-{width}")


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

    def opened(path, selector="#debate h3", **settings):
        context = browser.new_context(viewport={"width": 420, "height": 800}, **settings)
        contexts.append(context)
        page = context.new_page()
        return watched(page, path, selector)

    yield opened
    for context in contexts:
        context.close()


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def is_unharmed(page):
    assert page.evaluate("window.hacked") is None
    assert page.problems == []
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
    for section in ("header", "#results", "#curves", "#debate", "#repeat"):
        assert MARK in page.inner_text(section), section
    assert "cannot be shown" not in page.inner_text("main")
    assert "<think>" in page.inner_text("#debate")
    names = page.locator("#debate .question, #debate .answers, #debate .text").all_inner_texts()
    assert sum(MARK in name for name in names) >= 3
    is_unharmed(page)
    shot(page, "poisoned-420")


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
    assert "demonstration" in page.inner_text("#debate-list")
    assert len(listed(page)) == 1
    assert "a script wrote these replies" in page.inner_text("#debate")
    page.select_option("[name=source]", "sampled")
    page.locator("#found", has_text="4 of 5 debates").wait_for()
    assert "emonstration" not in page.inner_text("#debate")
