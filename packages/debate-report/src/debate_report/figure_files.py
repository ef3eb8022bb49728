"""Every chart of a page as data and as a figure, and charts of several pages combined."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from debate_report.charts import Chart, Plot, image, parts_of
from debate_report.timeline import plain_axis

CSV_HEAD = ("chart", "values", "line", "axis", "position", "value")
# Spreadsheets run a cell that begins with one of these.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
MAX_LABEL_CHARS = 60


def as_csv(plots: Sequence[Plot]) -> str:
    """Write the points of all charts, a line each, as comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for chart, along in plots:
        for line in chart.series:
            for label, points in (
                (line.label, line.points),
                (f"{line.label}, test questions", line.test_points),
            ):
                labels = [chart.title, chart.note, label, along.unit]
                cells = [_inert(label) for label in labels]
                for position, value in points:
                    writer.writerow([*cells, f"{position:.10g}", f"{value:.10g}"])
    return text.getvalue()


def _inert(label: str) -> str:
    return f"'{label}" if label.startswith(FORMULA_STARTS) else label


def as_images(plots: Sequence[Plot]) -> dict[str, str]:
    """Draw each chart as an SVG image by itself, by the name of the file."""
    images: dict[str, str] = {}
    for chart, along in plots:
        words = re.findall(r"[a-z0-9]+", chart.title.lower())
        name = "-".join(words)[:MAX_LABEL_CHARS] or "chart"
        # Titles may differ in signs alone.
        number = sum(re.fullmatch(rf"{name}(-\d+)?\.svg", other) is not None for other in images)
        images[f"{name}-{number + 1}.svg" if number else f"{name}.svg"] = image([(chart, along)])
    return images


def overlaid(plots_by_name: Mapping[str, Sequence[Plot]]) -> list[Plot]:
    """Lay charts of equal title and axis over each other; lines carry the names of their pages."""
    charts: dict[tuple[str, str], list[tuple[str, Plot]]] = {}
    for name, plots in plots_by_name.items():
        for chart, along in plots:
            charts.setdefault((chart.title, along.unit), []).append((name, (chart, along)))
    shared_plots = []
    for (title, unit), named_plots in charts.items():
        lines = []
        for name, (chart, _) in named_plots:
            for line in chart.series:
                # Equal lines of all pages stand next to each other.
                lines.append((line.label, replace(line, label=_label(name, line.label))))
        lines.sort(key=lambda pair: pair[0])
        first_chart, _ = named_plots[0][1]
        for part_title, series in parts_of(title, [line for _, line in lines]):
            positions = [position for line in series for position, _ in line.all_points]
            shared_chart = Chart(
                part_title, first_chart.note, series, first_chart.form, first_chart.why
            )
            shared_plots.append((shared_chart, plain_axis(positions, unit)))
    return shared_plots


def _label(name: str, label: str) -> str:
    return f"{name[:MAX_LABEL_CHARS]}: {label}"
