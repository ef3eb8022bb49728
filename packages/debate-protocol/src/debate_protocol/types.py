"""The nouns of a debate: questions, asks, replies, turns and transcripts.

Agents and rounds count from 0. A turn is one agent speaking in one round.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypedDict

from debate_protocol.contract import Contract
from debate_protocol.tags import Parsed

__all__ = [
    "MAX_AGENTS",
    "MAX_ROUNDS",
    "TRAINED",
    "AgentRole",
    "Ask",
    "Branch",
    "DebateRun",
    "Finish",
    "Gate",
    "GateDecision",
    "Message",
    "Protocol",
    "Question",
    "Reply",
    "Role",
    "Schedule",
    "Sent",
    "Transcript",
    "Turn",
    "TurnKey",
    "Yielded",
]

Role = Literal["system", "user", "assistant"]
Schedule = Literal["parallel", "sequential"]
MAX_AGENTS = MAX_ROUNDS = 1000
"""Most agents and rounds that a transcript may have: what reads one grows with both."""
Finish = Literal["end", "stop", "length", "context_overflow"]
"""Why a reply ended: end token, stop string, token limit, or a prompt above the context window."""


TRAINED = "trained"
"""The policy that learns, and speaks for every role that names no other."""
TOKENS = "tokens"
"""Key of `Turn.extra` for [prompt tokens, sampled tokens] of a turn whose reply is not kept."""


class Message(TypedDict):
    """One chat message."""

    role: Role
    content: str


class TurnKey(NamedTuple):
    """Which turn: the agent and the round, both from 0."""

    agent: int
    round: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is debated.

    `meta` may hold `kind` (math, choice, yes_no, number, text), `choices` and `passage`;
    further keys are kept as they are.
    """

    id: str
    text: str
    answer: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What an engine sampled for one ask.

    `token_ids` are the sampled ids, end or stop tokens included; they and not `text` are the
    training truth. `logps[k]` is the natural log-probability of `token_ids[k]` under the
    distribution really sampled from, that is after the temperature. `weight_version` is that of
    the last token. A reply whose weights changed on the way says so in `version_spans`: (version,
    start, end) over `token_ids`, in order and without gaps; empty means one version for all.
    `starts[k]` is the index in `text` at which token k begins, as the engine decoded it; empty
    where it does not say, and whoever needs them decodes the ids again.
    """

    text: str
    finish: Finish = "stop"
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logps: tuple[float, ...] = ()
    temperature: float = 1.0
    weight_version: int = 0
    version_spans: tuple[tuple[int, int, int], ...] = ()
    starts: tuple[int, ...] = field(default=(), compare=False, repr=False)
    counted: tuple[int, int] | None = field(default=None, compare=False, repr=False)
    """(prompt tokens, sampled tokens) as an endpoint says that returns no ids."""

    @property
    def token_counts(self) -> tuple[int, int]:
        """(prompt tokens, sampled tokens), 0 where they are not known."""
        return self.counted or (len(self.prompt_ids), len(self.token_ids))


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a form: let this agent speak now.

    `messages` is the whole conversation so far. When `previous` is set, `messages` begins with
    the conversation that led to `previous`, then its text as an assistant message, then news: a
    renderer may extend `previous.prompt_ids + previous.token_ids` instead of rendering them all.
    `seed` makes the sampling of this turn repeatable. `contract` is what the reply is read by.
    `policy` names who is asked, and `adapter` which adapter of the trained policy.
    """

    question: Question
    agent: int
    round: int
    messages: tuple[Message, ...]
    shown: tuple[TurnKey, ...] = ()
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    seed: int = 0
    previous: Reply | None = None
    contract: Contract | None = None
    policy: str = TRAINED
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One recorded turn.

    `shown` lists the other agents' turns that the author was given. `failure` names why the
    turn failed (None when a solution can be read). `reply` holds the tokens while a debate is
    fresh; it is not written to files.

    What was sampled beside the debate stands on the turn that it belongs to and is no turn of the
    transcript: `branches` are replies that could have stood in this turn's place, and
    `continuations` are next turns, sampled from the state after this one to value it. A next turn
    that is no answer goes on in its own `continuations`: a roll-out is a path down to a leaf.
    """

    agent: int
    round: int
    text: str
    shown: tuple[TurnKey, ...] = ()
    prompt: tuple[Message, ...] | None = None
    failure: str | None = None
    reply: Reply | None = field(default=None, compare=False, repr=False)
    extra: Mapping[str, object] = field(default_factory=dict)
    branches: tuple["Branch", ...] = ()
    continuations: tuple["Turn", ...] = ()
    parsed: Parsed | None = field(default=None, compare=False, repr=False)
    """What the text says, once it has been read; `parse_turn` returns it. Not written to files."""

    @property
    def key(self) -> TurnKey:
        """The (agent, round) of this turn."""
        return TurnKey(self.agent, self.round)

    @property
    def token_counts(self) -> tuple[int, int] | None:
        """(prompt tokens, sampled tokens), None where neither reply nor counts are kept."""
        if self.reply is not None:
            return self.reply.token_counts
        match self.extra.get(TOKENS):
            case [int(prompt), int(sampled)]:
                return prompt, sampled
        return None


@dataclass(frozen=True, slots=True)
class Branch:
    """A reply that was steered to an answer, beside the turn whose place it could have had.

    `guide` is that answer. It steers to the right one exactly if it is the question's answer as
    written. `turn` has the same agent and round as the turn it stands beside, and in `prompt`
    what it was really sampled from; the unsteered prompt is that of the turn.
    """

    guide: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class AgentRole:
    """What some of the agents of a debate are there for.

    Attributes:
        name: Its name; a debate has each once.
        count: Its agents. Agents are numbered in the order of the roles.
        answers: Whether its turns owe an answer. Those of another role, such as a critic, fail
            only when they say nothing.
        rounds: The rounds in which it speaks; None: in all.
        policy: Who speaks for it: `trained`, or the name of another policy of the run.
        adapter: Which adapter of the trained policy speaks for it, and learns from its turns; None
            where that policy has no adapters of several names, or for the first of them.
        trains: Whether its turns may be trained on.
        sees: Whose turns it is given: for each role the number of earlier rounds, -1 for all. None
            leaves that to the topology; `drawn` says that `shown` of each turn cannot be derived.
        extra: What else a file says of it.
    """

    name: str
    count: int = 1
    answers: bool = True
    rounds: tuple[int, ...] | None = None
    sees: Mapping[str, int] | Literal["drawn"] | None = None
    policy: str = TRAINED
    adapter: str | None = None
    trains: bool = True
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Protocol:
    """The rules a debate was held under.

    `contract` is a built-in contract's name or a contract itself. `degree` belongs to the
    topology `sparse`, `center` to `central`. Without `roles` all agents are equals
    (`roles.roles_of`).
    """

    num_agents: int
    max_rounds: int = 1
    schedule: Schedule = "parallel"
    contract: str | Contract = "three_section"
    topology: str = "all"
    history_rounds: int = -1
    degree: int | None = None
    center: int | None = None
    roles: tuple[AgentRole, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transcript:
    """A finished debate."""

    id: str
    question: Question
    protocol: Protocol
    turns: tuple[Turn, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, object] = field(default_factory=dict)

    def sampled_turns(self) -> Iterator[Turn]:
        """Yield every turn that was sampled, each followed by what stands beside it.

        The order is that of the text: a turn, its branches, its continuations, each of these
        again with its own.
        """
        waiting = list(reversed(self.turns))
        while waiting:
            turn = waiting.pop()
            yield turn
            beside = [branch.turn for branch in turn.branches] + list(turn.continuations)
            waiting += reversed(beside)


@dataclass(frozen=True, slots=True)
class Gate:
    """A pause of a form in which a `select` decides about the debates of a batch.

    `transcript` is the debate so far; `name` says which pause of the form this is, as in
    `round_0`.
    """

    transcript: Transcript
    name: str = "gate"

    @property
    def question(self) -> Question:
        """What is debated."""
        return self.transcript.question

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns so far."""
        return self.transcript.turns


GateDecision = Literal["keep", "drop", "go_on"]
Yielded = Sequence[Ask] | Gate
Sent = Sequence[Reply] | GateDecision
DebateRun = Generator[Yielded, Sent, Transcript]
"""A running form: yields the asks of all agents that speak now, is sent their replies in order."""
