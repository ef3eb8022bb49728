"""Results of an evaluation: on a screen, as JSON, as plots; and those of finished transcripts."""

import argparse
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from debate_protocol.command_line import add_options, heed_options, is_quiet
from debate_report.charts import Series, line_drawing, parts_of
from debate_report.rollout_files import debates_in
from debate_rewards.final_answers import KINDS
from debate_train.checkpoints.run_directory import plain, with_hash, write_json
from debate_train.commands.evaluate import NamedPolicy
from debate_train.commands.evaluation_files import (
    RESULTS,
    SCHEMA,
    TABLE,
    VALUES,
    EvaluationDirectory,
    Plan,
)
from debate_train.commands.recipe_command import DONE, exit_code
from debate_train.evaluation.from_transcripts import TranscriptFigures, figures_of_transcripts
from debate_train.evaluation.measuring import Measures
from debate_train.evaluation.mode import Point
from debate_train.evaluation.settings import Setup
from debate_train.interrupts import UsageError
from debate_train.running.phases import measures_json

Points = Sequence[Mapping[str, Any]]
"""A curve as `results.json` has it."""
Line = Sequence[tuple[float, float]]
_SINGLE = "maj@k"
_BY_TOKENS = {"debate/majority": "debate", "debate/central": "the center"}
_BY_ROUND = {"debate/majority": "majority", "debate/agent": "one agent"} | {
    "debate/central": "the center"
}
"""Curves of single replies and of debates, as modes name them, each with the label of its line."""
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")
_COLOUR = re.compile(r"(--[\w-]+):\s*(#[0-9a-f]+)")
_PLAIN = ("", "direct", "replies")
"""Modes that a label need not name."""


def plots(policies: Mapping[str, Mapping[str, Points]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each plot with its SVG; none of what has no points.

    Each policy has the rounds of all its modes, and their accuracy beside sampled tokens. Several
    policies have a plot for each mode, with a line for each (SDRL, figure 1).

    Args:
        policies: By name the curves of `results.json`: points by the full name of a curve.
    """
    for policy, curves in policies.items():
        by_round = [
            (label, _rounds(points)) for label, points in _labelled_curves(curves, _BY_ROUND)
        ]
        yield from _drawn(f"{policy}-accuracy_by_round", "Accuracy by round", by_round, "round")
        by_tokens = [
            (label, [(point["tokens"], point["mean"]) for point in points])
            for label, points in _labelled_curves(
                curves, {_SINGLE: "majority of replies"} | _BY_TOKENS
            )
            if all(point["tokens"] is not None for point in points)
        ]
        title = "Accuracy by sampled tokens"
        yield from _drawn(f"{policy}-accuracy_by_tokens", title, by_tokens, "tokens")
    by_mode: dict[str, list[tuple[str, Line]]] = {}
    for policy, curves in policies.items():
        for label, points in _labelled_curves(curves, _BY_ROUND):
            by_mode.setdefault(label, []).append((policy, _rounds(points)))
    for label, lines in by_mode.items():
        if len(policies) > 1:
            name = "policies-" + re.sub(r"[^\w.@+-]+", "_", label)
            yield from _drawn(name, f"Accuracy by round, {label}", lines, "round")


def _rounds(points: Points) -> Line:
    return [(point["x"] + 1, point["mean"]) for point in points]


def _drawn(
    name: str, title: str, lines: Sequence[tuple[str, Line]], unit: str
) -> Iterator[tuple[str, str]]:
    """Yield as many drawings as all lines need."""
    series = [Series(label, tuple(points)) for label, points in lines]
    for number, (said, part) in enumerate(parts_of(title, series), 1):
        yield f"{name}_{number}" if number > 1 else name, _svg(said, part, unit)


def _labelled_curves(
    curves: Mapping[str, Points], shown: Mapping[str, str]
) -> Iterator[tuple[str, Points]]:
    """Yield the wanted curves of all modes, each with its label."""
    for name, points in curves.items():
        for curve, label in shown.items():
            mode, found, _ = f"/{name}/".partition(f"/{curve}/")
            if found and points:
                own = mode.strip("/").removeprefix("eval").strip("/")
                yield (f"{own}: {label}" if own not in _PLAIN else label), points


def _svg(title: str, series: Sequence[Series], unit: str) -> str:
    """Return a drawing with its colours written out: few programs but browsers know variables."""
    drawn = str(line_drawing(title, series, "share", unit))
    light = dict(reversed(_COLOUR.findall(drawn)))  # Those of the dark scheme come second.
    return _VARIABLE.sub(lambda found: light.get(found[1], found[0]), drawn)


Found = Mapping[str, Any]
"""What one policy was found to do, as its file in `policies/` holds it."""


def found_of(policy: NamedPolicy, measures: Measures, runs: int) -> dict[str, Any]:
    """Return what a policy was found to do."""
    return {
        "name": policy.name,
        "source": policy.source,
        "sha256_of_weights": policy.sha256,
        "figures": {
            name: {**plain(measure), "runs": runs}
            for name, measure in measures_json(measures).items()
        },
        "values": plain(measures.values),
        "curves": {name: list(map(point_row, points)) for name, points in measures.curves.items()},
    }


def point_row(point: Point) -> dict[str, object]:
    """Return a point of a curve with the interval of its mean."""
    from debate_rewards.estimates import bootstrap_interval

    mean, low, high = bootstrap_interval(list(point.values.values()), within=(0.0, 1.0))
    return {
        "x": point.x,
        "tokens": point.tokens,
        "mean": mean,
        "low": low,
        "high": high,
        "questions": len(point.values),
    }


@dataclass(frozen=True, slots=True)
class Shown:
    """What tables say of figures."""

    rows: Mapping[str, str]
    """The row of each figure; an empty one has none."""
    measured: str
    runs: int
    listed: Sequence[str]
    """The figures of the table, in order; the others have rows in one of all figures alone."""

    @classmethod
    def of(cls, setup: Setup) -> "Shown":
        """Return what an evaluation shows."""
        listed = setup.listed()
        return cls({**setup.rows(), **listed}, setup.described(), setup.runs, list(listed))


def write_all(
    directory: EvaluationDirectory, plan: Plan, shown: Shown, found: Sequence[Found]
) -> None:
    """Write values, table and results; `results.json` last, which says that all is there."""
    values = "".join(f"{line}\n" for line in _value_lines(found, shown.runs))
    directory.write(VALUES, values)
    directory.write(TABLE, _csv(shown.rows, found))
    for name, drawing in plots({one["name"]: one["curves"] for one in found}):
        directory.write(f"plots/{name}.svg", drawing)
    policies = [{k: v for k, v in one.items() if k not in ("values", "sha256")} for one in found]
    results = {
        "schema": SCHEMA,
        **plan,
        "measured": shown.measured,
        "rows": shown.rows,
        "values_sha256": hashlib.sha256(values.encode()).hexdigest(),
        "listed": list(shown.listed),
        "policies": policies,
    }
    write_json(directory.path / RESULTS, with_hash(plain(results)))


def _value_lines(found: Sequence[Found], runs: int) -> Iterator[str]:
    for one in found:
        for figure, values in one["values"].items():
            for question, value in values.items():
                row = {
                    "policy": one["name"],
                    "figure": figure,
                    "question": question,
                    "value": value,
                    "runs": runs,
                }
                yield json.dumps(row, ensure_ascii=False)


_COLUMNS = ("mean", "low", "high", "questions", "runs", "run_deviation")


def _csv(rows: Mapping[str, str], found: Sequence[Found]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("policy", "figure", "row", *_COLUMNS))
    for one in found:
        for figure, measure in one["figures"].items():
            own = (measure.get(column, "") for column in _COLUMNS)
            table.writerow((one["name"], figure, rows.get(figure, ""), *own))
    return text.getvalue()


def print_table(shown: Shown, split: str, found: Sequence[Found], *, all_: bool = False) -> None:
    """Print the figures that are listed, or all that have a row, a column for each policy."""
    beside = " ± deviation between runs" if shown.runs > 1 else ""
    table = Table(title=f"{split} split, mean [95 % interval over questions]{beside}")
    table.add_column("measure")
    for one in found:
        table.add_column(one["name"], justify="right")
    for figure in dict.fromkeys([*shown.listed, *(shown.rows if all_ else ())]):
        row = shown.rows[figure]
        if row and any(figure in one["figures"] for one in found):
            table.add_row(row, *(shown_measure(one["figures"].get(figure)) for one in found))
    console = Console()
    console.print(table)
    console.print(f"measured: {shown.measured}", highlight=False, markup=False)


def shown_measure(measure: Mapping[str, float] | None) -> str:
    """Return a figure with its interval as tables show it."""
    if measure is None:
        return "-"
    text = f"{measure['mean']:.3f} [{measure['low']:.3f}, {measure['high']:.3f}]"
    deviation = measure.get("run_deviation")
    return text if deviation is None else f"{text}\n± {deviation:.3f}"


_DESCRIPTION = """\
Measure finished transcripts, or rollouts of verifiers (traces.jsonl) and TRL (files of
completions, .parquet or .jsonl), without a recipe or model: every figure that the files allow, with
95 % intervals over questions, and what the others would need. A file is one policy, called NAME by
NAME=FILE. With --output the results are kept as those of an evaluation, for debate-eval compare."""


def files_main(argv: Sequence[str]) -> int:
    """Run `debate-eval --transcripts`; return its exit code."""
    arguments = command_parser().parse_args(argv)
    heed_options(arguments)
    return exit_code("debate-eval", lambda: _measure(arguments))


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(
        prog="debate-eval --transcripts",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--transcripts", nargs="+", required=True, metavar="[NAME=]FILE")
    parser.add_argument(
        "--contract",
        default="boxed",
        help="how answers of rollouts are read: boxed (default) or answer_line",
    )
    parser.add_argument("--kind", help="of the questions of rollouts, such as number or choice")
    parser.add_argument("--answer", metavar="COLUMN", help="with the right answers of rollouts")
    parser.add_argument("--output", type=Path, metavar="DIR", help="a new or empty folder")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    add_options(parser, "debate_train")
    return parser


def _measure(arguments: argparse.Namespace) -> int:
    if arguments.kind is not None and arguments.kind not in KINDS:
        raise UsageError(f"--kind: found {arguments.kind!r}; expected {', '.join(KINDS)}")
    found: list[Found] = []
    questions: dict[str, object] = {}
    left_out: dict[str, dict[str, str]] = {}
    for text in arguments.transcripts:
        name, path = _named(text)
        if any(one["name"] == name for one in found):
            raise UsageError(f"--transcripts: found {name!r} twice; expected NAME=FILE for one")
        transcripts = debates_in(
            path,
            "--transcripts",
            contract=arguments.contract,
            kind=arguments.kind,
            answer=arguments.answer,
        )
        questions |= {q.id: [q.text, q.answer] for q in (one.question for one in transcripts)}
        figures = figures_of_transcripts(transcripts)
        found.append(_found(name, str(path), figures))
        left_out[name] = dict(figures.left_out)
    rows = {figure: figure for one in found for figure in one["figures"]}
    shown = Shown(rows, "transcripts of files", 1, list(rows))
    plan = _plan(questions)
    opened = nullcontext() if arguments.output is None else _opened(arguments.output, plan)
    with opened as directory:
        if directory is not None:
            write_all(directory, plan, shown, found)
    if arguments.json:
        kept = [{k: v for k, v in one.items() if k != "values"} for one in found]
        print(json.dumps({"policies": kept, "left_out": left_out}, ensure_ascii=False))
        return DONE
    _print(rows, found, left_out)
    return DONE


def _opened(output: Path, plan: Plan) -> EvaluationDirectory:
    return EvaluationDirectory.create(output, plan, None)


def _named(text: str) -> tuple[str, Path]:
    name, equals, file = text.partition("=")
    if not equals or Path(text).is_file() or re.fullmatch(r"[\w@+][\w.@+-]{0,59}", name) is None:
        file = text
        name = re.sub(r"[^\w.@+-]+", "-", Path(text).stem).lstrip(".-")[:60] or "file"
    return name, Path(file)


def _found(name: str, source: str, figures: TranscriptFigures) -> Found:
    """Return what a file shows, in the form of what a policy was found to do."""
    measures = {
        figure: {
            "mean": one.value,
            "low": one.low,
            "high": one.high,
            "questions": one.questions,
            "runs": 1,
        }
        for figure, one in sorted(figures.found.items())
    }
    return {
        "name": name,
        "source": source,
        "sha256_of_weights": "",
        "figures": plain(measures),
        "values": plain(figures.values),
        "curves": {
            curve: [point_row(point) for point in points]
            for curve, points in figures.curves.items()
        },
    }


def _plan(questions: dict[str, object]) -> Plan:
    text = json.dumps(sorted(questions.items()), default=str)
    return {
        "schema": SCHEMA,
        "questions": {
            "count": len(questions),
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
        },
        "runs": 1,
        "modes": [],
    }


def _print(
    rows: dict[str, str], found: Sequence[Found], left_out: dict[str, dict[str, str]]
) -> None:
    table = Table(title="figures of files, mean [95 % interval over questions]")
    table.add_column("figure")
    for one in found:
        table.add_column(one["name"], justify="right")
    for figure in sorted(rows):
        table.add_row(figure, *(shown_measure(one["figures"].get(figure)) for one in found))
    console = Console()
    console.print(table)
    for name, reasons in () if is_quiet() else left_out.items():
        for figure, reason in reasons.items():
            console.print(f"{name}: no {figure}: {reason}", highlight=False, markup=False)
