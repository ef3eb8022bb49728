"""Values of states where the odds are known: estimates come out as near as their errors say."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean

import pytest

from debate_protocol.forms import ActorCritic
from debate_protocol.types import Branch, Question, Reply, Transcript, Turn, TurnRequest
from debate_rewards.turn_rewards import StateValue, state_values
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine
from debate_train.offline import GuidedPairs

QUESTIONS, ROLLOUTS = 100, 20
ODDS = {"plain": 0.5, "helpful": 0.8, "harmful": 0.2}
"""How likely the actor's next answer is right, by the critic's last word."""


def said(request: TurnRequest) -> str:
    """Draw an answer by the odds that what was said last leaves; a guided critic is so inclined."""
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


@cache
def debates() -> list[Transcript]:
    form = ActorCritic(max_rounds=2, guided=True, guide_round_zero=True, continuations=ROLLOUTS)
    asked = [
        Question(f"q{n}", f"Is it so ({n})?", "yes", meta={"kind": "yes_no"})
        for n in range(QUESTIONS)
    ]
    runs = [form.start(question, seed=n) for n, question in enumerate(asked)]
    return play(runs, ScriptedEngine().open(script=said), max_tokens=64)


def states(guide: str | None) -> list[StateValue]:
    """Return the states after the critic's replies, guided so."""
    found = [state for states in state_values(debates()) for state in states]
    return [one for one in found if one.key.agent == 1 and one.guide == guide]


@pytest.mark.parametrize(
    ("guide", "odds"), [(None, 0.5), ("yes", 0.8), ("no", 0.2)], ids=["natural", "right", "wrong"]
)
def test_values_are_as_near_to_the_odds_as_their_errors_say(guide: str | None, odds: float) -> None:
    found = states(guide)
    assert [one.rollouts for one in found] == [ROLLOUTS] * QUESTIONS
    values = [one.value for one in found if one.value is not None]
    errors = [one.standard_error for one in found if one.standard_error is not None]
    assert len(values) == len(errors) == QUESTIONS
    # The mean over all roll-outs, of deviation sqrt(p(1 - p)/2000), at most 0.011.
    variance = odds * (1 - odds) / ROLLOUTS
    assert abs(fmean(values) - odds) < 3 * (variance / QUESTIONS) ** 0.5
    # The square of an error estimates the variance of a value without bias: n - 1 below p(1 - p).
    assert fmean(error**2 for error in errors) == pytest.approx(variance, rel=0.1)
    # So do the squares of what the values are off by; chi-square of 100 has deviation 0.14.
    assert fmean((value - odds) ** 2 for value in values) == pytest.approx(variance, rel=0.45)
    off = [abs(v - odds) > 2 * e for v, e in zip(values, errors, strict=True)]
    assert sum(off) <= 15  # 5 are expected of a normal value, more of one of 21.


def test_pairs_of_known_odds_are_those_of_their_gains() -> None:
    # Gains of .3 either way: nearly all states have a pair at .1, few at .6.
    played = with_tokens(debates())
    taken = GuidedPairs(role="critic", threshold=0.1).take(played)
    assert taken.counts["kept/toward_right"] > 0.8 * QUESTIONS
    few = GuidedPairs(role="critic", threshold=0.6).take(played)
    assert sum(few.counts.values()) == QUESTIONS
    assert few.counts["left_out/below_threshold"] > 0.8 * QUESTIONS
    for example in taken.examples:
        assert "helpful" in example.chosen.text or "plain" in example.chosen.text
    metrics = {f"offline/{name}": fmean(found) for name, found in taken.measures.items()}
    assert GuidedPairs(role="critic").doubt(metrics) is None


def with_tokens(played: Sequence[Transcript]) -> list[Transcript]:
    """Return the debates with their texts' bytes as tokens: the script samples none."""

    def heard(turn: Turn) -> Turn:
        reply = Reply(turn.text, "end", (1,), tuple(turn.text.encode()))
        branches = tuple(Branch(one.guide, heard(one.turn)) for one in turn.branches)
        return replace(turn, reply=reply, branches=branches)

    return [replace(one, turns=tuple(map(heard, one.turns))) for one in played]
