"""What passes between an actor and its critic: their asks, and how their replies are heard."""

from abc import abstractmethod
from dataclasses import replace

from debate_protocol.forms.gated_settings import FreeTextSettings
from debate_protocol.forms.turns import heard, new_ask, replies_to, side_seed
from debate_protocol.parsing.replies import parse, spoken_text
from debate_protocol.parsing.tags import neutralised
from debate_protocol.prompts.actor_critic import actor_prompt, critic_prompt, steered
from debate_protocol.prompts.view import SeenTurn, StyleName, View, insertable
from debate_protocol.roles import ACTOR, CRITIC
from debate_protocol.types import Ask, Message, Protocol, Question, Reply, Sent, Turn, TurnKey


class ExchangeSettings(FreeTextSettings):
    """Settings of forms whose prompts are written for an actor and a critic: no templates."""

    style: StyleName = "full"
    """What agents are shown: `full` instructions, or `compact` for tiny models."""

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

    def opening(self) -> Ask:
        """Return the ask for the actor's first answer."""
        prompt = actor_prompt(self.form.style, self._view(TurnKey(ACTOR, 0)))
        return new_ask(self.form, self.question, TurnKey(ACTOR, 0), self.seed, prompt)

    def following(self, turn: Turn, answer: Turn, name: str = "") -> Ask:
        """Return the ask for the turn after `turn`.

        Args:
            turn: The last turn of the state.
            answer: The actor's last turn: `turn` itself, or the one that the critic speaks about.
            name: Names what is sampled beside the debate; empty for its own turns.
        """
        style = self.form.style
        if turn.agent == ACTOR:
            key = TurnKey(CRITIC, turn.round)
            prompt = critic_prompt(style, self._view(key, turn))
        else:
            key = TurnKey(ACTOR, turn.round + 1)
            prompt = actor_prompt(style, self._view(key, answer, turn))
        seed = side_seed(self.seed, name) if name else self.seed
        return replace(new_ask(self.form, self.question, key, seed, prompt), shown=(turn.key,))

    def instead(self, turn: Turn, guide: str, name: str) -> Ask:
        """Return the ask for a turn in the place of `turn` that is steered to an answer."""
        prompt: tuple[Message, ...] = steered(
            self.form.style,
            turn.prompt or (),
            "actor" if turn.agent == ACTOR else "critic",
            neutralised(guide.strip(), self.contract),
        )
        seed = side_seed(self.seed, name)
        return replace(new_ask(self.form, self.question, turn.key, seed, prompt), shown=turn.shown)

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

    def _view(self, reader: TurnKey, *turns: Turn) -> View:
        return View(
            question=self.question,
            contract=self.contract,
            agent=reader.agent,
            round=reader.round,
            persona=None,
            turns=tuple(self._seen(turn) for turn in turns),
            peers=(),
            own_turn_failed=any(t.agent == reader.agent and t.failure is not None for t in turns),
        )

    def _seen(self, turn: Turn) -> SeenTurn:
        if turn.failure is not None:
            return SeenTurn(turn.agent, turn.round, None)
        spoken = spoken_text(turn.text, self.form.think)
        text = insertable(spoken, self.contract, self.form.max_chars_per_field)
        # The compact style reads what stands on a speaker's line under this name.
        return SeenTurn(turn.agent, turn.round, {"answer": text})
