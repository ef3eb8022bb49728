"""Several benchmarks in one call: a row for each policy and mode, a column for each benchmark."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from debate_protocol.plugins import did_you_mean
from debate_train.checkpointing.whole_files import write_whole
from debate_train.data.benchmarks import BENCHMARKS
from debate_train.errors import UsageError
from debate_train.evaluating.finished.reading import read_finished
from debate_train.evaluation.settings import full_name

TABLE = "benchmarks.csv"
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
        if name not in BENCHMARKS or name in found:
            known = ", ".join(BENCHMARKS)
            raise UsageError(
                f"--benchmark: found {name!r}{' twice' if name in found else ''}; expected one of "
                f"{known}{did_you_mean(name, BENCHMARKS)}, each once"
            )
        own = [f"data.{key}=null" for key in ("path", "test", "test_path")]  # Of the recipe's data.
        found[name] = ["data.type=benchmark", f"data.name={name}", *own, *changes]
    return found


def finished_table(folder: Path, names: Sequence[str]) -> None:
    """Write and print the table of evaluations that `folder` holds under these names."""
    results = [read_finished(folder / name).results for name in names]
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
    for (policy, mode), own in groupby(rows, key=lambda row: row[:2]):
        for place, (_, _, figure, means) in enumerate(own):
            said = ("", "") if place else (policy, mode)
            shown.add_row(*said, figure, *map(_percent, means))
    Console().print(shown)
    print(f"table: {folder / TABLE}")


def _rows(results: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield the figures of every policy and mode that has accuracies, with their average last.

    Of debates these are the majority of the first and of the last answers and the difference, of
    single replies the mean and the majority of K, where benchmarks may have a K of their own.

    Source: SDRL (paper), tables 1 and 2; the average is that of the benchmarks' means.
    """
    by_policy = [{one["name"]: one["figures"] for one in found["policies"]} for found in results]
    for policy in by_policy[0]:
        for mode in results[0]["modes"]:
            found = [_figures(own[policy], mode) for own in by_policy]
            for figure in dict.fromkeys(name for own in found for name in own):
                means = [own.get(figure) for own in found]
                known = [mean for mean in means if mean is not None]
                average = fmean(known) if len(known) == len(means) else None
                yield policy, mode, figure, [*means, average]


def _figures(measured: Mapping[str, Any], mode: str) -> dict[str, float]:
    """Return the means of a mode's figures by what the table calls them."""
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


def _percent(mean: float | None) -> str:
    return "–" if mean is None else f"{100 * mean:.1f}"
