"""Questions drawn from a generator of random numbers, as puzzles and procedural tasks are."""

import random
import zlib
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from debate_protocol.types import Question
from debate_train.data.source import HELD_OUT_SPLITS, DataSettings, DataSource, Seeds, Split


class DrawnSource(DataSource):
    """Questions made as needed, by `draw` from a generator of random numbers.

    The text of a question decides its split, so splits never meet: a tenth is `dev`, one `test`.
    """

    salt: ClassVar[str]
    """Name of the kind of data in the seeds of its generators."""
    patience: ClassVar[int] = 20_000
    """Draws without a new question after which a split counts as exhausted."""

    def __init__(self, config: DataSettings, seeds: Seeds) -> None:
        self.config = config
        self._seeds = seeds

    @abstractmethod
    def draw(self, rng: random.Random) -> Question:
        """Draw a question of any split."""

    def batch(self, step: int) -> list[Question]:
        """Draw distinct training questions of a step; fewer where the split holds fewer."""
        rng = random.Random(f"{self.salt}/{self._seeds.training}/{step}")
        return self._draw_distinct(rng, "train", self.config.batch_size)

    def split(self, name: Split, size: int) -> list[Question]:
        """Draw up to `size` distinct questions of a split, always the same questions."""
        rng = random.Random(f"{self.salt}/{name}/{self._seeds.held_out}")
        return self._draw_distinct(rng, name, size)

    @property
    def split_rule(self) -> Callable[[str], Split]:
        """The checksum of a text, the same for all drawn sources."""
        return _split_of

    def held_out(self, num_measured: int) -> list[Question]:
        """Draw the measured questions alone: to draw every question can take minutes."""
        questions = []
        for name in HELD_OUT_SPLITS:
            questions += self.split(name, num_measured)
        return questions

    def _draw_distinct(self, rng: random.Random, split: Split, size: int) -> list[Question]:
        question_by_text: dict[str, Question] = {}
        num_fruitless = 0
        while len(question_by_text) < size and num_fruitless < self.patience:
            question = self.draw(rng)
            num_fruitless += 1
            if question.text not in question_by_text and _split_of(question.text) == split:
                question_by_text[question.text] = question
                num_fruitless = 0
        return list(question_by_text.values())


def _split_of(text: str) -> Split:
    # A checksum of the text alone: the same question is held out under every seed and recipe.
    bucket = zlib.crc32(text.encode()) % 10
    if bucket == 0:
        return "dev"
    if bucket == 1:
        return "test"
    return "train"
