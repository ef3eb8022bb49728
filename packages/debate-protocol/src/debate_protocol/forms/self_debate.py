"""The self-debate (SDRL): many first answers, then second answers to a pair of them."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from debate_protocol.forms.rounds import (
    equal_requests,
    first_view,
    new_turn_request,
    parsed_of,
    record_replies,
    shown_fields,
)
from debate_protocol.forms.settings import MOST, DebateStart, SampledSettings
from debate_protocol.prompts import SeenTurn, View, opening
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
DELIBERATE = (
    "Compare it with your own response. Check the steps of both, decide what is right in each, "
    "correct the rest, and give your final answer with its full reasoning, in the same form."
)
"""Ends a debate prompt that is a conversation."""


def draw_pair(
    answers: Mapping[int, str | None],
    pairing: Pairing,
    same_answer: Callable[[str, str], bool],
    chance: random.Random,
) -> tuple[int, int] | None:
    """Draw two of the numbered first turns in the order in which they are shown.

    `rand` draws two turns. `freq` draws a turn of each of the two most common answers, equally
    common answers in random order; turns without an answer are not drawn. With fewer than two
    different answers, `freq` draws as `rand` does. The order is random.

    Args:
        answers: Each turn's answer, `None` for an unreadable answer.
        pairing: The rule.
        same_answer: Decides which answers are the same.
        chance: Source of the draws.

    Returns:
        `None` when there are fewer than two turns.

    Source: SDRL (paper), section 5.2, "Debate pair construction".
    """
    turns = list(answers)
    if len(turns) < 2:
        return None
    if pairing == "freq":
        # Turns by answer; a turn joins the first answer that equals its own.
        turns_of_answer: dict[str, list[int]] = {}
        for turn, answer in answers.items():
            if answer is None:
                continue
            first_equal = next(
                (earlier for earlier in turns_of_answer if same_answer(earlier, answer)), answer
            )
            turns_of_answer.setdefault(first_equal, []).append(turn)
        classes = list(turns_of_answer.values())
        if len(classes) > 1:
            chance.shuffle(classes)
            classes.sort(key=len, reverse=True)  # stable: equals stay in the order drawn
            pair = [chance.choice(classes[0]), chance.choice(classes[1])]
            chance.shuffle(pair)
            return pair[0], pair[1]
    first, second = chance.sample(turns, 2)
    return first, second


class SelfDebate(SampledSettings):
    """First answers to the question, and second answers to a debate prompt that shows two of them.

    All first turns answer one prompt, that of `Direct`. All second turns answer another, that of
    agent 2 of a debate who has read agents 0 and 1. Each sample is a separate agent: agents 0 to
    `first_turns` − 1 speak in round 0, the others in round 1, and `shown` of second turns names the
    pair in the order of the prompt, which calls them agents 0 and 1. With a contract of sections
    the pair is shown as peers are in a debate with blind review. A gate after round 0 lets a
    `select` drop questions that teach nothing and choose the questions that debate.

    Attributes:
        first_turns: Samples of the first prompt.
        second_turns: Samples of the second prompt, which shows two first answers.
        pairing: `freq` pairs the two most common answers, `rand` any two (`pairing.draw_pair`).
        debate_prompt: How the pair is shown: in one user `message`, as in an evaluated debate, or
            as a `conversation`: the first response of the pair is the agent's own reply to the
            question, and the user's next message shows the second.
        pair_max_tokens: Longest first answer, in tokens, that may be paired; `None` takes any.

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
        """Count the turns that are sampled when the debate goes on to its end."""
        return self.num_agents

    def own_roles(self) -> tuple[AgentRole, ...]:
        """List a role for the samples of each prompt."""
        return paired_roles(self.first_turns, self.second_turns)

    def protocol(self) -> Protocol:
        """Build the rules for transcripts."""
        settings = {
            "first_turns": self.first_turns,
            "pairing": self.pairing,
            "debate_prompt": self.debate_prompt,
        }
        changed_settings = {}
        if self.pair_max_tokens is not None:
            changed_settings["pair_max_tokens"] = self.pair_max_tokens
        return self.rules(settings, changed_settings, topology="pair", history_rounds=1)

    def debate(self, begin: DebateStart) -> DebateRun:
        """Play a debate."""
        rules = self.protocol()
        view = first_view(begin, self.contract_rules())
        requests = equal_requests(self, begin, view, self.first_turns)
        first_turns = record_replies(self, rules, requests, (yield requests))
        gate = begin.transcript(rules, first_turns, "gate")
        if 0 in self.gate_after and (yield Gate(gate, "round_0")) == "keep":
            return gate

        answers = {
            turn.agent: parsed_of(turn).answer for turn in first_turns if self._is_pairable(turn)
        }
        chance = random.Random(f"{begin.seed}/pair")
        pair = draw_pair(answers, self.pairing, begin.same_answer, chance)
        if pair is None:
            return begin.transcript(rules, first_turns, "no_pair")

        # All second turns share one prompt, written for agent 2 of a debate with the pair.
        seen_turns = []
        for position, agent in enumerate(pair):
            fields = shown_fields(self, first_turns[agent], self.contract_rules())
            seen_turns.append(SeenTurn(position, 0, fields))
        view = replace(view, agent=2, round=1, turns=tuple(seen_turns), peers=(0, 1))
        prompt = self._debate_prompt(view)
        shown = tuple(TurnKey(agent, 0) for agent in pair)
        requests = [
            new_turn_request(self, begin.seed, replace(view, agent=agent), prompt, shown)
            for agent in range(self.first_turns, self.num_agents)
        ]
        turns = first_turns + record_replies(self, rules, requests, (yield requests))
        if 1 in self.gate_after:
            yield Gate(begin.transcript(rules, turns, "gate"), "round_1")
        return begin.transcript(rules, turns, "max_rounds")

    def _is_pairable(self, turn: Turn) -> bool:
        _, num_tokens = turn.token_counts or (0, 0)
        is_short = self.pair_max_tokens is None or num_tokens <= self.pair_max_tokens
        return is_short and bool(parsed_of(turn).spoken)

    def _debate_prompt(self, view: View) -> tuple[Message, ...]:
        if self.debate_prompt == "message":
            return opening(self.style, view)
        # The first response of the pair becomes the agent's own reply to the plain question.
        responses = [(turn.fields or {}).get("response", "") for turn in view.turns]
        own_response, other_response = responses
        single_view = replace(view, agent=0, round=0, turns=(), peers=())
        request_text = (
            f"Another response to the question:\n<turn>\n{other_response}\n</turn>\n\n{DELIBERATE}"
        )
        return (
            *opening(self.style, single_view),
            Message(role="assistant", content=own_response),
            Message(role="user", content=request_text),
        )

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
