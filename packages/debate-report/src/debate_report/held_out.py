"""Measures of the test split before and after a run, for the charts of the same measures."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from debate_report.before_after import read_interval, result_rows
from debate_report.charts import Point
from debate_report.json_values import as_mapping
from debate_report.run_files import RunFiles
from debate_report.stages import Stage
from debate_report.timeline import Stretch

EVALUATED = "eval/"


@dataclass(frozen=True, slots=True)
class HeldOutMeasures:
    """Points of the test split by measure, each before and after.

    Attributes:
        points: The position and value before and after, by measure.
        beyond_chance: Measures with a change beyond chance on the same questions.
    """

    points: Mapping[str, tuple[Point, Point]]
    beyond_chance: frozenset[str] = frozenset()


def held_out_measures(
    run: RunFiles, run_stages: Sequence[Stage], stretches: Sequence[Stretch]
) -> HeldOutMeasures:
    """Place the measures of the test split on the axis; empty without a start on it."""
    starts = [
        stretch.at(stage.span[0])
        for stage, stretch in zip(run_stages, stretches, strict=True)
        if stage.starts_measured
    ]
    if not starts:
        return HeldOutMeasures({})
    end = stretches[-1].end
    run_results = run.results or {}
    values_before = as_mapping(run_results.get("before"))
    values_after = as_mapping(run_results.get("after"))
    points: dict[str, tuple[Point, Point]] = {}
    for name in values_before:
        before = read_interval(values_before[name])
        after = read_interval(values_after.get(name))
        if before is not None and after is not None:
            points[str(name)] = ((starts[0], before.mean), (end, after.mean))
    # The table has what a measure was on the questions that have a value both times.
    rows = list(result_rows(run_results.get("table")))
    for row in rows:
        if row.name in points:
            points[row.name] = ((starts[0], row.before.mean), (end, row.after.mean))
    beyond_chance = frozenset(row.name for row in rows if row.is_beyond_chance)
    return HeldOutMeasures(points, beyond_chance)


def held_out_name(measure: str, drawn: Collection[str]) -> str:
    """Name a line's measure on the test split.

    Args:
        measure: The measure of the line, such as `train/maj/last`.
        drawn: All measures of the chart; a measure with a line belongs to no other.
    """
    if measure.startswith(EVALUATED):
        return measure
    name = EVALUATED + measure.removeprefix("train/")
    return "" if name in drawn else name
