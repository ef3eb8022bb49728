"""Pairs of questions that a phase never learns from, and whether it prefers as they do."""

import zlib
from collections.abc import Iterable, Sequence

from debate_protocol.types import Question, Transcript
from debate_rewards.metrics.intervals import bootstrap_interval
from debate_train.offline.example import Example

_NAMES = ("", "_low", "_high")


def is_held_out(question: Question, share: float, seed: int) -> bool:
    """Return whether the pairs of a question are held out.

    It follows from the recipe's seed and the question's text alone: all phases of a run hold out
    the same questions.
    """
    return zlib.crc32(f"{seed}/held_out/{question.text}".encode()) / 2**32 < share


def parted(
    transcripts: Iterable[Transcript], share: float, seed: int
) -> tuple[list[Transcript], list[Transcript]]:
    """Return the debates to learn from, and those of questions that are held out."""
    parts: tuple[list[Transcript], list[Transcript]] = ([], [])
    for one in transcripts:
        parts[is_held_out(one.question, share, seed)].append(one)
    return parts


def held_out_accuracies(
    pairs: Sequence[Example], before: Sequence[float], after: Sequence[float]
) -> dict[str, float]:
    """Return how a phase has come to prefer on pairs that it did not learn from.

    `preference_accuracy` is the share of pairs whose chosen reply has gained more log-probability
    since the phase's start than the rejected one: those with a positive margin of implicit rewards,
    whatever β is. `likelihood_accuracy` is the share whose chosen reply is the likelier of the two,
    `likelihood_accuracy_before` the same at the phase's start. Each is a mean over questions of
    their pairs' mean, with a 95 % interval that resamples questions.

    Args:
        pairs: One or more.
        before: log p at the phase's start of each pair's chosen and rejected reply, in turn.
        after: The same at its end.
    """
    gains = [now - then for now, then in zip(after, before, strict=True)]
    parts = {
        "preference_accuracy": gains,
        "likelihood_accuracy": after,
        "likelihood_accuracy_before": before,
    }
    questions = [str(pair.meta.get("question", n)) for n, pair in enumerate(pairs)]
    found = {"pairs": float(len(pairs)), "questions": float(len(set(questions)))}
    for name, values in parts.items():
        by_question: dict[str, list[bool]] = {}
        for n, question in enumerate(questions):
            by_question.setdefault(question, []).append(values[2 * n] > values[2 * n + 1])
        means = [sum(hits) / len(hits) for hits in by_question.values()]
        interval = bootstrap_interval(means, within=(0.0, 1.0))
        found |= {f"{name}{end}": value for end, value in zip(_NAMES, interval, strict=True)}
    return {f"held_out/{name}": value for name, value in found.items()}
