"""From transcripts and advantages to rows of tokens.

Of the advantage of a token (docs/notation.md) it multiplies in λ_s, the weight of its stream.
Turns of one agent whose prompts extend each other share one row: what the agent was shown in
between is there with mask 0. A turn whose prompt does not extend the last one starts a new row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from debate_protocol.parsing import Parsed
from debate_protocol.types import (
    Reply,
    Transcript,
    Turn,
    is_trained_on,
    parse_turn,
    role_of,
    turn_failed,
)
from debate_rewards.reward import Score
from debate_rollout.rendering import TokenText, token_text
from debate_train.advantages import Advantage, Baselines, Stream, TurnAdvantages
from debate_train.batches.row_types import Batch, Floats, Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["build_batch"]


@dataclass(frozen=True, slots=True)
class _Piece:
    """The tokens one turn adds to its row: what the agent was shown, then its reply."""

    turn: Turn
    shown: tuple[int, ...]
    values: Floats
    """(S, T) of the reply's tokens."""
    covers: NDArray[np.bool_]
    adapter: str | None


def build_batch(
    transcripts: Sequence[Transcript],
    advantages: Sequence[TurnAdvantages],
    streams: Mapping[str, Stream],
    tokenizer: "PreTrainedTokenizerFast",
    seed: int = 0,
) -> Batch:
    """Return the rows of these debates.

    Args:
        transcripts: fresh ones, whose turns hold their replies.
        advantages: of each transcript's turns.
        streams: the recipe's; those of weight 0 are left out.
        tokenizer: the one that the replies were sampled with.
        seed: of the batch.
    """
    used = {name: stream for name, stream in streams.items() if stream.weight != 0}
    chains: list[tuple[int, int, list[_Piece]]] = []
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    for debate, (transcript, found) in enumerate(zip(transcripts, advantages, strict=True)):
        for turns in _turns_by_agent(transcript):
            pieces: list[_Piece] = []
            assert turns[0].reply is not None
            prompt = (transcript.question.id, turns[0].reply.prompt_ids)
            group = groups.setdefault(prompt, len(groups))
            for turn in turns:
                news = _news(pieces[-1].turn, turn) if pieces else None
                if pieces and news is None:
                    chains.append((debate, group, pieces))
                    pieces = []
                own = found.get(turn.key, [])
                pieces.append(_piece(transcript, turn, news, own, used, tokenizer))
            chains.append((debate, group, pieces))
    weights = np.array([stream.weight for stream in used.values()], np.float32)
    rows = tuple(_row(chain, debate, group, weights) for debate, group, chain in chains)
    pieces = [piece for _, _, chain in chains for piece in chain]
    sampled = sum(piece.covers.shape[1] for piece in pieces)
    return Batch(rows, tuple(used), sampled, len(pieces), seed)


def _turns_by_agent(transcript: Transcript) -> list[list[Turn]]:
    """Return the turns to train on by agent: none of roles that stay as they are."""
    by_agent: dict[int, list[Turn]] = {}
    for turn in transcript.turns:
        if not is_trained_on(transcript.protocol, turn.agent):
            continue
        if turn.reply is not None and turn.reply.token_ids:
            by_agent.setdefault(turn.agent, []).append(turn)
    return list(by_agent.values())


def _news(previous: Turn, turn: Turn) -> tuple[int, ...] | None:
    """Return what this prompt adds to the last prompt and reply, None if it starts a new row."""
    assert previous.reply is not None and turn.reply is not None
    said = previous.reply.prompt_ids + previous.reply.token_ids
    prompt = turn.reply.prompt_ids
    return prompt[len(said) :] if prompt[: len(said)] == said else None


def _piece(
    transcript: Transcript,
    turn: Turn,
    news: tuple[int, ...] | None,
    advantages: Sequence[Advantage],
    streams: Mapping[str, Stream],
    tokenizer: "PreTrainedTokenizerFast",
) -> _Piece:
    assert turn.reply is not None
    text = reply_text(turn.reply, tokenizer)
    values, covers = stream_credit(turn_tokens(transcript, turn, text), advantages, streams)
    adapter = role_of(transcript.protocol, turn.agent).adapter
    return _Piece(turn, turn.reply.prompt_ids if news is None else news, values, covers, adapter)


def reply_text(reply: Reply, tokenizer: "PreTrainedTokenizerFast") -> TokenText:
    """Return the decoded reply as its engine found it; decode it where that did not say."""
    if len(reply.starts) == len(reply.token_ids):
        return TokenText(reply.text, reply.starts)
    return token_text(tokenizer, reply.token_ids)


Run = tuple[int, float, int]
"""How many tokens one after the other, their advantage, and bits of the streams that cover them."""


def earned(turn: Turn, score: Score, rows: Sequence[Row]) -> tuple[dict[str, float], list[Run]]:
    """Return what a turn as a whole got, and its tokens in runs of equal credit, of `rows`.

    Values are by stream, those of mixed rewards by `stream/component`; of a turn that is not
    trained on there are no runs.
    """
    values = {
        "/".join(filter(None, (one.stream, one.component))): one.value
        for one in score.credits
        if (one.agent, one.round) == turn.key and one.span is None and one.value is not None
    }
    sampled = [] if turn.reply is None else list(turn.reply.token_ids)
    for row in rows:
        for segment in range(1, int(row.segments.max(initial=0)) + 1) if sampled else ():
            own = row.segments == segment
            if row.agent == turn.agent and row.tokens[own].tolist() == sampled:
                pairs = zip(row.advantages[own].tolist(), row.streams[own].tolist(), strict=True)
                return values, [(len(list(same)), *pair) for pair, same in groupby(pairs)]
    return values, []


def _row(chain: Sequence[_Piece], debate: int, group: int, stream_weights: Floats) -> Row:
    parts: dict[str, list[NDArray[np.generic]]] = {name: [] for name in PER_TOKEN}
    credits: list[Floats] = []
    for number, piece in enumerate(chain, start=1):
        reply = piece.turn.reply
        assert reply is not None
        length, shown = len(reply.token_ids), len(piece.shown)
        own = stream_weights[:, None] * piece.values
        credits += [np.zeros((len(own), shown), np.float32), own]
        fields: dict[str, object] = {
            "tokens": reply.token_ids,
            "mask": np.ones(length),
            "advantages": own.sum(axis=0),
            "sampler_logps": reply.logps or np.zeros(length),
            "temperatures": np.full(length, reply.temperature),
            "streams": (1 << np.arange(len(own))) @ piece.covers,
            "versions": _versions(reply),
            "segments": np.full(length, number),
        }
        for name, (fill, dtype) in PER_TOKEN.items():
            before = piece.shown if name == "tokens" else np.full(shown, fill)
            parts[name] += [np.asarray(before, dtype), np.asarray(fields[name], dtype)]
    arrays: dict[str, Any] = {name: np.concatenate(found) for name, found in parts.items()}
    return Row(
        **arrays,
        agent=chain[0].turn.agent,
        debate=debate,
        group=group,
        adapter=chain[0].adapter,
        credits=np.concatenate(credits, axis=1),
    )


def _versions(reply: Reply) -> NDArray[np.int64]:
    """Return the weight version that sampled each token."""
    versions = np.full(len(reply.token_ids), reply.weight_version, dtype=np.int64)
    for version, start, end in reply.version_spans:
        versions[start:end] = version
    return versions


PER_TOKEN: Mapping[str, tuple[float, type[np.generic]]] = {
    "tokens": (0, np.int64),
    "mask": (0.0, np.float32),
    "advantages": (0.0, np.float32),
    "sampler_logps": (0.0, np.float32),
    "temperatures": (1.0, np.float32),
    "streams": (0, np.int64),
    "versions": (-1, np.int64),
    "segments": (0, np.int64),
}
"""Of each array of a row: the value on tokens that nobody sampled, and the type."""


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
    contract = transcript.protocol.contract_of(turn.round)
    whole = contract.answer_section or WHOLE
    return TurnTokens(text, token_sections(text, parsed, whole, owes=contract.answers), failed)


def section_ends(parsed: Parsed, whole: str = WHOLE) -> list[tuple[int, str]]:
    """Return (end, section) in text order: the sections as they divide the whole turn.

    Text before a section joins it; what follows the last section joins that one.
    """
    found = sorted((s.outer, name) for name, s in parsed.sections.items())
    ends = [(outer[1], name) for outer, name in found]
    last = ends.pop()[1] if ends else whole
    return [*ends, (np.iinfo(np.int64).max, last)]


def token_sections(
    text: TokenText, parsed: Parsed, whole: str = WHOLE, *, owes: bool = True
) -> list[str]:
    """Return the section of each token, in order.

    A turn without a readable answer has failed, if it owes one: all its tokens count as `whole`,
    the section that should hold the answer.
    """
    if parsed.answer is None and (owes or not parsed.sections):
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
    named = stream.section_weights(name, set(turn.sections))
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


@dataclass(frozen=True, slots=True)
class Step:
    """What one step left behind. `number` counts from 0 over the whole run."""

    number: int
    transcripts: Sequence[Transcript]
    scores: Sequence[Score]
    batch: Batch
    metrics: dict[str, float]
    baselines: Baselines = field(default_factory=dict)
    """The running baselines after this step."""
    began: float = 0.0
    """When it began, in seconds of `time.perf_counter`."""
