"""What each token and turn of recorded debates earned, in characters of their texts.

`tokens/step-N.json` holds it for the debates of that step's transcripts, in their order, so that a
reader needs no tokenizer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debate_protocol.types import Transcript, Turn
from debate_rewards.credits import Score
from debate_train.batches.row_types import Batch, Row
from debate_train.batches.rows import reply_text
from debate_train.checkpointing.whole_files import write_whole
from debate_train.run_files.collected_files import plain, written

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from debate_train.run_files.run_directory import RunDirectory

SCHEMA = "debate-credit/1"


def credit_of(
    transcripts: Sequence[Transcript],
    scores: Sequence[Score],
    batch: Batch,
    tokenizer: "PreTrainedTokenizerFast",
    *,
    demonstrated: bool,
) -> dict[str, object]:
    """Return what the tokens and turns of a step's first debates earned.

    Args:
        transcripts: The first of the step, whose turns hold their replies.
        scores: Theirs.
        batch: The rows of the whole step.
        tokenizer: The one that replies were sampled with.
        demonstrated: Whether a script wrote them in the place of the policy.

    Returns:
        `streams`, their names, and `debates`, each with `id`, `returns` of its agents and `turns`.
        A turn has `agent`, `round`, `values` (by stream, of mixed rewards by `stream/component`),
        `starts` (where in the text of the turn each token begins) and `tokens`, runs of [how many
        tokens, their advantage, bits of the streams that cover them]; of a turn without a row
        both are empty.
    """
    rows: dict[int, list[Row]] = {}
    for row in batch.rows:
        rows.setdefault(row.debate, []).append(row)
    debates = [
        {
            "id": transcript.id,
            "returns": [_short(value) for value in score.agents],
            "turns": [
                _turn(turn, score, rows.get(place, ()), tokenizer)
                for turn in transcript.turns
                if turn.reply is not None
            ],
        }
        for place, (transcript, score) in enumerate(zip(transcripts, scores, strict=True))
    ]
    return {
        "schema": SCHEMA,
        "demonstrated": demonstrated,
        "streams": list(batch.streams),
        "debates": debates,
    }


def write_credit(directory: "RunDirectory", step: int, credit: Mapping[str, object]) -> Path:
    """Write what `credit_of` found to `tokens/step-<step>.json` of a run."""
    path = directory.tokens_path / f"step-{step}.json"
    with written(path):
        write_whole(path, json.dumps(plain(credit), separators=(",", ":")).encode())
        directory.note_record(path)
    return path


def read_credit(path: Path) -> dict[str, Any]:
    """Return what `credit_of` found; nothing where there is no such file, or another one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else {}


def _turn(
    turn: Turn, score: Score, rows: Sequence[Row], tokenizer: "PreTrainedTokenizerFast"
) -> dict[str, object]:
    assert turn.reply is not None
    values: dict[str, float | None] = {}
    for credit in score.credits:
        if (credit.agent, credit.round) == turn.key and credit.span is None:
            values["/".join(filter(None, (credit.stream, credit.component)))] = _short(credit.value)
    runs = next(_runs(turn, rows), [])
    starts = list(reply_text(turn.reply, tokenizer).starts) if runs else []
    return {
        "agent": turn.agent,
        "round": turn.round,
        "values": {name: value for name, value in values.items() if value is not None},
        "starts": starts,
        "tokens": runs,
    }


def _runs(turn: Turn, rows: Sequence[Row]) -> Iterator[list[list[float | int | None]]]:
    """Yield the runs of equal credit of the row whose segment holds the tokens of this turn."""
    assert turn.reply is not None
    sampled = list(turn.reply.token_ids)
    for row in rows:
        for segment in range(1, int(row.segments.max(initial=0)) + 1) if sampled else ():
            own = row.segments == segment
            if row.agent == turn.agent and row.tokens[own].tolist() == sampled:
                pairs = zip(row.advantages[own].tolist(), row.streams[own].tolist(), strict=True)
                yield [
                    [len(list(run)), _short(advantage), bits]
                    for (advantage, bits), run in groupby(pairs)
                ]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
