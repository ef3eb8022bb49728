"""The interface of rewards: transcripts as read, settings, and credits."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, cast

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

# Value of a failed turn, on all its tokens.
FAILURE_VALUE = -1.0
# Advantages are float32 numbers, which hold no larger one.
LARGEST_VALUE = 3.4e38


class ScoreError(ValueError):
    """A reward gave no finite number; the message names the debate, turn and stream."""


@dataclass(frozen=True, slots=True)
class Credit:
    """A value of a turn in a stream.

    A `value` of `None` is no signal. `span` is `None` for a value of the whole turn; otherwise
    tokens in this character range of the turn's text (a comparison line, a part of an evaluation)
    take this value instead. `penalty` marks a value for a failure or a missing part. `expected`
    marks a turn of a kind that normally has a value in this stream; together with `penalty` it
    decides membership in the baseline. `component` and `weight` identify the parts of a mixed
    reward: parts are centered separately and then summed. `centred` marks values with mean 0 for an
    uninformative habit (peer prediction): no baseline is subtracted by default.
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
    """All credits of a debate, a return per agent (`None`: no signal), and metrics.

    A reward must give `credits`. Without `agents`, `score_debates` takes the mean of each agent's
    credits for whole turns.

    `metrics` holds sums and counts to average over debates; it never steers training. `returns`
    holds every agent's value in the stream `return` by component ("" for an unmixed reward): silent
    agents have no credit, and still count in the baseline. By default returns equal `agents`.
    """

    credits: tuple[Credit, ...]
    agents: tuple[float | None, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    returns: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)

    def returns_of(self, component: str = "") -> tuple[float | None, ...]:
        """Look up each agent's value in the stream `return`; empty where it is not known."""
        return self.returns.get(component, () if component else self.agents)


# Scores a batch of debates; a batch, because some values compare across questions.
Reward = Callable[[Sequence[Transcript]], list[Score]]

# A value for all turns of a debate, one for each of its turns, or all credits; None: no signal.
Valued = float | None | Sequence[float | None] | Score
RewardFunction = Callable[[Transcript], Valued]


def known_mean(values: Iterable[float | None]) -> float | None:
    """Compute the mean of the known values; `None` without any."""
    known_values = [value for value in values if value is not None]
    return sum(known_values) / len(known_values) if known_values else None


def mean_returns(credits: Iterable[Credit], num_agents: int) -> tuple[float | None, ...]:
    """Compute the mean value of each agent's credits for whole turns; `None` without any."""
    values_by_agent: list[list[float | None]] = [[] for _ in range(num_agents)]
    for credit in credits:
        if credit.span is None:
            values_by_agent[credit.agent].append(credit.value)
    return tuple(known_mean(values) for values in values_by_agent)


def build_score(
    transcript: Transcript, credits: Iterable[Credit], metrics: Mapping[str, float | None]
) -> Score:
    """Build the score of a debate; an agent's return is the mean over the agent's turns.

    Metrics of `None` are left out.
    """
    credits = tuple(credits)
    return Score(
        credits=credits,
        agents=mean_returns(credits, transcript.protocol.num_agents),
        metrics={name: value for name, value in metrics.items() if value is not None},
    )


def score_debates(reward: Reward, transcripts: Sequence[Transcript]) -> list[Score]:
    """Score each transcript, in order; all values are finite numbers or `None`.

    Numbers of other libraries, such as numpy's and torch's scalars, become floats.

    Raises:
        ScoreError: A value is of another kind, or belongs to no turn or agent of the debate.
    """
    given = reward(transcripts)
    are_scores = isinstance(given, Sequence) and all(isinstance(score, Score) for score in given)
    if not are_scores or len(given) != len(transcripts):
        raise ScoreError(
            f"reward: found {given!r:.100}; expected {len(transcripts)} scores, one a debate"
        )
    scores = []
    for transcript, score in zip(transcripts, given, strict=True):
        if not score.agents:
            agents = mean_returns(score.credits, transcript.protocol.num_agents)
            score = replace(score, agents=agents)
        _refuse_misplaced(transcript, score)
        scores.append(_with_finite_values(transcript.id, score))
    return scores


def _refuse_misplaced(transcript: Transcript, score: Score) -> None:
    """Refuse values that no token would learn from, without a word."""
    num_chars = {turn.key: len(turn.text) for turn in transcript.turns}
    for credit in score.credits:
        key = (credit.agent, credit.round)
        start, end = credit.span or (0, 0)
        if key not in num_chars or not 0 <= start <= end <= num_chars[key]:
            raise ScoreError(
                f"reward: found {credit!r:.200} for debate {transcript.id!r}; expected a turn of "
                "the debate, and a span inside of its text"
            )
    num_agents = transcript.protocol.num_agents
    for returns in (score.agents, *score.returns.values()):
        if len(returns) != num_agents:
            raise ScoreError(
                f"reward: found {returns!r:.100} for debate {transcript.id!r}; expected a return "
                f"for each of its {num_agents} agents"
            )


def _with_finite_values(debate_id: str, score: Score) -> Score:
    credits = []
    for credit in score.credits:
        value = finite_value(credit.value, debate_id, credit.agent, credit.round, credit.stream)
        # Credits are many and nearly all finite floats: those are not copied.
        is_unchanged = value is credit.value
        credits.append(credit if is_unchanged else replace(credit, value=value))
    agents = _finite_returns(score.agents, debate_id)
    returns = {}
    for component, values in score.returns.items():
        returns[component] = _finite_returns(values, debate_id)
    return replace(score, credits=tuple(credits), agents=agents, returns=returns)


def _finite_returns(values: Sequence[float | None], debate_id: str) -> tuple[float | None, ...]:
    return tuple(finite_value(value, debate_id, agent) for agent, value in enumerate(values))


def finite_value(
    value: object, debate: str, agent: int, round: int | None = None, stream: str = "return"
) -> float | None:
    """Convert a value of a turn, or of an agent, to a number of Python.

    Raises:
        ScoreError: The value is neither a finite number nor `None`.
    """
    if value is None:
        return None
    number: Any = value
    is_array = getattr(value, "shape", ()) != ()
    if type(value) not in (float, int):
        # A text such as "1.0" would convert, too, and True is no number that a reward means.
        is_number_like = not is_array and not isinstance(value, str | bytes | bool)
        try:
            number = float(number) if is_number_like else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    # NaN is not at most anything, so that this one comparison refuses it, too.
    if abs(number) <= LARGEST_VALUE:
        return cast(float, number)
    turn = "" if round is None else f", round {round}"
    hint = "mend the reward"
    if is_array:
        hint = "for a number for each turn return a list (array.tolist())"
    # Python refuses to write an integer of thousands of digits.
    printed = f"{value.bit_length()} bits" if type(value) is int else f"{value!r:.100}"
    raise ScoreError(
        f"reward: found {printed} for debate {debate!r}, agent {agent}{turn}, stream {stream!r}; "
        f"expected None or a finite number of at most {LARGEST_VALUE:g}: {hint}"
    )


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A turn with its parsed text; `failed` turns have no solution to judge."""

    key: TurnKey
    turn: Turn
    parsed: Parsed
    failed: bool


@dataclass(frozen=True, slots=True)
class ReadDebate:
    """A transcript with parsed turns, in the order of speaking.

    Attributes:
        transcript: The debate.
        turns: Turns with an expected answer, without the feedback of critics.
        compares: Whether any contract has a comparison section.
        judges: All turns with possible comparisons, with or without an answer.
        ballot_cache: Results of `votes.ballots`: many metrics and decisions need the same votes.
    """

    transcript: Transcript
    turns: Mapping[TurnKey, ReadTurn]
    compares: bool
    judges: Mapping[TurnKey, ReadTurn]
    ballot_cache: dict[str, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def shown_to(self, judge: ReadTurn) -> list[ReadTurn]:
        """List the other agents' turns shown to `judge`, with the judge's turn if ranked, too."""
        agent = judge.turn.agent
        protocol = self.transcript.protocol
        shown_keys = [k for k in judge.turn.shown if k.agent != agent and k in self.turns]
        if protocol.contracts and protocol.contract_of(judge.key.round).ranks_own:
            # An author's own turns are in its conversation, and not among the turns shown to it.
            earlier_keys = [k for k in self.turns if k.agent == agent and k.round < judge.key.round]
            shown_keys += earlier_keys[-1:]
        return [self.turns[key] for key in shown_keys]

    def judged_by(self, judge: ReadTurn) -> dict[int, ReadTurn]:
        """Find the turns shown to `judge`, by their numbers in comparison lines.

        Lines name agents, and the latest turn of each counts. Under topology `pair` prompts number
        the turns in the shown order.
        """
        if self.transcript.protocol.topology == "pair":
            numbered_keys = enumerate(judge.turn.shown)
            return {number: self.turns[key] for number, key in numbered_keys if key in self.turns}
        latest: dict[int, ReadTurn] = {}
        for turn in self.shown_to(judge):
            earlier = latest.get(turn.key.agent)
            if earlier is None or earlier.key.round < turn.key.round:
                latest[turn.key.agent] = turn
        return latest

    def expected_pairs(self, judge: ReadTurn) -> int:
        """Count the pairs of agents for `judge` to compare.

        All pairs of agents with a valid shown turn count; 0 for a failed judge.
        """
        protocol = self.transcript.protocol
        if judge.failed or not self.compares:
            return 0
        # One contract for all rounds compares, or `compares` would be false.
        contract = protocol.contract_of(judge.key.round) if protocol.contracts else None
        if contract is not None and "comparison" not in contract.sections:
            return 0
        # By agent and not by turn: a judge compares the latest turns of agents.
        valid_agents = {turn.key.agent for turn in self.shown_to(judge) if not turn.failed}
        num_valid = len(valid_agents)
        return num_valid * (num_valid - 1) // 2

    @property
    def last_round(self) -> int:
        """The last round with a turn, -1 without turns."""
        return max((key.round for key in self.turns), default=-1)


def read_debate(transcript: Transcript) -> ReadDebate:
    """Parse every turn of a transcript.

    Raises:
        ValueError: As `check_turns`, or the contract is unknown.
    """
    check_turns(transcript)
    protocol = transcript.protocol
    answering_turns: dict[TurnKey, ReadTurn] = {}
    all_turns: dict[TurnKey, ReadTurn] = {}
    for turn in transcript.turns:
        parsed = parse_turn(transcript, turn)
        # Files may record no failure: a turn without a readable answer has failed all the same.
        is_answering = gives_answers(protocol, *turn.key)
        if is_answering:
            failed = turn.failure is not None or parsed.answer is None
        else:
            failed = turn_failed(transcript, turn)
        read_turn = ReadTurn(turn.key, turn, parsed, failed)
        all_turns[turn.key] = read_turn
        # Votes, truth and statistics are not about the feedback of critics.
        if is_answering:
            answering_turns[turn.key] = read_turn
    contracts = [get_contract(name) for name in protocol.contracts or (protocol.contract,)]
    return ReadDebate(
        transcript=transcript,
        turns=answering_turns,
        compares=any("comparison" in contract.sections for contract in contracts),
        judges=all_turns,
    )


def turn_credits(
    debate: ReadDebate, values: Mapping[TurnKey, float | None], *, always_expected: bool = True
) -> list[Credit]:
    """Build the credits of turns in the stream `generator`; a failed turn carries -1.

    Args:
        debate: The debate.
        values: The value of each valid turn; a missing turn has no signal.
        always_expected: Whether valid turns without a value count as expected.
    """
    credits = []
    for key, turn in debate.turns.items():
        value = values.get(key)
        if turn.failed:
            credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
        else:
            is_expected = always_expected or value is not None
            credits.append(Credit(*key, "generator", value, expected=is_expected))
    return credits


def check_turns(transcript: Transcript) -> None:
    """Refuse impossible turns.

    Raises:
        ValueError: An agent or round is out of range, a turn is there twice, or a branch belongs
            to another turn than its place.
    """
    problem = next(turn_problems(transcript), None)
    if problem is not None:
        raise ValueError(f"debate {transcript.id!r}, {problem}")


@dataclass(frozen=True, slots=True)
class RewardContext:
    """The use of a reward.

    Attributes:
        rules: The protocol of the debates.
        questions: Questions of a step.
        max_tokens: Most tokens of a reply.
        judge_weight: Weight of the stream `judge`.
        baseline: The group of compared values, as in `advantage.baseline`.
    """

    rules: Protocol
    questions: int = 2
    max_tokens: int = 1024
    judge_weight: float = 1.0
    baseline: str = "debate"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardNeeds:
    """Requirements of debates to get values from a reward.

    Attributes:
        answers: Questions with answers.
        votes: Comparisons between agents.
        num_questions: The fewest questions of a batch for values in every stream.
        policy: Replies of a policy: scripted debates may stay without values.
    """

    answers: bool = False
    votes: bool = False
    num_questions: int = 1
    policy: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPart:
    """A reward within another reward.

    Attributes:
        reward: The part.
        weight: The weight; of a changing weight the first above 0.
        is_compared_apart: Whether values are compared only within this part.
    """

    reward: "RewardConfig"
    weight: float = 1.0
    is_compared_apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardNote:
    """A remark on a reward's settings for the reader of `--check`.

    Attributes:
        kind: `change`: from step to step. `doubt`: a legal setting to look at again. `few_judges`:
            a stream of little signal. `no_signal`: the reason for a stream without values.
        text: The remark; remarks on doubts begin with a key.
        stream: The stream without values; `None` for any.
    """

    kind: Literal["change", "doubt", "few_judges", "no_signal"]
    text: str
    stream: str | None = None


class RewardConfig(Config):
    """The base class of rewards: a field `type`, streams, and a call to score debates.

    A reward of single debates defines `score`; a reward comparing debates of a batch defines
    `__call__`.
    """

    type: str = ""
    """The name by which recipes choose the reward."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams with values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        return [self.score(read_debate(transcript)) for transcript in transcripts]

    def score(self, debate: ReadDebate) -> Score:
        """Score a debate."""
        raise ScoreError(f"reward: {type(self).__name__} has neither __call__ nor score")

    def needs(self) -> RewardNeeds:
        """Describe the requirements of debates for values under these settings."""
        return RewardNeeds()

    def parts(self) -> Mapping[str, RewardPart]:
        """List the parts of this reward by component; a single reward is called ''."""
        return {"": RewardPart(reward=self)}

    def at(self, step: int) -> Self:
        """Build the reward of a step of the phase, counted from 0; most never change."""
        return self

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Yield remarks on these settings, as far as they show without debates."""
        yield from ()


class FunctionReward(RewardConfig):
    """A reward by a function of each debate; recipes cannot choose the function's `type`."""

    _function: RewardFunction = PrivateAttr()

    @classmethod
    def of(cls, function: RewardFunction) -> "FunctionReward":
        """Make a reward from a function."""
        reward = cls(type=named(function))
        reward.__pydantic_private__ = {"_function": function}
        return reward

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order.

        Raises:
            ScoreError: The function returned something else than `Valued`.
        """
        return [_score_of(transcript, self._function(transcript)) for transcript in transcripts]


def _score_of(transcript: Transcript, valued: Any) -> Score:
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
    credits = []
    for turn, value in zip(turns, values, strict=True):
        number = finite_value(value, transcript.id, turn.agent, turn.round, "generator")
        credits.append(Credit(*turn.key, "generator", number, expected=value is not None))
    return Score(
        credits=tuple(credits),
        agents=mean_returns(credits, transcript.protocol.num_agents),
    )
