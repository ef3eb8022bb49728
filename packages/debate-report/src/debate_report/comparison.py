"""Several runs, or seeds of one recipe, side by side on one page."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from markupsafe import Markup

from debate_report.json_values import as_mappings, finite
from debate_report.number_texts import write_value
from debate_report.page_templates import render
from debate_report.panels import meaning
from debate_report.run_files import RunFiles
from debate_report.stages import recipe_of

MAX_LABEL_CHARS = 500
MAX_TEXT_CHARS = 100_000
MAX_KEYS = 24
SETTING_KEYS = ("model", "data", "reward", "loss")
# Runs that differ in these alone are seeds of one recipe.
SEED_KEYS = ("seed", "name")
# Keys of results.json with a place of their own on the page, or of no use there.
NOT_FOLDED = ("table", "sha256", "summary", "headline", "evaluation_files")


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean with the ends of its interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A measure before and after a run; `change` is on the same questions, as the file has it."""

    label: str
    name: str
    before: MeanInterval
    after: MeanInterval
    change: object

    @property
    def difference(self) -> float:
        """The change on the same questions, else the difference of the means."""
        if isinstance(self.change, Mapping):
            difference = finite(self.change.get("difference"))
            if difference is not None:
                return difference
        return self.after.mean - self.before.mean


def results(run_results: Mapping[str, object] | None) -> Markup:
    """Render the table of `results.json`, then its other values folded below."""
    if run_results is None:
        return render("results.html", found=False, others="")
    rows = list(_result_rows(run_results.get("table")))
    ends: list[float] = []
    for row in rows:
        for interval in (row.before, row.after):
            ends += (interval.mean, interval.low, interval.high)
    are_shares = not ends or (min(ends) >= 0 and max(ends) <= 1)
    cells = []
    for row in rows:
        cells.append(
            {
                "measure": row.label,
                "why": meaning(row.name),
                "cells": [_mean_cell(row.before, are_shares), _mean_cell(row.after, are_shares)],
                "change": _change_text(row.difference, are_shares),
                "beside": _paired_change(row.change, are_shares),
            }
        )
    others = {key: value for key, value in run_results.items() if key not in NOT_FOLDED}
    return render(
        "results.html",
        found=True,
        share=are_shares,
        summary=str(run_results.get("summary") or "")[:MAX_LABEL_CHARS],
        rows=cells,
        others=as_text(others) if others else "",
    )


def as_text(values: Mapping[str, object]) -> str:
    """Write values of a file as JSON that fits on a page."""
    return json.dumps(values, indent=1, ensure_ascii=False)[:MAX_TEXT_CHARS]


def _result_rows(table: object) -> Iterator[ResultRow]:
    for row in as_mappings(table):
        before = _read_interval(row.get("before"))
        after = _read_interval(row.get("after"))
        if before is not None and after is not None:
            yield ResultRow(
                label=str(row.get("measure", ""))[:MAX_LABEL_CHARS],
                name=str(row.get("name", ""))[:MAX_LABEL_CHARS],
                before=before,
                after=after,
                change=row.get("change"),
            )


def _read_interval(value: object) -> MeanInterval | None:
    """Read a mean and its interval; a bare number or missing ends give an interval of no width."""
    if not isinstance(value, Mapping):
        number = finite(value)
        return None if number is None else MeanInterval(number, number, number)
    mean = finite(value.get("mean"))
    if mean is None:
        return None
    low = finite(value.get("low"))
    high = finite(value.get("high"))
    return MeanInterval(
        mean=mean, low=mean if low is None else low, high=mean if high is None else high
    )


def _mean_cell(interval: MeanInterval, are_shares: bool) -> tuple[str, str]:
    """Write a mean and its interval, empty when it has no width."""
    if are_shares:
        mean = write_value(interval.mean, "share")
        ends = f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    else:
        mean = write_value(interval.mean, "number")
        low = write_value(interval.low, "number")
        high = write_value(interval.high, "number")
        ends = f"[{low}, {high}]"
    return mean, ends if interval.low < interval.high else ""


def _paired_change(change: object, are_shares: bool) -> tuple[str, str]:
    """Write the interval of a change on the same questions, and how many of them changed."""
    if not isinstance(change, Mapping):
        return "", ""
    low = finite(change.get("low"))
    high = finite(change.get("high"))
    if low is None or high is None:
        return "", ""
    interval = f"[{_change_text(low, are_shares)}, {_change_text(high, are_shares)}]"
    num_won = finite(change.get("won"))
    num_lost = finite(change.get("lost"))
    num_questions = finite(change.get("questions"))
    if num_won is None or num_lost is None:
        return interval, ""
    changed_questions = f"{num_won:,.0f} up, {num_lost:,.0f} down"
    if num_questions is not None:
        changed_questions += f" of {num_questions:,.0f}"
    return interval, changed_questions


def _change_text(change: float, are_shares: bool) -> str:
    # Adding 0.0 turns a rounded −0.0 into 0.0.
    if are_shares:
        text = f"{round(100 * change, 1) + 0.0:+.1f}"
    else:
        text = f"{round(change, 3) + 0.0:+.3f}"
    return text.replace("-", "−")


def setting_of(run: RunFiles) -> dict[str, str]:
    """Collect the type or name of a recipe's main parts, and its seed."""
    recipe = recipe_of(run)
    setting = {}
    for key in SETTING_KEYS:
        part = recipe.get(key)
        if isinstance(part, Mapping):
            name = part.get("name") or part.get("type")
            if name:
                setting[key] = str(name)[:100]
    if "seed" in recipe:
        setting["seed"] = str(recipe["seed"])[:20]
    return setting


def shared_setting(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    """Collect the number of runs, and the settings that all of them share."""
    settings = [setting_of(run) for run in runs]
    shared = [("runs", str(len(runs)))]
    for key, name in settings[0].items():
        if all(setting.get(key) == name for setting in settings):
            shared.append((key, name))
    return shared


def comparison(runs: Sequence[RunFiles]) -> Markup:
    """Render the keys in which runs differ, and their results; of seeds of one recipe the mean."""
    run_names = [run.name for run in runs]
    differences = _differing_keys(runs)
    are_seeds = all(row[0] in SEED_KEYS for row in differences)
    columns = ["measure", *run_names]
    if are_seeds:
        columns.append("mean ± deviation")
    return render(
        "comparison.html",
        head=["key of the recipe", *run_names],
        about=differences[:MAX_KEYS],
        more=max(0, len(differences) - MAX_KEYS),
        columns=columns,
        results=list(_compared_results(runs, with_mean=are_seeds)),
    )


def _leaves(value: object, dotted_key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted keys of a recipe with their values."""
    if isinstance(value, Mapping) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{dotted_key}.{key}" if dotted_key else str(key))
    else:
        yield dotted_key, str(value)


def _differing_keys(runs: Sequence[RunFiles]) -> list[list[str]]:
    """List the keys in which recipes differ, with a cell for each run."""
    recipes = [dict(_leaves(recipe_of(run))) for run in runs]
    all_keys: dict[str, None] = {}
    for recipe in recipes:
        all_keys.update(dict.fromkeys(recipe))
    # Keys at the top of the recipe say most.
    keys = sorted(all_keys, key=lambda key: key.count("."))
    rows = []
    for key in keys:
        if len({recipe.get(key) for recipe in recipes}) > 1:
            rows.append([key[:80], *(recipe.get(key, "–")[:60] for recipe in recipes)])
    return rows


def _compared_results(runs: Sequence[RunFiles], *, with_mean: bool) -> Iterator[list[str]]:
    """Yield each measure with its mean after each run, and its change."""
    tables = []
    for run in runs:
        rows = _result_rows((run.results or {}).get("table"))
        tables.append({row.label: row for row in rows})
    labels: dict[str, None] = {}
    for table in tables:
        labels.update(dict.fromkeys(table))
    for label in labels:
        cells = []
        changes = []
        for table in tables:
            if label not in table:
                cells.append("–")
                continue
            row = table[label]
            change = _change_text(row.difference, are_shares=False)
            cells.append(f"{write_value(row.after.mean, 'number')} ({change})")
            changes.append(row.difference)
        if with_mean:
            mean = _change_text(fmean(changes), are_shares=False)
            deviation = f" ± {stdev(changes):.3f}" if len(changes) > 1 else ""
            cells.append(f"{mean}{deviation}")
        yield [label, *cells]
