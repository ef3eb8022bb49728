"""Sums of two numbers."""

import random
from itertools import product
from typing import Literal

from debate_protocol import Question
from debate_train.data import DataSettings, DataSource, Seeds, Split


class Sums(DataSettings):
    """Questions such as `3 + 4`; a sum of 7 is held out for tests, one of 8 for looks between."""

    type: Literal["sums"] = "sums"
    largest: int = 9

    def open(self, run_seed: int = 0) -> "SumsSource":
        """Return the source of a run with this seed."""
        return SumsSource(self, Seeds.of(None, run_seed))


class SumsSource(DataSource):
    """A batch follows from its step alone, so that a resumed run goes on where it stopped."""

    def __init__(self, config: Sums, seeds: Seeds) -> None:
        self._all = [*product(range(config.largest + 1), repeat=2)]
        self._size, self._seed = config.batch_size, seeds.training

    def batch(self, step: int) -> list[Question]:
        """Return the training questions of a step."""
        chance = random.Random(f"{self._seed}/{step}")
        train = [pair for pair in self._all if sum(pair) not in (7, 8)]
        return [_question(*pair) for pair in chance.choices(train, k=self._size)]

    def split(self, name: Split, size: int) -> list[Question]:
        """Return up to `size` questions of a split, always the same ones."""
        held = {"test": (7,), "dev": (8,)}.get(name, range(19))
        return [_question(*pair) for pair in self._all if sum(pair) in held][:size]


def _question(a: int, b: int) -> Question:
    return Question(f"{a}+{b}", f"{a} + {b}", str(a + b), {"kind": "number"})
