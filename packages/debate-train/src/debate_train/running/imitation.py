"""Supervised phases: which turns are imitated, and demonstrations that would teach wrong things."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from debate_protocol.types import Transcript
from debate_rewards.reading import read_debate
from debate_train.batches.row_types import Batch, Row
from debate_train.errors import UsageError
from debate_train.recipe import Recipe

ENOUGH = 16
"""Turns after which a phase that can imitate none of them is stopped: fewer may fail by chance."""


@dataclass(frozen=True, slots=True)
class Demonstrated:
    """Counts over demonstrated turns that owe an answer.

    `failed` have no readable answer. Of those that were asked to compare (`asked`), `silent` made
    no comparison.
    """

    turns: int
    failed: int
    asked: int
    silent: int

    def __add__(self, other: "Demonstrated") -> "Demonstrated":
        return Demonstrated(
            self.turns + other.turns,
            self.failed + other.failed,
            self.asked + other.asked,
            self.silent + other.silent,
        )

    def problem(self, contract: str) -> str | None:
        """Return why these turns must not be imitated, None if nothing speaks against it."""
        if self.turns and self.failed == self.turns:
            return (
                f"found {self.turns:,} demonstrated turns, none of which holds an answer that "
                f"contract {contract} can read, so there is nothing to imitate; expected "
                "demonstrations in the form of debate.contract, and room for them in "
                "rollout.max_tokens"
            )
        if self.asked and self.silent == self.asked:
            return (
                f"found {self.asked:,} demonstrated turns that are asked to compare others and do "
                "not, which would teach agents not to compare; expected debate.type: direct for "
                "this phase, or data that demonstrates comparisons, such as signs_puzzle in the "
                "compact style, with room for them in rollout.max_tokens"
            )
        return None


class Imitation:
    """Makes batches fit to be imitated; those of other losses than `sft` stay as they are."""

    def __init__(self, recipe: Recipe) -> None:
        self._is_on = recipe.loss.learns_from == "demonstrations"
        self._is_demonstrated = not recipe.rollout.engine.is_sampled
        self._contract = str(recipe.debate.contract_rules())
        self._seen = Demonstrated(0, 0, 0, 0)

    def fit(
        self, transcripts: Sequence[Transcript], batch: "Batch"
    ) -> "tuple[Batch, dict[str, float]]":
        """Return the batch without weights below 0, and counts of what is not imitated.

        Raises:
            UsageError: What was demonstrated so far would do harm, or nothing.
        """
        if not self._is_on:
            return batch, {}
        batch, against = without_negative_weights(batch)
        found = look_at_demonstrations(transcripts)
        self._seen += found
        if self._is_demonstrated and self._seen.turns >= ENOUGH:
            problem = self._seen.problem(self._contract)
            if problem is not None:
                raise UsageError(f"rollout.engine.type: {problem}")
        return batch, {
            "imitation/failed_turns": float(found.failed),
            "imitation/turns_against": float(against),
        }


def look_at_demonstrations(transcripts: Sequence[Transcript]) -> Demonstrated:
    """Count what a supervised phase would imitate."""
    turns = failed = asked = silent = 0
    for transcript in transcripts:
        debate = read_debate(transcript)
        for turn in debate.turns.values():
            turns += 1
            failed += turn.failed
            if debate.expected_pairs(turn):
                asked += 1
                silent += not turn.parsed.comparisons
    return Demonstrated(turns, failed, asked, silent)


def without_negative_weights(batch: "Batch") -> "tuple[Batch, int]":
    """Return the batch without weights below 0, and how many turns had one.

    A supervised loss raises what has a positive weight; a negative one would train against the
    demonstration. What weighs nothing still counts in denominators.
    """
    found = [_imitated(row) for row in batch.rows]
    return replace(batch, rows=tuple(row for row, _ in found)), sum(turns for _, turns in found)


def _imitated(row: "Row") -> "tuple[Row, int]":
    parts = row.advantages[None, :] if row.credits is None else row.credits
    against = (parts < 0).any(axis=0)
    if not against.any():
        return row, 0
    kept = np.maximum(parts, 0)
    credits = None if row.credits is None else kept
    turns = len(np.unique(row.segments[against]))
    return replace(row, advantages=kept.sum(axis=0), credits=credits), turns
