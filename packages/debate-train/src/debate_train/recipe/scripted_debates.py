"""Debates of scripted agents, small enough for a check to play."""

import random
from collections.abc import Callable
from itertools import combinations

from debate_protocol.forms import Proposal
from debate_protocol.forms.judged import CHOICE
from debate_protocol.parsing import Contract, get_contract
from debate_protocol.types import (
    QUESTION,
    VERDICT,
    DebateRun,
    Gate,
    Question,
    Reply,
    Sent,
    Transcript,
    TurnKey,
    TurnRequest,
)
from debate_train.playing import named_debates
from debate_train.recipe.recipe import Recipe

MAX_TURNS = 512
"""Most turns of a step that is played; larger debates are not."""
MIN_QUESTIONS = 2
MAX_COPIES = 4
MAX_AGENTS = 8
MAX_ROUNDS = 4
MAX_ROLLOUTS = 2
RIGHT_ANSWER = "7"
WRONG_ANSWERS = ("8", "9")


def play_debate(
    run: DebateRun,
    reply_to: Callable[[TurnRequest], Reply],
    at_gate: Callable[[Gate], None] | None = None,
) -> Transcript:
    """Play a debate by a function; gates go on after a call of `at_gate`."""
    sent: Sent | None = None
    while True:
        try:
            yielded = next(run) if sent is None else run.send(sent)
        except StopIteration as ended:
            transcript: Transcript = ended.value
            return transcript
        if not isinstance(yielded, Gate):
            sent = [reply_to(request) for request in yielded]
            continue
        if at_gate is not None:
            at_gate(yielded)
        sent = "go_on"


def small_recipe(phase: Recipe) -> Recipe | None:
    """Shrink a phase's debates to a playable size; `None` if shrinking changes the debate."""
    copies = {
        name: min(getattr(phase.rollout, name), MAX_COPIES)
        for name in ("debates_per_question", "direct_per_question")
    }
    try:
        debate = phase.debate.at_most(MAX_AGENTS, MAX_ROUNDS, MAX_ROLLOUTS)
    except ValueError:  # A topology that does not fit fewer agents.
        return None
    num_debates = copies["debates_per_question"] * _num_questions(phase)
    if debate.turn_count() * num_debates > MAX_TURNS:
        return None
    rollout = phase.rollout.model_copy(update={**copies, "other_forms": ()})
    return phase.model_copy(update={"debate": debate, "rollout": rollout})


def scripted_step(recipe: Recipe, number: int, *, answers: bool) -> list[Transcript]:
    """Play the debates of a small step.

    Agents are right and wrong in a mixture, criticize all shown agents, and compare every allowed
    pair, more often right than wrong. No two steps are alike.

    Args:
        recipe: From `small_recipe`.
        number: Of the step.
        answers: Whether the questions have answers.
    """
    num_questions = min(recipe.data.batch_size, _num_questions(recipe))
    questions = scripted_questions(num_questions, answers=answers)

    # Every question is valid: the check looks for values of its solvers.
    def accept(text: str) -> Proposal:
        answer = RIGHT_ANSWER if answers else None
        return Proposal(Question(text, text, answer, {"kind": "number"}))

    named_runs = named_debates(recipe, questions, f"check/{number}", check_proposal=accept)
    return [
        play_debate(run, ScriptedAgents(recipe.rollout.max_tokens, name))
        for name, run in named_runs
    ]


def scripted_questions(count: int, *, answers: bool) -> list[Question]:
    """Make up the questions of scripted debates."""
    answer = RIGHT_ANSWER if answers else None
    return [Question(f"q{i}", f"question {i}", answer, {"kind": "number"}) for i in range(count)]


def _num_questions(phase: Recipe) -> int:
    parts = phase.reward.parts().values()
    return max(MIN_QUESTIONS, *(part.reward.needs().num_questions for part in parts))


class ScriptedAgents:
    """Fills all sections of a contract, differently in every turn."""

    def __init__(self, max_tokens: int, name: str) -> None:
        self._max_tokens = max_tokens
        self._name = name
        self._is_right: dict[TurnKey, bool] = {}

    def __call__(self, request: TurnRequest) -> Reply:
        """Write a turn's reply, of a length drawn for it."""
        chance = random.Random(f"{self._name}/{request.seed}/{request.agent}/{request.round}")
        is_right = chance.random() < 0.5
        self._is_right[TurnKey(request.agent, request.round)] = is_right
        answer = RIGHT_ANSWER if is_right else chance.choice(WRONG_ANSWERS)
        contract = request.contract or get_contract("boxed")
        text = contract.reply(answer, self._sections(request, contract, chance))
        # Some replies are as long as they may be, so that penalties of length have values.
        is_longest = chance.random() < 0.3
        num_tokens = self._max_tokens if is_longest else chance.randint(1, self._max_tokens)
        return Reply(text, token_ids=(0,) * num_tokens, logps=(0.0,) * num_tokens)

    def _sections(
        self, request: TurnRequest, contract: Contract, chance: random.Random
    ) -> dict[str, str]:
        compared_keys = set(request.shown)
        if contract.ranks_own:
            compared_keys.add(TurnKey(request.agent, 0))
        latest_is_right = {}
        for key in sorted(compared_keys):
            latest_is_right[key.agent] = self._is_right.get(key, False)

        decisions = ("Agent 0", "Agent 1") if contract.name == CHOICE else ("right", "wrong")
        decision = chance.choice(decisions)
        evaluations = []
        for agent, is_right in latest_is_right.items():
            evaluations.append(f"Agent {agent} is {'right' if is_right else 'wrong'}.")
        comparisons = []
        for left, right in combinations(sorted(latest_is_right), 2):
            verdict = _verdict(latest_is_right[left], latest_is_right[right], chance)
            comparisons.append(f"Agent {left} {verdict} Agent {right}")
        verdict = "right" if any(latest_is_right.values()) else "wrong"
        if chance.random() < 0.2:
            verdict = chance.choice(("right", "wrong"))
        return {
            QUESTION: f"question {chance.random()}",
            "decision": decision,
            VERDICT: verdict,
            "evaluation": " ".join(evaluations),
            "comparison": "\n".join(comparisons),
        }


def _verdict(left_is_right: bool, right_is_right: bool, chance: random.Random) -> str:
    if left_is_right == right_is_right or chance.random() < 0.2:
        return chance.choice(">=<")
    return ">" if left_is_right else "<"
