"""What each evaluation of a run found: values of questions, debates, and changes between two."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from debate_protocol.transcripts.files import write_transcripts
from debate_protocol.types import Transcript
from debate_train.checkpointing.directory_layout import file_name, plain, write_json, written

if TYPE_CHECKING:
    from debate_train.checkpointing.run_directory import RunDirectory
    from debate_train.evaluation.measuring import Measures


SCHEMA = "debate-values/1"


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


def changes_of(
    directory: "RunDirectory", figures: Sequence[str]
) -> dict[str, dict[str, Any] | None]:
    """Return how each figure changed on the same questions, from before a run to its end.

    Where some questions have a value at one end alone, as a judge who was shown no right and wrong
    answer gives none, `before` and `after` of the others are beside `change`; None where all do.
    What has no value for single questions, such as a ratio of sums, is not there.
    """
    from debate_rewards.estimates import bootstrap_interval, paired, range_of

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
    from debate_rewards.estimates import range_of

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
