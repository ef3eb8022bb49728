"""Figures of debates between policies, worked by hand: whose they are is kept apart."""

from typing import Any

import pytest

from debate_protocol.types import TurnRequest
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.data.signs_puzzle import read_puzzle, solutions
from debate_train.evaluation.measuring import evaluate
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe import Recipe

QUESTIONS = SignsPuzzle().open().split("dev", 3)
ANSWERS = ((1, 0, 0, 0), (1, 0, 1, 0), (1, 1, 0, 0))
RIGHT = {question.id: its for question, its in zip(QUESTIONS, ANSWERS, strict=True)}
"""Which agents answer rightly: 0 and 1 are the trained policy's, 2 and 3 the opponent's."""
JUDGED = {0: (1, 2), 1: (0, 2), 2: (0, 1), 3: (0, 1)}


def recipe(opponent: str, **changes: Any) -> Recipe:
    roles = {"solver": {"count": 2}, "rival": {"count": 2, "policy": opponent}}
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"roles": roles, "max_rounds": 2, "style": "compact", "personas": "none"},
        "evaluation": {"direct_samples": 1},
    }
    return Recipe.model_validate(settings | changes)


def said(request: TurnRequest) -> str:
    """Solvers vote by the truth on one pair, rivals `=`; agent 3 once has no answer."""
    right, (digits, target) = RIGHT[request.question.id], read_puzzle(request.question)
    accepted = solutions(digits, target)
    wrong = next(s for s in ("+ + +", "- - -") if s not in accepted)
    solution = accepted[0] if right[request.agent] else wrong
    if (request.agent, request.round, request.question) == (3, 0, QUESTIONS[2]):
        return "no answer"
    a, b = JUDGED[request.agent]
    if right[a] < right[b]:
        a, b = b, a
    verdict = ">" if request.agent < 2 and right[a] != right[b] else "="
    vote = f"Agent {a} {verdict} Agent {b}" if request.round else "N/A"
    return f"<solution> {solution} </solution> <comparison> {vote} </comparison>"


def means(form: Recipe) -> dict[str, float]:
    engine = ScriptedEngine().open(None, word_tokenizer(), script=said)
    return evaluate(form.evaluated(), engine, QUESTIONS, "dev").means()


def test_figures_of_the_trained_policy_stand_beside_those_of_its_opponent() -> None:
    found = means(recipe("start"))
    own = {name: v for name, v in found.items() if "/trained/" in name or "/role/" in name}
    expected = {
        # Of two solvers 1, 1 and 2 are right, of two rivals 0, 1 and 0.
        "eval/trained/accuracy": (1 / 2 + 1 / 2 + 1) / 3,
        "eval/role/rival/accuracy": (0 + 1 / 2 + 0) / 3,
        "eval/trained/format": 1.0,
        # One of the four turns of rivals on the last question cannot be read.
        "eval/role/rival/format": (1 + 1 + 3 / 4) / 3,
        "eval/trained/judge/accuracy": 1.0,
        "eval/role/rival/judge/accuracy": 0.5,
    }
    assert own == pytest.approx(expected)
    assert found["eval/last_round/accuracy"] == pytest.approx((1 / 4 + 1 / 2 + 1 / 2) / 3)
    # A right and a wrong turn were judged by agents 1, 2, 3; by 0, 2, 3; and by 0 and 1.
    assert found["eval/judge/accuracy"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_roles_of_one_policy_are_measured_together_as_before() -> None:
    alone, apart = means(recipe("trained")), means(recipe("start"))
    assert alone == {name: apart[name] for name in alone}
    assert {name for name in apart if name not in alone} == {
        f"eval/{of}/{figure}"
        for of in ("trained", "role/rival")
        for figure in ("accuracy", "format", "judge/accuracy")
    }
