"""Which choice the answer of a row means: its label, its text, or its number counted from 0.

An answer that would mean different choices in two of these ways is read as the other rows of its
file are, and refused where they do not show it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from debate_rewards.answers.folding import text_form
from debate_rewards.answers.labels import choice_texts, chosen_label
from debate_train.interrupts import DataError

Way = Literal["label", "text", "number"]
_NAMES: Mapping[Way, str] = {"label": "the label", "text": "the text", "number": "the number"}


@dataclass(frozen=True, slots=True)
class ChoiceGold:
    """The answer of one row with choices."""

    answer: str | int
    choices: object
    where: str

    @property
    def meanings(self) -> Mapping[Way, str]:
        """The label that the answer means in each way in which it can be read."""
        texts = choice_texts(self.choices)
        is_counted = isinstance(self.answer, int) and not isinstance(self.choices, Mapping)
        meanings: dict[Way, str] = {}
        bare = str(self.answer).strip(" ().:[]").upper()
        if bare in texts:
            meanings["label"] = bare
        form = text_form(str(self.answer))
        same_text = [label for label, text in texts.items() if text_form(text) == form]
        if len(same_text) == 1:
            meanings["text"] = same_text[0]
        if is_counted and 0 <= int(self.answer) < len(texts):
            meanings["number"] = list(texts)[int(self.answer)]
        return meanings

    def label(self, usual: Way | None) -> str | None:
        """Return the label that is meant, None where the answer names no choice.

        Args:
            usual: How the other answers of the file are read.

        Raises:
            DataError: Two choices may be meant.
        """
        meanings = self.meanings
        if usual is not None and usual in meanings:
            return meanings[usual]
        if len(set(meanings.values())) > 1:
            ways = " and ".join(f"{_NAMES[way]} of {label}" for way, label in meanings.items())
            raise DataError(
                f"{self.where}: answer: found {self.answer!r:.60}, which is {ways}; expected the "
                "label of a choice, or rows whose other answers show which is meant"
            )
        if meanings:
            return next(iter(meanings.values()))
        if isinstance(self.answer, int):
            return None
        label = chosen_label(self.answer, choice_texts(self.choices))
        return label if isinstance(label, str) else None


def usual_way(golds: Sequence[ChoiceGold]) -> Way | None:
    """Return how those answers are read that can be read in one way, None where they differ."""
    ways = {way for gold in golds if len(gold.meanings) == 1 for way in gold.meanings}
    return ways.pop() if len(ways) == 1 else None
