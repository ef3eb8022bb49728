"""What a run records for its report: what tokens earned, and what each evaluation found."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Transcript, Turn
from debate_report.debates import CREDIT_SCHEMA
from debate_rewards.estimates import bootstrap_interval, paired, range_of
from debate_rewards.reward import Score
from debate_train.batches.row_types import Batch, Row
from debate_train.batches.rows import earned, reply_text
from debate_train.checkpoints.run_directory import file_name, plain, write_json, written
from debate_train.checkpoints.whole_files import write_whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from debate_train.checkpoints.run_directory import RunDirectory
    from debate_train.evaluation.measuring import Measures


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
        "schema": CREDIT_SCHEMA,
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


def _turn(
    turn: Turn, score: Score, rows: Sequence[Row], tokenizer: "PreTrainedTokenizerFast"
) -> dict[str, object]:
    assert turn.reply is not None
    values, runs = earned(turn, score, rows)
    return {
        "agent": turn.agent,
        "round": turn.round,
        "values": {name: _short(value) for name, value in values.items()},
        "starts": list(reply_text(turn.reply, tokenizer).starts) if runs else [],
        "tokens": [[count, _short(advantage), bits] for count, advantage, bits in runs],
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


SCHEMA = "debate-values/2"
_VALUES = TypeAdapter(dict[str, dict[str, float]])


def keep_evaluation(
    directory: "RunDirectory", name: str, step: int, found: "Measures", *, with_debates: bool
) -> None:
    """Write the value of each figure on each question, and what was played.

    Args:
        directory: Of the run; its folder `evaluations` takes `NAME-STEP.json`, and for each mode
            `NAME-MODE-STEP.jsonl`, debates without prompts.
        name: Which evaluation: `before`, `after`, `dev`, `start`.
        step: After which step of the run.
        found: By the evaluation.
        with_debates: Whether debates are kept.
    """
    folder = directory.evaluations_path
    path = folder / f"{name}-{step:06d}.json"
    write_json(path, plain({"schema": SCHEMA, "step": step, "values": found.values}))
    directory.note_record(path)
    for mode, debates in found.played.items() if with_debates else ():
        path = folder / f"{name}-{file_name(mode)}-{step:06d}.jsonl"
        with written(path):
            write_transcripts(path, [_without_prompts(debate) for debate in debates])
            directory.note_record(path)


def changes_of(
    directory: "RunDirectory", figures: Sequence[str]
) -> dict[str, dict[str, Any] | None]:
    """Return how each figure changed on the same questions, from before a run to its end.

    Where some questions have a value at one end alone, as a judge who was shown no right and wrong
    answer gives none, `before` and `after` of the others are beside `change`; None where all do.
    What has no value for single questions, such as a ratio of sums, is not there.
    """
    before, after = (_last(directory, name) for name in ("before", "after"))
    changes: dict[str, dict[str, Any] | None] = {}
    for figure in before.keys() & after.keys() & set(figures):
        ends, within = {"before": before[figure], "after": after[figure]}, range_of(figure)
        common = before[figure].keys() & after[figure].keys()
        if not common:
            changes[figure] = None
            continue
        change = asdict(paired(before[figure], after[figure], within=within))
        found: dict[str, Any] = {"change": change}
        for when, values in ends.items():
            if len(values) > len(common):
                own = [value for question, value in values.items() if question in common]
                mean, low, high = bootstrap_interval(own, within=within)
                found[when] = {"mean": mean, "low": low, "high": high, "questions": len(common)}
        changes[figure] = found
    return changes


def in_words(rows: Sequence[Mapping[str, Any]], headline: Sequence[str]) -> str:
    """Return in a few sentences what happened, nothing where no change is known.

    Args:
        rows: Of the table of results, each with `measure`, `name` and, where it is known, `change`.
        headline: Names of the measures that are described in full; of none the first row is.
    """
    known = [row for row in rows if row.get("change") and range_of(row["name"])]
    main = [row for row in known if row["name"] in headline] or known[:1]
    others = [
        f"{row['measure']} ({100 * row['change']['difference']:+.1f} points)"
        for row in known
        if row not in main and (row["change"]["low"] > 0 or row["change"]["high"] < 0)
    ]
    said = [_described(row["measure"], row["change"]) for row in main]
    return " ".join([*said, *([f"Also beyond chance: {', '.join(others)}."] if others else ())])


def _described(measure: str, change: Mapping[str, Any]) -> str:
    low, high, measure = change["low"], change["high"], measure[:1].upper() + measure[1:]
    outcome = "rose" if low > 0 else "fell" if high < 0 else "did not change beyond chance"
    return (
        f"{measure} {outcome}: {100 * change['before']:.1f} % to {100 * change['after']:.1f} %, "
        f"{100 * change['difference']:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}], on the "
        f"same {change['questions']} questions ({change['won']} up, {change['lost']} down)."
    )


def _last(directory: "RunDirectory", name: str) -> dict[str, dict[str, float]]:
    """Return the values of the last evaluation of this name by figure and question."""
    found = max(directory.evaluations_path.glob(f"{name}-??????.json"), default=None)
    if found is None:
        return {}
    try:
        return _VALUES.validate_python(json.loads(found.read_bytes())["values"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _without_prompts(debate: Transcript) -> Transcript:
    return replace(debate, turns=tuple(replace(turn, prompt=None) for turn in debate.turns))
