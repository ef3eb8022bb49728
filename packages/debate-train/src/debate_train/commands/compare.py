"""`debate-eval compare`: finished evaluations side by side, paired on the same questions."""

import argparse
import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from debate_protocol.command_line import is_quiet
from debate_protocol.plugins import did_you_mean
from debate_rewards.estimates import Paired, paired, range_of
from debate_train.checkpoints.run_directory import read_as_written
from debate_train.checkpoints.whole_files import write_whole
from debate_train.commands.evaluation_files import (
    PLAN,
    RESULTS,
    SCHEMA,
    Found,
    at_equal_tokens,
    read_found,
)
from debate_train.commands.options import compare_parser
from debate_train.commands.recipe_command import DONE, command
from debate_train.data.benchmarks import BENCHMARKS
from debate_train.errors import UsageError
from debate_train.evaluation.settings import full_name

Values = Mapping[str, Mapping[str, float]]
"""Figure → question id → value."""


@dataclass(frozen=True, slots=True)
class FinishedEvaluation:
    """What an evaluation found."""

    path: Path
    results: Found
    """`results.json`."""
    values: Mapping[str, Values]
    """What each policy was found to do on each question."""


def read_results(path: Path) -> Found:
    """Return `results.json` of the folder of an evaluation.

    Raises:
        UsageError: There is none, it is not finished, or its files are not as they were written.
    """
    file = path / RESULTS
    if not file.is_file():
        begun = (path / PLAN).is_file()
        why = "an evaluation that is not finished: go on with --resume" if begun else "no results"
        raise UsageError(f"{path}: found {why}; expected what debate-eval --output has written")
    results = read_as_written(file)
    if results is None or results.get("schema") != SCHEMA:
        raise UsageError(f"{file}: is not as debate-eval has written it (schema {SCHEMA})")
    return results


def read_finished(path: Path) -> FinishedEvaluation:
    """Return the results of an evaluation with all values."""
    results = read_results(path)
    names = [str(policy["name"]) for policy in results["policies"]]
    found = {name: read_found(path / "policies" / f"{name}.json", name) for name in names}
    return FinishedEvaluation(path, results, {name: one["values"] for name, one in found.items()})


@dataclass(frozen=True, slots=True)
class Side:
    """One policy of one evaluation."""

    label: str
    policy: str
    evaluation: FinishedEvaluation


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One figure of a side beside the baseline's."""

    figure: str
    shown: str
    """The figure as tables call it."""
    side: str
    found: Paired


def compare_main(argv: Sequence[str]) -> int:
    """Run `debate-eval compare`; return its exit code."""
    return command("debate-eval compare", compare_parser(), argv, _compare)


def _compare(arguments: argparse.Namespace) -> int:
    baseline, *others = sides_of(arguments.sides)
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
    """Return the policies that `FOLDER` or `FOLDER:POLICY` name, each once, in order.

    Raises:
        UsageError: A folder or policy is not there.
    """
    found: dict[tuple[Path, str], FinishedEvaluation] = {}
    for text in texts:
        is_folder = Path(text).is_dir() or ":" not in text
        folder, _, policy = (text, "", "") if is_folder else text.rpartition(":")
        own = read_finished(Path(folder))
        if policy and policy not in own.values:
            known, near = " or ".join(own.values), did_you_mean(policy, own.values)
            raise UsageError(f"{folder}: found no policy {policy!r}; expected {known}{near}")
        for name in [policy] if policy else own.values:
            found.setdefault((own.path, name), own)
    names = [policy for _, policy in found]
    return [
        Side(policy if names.count(policy) == 1 else f"{path}:{policy}", policy, own)
        for (path, policy), own in found.items()
    ]


def compared(before: Side, after: Side, *, all_: bool = False) -> list[ComparedRow]:
    """Return the figures of two policies beside each other, as far as both have them.

    Args:
        before: The baseline.
        after: Whose figures are higher where the difference is positive.
        all_: Also those that tables do not list.

    Raises:
        UsageError: They were asked other questions.
    """
    _refuse_other_questions(before, after)
    sides = (before.evaluation.results, after.evaluation.results)
    shown = {**sides[1]["rows"], **sides[0]["rows"]}
    listed = {name for results in sides for name in results.get("listed", results["rows"])}
    mine, theirs = (side.evaluation.values[side.policy] for side in (before, after))
    found = []
    for figure, values in mine.items():
        is_wanted = all_ or (shown.get(figure) and figure in listed)
        if is_wanted and values.keys() & theirs.get(figure, {}).keys():
            both = paired(values, theirs[figure], within=range_of(figure))
            found.append(ComparedRow(figure, shown.get(figure) or figure, after.label, both))
    return found


def _refuse_other_questions(before: Side, after: Side) -> None:
    first, second = (side.evaluation.results["questions"] for side in (before, after))
    if first["sha256"] != second["sha256"]:
        raise UsageError(
            f"found other questions on both sides: {first['count']} and {second['count']}; "
            "expected the same data, --split and --questions"
        )


def _print(before: Side, after: Side, rows: Sequence[ComparedRow]) -> None:
    table = Table(title=f"{before.label} → {after.label}, the same questions")
    table.add_column("measure")
    for column in (before.label, after.label, "difference [95 %]", "p", "won / lost / of"):
        table.add_column(column, justify="right", no_wrap=column.startswith("difference"))
    for row in rows:
        one = row.found
        ends = f"{one.difference:+.3f} [{one.low:+.3f}, {one.high:+.3f}]"
        p = f"{one.p:.3f}" if one.p >= 0.001 else f"{one.p:.0e}"
        p += "*" * (one.test == "bootstrap")
        counts = f"{one.won} / {one.lost} / {one.questions}"
        table.add_row(row.shown, f"{one.before:.3f}", f"{one.after:.3f}", ends, p, counts)
    console = Console()
    console.print(table)
    measured = [side.evaluation.results["measured"] for side in (before, after)]
    for side, text in zip((before, after), measured, strict=True):
        if measured[0] != measured[1]:
            console.print(f"{side.label}: {text}", highlight=False, markup=False)
    if not is_quiet():
        console.print("p: McNemar's exact test; with * from questions resampled in pairs")
        console.print("each p is of one figure: of twenty without any difference one is below .05")


TABLE = "benchmarks.csv"
TASK = "gym."
"""What stands before a task of reasoning-gym where others are benchmarks."""
EQUAL = "at equal tokens"
_GAINS = {"maj": ("Maj", "Debate", "Δ"), "central": ("center first", "center last", "center Δ")}
"""What the first, the last and the difference of figures of debates are called; those of the center
are of its own answers."""

Row = tuple[str, str, str, list[float | None]]
"""Policy, mode, what the figure is called, and its mean on each benchmark and on average."""


def chosen_benchmarks(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the changes of the recipe that each `NAME[,key=value…]` asks for, by name.

    Raises:
        UsageError: There is no such benchmark, or one is named twice.
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, *changes = re.split(r",(?=[\w.]+=)", text)
        is_task = name.startswith(TASK)
        if name in found or not (is_task or name in BENCHMARKS):
            known = ", ".join(BENCHMARKS)
            raise UsageError(
                f"--benchmark: found {name!r}{' twice' if name in found else ''}; expected one of "
                f"{known}{did_you_mean(name, BENCHMARKS)}, or {TASK}NAME for a task of "
                "reasoning-gym, each once"
            )
        own = [f"data.{key}=null" for key in ("path", "test", "test_path")]  # Of the recipe's data.
        found[name] = ["data.type=benchmark", f"data.name={name}", *own, *changes]
        if is_task:
            tasks = name.removeprefix(TASK)
            found[name] = ["data.type=reasoning_gym", f"data.tasks={{{tasks}: {{}}}}"]
            found[name] += [f"data.only=[{tasks}]", *changes]
    return found


def finished_table(folder: Path, names: Sequence[str]) -> None:
    """Write and print the table of evaluations that `folder` holds under these names."""
    results = [read_results(folder / name) for name in names]
    rows = list(_rows(results))
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("policy", "mode", "figure", *names, "average"))
    for policy, mode, figure, means in rows:
        table.writerow((policy, mode, figure, *("" if m is None else m for m in means)))
    write_whole(folder / TABLE, text.getvalue().encode())
    shown = Table(title="in %, with the average of the benchmarks", box=SIMPLE_HEAD)
    for column in ("policy", "mode", "", *names, "average"):
        shown.add_column(column, justify="left" if column in ("policy", "mode") else "right")
    for policy, mode, figure, means in rows:
        shown.add_row(
            policy, mode, figure, *("–" if m is None else f"{100 * m:.1f}" for m in means)
        )
    Console().print(shown)
    print(f"table: {folder / TABLE}")


def _rows(results: Sequence[Found]) -> Iterator[Row]:
    """Yield the figures of every policy and mode that has accuracies, with their average last.

    Of debates these are the majority of the first and of the last answers and the difference, of
    single replies the mean and the majority of K, where benchmarks may have a K of their own. At
    the end stands what each way to answer reaches with the tokens of whole debates.

    Source: SDRL (paper), tables 1 and 2; the average is taken over the benchmarks' means.
    """
    by_policy = [{one["name"]: one for one in found["policies"]} for found in results]
    for policy in by_policy[0]:
        for mode in (*results[0]["modes"], EQUAL):
            found = [_figures(own[policy], mode) for own in by_policy]
            for figure in dict.fromkeys(name for own in found for name in own):
                means = [own.get(figure) for own in found]
                known = [mean for mean in means if mean is not None]
                average = fmean(known) if len(known) == len(means) else None
                yield policy, mode, figure, [*means, average]


def _figures(one: Found, mode: str) -> dict[str, float]:
    """Return the means of a mode's figures by what the table calls them."""
    if mode == EQUAL:
        ends = list(at_equal_tokens(one).values())[-1:]
        return {name: point["mean"] for points in ends for name, point in points.items()}
    measured = one["figures"]
    names = {
        called: full_name(mode, f"{kind}/{end}")
        for kind, own in _GAINS.items()
        for end, called in zip(("first", "last", "delta"), own, strict=True)
    }
    if full_name(mode, "maj/last") not in measured:
        names["mean@K"] = full_name(mode, "accuracy")
        majority = full_name(mode, "maj@")
        most = (int(name.removeprefix(majority)) for name in measured if name.startswith(majority))
        names["maj@K"] = f"{majority}{max(most, default=0)}"
    return {called: measured[name]["mean"] for called, name in names.items() if name in measured}
