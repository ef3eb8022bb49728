"""Debates that a script plays through a recipe's form, reward and advantages, without a model."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from debate_protocol.parsing.contract import Contract
from debate_protocol.types import (
    Ask,
    DebateRun,
    Gate,
    Question,
    Reply,
    Sent,
    Transcript,
    Turn,
    TurnKey,
)
from debate_rewards.credits import score_debates
from debate_rollout.token_text import TokenText
from debate_train.advantages import TurnAdvantages
from debate_train.batches.token_credit import stream_credit, turn_tokens
from debate_train.playing.starts import named_debates
from debate_train.recipe import Recipe

Script = Callable[[Ask], Reply]
Taught = tuple[str, str]
"""A stream, and the component of a mixed reward that gives it values."""

_QUESTIONS, _COPIES, _AGENTS, _ROUNDS, _ROLLOUTS = 2, 4, 8, 4, 2
_TURNS = 512
"""Most turns of a step that is played; larger debates are not."""
_RIGHT, _WRONG = "7", ("8", "9")


def small_recipe(phase: Recipe) -> Recipe | None:
    """Return the phase with debates small enough to play, None where that is another debate."""
    debate, rollout = phase.debate, phase.rollout
    copies = {
        name: min(getattr(rollout, name), _COPIES)
        for name in ("debates_per_question", "direct_per_question")
    }
    try:
        debate = debate.at_most(_AGENTS, _ROUNDS, _ROLLOUTS)
    except ValueError:  # A topology that does not fit fewer agents.
        return None
    turns = debate.turn_count() * copies["debates_per_question"] * _questions(phase)
    if turns > _TURNS:
        return None
    rollout = rollout.model_copy(update={**copies, "other_forms": ()})
    return phase.model_copy(update={"debate": debate, "rollout": rollout})


def scripted_step(
    recipe: Recipe, number: int, *, answers: bool, failures: bool
) -> list[Transcript]:
    """Play the debates of one small step.

    Agents are right and wrong in a mixture, criticise everybody they were shown, and compare every
    pair that they may, more often right than wrong. No two steps are alike.

    Args:
        recipe: From `small_recipe`.
        number: Of the step.
        answers: Whether the questions have answers.
        failures: Whether some turns cannot be read.
    """
    count = min(recipe.data.batch_size, _questions(recipe))
    answer = _RIGHT if answers else None
    questions = [
        Question(f"q{i}", f"question {i}", answer, {"kind": "number"}) for i in range(count)
    ]
    return [
        hold(run, _Rich(recipe, f"{name}/{failures}", failures))
        for name, run in named_debates(recipe, questions, f"check/{number}")
    ]


def _questions(phase: Recipe) -> int:
    return max(_QUESTIONS, *(part.least_questions for part in phase.reward.parts().values()))


def hold(run: DebateRun, script: Script) -> Transcript:
    """Hold one debate; gates go on."""
    yielded = next(run)
    while True:
        sent: Sent = "go_on" if isinstance(yielded, Gate) else [script(ask) for ask in yielded]
        try:
            yielded = run.send(sent)
        except StopIteration as ended:
            transcript: Transcript = ended.value
            return transcript


def taught(recipe: Recipe, transcripts: Sequence[Transcript]) -> set[Taught]:
    """Return which streams of which components give any character a value that is not 0."""
    advantages = recipe.advantage(transcripts, score_debates(recipe.reward, transcripts))
    found: set[Taught] = set()
    for transcript, by_turn in zip(transcripts, advantages, strict=True):
        for turn in transcript.turns:
            found.update(_taught_by(recipe, transcript, turn, by_turn))
    return found


def _taught_by(
    recipe: Recipe, transcript: Transcript, turn: Turn, by_turn: TurnAdvantages
) -> Iterator[Taught]:
    own = by_turn.get(turn.key, [])
    tokens = None
    for component in dict.fromkeys(a.component for a in own if a.value != 0):
        if tokens is None:
            text = TokenText(turn.text, tuple(range(len(turn.text))))
            tokens = turn_tokens(transcript, turn, text)
        parts = [a for a in own if a.component == component]
        values, _ = stream_credit(tokens, parts, recipe.advantage.streams)
        for name, row in zip(recipe.advantage.streams, values, strict=True):
            if row.any():
                yield name, component


class _Rich:
    """Says all that a contract has room for, differently in every turn."""

    def __init__(self, recipe: Recipe, name: str, failures: bool) -> None:
        self._right: dict[TurnKey, bool] = {}
        self._name, self._failures = name, failures
        self._most = recipe.rollout.max_tokens

    def __call__(self, ask: Ask) -> Reply:
        chance = random.Random(f"{self._name}/{ask.seed}/{ask.agent}/{ask.round}")
        right = chance.random() < 0.5
        self._right[TurnKey(ask.agent, ask.round)] = right
        text = self._text(ask, right, chance)
        if self._failures and chance.random() < 0.3:
            text = "?"
        tokens = self._most if chance.random() < 0.3 else chance.randint(1, self._most)
        return Reply(text, token_ids=(0,) * tokens, logps=(0.0,) * tokens)

    def _text(self, ask: Ask, right: bool, chance: random.Random) -> str:
        answer = _RIGHT if right else chance.choice(_WRONG)
        contract = ask.contract
        if contract is None or contract.kind == "boxed":
            return f"so \\boxed{{{answer}}}"
        if contract.kind == "answer_line":
            return f"so\nAnswer: {answer}"
        return self._sections(contract, ask, answer, chance)

    def _sections(self, contract: Contract, ask: Ask, answer: str, chance: random.Random) -> str:
        latest = {
            key.agent: self._right.get(key, False) for key in sorted(ask.shown, key=_by_round)
        }
        said: dict[str, object] = {
            "evaluation": " ".join(
                f"Agent {agent} is {'right' if ok else 'wrong'}." for agent, ok in latest.items()
            ),
            "comparison": "\n".join(
                f"Agent {a} {_verdict(latest[a], latest[b], chance)} Agent {b}"
                for a, b in combinations(sorted(latest), 2)
            ),
            "consensus": "NO",
        }
        said[contract.answer_section or ""] = answer
        return "\n".join(
            f"<{name}>{said.get(name) or 'N/A'}</{name}>" for name in contract.sections
        )


def _by_round(key: TurnKey) -> tuple[int, int]:
    return key.round, key.agent


def _verdict(left: bool, right: bool, chance: random.Random) -> str:
    if left == right or chance.random() < 0.2:
        return chance.choice(">=<")
    return ">" if left else "<"
