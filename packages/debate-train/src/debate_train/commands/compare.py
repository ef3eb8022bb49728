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
    PolicyResults,
    curves_at_equal_tokens,
    read_policy_results,
)
from debate_train.commands.options import compare_parser
from debate_train.commands.recipe_command import DONE, command
from debate_train.data.benchmarks import BENCHMARKS
from debate_train.errors import UsageError
from debate_train.evaluation.settings import full_name

TABLE = "benchmarks.csv"
TASK = "gym."
"""Prefix of a task of reasoning-gym in the place of a benchmark's name."""
EQUAL_TOKENS = "at equal tokens"

FigureValues = Mapping[str, Mapping[str, float]]
"""Figure → question id → value."""

TableRow = tuple[str, str, str, list[float | None]]
"""Policy, mode, name of the figure, and its mean on each benchmark and on average."""


@dataclass(frozen=True, slots=True)
class FinishedEvaluation:
    """Results of an evaluation, with all values."""

    path: Path
    results: PolicyResults
    """`results.json`."""
    values: Mapping[str, FigureValues]
    """Values of each policy on each question."""


def read_results(path: Path) -> PolicyResults:
    """Read `results.json` of the folder of an evaluation.

    Raises:
        UsageError: The file is missing or changed, or the evaluation is not finished.
    """
    file = path / RESULTS
    if not file.is_file():
        has_begun = (path / PLAN).is_file()
        why = "no results"
        if has_begun:
            why = "an evaluation that is not finished: go on with --resume"
        raise UsageError(f"{path}: found {why}; expected what debate-eval --output has written")
    results = read_as_written(file)
    if results is None or results.get("schema") != SCHEMA:
        raise UsageError(f"{file}: is not as debate-eval has written it (schema {SCHEMA})")
    return results


@dataclass(frozen=True, slots=True)
class Side:
    """A policy of an evaluation."""

    label: str
    policy: str
    evaluation: FinishedEvaluation


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A figure of a side beside the baseline's."""

    figure: str
    title: str
    """The figure's name in tables."""
    side: str
    comparison: Paired


def compare_main(argv: Sequence[str]) -> int:
    """Run `debate-eval compare` and return the exit code."""
    return command("debate-eval compare", compare_parser(), argv, _compare)


def _compare(arguments: argparse.Namespace) -> int:
    baseline, *others = sides_of(arguments.sides)
    if not others:
        raise UsageError(
            f"found {baseline.label!r} alone; expected another policy to compare it with"
        )
    rows: list[ComparedRow] = []
    for other in others:
        rows += compare_sides(baseline, other, all_=arguments.all)
    if not rows:
        raise UsageError("found no figure that both sides have; expected the same modes")
    if arguments.json:
        compared = [
            {"figure": row.figure, "after": row.side, **asdict(row.comparison)} for row in rows
        ]
        content = {"baseline": baseline.label, "compared": compared}
        print(json.dumps(content, ensure_ascii=False))
        return DONE
    for other in others:
        _print_comparison(baseline, other, [row for row in rows if row.side == other.label])
    return DONE


def sides_of(texts: Sequence[str]) -> list[Side]:
    """Read the policies of `FOLDER` or `FOLDER:POLICY`, each once, in order.

    Raises:
        UsageError: A folder or policy is not there.
    """
    evaluations: dict[tuple[Path, str], FinishedEvaluation] = {}
    for text in texts:
        # A folder's name may itself contain a colon.
        is_folder = Path(text).is_dir() or ":" not in text
        folder, _, policy = (text, "", "") if is_folder else text.rpartition(":")
        path = Path(folder)
        results = read_results(path)
        values = {}
        for entry in results["policies"]:
            name = str(entry["name"])
            policy_file = path / "policies" / f"{name}.json"
            values[name] = read_policy_results(policy_file, name)["values"]
        if policy and policy not in values:
            raise UsageError(
                f"{folder}: found no policy {policy!r}; expected {' or '.join(values)}"
                f"{did_you_mean(policy, values)}"
            )
        evaluation = FinishedEvaluation(path=path, results=results, values=values)
        for name in [policy] if policy else values:
            evaluations.setdefault((path, name), evaluation)

    policy_names = [policy for _, policy in evaluations]
    sides = []
    for (path, policy), evaluation in evaluations.items():
        is_unique = policy_names.count(policy) == 1
        label = policy if is_unique else f"{path}:{policy}"
        sides.append(Side(label=label, policy=policy, evaluation=evaluation))
    return sides


def compare_sides(before: Side, after: Side, *, all_: bool = False) -> list[ComparedRow]:
    """Compare the common figures of two policies, on the same questions.

    Args:
        before: The baseline.
        after: Has the higher figures where the difference is positive.
        all_: Also compare figures without a place in tables.

    Raises:
        UsageError: The evaluations have different questions.
    """
    results_before = before.evaluation.results
    results_after = after.evaluation.results
    questions_before = results_before["questions"]
    questions_after = results_after["questions"]
    if questions_before["sha256"] != questions_after["sha256"]:
        raise UsageError(
            f"found other questions on both sides: {questions_before['count']} and "
            f"{questions_after['count']}; expected the same data, --split and --questions"
        )

    titles = {**results_after["rows"], **results_before["rows"]}
    listed: set[str] = set()
    for results in (results_before, results_after):
        # Evaluations of earlier versions have no "listed": their tables had every row.
        listed.update(results.get("listed", results["rows"]))
    values_after = after.evaluation.values[after.policy]
    rows = []
    for figure, values in before.evaluation.values[before.policy].items():
        title = titles.get(figure)
        is_selected = all_ or (title and figure in listed)
        common_questions = values.keys() & values_after.get(figure, {}).keys()
        if is_selected and common_questions:
            comparison = paired(values, values_after[figure], within=range_of(figure))
            rows.append(ComparedRow(figure, title or figure, after.label, comparison))
    return rows


def _print_comparison(before: Side, after: Side, rows: Sequence[ComparedRow]) -> None:
    table = Table(title=f"{before.label} → {after.label}, the same questions")
    table.add_column("measure")
    for column in (before.label, after.label, "difference [95 %]", "p", "won / lost / of"):
        table.add_column(column, justify="right", no_wrap=column.startswith("difference"))
    for row in rows:
        comparison = row.comparison
        interval = f"[{comparison.low:+.3f}, {comparison.high:+.3f}]"
        p_text = f"{comparison.p:.3f}" if comparison.p >= 0.001 else f"{comparison.p:.0e}"
        if comparison.test == "bootstrap":
            p_text += "*"
        table.add_row(
            row.title,
            f"{comparison.before:.3f}",
            f"{comparison.after:.3f}",
            f"{comparison.difference:+.3f} {interval}",
            p_text,
            f"{comparison.won} / {comparison.lost} / {comparison.questions}",
        )
    console = Console()
    console.print(table)
    # The settings are shown only where they explain a difference.
    settings_before = before.evaluation.results["measured"]
    settings_after = after.evaluation.results["measured"]
    if settings_before != settings_after:
        console.print(f"{before.label}: {settings_before}", highlight=False, markup=False)
        console.print(f"{after.label}: {settings_after}", highlight=False, markup=False)
    if not is_quiet():
        console.print("p: McNemar's exact test; with * from questions resampled in pairs")
        console.print("each p is of one figure: of twenty without any difference one is below .05")


def chosen_benchmarks(texts: Sequence[str]) -> dict[str, list[str]]:
    """Parse `NAME[,key=value…]` into the changes of the recipe for each benchmark, by name.

    Raises:
        UsageError: There is no such benchmark, or a benchmark is named twice.
    """
    changes: dict[str, list[str]] = {}
    for text in texts:
        # A comma also divides the items of a value; only before `key=` it divides settings.
        name, *settings = re.split(r",(?=[\w.]+=)", text)
        is_task = name.startswith(TASK)
        if name in changes or not (is_task or name in BENCHMARKS):
            raise UsageError(
                f"--benchmark: found {name!r}{' twice' if name in changes else ''}; expected one "
                f"of {', '.join(BENCHMARKS)}{did_you_mean(name, BENCHMARKS)}, or {TASK}NAME for a "
                "task of reasoning-gym, each once"
            )
        if is_task:
            task = name.removeprefix(TASK)
            changes[name] = [
                "data.type=reasoning_gym",
                f"data.tasks={{{task}: {{}}}}",
                f"data.only=[{task}]",
                *settings,
            ]
        else:
            # The recipe's own data may be files, which a benchmark does not take.
            changes[name] = [
                "data.type=benchmark",
                f"data.name={name}",
                "data.path=null",
                "data.test=null",
                "data.test_path=null",
                *settings,
            ]
    return changes


def finished_table(folder: Path, names: Sequence[str]) -> None:
    """Write and print the table of the evaluations with these names in `folder`."""
    rows = list(_table_rows([read_results(folder / name) for name in names]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("policy", "mode", "figure", *names, "average"))
    for policy, mode, figure, means in rows:
        cells = ["" if mean is None else mean for mean in means]
        writer.writerow((policy, mode, figure, *cells))
    write_whole(folder / TABLE, text.getvalue().encode())

    table = Table(title="in %, with the average of the benchmarks", box=SIMPLE_HEAD)
    for column in ("policy", "mode", "", *names, "average"):
        table.add_column(column, justify="left" if column in ("policy", "mode") else "right")
    for policy, mode, figure, means in rows:
        percentages = ["–" if mean is None else f"{100 * mean:.1f}" for mean in means]
        table.add_row(policy, mode, figure, *percentages)
    Console().print(table)
    print(f"table: {folder / TABLE}")


def _table_rows(results: Sequence[PolicyResults]) -> Iterator[TableRow]:
    """Yield the figures of every policy and mode with accuracies, with their average last.

    Debates have the majority of the first and of the last answers and the difference; single
    replies have the mean and the majority of K, and benchmarks may have different K. The last
    figures of a policy compare all ways to answer at the tokens of whole debates.

    Source: SDRL (paper), tables 1 and 2; the average is taken over the benchmarks' means.
    """
    by_policy = []
    for benchmark in results:
        by_policy.append({policy["name"]: policy for policy in benchmark["policies"]})
    for policy in by_policy[0]:
        for mode in (*results[0]["modes"], EQUAL_TOKENS):
            by_benchmark = [_means_by_title(policies[policy], mode) for policies in by_policy]
            titles: dict[str, None] = {}
            for means_by_title in by_benchmark:
                titles |= dict.fromkeys(means_by_title)
            for title in titles:
                means = [means_by_title.get(title) for means_by_title in by_benchmark]
                # An average over fewer benchmarks would not compare with the other rows.
                measured = [mean for mean in means if mean is not None]
                average = fmean(measured) if len(measured) == len(means) else None
                yield policy, mode, title, [*means, average]


def _means_by_title(results: PolicyResults, mode: str) -> dict[str, float]:
    """Collect the means of a mode's figures, keyed by the figure's title in the table."""
    if mode == EQUAL_TOKENS:
        budgets = list(curves_at_equal_tokens(results).values())
        largest = budgets[-1] if budgets else {}
        return {name: point["mean"] for name, point in largest.items()}
    figures = results["figures"]
    names = {
        "Maj": full_name(mode, "maj/first"),
        "Debate": full_name(mode, "maj/last"),
        "Δ": full_name(mode, "maj/delta"),
        # The center's own answers, in debates that have one.
        "center first": full_name(mode, "central/first"),
        "center last": full_name(mode, "central/last"),
        "center Δ": full_name(mode, "central/delta"),
    }
    is_debate = names["Debate"] in figures
    if not is_debate:
        names["mean@K"] = full_name(mode, "accuracy")
        prefix = full_name(mode, "maj@")
        sizes = [int(name.removeprefix(prefix)) for name in figures if name.startswith(prefix)]
        names["maj@K"] = f"{prefix}{max(sizes, default=0)}"
    return {title: figures[name]["mean"] for title, name in names.items() if name in figures}
