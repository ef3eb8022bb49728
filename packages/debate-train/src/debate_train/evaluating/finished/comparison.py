"""`debate-eval compare`: policies side by side, paired on the same questions."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from debate_protocol.command_options import add_options, heed_options, is_quiet
from debate_protocol.plugins import did_you_mean
from debate_train.commands.recipe_command import DONE, exit_code
from debate_train.errors import UsageError
from debate_train.evaluating.finished.reading import Finished, read_finished

if TYPE_CHECKING:
    from debate_rewards.metrics.paired import Paired

_DESCRIPTION = """\
Compare policies that debate-eval has measured, figure by figure, on the same questions.

Each side is the folder of an evaluation, with all policies in it, or FOLDER:POLICY. The first
policy, or that of --baseline, is the one that all others are compared with: the difference with its
95 % interval, and p of no difference. Where each question is right or wrong on both sides the test
is McNemar's, exact; else questions are resampled in pairs."""

_EPILOG = """\
examples:
  debate-eval compare evaluations/first:before evaluations/first:after
  debate-eval compare evaluations/sweep --baseline start
  debate-eval compare evaluations/grpo evaluations/debate --all --json"""


@dataclass(frozen=True, slots=True)
class Side:
    """One policy of one evaluation."""

    label: str
    policy: str
    evaluation: Finished


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a side beside the baseline's."""

    figure: str
    shown: str
    """The figure as tables call it."""
    side: str
    found: "Paired"


def compare_main(argv: Sequence[str]) -> int:
    """Run `debate-eval compare`; return its exit code."""
    arguments = command_parser().parse_args(argv)
    heed_options(arguments)
    return exit_code("debate-eval compare", lambda: _compare(arguments))


def _compare(arguments: argparse.Namespace) -> int:
    sides = sides_of(arguments.sides)
    baseline = _baseline(sides, arguments.baseline)
    others = [side for side in sides if side is not baseline]
    if not others:
        raise UsageError(
            f"found {baseline.label!r} alone; expected another policy to compare it with"
        )
    rows = [row for other in others for row in compared(baseline, other, all_=arguments.all)]
    if not rows:
        raise UsageError("found no figure that both sides have; expected the same modes")
    if arguments.json:
        found = [{"figure": r.figure, "after": r.side, **asdict(r.found)} for r in rows]
        print(json.dumps({"baseline": baseline.label, "compared": found}, ensure_ascii=False))
        return DONE
    for other in others:
        _print(baseline, other, [row for row in rows if row.side == other.label])
    return DONE


def sides_of(texts: Sequence[str]) -> list[Side]:
    """Return the policies that `FOLDER` or `FOLDER:POLICY` name, in order.

    Raises:
        UsageError: A folder or policy is not there, or one is named twice.
    """
    found: list[tuple[Finished, str]] = []
    read: dict[str, Finished] = {}
    for text in texts:
        folder, policy = text, ""
        if not Path(text).is_dir() and ":" in text:
            folder, _, policy = text.rpartition(":")
        if folder not in read:
            read[folder] = read_finished(Path(folder))
        own = read[folder]
        found += [(own, own.policy(policy))] if policy else [(own, name) for name in own.values]
    names = [policy for _, policy in found]
    sides = [
        Side(policy if names.count(policy) == 1 else f"{own.path}:{policy}", policy, own)
        for own, policy in found
    ]
    labels = [side.label for side in sides]
    for label in labels:
        if labels.count(label) > 1:
            raise UsageError(f"found {label!r} {labels.count(label)} times; expected once")
    return sides


def _baseline(sides: Sequence[Side], name: str | None) -> Side:
    if name is None:
        return sides[0]
    for side in sides:
        if name in (side.label, f"{side.evaluation.path}:{side.policy}"):
            return side
    known = [side.label for side in sides]
    raise UsageError(
        f"--baseline: found {name!r}; expected {' or '.join(known)}{did_you_mean(name, known)}"
    )


def compared(before: Side, after: Side, *, all_: bool = False) -> list[Row]:
    """Return the figures of two policies beside each other, as far as both have them.

    Args:
        before: The baseline.
        after: Whose figures are higher where the difference is positive.
        all_: Also those that tables do not list.

    Raises:
        UsageError: They were asked other questions.
    """
    from debate_rewards.metrics.paired import paired
    from debate_rewards.metrics.ranges import range_of

    _refuse_other_questions(before, after)
    sides = (before.evaluation.results, after.evaluation.results)
    shown = {**sides[1]["rows"], **sides[0]["rows"]}
    listed = {name for results in sides for name in results.get("listed", results["rows"])}
    mine, theirs = (side.evaluation.values[side.policy] for side in (before, after))
    return [
        Row(
            figure,
            shown.get(figure) or figure,
            after.label,
            paired(values, theirs[figure], within=range_of(figure)),
        )
        for figure, values in mine.items()
        if (all_ or (shown.get(figure) and figure in listed))
        and values.keys() & theirs.get(figure, {}).keys()
    ]


def _refuse_other_questions(before: Side, after: Side) -> None:
    first, second = before.evaluation.results, after.evaluation.results
    if first["questions"]["sha256"] == second["questions"]["sha256"]:
        return
    own, other = before.evaluation.questions, after.evaluation.questions
    counts = f"{first['questions']['count']} and {second['questions']['count']}"
    raise UsageError(
        f"found other questions on both sides: {counts}, of which {len(own & other)} have "
        "the same id; expected the same questions (data, --split and --questions)"
    )


def _print(before: Side, after: Side, rows: Sequence[Row]) -> None:
    table = Table(title=f"{before.label} → {after.label}, the same questions")
    table.add_column("measure")
    for column in (before.label, after.label, "difference [95 %]", "p", "won / lost / of"):
        table.add_column(column, justify="right", no_wrap=column.startswith("difference"))
    for row in rows:
        one = row.found
        p = f"{one.p:.3f}" if one.p >= 0.001 else f"{one.p:.0e}"
        table.add_row(
            row.shown,
            f"{one.before:.3f}",
            f"{one.after:.3f}",
            f"{one.difference:+.3f} [{one.low:+.3f}, {one.high:+.3f}]",
            p + ("*" if one.test == "bootstrap" else ""),
            f"{one.won} / {one.lost} / {one.questions}",
        )
    console = Console()
    console.print(table)
    measured = [side.evaluation.results["measured"] for side in (before, after)]
    for side, text in zip((before, after), measured, strict=True):
        if measured[0] != measured[1]:
            console.print(f"{side.label}: {text}", highlight=False, markup=False)
    if is_quiet():
        return
    for line in (
        "p: McNemar's exact test; with * from questions resampled in pairs",
        "each p is of one figure: of twenty without any difference one is below .05",
    ):
        console.print(line, highlight=False)


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(
        prog="debate-eval compare",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("sides", nargs="+", metavar="FOLDER[:POLICY]", help="what is compared")
    parser.add_argument("--baseline", metavar="POLICY", help="compared with all others")
    parser.add_argument("--all", action="store_true", help="also figures that tables do not list")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    add_options(parser, "debate_train")
    return parser
