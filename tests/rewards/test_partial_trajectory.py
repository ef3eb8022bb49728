"""The value of a state from recorded continuations, on hand-made actor-critic debates."""

import logging
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript
from debate_rewards import PartialTrajectory, RewardChoice, Score, Verifiable, state_values
from debate_rewards.metrics import debate_metrics

Json = dict[str, Any]


def actor(round: int, answer: str | None, **more: Any) -> Json:
    text = "I cannot tell." if answer is None else f"so \\boxed{{{answer}}}"
    return {"agent": 0, "round": round, "text": text, "shown": [], **more}


def critic(round: int, text: str = "look again", **more: Any) -> Json:
    return {"agent": 1, "round": round, "text": text, "shown": [[0, round]], **more}


def by_critic(round: int, *answers: str | None) -> list[Json]:
    """Roll-outs of an actor's state: a critic's reply, then the actor's next answer."""
    return [critic(round, continuations=[actor(round + 1, answer)]) for answer in answers]


def by_actor(round: int, *answers: str | None) -> list[Json]:
    """Roll-outs of a critic's state."""
    return [actor(round + 1, answer) for answer in answers]


def debate(*turns: Json, answer: str | None = "yes") -> Transcript:
    rounds = max(turn["round"] for turn in turns) + 1
    rules = {
        "num_agents": 2,
        "max_rounds": rounds,
        "schedule": "sequential",
        "contract": "boxed",
        "topology": "actor_critic",
        "history_rounds": 1,
    }
    question = {"text": "?", "answer": answer, "meta": {"kind": "yes_no"}}
    return from_json({"id": "d", "question": question, "protocol": rules, "turns": list(turns)})


def score(transcript: Transcript) -> Score:
    (found,) = PartialTrajectory()([transcript])
    return found


def values(found: Score) -> dict[tuple[int, int], float | None]:
    return {(c.agent, c.round): c.value for c in found.credits}


GUIDED = debate(
    actor(0, "no"),
    critic(0),
    actor(
        1,
        "no",
        continuations=by_critic(1, "yes", "no", "no", "no"),
        branches=[
            {"guide": "yes", "turn": actor(1, "yes", continuations=by_critic(1, *["yes"] * 4))},
            {"guide": "no", "turn": actor(1, "no", continuations=by_critic(1, *["no"] * 4))},
        ],
    ),
    critic(
        1,
        continuations=by_actor(1, "yes", "no", None, "yes"),
        branches=[{"guide": "yes", "turn": critic(1, continuations=by_actor(1, "yes", "yes"))}],
    ),
    actor(2, "yes", branches=[{"guide": "no", "turn": actor(2, "no")}]),
)


def test_partial_trajectory_is_the_share_of_right_continuations() -> None:
    found = score(GUIDED)
    assert values(found) == {
        (0, 0): None,  # nothing was sampled from round 0
        (1, 0): None,
        (0, 1): 0.25,  # 1 of 4
        (1, 1): 0.5,  # 2 of 4, the one without an answer is wrong
        (0, 2): 1.0,  # the debate ends with it
    }
    assert [c.expected for c in found.credits] == [False, False, True, True, True]
    # Actor: (0.25 + 1) / 2; critic: 0.5.
    assert found.agents == (0.625, 0.5)


def test_partial_trajectory_measures_error_and_what_guides_change() -> None:
    metrics = {k.removeprefix("partial_trajectory/"): v for k, v in score(GUIDED).metrics.items()}
    assert metrics["value"] == pytest.approx((0.25 + 0.5 + 1) / 3)
    # √(p(1−p)/(n−1)): √(0.1875/3) = 0.25 and √(0.25/3) = 0.288675.
    assert metrics["standard_error"] == pytest.approx((0.25 + 0.2886751) / 2)
    # Toward the right answer: actor 1 − 0.25, critic 1 − 0.5.
    assert metrics["gain_to_right"] == pytest.approx((0.75 + 0.5) / 2)
    # Toward a wrong one: actor in round 1, 0.25 − 0; at the end, 1 − 0.
    assert metrics["loss_to_wrong"] == pytest.approx((0.25 + 1) / 2)
    assert metrics["failed_rollouts"] == 1
    assert metrics["unverifiable_gold"] == 0


def test_state_values_list_each_turn_before_its_branches() -> None:
    (states,) = state_values([GUIDED])
    found = [(s.key.agent, s.key.round, s.guide, s.value, s.rollouts, s.failed) for s in states]
    assert found == [
        (0, 0, None, None, 0, 0),
        (1, 0, None, None, 0, 0),
        (0, 1, None, 0.25, 4, 0),
        (0, 1, "yes", 1.0, 4, 0),
        (0, 1, "no", 0.0, 4, 0),
        (1, 1, None, 0.5, 4, 1),
        (1, 1, "yes", 1.0, 2, 0),
        (0, 2, None, 1.0, 0, 0),
        (0, 2, "no", 0.0, 0, 0),
    ]
    # A single roll-out has no error that could be estimated; the end of a debate is exact.
    (one,) = state_values([debate(actor(0, "no", continuations=by_critic(0, "yes")), critic(0))])
    assert (one[0].value, one[0].standard_error) == (1.0, None)
    assert states[-1].standard_error == 0.0


def test_partial_trajectory_penalises_failed_turns_but_values_their_state() -> None:
    failed = debate(
        actor(0, None, continuations=by_critic(0, "yes", "yes")),
        critic(0, ""),
        actor(1, None),
    )
    found = score(failed)
    assert values(found) == {(0, 0): -1.0, (1, 0): -1.0, (0, 1): -1.0}
    assert all(c.penalty for c in found.credits)
    assert state_values([failed])[0][0].value == 1.0


def test_partial_trajectory_follows_longer_rollouts_to_their_end() -> None:
    longer = actor(1, "no", continuations=by_critic(1, "yes"))
    cut = critic(0)  # ends without an answer: no roll-out
    transcript = debate(
        actor(0, "no", continuations=[critic(0, continuations=[longer]), cut]),
        critic(0),
        actor(1, "no"),
    )
    (states,) = state_values([transcript])
    assert (states[0].value, states[0].rollouts) == (1.0, 1)


@pytest.mark.parametrize("answer", [None, "perhaps"])
def test_partial_trajectory_has_no_signal_when_the_gold_answer_is_unusable(
    answer: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = score(debate(actor(0, "no"), critic(0), actor(1, None), answer=answer))
    assert {(c.value, c.expected, c.penalty) for c in found.credits} == {(None, False, False)}
    assert found.agents == (None, None)
    assert found.metrics["partial_trajectory/unverifiable_gold"] == 1
    assert "question 'd' is left out" in caplog.text


def test_partial_trajectory_values_only_the_end_when_nothing_was_continued() -> None:
    assert values(score(debate(actor(0, "yes"), critic(0)))) == {(0, 0): 1.0, (1, 0): None}
    empty = from_json(
        {"question": {"text": "?", "answer": "1"}, "protocol": {"num_agents": 1}, "turns": []}
    )
    assert score(empty).credits == ()


def test_partial_trajectory_is_found_by_its_name() -> None:
    config: Any = TypeAdapter(RewardChoice).validate_python({"type": "partial_trajectory"})
    assert config == PartialTrajectory()


def test_critic_turns_are_left_out_when_truth_and_statistics_are_read() -> None:
    held = debate(actor(0, "yes"), critic(0), actor(1, "no"), critic(1), actor(2, "yes"))
    (found,) = Verifiable()([held])
    assert values(found) == {(0, 0): 1.0, (0, 1): -1.0, (0, 2): 1.0}
    metrics = debate_metrics([held])
    # One answer is due in the last round, and it is right; every answer can be read.
    assert (metrics["correct"], metrics["avg@k"], metrics["cons@k"]) == (1.0, 1.0, 1.0)
    assert metrics["format_all"] == 1.0
    assert metrics["accuracy/round_1"] == 0.0


def test_answers_are_worth_what_they_are_where_only_critics_are_continued() -> None:
    plain = debate(
        actor(0, "yes"), critic(0, continuations=by_actor(0, "yes", "no")), actor(1, "no")
    )
    assert values(score(plain)) == {(0, 0): None, (1, 0): 0.5, (0, 1): 0.0}
    rules = replace(plain.protocol, extra={"continued": "critic"})
    found = values(score(replace(plain, protocol=rules)))
    assert found == {(0, 0): 1.0, (1, 0): 0.5, (0, 1): 0.0}
