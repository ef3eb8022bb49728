"""Rewards of single turns: length, certainty, persuasion and the value of a state."""

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.rewards.debates import (
    debate_of,
    numbers,
    round_values,
    score_of,
    span_values,
    turn_credits,
    turn_values,
)

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Reply, Transcript
from debate_rewards import (
    Certainty,
    Overlong,
    PartialTrajectory,
    Persuasion,
    state_values,
)

# ---- length ---------------------------------------------------------------------------------


def with_lengths(transcript: Transcript, lengths: list[int]) -> Transcript:
    """Set how many tokens each turn's reply has."""
    turns = []
    for turn, length in zip(transcript.turns, lengths, strict=True):
        turns.append(replace(turn, reply=Reply("", token_ids=(7,) * length)))
    return replace(transcript, turns=tuple(turns))


@pytest.mark.parametrize(
    ("options", "lengths", "expected"),
    [
        # Free up to 6, then a quarter a token, −1 from 10 on.
        pytest.param(
            {"max_tokens": 10, "buffer": 4},
            [1, 6, 7, 8, 9, 10, 300],
            "0 0 -1/4 -1/2 -3/4 -1 -1",
            id="flat, linear, flat",
        ),
        # The paper's numbers: 16,384 expected tokens and a cache of 4,096.
        pytest.param(
            {"max_tokens": 20_480, "buffer": 4_096},
            [16_384, 18_432, 20_480],
            "0 -1/2 -1",
            id="the paper",
        ),
        pytest.param(
            {"max_tokens": 10, "buffer": 4, "factor": 0.5}, [6, 8, 11], "0 -1/4 -1/2", id="factor"
        ),
        pytest.param(
            {"max_tokens": 4, "buffer": 4}, [1, 3, 4], "-1/4 -3/4 -1", id="linear from the start"
        ),
        # No token was sampled where the prompt filled the context.
        pytest.param({"max_tokens": 10, "buffer": 4}, [3, 0, 3], "0 none 0", id="no tokens"),
    ],
)
def test_overlong_replies_are_priced(
    options: dict[str, Any], lengths: list[int], expected: str
) -> None:
    debate = with_lengths(debate_of("|" * (len(lengths) - 1)), lengths)
    assert round_values(score_of(Overlong(**options), debate), 0) == numbers(expected)


def test_certainty_is_the_geometric_mean_of_probabilities() -> None:
    debate = debate_of("| | fail")
    logps_by_turn = [(math.log(0.5), math.log(0.125)), (), (math.log(0.9),)]
    turns = []
    for turn, logps in zip(debate.turns, logps_by_turn, strict=True):
        turns.append(replace(turn, reply=Reply(turn.text, logps=logps)))
    score = score_of(Certainty(), replace(debate, turns=tuple(turns)))
    # √(1/2 · 1/8) = 1/4; no log-probabilities: no signal; a failed turn: −1.
    assert round_values(score, 0) == numbers("1/4 none -1")
    assert [credit.penalty for credit in score.credits] == [False, False, True]
    assert score.metrics == {"certainty/mean": pytest.approx(0.25)}


# ---- persuasion -----------------------------------------------------------------------------

FOUR = "| | |"
CRITIQUE = {(0, 1): "Fine all. Agent 1 drops a sign. Agent 2 guesses, says agent 2."}
BEFORE = "A1=A2; A2=A3 | A2>A3 | A1>A0; A1>A3 | A1>A0; A1=A2"
AFTER = "A2>A1; A3>A1 | A3>A2 | A0>A1; A1=A3 | A1>A2"
# About agent 1. Judge 2: 2 for of 2 -> +1, then ½ of 2 -> −½: falls (1 + ½)/2 = ¾.
#   Judge 3: 1½ of 2 -> ½, then 1 of 1 -> 1: falls (½ − 1)/2 = −¼. Mean ¼.
# About agent 2. Judge 1: +1, then −1: falls 1. Judge 3: tie -> 0, then −1: falls ½. Mean ¾.
# The critic's own ballots, which would make agent 1 fall by ½, do not count.


def persuasion(debate: Transcript, agent: int = 0, round: int = 1) -> Any:
    score = score_of(Persuasion(), debate)
    return turn_values(score, "critic")[agent, round]


def test_a_critique_is_worth_the_fall_of_opinion_between_two_ballots() -> None:
    debate = debate_of(FOUR, BEFORE, AFTER, evaluations=CRITIQUE)
    score = score_of(Persuasion(), debate)
    sentences = span_values(score, debate, 0, 1, "critic")
    assert [(text.strip(), value) for text, value in sentences] == [
        ("Agent 1 drops a sign.", 0.25),
        ("Agent 2 guesses, says agent 2.", 0.75),
    ]
    assert score.agents == (0.5, None, None, None)  # The mean over the targets.
    assert score.metrics == {
        "persuasion/critiques": 2.0,
        "persuasion/critiques_with_value": 2.0,
        "persuasion/mean": 0.5,
    }
    credits = turn_credits(score, "critic")
    critic = credits.pop((0, 1))
    assert critic.expected
    assert {(credit.value, credit.expected) for credit in credits.values()} == {(None, False)}


@pytest.mark.parametrize(
    ("before", "after", "value"),
    [
        # Judge 2 says nothing of agent 1 after; judge 3 stays: −¼ and ¾.
        pytest.param(BEFORE, "| A3>A2 | A0>A3 | A1>A2", 0.25, id="a ballot without a vote"),
        pytest.param(BEFORE, "| A3>A2 | fail | A1>A2", 0.25, id="a failed judge"),
        pytest.param(BEFORE, FOUR, None, id="no votes after"),
        pytest.param(BEFORE, BEFORE, 0.0, id="opinions stay"),
    ],
)
def test_judges_count_whose_opinion_is_known_before_and_after(
    before: str, after: str, value: float | None
) -> None:
    assert persuasion(debate_of(FOUR, before, after, evaluations=CRITIQUE)) == value


def test_sequential_critiques_are_read_by_those_who_speak_next() -> None:
    # Agent 3 ends round 0 on agent 0. Judge 2 voted before it (+1) and first reads it in round 1
    # (−1): falls 1. Judge 1 had no votes in round 0.
    rounds = ("| | A0>A1 |", "| A0>A2 | A1>A0 |")
    rules: Any = {"schedule": "sequential", "max_rounds": 2}
    debate = debate_of(*rounds, evaluations={(3, 0): "Agent 0 is wrong."}, **rules)
    assert persuasion(debate, 3, 0) == 1.0
    # Agent 1 criticises 0 in round 0: 2 and 3 read it before they ever vote.
    rounds = ("| | A0>A1 | A0>A1", "| | A1>A0 | A1>A0")
    debate = debate_of(*rounds, evaluations={(0, 0): "-", (1, 0): "Weak."}, **rules)
    assert persuasion(debate, 1, 0) is None


def test_critiques_need_a_target_that_was_shown_a_judge_and_an_evaluation() -> None:
    nobody = {(0, 1): "Agent 0 is me, agent 9 is who?"}
    score = score_of(Persuasion(), debate_of(FOUR, BEFORE, AFTER, evaluations=nobody))
    assert score.metrics["persuasion/critiques"] == 0
    two_agents = debate_of("|", "|", "|", evaluations={(0, 1): "Agent 1 errs."})
    assert persuasion(two_agents) is None
    boxed = score_of(Persuasion(), debate_of(FOUR, BEFORE, AFTER, contract="boxed"))
    assert boxed.agents == (None,) * 4


# ---- the value of a state -------------------------------------------------------------------

Json = dict[str, Any]


def actor(round: int, answer: str | None, **beside: Any) -> Json:
    text = "I cannot tell." if answer is None else f"so \\boxed{{{answer}}}"
    return {"agent": 0, "round": round, "text": text, "shown": []} | beside


def critic(round: int, text: str = "look again", **beside: Any) -> Json:
    return {"agent": 1, "round": round, "text": text, "shown": [[0, round]]} | beside


def after_actor(round: int, *answers: str | None) -> list[Json]:
    """Roll out an actor's state: a critic's reply, then the actor's next answer."""
    return [critic(round, continuations=[actor(round + 1, answer)]) for answer in answers]


def after_critic(round: int, *answers: str | None) -> list[Json]:
    """Roll out a critic's state."""
    return [actor(round + 1, answer) for answer in answers]


def guided(guide: str, turn: Json) -> Json:
    return {"guide": guide, "turn": turn}


def actor_critic(*turns: Json, gold: str | None = "yes") -> Transcript:
    protocol = {
        "num_agents": 2,
        "max_rounds": max(turn["round"] for turn in turns) + 1,
        "schedule": "sequential",
        "contract": "boxed",
        "topology": "actor_critic",
        "history_rounds": 1,
    }
    question = {"text": "?", "answer": gold, "meta": {"kind": "yes_no"}}
    return from_json({"id": "d", "question": question, "protocol": protocol, "turns": list(turns)})


GUIDED = actor_critic(
    actor(0, "no"),
    critic(0),
    actor(
        1,
        "no",
        continuations=after_actor(1, "yes", "no", "no", "no"),
        branches=[
            guided("yes", actor(1, "yes", continuations=after_actor(1, *["yes"] * 4))),
            guided("no", actor(1, "no", continuations=after_actor(1, *["no"] * 4))),
        ],
    ),
    critic(
        1,
        continuations=after_critic(1, "yes", "no", None, "yes"),
        branches=[guided("yes", critic(1, continuations=after_critic(1, "yes", "yes")))],
    ),
    actor(2, "yes", branches=[guided("no", actor(2, "no"))]),
)


def state_credits(debate: Transcript) -> dict[tuple[int, int], float | None]:
    score = score_of(PartialTrajectory(), debate)
    return {(credit.agent, credit.round): credit.value for credit in score.credits}


def test_a_state_is_worth_the_share_of_right_continuations() -> None:
    assert state_credits(GUIDED) == {
        (0, 0): None,  # Nothing was sampled from round 0.
        (1, 0): None,
        (0, 1): 0.25,  # 1 of 4.
        (1, 1): 0.5,  # 2 of 4: the one without an answer is wrong.
        (0, 2): 1.0,  # The debate ends with it.
    }
    score = score_of(PartialTrajectory(), GUIDED)
    assert [credit.expected for credit in score.credits] == [False, False, True, True, True]
    assert score.agents == (0.625, 0.5)  # Actor: (0.25 + 1) / 2.
    assert score.metrics == pytest.approx(
        {
            "partial_trajectory/value": (0.25 + 0.5 + 1) / 3,
            # √(p(1−p)/(n−1)): √(0.1875/3) = 0.25 and √(0.25/3).
            "partial_trajectory/standard_error": (0.25 + (0.25 / 3) ** 0.5) / 2,
            # Toward the right answer: actor 1 − 0.25, critic 1 − 0.5.
            "partial_trajectory/gain_to_right": (0.75 + 0.5) / 2,
            # Toward a wrong one: actor in round 1, 0.25 − 0; at the end, 1 − 0.
            "partial_trajectory/loss_to_wrong": (0.25 + 1) / 2,
            "partial_trajectory/failed_rollouts": 1,
            "partial_trajectory/unverifiable_gold": 0,
        }
    )


def test_state_values_list_each_turn_before_its_branches() -> None:
    (states,) = state_values([GUIDED])
    listed = [(*state.key, state.guide, state.value, state.rollouts) for state in states]
    assert listed == [
        (0, 0, None, None, 0),
        (1, 0, None, None, 0),
        (0, 1, None, 0.25, 4),
        (0, 1, "yes", 1.0, 4),
        (0, 1, "no", 0.0, 4),
        (1, 1, None, 0.5, 4),
        (1, 1, "yes", 1.0, 2),
        (0, 2, None, 1.0, 0),
        (0, 2, "no", 0.0, 0),
    ]
    assert [state.failed for state in states] == [0, 0, 0, 0, 0, 1, 0, 0, 0]
    # The end of a debate is exact; a single roll-out has no error that could be estimated.
    assert states[-1].standard_error == 0.0
    single = actor_critic(actor(0, "no", continuations=after_actor(0, "yes")), critic(0))
    state = state_values([single])[0][0]
    assert (state.value, state.standard_error) == (1.0, None)


def test_answers_have_their_truth_where_only_critics_are_continued() -> None:
    plain = actor_critic(
        actor(0, "yes"), critic(0, continuations=after_critic(0, "yes", "no")), actor(1, "no")
    )
    assert state_credits(plain) == {(0, 0): None, (1, 0): 0.5, (0, 1): 0.0}
    rules = replace(plain.protocol, extra={"continued": "critic"})
    assert state_credits(replace(plain, protocol=rules)) == {(0, 0): 1.0, (1, 0): 0.5, (0, 1): 0.0}
