"""From transcripts and advantages to rows of tokens.

Of the advantage of a token (docs/notation.md) it multiplies in λ_s, the weight of its stream.
Turns of one agent whose prompts extend each other share one row: what the agent was shown in
between is there with mask 0. A turn whose prompt does not extend the last one starts a new row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from debate_protocol.types import Reply, Transcript, Turn, is_trained_on, role_of
from debate_rollout.token_text import TokenText, token_text
from debate_train.advantages import Advantage, Stream, TurnAdvantages
from debate_train.batches.row_types import Batch, Floats, Row
from debate_train.batches.token_credit import stream_credit, turn_tokens

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
    tokenizer: PreTrainedTokenizerFast,
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
    return _assemble(chains, used, seed)


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
    tokenizer: PreTrainedTokenizerFast,
) -> _Piece:
    assert turn.reply is not None
    text = reply_text(turn.reply, tokenizer)
    values, covers = stream_credit(turn_tokens(transcript, turn, text), advantages, streams)
    adapter = role_of(transcript.protocol, turn.agent).adapter
    return _Piece(turn, turn.reply.prompt_ids if news is None else news, values, covers, adapter)


def reply_text(reply: Reply, tokenizer: PreTrainedTokenizerFast) -> TokenText:
    """Return the decoded reply as its engine found it; decode it where that did not say."""
    if len(reply.starts) == len(reply.token_ids):
        return TokenText(reply.text, reply.starts)
    return token_text(tokenizer, reply.token_ids)


def _assemble(
    chains: Sequence[tuple[int, int, list[_Piece]]],
    streams: Mapping[str, Stream],
    seed: int,
) -> Batch:
    weights = np.array([stream.weight for stream in streams.values()], np.float32)
    rows = tuple(_row(chain, debate, group, weights) for debate, group, chain in chains)
    pieces = [piece for _, _, chain in chains for piece in chain]
    sampled = sum(piece.covers.shape[1] for piece in pieces)
    return Batch(rows, tuple(streams), sampled, len(pieces), seed)


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
