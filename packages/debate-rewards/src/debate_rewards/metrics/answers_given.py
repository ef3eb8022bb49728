"""The answers of debates, read and checked once for all figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers.checking import answer_classes
from debate_rewards.reading import ReadDebate, read_debate
from debate_rewards.rewards.verifiable import turn_verdicts


@dataclass(frozen=True, slots=True)
class AnswersGiven:
    """Which answers the turns of a debate gave, by class, and which of them are right.

    `classes` are of all turns together, so that answers of different rounds compare; None for a
    turn without an answer. `right` is None where the question's own answer cannot be used.
    """

    debate: ReadDebate
    classes: Mapping[TurnKey, int | None]
    right: Mapping[TurnKey, bool] | None

    def majority(self, keys: Iterable[TurnKey]) -> float:
        """Return whether the majority of these turns is right, ties in expectation.

        A turn without an answer has no vote; nobody answering is wrong.
        """
        assert self.right is not None
        sizes: dict[int, int] = {}
        wins: dict[int, bool] = {}
        for key in keys:
            number = self.classes[key]
            if number is not None:
                sizes[number] = sizes.get(number, 0) + 1
                wins.setdefault(number, self.right[key])
        largest = [n for n, size in sizes.items() if size == max(sizes.values())]
        return sum(wins[n] for n in largest) / len(largest) if largest else 0.0

    def rounds(self) -> dict[int, list[TurnKey]]:
        """Return the turns of each round, in order."""
        found: dict[int, list[TurnKey]] = {}
        for key in self.debate.turns:
            found.setdefault(key.round, []).append(key)
        return dict(sorted(found.items()))


def answers_given(transcripts: Sequence[Transcript]) -> list[AnswersGiven]:
    """Read and check the answers of finished debates, in order.

    Raises:
        ValueError: A turn cannot be, or a contract is unknown.
    """
    debates = [read_debate(transcript) for transcript in transcripts]
    found = []
    for debate, verdicts in zip(debates, turn_verdicts(debates), strict=True):
        usable = all(verdict.verdict != "unverifiable" for verdict in verdicts.values())
        right = {key: verdict.verdict == "right" for key, verdict in verdicts.items()}
        answers = [None if turn.failed else turn.parsed.answer for turn in debate.turns.values()]
        classes = answer_classes(debate.transcript.question, answers) if usable else []
        numbered = dict(zip(debate.turns, classes, strict=True)) if usable else {}
        found.append(AnswersGiven(debate, numbered, right if usable else None))
    return found
