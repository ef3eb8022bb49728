"""Settings that would change nothing, or teach nothing: refused or named by `--check`."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_train.recipe import Recipe
from debate_train.recipe.check import CheckReport, check


def checked(folder: Path, **changes: Any) -> CheckReport:
    rows = [{"question": f"q {n}", "answer": str(n), "passage": "text"} for n in range(9)]
    rows[0].pop("passage")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch", "context_window": 4096},
        "data": {"type": "questions", "path": str(folder / "rows.jsonl"), "batch_size": 2},
        "debate": {"num_agents": 3, "max_rounds": 2},
        "rollout": {"max_tokens": 64},
        "evaluation": {"questions": 0},
    }
    return check(Recipe.model_validate(settings | changes))


JUDGED = {"reward": {"type": "judged"}}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (JUDGED | {"debate": {"type": "judged", "private": ["pasage"]}}, "mean 'passage'"),
        (JUDGED | {"debate": {"type": "judged", "private": ["text"]}}, "debate.private"),
        (
            {"evaluation": {"questions": 1, "debate": {"type": "judged", "private": ["choices"]}}},
            "evaluation.debate.private",
        ),
        (
            {"reward": {"type": "win_rate"}, "advantage": {"streams": {"generator": {}}}},
            "win_rate has values for return alone",
        ),
        ({"advantage": {"streams": {"generator": {"weight": 0.0}}}}, "no token would be trained"),
    ],
)
def test_what_hides_nothing_or_trains_no_token_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: str
) -> None:
    assert any(error in line for line in checked(tmp_path, **changes).errors)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        (JUDGED | {"debate": {"type": "judged", "private": ["passage"]}}, "debate.private"),
        (
            {"rollout": {"max_tokens": 64, "other_forms": [{"type": "direct"}]}},
            "rollout.other_forms.0",
        ),
        ({"debate": {"style": "compact", "personas": "default"}}, "debate.personas"),
    ],
)
def test_what_changes_little_is_named(
    tmp_path: Path, changes: dict[str, Any], warning: str
) -> None:
    report = checked(tmp_path, **changes)
    assert any(warning in line for line in report.warnings) and not report.errors


def test_a_speech_alone_in_its_group_is_not_said_to_lack_judges(tmp_path: Path) -> None:
    debate = {"type": "judged", "opponent": "critic"}
    report = checked(tmp_path, **JUDGED, debate=debate)
    assert any("advantage.baseline" in line for line in report.warnings)
    assert not any("debate.type" in line for line in report.warnings)


@pytest.mark.parametrize(("contract", "is_named"), [("answer_line", True), ("boxed", False)])
def test_answers_of_several_lines_need_a_contract_that_holds_them(
    tmp_path: Path, contract: str, is_named: bool
) -> None:
    rows = [{"question": f"Row {n} and its double?", "answer": f"{n}\n{2 * n}"} for n in range(9)]
    path = tmp_path / "grids.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"type": "questions", "path": str(path), "kind": "text", "batch_size": 2}
    debate = {"num_agents": 3, "max_rounds": 2, "contract": contract}
    report = checked(tmp_path, data=data, debate=debate, reward={"type": "verifiable"})
    named = [line for line in report.warnings if "have several lines" in line]
    assert bool(named) is is_named
