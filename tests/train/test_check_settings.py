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


SIMULTANEOUS = {"num_agents": 3, "max_rounds": 2}
NO_VOTES = {"type": "simultaneous", **SIMULTANEOUS, "contract": "boxed"}
QUESTIONS = {"questions": 4}
IDLE: list[tuple[dict[str, Any], str]] = [
    ({"loss": {"type": "ppo_clip", "kl": {"reference": "base"}}}, "loss.kl.reference: changes"),
    ({"loss": {"type": "ppo_clip", "importance_cap": 3.0}}, "loss.importance_cap: changes"),
    ({"loss": {"type": "reinforce", "allow_off_policy": True}}, "loss.allow_off_policy: changes"),
    ({"trainer": {"min_lr_ratio": 0.1}}, "trainer.min_lr_ratio: changes nothing"),
    (
        {
            "advantage": {
                "baseline": "batch",
                "streams": {
                    "generator": {"baseline": "question_round"},
                    "judge": {"baseline": "question_round"},
                },
            }
        },
        "advantage.baseline: changes nothing",
    ),
    (
        {"advantage": {"streams": {"generator": {}, "judge": {}, "critic": {"weight": 2.0}}}},
        "advantage.streams.critic: changes nothing",
    ),
    ({"debate": {**SIMULTANEOUS, "gate_after": [0]}}, "debate.gate_after: changes nothing"),
    (
        {"rollout": {"max_tokens": 64, "policies": {"weak": {"type": "start"}}}},
        "rollout.policies.weak: changes nothing",
    ),
    (
        {
            "pipeline": {"max_staleness": 1},
            "offline": {"type": "answer_pairs"},
            "loss": {"type": "dpo"},
        },
        "pipeline.max_staleness: changes nothing",
    ),
    (
        {
            "offline": {"type": "answer_pairs", "imported": {"contract": "answer_line"}},
            "loss": {"type": "dpo"},
        },
        "offline.imported: changes nothing",
    ),
    (
        {"evaluation": {"questions": 0, "runs": 3, "every": 1}},
        "evaluation.every, evaluation.runs: change nothing",
    ),
    (
        {"evaluation": {**QUESTIONS, "direct_samples": 8, "modes": {"direct": None}}},
        "evaluation.direct_samples: changes nothing",
    ),
    (
        {"evaluation": {**QUESTIONS, "num_agents": 4, "modes": {"debate": None}}},
        "evaluation.num_agents: changes nothing",
    ),
    ({"evaluation": {**QUESTIONS, "target": True}}, "evaluation.target: changes nothing"),
    ({"evaluation": {**QUESTIONS, "before": "train"}}, "evaluation.before: changes nothing"),
    ({"recording": {"every": 3, "debates": 0}}, "recording.every: changes nothing"),
    ({"health": {"enabled": False, "window": 4}}, "health.window: changes nothing"),
    (
        {
            "evaluation": {**QUESTIONS, "every": 1, "debate": NO_VOTES},
            "checkpoint": {"keep_best": {"metric": "eval/judge/accuracy"}},
        },
        "checkpoint.keep_best.metric: found eval/judge/accuracy, which has no value",
    ),
    (
        {
            "evaluation": QUESTIONS,
            "debate": NO_VOTES,
            "reward": {"type": "verifiable"},
            "exit_criterion": {
                "metric": "eval/judge/accuracy",
                "at_least": 0.5,
                "max_steps": 1,
                "every": 7,
            },
        },
        "exit_criterion.metric: found eval/judge/accuracy, which has no value",
    ),
]


@pytest.mark.parametrize(("changes", "warning"), IDLE, ids=[warning for _, warning in IDLE])
def test_each_setting_that_changes_nothing_is_named(
    tmp_path: Path, changes: dict[str, Any], warning: str
) -> None:
    assert any(line.startswith(warning) for line in checked(tmp_path, **changes).warnings)


def test_a_file_has_no_splits_and_its_keys_are_named(tmp_path: Path) -> None:
    checked(tmp_path)
    data = {"type": "questions", "path": str(tmp_path / "rows.jsonl"), "batch_size": 2}
    report = checked(tmp_path, data=data | {"config": "main", "split": "validation"})
    assert any(line.startswith("data.config, data.split: change ") for line in report.warnings)


def test_a_mode_whose_figures_cannot_have_values_is_named_with_the_cause(tmp_path: Path) -> None:
    (tmp_path / "open.jsonl").write_text(
        "".join(json.dumps({"question": f"q {n}"}) + "\n" for n in range(9))
    )
    data = {"type": "questions", "path": str(tmp_path / "open.jsonl"), "batch_size": 2}
    evaluation = {"questions": 2, "headline": ["eval/direct/accuracy"]}
    report = checked(tmp_path, data=data, evaluation=evaluation)
    (warning,) = [line for line in report.warnings if line.startswith("evaluation.headline")]
    assert "eval/direct/accuracy, which has no value" in warning
    assert "no question has an answer" in warning


def test_settings_that_one_phase_reads_are_not_named(tmp_path: Path) -> None:
    phases = {"first": {"trainer": {"schedule": "linear"}}, "second": {}}
    report = checked(tmp_path, trainer={"min_lr_ratio": 0.1}, phases=phases)
    assert not any("min_lr_ratio" in line for line in report.warnings)


@pytest.mark.parametrize("change", [{}, {"evaluation": {"questions": 4, "num_agents": 3}}])
def test_settings_that_repeat_what_holds_are_not_named(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    assert not any("nothing:" in line for line in checked(tmp_path, **change).warnings)
