"""Results of an evaluation, on a screen and in files; and those of finished transcripts."""

import argparse
import csv
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from debate_report.rollout_files import debates_in
from debate_rewards.estimates import Estimate
from debate_rewards.final_answers import KINDS
from debate_train.checkpoints.run_directory import plain, with_hash, write_json
from debate_train.commands.evaluate import NAME, NamedPolicy
from debate_train.commands.recipe_command import DONE, command, plain_parser
from debate_train.commands.resumable import (
    RESULTS,
    SCHEMA,
    TABLE,
    EvaluationDirectory,
    Found,
    Plan,
)
from debate_train.evaluation.measuring import Measures, figures_of_transcripts
from debate_train.evaluation.modes import Curves, Point
from debate_train.evaluation.settings import Setup
from debate_train.interrupts import UsageError
from debate_train.running.phases import measures_json


def found_of(policy: NamedPolicy, measures: Measures, runs: int) -> Found:
    """Return what a policy was found to do."""
    figures = {name: one | {"runs": runs} for name, one in measures_json(measures).items()}
    return _found(policy, figures, measures.values, measures.curves)


def _found(
    policy: NamedPolicy, figures: Mapping[str, object], values: Mapping[str, object], curves: Curves
) -> Found:
    return {
        "name": policy.name,
        "source": policy.source,
        "sha256_of_weights": policy.sha256,
        "figures": plain(figures),
        "values": plain(values),
        "curves": {name: _points(points) for name, points in curves.items()},
    }


def _points(points: Sequence[Point]) -> list[dict[str, object]]:
    """Return the points of a curve with the intervals of their means."""
    from debate_rewards.estimates import bootstrap_interval

    found: list[dict[str, object]] = []
    for one in points:
        mean, low, high = bootstrap_interval(list(one.values.values()), within=(0.0, 1.0))
        ends = {"mean": mean, "low": low, "high": high, "questions": len(one.values)}
        found.append({"x": one.x, "tokens": one.tokens, **ends})
    return found


@dataclass(frozen=True, slots=True)
class Shown:
    """What tables say of figures."""

    rows: Mapping[str, str]
    """The row of each figure; an empty one has none."""
    measured: str
    runs: int
    listed: Sequence[str]
    """The figures of the table, in order; `--all` prints the others, too."""

    @classmethod
    def of(cls, setup: Setup) -> "Shown":
        """Return what an evaluation shows."""
        listed = setup.listed()
        return cls({**setup.rows(), **listed}, setup.described(), setup.runs, list(listed))


_COLUMNS = ("mean", "low", "high", "questions", "runs", "run_deviation")


def write_all(
    directory: EvaluationDirectory, plan: Plan, shown: Shown, found: Sequence[Found]
) -> None:
    """Write table and results; `results.json` last, which says that all is there."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("policy", "figure", "row", *_COLUMNS))
    for one in found:
        for figure, measure in one["figures"].items():
            own = (measure.get(column, "") for column in _COLUMNS)
            table.writerow((one["name"], figure, shown.rows.get(figure, ""), *own))
    directory.write(TABLE, text.getvalue())
    policies = [{k: v for k, v in one.items() if k not in ("values", "sha256")} for one in found]
    results = {
        "schema": SCHEMA,
        **plan,
        "measured": shown.measured,
        "rows": shown.rows,
        "listed": list(shown.listed),
        "policies": policies,
    }
    write_json(directory.path / RESULTS, with_hash(plain(results)))


def print_table(shown: Shown, title: str, found: Sequence[Found], *, all_: bool = False) -> None:
    """Print the figures that are listed, or all that have a row, a column for each policy."""
    beside = " ± deviation between runs" if shown.runs > 1 else ""
    table = Table(title=f"{title}, mean [95 % interval over questions]{beside}")
    table.add_column("measure")
    for one in found:
        table.add_column(one["name"], justify="right")
    for figure in dict.fromkeys([*shown.listed, *(shown.rows if all_ else ())]):
        row = shown.rows[figure]
        if row and any(figure in one["figures"] for one in found):
            table.add_row(row, *(_measure(one["figures"].get(figure)) for one in found))
    console = Console()
    console.print(table)
    if shown.measured:
        console.print(f"measured: {shown.measured}", highlight=False, markup=False)


def _measure(measure: Mapping[str, float] | None) -> str:
    if measure is None:
        return "-"
    text = f"{measure['mean']:.3f} [{measure['low']:.3f}, {measure['high']:.3f}]"
    deviation = measure.get("run_deviation")
    return text if deviation is None else f"{text}\n± {deviation:.3f}"


_DESCRIPTION = """\
Measure finished transcripts, or rollouts of verifiers (traces.jsonl) and TRL (files of
completions, .parquet or .jsonl), without a recipe or model: every figure that the files allow, with
95 % intervals over questions. A file is one policy, called NAME by
NAME=FILE. With --output the results are kept as those of an evaluation, for debate-eval compare."""


def files_main(argv: Sequence[str]) -> int:
    """Run `debate-eval --transcripts`; return its exit code."""
    return command("debate-eval", command_parser(), argv, _measure_files)


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = plain_parser("debate-eval --transcripts", _DESCRIPTION)
    parser.add_argument("--transcripts", nargs="+", required=True, metavar="[NAME=]FILE")
    how = "how answers of rollouts are read: boxed (default) or answer_line"
    parser.add_argument("--contract", default="boxed", help=how)
    parser.add_argument("--kind", help="of the questions of rollouts, such as number or choice")
    parser.add_argument("--answer", metavar="COLUMN", help="with the right answers of rollouts")
    parser.add_argument("--output", type=Path, metavar="DIR", help="a new or empty folder")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser


def _measure_files(arguments: argparse.Namespace) -> int:
    if arguments.kind is not None and arguments.kind not in KINDS:
        raise UsageError(f"--kind: found {arguments.kind!r}; expected {', '.join(KINDS)}")
    found: list[Found] = []
    questions: dict[str, object] = {}
    how = {name: getattr(arguments, name) for name in ("contract", "kind", "answer")}
    for text in arguments.transcripts:
        policy = _named(text)
        if any(one["name"] == policy.name for one in found):
            raise UsageError(f"--transcripts: found {policy.name!r} twice; expected NAME=FILE")
        transcripts = debates_in(Path(policy.source), "--transcripts", **how)
        questions |= {q.id: [q.text, q.answer] for q in (one.question for one in transcripts)}
        of = figures_of_transcripts(transcripts)
        figures = {name: _ends(one) for name, one in sorted(of.found.items())}
        found.append(_found(policy, figures, of.values, of.curves))
    rows = {figure: figure for figure in sorted({f for one in found for f in one["figures"]})}
    if arguments.output is not None:
        digest = hashlib.sha256(json.dumps(sorted(questions.items()), default=str).encode())
        asked = {"count": len(questions), "sha256": digest.hexdigest()}
        plan = {"schema": SCHEMA, "questions": asked, "runs": 1, "modes": []}
        with EvaluationDirectory(arguments.output, plan) as directory:
            for one in found:
                directory.keep(one)
            measured = "transcripts of files"
            write_all(directory, plan, Shown(rows, measured, 1, list(rows)), found)
    if arguments.json:
        kept = [{k: v for k, v in one.items() if k != "values"} for one in found]
        print(json.dumps({"policies": kept}, ensure_ascii=False))
        return DONE
    print_table(Shown(rows, "", 1, list(rows)), "figures of files", found)
    return DONE


def _ends(one: Estimate) -> dict[str, float]:
    ends = {"mean": one.value, "low": one.low, "high": one.high}
    return {**ends, "questions": one.questions, "runs": 1}


def _named(text: str) -> NamedPolicy:
    name, equals, file = text.partition("=")
    if not equals or Path(text).is_file() or re.fullmatch(NAME, name) is None:
        file = text
        name = re.sub(r"[^\w.@+-]+", "-", Path(text).stem).lstrip(".-")[:60] or "file"
    return NamedPolicy(name, file)
