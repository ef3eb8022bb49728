"""Records of a run for the report: credit of tokens, and each evaluation's values and debates."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Transcript, Turn
from debate_report.debates import CREDIT_SCHEMA
from debate_rewards.reward import Score
from debate_train.batches.row_types import Batch, Row
from debate_train.batches.rows import earned, reply_text
from debate_train.checkpoints.run_directory import file_name, plain, write_json, written
from debate_train.checkpoints.whole_files import write_whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from debate_train.checkpoints.run_directory import RunDirectory
    from debate_train.evaluation.measuring import Measures

SCHEMA = "debate-values/2"


def credit_of(
    transcripts: Sequence[Transcript],
    scores: Sequence[Score],
    batch: Batch,
    tokenizer: "PreTrainedTokenizerFast",
    *,
    demonstrated: bool,
) -> dict[str, object]:
    """Collect the credit of the tokens and turns of a step's first debates.

    Args:
        transcripts: The first of the step, with the replies of their turns.
        scores: Scores of these transcripts.
        batch: The rows of the whole step.
        tokenizer: The sampling engine's tokenizer.
        demonstrated: Whether a script wrote the replies in the place of the policy.

    Returns:
        `streams`, their names, and `debates`, each with `id`, `returns` of its agents and `turns`.
        A turn has `agent`, `round`, `values` (by stream, of mixed rewards by `stream/component`),
        `starts` (offset of each token in the text of the turn) and `tokens`, runs of [number of
        tokens, their advantage, bits of their streams]; of a turn without a row
        both are empty.
    """
    rows_by_debate: dict[int, list[Row]] = {}
    for row in batch.rows:
        rows_by_debate.setdefault(row.debate, []).append(row)
    debates = []
    for index, (transcript, score) in enumerate(zip(transcripts, scores, strict=True)):
        rows = rows_by_debate.get(index, [])
        turns = [turn for turn in transcript.turns if turn.reply is not None]
        debates.append(
            {
                "id": transcript.id,
                "returns": [_round(value) for value in score.agents],
                "turns": [_turn_credit(turn, score, rows, tokenizer) for turn in turns],
            }
        )
    return {
        "schema": CREDIT_SCHEMA,
        "demonstrated": demonstrated,
        "streams": list(batch.streams),
        "debates": debates,
    }


def _turn_credit(
    turn: Turn, score: Score, rows: Sequence[Row], tokenizer: "PreTrainedTokenizerFast"
) -> dict[str, object]:
    assert turn.reply is not None
    values, token_runs = earned(turn, score, rows)
    return {
        "agent": turn.agent,
        "round": turn.round,
        "values": {name: _round(value) for name, value in values.items()},
        "starts": list(reply_text(turn.reply, tokenizer).starts) if token_runs else [],
        "tokens": [[length, _round(advantage), bits] for length, advantage, bits in token_runs],
    }


def _round(value: float | None) -> float | None:
    """Round to four digits: the files of long debates would be twice as long."""
    return None if value is None else float(f"{value:.4g}")


def write_credit(directory: "RunDirectory", step: int, credit: Mapping[str, object]) -> Path:
    """Write the result of `credit_of` to `tokens/step-<step>.json` of a run."""
    path = directory.tokens_path / f"step-{step}.json"
    with written(path):
        write_whole(path, json.dumps(plain(credit), separators=(",", ":")).encode())
        directory.note_record(path)
    return path


def keep_evaluation(
    directory: "RunDirectory", name: str, step: int, measures: "Measures", *, with_debates: bool
) -> None:
    """Write the value of each figure on each question, and the debates.

    Args:
        directory: The run directory; the folder `evaluations` takes `NAME-STEP.json`, and for
            each mode `NAME-MODE-STEP.jsonl`, debates without prompts.
        name: The evaluation: `before`, `after`, `dev`, `start`.
        step: The last step of the run before it.
        measures: Figures of the evaluation.
        with_debates: Whether debates are written.
    """
    folder = directory.evaluations_path
    values_path = folder / f"{name}-{step:06d}.json"
    write_json(values_path, plain({"schema": SCHEMA, "step": step, "values": measures.values}))
    directory.note_record(values_path)
    if not with_debates:
        return
    for mode, debates in measures.played.items():
        # Each prompt repeats earlier turns: with prompts the files would be many times as long.
        debates_without_prompts = []
        for debate in debates:
            turns = [replace(turn, prompt=None) for turn in debate.turns]
            debates_without_prompts.append(replace(debate, turns=tuple(turns)))
        debates_path = folder / f"{name}-{file_name(mode)}-{step:06d}.jsonl"
        with written(debates_path):
            write_transcripts(debates_path, debates_without_prompts)
            directory.note_record(debates_path)
