import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debate_train.report.charts import MAX_HOVER, Series, line_chart, ticks
from debate_train.report.html import escape, fold, tag

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
    chart = line_chart("T", "n", [line], "number")
    path = re.search(r'<path d="M([^"]*)"', chart)
    assert path is not None
    for point in path[1].split("L"):
        x, y = map(float, point.split(","))
        assert 0 <= x <= 360 and 0 <= y <= 190


def test_line_chart_of_constant_values_has_a_range():
    chart = line_chart("T", "", [Series("a", ((1, 1.0), (2, 1.0)))], "share")
    assert ">96 %<" in chart and ">100 %<" in chart and ">101 %<" not in chart
    assert "nan" not in chart


def test_line_chart_hover_says_the_values_and_stays_small():
    points = tuple((step, step / 10_000) for step in range(10_000))
    chart = line_chart("T", "", [Series("a", points), Series("b", points[::2])], "number")
    titles = re.findall(r"<title>([^<]*)</title>", chart)
    assert len(titles) <= MAX_HOVER
    assert titles[0] == "step 0\na: 0.000\nb: 0.000"
    assert len(chart) < 60_000


def test_line_chart_thins_many_points_to_their_means():
    # 600 points 0, 1, 0, 1, … drawn as 300 means of two neighbours: each is 0.5.
    points = tuple((step, float(step % 2)) for step in range(600))
    chart = line_chart("T", "", [Series("a", points)], "number")
    path = re.search(r'<path d="M([^"]*)" class="line s1"', chart)
    assert path is not None
    heights = {point.split(",")[1] for point in path[1].split("L")}
    assert len(path[1].split("L")) == 300 and len(heights) == 1


@given(st.text())
def test_escape_leaves_no_markup(text):
    assert not re.search("[<>\"'\x00]", escape(text))
    escape(text).encode("utf-8")


def test_tag_escapes_text_and_attributes_once():
    inner = tag("b", "a & b")
    assert inner == "<b>a &amp; b</b>"
    assert tag("p", inner, None, 2, class_='x" onload="y', hidden=True, title=None) == (
        '<p class="x&quot; onload=&quot;y" hidden><b>a &amp; b</b>2</p>'
    )
    assert fold("<s>", "text") == "<details><summary>&lt;s&gt;</summary>text</details>"


def test_tag_refuses_a_name_with_an_attribute_in_it():
    with pytest.raises(TypeError):
        tag("p", object())
