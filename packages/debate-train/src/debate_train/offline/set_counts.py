"""What is counted and measured while a set of examples is made, batch by batch of questions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from debate_protocol.types import Transcript
from debate_train.offline.composition import composition
from debate_train.offline.offline_set import Taken


def counted(taken: Taken, held_out: Taken, transcripts: Sequence[Transcript]) -> dict[str, Any]:
    """Return the counts of a chunk, and all values of its measures.

    Args:
        taken: What is learned from.
        held_out: What is not; its states are measured all the same.
        transcripts: The debates of both.
    """
    counts = Counter(taken.counts)
    counts["held_out"] = len(held_out.examples)
    counts["debates"] = len(transcripts)
    found = [turn.token_counts for x in transcripts for turn in x.sampled_turns()]
    counts["sampled_tokens"] = sum(n[1] for n in found if n is not None)
    measures: dict[str, list[float]] = {}
    for part in (taken, held_out):
        for name, values in part.measures.items():
            measures.setdefault(name, []).extend(values)
    return {"counts": dict(counts), "measures": measures}


def summed(chunks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the counts of all chunks, of each measure its mean and standard error, and how pairs
    split into right and wrong.
    """
    counts: Counter[str] = Counter()
    measures: dict[str, list[float]] = {}
    for chunk in chunks:
        counts.update(chunk["counts"])
        for name, values in chunk["measures"].items():
            measures.setdefault(name, []).extend(values)
    found = {f"offline/{name}": float(count) for name, count in sorted(counts.items())}
    for name, values in measures.items():
        found[f"offline/{name}"] = fmean(values)
        if len(values) > 1:
            found[f"offline/{name}_standard_error"] = stdev(values) / len(values) ** 0.5
    return found | composition(row for chunk in chunks for row in chunk["examples"])
