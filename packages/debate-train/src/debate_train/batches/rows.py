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
from debate_train.batches.row_types import PER_TOKEN, Batch, Floats, Row

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["build_batch"]


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one turn adds to its row."""

    turn: Turn
    values: Floats
    """(S, A) of the reply's tokens."""
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
                if pieces and not _goes_on(pieces[-1].turn, turn):
                    chains.append((debate, group, pieces))
                    pieces = []
                own = found.get(turn.key, [])
                pieces.append(_piece(transcript, turn, own, used, tokenizer))
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


def _goes_on(previous: Turn, turn: Turn) -> bool:
    """Return whether this prompt begins with the last prompt and reply, else it starts a row."""
    assert previous.reply is not None and turn.reply is not None
    said = previous.reply.prompt_ids + previous.reply.token_ids
    return turn.reply.prompt_ids[: len(said)] == said


def _piece(
    transcript: Transcript,
    turn: Turn,
    advantages: Sequence[Advantage],
    streams: Mapping[str, Stream],
    tokenizer: "PreTrainedTokenizerFast",
) -> _Piece:
    assert turn.reply is not None
    text = reply_text(turn.reply, tokenizer)
    values, covers = stream_credit(turn_tokens(transcript, turn, text), advantages, streams)
    adapter = role_of(transcript.protocol, turn.agent).adapter
    return _Piece(turn, values, covers, adapter)


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
            if row.agent == turn.agent and row.tokens[row.places[own]].tolist() == sampled:
                pairs = zip(row.advantages[own].tolist(), row.streams[own].tolist(), strict=True)
                return values, [(len(list(same)), *pair) for pair, same in groupby(pairs)]
    return values, []


def _row(chain: Sequence[_Piece], debate: int, group: int, stream_weights: Floats) -> Row:
    replies = [piece.turn.reply for piece in chain if piece.turn.reply is not None]
    lengths, last = [len(reply.token_ids) for reply in replies], replies[-1]
    covers = np.concatenate([piece.covers for piece in chain], axis=1)
    credits = stream_weights[:, None] * np.concatenate([piece.values for piece in chain], axis=1)
    runs = zip(replies, lengths, strict=True)
    arrays: dict[str, Any] = {
        "advantages": credits.sum(axis=0),
        "sampler_logps": np.concatenate([r.logps or np.zeros(n) for r, n in runs]),
        "temperatures": np.repeat([reply.temperature for reply in replies], lengths),
        "streams": (1 << np.arange(len(credits))) @ covers,
        "versions": np.concatenate([_versions(reply) for reply in replies]),
        "segments": np.repeat(np.arange(1, len(chain) + 1), lengths),
    }
    # The last prompt holds all that was shown and said before it.
    return Row(
        tokens=np.array(last.prompt_ids + last.token_ids, np.int32),
        places=np.concatenate([_places(reply) for reply in replies]),
        **{name: values.astype(PER_TOKEN[name][2]) for name, values in arrays.items()},
        agent=chain[0].turn.agent,
        debate=debate,
        group=group,
        adapter=chain[0].adapter,
        credits=credits,
    )


def _places(reply: Reply) -> NDArray[np.int32]:
    """Return where in its row each token of a reply stands."""
    shown = len(reply.prompt_ids)
    return np.arange(shown, shown + len(reply.token_ids), dtype=np.int32)


def _versions(reply: Reply) -> NDArray[np.int64]:
    """Return the weight version that sampled each token."""
    versions = np.full(len(reply.token_ids), reply.weight_version, dtype=np.int64)
    for version, start, end in reply.version_spans:
        versions[start:end] = version
    return versions


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
    contract = transcript.protocol.contract_of(turn.round)
    unread = bool(contract.sections) and not parsed.sections
    failed = unread or turn.failure is not None
    failed = failed or (parsed.answer is None and turn_failed(transcript, turn))
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
