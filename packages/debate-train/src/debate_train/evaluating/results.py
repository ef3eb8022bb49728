"""The results of an evaluation: what is found of each policy, as JSON, as rows and on a screen."""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from debate_train.evaluating.directory import (
    RESULTS,
    SCHEMA,
    TABLE,
    VALUES,
    EvaluationDirectory,
    Plan,
)
from debate_train.evaluating.plots import plots
from debate_train.evaluating.policies import NamedPolicy
from debate_train.evaluation.curves import Point
from debate_train.evaluation.measuring import Measures
from debate_train.evaluation.settings import Setup
from debate_train.run_files.collected_files import plain, with_hash, write_json
from debate_train.running.results import measures_json

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
    from debate_rewards.metrics.intervals import bootstrap_interval

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
