"""From the answer of a row to a choice: by label, by text, or by number from 0.

An ambiguous answer is read as the rows of the file around it; where they differ, it is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from debate_rewards.answers.folding import text_form
from debate_rewards.answers.labels import choice_texts, chosen_label
from debate_train.errors import DataError

Way = Literal["label", "text", "number"]


@dataclass(frozen=True, slots=True)
class ChoiceGold:
    """The answer of one row with choices."""

    answer: str | int
    choices: object
    where: str

    @property
    def meanings(self) -> Mapping[Way, str]:
        """The meant label by each way to read the answer."""
        text_by_label = choice_texts(self.choices)
        meanings: dict[Way, str] = {}
        bare_answer = str(self.answer).strip(" ().:[]").upper()
        if bare_answer in text_by_label:
            meanings["label"] = bare_answer
        answer_form = text_form(str(self.answer))
        same_text = [
            label for label, text in text_by_label.items() if text_form(text) == answer_form
        ]
        if len(same_text) == 1:
            meanings["text"] = same_text[0]
        # An object of label and text has no order that could be counted.
        is_counted = isinstance(self.answer, int) and not isinstance(self.choices, Mapping)
        if is_counted and 0 <= int(self.answer) < len(text_by_label):
            meanings["number"] = list(text_by_label)[int(self.answer)]
        return meanings

    def label(self, usual: Way | None) -> str | None:
        """Choose the meant label, `None` where the answer names no choice.

        Args:
            usual: How the other answers of the file are read.

        Raises:
            DataError: Two choices may be meant.
        """
        meanings = self.meanings
        if usual is not None and usual in meanings:
            return meanings[usual]
        if len(set(meanings.values())) > 1:
            readings = " and ".join(f"the {way} of {label}" for way, label in meanings.items())
            raise DataError(
                f"{self.where}: answer: found {self.answer!r:.60}, which is {readings}; expected "
                "the label of a choice, or rows whose other answers show which is meant"
            )
        if meanings:
            return next(iter(meanings.values()))
        if isinstance(self.answer, int):
            return None
        label = chosen_label(self.answer, choice_texts(self.choices))
        return label if isinstance(label, str) else None


def usual_way(golds: Sequence[ChoiceGold]) -> Way | None:
    """Find the common way to read all unambiguous answers, `None` where they differ."""
    ways: set[Way] = set()
    for gold in golds:
        meanings = gold.meanings
        if len(meanings) == 1:
            ways.update(meanings)
    return ways.pop() if len(ways) == 1 else None
