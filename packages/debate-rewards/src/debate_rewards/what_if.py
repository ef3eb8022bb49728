"""Recorded debates under other rewards: how well each follows the truth, and what it pays for.

A reward can be judged before a GPU is spent: the debates of a run, or of a few questions, are
scored again by every reward, and the values are compared with the verified answers.

- `truth`: the correlation r of an answer's value with its being right, within a debate; R² is its
  square. An optimizer that normalizes its steps learns from values with unbiased noise about the
  fraction r of what it learns from the truth. The rule fails for values that follow the policy's
  own confidence, as the majority's do: they sharpen what the policy says already.
- `signal`: the share of text that has an advantage other than 0.
- `dead questions`: questions without any advantage.
- `gradient shares`: the share of each stream in the sum of |advantage| over characters.
- `habits`: what a judge's turn would earn if it had voted without reading.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from debate_protocol.types import Transcript, Turn, TurnKey
from debate_rewards.estimates import Estimate, Moments, Sums, bootstrap_estimates
from debate_rewards.group_advantages import group_mean
from debate_rewards.metrics import answers_given
from debate_rewards.reward import Credit, ReadDebate, ReadTurn, Reward, score_debates

__all__ = [
    *("HABITS", "Disagreement", "RewardReplay", "SignChange"),
    *("advice", "sampling_deviation", "seeds_needed", "truth_advice", "what_if"),
    "write_r_squared",
]

# Two values of one group that differ by less are equal: sums of floats differ in their last digits.
TOLERANCE = 1e-9
NUM_EXAMPLES = 3
# Beyond this share of the gradient, other streams hardly learn.
LARGEST_STREAM_SHARE = 0.8

# Quantiles of the normal distribution for a two-sided test at 5 % with a power of 80 %.
Z_TEST = 1.959964
Z_POWER = 0.841621
# Student's t with few degrees of freedom needs more seeds: a correction of z² / 2 (Guenther 1981).
T_CORRECTION = Z_TEST**2 / 2

# Streams whose values are of the answer: of its turn, or of all of an agent's turns.
ANSWER_STREAMS = ("generator", "return")

AnswerClasses = Mapping[TurnKey, int | None]
# From a judge's turn and two turns that it was shown, of the lower agent first, to a verdict.
Habit = Callable[[ReadDebate, AnswerClasses, ReadTurn, tuple[ReadTurn, ReadTurn]], str]


@dataclass(frozen=True, slots=True)
class SignChange:
    """A turn whose advantage has one sign under a reward and the other under the next."""

    debate: str
    key: TurnKey
    stream: str
    first: float
    second: float
    is_right: bool | None
    text: str


@dataclass(frozen=True, slots=True)
class Disagreement:
    """How two rewards differ on the turns that both give an advantage other than 0."""

    other: str
    num_turns: int
    num_changed: int
    examples: tuple[SignChange, ...]


@dataclass(frozen=True, slots=True)
class RewardReplay:
    """What one reward says of recorded debates.

    Attributes:
        name: The reward's name, with its settings.
        truth: Correlation of answers' values with being right, within a debate, with its interval
            over questions; `None` where no debate has both values and right and wrong answers.
        num_answers: Answers that have a value and a verdict.
        signal: Share of the text, by characters, with an advantage other than 0.
        dead_questions: Share of questions without any such text.
        stream_shares: Each stream's share of the sum of |advantage| over characters.
        habits: By habit, the mean value of a judge's turn that votes so among recorded peers.
        recorded_judging: The mean value of judges' turns as they were recorded.
        disagreement: Turns whose sign differs from the first reward's; `None` for the first.
        problem: Why this reward has no values; all else is empty then.
    """

    name: str
    truth: Estimate | None = None
    num_answers: int = 0
    signal: float = 0.0
    dead_questions: float = 1.0
    stream_shares: Mapping[str, float] | None = None
    habits: Mapping[str, float | None] | None = None
    recorded_judging: float | None = None
    disagreement: Disagreement | None = None
    problem: str | None = None

    @property
    def r_squared(self) -> float | None:
        """The squared correlation with the truth; `None` where it is not known."""
        return None if self.truth is None else self.truth.value**2


@dataclass(frozen=True, slots=True)
class _Advantage:
    """An advantage and the text that it moves; `num_characters` may be 0."""

    question: str
    debate: int
    key: TurnKey
    stream: str
    value: float
    num_characters: int


def what_if(
    transcripts: Sequence[Transcript],
    rewards: Mapping[str, Reward],
    *,
    with_habits: bool = True,
    seed: int = 0,
    verdicts: Sequence[Mapping[TurnKey, bool]] | None = None,
) -> list[RewardReplay]:
    """Score recorded debates under each reward.

    Advantages are values less the mean of the turns of one question and round, as with
    `advantage.baseline: question_round`; values that are centered already stay.

    Args:
        transcripts: Finished debates; answers are checked where their question has one.
        rewards: Rewards by name; the first is the one that others are compared with.
        with_habits: Also score debates whose judges vote without reading.
        seed: Repeats the resampling of the intervals.
        verdicts: Which turns of each debate are right, as another program found; None checks them.

    Returns:
        One replay for each reward, in order.

    Raises:
        ValueError: A turn cannot be, or a contract or the kind of a question is unknown.
    """
    # Debates are read, and answers checked, once for all rewards.
    batch_answers = answers_given(transcripts, across_rounds=True)
    debates = [answers.debate for answers in batch_answers]
    checked = [answers.right or {} for answers in batch_answers]
    truth: Sequence[Mapping[TurnKey, bool]] = checked if verdicts is None else verdicts
    classes = [answers.classes for answers in batch_answers]
    replays: list[RewardReplay] = []
    first_advantages: list[_Advantage] | None = None
    for name, reward in rewards.items():
        # A reward that does not suit these debates is one row of the answer, not its end.
        try:
            credits = [score.credits for score in score_debates(reward, transcripts)]
        except ValueError as error:
            replays.append(RewardReplay(name, problem=str(error)))
            continue
        advantages = _advantages(debates, credits)
        if not any(advantage.value for advantage in advantages):
            replays.append(RewardReplay(name, problem="no text has an advantage other than 0"))
            continue
        values = _answer_values(credits)
        mass_by_stream = _mass_by_stream(advantages)
        total_mass = sum(mass_by_stream.values())
        stream_shares = dict.fromkeys(mass_by_stream, 0.0)
        # An advantage of a turn without text moves nothing.
        if total_mass:
            stream_shares = {stream: mass / total_mass for stream, mass in mass_by_stream.items()}
        disagreement = None
        if first_advantages is None:
            first_advantages = advantages
        else:
            first_name = next(replay.name for replay in replays if replay.problem is None)
            disagreement = _disagreement(first_name, first_advantages, advantages, debates, truth)
        replays.append(
            RewardReplay(
                name=name,
                truth=_truth_estimate(debates, values, truth, seed),
                num_answers=_num_judged_answers(values, truth),
                signal=_signal(debates, advantages),
                dead_questions=_dead_questions(debates, advantages),
                stream_shares=stream_shares,
                habits=_habit_values(reward, debates, classes) if with_habits else None,
                recorded_judging=_mean_judging(credits, None),
                disagreement=disagreement,
            )
        )
    return replays


def advice(
    replay: RewardReplay, truth_gain: float | None = None, deviation: float | None = None
) -> list[str]:
    """Say what the values can teach, and which stream takes nearly all of an update."""
    lines = []
    truth_line = truth_advice(replay, truth_gain, deviation)
    if truth_line is not None:
        lines.append(truth_line)
    for stream, share in (replay.stream_shares or {}).items():
        if share > LARGEST_STREAM_SHARE and len(replay.stream_shares or {}) > 1:
            lines.append(
                f"{replay.name}: stream {stream} takes {share:.2f} of the gradient: "
                "set the weights of advantage.streams on purpose"
            )
    return lines


def truth_advice(
    replay: RewardReplay,
    truth_gain: float | None = None,
    deviation: float | None = None,
    num_questions: int | None = None,
) -> str | None:
    """Say what share of the truth's gain the values can teach; None where no answer has a verdict.

    Args:
        replay: What a reward says of debates.
        truth_gain: What verified answers would gain, to count seeds.
        deviation: Standard deviation over seeds of a difference of two arms.
        num_questions: Test questions of a seed for which `deviation` holds.
    """
    if replay.truth is None:
        return None
    fraction = replay.truth.value
    if fraction < 0:
        return f"{replay.name}: values point away from the truth: expect no gain"
    line = (
        f"{replay.name}: values follow the truth with R² {fraction**2:.2f}: "
        f"expect about {fraction:.2f} of what truth would gain"
    )
    if truth_gain is not None and deviation is not None and fraction * truth_gain > 0:
        num_seeds = seeds_needed(fraction * truth_gain, deviation)
        line += f" ({fraction * truth_gain:.3f}); to see that takes {num_seeds} seeds"
        if num_questions is not None:
            line += f" of {num_questions:,} test questions"
    return line


def write_r_squared(replay: RewardReplay) -> str:
    """Write R² with the truth and its interval, `not known` without verdicts."""
    if replay.truth is None:
        return "not known"
    # The square of an interval with 0 inside begins at 0.
    ends = sorted((replay.truth.low**2, replay.truth.high**2))
    low = 0.0 if replay.truth.low <= 0 <= replay.truth.high else ends[0]
    # A square alone would rank a broken verifier with the truth.
    sign = " (r < 0)" if replay.truth.value < 0 else ""
    return f"{replay.truth.value**2:.3f} [{low:.3f}, {ends[1]:.3f}]{sign}"


def sampling_deviation(accuracy: float, num_replies: int) -> float:
    """Estimate the standard deviation over seeds of two arms' difference, √(2 p (1 − p) / M).

    An upper bound of the part of sampling, because the arms of a seed share questions. What
    training adds is left out.

    Args:
        accuracy: The expected accuracy p, taken as at least 1/M and at most 1 − 1/M: at 0 or 1
            nothing would vary.
        num_replies: M, an arm's replies to all questions together.
    """
    smallest = 1 / max(2, num_replies)
    p = min(max(accuracy, smallest), 1 - smallest)
    return math.sqrt(2 * p * (1 - p) / num_replies)


def seeds_needed(difference: float, deviation: float) -> int:
    """Count the seeds that show a difference of two arms, paired by seed, four times in five.

    Args:
        difference: The expected difference of the arms.
        deviation: Standard deviation of the differences over seeds.

    Source: n = (z₀.₉₇₅ + z₀.₈)² s² / d² + z₀.₉₇₅² / 2 for a two-sided t test at 5 % (Guenther
    1981). The exact number, by the noncentral t distribution, is at most one larger.

    Raises:
        ValueError: The difference is 0, or the deviation is negative.
    """
    if difference == 0 or deviation < 0:
        raise ValueError(
            f"seeds_needed: found difference {difference} and deviation {deviation}; "
            "expected a difference other than 0 and a deviation of at least 0"
        )
    ratio = (Z_TEST + Z_POWER) * deviation / difference
    return max(3, math.ceil(ratio**2 + T_CORRECTION))


def _answer_values(credits: Sequence[Iterable[Credit]]) -> list[dict[TurnKey, float]]:
    """Sum, by debate and turn, the value of the answer as a whole; penalties are no values."""
    values = []
    for debate_credits in credits:
        by_turn: dict[TurnKey, float] = {}
        for credit in debate_credits:
            is_answer = credit.stream in ANSWER_STREAMS and credit.span is None
            if is_answer and credit.value is not None and not credit.penalty:
                key = TurnKey(credit.agent, credit.round)
                by_turn[key] = by_turn.get(key, 0.0) + credit.value * credit.weight
        values.append(by_turn)
    return values


def _num_judged_answers(
    values: Sequence[Mapping[TurnKey, float]], truth: Sequence[Mapping[TurnKey, bool]]
) -> int:
    return sum(len(v.keys() & right.keys()) for v, right in zip(values, truth, strict=True))


def _truth_estimate(
    debates: Sequence[ReadDebate],
    values: Sequence[Mapping[TurnKey, float]],
    truth: Sequence[Mapping[TurnKey, bool]],
    seed: int,
) -> Estimate | None:
    """Correlate values with rightness within debates: both less their mean of the debate."""
    sums_by_question: dict[str, Sums] = {}
    for debate, debate_values, right in zip(debates, values, truth, strict=True):
        keys = [key for key in debate_values if key in right]
        if len(keys) < 2:
            continue
        # A baseline takes the debate's mean off, so only differences within it can teach.
        mean_value = fmean(debate_values[key] for key in keys)
        mean_right = fmean(right[key] for key in keys)
        points = [(debate_values[key] - mean_value, right[key] - mean_right) for key in keys]
        question_sums = sums_by_question.setdefault(debate.transcript.question.id, Sums())
        question_sums.add_points("truth", points)
    rows: list[Mapping[str, Moments]] = [sums.moments for sums in sums_by_question.values()]
    return bootstrap_estimates(rows, seed).get("truth") if rows else None


def _advantages(
    debates: Sequence[ReadDebate], credits: Sequence[Iterable[Credit]]
) -> list[_Advantage]:
    """Take the mean of question, round, stream and part off each value."""
    groups: dict[Hashable, list[float]] = {}
    for debate, debate_credits in zip(debates, credits, strict=True):
        question = debate.transcript.question.id
        for credit in debate_credits:
            if credit.value is not None:
                groups.setdefault(_group(question, credit), []).append(credit.value)
    means = {group: group_mean(values) for group, values in groups.items()}
    advantages = []
    for number, (debate, debate_credits) in enumerate(zip(debates, credits, strict=True)):
        question = debate.transcript.question.id
        texts = {turn.key: turn.text for turn in debate.transcript.turns}
        for credit in debate_credits:
            if credit.value is None:
                continue
            # Values that earn a habit 0 already keep their level: it says which votes are right.
            mean = 0.0 if credit.centred else means[_group(question, credit)]
            value = (credit.value - mean) * credit.weight
            key = TurnKey(credit.agent, credit.round)
            if credit.span is None:
                num_characters = len(texts.get(key, ""))
            else:
                start, end = credit.span
                num_characters = end - start
            advantages.append(
                _Advantage(
                    question=question,
                    debate=number,
                    key=key,
                    stream=credit.stream,
                    value=value if abs(value) > TOLERANCE else 0.0,
                    num_characters=num_characters,
                )
            )
    return advantages


def _group(question: str, credit: Credit) -> Hashable:
    # Values of lines and of whole turns have different means.
    is_whole_turn = credit.span is None
    return question, credit.round, credit.stream, credit.component, is_whole_turn


def _mass_by_stream(advantages: Iterable[_Advantage]) -> dict[str, float]:
    mass: dict[str, float] = {}
    for advantage in advantages:
        weight = abs(advantage.value) * advantage.num_characters
        mass[advantage.stream] = mass.get(advantage.stream, 0.0) + weight
    return mass


def _signal(debates: Sequence[ReadDebate], advantages: Iterable[_Advantage]) -> float:
    """Divide the characters of turns with an advantage by those of all turns.

    A turn counts once: by its whole text, or by its parts where only these have advantages.
    """
    moved: dict[tuple[int, TurnKey], int] = {}
    for advantage in advantages:
        if advantage.value:
            turn = (advantage.debate, advantage.key)
            moved[turn] = max(moved.get(turn, 0), advantage.num_characters)
    num_characters = 0
    for debate in debates:
        num_characters += sum(len(turn.text) for turn in debate.transcript.turns)
    return sum(moved.values()) / num_characters if num_characters else 0.0


def _dead_questions(debates: Sequence[ReadDebate], advantages: Iterable[_Advantage]) -> float:
    questions = {debate.transcript.question.id for debate in debates}
    alive = {advantage.question for advantage in advantages if advantage.value}
    return 1 - len(alive) / len(questions)


def _disagreement(
    first_name: str,
    first: Iterable[_Advantage],
    second: Iterable[_Advantage],
    debates: Sequence[ReadDebate],
    truth: Sequence[Mapping[TurnKey, bool]],
) -> Disagreement:
    """Find the turns whose summed advantage in a stream changes its sign."""
    first_values = _by_turn(first)
    second_values = _by_turn(second)
    valued_turns = []
    for turn, value in first_values.items():
        second_value = second_values.get(turn, 0.0)
        if abs(value) > TOLERANCE and abs(second_value) > TOLERANCE:
            valued_turns.append(turn)
    changed = [turn for turn in valued_turns if first_values[turn] * second_values[turn] < 0]
    # The largest changes are those worth reading, some of each direction.
    changed.sort(key=lambda turn: -abs(first_values[turn] - second_values[turn]))
    now_lower = [turn for turn in changed if first_values[turn] > 0]
    now_higher = [turn for turn in changed if first_values[turn] < 0]
    examples = []
    for turn in now_lower[:NUM_EXAMPLES] + now_higher[:NUM_EXAMPLES]:
        number, key, stream = turn
        transcript = debates[number].transcript
        text = next((t.text for t in transcript.turns if t.key == key), "")
        examples.append(
            SignChange(
                debate=transcript.id,
                key=key,
                stream=stream,
                first=first_values[turn],
                second=second_values[turn],
                is_right=truth[number].get(key),
                text=text,
            )
        )
    return Disagreement(
        other=first_name,
        num_turns=len(valued_turns),
        num_changed=len(changed),
        examples=tuple(examples),
    )


def _by_turn(advantages: Iterable[_Advantage]) -> dict[tuple[int, TurnKey, str], float]:
    """Sum advantages by turn and stream; parts of a text count by their characters."""
    sums: dict[tuple[int, TurnKey, str], float] = {}
    for advantage in advantages:
        # One name for both, so that a reward of turns is compared with one of agents.
        stream = "answer" if advantage.stream in ANSWER_STREAMS else advantage.stream
        turn = (advantage.debate, advantage.key, stream)
        sums[turn] = sums.get(turn, 0.0) + advantage.value * advantage.num_characters
    return sums


def _equal(
    debate: ReadDebate, classes: AnswerClasses, judge: ReadTurn, pair: tuple[ReadTurn, ReadTurn]
) -> str:
    return "="


def _first_shown(
    debate: ReadDebate, classes: AnswerClasses, judge: ReadTurn, pair: tuple[ReadTurn, ReadTurn]
) -> str:
    shown = list(judge.turn.shown)
    return ">" if shown.index(pair[0].key) < shown.index(pair[1].key) else "<"


def _longest(
    debate: ReadDebate, classes: AnswerClasses, judge: ReadTurn, pair: tuple[ReadTurn, ReadTurn]
) -> str:
    return _larger(len(pair[0].turn.text), len(pair[1].turn.text))


def _crowd(
    debate: ReadDebate, classes: AnswerClasses, judge: ReadTurn, pair: tuple[ReadTurn, ReadTurn]
) -> str:
    """Prefer the answer that more of the turns of its round give."""

    def num_holders(turn: ReadTurn) -> int:
        answer = classes.get(turn.key)
        in_round = [number for key, number in classes.items() if key.round == turn.key.round]
        return 0 if answer is None else in_round.count(answer)

    return _larger(num_holders(pair[0]), num_holders(pair[1]))


def _own_answer(
    debate: ReadDebate, classes: AnswerClasses, judge: ReadTurn, pair: tuple[ReadTurn, ReadTurn]
) -> str:
    """Prefer the judge's own answer."""
    own_class = classes.get(judge.key)
    if own_class is None:
        return "="
    return _larger(*(classes.get(turn.key) == own_class for turn in pair))


def _larger(left: int, right: int) -> str:
    if left == right:
        return "="
    return ">" if left > right else "<"


HABITS: Mapping[str, Habit] = {
    "always equal": _equal,
    "first shown": _first_shown,
    "longest": _longest,
    "the crowd": _crowd,
    "own answer": _own_answer,
}


def _habit_values(
    reward: Reward, debates: Sequence[ReadDebate], classes: Sequence[AnswerClasses]
) -> dict[str, float | None]:
    """Score debates in which one agent votes by a habit, another agent in each debate."""
    values: dict[str, float | None] = {}
    for name, habit in HABITS.items():
        transcripts = []
        agents = []
        for number, (debate, debate_classes) in enumerate(zip(debates, classes, strict=True)):
            # One agent alone: if all had the habit, each would agree with its peers.
            judging = sorted({key.agent for key in debate.judges})
            agent = judging[number % len(judging)] if judging else -1
            agents.append(agent)
            transcripts.append(_with_habit(debate, debate_classes, agent, habit))
        try:
            credits = [score.credits for score in score_debates(reward, transcripts)]
        except ValueError:
            values[name] = None
            continue
        values[name] = _mean_judging(credits, agents)
    return values


def _with_habit(debate: ReadDebate, classes: AnswerClasses, agent: int, habit: Habit) -> Transcript:
    """Replace the votes of one agent's turns by those of a habit."""
    transcript = debate.transcript
    turns: list[Turn] = []
    for turn in transcript.turns:
        judge = debate.judges.get(turn.key)
        if judge is None or turn.agent != agent or not judge.parsed.comparisons:
            turns.append(turn)
            continue
        lines = []
        shown = sorted(debate.judged_by(judge).items())
        for (low, low_turn), (high, high_turn) in combinations(shown, 2):
            if low_turn.failed or high_turn.failed:
                continue
            verdict = habit(debate, classes, judge, (low_turn, high_turn))
            lines.append(f"Agent {low} {verdict} Agent {high}")
        start, end = judge.parsed.sections["comparison"].span
        text = turn.text[:start] + "\n".join(lines) + turn.text[end:]
        # What was parsed and sampled belongs to the old text.
        turns.append(replace(turn, text=text, parsed=None, reply=None))
    return replace(transcript, turns=tuple(turns))


def _mean_judging(
    credits: Sequence[Iterable[Credit]], agents: Sequence[int] | None
) -> float | None:
    """Average the values in the stream `judge`, of one agent a debate where `agents` names it."""
    values = []
    for number, debate_credits in enumerate(credits):
        for credit in debate_credits:
            is_counted = agents is None or credit.agent == agents[number]
            if credit.stream == "judge" and credit.value is not None and is_counted:
                values.append(credit.value)
    return fmean(values) if values else None
