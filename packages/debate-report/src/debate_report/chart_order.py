"""The order of charts under a heading: by their change."""

from statistics import fmean

from debate_report.charts import Chart, Series

ORDER_RULE = (
    "Under each heading the chart that changed most comes first: changes beyond chance on test "
    "questions, then the largest change of a line (before to after, else first to last quarter of "
    "its steps) as a share of the largest value in the chart."
)


def change_rank(chart: Chart) -> tuple[bool, float]:
    """Rank a chart by `ORDER_RULE`; the lowest comes first."""
    values = [abs(value) for line in chart.series for _, value in line.all_points]
    largest_value = max(values) or 1.0
    largest_change = max(abs(_change(line)) for line in chart.series)
    is_beyond_chance = any(line.is_beyond_chance for line in chart.series)
    return not is_beyond_chance, -largest_change / largest_value


def _change(line: Series) -> float:
    if line.test_points:
        (_, before), (_, after) = line.test_points
        return after - before
    values = [value for _, value in line.points]
    num_quarter = max(1, len(values) // 4)
    return fmean(values[-num_quarter:]) - fmean(values[:num_quarter])
