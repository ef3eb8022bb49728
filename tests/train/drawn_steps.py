"""Steps whose questions are drawn: data by batch, an engine that answers by rule, a recipe."""

from typing import Any

from debate_protocol.types import Question, TurnRequest
from debate_rollout.engines import ScriptedEngine
from debate_train.data.source import DataSource
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import StepDebates
from debate_train.recipe import Recipe

INFORMATIVE = {"type": "informative", "group": "question"}
WANTED = 2


def recipe(**rollout: Any) -> Recipe:
    settings = {"debates_per_question": 2, "select": INFORMATIVE, "oversample": 3}
    return Recipe.model_validate(
        {
            "name": "t",
            "steps": 1,
            "model": {"type": "scratch"},
            "data": {"type": "signs_puzzle", "batch_size": WANTED},
            "debate": {"type": "direct", "style": "compact", "personas": "none", "gate_after": [0]},
            "rollout": settings | rollout,
            "reward": {"type": "verifiable"},
            "loss": {"type": "dapo"},
        }
    )


class Batches(DataSource):
    """Questions by batch; `e` is easy, `h` hard, `s` splits the replies, `n` has no answer.

    `t` splits the first turns, and all second ones are right.
    """

    def __init__(self, *batches: str) -> None:
        self.asked: list[int] = []
        self._batches = [batch.split() for batch in batches]

    def batch(self, step: int) -> list[Question]:
        self.asked.append(step)
        return [
            Question(name, f"make {name}", None if name[0] == "n" else "+", {"kind": "text"})
            for name in self._batches[step]
        ]

    def split(self, name: str, size: int) -> list[Question]:
        return []


def engine() -> Any:
    """Copies of a question reply in turn: of a split question the first is right."""
    replies: dict[str, int] = {}

    def say(request: TurnRequest) -> str:
        name = request.question.id
        replies[name] = replies.get(name, 0) + 1
        alternately = replies[name] % 2 == 1
        later = bool(request.round) or alternately
        right = {"e": True, "h": False, "t": later}.get(name[0], alternately)
        return f"<solution> {'+' if right else '-'} </solution>"

    return ScriptedEngine().open(None, word_tokenizer(), script=say)


def counts(debates: StepDebates) -> dict[str, float]:
    return {k.removeprefix("sampling/"): v for k, v in debates.metrics.items() if v}
