"""Evaluations by an engine whose answers and votes are known."""

from collections.abc import Callable, Sequence
from typing import Any

from debate_protocol.types import Question, Reply, TurnRequest
from debate_rollout.engine import Request
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.data.signs_puzzle import read_puzzle, solutions
from debate_train.evaluation.measuring import Measures, evaluate
from debate_train.evaluation.settings import Setup

QUESTIONS = SignsPuzzle().open().split("dev", 4)


def puzzle_answer(question: Question, is_right: bool) -> str:
    """Solve a puzzle, or give the wrong answer that all give."""
    accepted = solutions(*read_puzzle(question))
    if is_right:
        return accepted[0]
    return next(signs for signs in ("+ + +", "- - -") if signs not in accepted)


def answer_by_seed(request: TurnRequest) -> str:
    return f"<solution> {'+ + +' if request.seed % 2 else '- - -'} </solution>"


class ScriptedEvaluation:
    """An engine that answers by a script, and the requests and replies of its evaluations.

    Without a tokenizer replies have no tokens, and may hold any words.
    """

    def __init__(self, script: Callable[[TurnRequest], str], tokenizer: Any = None) -> None:
        self.requests: list[Request] = []
        self.replies: list[Reply] = []
        self.engine = ScriptedEngine().open(None, tokenizer, script=script)
        generate = self.engine.generate

        def record(requests: Sequence[Request]) -> list[Reply]:
            replies = generate(requests)
            self.requests += requests
            self.replies += replies
            return replies

        self.engine.generate = record  # type: ignore[method-assign]

    @property
    def turn_requests(self) -> list[TurnRequest]:
        return [request.turn_request for request in self.requests]

    @property
    def seeds(self) -> list[int]:
        return [turn_request.seed for turn_request in self.turn_requests]

    def measure(
        self,
        setup: Setup,
        questions: Sequence[Question] = QUESTIONS,
        split: str = "dev",
        **options: Any,
    ) -> Measures:
        return evaluate(setup, self.engine, list(questions), split, **options)
