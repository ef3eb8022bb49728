"""What a reward is: transcripts as it reads them, settings, and the credits that it hands out."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self, cast

from pydantic import PrivateAttr

from debate_protocol.parsing import Parsed, get_contract
from debate_protocol.plugins import Config, named
from debate_protocol.types import (
    Protocol,
    Transcript,
    Turn,
    TurnKey,
    gives_answers,
    parse_turn,
    turn_failed,
    turn_problems,
)

# What a failed turn earns on all its tokens.
FAILURE_VALUE = -1.0
# Advantages are float32 numbers, which hold no larger one.
LARGEST_VALUE = 3.4e38


class ScoreError(ValueError):
    """A reward gave what is no finite number; the message names the debate, turn and stream."""


@dataclass(frozen=True, slots=True)
class Credit:
    """One value of one turn in one stream.

    `value` None means no signal. `span` is None for the turn's value of the whole stream, or the
    character range of the turn's text (a comparison line, a part of an evaluation) whose tokens
    take this value instead. `penalty` marks a value given for a failure or a missing part.
    `expected` says that a turn of this kind normally has a value in this stream; together with
    `penalty` it decides who joins the baseline. `component` and `weight` identify the parts of a
    mixed reward, which are centred apart and then summed. `centred` says that an uninformative
    habit already earns 0 on average (peer prediction): no baseline is taken off by default.
    """

    agent: int
    round: int
    stream: str
    value: float | None
    span: tuple[int, int] | None = None
    penalty: bool = False
    expected: bool = True
    component: str = ""
    weight: float = 1.0
    centred: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """All credits of one debate, a return per agent (None: no signal), and its metrics.

    A reward owes `credits`. Where it leaves out `agents`, `score_debates` takes the mean of each
    agent's credits for whole turns.

    `metrics` holds sums and counts that average over debates; it never steers training. `returns`
    holds the value in the stream `return` of every agent by component ("" where there is one
    reward alone): those of agents that never spoke, which no credit has, count in the baseline.
    Rewards that leave it out have those of `agents`.
    """

    credits: tuple[Credit, ...]
    agents: tuple[float | None, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    returns: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)

    def returns_of(self, component: str = "") -> tuple[float | None, ...]:
        """Return the value in the stream `return` of each agent; empty where it is not known."""
        return self.returns.get(component, () if component else self.agents)


# Scores a batch of debates; a batch, because some values compare across questions.
Reward = Callable[[Sequence[Transcript]], list[Score]]


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def mean_returns(credits: Iterable[Credit], num_agents: int) -> tuple[float | None, ...]:
    """Return the mean value of each agent's credits for whole turns; None without any."""
    earned: list[list[float | None]] = [[] for _ in range(num_agents)]
    for credit in credits:
        if credit.span is None:
            earned[credit.agent].append(credit.value)
    return tuple(map(known_mean, earned))


def build_score(
    transcript: Transcript, credits: Iterable[Credit], metrics: Mapping[str, float | None]
) -> Score:
    """Return the score of a debate, in which an agent's return is the mean over its turns.

    Metrics that are None are left out.
    """
    credits = tuple(credits)
    known = {name: value for name, value in metrics.items() if value is not None}
    return Score(credits, mean_returns(credits, transcript.protocol.num_agents), known)


def score_debates(reward: Reward, transcripts: Sequence[Transcript]) -> list[Score]:
    """Return one score a transcript, in order, whose values are finite numbers or None.

    Numbers of other libraries, such as numpy's and torch's scalars, become floats.

    Raises:
        ScoreError: A value is something else.
    """
    return [
        _checked(transcript.id, _with_agents(score, transcript))
        for transcript, score in zip(transcripts, reward(transcripts), strict=True)
    ]


def _with_agents(score: Score, transcript: Transcript) -> Score:
    """Fill in the agents' returns of a reward that leaves them to its credits."""
    if score.agents:
        return score
    return replace(score, agents=mean_returns(score.credits, transcript.protocol.num_agents))


def _checked(debate: str, score: Score) -> Score:
    values = [finite_value(c.value, debate, c.agent, c.round, c.stream) for c in score.credits]
    credits = tuple(
        credit if value is credit.value else replace(credit, value=value)
        for credit, value in zip(score.credits, values, strict=True)
    )
    agents = tuple(finite_value(v, debate, agent) for agent, v in enumerate(score.agents))
    returns = {
        name: tuple(finite_value(v, debate, agent) for agent, v in enumerate(values))
        for name, values in score.returns.items()
    }
    return replace(score, credits=credits, agents=agents, returns=returns)


def finite_value(
    value: object, debate: str, agent: int, round: int | None = None, stream: str = "return"
) -> float | None:
    """Return a value of a turn, or of an agent, as a number of Python.

    Raises:
        ScoreError: It is neither a finite number nor None.
    """
    if value is None:
        return None
    number: Any = value
    if type(value) not in (float, int):
        is_scalar = getattr(value, "shape", ()) == () and not isinstance(value, str | bytes | bool)
        try:
            number = float(number) if is_scalar else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    if abs(number) <= LARGEST_VALUE:
        return cast(float, number)
    turn = "" if round is None else f", round {round}"
    hint = "mend the reward"
    if getattr(value, "shape", ()) != ():
        hint = "for a number for each turn return a list (array.tolist())"
    found = f"{value.bit_length()} bits" if type(value) is int else f"{value!r:.100}"
    raise ScoreError(
        f"reward: found {found} for debate {debate!r}, agent {agent}{turn}, stream {stream!r}; "
        f"expected None or a finite number of at most {LARGEST_VALUE:g}: {hint}"
    )


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A turn with what was parsed from it; `failed` turns have no solution to judge."""

    key: TurnKey
    turn: Turn
    parsed: Parsed
    failed: bool


@dataclass(frozen=True, slots=True)
class ReadDebate:
    """A transcript with its parsed turns in the order they were held.

    `turns` are those that owe an answer: feedback of a critic is none of them. `judges` are all
    that may compare answers: a judge need not owe one itself.
    `compares` is False where no contract has a comparison section: none is ever expected.
    """

    transcript: Transcript
    turns: Mapping[TurnKey, ReadTurn]
    compares: bool
    judges: Mapping[TurnKey, ReadTurn]
    # What `votes.ballots` has read: figures and decisions ask for the same votes many times.
    ballot_cache: dict[str, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def shown_to(self, judge: ReadTurn) -> list[ReadTurn]:
        """Return the turns of other agents that `judge` was given, and its own if it ranks it."""
        agent, rules = judge.turn.agent, self.transcript.protocol
        given = [k for k in judge.turn.shown if k.agent != agent and k in self.turns]
        if rules.contracts and rules.contract_of(judge.key.round).ranks_own:
            own = [k for k in self.turns if k.agent == agent and k.round < judge.key.round]
            given += own[-1:]
        return [self.turns[key] for key in given]

    def judged_by(self, judge: ReadTurn) -> dict[int, ReadTurn]:
        """Return, for each agent whose turns `judge` was given to judge, its latest turn there.

        Under topology `pair` prompts number the turns in the order in which they are shown.
        """
        if self.transcript.protocol.topology == "pair":
            return {
                place: self.turns[key]
                for place, key in enumerate(judge.turn.shown)
                if key in self.turns
            }
        latest: dict[int, ReadTurn] = {}
        for other in self.shown_to(judge):
            known = latest.get(other.key.agent)
            if known is None or known.key.round < other.key.round:
                latest[other.key.agent] = other
        return latest

    def expected_pairs(self, judge: ReadTurn) -> int:
        """Return how many pairs of agents `judge` was expected to compare.

        That is every pair of agents with a valid turn that it was given; 0 for a failed turn.
        """
        rules = self.transcript.protocol
        if judge.failed or not self.compares:
            return 0
        if rules.contracts and "comparison" not in rules.contract_of(judge.key.round).sections:
            return 0
        others = len({other.key.agent for other in self.shown_to(judge) if not other.failed})
        return others * (others - 1) // 2

    @property
    def last_round(self) -> int:
        """The last round with a turn, -1 when nobody spoke."""
        return max((key.round for key in self.turns), default=-1)


def read_debate(transcript: Transcript) -> ReadDebate:
    """Parse every turn of a transcript.

    Raises:
        ValueError: As `check_turns`, or the contract is unknown.
    """
    check_turns(transcript)
    judges: dict[TurnKey, ReadTurn] = {}
    for turn in transcript.turns:
        parsed = parse_turn(transcript, turn)
        if gives_answers(transcript.protocol, *turn.key):
            failed = turn.failure is not None or parsed.answer is None
        else:
            failed = turn_failed(transcript, turn)
        judges[turn.key] = ReadTurn(turn.key, turn, parsed, failed)
    # A critic's feedback is nothing that votes, truth or statistics are about.
    rules = transcript.protocol
    turns = {key: read for key, read in judges.items() if gives_answers(rules, *key)}
    contracts = map(get_contract, rules.contracts or (rules.contract,))
    return ReadDebate(transcript, turns, any("comparison" in c.sections for c in contracts), judges)


def turn_credits(
    debate: ReadDebate, values: Mapping[TurnKey, float | None], *, always_expected: bool = True
) -> list[Credit]:
    """Return the credits of turns in the stream `generator`; a failed turn carries -1.

    Args:
        debate: The debate.
        values: The value of each valid turn; a turn that is missing has no signal.
        always_expected: Whether a valid turn without a value should have had one.
    """
    credits = []
    for key, turn in debate.turns.items():
        value = values.get(key)
        if turn.failed:
            credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
        else:
            due = always_expected or value is not None
            credits.append(Credit(*key, "generator", value, expected=due))
    return credits


def check_turns(transcript: Transcript) -> None:
    """Refuse turns that cannot be.

    Raises:
        ValueError: An agent or round is out of range, a turn is there twice, or a branch is
            another turn than the one it stands beside.
    """
    if (problem := next(turn_problems(transcript), None)) is not None:
        raise ValueError(f"debate {transcript.id!r}, {problem}")


# What values are made of: the questions' own answers, or comparisons between agents.
Requirement = Literal["answers", "votes"]


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What a reward is used on.

    Attributes:
        rules: Those of the debates.
        questions: Of a step.
        max_tokens: Most tokens of a reply.
        judge_weight: Weight of the stream `judge`.
        baseline: What values are compared within, as in `advantage.baseline`.
    """

    rules: Protocol
    questions: int = 2
    max_tokens: int = 1024
    judge_weight: float = 1.0
    baseline: str = "debate"


class RewardConfig(Config):
    """The base class of rewards: a field `type`, streams, and a call that scores debates.

    A reward that scores debates one by one defines `score`; one that compares debates of a batch
    defines `__call__`.
    """

    needs: ClassVar[frozenset[Requirement]] = frozenset()
    """All of these must be there, or nothing has a value."""
    can_be_tried: ClassVar[bool] = False
    """Whether debates that a script writes have values where a policy's would."""
    is_changing: ClassVar[bool] = False
    """Whether it may be another in each step, as `at` says."""
    type: str = ""
    """The name by which recipes choose the reward."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self.score(read_debate(transcript)) for transcript in transcripts]

    def score(self, debate: ReadDebate) -> Score:
        """Return the score of one debate."""
        raise ScoreError(f"reward: {type(self).__name__} has neither __call__ nor score")

    @property
    def adds_advantages(self) -> bool:
        """Whether its parts are compared apart, each under its own name."""
        return False

    def parts(self) -> "Mapping[str, RewardConfig]":
        """Return the rewards that this one is made of, by component; one alone is called ''."""
        return {"": self}

    def part_weights(self) -> Mapping[str, float]:
        """Return the weight of each part."""
        return {"": 1.0}

    def at(self, step: int) -> Self:
        """Return the reward of a step of the phase, counted from 0; most are always the same."""
        return self

    def changes(self) -> list[str]:
        """Return what changes from step to step, each with the key that it is about."""
        return []

    def needed(self) -> frozenset[Requirement]:
        """Return what must be there under these settings, or nothing has a value."""
        return self.needs

    @property
    def least_questions(self) -> int:
        """The fewest questions of a batch with which every stream has values."""
        return 1

    def why_no_signal(self, stream: str, context: RewardContext) -> str | None:
        """Return why no turn has a value in a stream, where that is known of these settings."""
        return None

    def few_judges(self, context: RewardContext) -> str | None:
        """Return why judges are too few for their stream to teach much, None if they are not."""
        return None

    def warnings(self, context: RewardContext) -> list[str]:
        """Return what should be looked at, each with the key that it is about."""
        return []


Valued = float | None | Sequence[float | None] | Score
"""A value for all turns of a debate, one for each of its turns, or all credits; None: no signal."""
RewardFunction = Callable[[Transcript], Valued]


class FunctionReward(RewardConfig):
    """What a function says of each debate; `type` is its name, which no recipe can give."""

    _function: RewardFunction = PrivateAttr()

    @classmethod
    def of(cls, function: RewardFunction) -> "FunctionReward":
        """Return the reward that a function is."""
        made = cls(type=named(function))
        made.__pydantic_private__ = {"_function": function}
        return made

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order.

        Raises:
            ScoreError: The function returned something else than `Valued`.
        """
        return [_score(transcript, self._function(transcript)) for transcript in transcripts]


def _score(transcript: Transcript, valued: Any) -> Score:
    if isinstance(valued, Score):
        return valued
    turns = transcript.turns
    is_list = isinstance(valued, Sequence) and not isinstance(valued, str | bytes)
    values = list(valued) if is_list else [valued] * len(turns)
    if len(values) != len(turns):
        raise ScoreError(
            f"reward: found {valued!r:.200} for debate {transcript.id!r}; expected a number, None, "
            f"one of these for each of its {len(turns)} turns, or a Score"
        )
    credits = tuple(
        Credit(
            turn.agent,
            turn.round,
            "generator",
            finite_value(value, transcript.id, turn.agent, turn.round, "generator"),
            expected=value is not None,
        )
        for turn, value in zip(turns, values, strict=True)
    )
    return Score(credits, mean_returns(credits, transcript.protocol.num_agents))
