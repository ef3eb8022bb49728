"""The report in a real browser: what it shows, and that nothing in a model's text runs."""

import os
from pathlib import Path

import pytest

from debate_protocol.types import Message, Protocol, Question, Transcript, Turn, TurnKey
from debate_report import browsing as data
from debate_report import write_report
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.running.run_records import write_credit

HOSTILE = (
    "</script></noscript><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    "<svg onload='window.hacked = 3'><style>body{display:none}</style>{{ 7 * 7 }} ${7 * 7} "
    "\u202egnitirwer\u202c \x00\x1b[31m &lt;b&gt; 🦉👩‍👩‍👧‍👦 漢字かな <!-- ]]> '\"`"
)
SHOTS = os.environ.get("REPORT_SCREENSHOTS")
"""A folder that screenshots are written to, as CI asks for."""


def turn(agent, number, answer, votes="N/A", text="", **more):
    shown = tuple(TurnKey(other, number - 1) for other in range(3) if other != agent and number)
    said = f"<solution>{text}{answer}</solution>\n<evaluation>Because.</evaluation>\n"
    prompt = (Message(role="user", content=f"Asked of {agent} in {number}. {text}"),)
    return Turn(agent, number, f"{said}<comparison>{votes}</comparison>", shown, prompt, **more)


def debate(name, first, last, text=""):
    """Three agents and two rounds; the right answer is 4."""
    votes = ("Agent 1 > Agent 2", "Agent 2 > Agent 0", "Agent 0 = Agent 1")
    turns = [turn(agent, 0, answer, text=text) for agent, answer in enumerate(first)]
    turns += [turn(agent, 1, answer, votes[agent]) for agent, answer in enumerate(last)]
    question = Question(f"q-{name}", f"What is 2 + 2, {name}?{text}", "4", {"kind": "number"})
    return Transcript(str(name), question, Protocol(3, 2, contract="three_section"), tuple(turns))


def credit(*debates, demonstrated=False):
    """Credit of two tokens of each turn: the first up to character 10, the second from there."""
    turns = [
        {"agent": agent, "round": number, "values": {"generator": 0.5 - agent},
         "starts": [0, 10], "tokens": [[1, 0.25, 1], [1, -1.5, 2]]}
        for number in range(2) for agent in range(3)
    ]  # fmt: skip
    return {
        "schema": "debate-credit/1",
        "demonstrated": demonstrated,
        "streams": ["generator", "judge"],
        "debates": [
            {"id": one.id, "returns": [0.5, None, -1.5], "turns": turns} for one in debates
        ],
    }


def fill(path):
    run = RunDirectory.create(path, "steps: 4\n")
    warm = debate("warm", "444", "444")
    run.write_transcripts("warm_start", 1, [warm])
    write_credit(run, 1, credit(warm, demonstrated=True))
    broken = debate("broken", "455", "455")
    failed = Turn(0, 0, f"no tags {HOSTILE}", failure=f"no_solution {HOSTILE}")
    broken = Transcript("broken", broken.question, broken.protocol, (failed, *broken.turns[1:]))
    own = [debate("mended", "455", "444"), debate("spoiled", "445", "555"), broken]
    own.append(debate(f"hostile{HOSTILE}", "444", "444", HOSTILE))
    run.write_transcripts("self_play", 2, own)
    write_credit(run, 2, credit(*own))
    for step in (1, 2):
        run.metrics.log("warm_start", step, {"loss": 1 / step})
    for step in (3, 4, 5, 6):
        run.metrics.log("self_play", step, {"loss": 1 / step, "reward/total": step})
    return run


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_report(fill(tmp_path_factory.mktemp("runs") / "demo").path)


def watched(page, path, shown="#debate h3"):
    """Open a file; the page's problems are what it printed, raised or asked the network for."""
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda one: page.problems.append(one.text))
    page.on("request", lambda one: page.problems.append(one.url))
    page.goto(path.as_uri())
    page.wait_for_selector(shown)
    page.problems.remove(path.as_uri())
    return page


@pytest.fixture
def page(browser, report):
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        yield watched(context.new_page(), report)


def listed(page):
    return page.locator("#debate-list .about").all_inner_texts()


def chosen(page, number):
    """Wait until so many debates are listed; return what is asked in them, up to its comma."""
    page.locator("#found", has_text=f"{number} of 5 debates").wait_for()
    return [text.split(", ")[1].split("?")[0][:7] for text in listed(page)]


def opened(page, name):
    page.locator("#debate-list button", has_text=name).click()
    page.locator("#debate .note", has_text=name).first.wait_for()


def shot(page, name):
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=True)


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


def test_the_page_opens_on_a_debate_of_the_policy(page):
    assert "self_play, step 2" in page.locator("#debate h3").first.inner_text()
    assert page.locator("#debate .badge", has_text="Demonstration").count() == 0


def test_an_open_debate_shows_votes_decision_reward_and_prompt_on_demand(page):
    opened(page, "mended")
    text = page.inner_text("#debate")
    for part in ("✗ 5", "✓ 4", "majority: 4 ✓ right", "Agent 2 > Agent 0", "generator +0.5"):
        assert part in text, part
    assert page.inner_text(".answers tbody tr:nth-child(3) td:last-child") == "−1.5"
    assert "Demonstration" not in text and "Asked of 1" not in text
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
    assert "<script>window.hacked = 1</script>" in text and "{{ 7 * 7 }} ${7 * 7}" in text
    assert "[U+202E]gnitirwer[U+202C]" in text and "🦉👩‍👩‍👧‍👦 漢字かな" in text
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
    assert any("127.0.0.1" in text for text in refused) and len(refused) >= 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 420])
def test_no_width_makes_the_page_scroll_sideways(page, scheme, width):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    opened(page, "hostile")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    shot(page, f"{scheme}-{width}")


def test_a_phone_shows_the_change_of_each_measure_whole(browser, tmp_path):
    run = fill(tmp_path / "run")
    ends = [{"mean": x, "low": x - 0.05, "high": x + 0.05} for x in (0.485, 0.564)]
    change = {"difference": 0.079, "low": 0.051, "high": 0.107, "won": 96, "lost": 32}
    row = {"before": ends[0], "after": ends[1], "change": change | {"questions": 256}}
    names = ("direct accuracy", "peer-vote decision", "valid format")
    run.write_results({"table": [row | {"measure": name} for name in names]})
    with browser.new_context(viewport={"width": 420, "height": 900}) as context:
        page = watched(context.new_page(), write_report(run.path))
        widths = page.locator("#results .scroll").evaluate("it => [it.scrollWidth, it.clientWidth]")
        assert widths[0] <= widths[1]
        assert "96 up, 32 down of 256" in page.locator("#results").inner_text()
        shot(page, "results-420")


def test_print_leaves_the_controls_out(page):
    assert page.is_visible(".filters")
    page.emulate_media(media="print")
    assert not page.is_visible(".filters") and not page.is_visible("#debate-list")
    assert page.is_visible("#debate h3")


def test_what_finds_no_room_is_left_out_and_counted(tmp_path, monkeypatch, browser):
    monkeypatch.setattr(data, "BLOCK", 2)
    monkeypatch.setattr(data, "MOST_BYTES", 2500)
    report = write_report(fill(tmp_path / "demo").path)
    assert "more debates are in the transcript files" in report.read_text()
    page = browser.new_page()
    page.goto(report.as_uri())
    page.wait_for_selector("#debate h3")
    assert 0 < len(listed(page)) < 5
    page.close()
