import logging

import pytest
from pydantic import TypeAdapter, ValidationError

from debate_protocol.types import Protocol, Question, Transcript, Turn
from debate_rewards.metrics import debate_metrics
from debate_rewards.rewards import Mixed, RewardChoice, Verifiable

SILENT = ["", "", ""]
TRUE_S1 = {"answer": "s1"}


def values(score, stream="generator"):
    return {(c.agent, c.round): c.value for c in score.credits if c.stream == stream and not c.span}


@pytest.mark.parametrize(("kind", "wrong"), [("plus_minus", -1.0), ("zero_one", 0.0)])
def test_verifiable_values_every_valid_turn(hold, kind, wrong):
    (score,) = Verifiable(values=kind)([hold(SILENT, ["", None, ""], **TRUE_S1)])
    assert values(score) == {
        (0, 0): wrong,
        (1, 0): 1.0,
        (2, 0): wrong,
        (0, 1): wrong,
        (1, 1): -1.0,
        (2, 1): wrong,
    }
    assert [c.penalty for c in score.credits] == [False] * 4 + [True, False]
    assert score.agents == (wrong, 0.0, wrong)


@pytest.mark.parametrize(
    ("text", "strict", "worth"),
    [
        ("<solution>s1</solution><evaluation>N/A</evaluation><comparison>N/A</comparison>", 1, 1.0),
        # What a policy found that was paid for its answer alone: no tag is ever closed.
        ("<solution>\\boxed{s1}>N/N}>N>N", 0, 0.5),
        ("<solution>s1</solution><solution>s1</solution>", 0, 0.5),
        ("<solution>s2</solution>", 0, -1.0),  # -1 - .5, but no less than a turn that fails
    ],
)
def test_verifiable_prices_a_broken_contract(text, strict, worth):
    question = Question("q", "?", "s1", {"kind": "text"})
    debate = Transcript("d", question, Protocol(1), (Turn(0, 0, text),))
    (score,) = Verifiable(contract_penalty=-0.5)([debate])
    assert score.agents == (worth,)
    assert Verifiable()([debate])[0].agents == (1.0 if "s1" in text else -1.0,)
    metrics = debate_metrics([debate])
    assert (metrics["format_all"], metrics["format_strict"]) == (1.0, strict)


def test_verifiable_drops_and_names_a_question_without_usable_answer(hold, caplog):
    with caplog.at_level(logging.WARNING):
        (score,) = Verifiable()([hold(SILENT, ["", None, ""], id="row-7")])
    assert {(c.value, c.expected, c.penalty) for c in score.credits} == {(None, False, False)}
    assert score.agents == (None, None, None)
    assert score.metrics["verifiable/unverifiable_gold"] == 1
    assert "row-7" in caplog.text


def test_verifiable_counts_unreadable_predictions_apart(hold):
    answers = {(0, 0): "maybe", (1, 0): "yes", (2, 0): "no"}
    debate = hold(SILENT, answers=answers, answer="yes", meta={"kind": "yes_no"})
    (score,) = Verifiable()([debate])
    assert score.agents == (-1.0, 1.0, -1.0)
    assert score.metrics["verifiable/unreadable_predictions"] == 1


def weights_of(reward):
    return {name: part.weight for name, part in reward.parts().items()}


def mixed(**options):
    config = {
        "type": "mixed",
        "components": {
            "peers": {"reward": {"type": "v2"}, "weight": 0.7},
            "truth": {"reward": {"type": "verifiable"}, "weight": 0.3},
        },
        **options,
    }
    return TypeAdapter(RewardChoice).validate_python(config)


def test_mixed_advantages_keeps_components_apart(hold):
    debate = hold(SILENT, ["A1>A2", "A0=A2", "A1>A0"], **TRUE_S1)
    (score,) = mixed()([debate])
    first = [c for c in score.credits if c.stream == "generator" and (c.agent, c.round) == (1, 0)]
    assert [(c.component, c.weight, c.value) for c in first] == [
        ("peers", 0.7, 1.0),
        ("truth", 0.3, 1.0),
    ]
    unvoted = [c for c in score.credits if c.stream == "generator" and (c.agent, c.round) == (0, 1)]
    assert [c.value for c in unvoted] == [None, -1.0]
    # Agent 0: .7 * -0.5 + .3 * -1.
    assert score.agents == pytest.approx((-0.65, 1.0, -0.65))
    assert score.metrics["v2/total_votes"] == 3
    assert score.metrics["verifiable/right"] == pytest.approx(1 / 3)


def test_mixed_rewards_adds_raw_values_and_none_adds_nothing(hold):
    debate = hold(SILENT, ["A1>A2", "A0=A2", "A1>A0"], **TRUE_S1)
    (score,) = mixed(mix="rewards")([debate])
    assert values(score)[0, 0] == pytest.approx(0.7 * -0.5 + 0.3 * -1)
    assert values(score)[1, 0] == pytest.approx(1.0)
    assert values(score)[0, 1] == pytest.approx(-0.3)
    assert values(score, "judge")[0, 1] is None
    assert {(c.component, c.weight) for c in score.credits} == {("", 1.0)}


def test_mixed_rewards_keeps_a_failed_turn_at_minus_one(hold):
    (score,) = mixed(mix="rewards")([hold([None, "", ""], **TRUE_S1)])
    failed = [c for c in score.credits if c.agent == 0]
    assert [(c.value, c.penalty) for c in failed] == [(-1.0, True)]


def test_mixed_leaves_peers_when_the_truth_is_unusable(hold):
    debate = hold(SILENT, ["A1>A2", "A0=A2", "A1>A0"])
    (score,) = mixed(mix="rewards")([debate])
    assert values(score)[1, 0] == pytest.approx(0.7)
    assert values(score)[1, 1] is None


def test_mixed_tells_shared_metrics_apart(hold):
    component = {"reward": {"type": "v2"}, "weight": 1.0}
    (score,) = Mixed.model_validate({"components": {"a": component, "b": component}})(
        [hold(SILENT)]
    )
    assert "a/v2/total_votes" in score.metrics
    assert "b/v2/total_votes" in score.metrics


@pytest.mark.parametrize(
    "config",
    [
        {"type": "v3"},
        {"type": "v2", "unvotd": "zero"},
        {"type": "v2", "format_penalty": 0.5},
        {"type": "mixed", "components": {}},
    ],
)
def test_reward_config_refuses_what_it_does_not_know(config):
    with pytest.raises(ValidationError):
        TypeAdapter(RewardChoice).validate_python(config)


@pytest.mark.parametrize("name", ["win_rate", "win_minus_loss", "v2", "verifiable"])
def test_every_reward_takes_an_empty_batch(name):
    assert TypeAdapter(RewardChoice).validate_python({"type": name})([]) == []


def test_fading_weight_is_that_of_the_step(hold):
    fading = {"start": 0.6, "end": 0.2, "steps": 4}
    parts = {
        "truth": {"reward": {"type": "verifiable"}, "weight": fading},
        "peers": {"reward": {"type": "v2"}, "weight": 1.0},
    }
    reward = mixed(components=parts, mix="rewards")
    debate = hold(SILENT, **TRUE_S1)
    # Agent 1 is right, 0 and 2 are wrong, and nobody voted: what is left is the truth's weight,
    # 0.6 - 0.4 * step / 4 until it is 0.2.
    for step, weight in enumerate([0.6, 0.5, 0.4, 0.3, 0.2, 0.2]):
        (score,) = reward.at(step)([debate])
        assert score.agents == pytest.approx((-weight, weight, -weight))
        assert score.metrics["reward/weight/truth"] == pytest.approx(weight)
        assert "reward/weight/peers" not in score.metrics
    assert weights_of(reward) == {"truth": 0.6, "peers": 1.0}
    later = {"truth": {**parts["truth"], "weight": {"start": 0, "end": 1, "steps": 2}}}
    assert weights_of(mixed(components=later)) == {"truth": 1.0}
    assert mixed().at(7) == mixed()
