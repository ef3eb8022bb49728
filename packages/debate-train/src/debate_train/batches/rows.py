"""From transcripts and advantages to rows of tokens.

Of the factors of a token's advantage (docs/tokens.md), λ_s and x_s enter here. Turns of an agent
share a row while each prompt extends the last; the text shown in between has mask 0. Any other
prompt starts a new row.
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

WHOLE = "solution"
"""The section of every token of a turn that has no sections, or failed."""
_END_OF_TEXT = np.iinfo(np.int64).max

Run = tuple[int, float, int]
"""Number of successive tokens, their advantage, and bits of the streams that cover them."""


@dataclass(frozen=True, slots=True)
class _TurnCredit:
    """Credits of the A tokens of a turn's reply, before λ, from each of S streams."""

    turn: Turn
    values_SA: Floats
    covers_SA: NDArray[np.bool_]
    adapter: str | None


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """The tokens of a turn as credit reads them: their text offsets and their sections.

    All tokens of a `failed` turn get the turn's value, regardless of sections.
    """

    text: TokenText
    sections: Sequence[str]
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """Results of a step. `number` counts from 0 over the whole run."""

    number: int
    transcripts: Sequence[Transcript]
    scores: Sequence[Score]
    batch: Batch
    metrics: dict[str, float]
    baselines: Baselines = field(default_factory=dict)
    """The running baselines after this step."""
    began: float = 0.0
    """Start of the step in seconds of `time.perf_counter`."""


def build_batch(
    transcripts: Sequence[Transcript],
    advantages: Sequence[TurnAdvantages],
    streams: Mapping[str, Stream],
    tokenizer: "PreTrainedTokenizerFast",
    seed: int = 0,
) -> Batch:
    """Build the rows of some debates.

    Args:
        transcripts: fresh transcripts with replies in their turns.
        advantages: advantages of each transcript's turns.
        streams: the recipe's; streams of weight 0 are left out.
        tokenizer: the tokenizer of the sampled replies.
        seed: seed of the batch.
    """
    trained_streams = {name: stream for name, stream in streams.items() if stream.weight != 0}
    stream_weights = np.array([stream.weight for stream in trained_streams.values()], np.float32)
    rows: list[Row] = []
    num_sampled = 0
    num_turns = 0
    # Rows whose first prompts are equal form a group, as in group-relative advantages.
    groups: dict[tuple[str, tuple[int, ...]], int] = {}
    debates = zip(transcripts, advantages, strict=True)
    for debate, (transcript, debate_advantages) in enumerate(debates):
        for agent_turns in _turns_by_agent(transcript):
            first_reply = agent_turns[0].reply
            assert first_reply is not None
            prompt = (transcript.question.id, first_reply.prompt_ids)
            group = groups.setdefault(prompt, len(groups))
            for row_turns in _split_into_rows(agent_turns):
                credits = []
                for turn in row_turns:
                    turn_advantages = debate_advantages.get(turn.key, [])
                    credits.append(
                        _turn_credit(transcript, turn, turn_advantages, trained_streams, tokenizer)
                    )
                row = _build_row(credits, debate, group, stream_weights)
                rows.append(row)
                num_sampled += len(row.sampled_positions)
                num_turns += len(row_turns)
    return Batch(
        rows=tuple(rows),
        streams=tuple(trained_streams),
        sampled_tokens=num_sampled,
        turns=num_turns,
        seed=seed,
    )


def _turns_by_agent(transcript: Transcript) -> list[list[Turn]]:
    """Select the turns to train on, by agent, without frozen roles."""
    by_agent: dict[int, list[Turn]] = {}
    for turn in transcript.turns:
        if not is_trained_on(transcript.protocol, turn.agent):
            continue
        if turn.reply is not None and turn.reply.token_ids:
            by_agent.setdefault(turn.agent, []).append(turn)
    return list(by_agent.values())


def _split_into_rows(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Divide an agent's turns where a prompt does not begin with the last prompt and reply.

    Token ids are compared, not texts: the row is scored as the engine sampled it.
    """
    rows: list[list[Turn]] = []
    prefix: tuple[int, ...] = ()
    for turn in turns:
        assert turn.reply is not None
        if rows and turn.reply.prompt_ids[: len(prefix)] == prefix:
            rows[-1].append(turn)
        else:
            rows.append([turn])
        prefix = turn.reply.prompt_ids + turn.reply.token_ids
    return rows


def _turn_credit(
    transcript: Transcript,
    turn: Turn,
    advantages: Sequence[Advantage],
    streams: Mapping[str, Stream],
    tokenizer: "PreTrainedTokenizerFast",
) -> _TurnCredit:
    assert turn.reply is not None
    text = reply_text(turn.reply, tokenizer)
    tokens = turn_tokens(transcript, turn, text)
    values_SA, covers_SA = stream_credit(tokens, advantages, streams)
    return _TurnCredit(
        turn=turn,
        values_SA=values_SA,
        covers_SA=covers_SA,
        adapter=role_of(transcript.protocol, turn.agent).adapter,
    )


def reply_text(reply: Reply, tokenizer: "PreTrainedTokenizerFast") -> TokenText:
    """Read the text and token starts from a reply; decode a reply without starts."""
    if len(reply.starts) == len(reply.token_ids):
        return TokenText(reply.text, reply.starts)
    return token_text(tokenizer, reply.token_ids)


def _build_row(
    credits: Sequence[_TurnCredit], debate: int, group: int, stream_weights: Floats
) -> Row:
    replies = [credit.turn.reply for credit in credits if credit.turn.reply is not None]
    positions = []
    sampler_logps = []
    versions = []
    for reply in replies:
        num_tokens = len(reply.token_ids)
        start = len(reply.prompt_ids)
        positions.append(np.arange(start, start + num_tokens, dtype=np.int32))
        # Replies of imported transcripts have no log-probabilities.
        sampler_logps.append(reply.logps or np.zeros(num_tokens))
        # Weights may be updated while an engine samples; spans have those tokens' versions.
        reply_versions = np.full(num_tokens, reply.weight_version, dtype=np.int64)
        for version, first, end in reply.version_spans:
            reply_versions[first:end] = version
        versions.append(reply_versions)

    lengths = [len(reply.token_ids) for reply in replies]
    temperatures = [reply.temperature for reply in replies]
    segments = np.arange(1, len(credits) + 1)
    covers_SA = np.concatenate([credit.covers_SA for credit in credits], axis=1)
    values_SA = np.concatenate([credit.values_SA for credit in credits], axis=1)
    credits_SA = stream_weights[:, None] * values_SA
    # Booleans times powers of 2: bit s of the product says whether stream s covers the token.
    stream_bits = 1 << np.arange(len(credits_SA))
    arrays: dict[str, Any] = {
        "advantages": credits_SA.sum(axis=0),
        "sampler_logps": np.concatenate(sampler_logps),
        "temperatures": np.repeat(temperatures, lengths),
        "streams": stream_bits @ covers_SA,
        "versions": np.concatenate(versions),
        "segments": np.repeat(segments, lengths),
    }
    for name, values in arrays.items():
        _, _, row_dtype = PER_TOKEN[name]
        arrays[name] = values.astype(row_dtype)
    # The last prompt contains all prompts and replies before it.
    last_reply = replies[-1]
    return Row(
        tokens=np.array(last_reply.prompt_ids + last_reply.token_ids, np.int32),
        sampled_positions=np.concatenate(positions),
        **arrays,
        agent=credits[0].turn.agent,
        debate=debate,
        group=group,
        adapter=credits[0].adapter,
        credits=credits_SA,
    )


def earned(turn: Turn, score: Score, rows: Sequence[Row]) -> tuple[dict[str, float], list[Run]]:
    """Collect a turn's credits, and runs of tokens with equal advantage.

    Args:
        turn: a turn of the debate.
        score: the debate's.
        rows: the debate's rows.

    Returns:
        Credits of the turn as a whole, keyed by stream or, for mixed rewards, by
        `stream/component`; and runs of tokens, an empty list for a turn that is not trained on.
    """
    values = {}
    for credit in score.credits:
        if (credit.agent, credit.round) != turn.key:
            continue
        if credit.span is None and credit.value is not None:
            name = credit.stream
            if credit.component:
                name = f"{credit.stream}/{credit.component}"
            values[name] = credit.value
    if turn.reply is None or not turn.reply.token_ids:
        return values, []
    token_ids = list(turn.reply.token_ids)
    agent_rows = [row for row in rows if row.agent == turn.agent]
    for row in agent_rows:
        num_segments = int(row.segments.max(initial=0))
        for segment in range(1, num_segments + 1):
            in_segment = row.segments == segment
            # Rows know no rounds, so the turn is recognized by its tokens.
            if row.tokens[row.sampled_positions[in_segment]].tolist() != token_ids:
                continue
            advantages = row.advantages[in_segment].tolist()
            streams = row.streams[in_segment].tolist()
            per_token = zip(advantages, streams, strict=True)
            runs = []
            for (advantage, bits), tokens in groupby(per_token):
                num_tokens = len(list(tokens))
                runs.append((num_tokens, advantage, bits))
            return values, runs
    return values, []


def turn_tokens(transcript: Transcript, turn: Turn, text: TokenText) -> TurnTokens:
    """Find the sections of a turn's tokens."""
    parsed = parse_turn(transcript, turn)
    contract = transcript.protocol.contract_of(turn.round)
    lacks_sections = bool(contract.sections) and not parsed.sections
    lacks_answer = parsed.answer is None and turn_failed(transcript, turn)
    return TurnTokens(
        text=text,
        sections=token_sections(
            text,
            parsed,
            contract.answer_section or WHOLE,
            needs_answer=contract.answers,
        ),
        failed=lacks_sections or turn.failure is not None or lacks_answer,
    )


def section_ends(parsed: Parsed, default_section: str = WHOLE) -> list[tuple[int, str]]:
    """Divide a turn's whole text into sections, as (end, section) in text order.

    Text before a section belongs to it; text after the last section belongs to the last.
    """
    by_position = sorted((section.outer, name) for name, section in parsed.sections.items())
    if not by_position:
        return [(_END_OF_TEXT, default_section)]
    ends = [(outer[1], name) for outer, name in by_position]
    _, last_name = ends[-1]
    ends[-1] = (_END_OF_TEXT, last_name)
    return ends


def token_sections(
    text: TokenText, parsed: Parsed, default_section: str = WHOLE, *, needs_answer: bool = True
) -> list[str]:
    """Find the section of each token, in order.

    A turn without a needed answer has failed: all tokens count as `default_section`, the section
    that should hold the answer.
    """
    if parsed.answer is None and (needs_answer or not parsed.sections):
        return [default_section] * len(text.starts)
    ends = section_ends(parsed, default_section)
    inner_ends = [end for end, _ in ends[:-1]]
    # "right": a token that starts where a section ends is the next section's.
    section_of_token = np.searchsorted(inner_ends, np.asarray(text.starts), side="right")
    return [ends[index][1] for index in section_of_token]


def stream_credit(
    turn: TurnTokens, advantages: Sequence[Advantage], streams: Mapping[str, Stream]
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Compute the advantage of each token of a turn in each stream.

    The turn's value counts with the stream's weight of the token's section. A span's value also
    reaches sections without a weight in the stream, with weight 1, because the span locates itself.
    A span holds the tokens whose first non-space character it contains.

    Args:
        turn: the turn's tokens with their offsets and sections.
        advantages: the turn's; where spans of a component overlap, the shortest counts.
        streams: the streams of the batch, in order.

    Returns:
        advantages (S, T), unweighted by λ, and coverage (S, T): the stream's sections, and all
        tokens of a failed turn in streams with a value for it.
    """
    has_spans = any(advantage.span is not None for advantage in advantages)
    # Only spans need the words' starts, which take a pass over the text.
    starts = _word_starts(turn.text) if has_spans else turn.text.starts
    starts_T = np.asarray(starts)
    num_tokens = len(starts_T)
    values_ST = np.zeros((len(streams), num_tokens), np.float32)
    covers_ST = np.zeros((len(streams), num_tokens), bool)
    for number, (name, stream) in enumerate(streams.items()):
        in_stream = [advantage for advantage in advantages if advantage.stream == name]
        weight_T, span_weight_T = _section_weights(turn, name, stream, has_value=bool(in_stream))
        covers_ST[number] = weight_T != 0
        for component in dict.fromkeys(advantage.component for advantage in in_stream):
            in_component = [a for a in in_stream if a.component == component]
            # Longest first: the turn's own value, then ever shorter spans; each replaces
            # the longer ones' values on its tokens. Components add up.
            in_component.sort(key=lambda advantage: -_span_length(advantage))
            value_T = np.zeros(num_tokens, np.float32)
            for advantage in in_component:
                if advantage.span is None:
                    value_T[:] = advantage.value * weight_T
                    continue
                start, end = advantage.span
                is_inside_T = (starts_T >= start) & (starts_T < end)
                # A span over the whole text also holds tokens without text at its end.
                if start <= 0 and end >= len(turn.text.text):
                    is_inside_T[:] = True
                value_T[is_inside_T] = advantage.value * span_weight_T[is_inside_T]
                covers_ST[number] |= is_inside_T & (span_weight_T != 0)
            values_ST[number] += value_T
    return values_ST, covers_ST


def _word_starts(text: TokenText) -> list[int]:
    """Find the first non-space character of each token.

    Words of most vocabularies begin with the space in front of them, spans of lines behind it.
    """
    ends = [*text.starts[1:], len(text.text)]
    word_starts = []
    for start, end in zip(text.starts, ends, strict=True):
        token = text.text[start:end]
        word_start = start + len(token) - len(token.lstrip(" "))
        # A token of spaces alone keeps its start.
        word_starts.append(word_start if word_start < end else start)
    return word_starts


def _section_weights(
    turn: TurnTokens, name: str, stream: Stream, has_value: bool
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Look up the weight of each token, shape (T,), for the turn's value and for its spans'."""
    if turn.failed and has_value:
        ones_T = np.ones(len(turn.text.starts), np.float32)
        return ones_T, ones_T
    section_weights = stream.section_weights(name, set(turn.sections))
    weights = []
    span_weights = []
    for section in turn.sections:
        weight = section_weights[section]
        # None: a section that the stream does not name.
        weights.append(0.0 if weight is None else weight)
        span_weights.append(1.0 if weight is None else weight)
    return np.array(weights, np.float32), np.array(span_weights, np.float32)


def _span_length(advantage: Advantage) -> float:
    if advantage.span is None:
        return float("inf")
    start, end = advantage.span
    return end - start
