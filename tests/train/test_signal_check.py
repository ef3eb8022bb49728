"""What --check reports of settings under which nothing can be learned."""

from pathlib import Path
from typing import Any

import pytest

from debate_train.recipe import Recipe
from debate_train.recipe.check import CheckReport, check
from debate_train.recipe.files import find_recipe, load_recipe
from debate_train.recipe.scripted_debates import scripted_step, small_recipe
from debate_train.recipe.signal_check import SignalCheck
from debate_train.recipe.stream_shares import ValuedStream, credit_mass
from train.small_recipes import recipe_of, write_rows

BASE = """\
name: t
steps: 10
model: {type: scratch, context_window: 4096}
data: {type: signs_puzzle, batch_size: 8, largest_digit: 4}
debate: {type: simultaneous, num_agents: 5, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 64}
advantage: {baseline: question_round}
evaluation: {questions: 4}
"""
JUDGED = """\
debate.type=judged debate.max_rounds=3 debate.judges=4 rollout.debates_per_question=4
reward.type=judged
"""
SINGLE_REPLIES = """\
debate.type=direct rollout.debates_per_question=4 advantage.baseline=prompt advantage.scale=std
"""


def recipe(changes: str) -> Recipe:
    return recipe_of(BASE, changes)


def questions(path: Path, **columns: object) -> str:
    """Write forty questions with these further columns; return the changes that read them."""
    write_rows(path, ({"question": f"{n} ?", **columns} for n in range(40)))
    return f"data.type=questions data.path={path} data.batch_size=8"


@pytest.mark.parametrize(
    ("reward", "changes", "why"),
    [
        ("win_rate", "debate.num_agents=2", "found 2 agents"),
        ("win_minus_loss", "debate.max_rounds=1", "found 5 agents, 1 round,"),
        ("v2", "debate.contract=boxed", "contract boxed has no comparison section"),
        (
            "win_rate",
            "debate.num_agents=4 debate.topology=sparse debate.degree=1",
            "topology sparse, degree 1 and",
        ),
    ],
)
def test_check_warns_when_no_vote_can_count(reward: str, changes: str, why: str) -> None:
    report = check(recipe(f"reward.type={reward} {changes}"))
    (warning,) = report.warnings
    assert warning.startswith(f"nothing is learned: {reward} counts comparisons, and")
    assert why in warning
    assert report.errors == []


NOTHING = "nothing is learned: "
NO_JUDGE = "reward: no value of stream judge reaches a token: "


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ("reward.type=persuasion", f"{NOTHING}persuasion compares votes on"),
        ("reward.type=conl", f"{NOTHING}conl compares two rankings"),
        ("reward.type=judged", f"{NOTHING}judged pays what judges decide; expected debate.type"),
        (
            f"{JUDGED} debate.opponent=critic reward.judge=agreement",
            f"{NO_JUDGE}reward.judge agreement compares",
        ),
        (
            "reward.type=overlong reward.max_tokens=256 reward.buffer=64",
            f"{NOTHING}overlong begins above 192 tokens",
        ),
        (
            "reward.type=verifiable advantage.streams='{generator: {sections: [poem]}}'",
            f"{NOTHING}advantage.streams.generator.sections: found none",
        ),
    ],
)
def test_check_names_values_that_reach_no_token(changes: str, warning: str) -> None:
    (text,) = check(recipe(changes)).warnings
    assert text.startswith(warning)


@pytest.mark.parametrize(
    "changes",
    [
        "reward.type=win_rate debate.num_agents=3",
        "reward.type=persuasion debate.num_agents=3 debate.max_rounds=3",
        "reward.type=truth_judge debate.num_agents=3",
        f"{JUDGED} debate.opponent=critic reward.judge=truth",
        "reward.consensus=peer_prediction",
        "reward.type=overlong reward.max_tokens=64 reward.buffer=16",
        "reward.type=partial_trajectory debate.type=actor_critic debate.continuations=2",
        f"reward.type=majority {SINGLE_REPLIES}",
        "reward.type=majority reward.scope=debate debate.num_agents=3",
    ],
)
def test_check_is_content_where_every_value_may_reach_a_token(changes: str) -> None:
    phase = recipe(changes)
    assert not any("teach" in text or "learned" in text for text in check(phase).warnings)
    signal = SignalCheck.of(phase)
    assert signal is not None
    assert signal.taught == set(signal.trained)


@pytest.mark.parametrize("consensus", ["correlated_agreement", "determinant_mutual_information"])
def test_check_plays_as_many_questions_as_judges_need(consensus: str) -> None:
    changes = f"reward.type=v2_peer_scores reward.consensus={consensus}"
    signal = SignalCheck.of(recipe(changes))
    assert signal is not None
    assert signal.taught == set(signal.trained)
    assert ("judge", "") in signal.trained
    (warning,) = check(recipe(f"{changes} data.batch_size=2")).warnings
    assert f"{consensus} compares verdicts with those on other questions" in warning
    assert "a step has 2 questions" in warning


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ("debate.num_agents=3", "each pair has one judge a round"),
        ("debate.num_agents=4", "each pair has two judges a round"),
        ("debate.num_agents=3 debate.contract=boxed", None),
        # Who is not trained need not be many.
        (
            "debate.num_agents=3 advantage.streams='{generator: {}, judge: {weight: 0}}'",
            None,
        ),
        ("debate.topology=ring", "at most 1 agents see both of a pair"),
        ("debate.topology=sparse debate.degree=4", None),  # as all: three judges a pair
    ],
)
def test_few_judges_are_named_only_where_there_are_few(changes: str, warning: str | None) -> None:
    about_judges = [
        text
        for text in check(recipe(changes)).warnings
        if "see both" in text or "judges a" in text or "one judge" in text
    ]
    assert len(about_judges) == (warning is not None)
    assert all(warning in text for text in about_judges if warning)


@pytest.mark.parametrize(
    "reward",
    [
        "reward.type=verifiable",
        "reward.type=truth_judge",
        "reward.type=partial_trajectory",
        "reward.type=v2_control reward.consensus=none reward.votes_from='{tpr: 0.9, fpr: 0.2}'",
    ],
)
def test_check_refuses_truth_without_answers(reward: str, tmp_path: Path) -> None:
    report = check(recipe(f"{questions(tmp_path / 'q.jsonl')} {reward}"))
    (error,) = report.errors
    name = reward.split()[0].partition("=")[2]
    assert error.startswith(f"reward.type: {name} compares with the questions' own answers")
    assert report.warnings == []
    hub = "data.type=questions data.path=openai/gsm8k data.fields='{answer: null}'"
    assert check(recipe(f"{hub} {reward}")).errors == [error]
    answered = questions(tmp_path / "answered.jsonl", answer="7")
    assert check(recipe(f"{answered} {reward}")).errors == []


def test_check_refuses_to_select_by_the_truth_without_answers(tmp_path: Path) -> None:
    select = "debate.gate_after=[0] rollout.select='{type: in_order, rules: [{type: informative}]}'"
    (error,) = check(recipe(f"{questions(tmp_path / 'q.jsonl')} {select}")).errors
    assert error.startswith("rollout.select: found informative")
    assert "has an answer" in error
    assert check(recipe(select)).errors == []


def imitating(changes: str = "", loss: str = "sft", steps: int = 10) -> Recipe:
    """A recipe whose only phase learns from demonstrations."""
    engine = "{type: demonstrations, errors: false}"
    phase = f"""{{
        loss: {{type: {loss}}}, reward: {{type: verifiable}}, advantage: {{baseline: none}},
        rollout: {{engine: {engine}, max_tokens: 256}}, steps: {steps}
    }}"""
    return recipe(f"{changes} phases='{{warm: {phase}}}'")


def test_check_refuses_to_imitate_samples_and_demonstrations_without_imitation() -> None:
    (error,) = check(recipe("loss.type=sft")).errors
    assert error.startswith("loss.type: found sft with replies that transformers samples")
    assert check(recipe("loss.type=sft steps=0")).errors == []
    (error,) = check(imitating(loss="reinforce")).errors
    assert error.startswith("phases.warm.loss.type: found reinforce with demonstrations")
    report = check(imitating())
    assert report.errors == report.warnings == []


@pytest.mark.parametrize(
    ("solution", "debate", "message"),
    [
        ("so " * 300, "debate.type=direct debate.contract=boxed", "contract boxed"),
        ("so\n#### 42", "debate.type=direct debate.contract=boxed", None),
        (None, "debate.num_agents=3", None),
    ],
)
def test_check_refuses_demonstrations_that_teach_wrong_things(
    solution: str | None, debate: str, message: str | None, tmp_path: Path
) -> None:
    columns = {"answer": "42"} if solution is None else {"answer": "42", "solution": solution}
    changes = f"{questions(tmp_path / 'q.jsonl', **columns)} {debate}"
    errors = check(imitating(changes)).errors
    assert len(errors) == (message is not None)
    assert all(error.startswith("phases.warm.rollout.engine.type: found") for error in errors)
    assert all(message in error for error in errors if message)
    # A phase of no steps teaches nothing wrong.
    assert check(imitating(changes, steps=0)).errors == []


def v2_recipe(**changes: Any) -> Recipe:
    data: dict[str, Any] = {
        "name": "t",
        "steps": 10,
        "model": {"type": "scratch", "context_window": 4096},
        "data": {"type": "signs_puzzle", "batch_size": 8, "largest_digit": 4},
        "debate": {"num_agents": 5, "max_rounds": 2, "style": "compact", "personas": "none"},
        "rollout": {"max_tokens": 64},
        "reward": {"type": "v2"},
        "advantage": {
            "baseline": "question_round",
            "streams": {"generator": {"weight": 1}, "judge": {"weight": 2}},
        },
    }
    return Recipe.model_validate(data | changes)


def streams(generator: dict[str, float], judge: dict[str, float]) -> dict[str, Any]:
    return {"baseline": "question_round", "streams": {"generator": generator, "judge": judge}}


def test_estimate_of_the_quickstart_is_what_its_runs_measure() -> None:
    # optim/gradient_share/judge of a whole run: .932 in its first step, .947 in its 141st.
    recipe = load_recipe(find_recipe("quickstart"), model=Recipe).recipe
    report = check(recipe)
    line = next(line for line in report.lines if "shares of the gradient" in line)
    assert line == (
        "  streams' shares of the gradient in demonstrated debates: generator 0.06, judge 0.94"
    )
    # The recipe turns the detector off, so that it says this is on purpose.
    assert not any("takes" in warning for warning in report.warnings)


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ({"type": "v2"}, "1.00 in round 1, 0.00 in round 2"),
        # All answers of round 2 are right in demonstrated debates, and so are some of round 1.
        ({"type": "v2", "pool": "answer"}, "1.00 in round 1, 0."),
        ({"type": "verifiable"}, None),
    ],
)
def test_check_says_which_answers_earn_nothing(
    reward: dict[str, Any], expected: str | None
) -> None:
    lines = [line for line in check(v2_recipe(reward=reward)).lines if "with a value" in line]
    if expected is None:
        assert lines == []
    else:
        assert lines[0].startswith(f"  answers with a value in demonstrated debates: {expected}")
        assert (lines[0].endswith("0.00 in round 2")) == ("pool" not in reward)


def test_mass_of_a_stream_is_proportional_to_its_weight() -> None:
    masses = []
    for weight in (1.0, 3.0):
        recipe = v2_recipe(advantage=streams({"weight": 1}, {"weight": weight}))
        small = small_recipe(recipe)
        assert small is not None
        masses.append(credit_mass(small, scripted_step(small, 0, answers=True)))
    light, heavy = masses
    judge, generator = ValuedStream("judge", ""), ValuedStream("generator", "")
    assert heavy[judge] == pytest.approx(3 * light[judge]) and light[judge] > 0
    assert heavy[generator] == pytest.approx(light[generator]) and light[generator] > 0


@pytest.mark.parametrize(
    ("advantage", "names_judge"),
    [
        (streams({"weight": 1}, {"weight": 6}), True),
        (streams({"weight": 1}, {"weight": 0}), False),
        (streams({"weight": 1}, {"weight": 6, "share": 0.5}), False),
    ],
    ids=["weights", "one stream alone", "shares set"],
)
def test_check_names_the_stream_with_most_of_the_gradient(
    advantage: dict[str, Any], names_judge: bool
) -> None:
    report = check(v2_recipe(advantage=advantage))
    warnings = [text for text in report.warnings if text.startswith("advantage.streams: in ")]
    assert len(warnings) == names_judge
    if names_judge:
        assert "stream judge takes 0.9" in warnings[0]
        assert warnings[0].endswith("at most 0.8, by advantage.streams.judge.share or weight")


IDLE_BASE = """\
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
    return check(recipe_of(IDLE_BASE.format(rows=rows), changes))


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
