"""What each evaluation of a run found: values of questions, debates, and changes between two."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Transcript
from debate_train.run_files.collected_files import file_name, plain, write_json, written

if TYPE_CHECKING:
    from debate_rewards.metrics.paired import Paired
    from debate_train.evaluation.measuring import Measures
    from debate_train.run_files.run_directory import RunDirectory

SCHEMA = "debate-values/1"
MAIN = "eval/majority/accuracy"
"""What is said of a run in words, where it is measured."""


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
    folder, questions = directory.evaluations_path, dict[str, int]()
    for values in found.values.values():
        for question in values:
            questions.setdefault(question, len(questions))
    figures = {
        figure: [values.get(question) for question in questions]
        for figure, values in found.values.items()
    }
    path = folder / f"{name}-{step:06d}.json"
    kept = {"schema": SCHEMA, "step": step, "questions": list(questions), "figures": figures}
    write_json(path, plain(kept))
    directory.note_record(path)
    for mode, debates in found.played.items() if with_debates else ():
        path = folder / f"{name}-{file_name(mode)}-{step:06d}.jsonl"
        with written(path):
            write_transcripts(path, [_without_prompts(debate) for debate in debates])
            directory.note_record(path)


def changes_of(directory: "RunDirectory", figures: Sequence[str]) -> dict[str, "Paired"]:
    """Return how each figure changed on the same questions, from before a run to its end.

    What has no value for single questions, such as a ratio of sums, is not there.
    """
    from debate_rewards.metrics.paired import paired
    from debate_rewards.metrics.ranges import range_of

    before, after = (_last(directory, name) for name in ("before", "after"))
    return {
        figure: paired(before[figure], after[figure], within=range_of(figure))
        for figure in figures
        if before.get(figure, {}).keys() & after.get(figure, {}).keys()
    }


def in_words(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return in one sentence what happened, nothing where no change is known.

    Args:
        rows: Of the table of results, each with `measure`, `name` and, where it is known, `change`.
    """
    from debate_rewards.metrics.ranges import range_of

    known = [row for row in rows if row.get("change") and range_of(row["name"]) == (0.0, 1.0)]
    if not known:
        return ""
    main = next((row for row in known if row["name"] == MAIN), known[0])
    change = main["change"]
    low, high = change["low"], change["high"]
    outcome = "rose" if low > 0 else "fell" if high < 0 else "did not change beyond chance"
    said = (
        f"On {change['questions']} questions, {main['measure']} {outcome}: from "
        f"{100 * change['before']:.1f} % to {100 * change['after']:.1f} %, "
        f"{100 * change['difference']:+.1f} points, 95 % interval [{100 * low:+.1f}, "
        f"{100 * high:+.1f}]; higher on {change['won']} questions, lower on {change['lost']}"
    )
    others = [
        f"{row['measure']} ({100 * row['change']['difference']:+.1f} points)"
        for row in known
        if row is not main and (row["change"]["low"] > 0 or row["change"]["high"] < 0)
    ]
    return f"{said}; also beyond chance: {', '.join(others)}." if others else f"{said}."


def _last(directory: "RunDirectory", name: str) -> dict[str, dict[str, float]]:
    """Return the values of the last evaluation of this name by figure and question."""
    found = max(directory.evaluations_path.glob(f"{name}-??????.json"), default=None)
    if found is None:
        return {}
    try:
        kept = json.loads(found.read_text(encoding="utf-8"))
        return {
            figure: {
                question: value
                for question, value in zip(kept["questions"], values, strict=True)
                if value is not None
            }
            for figure, values in kept["figures"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _without_prompts(debate: Transcript) -> Transcript:
    return replace(debate, turns=tuple(replace(turn, prompt=None) for turn in debate.turns))
