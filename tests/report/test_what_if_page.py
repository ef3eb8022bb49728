"""The page of rewards on recorded debates and on other programs' replies, by hand."""

from pathlib import Path
from typing import Any

import pytest
from tests.rewards.test_what_if import BAD, GOOD

from debate_protocol.transcripts.files import write_transcripts
from debate_report import report_main
from debate_report.browsing import read_all
from debate_report.run_files import read_source
from debate_report.what_if_sections import ReplayChoices, Replays, replay
from json_lines import write_rows
from report.report_runs import HOSTILE, shot, watched


def reply_row(question: int, answer: int, reward: float, **more: Any) -> dict[str, Any]:
    return {
        "question": f"{question} + 1 = ?",
        "answer": str(question + 1),
        "response": f"It is \\boxed{{{answer}}}",
        "reward": reward,
    } | more


def replayed(tmp_path: Path, rows: list[dict[str, Any]]) -> Replays:
    path = tmp_path / "rows.jsonl"
    write_rows(path, rows)
    return replay(read_all(read_source(path)), ReplayChoices({}))


def test_reward_of_a_file_is_judged_by_our_verdict_and_not_by_itself(tmp_path: Path) -> None:
    # The file pays 1 for three of four; the third is wrong.
    rows = [
        reply_row(1, 2, 1.0, style=1.0),
        reply_row(1, 2, 1.0, style=0.0),
        reply_row(1, 9, 1.0, style=1.0),
        reply_row(1, 8, 0.0, style=0.0),
    ]
    replays = replayed(tmp_path, rows)
    by_name = {each.name: each for each in replays.replays}
    assert list(by_name) == [
        "the file's reward", "score style", "right or wrong", "the group's majority",
    ]  # fmt: skip
    # Rewards less their mean: 1/4, 1/4, 1/4, -3/4; rightness: 1/2, 1/2, -1/2, -1/2. The products
    # sum to 1/2, the squares to 3/4 and 1: r² = 1/4 / (3/4) = 1/3.
    assert by_name["the file's reward"].r_squared == pytest.approx(1 / 3)
    # Style is right as often as not: no correlation.
    assert by_name["score style"].r_squared == pytest.approx(0)
    assert by_name["right or wrong"].r_squared == pytest.approx(1)
    # Both say 2, which is right.
    assert by_name["the group's majority"].r_squared == pytest.approx(1)
    assert replays.truth == "Right and wrong are by our checker."
    change = by_name["right or wrong"].disagreement
    assert change is not None
    # Up by the file, down by the truth: the third alone. The fourth is down by both.
    assert (change.num_turns, change.num_changed) == (4, 1)
    assert change.examples[0].key.agent == 2
    # The second has no style: up by the file, down by style. The others keep their direction.
    style = by_name["score style"].disagreement
    assert style is not None
    assert [example.key.agent for example in style.examples] == [1]


def test_debates_of_a_run_are_scored_under_the_rewards_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "debates.jsonl"
    write_transcripts(path, [GOOD, BAD])
    output = tmp_path / "page.html"
    command = [str(path), "--what-if", "--output", str(output)]
    rewards = ["--reward", "v2", "--reward", "verifiable"]
    seeds = ["--truth-gain", "0.1", "--seed-deviation", "0.02"]
    assert report_main([*command, *rewards, *seeds]) == 0
    page = output.read_text()
    assert "v2: values follow the truth with R²" in page
    assert "always equal" in page
    assert "first shown" in page
    assert page.count("<h3>verifiable, beside v2</h3>") == 1
    # What cannot be: no such phase, one number of two, a reward that is not there, no --what-if.
    capsys.readouterr()
    for arguments, message in (
        ([*command, "--phase", "nothing"], "found nothing to compare"),
        ([*command, "--truth-gain", "0.1"], "expected both"),
        ([*command, "--reward", "v3"], "expected one of v2,"),
        ([str(path), "--reward", "v2"], "--reward: needs --what-if"),
        ([str(path), str(path), "--what-if"], "expected one RUN"),
    ):
        assert report_main(arguments) == 2
        assert message in capsys.readouterr().err


def test_hostile_text_in_every_field_does_not_run(browser: Any, tmp_path: Path) -> None:
    rows = []
    for number in range(8):
        row = reply_row(1, 2, float(number % 2), group=HOSTILE, task=HOSTILE, id=HOSTILE)
        row |= {HOSTILE: float(number > 3), "question": HOSTILE}
        row["response"] = f"{HOSTILE} \\boxed{{{HOSTILE if number % 3 else 2}}}"
        rows.append(row)
    path = tmp_path / "rows.jsonl"
    write_rows(path, rows)
    assert report_main([str(path), "--what-if"]) == 0
    with browser.new_context(viewport={"width": 380, "height": 900}) as context:
        page = watched(
            context.new_page(), tmp_path / "rows.jsonl.what-if.html", selector="#signs h3"
        )
        for summary in page.locator("main summary").all():
            if not summary.evaluate("each => each.parentElement.open"):
                summary.click()
        assert "<script>window.hacked = 1</script>" in page.inner_text("main")
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main style, main script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
        assert page.problems == []
        shot(page, "what-if-380")
