import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import DictLoader, UndefinedError

from debate_report.charts import LEFT, MAX_HOVER, Bound, Chart, Series, line_chart, parts_of
from debate_report.page_templates import render, template_environment
from debate_report.timeline import ticks

NUMBER = st.floats(-1e12, 1e12, allow_nan=False)


def numbers(chart, attribute):
    return [float(found) for found in re.findall(rf' {attribute}="([-\d.e+]+)"', chart)]


def test_ticks_are_round_and_inside():
    assert ticks(0.0, 1.0, 4) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert ticks(0.03, 0.21, 4) == [0.05, 0.1, 0.15, 0.2]
    assert ticks(1, 3, 5, whole=True) == [1, 2, 3]
    assert ticks(-1.2e-5, 1.2e-5, 4) == [-1e-5, 0.0, 1e-5]


@given(NUMBER, st.floats(1e-9, 1e9))
def test_ticks_stay_inside_and_are_few(low, span):
    high = low + span
    if high - low < 1e-6 * abs(low) or high <= low:
        return
    marks = ticks(low, high, 4)
    assert len(marks) <= 6
    assert all(low - 1e-6 * span <= mark <= high + 1e-6 * span for mark in marks)


@given(st.lists(st.tuples(st.integers(0, 10**6), NUMBER), min_size=2, max_size=60))
def test_line_chart_keeps_every_point_inside_the_frame(points):
    line = Series("a", tuple(sorted(dict(points).items())))
    chart = line_chart(Chart("T", "n", [line], "number"))
    path = re.search(r'<path d="M([^"]*)"', chart)
    assert path is not None
    for point in path[1].split("L"):
        x, y = map(float, point.split(","))
        assert 0 <= x <= 360 and 0 <= y <= 190


def test_line_chart_of_constant_values_has_a_range():
    chart = line_chart(Chart("T", "", [Series("a", ((1, 1.0), (2, 1.0)))], "share"))
    assert ">96 %<" in chart and ">100 %<" in chart and ">101 %<" not in chart
    assert "nan" not in chart


def test_line_chart_hover_says_the_values_and_stays_small():
    points = tuple((step, step / 10_000) for step in range(10_000))
    chart = line_chart(Chart("T", "", [Series("a", points), Series("b", points[::2])], "number"))
    titles = re.findall(r'<g data-note="([^"]*)">', chart)
    assert len(titles) <= MAX_HOVER
    assert titles[0] == "step 0\na: 0.000\nb: 0.000"
    assert len(chart) < 60_000


def test_line_chart_thins_many_points_to_their_means():
    # 600 points 0, 1, 0, 1, … drawn as 60 means of ten neighbours: each is 0.5.
    points = tuple((step, float(step % 2)) for step in range(600))
    chart = line_chart(Chart("T", "", [Series("a", points)], "number"))
    path = re.search(r'<path d="M([^"]*)" class="line s1"', chart)
    assert path is not None
    heights = {point.split(",")[1] for point in path[1].split("L")}
    assert len(path[1].split("L")) == 60 and len(heights) == 1


@pytest.fixture
def filled(monkeypatch):
    """Fill a template that is given as text, by the rules of the report's own."""

    def fill(source, **values):
        environment = template_environment().overlay(loader=DictLoader({"page.html": source}))
        monkeypatch.setattr(
            "debate_report.page_templates.template_environment", lambda: environment
        )
        return render("page.html", **values)

    return fill


@given(st.text())
def test_a_template_cannot_be_left_by_a_text(text):
    template = template_environment().from_string('<p title="{{ text }}">{{ text }}</p>')
    written = template.render(text=text)
    found = re.fullmatch('<p title="([^<>"\'\x00]*)">([^<>"\'\x00]*)</p>', written, re.DOTALL)
    assert found and found[1] == found[2]
    written.encode("utf-8")


def test_a_template_escapes_text_once_and_writes_numbers_short(filled):
    inner = filled("<b>{{ text }}</b>", text="a & b")
    assert inner == "<b>a &amp; b</b>"
    assert filled(
        "{{ inner }}{{ n }}{{ x }}{{ inner if no }}", inner=inner, n=2, x=1 / 3, no=0
    ) == ("<b>a &amp; b</b>20.333333")
    assert filled('<p class="{{ a }}">', a='x" onload="y') == '<p class="x&#34; onload=&#34;y">'


@pytest.mark.parametrize(("source", "error"), [("{{ nothing }}", UndefinedError),
                                               ("{{ odd.missing }}", UndefinedError),
                                               ("{{ odd }}", TypeError)])  # fmt: skip
def test_a_template_refuses_what_it_was_not_given_and_what_is_no_text(filled, source, error):
    with pytest.raises(error):
        filled(source, odd=object())


def test_every_template_compiles_and_is_used():
    environment = template_environment()
    names = set(environment.list_templates())
    sources = [environment.loader.get_source(environment, name)[0] for name in names]
    folder = Path(render.__code__.co_filename).parent
    sources += [path.read_text() for path in folder.rglob("*.py")]
    assert names and names == {name for name in names if f'"{name}"' in "".join(sources)}
    for name in names - {"style.css"}:
        environment.get_template(name)


def test_the_legend_says_where_the_line_ends():
    # 0 and 1 in turn, at last 1: the line is of means of neighbours, which end near a half.
    series = [Series("noisy", tuple((step, float(step % 2)) for step in range(1, 200)))]
    chart = line_chart(Chart("Noise", "", series, "share"))
    legend = chart[chart.index('<ul class="legend">') : chart.index("</ul>")]
    assert "100.0 %" not in legend and re.search(r"noisy <b>(4|5|6)\d\.\d %</b>", legend)


def test_lines_beyond_six_stand_in_another_chart():
    series = [Series(str(k), ((1, 0.1), (2, 0.2))) for k in range(8)]
    assert [(title, len(part)) for title, part in parts_of("Many", series)] == [
        *(("Many (1 of 2)", 6), ("Many (2 of 2)", 2))
    ]
    assert [title for title, _ in parts_of("Few", series[:6])] == ["Few"]


def test_a_criterion_that_the_first_step_met_is_marked_there():
    # Its position is 0, which is the left end of the axis.
    bound = Bound(start=0.0, end=1.0, value=0.5, met=0.0)
    series = [Series("a", ((0.0, 0.6), (1.0, 0.7)))]
    chart = line_chart(Chart("T", "", series, "share", bounds=[bound]))
    assert f'<circle cx="{LEFT}"' in chart
