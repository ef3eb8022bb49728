"""Pairs from guided debates: values of states as near to known odds as their errors, and doubts."""

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest

from debate_protocol.forms import ActorCritic
from debate_protocol.types import Branch, Question, Reply, Transcript, Turn, TurnRequest
from debate_rewards.turn_rewards import StateValue, state_values
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine
from debate_train.offline import GuidedPairs

NUM_QUESTIONS, NUM_ROLLOUTS = 100, 20
ODDS = {"plain": 0.5, "helpful": 0.8, "harmful": 0.2}
"""How likely the actor's next answer is right, by the critic's last word."""


def reply_by_odds(request: TurnRequest) -> str:
    """Draw an answer by the odds after the critic's last word; a guided critic is so inclined."""
    news = request.messages[-1]["content"]
    if request.agent == 1:
        guide = news.rsplit("\n\n", 1)[-1]
        word = "plain"
        if guide.startswith("Let your"):
            word = "helpful" if " yes" in guide else "harmful"
        return f"It is {word}."
    word = next((word for word in ODDS if f"It is {word}." in news), "plain")
    is_right = random.Random(request.seed).random() < ODDS[word]
    return f"\\boxed{{{'yes' if is_right else 'no'}}}"


@pytest.fixture(scope="module")
def debates() -> list[Transcript]:
    form = ActorCritic(max_rounds=2, guided=True, guide_round_zero=True, continuations=NUM_ROLLOUTS)
    runs = []
    for number in range(NUM_QUESTIONS):
        question = Question(f"q{number}", f"Is it so ({number})?", "yes", {"kind": "yes_no"})
        runs.append(form.start(question, seed=number))
    return play(runs, ScriptedEngine().open(script=reply_by_odds), max_tokens=64)


def states_after_critic(debates: Sequence[Transcript], guide: str | None) -> list[StateValue]:
    """The states after the critic's replies with this guide."""
    return [
        state
        for states in state_values(debates)
        for state in states
        if state.key.agent == 1 and state.guide == guide
    ]


@pytest.mark.parametrize(
    ("guide", "odds"), [(None, 0.5), ("yes", 0.8), ("no", 0.2)], ids=["natural", "right", "wrong"]
)
def test_values_are_as_near_to_the_odds_as_their_errors(
    debates: list[Transcript], guide: str | None, odds: float
) -> None:
    states = states_after_critic(debates, guide)
    assert [state.rollouts for state in states] == [NUM_ROLLOUTS] * NUM_QUESTIONS
    values = [state.value for state in states if state.value is not None]
    errors = [state.standard_error for state in states if state.standard_error is not None]
    assert len(values) == len(errors) == NUM_QUESTIONS
    # The mean over all roll-outs, of deviation sqrt(p(1 - p)/2000), at most 0.011.
    variance = odds * (1 - odds) / NUM_ROLLOUTS
    assert abs(fmean(values) - odds) < 3 * (variance / NUM_QUESTIONS) ** 0.5
    # The square of an error estimates the variance of a value without bias: n - 1 below p(1 - p).
    assert fmean(error**2 for error in errors) == pytest.approx(variance, rel=0.1)
    # So do the squares of what the values are off by; chi-square of 100 has deviation 0.14.
    assert fmean((value - odds) ** 2 for value in values) == pytest.approx(variance, rel=0.45)
    num_outside = sum(abs(v - odds) > 2 * error for v, error in zip(values, errors, strict=True))
    assert num_outside <= 15  # 5 are expected of a normal value, more of one of 21.


def with_tokens(debates: Sequence[Transcript]) -> list[Transcript]:
    """Give the debates their texts' bytes as tokens: the script samples none."""

    def sampled(turn: Turn) -> Turn:
        reply = Reply(turn.text, "end", (1,), tuple(turn.text.encode()))
        branches = tuple(Branch(branch.guide, sampled(branch.turn)) for branch in turn.branches)
        return replace(turn, reply=reply, branches=branches)

    return [replace(debate, turns=tuple(map(sampled, debate.turns))) for debate in debates]


def test_pairs_of_known_odds_are_those_of_their_gains(debates: list[Transcript]) -> None:
    # Gains of .3 either way: nearly all states have a pair at .1, few at .6.
    sampled = with_tokens(debates)
    many = GuidedPairs(role="critic", threshold=0.1).take(sampled)
    assert many.counts["kept/toward_right"] > 0.8 * NUM_QUESTIONS
    few = GuidedPairs(role="critic", threshold=0.6).take(sampled)
    assert sum(few.counts.values()) == NUM_QUESTIONS
    assert few.counts["left_out/below_threshold"] > 0.8 * NUM_QUESTIONS
    for example in many.examples:
        assert "helpful" in example.chosen.text or "plain" in example.chosen.text
    metrics = {f"offline/{name}": fmean(values) for name, values in many.measures.items()}
    assert GuidedPairs(role="critic").doubt(metrics) is None


@pytest.mark.parametrize(
    ("right", "natural", "wrong", "doubt"),
    [
        # Two standard errors of a difference are 2 * sqrt(.03^2 + .04^2) = .1.
        (0.7, 0.5, 0.3, None),
        (0.7, 0.5, 0.45, "natural 0.500 (0.040), guided to a wrong answer 0.450"),
        (0.5, 0.5, 0.3, "guided to the right answer 0.500 (0.030), natural 0.5"),
        (0.4, 0.5, 0.6, "does not clearly fall in this order: guided to the r"),
    ],
)
def test_run_tells_in_words_where_guidance_did_not_work(
    right: float, natural: float, wrong: float, doubt: str | None
) -> None:
    metrics = {
        "offline/value_guided_right": right,
        "offline/value_guided_right_standard_error": 0.03,
        "offline/value_natural": natural,
        "offline/value_natural_standard_error": 0.04,
        "offline/value_guided_wrong": wrong,
        "offline/value_guided_wrong_standard_error": 0.03,
    }
    text = GuidedPairs(role="actor").doubt(metrics)
    assert (text is None) == (doubt is None)
    assert doubt is None or doubt in str(text)
    assert GuidedPairs(role="actor").doubt({}) is None
