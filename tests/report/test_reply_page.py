"""The page of imported replies: its figures by hand, seeded faults, and hostile text."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.rewards.test_what_if import BAD, GOOD

from debate_protocol.transcripts.files import write_transcripts
from debate_report import report_main, write_report
from debate_report.browsing import read_all
from debate_report.page_replies import PageReplies, page_replies_of
from debate_report.reply_advantages import method_values, weight_shares
from debate_report.reply_faults import faults_of
from debate_report.reply_figures import pass_curve, plots_of, step_table
from debate_report.run_files import read_source
from debate_report.what_if_sections import ReplayChoices, Replays, replay
from json_lines import write_rows
from report.report_runs import HOSTILE, shot, watched

# Long enough that two of them are not equal by chance.
WORDS = "First we take three apples from the box, then we count again what remains inside of it. "


def row(question: int, number: int, answer: int, **more: Any) -> dict[str, Any]:
    """Build a reply to `question + 1`; the number keeps replies apart."""
    return {
        "question": f"{question} + 1 = ?",
        "answer": str(question + 1),
        "response": f"{WORDS}{WORDS}Attempt {number}: \\boxed{{{answer}}}",
        "reward": float(answer == question + 1),
        "step": 1,
        "completion_tokens": 10,
        "policy_version": 1,
    } | more


def healthy_rows() -> list[dict[str, Any]]:
    """Build two groups of four replies, half of each right."""
    return [
        row(question, number, question + 1 if number % 2 else 0)
        for question, number in product((1, 2), range(4))
    ]


def page_of(tmp_path: Path, rows: list[dict[str, Any]]) -> PageReplies:
    path = tmp_path / "rows.jsonl"
    write_rows(path, rows)
    return page_replies_of(read_all(read_source(path)).found)


def faults(page: PageReplies) -> dict[str, list[int]]:
    numbers = {}
    for fault in faults_of(page):
        numbers[fault.title] = [reply.number for reply in fault.replies]
    return numbers


@pytest.mark.parametrize(
    ("change", "fault", "numbers"),
    [
        # A verifier that pays a wrong answer, and one that does not pay a right one.
        ({2: {"reward": 1.0}}, "Paid although wrong", [2]),
        ({3: {"reward": 0.0}}, "Not paid although right", [3]),
        
        ({2: {"response": row(1, 0, 0)["response"]}}, "Repeated replies", [2]),
        ({5: {"policy_version": 0}}, "Stale weights", [5]),
        
        ({6: {"finish_reason": "length"}}, "Truncated replies", [6]),
        ({6: {"response": "  "}}, "Empty replies", [6]),
        
        ({6: {"response": "so it is so " * 40}}, "Loops", [6]),
    ],
)  # fmt: skip
def test_seeded_fault_is_found_alone(
    tmp_path: Path, change: dict[int, dict[str, Any]], fault: str, numbers: list[int]
) -> None:
    rows = healthy_rows()
    for number, fields in change.items():
        rows[number] |= fields
    assert faults(page_of(tmp_path, rows)) == {fault: numbers}


def test_figures_are_those_by_hand(tmp_path: Path) -> None:
    later = row(3, 9, 4, step=2, completion_tokens=30)
    page = page_of(tmp_path, [*healthy_rows(), later])
    # Groups of 2 right of 4 twice, and 1 of 1, which has no pass@4 and so counts nowhere:
    # pass@1 = 1/2, pass@2 = 1 - C(2,2)/C(4,2) = 5/6, pass@3 = pass@4 = 1.
    assert pass_curve(page) == pytest.approx({1: 1 / 2, 2: 5 / 6, 3: 1.0, 4: 1.0})
    head, rows = step_table(page)
    columns = [dict(zip(head, cells, strict=True)) for cells in rows]
    assert [column["replies"] for column in columns] == ["8", "1"]
    assert [column["mean reward"] for column in columns] == ["0.500", "1.000"]
    assert [column["right"] for column in columns] == ["50.0 %", "100.0 %"]
    assert [column["tokens a reply"] for column in columns] == ["10", "30"]
    titles = [chart.title for chart, _ in plots_of(page)]
    assert titles[:2] == ["Reward and its parts", "Right"]
    assert "pass@k beside the mean" in titles


def test_hostile_text_in_every_field_does_not_run(browser: Any, tmp_path: Path) -> None:
    rows = []
    for number in range(4):
        hostile = row(1, number, 0, finish_reason="length", policy_version=number)
        hostile |= {"question": HOSTILE, "answer": HOSTILE, "group": HOSTILE, HOSTILE: 0.5}
        hostile |= {"response": f"{HOSTILE}{WORDS}\\boxed{{{HOSTILE}}}", "task": HOSTILE}
        rows.append(hostile | {"reward": float(number > 1), "id": HOSTILE, "step": number})
    rows.append(rows[0] | {"response": None, "error": HOSTILE})
    path = tmp_path / "rows.jsonl"
    write_rows(path, rows)
    with browser.new_context(viewport={"width": 380, "height": 900}) as context:
        page = watched(context.new_page(), write_report(path))
        for summary in page.locator("main summary").all():
            summary.click()
        assert "<script>window.hacked = 1</script>" in page.inner_text("main")
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main style, main script").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 380
        assert page.problems == []
        shot(page, "replies-380")


def test_link_of_a_fault_opens_its_reply(browser: Any, tmp_path: Path) -> None:
    rows = healthy_rows()
    rows[2]["reward"] = 1.0
    page_of(tmp_path, rows)
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        page = watched(context.new_page(), write_report(tmp_path / "rows.jsonl"))
        page.locator(".fault a").first.click()
        page.locator("#debate[data-debate='2']").wait_for()
        text = page.inner_text("#debate")
        assert "Attempt 2" in text
        assert "checked here: 0 ✗ wrong" in text
        assert "Agent" not in text
        assert "Round" not in text
        assert page.inner_text("#found") == "8 of 8 replies"
        assert page.problems == []
        shot(page, "replies-1280")


def test_methods_weigh_lengths_as_their_papers_say(tmp_path: Path) -> None:
    rows = [
        row(1, 0, 2, completion_tokens=10, advantage=0.5),  # right
        row(1, 1, 0, completion_tokens=30, advantage=-0.5),
        row(2, 2, 3, completion_tokens=20, advantage=0.0),  # a dead group
        row(2, 3, 3, completion_tokens=20, advantage=0.0),
    ]
    page = page_of(tmp_path, rows)
    values = {each.method.name: each for each in method_values(page)}
    # Mean 1/2, deviation (n-1) of 1 and 0 is 1/sqrt(2): advantages ±(1/2) sqrt(2) = ±.7071.
    assert values["GRPO"].advantages == pytest.approx({0: 0.7071, 1: -0.7071, 2: 0, 3: 0}, abs=1e-4)
    assert values["GRPO"].token_weights[1] == pytest.approx(-0.7071 / 30, abs=1e-5)
    assert values["Dr. GRPO"].token_weights == {0: 0.5, 1: -0.5, 2: 0.0, 3: 0.0}
    assert values["RLOO"].advantages == {0: 1.0, 1: -1.0, 2: 0.0, 3: 0.0}  # 1 - 0 and 0 - 1
    assert set(values["DAPO"].advantages) == {0, 1}
    short = [page.replies[0]]
    long = [page.replies[1]]
    # GRPO gives both replies as much; without its mean over a reply, tokens count: 10 to 30.
    assert weight_shares(page, values["GRPO"], [short, long]) == pytest.approx([0.5, 0.5])
    assert weight_shares(page, values["Dr. GRPO"], [short, long]) == pytest.approx([0.25, 0.75])
    assert report_main([str(tmp_path / "rows.jsonl")]) == 0
    html = (tmp_path / "rows.jsonl.html").read_text()
    table = html.partition('id="advantages"')[2].partition("</table>")[0]
    assert table.count("<td>1.000</td>") == 5  # each is the file's own but for its scale


def test_sections_of_replies_have_their_own_weights(tmp_path: Path) -> None:
    replies = [
        ("<think>aaaa</think><answer>2</answer>", 1.5, 1.0),
        ("<think>aaaaaaaa</think><answer>33</answer>", 0.5, 0.0),
        ("no tags at all", 0.1, 0.0),
    ]
    rows = [
        {"prompt": "1+1?", "response": text, "reward": reward, "answer_reward": answer_reward}
        for text, reward, answer_reward in replies
    ]
    page = page_of(tmp_path, rows)
    values = method_values(page)[-1]
    assert values.method.name == "ours (by section)"
    # Rewards 1.5, .5, .1 have the mean .7; parts 1, 0, 0 have the mean 1/3.
    assert values.section_weights[0] == pytest.approx({"think": 0.8, "answer": 2 / 3})
    assert values.section_weights[1] == pytest.approx({"think": -0.2, "answer": -1 / 3})
    assert 2 not in values.section_weights
    first, second, third = page.replies
    # Each character of a section, and none of a tag: 4 of thought and 1 of the answer.
    assert values.reply_weight(page, first) == pytest.approx(4 * 0.8 + 1 * 2 / 3)
    assert values.reply_weight(page, second) == pytest.approx(8 * 0.2 + 2 / 3)
    # A reply without the sections has its advantage of −.6 on all 14 characters.
    assert values.reply_weight(page, third) == pytest.approx(14 * 0.6)
    assert report_main([str(tmp_path / "rows.jsonl")]) == 0
    assert "think 0.8, answer 0.67" in (tmp_path / "rows.jsonl.html").read_text()


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


def test_hostile_text_under_other_rewards_does_not_run(browser: Any, tmp_path: Path) -> None:
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
