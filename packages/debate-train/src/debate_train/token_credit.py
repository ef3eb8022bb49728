"""Which token of a turn gets which advantage.

Offsets come from the bytes of the sampled ids, so that a token belongs to the section that holds
its first byte, however text was split into tokens.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from debate_protocol.parsing import Parsed
from debate_rollout.token_text import TokenText
from debate_train.advantages import Advantage, Stream

WHOLE = "solution"
"""The section of every token of a turn that has no sections, or failed."""


def section_ends(parsed: Parsed) -> list[tuple[int, str]]:
    """Return (end, section) in text order: the sections as they divide the whole turn.

    Text before a section joins it; what follows the last section joins that one.
    """
    found = sorted((s.outer, name) for name, s in parsed.sections.items())
    ends = [(outer[1], name) for outer, name in found]
    last = ends.pop()[1] if ends else WHOLE
    return [*ends, (np.iinfo(np.int64).max, last)]


def token_sections(text: TokenText, parsed: Parsed) -> list[str]:
    """Return the section of each token, in order.

    A turn without a readable answer has failed: all its tokens count as `WHOLE`, so that the
    value of the failure reaches them all.
    """
    if parsed.answer is None:
        return [WHOLE] * len(text.starts)
    ends = section_ends(parsed)
    bounds = [end for end, _ in ends[:-1]]
    where = np.searchsorted(bounds, np.asarray(text.starts), side="right")
    return [ends[i][1] for i in where]


def stream_credit(
    text: TokenText,
    sections: Sequence[str],
    advantages: Sequence[Advantage],
    streams: Mapping[str, Stream],
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return what each stream gives to and covers of the tokens of one turn.

    Args:
        text: the turn's tokens with their offsets.
        sections: the section of each token.
        advantages: the turn's; of a component's spans that hold a token the shortest speaks.
        streams: the streams of the batch, in order.

    Returns:
        advantages (S, T), unweighted by λ, and coverage (S, T): the stream's sections.
    """
    starts = np.asarray(text.starts)
    values = np.zeros((len(streams), len(starts)), np.float32)
    covers = np.zeros((len(streams), len(starts)), bool)
    for s, (name, stream) in enumerate(streams.items()):
        weights = stream.section_weights(name)
        weight_T = np.array([weights.get(section, 0.0) for section in sections], np.float32)
        covers[s] = weight_T != 0
        own = [a for a in advantages if a.stream == name]
        for component in dict.fromkeys(a.component for a in own):
            value_T = np.zeros(len(starts), np.float32)
            for advantage in sorted(
                (a for a in own if a.component == component), key=lambda a: -_length(a)
            ):
                if advantage.span is None:
                    value_T[:] = advantage.value * weight_T
                    continue
                start, end = advantage.span
                everywhere = start <= 0 and end >= len(text.text)
                inside = (starts >= start) & (starts < end) | everywhere
                value_T[inside] = advantage.value
                covers[s] |= inside
            values[s] += value_T
    return values, covers


def _length(advantage: Advantage) -> float:
    if advantage.span is None:
        return float("inf")
    return advantage.span[1] - advantage.span[0]
