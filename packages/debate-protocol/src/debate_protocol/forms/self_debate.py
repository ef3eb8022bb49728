"""The self-debate (SDRL): many first answers, then second answers to a pair of them."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from debate_protocol.forms.rounds import new_turn_request, parsed_of, record_replies, seen_sections
from debate_protocol.forms.settings import MOST, DebateStart, SampledSettings
from debate_protocol.prompts import SeenTurn, View, insertable, opening
from debate_protocol.types import (
    AgentRole,
    DebateRun,
    Gate,
    Message,
    Protocol,
    Turn,
    TurnKey,
    paired_roles,
)

Pairing = Literal["rand", "freq"]


def draw_pair(
    answers: Mapping[int, str | None],
    pairing: Pairing,
    same_answer: Callable[[str, str], bool],
    chance: random.Random,
) -> tuple[int, int] | None:
    """Return two of the numbered first turns in the order in which they are shown.

    `rand` draws two turns. `freq` draws a turn of each of the two most common answers, equally
    common answers in random order; a turn without an answer belongs to none, and where fewer than
    two answers were given two turns are drawn as in `rand`. The order is random.

    Args:
        answers: Each turn's answer, None where none can be read.
        pairing: The rule.
        same_answer: Decides which answers are the same.
        chance: Draws.

    Returns:
        None when there are fewer than two turns.

    Source: SDRL (paper), section 5.2, "Debate pair construction".
    """
    turns = list(answers)
    if len(turns) < 2:
        return None
    if pairing == "freq":
        classes = _classes(answers, same_answer)
        if len(classes) > 1:
            chance.shuffle(classes)
            classes.sort(key=len, reverse=True)  # stable: equals stay in the order drawn
            pair = [chance.choice(classes[0]), chance.choice(classes[1])]
            chance.shuffle(pair)
            return pair[0], pair[1]
    first, second = chance.sample(turns, 2)
    return first, second


def _classes(
    answers: Mapping[int, str | None], same_answer: Callable[[str, str], bool]
) -> list[list[int]]:
    """Return the turns of each answer; a turn joins the first class that its answer fits."""
    classes: dict[str, list[int]] = {}
    for turn, answer in answers.items():
        if answer is not None:
            same = next((one for one in classes if same_answer(one, answer)), answer)
            classes.setdefault(same, []).append(turn)
    return list(classes.values())


DELIBERATE = (
    "Compare it with your own response. Check the steps of both, decide what is right in each, "
    "correct the rest, and give your final answer with its full reasoning, in the same form."
)
"""Ends a debate prompt that is a conversation."""


class SelfDebate(SampledSettings):
    """First answers to the question, and second answers to a debate prompt that shows two of them.

    All first turns answer one prompt, that of `Direct`. All second turns answer another, that of
    agent 2 of a debate who has read agents 0 and 1. Each sample is an agent of its own: agents 0
    to `first_turns` − 1 speak in round 0, the others in round 1, and `shown` of these names the
    pair in the order in which it was shown: what the prompt calls agents 0 and 1. With a contract
    of sections the pair is shown as peers are in a debate with blind review. A gate after round 0
    lets a `select` drop questions that teach nothing and choose those that debate.

    Attributes:
        first_turns: Samples of the first prompt.
        second_turns: Samples of the second prompt, which shows two first answers.
        pairing: `freq` pairs the two most common answers, `rand` any two (`pairing.draw_pair`).
        debate_prompt: How the pair is shown: in one user `message`, as in an evaluated debate, or
            as a `conversation`: the first response of the pair is the agent's own reply to the
            question, and the user's next message shows the second.
        pair_max_tokens: Longest first answer, in tokens, that may be paired; None takes any.

    Source: SDRL (paper), Algorithm 1, lines 4, 7 and 8. Its prompt "serializes the two candidate
    responses into a two-turn conversation" (5.2) and is in a figure that the paper's text leaves
    out; `conversation` has the turns of the authors' code. The words are our own.
    """

    type: Literal["self_debate"] = "self_debate"
    max_rounds: Literal[2] = 2
    """First answers, then second ones."""
    first_turns: int = Field(default=8, ge=2, le=MOST)
    second_turns: int = Field(default=8, ge=1, le=MOST)
    pairing: Pairing = "freq"
    debate_prompt: Literal["message", "conversation"] = "message"
    pair_max_tokens: int | None = Field(default=None, ge=1)
    """Longest first answer, in tokens, that may be paired; null takes any."""
    gate_after: tuple[NonNegativeInt, ...] = (0,)
    """Rounds, from 0, after which `rollout.select` is asked whether the debate goes on."""

    agent_keys: ClassVar[tuple[str, ...]] = ("first_turns", "second_turns")

    @property
    def num_agents(self) -> int:
        """One agent for each sample."""
        return self.first_turns + self.second_turns

    def turn_count(self) -> int:
        """Return how many turns are sampled when the debate goes on to its end."""
        return self.num_agents

    def own_roles(self) -> tuple[AgentRole, ...]:
        """Return a role for the samples of each prompt."""
        return paired_roles(self.first_turns, self.second_turns)

    def protocol(self) -> Protocol:
        """Return the rules as they are written into transcripts."""
        extra = {
            "first_turns": self.first_turns,
            "pairing": self.pairing,
            "debate_prompt": self.debate_prompt,
        }
        limit = self.pair_max_tokens
        unusual = {} if limit is None else {"pair_max_tokens": limit}
        return self.rules(extra, unusual, topology="pair", history_rounds=1)

    def debate(self, begin: DebateStart) -> DebateRun:
        """Hold a debate."""
        rules = self.protocol()
        view = View(begin.question, self.contract_rules(), 0, 0, None, (), ())
        prompt = opening(self.style, view)
        views = [replace(view, agent=agent) for agent in range(self.first_turns)]
        requests = [new_turn_request(self, begin.seed, one, prompt) for one in views]
        first = record_replies(self, rules, requests, (yield requests))
        gate = begin.transcript(rules, first, "gate")
        if 0 in self.gate_after and (yield Gate(gate, "round_0")) == "keep":
            return gate
        answers = {turn.agent: parsed_of(turn).answer for turn in first if self._is_pairable(turn)}
        chance = random.Random(f"{begin.seed}/pair")
        pair = draw_pair(answers, self.pairing, begin.same_answer, chance)
        if pair is None:
            return begin.transcript(rules, first, "no_pair")
        view = self._paired(view, [first[agent] for agent in pair])
        prompt = self._debate_prompt(view)
        views = [replace(view, agent=one) for one in range(self.first_turns, self.num_agents)]
        shown = tuple(TurnKey(agent, 0) for agent in pair)
        requests = [new_turn_request(self, begin.seed, one, prompt, shown) for one in views]
        turns = first + record_replies(self, rules, requests, (yield requests))
        if 1 in self.gate_after:
            yield Gate(begin.transcript(rules, turns, "gate"), "round_1")
        return begin.transcript(rules, turns, "max_rounds")

    def _is_pairable(self, turn: Turn) -> bool:
        _, tokens = turn.token_counts or (0, 0)
        is_short = self.pair_max_tokens is None or tokens <= self.pair_max_tokens
        return is_short and bool(parsed_of(turn).spoken)

    def _paired(self, single: View, pair: list[Turn]) -> View:
        seen = tuple(SeenTurn(place, 0, self._fields(one)) for place, one in enumerate(pair))
        return replace(single, agent=2, round=1, turns=seen, peers=(0, 1))

    def _debate_prompt(self, view: View) -> tuple[Message, ...]:
        if self.debate_prompt == "message":
            return opening(self.style, view)
        own, other = ((turn.fields or {}).get("response", "") for turn in view.turns)
        single = replace(view, agent=0, round=0, turns=(), peers=())
        shown = f"Another response to the question:\n<turn>\n{other}\n</turn>\n\n{DELIBERATE}"
        return (
            *opening(self.style, single),
            Message(role="assistant", content=own),
            Message(role="user", content=shown),
        )

    def _fields(self, turn: Turn) -> dict[str, str] | None:
        rules = self.contract_rules()
        if rules.kind != "xml":
            field = "answer" if self.style == "compact" else "response"
            fields = {field: parsed_of(turn).spoken}
        elif turn.failure is not None:
            return None
        else:
            fields = seen_sections(parsed_of(turn), rules, blind=True)
        return {name: self._insertable(text) for name, text in fields.items()}

    def _insertable(self, text: str) -> str:
        return insertable(text, self.contract_rules(), self.max_chars_per_field)

    @model_validator(mode="after")
    def _conversation_is_free_text(self) -> Self:
        if self.debate_prompt == "conversation" and (
            self.style != "full" or self.contract_rules().kind == "xml"
        ):
            raise ValueError(
                "debate_prompt: found conversation, which holds whole responses; expected style "
                "full and a contract of free text, such as boxed, or debate_prompt: message"
            )
        return self
