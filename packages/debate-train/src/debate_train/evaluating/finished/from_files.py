"""`debate-eval --transcripts FILE`: every figure that finished files allow."""

import argparse
import hashlib
import json
import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.table import Table

from debate_protocol.command_options import add_options, heed_options, is_quiet
from debate_rewards.answers.final_answers import KINDS
from debate_train.commands.recipe_command import DONE, exit_code
from debate_train.errors import UsageError
from debate_train.evaluating.directory import SCHEMA, EvaluationDirectory, Plan
from debate_train.evaluating.results import Found, Shown, point_row, shown_measure, write_all
from debate_train.evaluation.from_transcripts import TranscriptFigures, figures_of_transcripts
from debate_train.rollout_files.debate_files import debates_in
from debate_train.run_files.collected_files import plain

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
