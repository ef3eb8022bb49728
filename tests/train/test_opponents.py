"""The policy in each seat in turn among opponents: who speaks, and figures worked by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from debate_protocol.types import TRAINED, TurnRequest, roles_by_agent
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.data.signs_puzzle import read_puzzle, solutions
from debate_train.evaluation import Opponents
from debate_train.evaluation.measuring import Measures, evaluate
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe import Recipe
from debate_train.recipe.policies import used_policies

QUESTIONS = SignsPuzzle().open().split("dev", 2)
STRONG, WEAK = (question.id for question in QUESTIONS)
"""The policy is right on both questions, its opponents only on the first."""


def recipe(mode: dict[str, Any], **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "evaluation": {
            "direct_samples": 1,
            "modes": {"debate": None, "seats": {"type": "opponents", **mode}},
        },
    }
    return Recipe.model_validate(settings | changes)


def said(request: TurnRequest) -> str:
    """The policy is always right; opponents vote for the policy where they see it and a peer."""
    digits, target = read_puzzle(request.question)
    accepted = solutions(digits, target)
    wrong = next(s for s in ("+ + +", "- - -") if s not in accepted)
    is_right = request.policy == TRAINED or request.question.id == STRONG
    vote = "N/A"
    if request.round:
        low, high = sorted({0, 1, 2} - {request.agent})
        vote = f"Agent {low} {'=' if request.policy == TRAINED else '>'} Agent {high}"
    solution = accepted[0] if is_right else wrong
    return f"<solution> {solution} </solution> <comparison> {vote} </comparison>"


def measured(
    made: Recipe, speak: Callable[[TurnRequest], str] = said
) -> tuple[list[TurnRequest], Measures]:
    asked: list[TurnRequest] = []

    def script(request: TurnRequest) -> str:
        asked.append(request)
        return speak(request)

    engine = ScriptedEngine().open(None, word_tokenizer(), script=script)
    return asked, evaluate(made.evaluated(), engine, QUESTIONS, "dev")


def test_policy_has_each_seat_once_and_first_turns_are_sampled_once() -> None:
    asked, found = measured(recipe({}))
    debates = found.played["seats"]
    learned = [
        [n for n, role in enumerate(roles_by_agent(one.protocol)) if role.policy == TRAINED]
        for one in debates
    ]
    assert learned == [[0], [0], [1], [1], [2], [2]]
    assert len({one.id for one in debates}) == 6
    # First turns: each agent of each question once as the policy and once as an opponent. Second
    # turns: 3 in each of 3 debates; on the first question, where both sides speak alike, an
    # opponent is shown the same in two of them.
    counts = {
        (question, round): sum((a.question.id, a.round) == (question, round) for a in asked)
        for question in (STRONG, WEAK)
        for round in (0, 1)
    }
    direct = 1
    assert counts == {
        (STRONG, 0): direct + 6,
        (WEAK, 0): direct + 6,
        (STRONG, 1): 6,
        (WEAK, 1): 9,
    }


def test_figures_of_both_sides_are_means_over_the_seats() -> None:
    _, found = measured(recipe({}))
    seats = {k.removeprefix("eval/seats/"): v for k, v in found.values.items() if "seats" in k}
    assert seats["learned/accuracy"] == {STRONG: 1.0, WEAK: 1.0}
    assert seats["opponent/accuracy"] == {STRONG: 1.0, WEAK: 0.0}
    assert seats["delta/accuracy"] == {STRONG: 0.0, WEAK: 1.0}
    assert seats["learned/accuracy/seat_2"] == {STRONG: 1.0, WEAK: 1.0}
    # Opponents prefer the lower number of the two that they see. Policy in seat 1: both vote for
    # it, 2 of 2. In seat 2: agent 0 sees 1 and 2 and votes for it, agent 2 sees 0 and 1 and votes
    # against, 1 of 2. In seat 3: 0 of 2. The policy itself sees two opponents.
    assert seats["learned/vote_win_rate"] == {STRONG: 3 / 6, WEAK: 3 / 6}
    # On the second question such a vote is right as often: the policy alone is right.
    assert seats["opponent/judge/accuracy"] == {WEAK: 3 / 6}
    assert "learned/judge/accuracy" not in seats
    # Two opponents who are wrong alike outvote the policy.
    assert seats["majority/accuracy"] == {STRONG: 1.0, WEAK: 0.0}
    # Votes are cast in round 1 alone. Seat 1: 2 votes for the policy. Seat 2: agent 1 has a vote
    # for and one against, agent 0 one for from agent 2 and half of the policy's, so it wins with
    # +1; seat 3: agent 0 wins. One of three is right.
    assert seats["peer_vote/accuracy"] == {STRONG: 1.0, WEAK: pytest.approx(1 / 3)}
    assert seats["opponent/format"] == {STRONG: 1.0, WEAK: 1.0}


def test_pairs_of_opponents_that_the_policy_leaves_out_count_half() -> None:
    def speak(request: TurnRequest) -> str:
        # Of the opponents agent 0 alone is right. The policy has a pair of a right and a wrong
        # opponent in seats 2 and 3; it leaves out the first and is right about the second.
        digits, target = read_puzzle(request.question)
        accepted = solutions(digits, target)
        wrong = next(s for s in ("+ + +", "- - -") if s not in accepted)
        is_right = request.policy == TRAINED or request.agent == 0
        low, high = sorted({0, 1, 2} - {request.agent})
        vote = f"Agent {low} > Agent {high}"
        if not request.round or (request.policy == TRAINED and request.agent == 1):
            vote = "N/A"
        solution = accepted[0] if is_right else wrong
        return f"<solution> {solution} </solution> <comparison> {vote} </comparison>"

    _, found = measured(recipe({}), speak)
    for question in (STRONG, WEAK):
        assert found.values["eval/seats/learned/judge/owed_accuracy"][question] == (0.5 + 1) / 2
        assert found.values["eval/seats/learned/judge/accuracy"][question] == 1


def test_roles_of_a_recipe_are_seats_and_keep_what_else_is_said_of_them() -> None:
    roles = {
        "solver": {"count": 2, "temperature": 0.5},
        "critic": {"temperature": 0.25, "sees": {"solver": 1}},
        "guest": {"policy": "start"},
    }
    debate = {"roles": roles, "max_rounds": 2, "style": "compact", "personas": "none"}
    made = recipe({"opponent": "other"}, debate=debate, rollout={"policies": OTHER})
    plays = Opponents(opponent="other").plays(made.debate)
    policies = [[play.form.policy_of(agent) for agent in range(4)] for play in plays]
    assert policies == [
        ["trained", "trained", "other", "start"],
        ["other", "other", "trained", "start"],
    ]
    for play in plays:
        assert [play.form.temperature_of(agent) for agent in range(4)] == [0.5, 0.5, 0.25, 1.0]
        assert roles_by_agent(play.form.protocol())[2].sees == {"solver": 1}
    assert set(used_policies(made)) == {"start", "other"}


OTHER = {"other": {"type": "engine", "engine": {"type": "openai", "model": "m"}}}


def test_what_cannot_be_an_opponent_is_refused() -> None:
    with pytest.raises(ValueError, match=r"policy: found 'strat'.*did you mean 'start'"):
        recipe({"opponent": "strat"})
    with pytest.raises(ValueError, match=r"modes\.seats: opponent: found 'trained', which is the"):
        recipe({"opponent": "trained"})
    with pytest.raises(ValueError, match="found nothing to play: opponents with a debate of type"):
        recipe({}, debate={"type": "direct"})


def test_rows_and_count_say_who_the_opponent_is() -> None:
    made = recipe({})
    rows = made.evaluated().figures()
    assert rows["eval/seats/delta/accuracy"] == "seats: accuracy beyond start"
    mode = made.evaluated().modes["seats"]
    assert mode.counted(made.debate) == "18 turns of debate against start in 3 seats"
    assert set(used_policies(made)) == {"start"}
