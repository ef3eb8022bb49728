"""Which token of a turn gets which advantage.

Of the advantage of a token (docs/notation.md) it multiplies in x_s, the weight of its section.
Offsets come from the bytes of the sampled ids, so that a token belongs to the section that holds
its first byte, however text was split into tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from debate_protocol.parsing import Parsed, get_contract
from debate_protocol.types import Transcript, Turn, parse_turn, turn_failed
from debate_rollout.rendering import TokenText
from debate_train.advantages import Advantage, Stream

WHOLE = "solution"
"""The section of every token of a turn that has no sections, or failed."""


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """The tokens of a turn as credit reads them: where they start, and in which section.

    The value of a `failed` turn holds for all its tokens, whatever sections its stream names.
    """

    text: TokenText
    sections: Sequence[str]
    failed: bool = False


def turn_tokens(transcript: Transcript, turn: Turn, text: TokenText) -> TurnTokens:
    """Return the tokens of a turn with their sections."""
    parsed = parse_turn(transcript, turn)
    failed = turn.failure is not None or (parsed.answer is None and turn_failed(transcript, turn))
    contract = get_contract(transcript.protocol.contract)
    return TurnTokens(text, token_sections(text, parsed, contract.answer_section or WHOLE), failed)


def section_ends(parsed: Parsed, whole: str = WHOLE) -> list[tuple[int, str]]:
    """Return (end, section) in text order: the sections as they divide the whole turn.

    Text before a section joins it; what follows the last section joins that one.
    """
    found = sorted((s.outer, name) for name, s in parsed.sections.items())
    ends = [(outer[1], name) for outer, name in found]
    last = ends.pop()[1] if ends else whole
    return [*ends, (np.iinfo(np.int64).max, last)]


def token_sections(text: TokenText, parsed: Parsed, whole: str = WHOLE) -> list[str]:
    """Return the section of each token, in order.

    A turn without a readable answer has failed: all its tokens count as `whole`, the section
    that should hold the answer.
    """
    if parsed.answer is None:
        return [whole] * len(text.starts)
    ends = section_ends(parsed, whole)
    bounds = [end for end, _ in ends[:-1]]
    where = np.searchsorted(bounds, np.asarray(text.starts), side="right")
    return [ends[i][1] for i in where]


def stream_credit(
    turn: TurnTokens, advantages: Sequence[Advantage], streams: Mapping[str, Stream]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return what each stream gives to and covers of the tokens of one turn.

    A value counts with the weight that its stream gives to the section of the token. A span's
    also reaches sections that the stream does not name, with weight 1, as the span says itself
    where it belongs.

    A span holds the tokens whose first character that is no space it holds.

    Args:
        turn: the turn's tokens with their offsets and sections.
        advantages: the turn's; of a component's spans that hold a token the shortest speaks.
        streams: the streams of the batch, in order.

    Returns:
        advantages (S, T), unweighted by λ, and coverage (S, T): the stream's sections, and all
        tokens of a failed turn in streams that have a value for it.
    """
    has_spans = any(advantage.span is not None for advantage in advantages)
    starts = np.asarray(_word_starts(turn.text) if has_spans else turn.text.starts)
    values = np.zeros((len(streams), len(starts)), np.float32)
    covers = np.zeros((len(streams), len(starts)), bool)
    for s, (name, stream) in enumerate(streams.items()):
        own = [a for a in advantages if a.stream == name]
        weight_T, span_weight_T = _section_weights(turn, name, stream, has_value=bool(own))
        covers[s] = weight_T != 0
        for component in dict.fromkeys(a.component for a in own):
            value_T = np.zeros(len(starts), np.float32)
            for advantage in sorted(
                (a for a in own if a.component == component), key=lambda a: -_length(a)
            ):
                if advantage.span is None:
                    value_T[:] = advantage.value * weight_T
                    continue
                start, end = advantage.span
                everywhere = start <= 0 and end >= len(turn.text.text)
                inside = (starts >= start) & (starts < end) | everywhere
                value_T[inside] = advantage.value * span_weight_T[inside]
                covers[s] |= inside & (span_weight_T != 0)
            values[s] += value_T
    return values, covers


def _word_starts(text: TokenText) -> list[int]:
    """Return where each token's first character stands that is no space; by it spans hold tokens.

    Words of most vocabularies begin with the space in front of them, spans of lines behind it.
    """
    ends = [*text.starts[1:], len(text.text)]
    found = []
    for start, end in zip(text.starts, ends, strict=True):
        spaces = len(text.text[start:end]) - len(text.text[start:end].lstrip(" "))
        found.append(start + spaces if start + spaces < end else start)
    return found


def _section_weights(
    turn: TurnTokens, name: str, stream: Stream, has_value: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return what each token counts, shape (T,), for the turn's own value and for its spans."""
    if turn.failed and has_value:
        ones_T = np.ones(len(turn.text.starts), np.float32)
        return ones_T, ones_T
    named = {section: stream.section_weight(name, section) for section in set(turn.sections)}
    outside = {section: 0.0 if weight is None else weight for section, weight in named.items()}
    inside = {section: 1.0 if weight is None else weight for section, weight in named.items()}
    weight_T, span_weight_T = (
        np.array([weights[section] for section in turn.sections], np.float32)
        for weights in (outside, inside)
    )
    return weight_T, span_weight_T


def _length(advantage: Advantage) -> float:
    if advantage.span is None:
        return float("inf")
    return advantage.span[1] - advantage.span[0]
