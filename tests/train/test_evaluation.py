"""What an evaluation measures, with agents whose answers and votes are known."""

import pytest

from debate_protocol.types import Question, TurnRequest
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.data.signs_puzzle import read_puzzle, solutions
from debate_train.evaluation.measuring import Measures, evaluate
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe import Recipe

QUESTIONS = SignsPuzzle().open().split("dev", 4)
RIGHT = dict(
    zip((q.id for q in QUESTIONS), ((1, 1, 0), (1, 0, 0), (0, 0, 0), (0, 1, 1)), strict=True)
)
"""Which agents answer each question rightly; wrong ones give the same wrong answer."""


def recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle"},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "evaluation": {"direct_samples": 2},
    }
    return Recipe.model_validate(settings | changes)


def answer(question: Question, right: int) -> str:
    digits, target = read_puzzle(question)
    accepted = solutions(digits, target)
    return accepted[0] if right else next(s for s in ("+ + +", "- - -") if s not in accepted)


def said(request: TurnRequest) -> str:
    """The known answer; from the second round on a vote by the truth on the two peers."""
    right = RIGHT[request.question.id]
    vote = "N/A"
    if request.round:
        a, b = (agent for agent in range(3) if agent != request.agent)
        low, high = (b, a) if right[b] > right[a] else (a, b)
        vote = f"Agent {low} {'=' if right[a] == right[b] else '>'} Agent {high}"
    solution = answer(request.question, right[request.agent])
    return f"<solution> {solution} </solution> <comparison> {vote} </comparison>"


def measured(form: Recipe, name: str, seen: list[TurnRequest]) -> Measures:
    def script(request: TurnRequest) -> str:
        seen.append(request)
        return said(request)

    engine = ScriptedEngine().open(None, word_tokenizer(), script=script)
    return evaluate(form.evaluated(), engine, QUESTIONS, name)


def test_evaluation_measures_answers_decisions_and_votes() -> None:
    found = measured(recipe(), "dev", [])
    expected = {
        # Agent 0 alone: 1, 1, 0, 0.
        "eval/direct/accuracy": 0.5,
        # Two of three: 1, 0, 0, 1.
        "eval/majority/accuracy": 0.5,
        # The only right agent of question 1 wins both votes on it: 1, 1, 0, 1.
        "eval/peer_vote/accuracy": 0.75,
        "eval/judge/accuracy": 1.0,
        "eval/format": 1.0,
        # 2/3, 1/3, 0, 2/3
        "eval/last_round/accuracy": 5 / 12,
        # One of three votes is "=", and all three on question 2: (1/3 · 3 + 1)/4
        "eval/judge/equal_share": 0.5,
        "eval/comparisons_made": 1.0,
        "eval/pass@k": 0.75,
        # Answers per agent in the first round: 2/3, 2/3, 1/3, 2/3
        "eval/diversity/round_0": 7 / 12,
        # Both replies of a question say the same.
        "eval/direct/maj@2": 0.5,
        "eval/direct/pass@2": 0.5,
        "eval/direct/cons@2": 0.5,
        "eval/cons@k": 0.5,
        # Nobody changes an answer.
        "eval/maj/first": 0.5,
        "eval/maj/last": 0.5,
        "eval/maj/delta": 0.0,
        "eval/accuracy/round_1": 5 / 12,
        "eval/drift/round_1": 0.0,
        "eval/improvement": 0.0,
        "eval/flips/right_to_wrong": 0.0,
        # All three wrong on question 2, and with one answer.
        "eval/agreement/reached": 0.25,
    }
    means = found.means()
    assert {name: means[name] for name in expected} == pytest.approx(expected)
    assert "eval/improvement" not in found.values
    assert found.found["eval/direct/accuracy"].questions == 4
    # No agent was right on question 2, so nobody judged a right and a wrong turn there.
    assert found.found["eval/judge/accuracy"].questions == 3
    direct = found.found["eval/direct/accuracy"]
    assert 0 <= direct.low < 0.5 < direct.high <= 1
    assert {name: len(debates) for name, debates in found.played.items()} == {
        "direct": 8,
        "debate": 4,
    }


def test_evaluations_of_one_split_differ_by_the_policy_alone() -> None:
    first: list[TurnRequest] = []
    again: list[TurnRequest] = []
    other: list[TurnRequest] = []
    for name, seen in (("test", first), ("test", again), ("dev", other)):
        measured(recipe(), name, seen)
    # 4 questions of 2 direct replies, then 4 debates of 3 agents in 2 rounds.
    assert len(first) == 4 * 2 + 4 * 3 * 2
    seeds = [request.seed for request in first]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [request.seed for request in again]
    assert not set(seeds) & {request.seed for request in other}
    assert not set(seeds) & set(_seeds(recipe(seed=1)))


def _seeds(form: Recipe) -> list[int]:
    seen: list[TurnRequest] = []
    measured(form, "test", seen)
    return [request.seed for request in seen]
