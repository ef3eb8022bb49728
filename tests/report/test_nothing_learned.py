"""Runs whose last steps moved no token, and the cause that is said first."""

import json
from pathlib import Path

import pytest

from debate_report import write_report
from debate_report.nothing_learned import ZERO, why_nothing_learned

DEAD = {ZERO: 1.0}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{**DEAD, "judged/unread": 1.0, "advantage/zero/no_value": 1.0}], "judged/unread"),
        ([{**DEAD, "train/format_all": 0.0}], "100% of the turns could not be read"),
        ([{**DEAD, "train/format_all": 1.0, "advantage/zero/no_value": 1.0}], "no_value"),
        ([{**DEAD, "advantage/zero/no_value": 0.5}], "worth the same"),
        ([DEAD, {ZERO: 0.9}], None),
        ([{"eval/format": 1.0}], None),
    ],
)
def test_the_cause_is_said_where_no_turn_has_an_advantage(
    rows: list[dict[str, float]], reason: str | None
) -> None:
    found = why_nothing_learned(rows)
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_report_of_a_run_that_learned_nothing_begins_with_that(
    tmp_path: Path, share: float
) -> None:
    rows = [{"phase": "train", "step": n, "loss": 0.0, ZERO: share} for n in range(1, 4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(tmp_path).read_text()
    assert ("Nothing could be learned in the last 3 steps" in page) == (share == 1.0)
