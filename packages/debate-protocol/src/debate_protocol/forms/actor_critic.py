"""The actor-critic debate (ACC-Debate), with guided replies and roll-outs of states."""

import random
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from debate_protocol.forms.exchange_prompts import ExchangeStyle, ExchangeTemplates, exchange_prompt
from debate_protocol.forms.rounds import new_turn_request, parsed_of, record_replies, side_seed
from debate_protocol.forms.settings import (
    MOST,
    DebateStart,
    SampledSettings,
    SpeakingSettings,
)
from debate_protocol.prompts import (
    SeenTurn,
    View,
    insertable,
    labelled_choices,
    question_kind,
)
from debate_protocol.types import (
    TOKENS,
    AgentRole,
    Branch,
    DebateRun,
    Gate,
    Protocol,
    Question,
    Schedule,
    Sent,
    Turn,
    TurnKey,
    TurnRequest,
    Yielded,
    exchange_roles,
)


class Exchange:
    """Builds turn requests for any state of a debate; a prompt depends only on the state."""

    def __init__(self, form: "ActorCritic", begin: DebateStart) -> None:
        self.form = form
        self.begin = begin
        self.rules = form.protocol()
        self.contract = form.contract_rules()
        self.critic = form.num_agents - 1
        self.actors = range(self.critic)
        self.agents = range(form.num_agents)

    def request_turn(
        self,
        key: TurnKey,
        spoken: Mapping[TurnKey, Turn],
        name: str = "",
        guide: str | None = None,
    ) -> TurnRequest:
        """Build the request for a turn.

        Args:
            key: Agent and round of the turn.
            spoken: The turns of the state. A critic is shown the answers of the round, an actor all
                turns of the round before.
            name: Names a sample beside the debate; empty for turns of the debate.
            guide: The answer to steer the reply to, if any.
        """
        # Samples beside the debate have seeds of their own: the debate does not depend on them.
        seed = side_seed(self.begin.seed, name) if name else self.begin.seed
        if key.agent == self.critic:
            visible_round = key.round
            visible_agents = self.actors
        else:
            visible_round = key.round - 1
            visible_agents = self.agents
        visible_turns = []
        if visible_round >= 0:
            visible_turns = [spoken[TurnKey(agent, visible_round)] for agent in visible_agents]
        view = self._view(key, visible_turns)
        prompt = exchange_prompt(self.form.style, view, guide)
        shown_keys = tuple(turn.key for turn in visible_turns if turn.agent != key.agent)
        request = new_turn_request(self.form, seed, view, prompt, shown_keys)
        return replace(request, guide=guide)

    def _view(self, reader: TurnKey, turns: Sequence[Turn]) -> View:
        own_failures = [
            turn.failure
            for turn in turns
            if turn.agent == reader.agent and turn.failure is not None
        ]
        return View(
            question=self.begin.question,
            contract=self.contract,
            agent=reader.agent,
            round=reader.round,
            persona=None,
            turns=tuple(self._seen(turn) for turn in turns),
            peers=(),
            own_turn_failed=bool(own_failures),
            answers=reader.agent != self.critic,
        )

    def _seen(self, turn: Turn) -> SeenTurn:
        if turn.failure is not None:
            return SeenTurn(turn.agent, turn.round, None)
        text = insertable(parsed_of(turn).spoken, self.contract, self.form.max_chars_per_field)
        # The compact style reads a speaker's line under this name.
        return SeenTurn(turn.agent, turn.round, {"answer": text})


_OPPOSITE = {"yes": "no", "true": "false", "valid": "invalid"}
_OPPOSITE |= {other: one for one, other in _OPPOSITE.items()}
_LETTER = re.compile(r"\W*[A-Za-z]\W*\Z")


def wrong_answer(
    question: Question,
    own: Sequence[str],
    same_answer: Callable[[str, str], bool],
    chance: random.Random,
) -> str | None:
    """Find a wrong answer to the question.

    In order: another choice, drawn, as a label or written out like the right choice; the opposite
    of yes and no, true and false, or valid and invalid; the first wrong answer among `own`; a drawn
    entry of `meta["wrong_answers"]`, from the source of the questions; a change of the right
    answer. The change: for the letter of a choice, A, or B for A; otherwise the last digit plus 1,
    0 for 9; otherwise, in mathematics, the right answer `+ 1`.

    Args:
        question: With an answer; without it there is no wrong answer either.
        own: The model's own answers.
        same_answer: Decides whether an answer is right after all.
        chance: Draws among choices.

    Returns:
        `None` without an answer known to be wrong.

    Source: ACC-Debate (paper), Algorithm 1, `!y`, left open there.
    """
    right = question.answer
    if right is None:
        return None
    accepted = (right, *question.meta.get("accept", ()))

    def wrong(answers: Sequence[str]) -> list[str]:
        wrong_answers = []
        for answer in answers:
            if not any(same_answer(answer, right_answer) for right_answer in accepted):
                wrong_answers.append(answer)
        return wrong_answers

    # The order matters: what a model might believe comes before what it would see through.
    other_choices = _other_choices(question, right, same_answer)
    if other_choices:
        return chance.choice(other_choices)
    opposite = _OPPOSITE.get(right.strip().casefold())
    if opposite is not None:
        is_capitalized = right.strip()[0].isupper()
        return opposite.capitalize() if is_capitalized else opposite
    wrong_own = wrong(own)
    if wrong_own:
        return wrong_own[0]
    wrong_in_data = wrong(question.meta.get("wrong_answers", ()))
    if wrong_in_data:
        return chance.choice(wrong_in_data)
    wrong_changed = wrong(_changed(question, right))
    return wrong_changed[0] if wrong_changed else None


def _other_choices(
    question: Question, right: str, same_answer: Callable[[str, str], bool]
) -> list[str]:
    labelled = labelled_choices(question)
    wrong = [
        (label, text)
        for label, text in labelled
        if not same_answer(label, right) and not same_answer(text, right)
    ]
    # The right answer is none of the choices, so nothing is known about them.
    if len(wrong) == len(labelled):
        return []
    # Written as the right answer is: another spelling would show which is which.
    is_written_out = right.strip() in [text.strip() for _, text in labelled]
    if is_written_out:
        return [text for _, text in wrong]
    return [label for label, _ in wrong]


def _changed(question: Question, right: str) -> list[str]:
    kind = question_kind(question)
    if kind == "choice" and _LETTER.match(right):
        return ["B" if "A" in right.upper() else "A"]
    digits = list(re.finditer("[0-9]", right))
    if digits:
        last = digits[-1]
        higher = str((int(last.group()) + 1) % 10)
        return [right[: last.start()] + higher + right[last.end() :]]
    if kind == "math" and right.strip():
        return [f"{right} + 1"]
    return []


@dataclass(slots=True)
class _BranchState:
    """A state of the debate after a natural turn or after a branch of it (`guide` is set)."""

    turn_index: int
    guide: str | None
    name: str
    turn: Turn
    continuations: list[Turn] = field(default_factory=list)


def sampled_beside(
    exchange: Exchange, turns: Sequence[Turn], guides: Sequence[str]
) -> Generator[Yielded, Sent, tuple[Turn, ...]]:
    """Sample branches and continuations of a finished debate; return the turns with them.

    A guided reply has the natural turn's history, so both answer the same prompt. Every state is
    continued up to the next answer: after a critic's turn to each actor's answer, after an actor's
    turn to the critic's reply and then to the actor's answer. The last round has no continuation.
    Continuations are not trained on, so they keep neither prompt nor tokens, only the number of
    tokens (`Turn.token_counts`).
    """
    form = exchange.form
    spoken = {turn.key: turn for turn in turns}
    natural_states: list[_BranchState] = []
    guided_states: list[_BranchState] = []
    requests: list[TurnRequest] = []
    for index, turn in enumerate(turns):
        if turn.round < form.first_sampled_round():
            continue
        # Seeds of the samples follow from these names, so that each has draws of its own.
        prefix = f"{turn.agent}.{turn.round}"
        natural_states.append(_BranchState(index, None, f"{prefix}/natural", turn))
        for number, guide in enumerate(guides):
            name = f"{prefix}/guide{number}"
            guided_states.append(_BranchState(index, guide, name, turn))
            requests.append(exchange.request_turn(turn.key, spoken, name, guide))
    # All branches at once: none depends on another's reply.
    guided_turns = yield from _spoken(exchange, requests)
    for state, guided_turn in zip(guided_states, guided_turns, strict=True):
        state.turn = guided_turn

    states = natural_states + guided_states
    last_round = turns[-1].round
    continued = [state for state in states if state.turn.round < last_round]
    if form.continued == "critic":
        continued = [state for state in continued if state.turn.agent == exchange.critic]
    yield from _continue(continued, exchange, spoken)
    return tuple(_with_states(index, turn, states) for index, turn in enumerate(turns))


def _continue(
    states: Sequence[_BranchState], exchange: Exchange, spoken: Mapping[TurnKey, Turn]
) -> Generator[Yielded, Sent, None]:
    """Sample up to the next answer of each state, in two rounds of requests for all states."""
    critic = exchange.critic
    first_states: list[_BranchState] = []
    first_names: list[str] = []
    requests: list[TurnRequest] = []
    for state in states:
        agent, round = state.turn.key
        if agent == critic:
            next_keys = [TurnKey(actor, round + 1) for actor in exchange.actors]
        else:
            next_keys = [TurnKey(critic, round)]
        turns_of_state = {**spoken, state.turn.key: state.turn}
        for number in range(exchange.form.continuations):
            name = f"{state.name}/{number}"
            for key in next_keys:
                first_states.append(state)
                first_names.append(name)
                requests.append(exchange.request_turn(key, turns_of_state, name))
    first_turns = yield from _spoken(exchange, requests)

    # Feedback is no answer: the actor's next turn shows what the feedback is worth.
    feedback_indices = [i for i, turn in enumerate(first_turns) if turn.agent == critic]
    requests = []
    for index in feedback_indices:
        state = first_states[index]
        feedback = first_turns[index]
        answer_key = TurnKey(state.turn.agent, state.turn.round + 1)
        turns_of_state = {**spoken, state.turn.key: state.turn, feedback.key: feedback}
        requests.append(exchange.request_turn(answer_key, turns_of_state, first_names[index]))
    answers = yield from _spoken(exchange, requests)
    answer_to = dict(zip(feedback_indices, answers, strict=True))
    for index, turn in enumerate(first_turns):
        continuations = (_bare(answer_to[index]),) if index in answer_to else ()
        continued_turn = replace(_bare(turn), continuations=continuations)
        first_states[index].continuations.append(continued_turn)


def _spoken(
    exchange: Exchange, requests: list[TurnRequest]
) -> Generator[Yielded, Sent, list[Turn]]:
    if not requests:
        return []
    return record_replies(exchange.form, exchange.rules, requests, (yield requests))


def _bare(turn: Turn) -> Turn:
    """Drop from a turn the parts needed only in training; keep the number of tokens."""
    counts = turn.token_counts
    extra = dict(turn.extra)
    if counts is not None and counts != (0, 0):
        extra[TOKENS] = [*counts]
    return replace(turn, prompt=None, reply=None, extra=extra)


def _with_states(index: int, turn: Turn, states: Sequence[_BranchState]) -> Turn:
    continuations: list[Turn] = []
    branches = []
    for state in states:
        if state.turn_index != index:
            continue
        if state.guide is None:
            continuations = state.continuations
        else:
            guided_turn = replace(state.turn, continuations=tuple(state.continuations))
            branches.append(Branch(state.guide, guided_turn))
    return replace(turn, branches=tuple(branches), continuations=tuple(continuations))


class ActorCritic(SampledSettings):
    """Agent 0, the actor, answers; agent 1, the critic, gives feedback; the actor answers again.

    Each sees the question and only the last exchange: the actor its own last turn and the
    critic's, the critic the actor's turn of the same round. The debate ends with the actor's turn
    of the last round; a critic's turn after it would have no reader. With more agents all but the
    last are actors: they answer at once and see each other's last answers.

    With `continuations` every state is valued by this number of next turns of the actor, sampled
    from the state. With `guided` each turn also gets two branches, sampled in the turn's place with
    a request to speak for the right answer and for a wrong answer (`wrong_answers.wrong_answer`),
    and valued in the same way. Branches follow the natural debate and do not change it. A question
    without a known right answer or wrong answer has no branches.

    Attributes:
        guided: Sample guided branches.
        guide_round_zero: Also in round 0; without it round 0 has no values under `guided`.
        continuations: Roll-outs of each state; 0 values no state.
        continued: `all` states, or only states after a `critic`: an actor's turn is then valued by
            its own answer, as in the authors' published code.

    Source: ACC-Debate (paper), section 3 and Algorithm 1. Both replies of a critic's pair answer
    the same natural turn of the actor, where the algorithm guides whole rounds. The paper has
    teams of two, with prompts for the answers of several people.
    """

    type: Literal["actor_critic"] = "actor_critic"
    style: ExchangeStyle = "full"  # type: ignore[assignment]
    """What agents are shown: `full` instructions, `compact` for tiny models, or own templates."""
    num_agents: int = Field(default=2, ge=2, le=MOST)
    """Actors, and a critic as the last."""
    max_rounds: int = Field(default=5, ge=1, le=MOST)
    """Rounds at most, the first answer included."""
    guided: bool = False
    guide_round_zero: bool = False
    continuations: int = Field(default=0, ge=0, le=MOST)
    continued: Literal["all", "critic"] = "all"

    schedule: ClassVar[Schedule] = "sequential"
    sample_keys: ClassVar[tuple[str, ...]] = ("continuations",)

    def speaking(self) -> SpeakingSettings:
        """Prompt and sample a single reply as an actor's first answer."""
        settings = super().speaking()
        if isinstance(self.style, ExchangeTemplates):
            return settings.model_copy(update={"style": self.style.single()})
        return settings

    @model_validator(mode="after")
    def _branches_are_valued(self) -> Self:
        if self.contract_rules().kind == "xml":
            raise ValueError(
                f"contract: found {str(self.contract_rules())!r}, but this form reads free text; "
                "expected boxed or answer_line"
            )
        if self.guided and not self.continuations:
            raise ValueError(
                "guided: found true with continuations 0, so that no branch has a value; "
                "expected continuations of at least 1"
            )
        return self

    def sequence_count(self) -> int:
        """Count the trained turns, without turns beside the debate."""
        critic = self.num_agents - 1
        return sum(self.max_rounds - (agent == critic) for agent in self.trained_agents())

    def turn_count(self) -> int:
        """Count the sampled turns, with turns beside the debate."""
        actors = self.num_agents - 1
        natural = self.num_agents * self.max_rounds - 1
        answers = self.max_rounds - self.first_sampled_round()
        if not self.continuations or answers < 1:
            return natural
        guides = 2 if self.guided else 0
        # A roll-out is two turns after an answer, and an answer of each actor after feedback; none
        # ends the debate.
        turns = 3 * actors if self.continued == "all" else actors
        rollouts = turns * (answers - 1) * (1 + guides) * self.continuations
        return natural + guides * (self.num_agents * answers - 1) + rollouts

    def first_sampled_round(self) -> int:
        """Find the first round with valued states."""
        return 1 if self.guided and not self.guide_round_zero else 0

    def own_roles(self) -> tuple[AgentRole, ...]:
        """List the actors and the critic."""
        return exchange_roles(history_rounds=1, actors=self.num_agents - 1)

    def protocol(self) -> Protocol:
        """Build the rules as transcripts record them."""
        # The default is left out, so that transcripts of earlier releases read the same.
        unusual = {} if self.continued == "all" else {"continued": self.continued}
        return self.rules({}, unusual, topology="actor_critic", history_rounds=1)

    def debate(self, begin: DebateStart) -> DebateRun:
        """Play a debate; `begin.same_answer` decides on wrong answers to guide to."""
        exchange = Exchange(self, begin)
        spoken: dict[TurnKey, Turn] = {}
        for round in range(self.max_rounds):
            # A critic's turn after the last answer would have no reader.
            is_last_round = round + 1 == self.max_rounds
            speakers: list[Sequence[int]] = [exchange.actors]
            if not is_last_round:
                speakers.append([exchange.critic])
            for agents in speakers:
                keys = [TurnKey(agent, round) for agent in agents]
                requests = [exchange.request_turn(key, spoken) for key in keys]
                for turn in (yield from _spoken(exchange, requests)):
                    spoken[turn.key] = turn
            if round in self.gate_after:
                gate = begin.transcript(exchange.rules, spoken.values(), "gate")
                decision = yield Gate(gate, f"round_{round}")
                if decision == "keep":
                    return gate
        turns: Sequence[Turn] = list(spoken.values())
        if self.continuations:
            guides = self._guides(exchange, turns)
            turns = yield from sampled_beside(exchange, turns, guides)
        return begin.transcript(exchange.rules, turns, "max_rounds")

    def _guides(self, exchange: Exchange, turns: Sequence[Turn]) -> tuple[str, ...]:
        """Find the right answer and a wrong answer; empty unless both are known."""
        begin = exchange.begin
        right = begin.question.answer
        if not self.guided or right is None or not right.strip():
            return ()
        parsed_answers = [parsed_of(turn).answer for turn in turns if turn.agent in exchange.actors]
        answers = [answer for answer in parsed_answers if answer is not None]
        chance = random.Random(side_seed(begin.seed, "wrong"))
        wrong = wrong_answer(begin.question, answers, begin.same_answer, chance)
        return () if wrong is None else (right, wrong)
