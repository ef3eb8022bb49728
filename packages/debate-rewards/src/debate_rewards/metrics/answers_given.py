"""The answers of debates, read and checked once for all figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers.checking import Verdict, answer_classes
from debate_rewards.reading import ReadDebate, read_debate
from debate_rewards.rewards.verifiable import turn_verdicts


@dataclass(frozen=True, slots=True)
class AnswersGiven:
    """Which answers the turns of a debate gave, by class, and which of them are right.

    `classes` are numbered for each round alone, unless they were asked for across rounds; None for
    a turn without an answer. `right` is None where the question's own answer cannot be used.
    """

    debate: ReadDebate
    verdicts: Mapping[TurnKey, Verdict]
    classes: Mapping[TurnKey, int | None]

    @property
    def right(self) -> dict[TurnKey, bool] | None:
        """Which turns are right, None where the question's own answer cannot be used."""
        if any(verdict.verdict == "unverifiable" for verdict in self.verdicts.values()):
            return None
        return {key: verdict.verdict == "right" for key, verdict in self.verdicts.items()}

    def majority(self, keys: Iterable[TurnKey]) -> float:
        """Return whether the majority of these turns is right, ties in expectation.

        A turn without an answer has no vote; nobody answering is wrong.
        """
        sizes: dict[int, int] = {}
        wins: dict[int, bool] = {}
        for key in keys:
            number = self.classes[key]
            if number is not None:
                sizes[number] = sizes.get(number, 0) + 1
                wins.setdefault(number, self.verdicts[key].verdict == "right")
        largest = [n for n, size in sizes.items() if size == max(sizes.values())]
        return sum(wins[n] for n in largest) / len(largest) if largest else 0.0

    def rounds(self) -> dict[int, list[TurnKey]]:
        """Return the turns of each round, in order."""
        found: dict[int, list[TurnKey]] = {}
        for key in self.debate.turns:
            found.setdefault(key.round, []).append(key)
        return dict(sorted(found.items()))


def answers_given(
    transcripts: Sequence[Transcript], *, across_rounds: bool = False
) -> list[AnswersGiven]:
    """Read and check the answers of finished debates, in order.

    Args:
        transcripts: Finished debates.
        across_rounds: Number the classes of all rounds together.

    Raises:
        ValueError: A turn cannot be, or a contract or the kind of a question is unknown.
    """
    debates = [read_debate(transcript) for transcript in transcripts]
    return [
        AnswersGiven(debate, verdicts, _classes(debate, across_rounds))
        for debate, verdicts in zip(debates, turn_verdicts(debates), strict=True)
    ]


def _classes(debate: ReadDebate, across_rounds: bool) -> dict[TurnKey, int | None]:
    groups: dict[int, list[TurnKey]] = {}
    for key in debate.turns:
        groups.setdefault(0 if across_rounds else key.round, []).append(key)
    found: dict[TurnKey, int | None] = {}
    for keys in groups.values():
        read = [debate.turns[key] for key in keys]
        answers = [None if turn.failed else turn.parsed.answer for turn in read]
        numbers = answer_classes(debate.transcript.question, answers)
        found |= dict(zip(keys, numbers, strict=True))
    return found
