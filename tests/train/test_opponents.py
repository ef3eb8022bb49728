"""The policy in each seat in turn among opponents: who speaks, and figures worked by hand."""

from collections import Counter

import pytest

from debate_protocol.types import TRAINED, roles_by_agent
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.data.signs_puzzle import read_puzzle, solutions
from debate_train.evaluation import Opponents
from debate_train.evaluation.measuring import evaluate
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe import Recipe
from debate_train.recipe.policies import used_policies

QUESTIONS = SignsPuzzle().open().split("dev", 2)
# The policy is right on both questions, its opponents only on the first.
EASY, HARD = (question.id for question in QUESTIONS)
OTHER = {"other": {"type": "engine", "engine": {"type": "openai", "model": "m"}}}


def make_recipe(opponents=(), **changes):
    seats = {"type": "opponents", **dict(opponents)}
    settings = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "evaluation": {"direct_samples": 1, "modes": {"debate": None, "seats": seats}},
    }
    return Recipe.model_validate(settings | changes)


def make_reply(request, is_right, vote):
    accepted = solutions(*read_puzzle(request.question))
    wrong = next(signs for signs in ("+ + +", "- - -") if signs not in accepted)
    signs = accepted[0] if is_right else wrong
    return f"<solution> {signs} </solution> <comparison> {vote} </comparison>"


def peers_of(request):
    return sorted({0, 1, 2} - {request.agent})


def prefer_the_policy(request):
    """Let the policy be always right; opponents prefer the lower number of the two they see."""
    is_policy = request.policy == TRAINED
    low, high = peers_of(request)
    vote = f"Agent {low} {'=' if is_policy else '>'} Agent {high}" if request.round else "N/A"
    return make_reply(request, is_policy or request.question.id == EASY, vote)


def measure(recipe, script=prefer_the_policy):
    requests = []

    def note(request):
        requests.append(request)
        return script(request)

    engine = ScriptedEngine().open(None, word_tokenizer(), script=note)
    return requests, evaluate(recipe.evaluated(), engine, QUESTIONS, "dev")


def test_policy_has_each_seat_once_and_first_turns_are_sampled_once():
    requests, measures = measure(make_recipe())
    seats = []
    for debate in measures.played["seats"]:
        policies = [role.policy for role in roles_by_agent(debate.protocol)]
        seats.append([agent for agent, policy in enumerate(policies) if policy == TRAINED])
    assert seats == [[0], [0], [1], [1], [2], [2]]
    num_direct = 1
    assert Counter((request.question.id, request.round) for request in requests) == {
        # Each agent of each question once as the policy and once as an opponent.
        (EASY, 0): num_direct + 6,
        (HARD, 0): num_direct + 6,
        # 3 in each of 3 debates; on the first question, where both sides speak alike, an
        # opponent is shown the same in two of them.
        (EASY, 1): 6,
        (HARD, 1): 9,
    }


def test_figures_of_both_sides_are_means_over_the_seats():
    _, measures = measure(make_recipe())
    expected = {
        "learned/accuracy": {EASY: 1.0, HARD: 1.0},
        "opponent/accuracy": {EASY: 1.0, HARD: 0.0},
        "delta/accuracy": {EASY: 0.0, HARD: 1.0},
        "learned/accuracy/seat_2": {EASY: 1.0, HARD: 1.0},
        # Policy in seat 1: both opponents vote for it, 2 of 2. In seat 2: agent 0 sees 1 and 2 and
        # votes for it, agent 2 sees 0 and 1 and votes against, 1 of 2. In seat 3: 0 of 2.
        "learned/vote_win_rate": {EASY: 3 / 6, HARD: 3 / 6},
        # On the second question such a vote is right as often: only the policy is right.
        "opponent/judge/accuracy": {HARD: 3 / 6},
        # Two opponents who are wrong alike outvote the policy.
        "majority/accuracy": {EASY: 1.0, HARD: 0.0},
        # Votes are cast in round 1. Seat 1: 2 votes for the policy. Seat 2: agent 1 has a vote for
        # and one against, agent 0 one for from agent 2 and half of the policy's, so it wins with
        # +1; seat 3: agent 0 wins. One of three is right.
        "peer_vote/accuracy": {EASY: 1.0, HARD: pytest.approx(1 / 3)},
        "opponent/format": {EASY: 1.0, HARD: 1.0},
    }
    assert {name: measures.values[f"eval/seats/{name}"] for name in expected} == expected
    assert "eval/seats/learned/judge/accuracy" not in measures.values


def test_pairs_of_opponents_that_the_policy_leaves_out_count_half():
    def leave_out_in_seat_2(request):
        # Of the opponents only agent 0 is right. The policy has a pair of a right and a wrong
        # opponent in seats 2 and 3; it leaves out the first and is right about the second.
        is_policy = request.policy == TRAINED
        low, high = peers_of(request)
        votes = request.round and not (is_policy and request.agent == 1)
        vote = f"Agent {low} > Agent {high}" if votes else "N/A"
        return make_reply(request, is_policy or request.agent == 0, vote)

    _, measures = measure(make_recipe(), leave_out_in_seat_2)
    for question in (EASY, HARD):
        values = measures.values
        assert values["eval/seats/learned/judge/owed_accuracy"][question] == (0.5 + 1) / 2
        assert values["eval/seats/learned/judge/accuracy"][question] == 1


def test_roles_of_a_recipe_are_seats_and_keep_their_settings():
    roles = {
        "solver": {"count": 2, "temperature": 0.5},
        "critic": {"temperature": 0.25, "sees": {"solver": 1}},
        "guest": {"policy": "start"},
    }
    debate = {"roles": roles, "max_rounds": 2, "style": "compact", "personas": "none"}
    opponents = {"opponent": "other"}
    recipe = make_recipe(opponents, debate=debate, rollout={"policies": OTHER})
    plays = Opponents(opponent="other").plays(recipe.debate)
    assert [[play.form.policy_of(agent) for agent in range(4)] for play in plays] == [
        ["trained", "trained", "other", "start"],
        ["other", "other", "trained", "start"],
    ]
    for play in plays:
        temperatures = [play.form.temperature_of(agent) for agent in range(4)]
        assert temperatures == [0.5, 0.5, 0.25, 1.0]
        assert roles_by_agent(play.form.protocol())[2].sees == {"solver": 1}
    assert set(used_policies(recipe)) == {"start", "other"}


@pytest.mark.parametrize(
    ("opponents", "changes", "message"),
    [
        ({"opponent": "strat"}, {}, r"policy: found 'strat'.*did you mean 'start'"),
        ({"opponent": "trained"}, {}, r"modes\.seats: opponent: found 'trained', which is the"),
        ({}, {"debate": {"type": "direct"}}, "nothing to play: opponents with a debate of type"),
    ],
)
def test_policy_that_cannot_be_an_opponent_is_refused(opponents, changes, message):
    with pytest.raises(ValueError, match=message):
        make_recipe(opponents, **changes)
