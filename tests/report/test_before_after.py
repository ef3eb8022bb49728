"""The sentence and the forest plot that open the report of a run."""

import re

import pytest

from debate_report.before_after import headline_of, results


def row(measure: str, name: str, change: float, half: float) -> dict[str, object]:
    before = {"mean": 0.5, "low": 0.45, "high": 0.55}
    after = {"mean": 0.5 + change, "low": 0.45 + change, "high": 0.55 + change}
    ends = {"difference": change, "low": change - half, "high": change + half}
    counts = {"won": 30, "lost": 10, "questions": 256}
    return {"measure": measure, "name": name, "before": before, "after": after} | {
        "change": ends | counts
    }


RESULTS: dict[str, object] = {
    "summary": "Long words.",
    "headline": ["eval/direct/accuracy", "eval/judge/accuracy"],
    "table": [
        row("majority vote", "eval/maj/last", 0.12, 0.2),
        row("direct accuracy", "eval/direct/accuracy", 0.04, 0.02),
        row("judge accuracy", "eval/judge/accuracy", -0.06, 0.01),
        row("own measure", "eval/mine/accuracy", 0.01, 0.02),
    ],
}


def test_the_sentence_is_about_the_measures_that_are_trained() -> None:
    assert headline_of(RESULTS) == (
        "Direct accuracy rose from 50.0 % to 54.0 %; judge accuracy fell from 50.0 % to 44.0 %."
    )
    same = {**RESULTS, "headline": ["eval/maj/last"]}
    assert headline_of(same) == ("Majority vote did not change beyond chance (50.0 % to 62.0 %).")


@pytest.mark.parametrize("headline", [[], None, ["eval/none"], [["eval/direct/accuracy"], 3]])
def test_without_a_trained_measure_the_summary_stands_there(headline: object) -> None:
    assert headline_of({**RESULTS, "headline": headline}) == "Long words."


def test_what_changed_most_stands_first_and_what_may_be_chance_last() -> None:
    page = results(RESULTS)
    order = re.findall(r'<th scope="row">([a-z ]+)', page)
    assert order == ["judge accuracy", "direct accuracy", "majority vote", "own measure"]
    assert page.count('class="dot beyond"') == 2 and page.count('class="dot"') == 2
    assert "votes that prefer a right answer to a wrong one" in page
    assert "30 up, 10 down of 256" in page


def test_the_plot_holds_every_interval_and_zero() -> None:
    page = results(RESULTS)
    # All intervals reach from -.08 (majority: .12 - .2) to .32; the margins are .04 of this.
    low, high = -0.08 - 0.016, 0.32 + 0.016

    def place(change: float) -> str:
        return f"{round(2 + 96 * (change - low) / (high - low), 1):g}%"

    assert f'<line x1="{place(-0.08)}"' in page and f'<circle cx="{place(0.12)}"' in page
    assert f'<text x="{place(0)}" y="12" class="zero">0</text>' in page
    ends = [float(at) for at in re.findall(r'(?:x1|x2|cx)="([\d.]+)%"', page)]
    assert min(ends) >= 2 and max(ends) <= 98


def test_measures_that_are_no_shares_have_no_plot() -> None:
    lengths = {"measure": "length", "before": 120.0, "after": {"mean": 95.5}}
    page = results({"table": [lengths], "summary": "Shorter."})
    assert "<svg" not in page and "−24.500" in page and "Shorter." in page
