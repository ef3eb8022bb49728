"""Which replies of a debate are chosen, and which are not, by the answers that they give."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from debate_protocol.types import Transcript
from debate_rewards.answers.checking import answer_classes, check_many
from debate_rewards.reading import ReadDebate, ReadTurn, read_debate
from debate_rewards.votes.decisions import answer_text, standings
from debate_train.offline.offline_set import Taken

By = Literal["majority", "votes", "answer"]
"""What decides: the most common answer of the round, the answer that the agents' votes put first,
or the question's own."""
Round = Literal["first", "last", "every"]


@dataclass(frozen=True, slots=True)
class Sides:
    """The replies of one round with the chosen answer, and those with another."""

    debate: ReadDebate
    chosen: list[ReadTurn]
    others: list[ReadTurn]


def decided(
    transcripts: Sequence[Transcript], by: By | Literal["any"], round: Round, taken: Taken
) -> Iterator[tuple[Transcript, Sides]]:
    """Yield the rounds in which something is chosen, with their sides; count the others.

    Nothing is chosen where the question has no usable answer, where no answer is the most common
    one, or where none was voted above all others. `any` chooses every reply that can be read.
    """
    compared = [
        (debate, turns)
        for debate in map(read_debate, transcripts)
        for turns in _rounds(debate, round)
    ]
    answers = [[answer_text(debate, turn) for turn in turns] for debate, turns in compared]
    marks = _marks(compared, answers, by)
    for (debate, turns), which in zip(compared, marks, strict=True):
        if which is None:
            taken.leave_out("no_decision")
            continue
        marked = list(zip(turns, which, strict=True))
        better = [turn for turn, is_chosen in marked if is_chosen]
        others = [turn for turn, is_chosen in marked if not is_chosen]
        yield debate.transcript, Sides(debate, better, others)


def _rounds(debate: ReadDebate, round: Round) -> list[list[ReadTurn]]:
    """Return the readable replies of the rounds that are compared."""
    turns = [turn for turn in debate.turns.values() if not turn.failed]
    rounds = sorted({turn.key.round for turn in turns})
    wanted = {"first": rounds[:1], "last": rounds[-1:], "every": rounds}[round]
    found = [[turn for turn in turns if turn.key.round == number] for number in wanted]
    return found or [[]]


def _marks(
    compared: Sequence[tuple[ReadDebate, list[ReadTurn]]],
    answers: Sequence[Sequence[str | None]],
    by: By | Literal["any"],
) -> Sequence[list[bool] | None]:
    """Return which replies of each round are chosen, None where nothing is."""
    if by == "any":
        return [[True] * len(turns) for _, turns in compared]
    if by == "answer":
        return _right([debate.transcript for debate, _ in compared], answers)
    rule = _in_majority if by == "majority" else _voted_for
    return [rule(debate, found) for (debate, _), found in zip(compared, answers, strict=True)]


def _in_majority(debate: ReadDebate, answers: Sequence[str | None]) -> list[bool] | None:
    classes = answer_classes(debate.transcript.question, answers)
    sizes = Counter(number for number in classes if number is not None).most_common(2)
    if not sizes or (len(sizes) == 2 and sizes[0][1] == sizes[1][1]):
        return None
    return [number == sizes[0][0] for number in classes]


def _voted_for(debate: ReadDebate, answers: Sequence[str | None]) -> list[bool] | None:
    found = standings(debate)
    best = max((standing for _, standing in found), default=0.0)
    first = [answer_text(debate, turn) for turn, standing in found if standing == best]
    classes = answer_classes(debate.transcript.question, [*answers, *first])
    winners = set(classes[len(answers) :])
    if len(winners) != 1 or None in winners:
        return None
    return [number in winners for number in classes[: len(answers)]]


def _right(
    transcripts: Sequence[Transcript], answers: Sequence[Sequence[str | None]]
) -> list[list[bool] | None]:
    asked = [(t.question, a) for t, found in zip(transcripts, answers, strict=True) for a in found]
    verdicts = iter(check_many(asked))
    judged = [[next(verdicts).verdict for _ in found] for found in answers]
    return [None if "unverifiable" in one else [v == "right" for v in one] for one in judged]
