"""Nouns of a debate: questions, turn requests, replies, turns, transcripts, roles; who sees whom.

Agents and rounds count from 0. A turn is an agent speaking in a round.
"""

import re
import reprlib
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal, NamedTuple, TypedDict, get_args

from debate_protocol.parsing import Contract, Parsed, ThinkMode, get_contract, parse
from debate_protocol.suggestions import did_you_mean

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
    """A chat message."""

    role: Role
    content: str


class TurnKey(NamedTuple):
    """Identifies a turn by agent and round, both from 0."""

    agent: int
    round: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question to debate.

    `meta` may hold `kind` (math, choice, yes_no, number, text), `choices` and `passage`;
    further keys are kept as they are.

    Raises:
        ValueError: A value has another type, such as a number as the answer.
    """

    id: str
    text: str
    answer: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_answer = self.answer is None or isinstance(self.answer, str)
        for name, fits, expected in (
            ("text", isinstance(self.text, str), "text"),
            ("answer", is_answer, "text, or None for an open question"),
            ("meta", isinstance(self.meta, Mapping), "a mapping"),
        ):
            if not fits:
                found = reprlib.repr(getattr(self, name))
                raise ValueError(
                    f"question {self.id!r}: {name}: found {found}, expected {expected}"
                )


@dataclass(frozen=True, slots=True)
class Reply:
    """An engine's sample for one turn request.

    `token_ids` are the sampled ids, end or stop tokens included; training
    learns from them and not from `text`. `logps[k]` is the natural log-probability of
    `token_ids[k]` under the sampled distribution, after the temperature. `weight_version` belongs
    to the last token. If weights changed on the way, `version_spans` has (version, start, end) over
    `token_ids`, in order and without gaps; empty means a single version. `starts[k]` is the index
    of token k in `text`, as the engine decoded it; empty if unknown: then decode the ids again.
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
class TurnRequest:
    """A request of a form to let this agent speak now.

    `messages` is the whole conversation so far. When `previous` is set, `messages` begins with
    the conversation that led to `previous`, then its text as an assistant message, then news: a
    renderer may extend `previous.prompt_ids + previous.token_ids` instead of rendering them all.
    `seed` makes the sampling of this turn repeatable. `contract` parses
    the reply. `policy` names the policy asked, and `adapter` an adapter of the trained policy.
    `claims` are the newest answers shown in the prompt, by agents' numbers there; `guide` is the
    answer to steer the reply to; `answers` is False if the request asks for no answer.
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
    claims: Mapping[int, str] = field(default_factory=dict, compare=False)
    guide: str | None = None
    answers: bool = True


@dataclass(frozen=True, slots=True)
class Turn:
    """A recorded turn.

    `shown` lists the other agents' turns given to the author. `failure` is the reason of a failed
    turn (`None` for a readable solution). `reply` holds the tokens of a fresh debate; files do not
    have it.

    Samples beside the debate belong to a turn and are no turns of the transcript: `branches` are
    replies in the place of this turn, and `continuations` are next turns, sampled from the state
    after this turn to value it. A next turn without an answer goes on in `continuations` again: a
    roll-out is a path down to a leaf.
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
        """(prompt tokens, sampled tokens); `None` without reply and counts."""
        if self.reply is not None:
            return self.reply.token_counts
        match self.extra.get(TOKENS):
            case [int(prompt), int(sampled)]:
                return prompt, sampled
        return None


@dataclass(frozen=True, slots=True)
class Branch:
    """A reply steered to an answer, as an alternative to a turn.

    `guide` is the answer: the right answer exactly if it equals the question's answer as written.
    `turn` has the same agent and round as the natural turn; `prompt` has the steered prompt. The
    natural turn has the unsteered prompt.
    """

    guide: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class AgentRole:
    """The role of some agents of a debate.

    Attributes:
        name: Unique name in the debate.
        count: Number of agents. Agents are numbered in the order of the roles.
        answers: Whether turns must hold an answer. Turns of another role, such as a critic, fail
            only when empty.
        rounds: Rounds of the role's turns; `None` for all.
        policy: The speaking policy: `trained`, or the name of another policy of the run.
        adapter: The speaking adapter of the trained policy, trained on these turns; `None` without
            named adapters, or for the first adapter.
        trains: Whether turns may be trained on.
        sees: For each visible role the number of earlier rounds, -1 for all. `None` leaves the
            choice to the topology; with `drawn`, `shown` of a turn cannot be derived.
        extra: Further entries of a file.
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

    `contract` is a built-in contract's name or a contract itself; `contracts` has each
    round's if they differ (`contract` is then the first round's). `degree` belongs to the
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
    contracts: tuple[str | Contract, ...] = ()

    def contract_of(self, round: int) -> Contract:
        """Find the contract of a round; rounds beyond have the last contract.

        Raises:
            ValueError: No contract has this name.
        """
        if not self.contracts:
            return get_contract(self.contract)
        last_round = len(self.contracts) - 1
        return get_contract(self.contracts[min(round, last_round)])


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
        """Yield every sampled turn, each followed by the samples beside it.

        The order: a turn, the branches, the continuations, each again with branches and
        continuations.
        """
        waiting = list(reversed(self.turns))
        while waiting:
            turn = waiting.pop()
            yield turn
            samples = [branch.turn for branch in turn.branches] + list(turn.continuations)
            waiting += reversed(samples)

    def _repr_html_(self) -> str:
        """Return the debate as notebooks show it: the text of `shown_debate`, escaped."""
        from debate_protocol import shown_debate

        text = escape(shown_debate(self, emphasis=True))
        text = text.replace("\x1b[1m", "<b>").replace("\x1b[0m", "</b>")
        return f'<pre style="white-space: pre-wrap">{text}</pre>'


@dataclass(frozen=True, slots=True)
class Gate:
    """A pause of a form for a `select` to decide about the debates of a batch.

    `transcript` is the debate so far; `name` identifies the pause of the form, as in `round_0`.
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
Yielded = Sequence[TurnRequest] | Gate
Sent = Sequence[Reply] | GateDecision
DebateRun = Generator[Yielded, Sent, Transcript]
"""A running form: yields the turn requests of all agents that speak now, is sent their replies."""


ACTOR, CRITIC = 0, 1
"""The agents of an actor-critic debate."""
DEBATER = "debater"
"""The role of all agents of a debate of equals."""
JUDGE = "judge"
"""The role of those who decide between agents 0 and 1, or whether agent 0 is right."""
VERDICT = "verdict"
"""The section in which a judge says whether the one answer that it reads is right or wrong."""
QUESTION = "question"
"""The section of a question, written by a proposer for other agents."""
_CHOICES = (
    (0, re.compile(r"[\W_]*+(?ai:agent 0|0)[\W_]*+")),
    (1, re.compile(r"[\W_]*+(?ai:agent 1|1)[\W_]*+")),
)
_VERDICTS = (
    (0, re.compile(r"[\W_]*+(?ai:right|correct)[\W_]*+")),
    (1, re.compile(r"[\W_]*+(?ai:wrong|incorrect)[\W_]*+")),
)


def roles_of(rules: Protocol) -> tuple[AgentRole, ...]:
    """List the roles of a debate, also for old files without roles."""
    if rules.roles:
        return rules.roles
    if rules.topology == "actor_critic":
        return exchange_roles(rules.history_rounds)
    first = rules.extra.get("first_turns")
    if rules.topology == "pair" and type(first) is int:
        first = max(0, min(first, rules.num_agents))
        return paired_roles(first, rules.num_agents - first)
    return (AgentRole(DEBATER, rules.num_agents),)


def exchange_roles(history_rounds: int, actors: int = 1) -> tuple[AgentRole, AgentRole]:
    """Build actors and a critic with each other's last turns in view; only actors answer.

    Several actors answer at once and also see each other's last turns.
    """
    return (
        AgentRole("actor", actors, sees={"critic": history_rounds} if actors == 1 else "drawn"),
        AgentRole("critic", answers=False, sees={"actor": history_rounds}),
    )


def paired_roles(first: int, second: int) -> tuple[AgentRole, AgentRole]:
    """Build agents for answers in round 0, and agents for answers to pairs of them in round 1."""
    return (
        AgentRole("first", first, rounds=(0,), sees={}),
        AgentRole("second", second, rounds=(1,), sees="drawn"),
    )


def roles_by_agent(rules: Protocol) -> list[AgentRole]:
    """List the role of each agent, in order; agents without a role are debaters."""
    agent_roles: list[AgentRole] = []
    for role in roles_of(rules):
        agent_roles += [role] * min(role.count, rules.num_agents - len(agent_roles))
    missing = rules.num_agents - len(agent_roles)
    return agent_roles + [AgentRole(DEBATER, missing)] * missing


def role_of(rules: Protocol, agent: int) -> AgentRole:
    """Find the role of an agent; an unknown agent is a debater."""
    roles = roles_by_agent(rules)
    return roles[agent] if 0 <= agent < len(roles) else AgentRole(DEBATER)


def gives_answers(rules: Protocol, agent: int, round: int | None = None) -> bool:
    """Whether an agent's turns must hold an answer; a critic only gives feedback.

    With a round, whether the turn of this round must: turns of verdicts have no answers.
    """
    in_round = round is None or not rules.contracts or rules.contract_of(round).answers
    return in_round and role_of(rules, agent).answers


def is_trained_on(rules: Protocol, agent: int) -> bool:
    """Whether an agent's turns may be trained on; turns of frozen policies may not."""
    return role_of(rules, agent).trains


def agents_by_policy(rules: Protocol) -> dict[str, frozenset[int]]:
    """Group the agents of the trained policy as `trained`, of all other roles as `role/NAME`.

    Trained roles with named adapters are also `role/NAME`. Empty if a single policy speaks for all.
    """
    roles = roles_by_agent(rules)
    speakers = {(role.policy, role.adapter) for role in roles}
    if len(speakers) < 2:
        return {}
    # Two trained adapters are two policies in training, which one name would mix.
    num_trained = sum(policy == TRAINED for policy, _ in speakers)
    agents_by_name: dict[str, set[int]] = {}
    for agent, role in enumerate(roles):
        is_only_trained = role.policy == TRAINED and num_trained == 1
        name = TRAINED if is_only_trained else f"role/{role.name}"
        agents_by_name.setdefault(name, set()).add(agent)
    return {name: frozenset(agents) for name, agents in agents_by_name.items()}


def speaking_agents(rules: Protocol, round: int) -> tuple[int, ...]:
    """List the speaking agents of a round, in order."""
    roles = enumerate(roles_by_agent(rules))
    return tuple(agent for agent, role in roles if role.rounds is None or round in role.rounds)


def answering_agents(rules: Protocol, round: int) -> tuple[int, ...]:
    """List the agents with an answer due in a round, in order."""
    return tuple(a for a in speaking_agents(rules, round) if gives_answers(rules, a, round))


def judging_agents(rules: Protocol) -> tuple[int, ...]:
    """List the deciding agents: judges with a section `decision` in their contract."""
    judges = []
    for agent, role in enumerate(roles_by_agent(rules)):
        # A recipe may call any role a judge; only a contract with a decision makes it one.
        if role.name == JUDGE and role.rounds:
            last_contract = rules.contract_of(role.rounds[-1])
            if "decision" in last_contract.sections:
                judges.append(agent)
    return tuple(judges)


def reads_backwards(rules: Protocol, agent: int) -> bool:
    """Whether a judge is shown agent 1 first, as every second judge may be."""
    judges = judging_agents(rules)
    if not rules.extra.get("both_orders") or agent not in judges:
        return False
    return (agent - judges[0]) % 2 == 1


def decided(rules: Protocol, decision: str | None) -> int | None:
    """Find the agent chosen by a judge, 1 also for `wrong`; `None` if the text names neither.

    Args:
        rules: The debate's rules.
        decision: Text of a judge's section `decision`.
    """
    if decision is None:
        return None
    is_between_rivals = rules.extra.get("opponent") == "rival"
    patterns = _CHOICES if is_between_rivals else _VERDICTS
    for number, pattern in patterns:
        # The whole text must match: any part of "Agent 0 is wrong, so Agent 1" would be a guess.
        if pattern.fullmatch(decision):
            return number
    return None


def check_roles(rules: Protocol) -> None:
    """Refuse roles that contradict each other or the number of agents.

    Raises:
        ValueError: A name is repeated or without agents, a role sees an unknown role, or the roles
            have another number of agents than the debate.
    """
    names = [role.name for role in rules.roles]
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"roles: found {name!r} {times} times; expected each role once")
    for role in rules.roles:
        if role.count < 1:
            raise ValueError(f"roles: found {role.name!r} with {role.count} agents; expected 1")
        for other in role.sees if isinstance(role.sees, Mapping) else ():
            if other not in names:
                raise ValueError(
                    f"roles: {role.name!r} sees {other!r}; expected one of {', '.join(names)}"
                    f"{did_you_mean(other, names)}"
                )
    total = sum(role.count for role in rules.roles)
    if rules.roles and total != rules.num_agents:
        raise ValueError(
            f"roles: found {total} agents in {', '.join(names)}; expected those of the debate, "
            f"{rules.num_agents}"
        )


TopologyName = Literal["all", "ring", "sparse", "central"]
_KNOWN = (*get_args(TopologyName), "actor_critic", "pair")


def check_topology(rules: Protocol) -> None:
    """Refuse a topology that is unknown or does not fit the number of agents.

    Raises:
        ValueError: It is unknown, or `degree` or `center` is missing, out of place or impossible.
    """
    name = rules.topology
    count = rules.num_agents
    degree = rules.degree
    center = rules.center
    if name not in _KNOWN:
        raise ValueError(
            f"topology: found {name!r}, expected one of {', '.join(_KNOWN)}"
            f"{did_you_mean(name, _KNOWN)}"
        )
    for key, owner in (("degree", "sparse"), ("center", "central")):
        setting = getattr(rules, key)
        if setting is not None and name != owner:
            raise ValueError(
                f"{key}: found {setting} with topology {name}; only {owner} has a {key}"
            )
    if center is not None and not 0 <= center < count:
        raise ValueError(f"center: found {center}, expected an agent, 0 to {count - 1}")
    # Agents on a ring can all have the same odd number of neighbours only with one opposite.
    is_even = degree is not None and degree % 2 == 0
    is_degree = degree is not None and 1 <= degree < count and (is_even or count % 2 == 0)
    if name == "sparse" and not is_degree:
        which = "of 1 to" if count % 2 == 0 else "an even number up to"
        raise ValueError(
            f"degree: found {'none' if degree is None else degree}; topology sparse expects how "
            f"many others each of {count} agents sees, {which} {count - 1}"
        )


def sees(rules: Protocol, reader: int, other: int) -> bool:
    """Whether the topology lets an agent see another's turns.

    `ring` shows both neighbours; `sparse` the `degree` nearest on the ring, in pairs from both
    sides and for an odd degree also the agent opposite (a circulant graph). Under `central`
    agent `center`, 0 by default, sees all others and the others see only it.
    """
    if reader == other:
        return False
    if rules.topology == "central":
        return (rules.center or 0) in (reader, other)
    if rules.topology not in ("ring", "sparse"):
        return True
    degree = 2 if rules.topology == "ring" else rules.degree or 0
    count = max(rules.num_agents, 1)
    # The distance on the ring, the shorter way round.
    steps = min((reader - other) % count, (other - reader) % count)
    is_opposite = 2 * steps == count
    return steps <= degree // 2 or (degree % 2 == 1 and is_opposite)


def neighbours(rules: Protocol, agent: int) -> tuple[int, ...]:
    """List the other agents visible to this agent, in order.

    Raises:
        ValueError: As `check_topology`.
    """
    check_topology(rules)
    return tuple(other for other in range(rules.num_agents) if sees(rules, agent, other))


def shown_turns(rules: Protocol, turn: TurnKey, spoken: Collection[TurnKey]) -> list[TurnKey]:
    """List the other agents' turns given to the author of `turn`, by round and agent.

    `history_rounds` counts earlier rounds. The sequential schedule also gives earlier turns of the
    same round, except with 0: then no other agent's turns. For a role with `sees` the same round
    counts. An appended conversation keeps all messages.

    Args:
        rules: The debate's rules.
        turn: The turn about to be spoken.
        spoken: The turns spoken so far; others are not shown.

    Raises:
        ValueError: As `check_topology`, or the turns visible to this role are drawn.
    """
    check_topology(rules)
    roles = roles_by_agent(rules)
    named = roles[turn.agent].sees if 0 <= turn.agent < len(roles) else None
    if isinstance(named, str):
        raise ValueError(
            f"role {roles[turn.agent].name} sees turns that are drawn (topology {rules.topology}); "
            "they must be written down"
        )
    keeps_all = rules.extra.get("conversation") == "append"

    def first_round(last: int, end: int) -> int:
        return 0 if last < 0 or keeps_all else max(0, end - last)

    def is_shown(key: TurnKey) -> bool:
        # Agents that speak one after the other also hear the earlier speakers of their round.
        speaks_before = rules.schedule == "sequential" and key.agent < turn.agent
        end = turn.round + 1 if speaks_before else turn.round
        if named is None:
            if rules.history_rounds == 0 and not keeps_all:
                return False
            is_visible = sees(rules, turn.agent, key.agent)
            return is_visible and first_round(rules.history_rounds, turn.round) <= key.round < end
        # A role that names the roles it sees counts its own round as one of the last.
        num_rounds = 0
        if 0 <= key.agent < len(roles):
            num_rounds = named.get(roles[key.agent].name, 0)
        if num_rounds == 0 or key.agent == turn.agent:
            return False
        return first_round(num_rounds, end) <= key.round < end

    return sorted(filter(is_shown, spoken), key=lambda key: (key.round, key.agent))


def parse_turn(transcript: Transcript, turn: Turn) -> Parsed:
    """Read a recorded turn by the transcript's contract, number of agents and thinking rule.

    The result is kept in `turn.parsed`, so a turn is read once, mostly by the form. It is reused
    only for the same text and rules: a changed copy of a turn is read again.
    """
    rules = transcript.protocol
    think: ThinkMode = "drop" if rules.extra.get("think") == "drop" else "unwrap"
    contract = rules.contract_of(turn.round)
    key = (turn.text, contract, turn.agent, rules.num_agents, think)
    if turn.parsed is None or turn.parsed.reading != key:
        text, _, author, num_agents, _ = key
        parsed = parse(text, contract, author=author, num_agents=num_agents, think=think)
        # Turns are frozen; this field follows from the others and no comparison reads it.
        object.__setattr__(turn, "parsed", parsed)
        return parsed
    return turn.parsed


def turn_failed(transcript: Transcript, turn: Turn) -> bool:
    """Whether a turn failed: recorded as failed, or without a due answer.

    A critic need not answer; a critic's turn fails when empty.
    """
    if turn.failure is not None:
        return True
    if not gives_answers(transcript.protocol, turn.agent, turn.round):
        return not turn.text.strip()
    return parse_turn(transcript, turn).answer is None


def turn_problems(transcript: Transcript) -> Iterator[str]:
    """Yield impossible turns: out of range, repeated, or with a branch of another turn."""
    rules = transcript.protocol
    known_keys: set[TurnKey] = set()
    for turn in transcript.turns:
        where = f"turn of agent {turn.agent} in round {turn.round}"
        if turn.key in known_keys:
            yield f"{where}: found twice, expected once"
        known_keys.add(turn.key)
        if not 0 <= turn.agent < rules.num_agents:
            yield f"{where}: expected agents 0 to {rules.num_agents - 1}"
        if not 0 <= turn.round < rules.max_rounds:
            yield f"{where}: expected rounds 0 to {rules.max_rounds - 1}"
        for other in {branch.turn.key for branch in turn.branches} - {turn.key}:
            yield f"{where}: found a branch that is of agent {other.agent} in round {other.round}"
