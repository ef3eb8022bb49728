"""What passes between actors and their critic: their asks, and how their replies are heard."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Discriminator, Tag

from debate_protocol.forms.gated_settings import FreeTextSettings
from debate_protocol.forms.own_contract import named_or_own
from debate_protocol.forms.settings import SpeakingSettings
from debate_protocol.forms.turns import heard, new_ask, replies_to, side_seed
from debate_protocol.parsing.replies import parse, spoken_text
from debate_protocol.prompts.actor_critic import exchange_prompt
from debate_protocol.prompts.exchange_templates import ExchangeTemplates
from debate_protocol.prompts.view import SeenTurn, StyleName, View, insertable
from debate_protocol.types import Ask, Protocol, Question, Reply, Sent, Turn, TurnKey

ExchangeStyle = Annotated[
    Annotated[StyleName, Tag("named")] | Annotated[ExchangeTemplates, Tag("own")],
    Discriminator(named_or_own),
]


class ExchangeSettings(FreeTextSettings):
    """Settings of forms whose prompts are written for actors and a critic."""

    style: ExchangeStyle = "full"  # type: ignore[assignment]
    """What agents are shown: `full` instructions, `compact` for tiny models, or own templates."""

    def speaking(self) -> SpeakingSettings:
        """Return how a single reply is prompted and sampled: as an actor's first answer."""
        found = super().speaking()
        if isinstance(self.style, ExchangeTemplates):
            return found.model_copy(update={"style": self.style.single()})
        return found

    @abstractmethod
    def protocol(self) -> Protocol:
        """Return the rules as they are written into transcripts."""


class Exchange:
    """Makes asks of any state of one debate; every prompt is made from that state alone."""

    def __init__(self, form: ExchangeSettings, question: Question, seed: int) -> None:
        self.form = form
        self.rules = form.protocol()
        self.question = question
        self.seed = seed
        self.contract = form.contract_rules()
        self.critic = form.num_agents - 1
        self.actors, self.agents = range(self.critic), range(form.num_agents)

    def ask(
        self,
        key: TurnKey,
        spoken: Mapping[TurnKey, Turn],
        name: str = "",
        guide: str | None = None,
    ) -> Ask:
        """Return the ask for a turn.

        Args:
            key: Whose turn it is, and its round.
            spoken: The turns of its state. A critic is shown the answers of its round, an actor
                all turns of the round before, its own included.
            name: Names what is sampled beside the debate; empty for its own turns.
            guide: The answer that it is steered to, if it is.
        """
        form, seed = self.form, side_seed(self.seed, name) if name else self.seed
        is_critic = key.agent == self.critic
        last, agents = (key.round, self.actors) if is_critic else (key.round - 1, self.agents)
        seen = [spoken[TurnKey(agent, last)] for agent in agents if last >= 0]
        prompt = exchange_prompt(form.style, self._view(key, seen), guide)
        shown = tuple(turn.key for turn in seen if turn.agent != key.agent)
        return replace(new_ask(form, self.question, key, seed, prompt), shown=shown)

    def hear(self, asks: list[Ask], sent: Sent) -> list[Turn]:
        """Return the replies as turns."""
        replies = replies_to(asks, sent)
        return [self._heard(ask, reply) for ask, reply in zip(asks, replies, strict=True)]

    def answer_of(self, turn: Turn) -> str | None:
        """Return the answer that an actor's turn gives."""
        parsed = turn.parsed or parse(turn.text, self.contract, think=self.form.think)
        return parsed.answer

    def _heard(self, ask: Ask, reply: Reply) -> Turn:
        turn, _ = heard(self.form, self.rules, ask, reply)
        return turn

    def _view(self, reader: TurnKey, turns: Sequence[Turn]) -> View:
        return View(
            question=self.question,
            contract=self.contract,
            agent=reader.agent,
            round=reader.round,
            persona=None,
            turns=tuple(self._seen(turn) for turn in turns),
            peers=(),
            own_turn_failed=any(t.agent == reader.agent and t.failure is not None for t in turns),
            answers=reader.agent != self.critic,
        )

    def _seen(self, turn: Turn) -> SeenTurn:
        if turn.failure is not None:
            return SeenTurn(turn.agent, turn.round, None)
        spoken = spoken_text(turn.text, self.form.think)
        text = insertable(spoken, self.contract, self.form.max_chars_per_field)
        # The compact style reads what stands on a speaker's line under this name.
        return SeenTurn(turn.agent, turn.round, {"answer": text})
