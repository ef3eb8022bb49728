"""The examples of a phase, in the order in which its steps learn from them."""

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from debate_train.offline.example import Example
from debate_train.offline.example_rows import example_batch, lengths
from debate_train.running.step import Step

if TYPE_CHECKING:
    from debate_train.recipe import Recipe


@dataclass(slots=True)
class ExampleSet:
    """The examples of a phase, and what was counted and measured while they were taken."""

    examples: list[Example]
    counts: Mapping[str, float] = field(default_factory=dict)
    held_out: list[Example] = field(default_factory=list)
    """Pairs of questions that are not learned from."""

    def step(self, recipe: "Recipe", number: int, began: float, first: int) -> Step:
        """Return what a step learns from: the examples in a shuffled order, epoch after epoch.

        Args:
            recipe: The phase's.
            number: Of the step, over the whole run.
            began: When it began.
            first: Number of the phase's first step.
        """
        assert recipe.offline is not None
        size, place = recipe.offline.batch_size, number - first
        chosen: list[Example] = []
        while len(chosen) < min(size, len(self.examples)):
            epoch, index = divmod(place * size + len(chosen), len(self.examples))
            order = list(range(len(self.examples)))
            random.Random(f"examples/{recipe.seed}/{epoch}").shuffle(order)
            chosen += [self.examples[i] for i in order[index : index + size - len(chosen)]]
        seed = zlib.crc32(f"{recipe.seed}/minibatches/{number}".encode())
        metrics = {**self.counts, **lengths(chosen)}
        metrics["offline/epoch"] = (place + 1) * size / len(self.examples)
        return Step(number, (), (), example_batch(chosen, seed), metrics, {}, began)
