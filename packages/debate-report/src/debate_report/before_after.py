"""What a run changed: one sentence, and a forest plot of measures before and after it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from debate_report.json_values import as_list, as_mappings, finite
from debate_report.number_texts import tick_text, write_value
from debate_report.page_templates import render
from debate_report.timeline import Axis, ticks

MAX_LABEL_CHARS = 500
MAX_TEXT_CHARS = 100_000
# Keys of results.json with a place of their own on the page, or of no use there.
NOT_FOLDED = ("table", "sha256", "summary", "headline", "evaluation_files")
# Of the measures whose names end so, or in these after an evaluation mode of the recipe.
MEANINGS = {
    "direct/accuracy": "one reply alone, without a debate",
    "maj/last": "the answer of most agents in the last round",
    "peer_vote/accuracy": "the answer that the others voted up most",
    "judge/accuracy": "votes that prefer a right answer to a wrong one",
    "format": "replies in which an answer can be read",
    "central/accuracy": "the last answer of the agent that aggregates",
    "vote_win_rate": "votes won against opponents with the weights of the start",
}
# The plot's ends, in percent of its column.
PLOT_START, PLOT_END = 2.0, 98.0


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """A mean with the ends of the interval."""

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
    change: Mapping[str, object]

    @property
    def difference(self) -> float:
        """The change on the same questions, else the difference of the means."""
        difference = finite(self.change.get("difference"))
        return self.after.mean - self.before.mean if difference is None else difference

    @property
    def change_interval(self) -> MeanInterval | None:
        """The change and the interval around it, where questions were paired."""
        low = finite(self.change.get("low"))
        high = finite(self.change.get("high"))
        if low is None or high is None:
            return None
        return MeanInterval(mean=self.difference, low=low, high=high)

    @property
    def is_beyond_chance(self) -> bool:
        """Whether the interval of the change leaves out 0."""
        interval = self.change_interval
        return interval is not None and (interval.low > 0 or interval.high < 0)


def results(run_results: Mapping[str, object] | None) -> Markup:
    """Render `results.json`: the sentence, then the forest plot."""
    if run_results is None:
        return render("results.html", found=False)
    rows = list(result_rows(run_results.get("table")))
    are_shares = _are_shares(rows)
    # What changed most comes first, and what may be chance last.
    shown_rows = sorted(rows, key=lambda row: (not row.is_beyond_chance, -abs(row.difference)))
    axis = _change_axis(rows) if are_shares else None
    return render(
        "results.html",
        found=True,
        share=are_shares,
        sentence=headline_of(run_results),
        rows=[_cells(row, are_shares, axis) for row in shown_rows],
        axis=_axis_marks(axis),
    )


def other_results(run_results: Mapping[str, object] | None) -> str:
    """Write the values of `results.json` without another place on the page."""
    others = {key: value for key, value in (run_results or {}).items() if key not in NOT_FOLDED}
    return as_text(others) if others else ""


def headline_of(run_results: Mapping[str, object]) -> str:
    """Say in a sentence what became of the trained measures.

    Without paired changes it is the summary of the file.
    """
    rows = list(result_rows(run_results.get("table")))
    headline = as_list(run_results.get("headline"))
    paired_rows = [row for row in rows if row.change_interval is not None]
    main_rows = [row for row in paired_rows if row.name in headline]
    if not main_rows or not _are_shares(main_rows):
        return str(run_results.get("summary") or "")[:MAX_LABEL_CHARS]
    sentence = "; ".join(_describe(row) for row in main_rows)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def _describe(row: ResultRow) -> str:
    before = write_value(row.before.mean, "share")
    after = write_value(row.after.mean, "share")
    if not row.is_beyond_chance:
        return f"{row.label} did not change beyond chance ({before} to {after})"
    verb = "rose" if row.difference > 0 else "fell"
    return f"{row.label} {verb} from {before} to {after}"


def as_text(values: Mapping[str, object]) -> str:
    """Write values of a file as JSON, short enough for a page."""
    return json.dumps(values, indent=1, ensure_ascii=False)[:MAX_TEXT_CHARS]


def result_rows(table: object) -> Iterator[ResultRow]:
    """Yield the readable rows of a table of results."""
    for row in as_mappings(table):
        before = read_interval(row.get("before"))
        after = read_interval(row.get("after"))
        change = row.get("change")
        if before is not None and after is not None:
            yield ResultRow(
                label=str(row.get("measure", ""))[:MAX_LABEL_CHARS],
                name=str(row.get("name", ""))[:MAX_LABEL_CHARS],
                before=before,
                after=after,
                change=change if isinstance(change, Mapping) else {},
            )


def read_interval(value: object) -> MeanInterval | None:
    """Read a mean and an interval; a bare number or missing ends give an interval of no width."""
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


def _are_shares(rows: Sequence[ResultRow]) -> bool:
    ends: list[float] = []
    for row in rows:
        for interval in (row.before, row.after):
            ends += (interval.mean, interval.low, interval.high)
    return not ends or (min(ends) >= 0 and max(ends) <= 1)


def _change_axis(rows: Sequence[ResultRow]) -> Axis | None:
    """Build the axis of changes: 0 and all intervals lie on it. `None` without any change."""
    ends = [0.0]
    for row in rows:
        interval = row.change_interval
        ends.append(row.difference)
        if interval is not None:
            ends += (interval.low, interval.high)
    low = min(ends)
    high = max(ends)
    if high <= low:
        return None
    margin = 0.04 * (high - low)
    return Axis(low=low - margin, high=high + margin, start=PLOT_START, end=PLOT_END)


def _axis_marks(axis: Axis | None) -> list[tuple[float, str, bool]]:
    """List the marks of the axis: place in percent, label in points, whether it is 0."""
    if axis is None:
        return []
    marks = ticks(axis.low, axis.high, 5)
    points = [100 * mark for mark in marks]
    labels = [tick_text(point, points, "number") for point in points]
    return [
        (axis.at(mark), f"+{label}" if mark > 0 else label, mark == 0)
        for mark, label in zip(marks, labels, strict=True)
    ]


def _cells(row: ResultRow, are_shares: bool, axis: Axis | None) -> dict[str, object]:
    interval = row.change_interval
    plot = None
    if axis is not None:
        ends = interval or MeanInterval(row.difference, row.difference, row.difference)
        plot = {"low": axis.at(ends.low), "at": axis.at(row.difference), "high": axis.at(ends.high)}
    # Endings such as `direct/accuracy` are explained; other measures show their name alone.
    matches = [text for ending, text in MEANINGS.items() if row.name.endswith(f"/{ending}")]
    meaning = matches[0] if matches else ""
    return {
        "measure": row.label,
        "meaning": meaning,
        "cells": [_mean_cell(row.before, are_shares), _mean_cell(row.after, are_shares)],
        "change": change_text(row.difference, are_shares),
        "interval": _change_ends(interval, are_shares),
        "moved": _moved_questions(row.change) if interval else "",
        "plot": plot,
        "beyond": row.is_beyond_chance,
    }


def _mean_cell(interval: MeanInterval, are_shares: bool) -> tuple[str, str]:
    """Write a mean and an interval, empty when it has no width."""
    if are_shares:
        mean = write_value(interval.mean, "share")
        ends = f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    else:
        mean = write_value(interval.mean, "number")
        low = write_value(interval.low, "number")
        high = write_value(interval.high, "number")
        ends = f"[{low}, {high}]"
    return mean, ends if interval.low < interval.high else ""


def _change_ends(interval: MeanInterval | None, are_shares: bool) -> str:
    if interval is None:
        return ""
    return f"[{change_text(interval.low, are_shares)}, {change_text(interval.high, are_shares)}]"


def _moved_questions(change: Mapping[str, object]) -> str:
    """Write on how many of the same questions a measure rose and fell."""
    num_won = finite(change.get("won"))
    num_lost = finite(change.get("lost"))
    if num_won is None or num_lost is None:
        return ""
    moved = f"{num_won:,.0f} up, {num_lost:,.0f} down"
    num_questions = finite(change.get("questions"))
    return moved if num_questions is None else f"{moved} of {num_questions:,.0f}"


def change_text(change: float, are_shares: bool) -> str:
    """Write a change with its sign, in points where it is one of shares."""
    # Adding 0.0 turns a rounded −0.0 into 0.0.
    if are_shares:
        text = f"{round(100 * change, 1) + 0.0:+.1f}"
    else:
        text = f"{round(change, 3) + 0.0:+.3f}"
    return text.replace("-", "−")
