"""Settings that would change nothing, or teach nothing: refused or named by `--check`."""

from pathlib import Path

import pytest

from debate_train.recipe.check import CheckReport, check
from train.small_recipes import recipe_of, write_rows

BASE = """\
name: t
steps: 1
model: {{type: scratch, context_window: 4096}}
data: {{type: questions, path: {rows}, batch_size: 2}}
debate: {{type: simultaneous, num_agents: 3, max_rounds: 2}}
rollout: {{max_tokens: 64}}
evaluation: {{questions: 0}}
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine questions; all but the first have a passage."""
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    rows = [{"question": f"q {n}", "answer": str(n), "passage": "text"} for n in range(9)]
    rows[0].pop("passage")
    return write_rows(path, rows)


def checked(rows: Path, changes: str = "") -> CheckReport:
    return check(recipe_of(BASE.format(rows=rows), changes))


JUDGED = "reward.type=judged debate.type=judged debate.max_rounds=3"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (f"{JUDGED} debate.private=[pasage]", "mean 'passage'"),
        (
            "evaluation.questions=1 evaluation.debate='{type: judged, private: [choices]}'",
            "evaluation.debate.private",
        ),
    ],
)
def test_setting_that_hides_nothing_or_trains_no_token_is_refused(
    rows: Path, changes: str, message: str
) -> None:
    assert any(message in error for error in checked(rows, changes).errors)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        (f"{JUDGED} debate.private=[passage]", "debate.private"),
        ("debate.style=compact debate.personas=default", "debate.personas"),
    ],
)
def test_setting_that_changes_little_is_named(rows: Path, changes: str, key: str) -> None:
    report = checked(rows, changes)
    assert any(key in warning for warning in report.warnings)
    # A speech alone in its group does not lack judges.
    assert not any("debate.type" in warning for warning in report.warnings)
    assert report.errors == []


NO_VOTES = "{type: simultaneous, num_agents: 3, max_rounds: 2, contract: boxed}"
IDLE = [
    ("loss.type=ppo_clip loss.kl.reference=base", "loss.kl.reference: changes"),
    ("loss.type=ppo_clip loss.importance_cap=3", "loss.importance_cap: changes"),
    ("loss.type=reinforce loss.allow_off_policy=true", "loss.allow_off_policy: changes"),
    ("trainer.min_lr_ratio=0.1", "trainer.min_lr_ratio: changes nothing"),
    (
        "advantage.baseline=batch advantage.streams='{generator: {baseline: question_round}, "
        "judge: {baseline: question_round}}'",
        "advantage.baseline: changes nothing",
    ),
    (
        "advantage.streams='{generator: {}, judge: {}, critic: {weight: 2}}'",
        "advantage.streams.critic: changes nothing",
    ),
    ("debate.gate_after=[0]", "debate.gate_after: changes nothing"),
    ("rollout.policies='{weak: {type: start}}'", "rollout.policies.weak: changes nothing"),
    (
        "pipeline.max_staleness=1 offline.type=answer_pairs loss.type=dpo",
        "pipeline.max_staleness: changes nothing",
    ),
    (
        "offline.type=answer_pairs offline.imported='{contract: answer_line}' loss.type=dpo",
        "offline.imported: changes nothing",
    ),
    ("evaluation.runs=3 evaluation.every=1", "evaluation.every, evaluation.runs: change nothing"),
    (
        "evaluation.questions=4 evaluation.direct_samples=8 evaluation.modes='{direct: null}'",
        "evaluation.direct_samples: changes nothing",
    ),
    (
        "evaluation.questions=4 evaluation.num_agents=4 evaluation.modes='{debate: null}'",
        "evaluation.num_agents: changes nothing",
    ),
    ("evaluation.questions=4 evaluation.target=true", "evaluation.target: changes nothing"),
    ("evaluation.questions=4 evaluation.before=train", "evaluation.before: changes nothing"),
    ("recording.every=3 recording.debates=0", "recording.every: changes nothing"),
    ("health.enabled=false health.window=4", "health.window: changes nothing"),
    (
        f"evaluation.questions=4 evaluation.every=1 evaluation.debate='{NO_VOTES}' "
        "checkpoint.keep_best.metric=eval/judge/accuracy",
        "checkpoint.keep_best.metric: found eval/judge/accuracy, which has no value",
    ),
    (
        f"evaluation.questions=4 debate='{NO_VOTES}' reward.type=verifiable "
        "exit_criterion='{metric: eval/judge/accuracy, at_least: 0.5, max_steps: 1, every: 7}'",
        "exit_criterion.metric: found eval/judge/accuracy, which has no value",
    ),
    (
        "data.config=main data.split=validation",
        "data.config, data.split: change nothing",
    ),
]


@pytest.mark.parametrize(("changes", "warning"), IDLE, ids=[warning for _, warning in IDLE])
def test_each_setting_that_changes_nothing_is_named(rows: Path, changes: str, warning: str) -> None:
    assert any(text.startswith(warning) for text in checked(rows, changes).warnings)


@pytest.mark.parametrize(
    "changes",
    [
        "",
        "evaluation.questions=4 evaluation.num_agents=3",  # repeats what holds
        # The first phase reads it.
        "trainer.min_lr_ratio=0.1 phases='{a: {trainer: {schedule: linear}}, b: {}}'",
    ],
)
def test_settings_that_are_read_are_not_named(rows: Path, changes: str) -> None:
    warnings = checked(rows, changes).warnings
    assert not any("nothing:" in text or "min_lr_ratio" in text for text in warnings)
