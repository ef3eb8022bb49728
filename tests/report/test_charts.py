"""Charts: ticks, lines, phases on one axis, templates, and charts as data and images."""

import csv
import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import DictLoader

from debate_report import report_main
from debate_report.before_after import headline_of, results
from debate_report.charts import (
    DIGIT,
    WIDTH,
    Chart,
    Marks,
    Series,
    line_chart,
)
from debate_report.curves import curves, picture
from debate_report.figure_files import as_csv, as_images
from debate_report.page_templates import render, template_environment
from debate_report.timeline import phase_axis, plain_axis, ticks
from json_lines import write_rows
from report.report_runs import HOSTILE, fill, run_of

NUMBER = st.floats(-1e12, 1e12, allow_nan=False)
CRITERION = {"metric": "eval/judge/accuracy", "at_least": 0.75}
PHASES_RECIPE = {
    "advantage": {"streams": {"generator": {"weight": 1.0}, "judge": {"weight": 0.0}}},
    "phases": {
        "warm_start": {"exit_criterion": CRITERION},
        "settle": {"exit_criterion": CRITERION | {"at_least": 0.85}},
        "self_play": {},
    },
}
TITLED = template_environment().from_string('<p title="{{ text }}">{{ text }}</p>')


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
        assert 0 <= x <= 360
        assert 0 <= y <= 190


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
    written = TITLED.render(text=text)
    escaped = re.fullmatch('<p title="([^<>"\'\x00]*)">([^<>"\'\x00]*)</p>', written, re.DOTALL)
    assert escaped
    assert escaped[1] == escaped[2]
    written.encode("utf-8")


def test_a_template_escapes_text_once_and_writes_numbers_short(filled):
    inner = filled("<b>{{ text }}</b>", text="a & b")
    assert inner == "<b>a &amp; b</b>"
    assert filled(
        "{{ inner }}{{ n }}{{ x }}{{ inner if no }}", inner=inner, n=2, x=1 / 3, no=0
    ) == ("<b>a &amp; b</b>20.333333")
    assert filled('<p class="{{ a }}">', a='x" onload="y') == '<p class="x&#34; onload=&#34;y">'


def phase_rows(*, settled=0.9):
    """Three phases; looks at the judge stand at steps 20, 30 and 40."""
    rows = []
    for step in range(1, 61):
        phase = "warm_start" if step <= 30 else "settle" if step <= 40 else "self_play"
        row = {"phase": phase, "step": step, "loss": 1 / step, "rollout/staleness_mean": 0.0}
        row |= {"reward/gen/mean": step / 60, "reward/judge/mean": -step / 60}
        if phase == "self_play":
            row |= {"train/accuracy/round_0": 0.5, "train/accuracy/round_1": 0.6}
        rows.append(row)
    looks = {20: 0.5, 30: 0.8, 40: settled}
    for step, value in looks.items():
        phase = "warm_start" if step <= 30 else "settle"
        rows.append({"phase": phase, "step": step, "eval/judge/accuracy": value})
    return rows


def chart_of(page, title):
    return next(
        panel.split("</figure>")[0]
        for panel in page.split('<figure class="panel">')
        if panel.strip().startswith(f"<figcaption><strong>{title}</strong>")
    )


def test_phases_stand_on_one_time_line_and_say_what_became_of_them():
    run = run_of(
        phase_rows(), PHASES_RECIPE, {"exit_criteria": {"warm_start": True, "settle": True}}
    )
    page = curves(run)
    assert "✓ met at step 30: eval/judge/accuracy ≥ 0.75" in page
    assert "✓ met at step 40: eval/judge/accuracy ≥ 0.85" in page
    loss = chart_of(page, "Loss")
    names = re.findall(r'class="x phase [a-z]*">([^<]+)</text>', loss)
    assert names == ["1 warm_start ✓", "2 settle ✓", "3 self_play"]
    assert loss.count('class="boundary"') == 2
    # A line for each phase: none is drawn over a boundary.
    assert loss.count('class="line s1"') - 1 == 3  # One is that of the legend.
    judge = chart_of(page, "Judge accuracy")
    assert judge.count('class="bound"') - 1 == 2
    assert judge.count('class="met"') == 2
    assert 'class="bound"' not in loss


@pytest.mark.parametrize(
    ("results", "outcome"),
    [
        ({"exit_criteria": {"warm_start": True, "settle": False}}, "✗ missed"),
        (None, "✗ missed"),  # A later phase has begun, so this one is over.
        ({"kept": {"settle": False}}, "✗ taken back"),
        ({"kept": {"self_play": True}}, "✓ kept"),
    ],
)
def test_what_was_missed_or_taken_back_is_marked(results, outcome):
    page = curves(run_of(phase_rows(settled=0.8), PHASES_RECIPE, results))
    assert outcome in page
    assert ">2 settle ✗</text>" in page
    assert ">1 warm_start ✓</text>" in page


TESTED_RESULTS = {
    "before": {"eval/accuracy/round_0": {"mean": 0.25}, "eval/judge/accuracy": 0.7},
    "after": {"eval/accuracy/round_0": {"mean": 0.75}, "eval/judge/accuracy": 0.8},
    "table": [
        {
            "measure": "judge accuracy",
            "name": "eval/judge/accuracy",
            # On the questions with votes both times.
            "before": 0.72,
            "after": 0.79,
            "change": {"difference": 0.07, "low": 0.01, "high": 0.13},
        }
    ],
}


def self_play_rows():
    rows = [row for row in phase_rows() if row["phase"] == "self_play"]
    for row in rows:
        row["judge/accuracy"] = 0.9
    return rows


def test_test_questions_stand_on_charts_before_and_after_the_run():
    page = curves(run_of(self_play_rows(), {"steps": 60}, TESTED_RESULTS))
    rounds = chart_of(page, "Accuracy by round")
    assert "25.0 % → 75.0 %" in rounds
    assert rounds.count("test questions, before → after") == 1
    # A ring at each end of round 1, its legend, and the legend of all rings.
    assert rounds.count('class="ring s1"') == 3
    assert rounds.count('class="ring s2"') == 0
    # The first step is 41, so the weights before it are those of step 40.
    assert 'data-note="step 40\nround 1, test questions: 25.0 %"' in rounds
    assert "round 1, test questions, from 25.0 % at step 40 to 75.0 % at step 60" in rounds
    drawing = picture(run_of(self_play_rows(), {"steps": 60}, TESTED_RESULTS))
    assert drawing.count(">test questions, before and after</text>") == 1
    judge = chart_of(page, "Judge accuracy")
    assert "72.0 % → 79.0 %" in judge
    # A line that was measured on test questions alone goes from one to the other.
    assert judge.count('class="line s2"') - 1 == 1


def test_imitation_before_self_play_is_folded_after_it():
    phases = PHASES_RECIPE["phases"]
    imitating = {name: phase | {"loss": {"type": "sft"}} for name, phase in phases.items()}
    recipe = PHASES_RECIPE | {"phases": imitating | {"self_play": {"loss": {"type": "dapo"}}}}
    page = curves(run_of(phase_rows(), recipe, TESTED_RESULTS))
    learning, folded = page.split('<details class="imitation">')
    assert "Imitation before that: warm_start, settle" in folded
    assert 'class="boundary"' not in learning
    assert ">2 settle ✓</text>" in folded
    assert "25.0 % → 75.0 %" in learning
    assert 'class="ring' not in folded
    # The table has all phases.
    assert "3 self_play" in folded


def test_a_health_alarm_stands_at_its_step():
    alarmed = [*phase_rows(), {"phase": "self_play", "step": 50, "health/alarm/entropy": 1.0}]
    page = curves(run_of(alarmed, PHASES_RECIPE))
    assert "entropy (step 50)" in page
    assert 'data-note="health alarm at step 50: entropy"' in chart_of(page, "Loss")


@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**5)), min_size=1, max_size=20),
    st.text("abc_", min_size=1, max_size=30),
)
def test_no_labels_of_an_axis_touch(spans, name):
    along = phase_axis({f"{k}{name}": (first, first + n) for k, (first, n) in enumerate(spans)})
    points = [(stretch.at(stretch.first), 1.0) for stretch in along.stretches]
    marks = Marks(outcomes=[("good", "")] * len(spans))
    chart = line_chart(Chart("T", "", [Series("a", tuple(points))], "number"), along, marks)
    for kind, wide in ((r"x", DIGIT), (r"x phase [a-z]*", 5.9)):
        labels = re.findall(rf'<text x="([\d.]+)" y="[\d.]+" class="{kind}">([^<]*)</text>', chart)
        ends = [
            (float(at) - wide * len(text) / 2, float(at) + wide * len(text) / 2)
            for at, text in labels
            if text
        ]
        assert all(
            left[1] <= right[0] + 0.1 for left, right in pairwise(ends)
        )  # One digit is kept.
        assert all(end <= WIDTH + 0.1 for _, end in ends)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_phases_share_the_axis_in_order_and_none_vanishes(lengths):
    along = phase_axis({str(k): (1.0, float(n)) for k, n in enumerate(lengths)})
    assert along.ends[0] >= 0
    assert along.ends[1] <= 1 + 1e-9
    for index, stretch in enumerate(along.stretches):
        assert stretch.end - stretch.start >= 0.2 / len(lengths)
        assert along.stretch_index(stretch.at(stretch.first)) == index
        assert along.stretch_index(stretch.at(stretch.last)) == index
        assert stretch.step(stretch.at(stretch.last)) == pytest.approx(stretch.last)


def plot(title: str, *values: float, label: str = "reward") -> tuple[Chart, object]:
    points = tuple((float(step), value) for step, value in enumerate(values, 1))
    return Chart(title, "mean", [Series(label, points)], "number"), plain_axis([1, 2], "step")


def rollout_file(path: Path, rewards: tuple[float, float]) -> Path:
    rows = [
        {"question": f"{n}?", "response": f"{n} {step}", "reward": reward, "step": step}
        for step, reward in enumerate(rewards, 1)
        for n in range(2)
    ]
    write_rows(path, rows)
    return path


def test_every_chart_of_a_run_is_data_and_an_image(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = fill(tmp_path / "run").path
    points = tmp_path / "points.csv"
    images = tmp_path / "images"
    assert report_main([str(run), "--csv", str(points), "--svg", str(images)]) == 0
    rows = list(csv.DictReader(points.open(newline="")))
    losses = [
        (float(row["position"]), float(row["value"])) for row in rows if row["chart"] == "Loss"
    ]
    # Steps of both phases; the fixture's loss is 1 / step.
    assert losses == [(step, pytest.approx(1 / step)) for step in range(1, 7)]
    charts = {row["chart"] for row in rows}
    files = list(images.glob("*.svg"))
    assert len(files) == len(charts)
    for file in files:
        assert ElementTree.parse(file).getroot().tag.endswith("svg")
    assert len(capsys.readouterr().out.split()) == 2 + len(files)


def test_files_of_rollouts_lie_over_each_other(tmp_path: Path) -> None:
    first = rollout_file(tmp_path / "first.jsonl", (0.0, 0.5))
    second = rollout_file(tmp_path / "second.jsonl", (0.25, 1.0))
    points = tmp_path / "points.csv"
    page = tmp_path / "page.html"
    arguments = [str(first), str(second), "--output", str(page), "--csv", str(points)]
    assert report_main(arguments) == 0
    values = {
        (row["line"], row["position"]): float(row["value"])
        for row in csv.DictReader(points.open(newline=""))
        if row["chart"] == "Reward and its parts"
    }
    assert values["first.jsonl: reward", "1"] == 0.0
    assert values["first.jsonl: reward", "2"] == 0.5
    assert values["second.jsonl: reward", "1"] == 0.25
    assert values["second.jsonl: reward", "2"] == 1
    text = page.read_text()
    assert "Replies side by side" in text
    assert "second.jsonl: reward" in text


def test_no_label_is_a_formula_or_markup() -> None:
    plots = [plot("Reward", 0, 1, label="=1+1"), plot("Reward", 0, 1, label=HOSTILE)]
    labels = {row["line"] for row in csv.DictReader(as_csv(plots).splitlines())}
    assert "'=1+1" in labels
    assert not any(label.startswith("=") for label in labels)
    images = as_images(plots)
    assert list(images) == ["reward.svg", "reward-2.svg"]
    for image in images.values():
        root = ElementTree.fromstring(image)
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert tags <= {"svg", "style", "rect", "text", "tspan", "g", "line", "path", "circle"}


def row(measure: str, name: str, change: float, half: float) -> dict[str, object]:
    before = {"mean": 0.5, "low": 0.45, "high": 0.55}
    after = {"mean": 0.5 + change, "low": 0.45 + change, "high": 0.55 + change}
    ends = {"difference": change, "low": change - half, "high": change + half}
    counts = {"won": 30, "lost": 10, "questions": 256}
    return {"measure": measure, "name": name, "before": before, "after": after} | {
        "change": ends | counts
    }


RESULTS: dict[str, object] = {
    "summary": "Long words.",
    "headline": ["eval/direct/accuracy", "eval/judge/accuracy"],
    "table": [
        row("majority vote", "eval/maj/last", 0.12, 0.2),
        row("direct accuracy", "eval/direct/accuracy", 0.04, 0.02),
        row("judge accuracy", "eval/judge/accuracy", -0.06, 0.01),
        row("own measure", "eval/mine/accuracy", 0.01, 0.02),
    ],
}


def test_the_sentence_is_about_the_measures_that_are_trained() -> None:
    assert headline_of(RESULTS) == (
        "Direct accuracy rose from 50.0 % to 54.0 %; judge accuracy fell from 50.0 % to 44.0 %."
    )
    same = {**RESULTS, "headline": ["eval/maj/last"]}
    assert headline_of(same) == ("Majority vote did not change beyond chance (50.0 % to 62.0 %).")


def test_what_changed_most_stands_first_and_what_may_be_chance_last() -> None:
    page = results(RESULTS)
    order = re.findall(r'<th scope="row">([a-z ]+)', page)
    assert order == ["judge accuracy", "direct accuracy", "majority vote", "own measure"]
    assert page.count('class="dot beyond"') == 2 and page.count('class="dot"') == 2
    assert "votes that prefer a right answer to a wrong one" in page
    assert "30 up, 10 down of 256" in page


def test_the_plot_holds_every_interval_and_zero() -> None:
    page = results(RESULTS)
    # All intervals reach from -.08 (majority: .12 - .2) to .32; the margins are .04 of this.
    low, high = -0.08 - 0.016, 0.32 + 0.016

    def place(change: float) -> str:
        return f"{round(2 + 96 * (change - low) / (high - low), 1):g}%"

    assert f'<line x1="{place(-0.08)}"' in page and f'<circle cx="{place(0.12)}"' in page
    assert f'<text x="{place(0)}" y="12" class="zero">0</text>' in page
    ends = [float(at) for at in re.findall(r'(?:x1|x2|cx)="([\d.]+)%"', page)]
    assert min(ends) >= 2 and max(ends) <= 98


def test_the_legend_says_where_the_line_ends():
    # 0 and 1 in turn, at last 1: the line is of means of neighbours, which end near a half.
    series = [Series("noisy", tuple((step, float(step % 2)) for step in range(1, 200)))]
    chart = line_chart(Chart("Noise", "", series, "share"))
    legend = chart[chart.index('<ul class="legend">') : chart.index("</ul>")]
    assert "100.0 %" not in legend
    assert re.search(r"noisy <b>(4|5|6)\d\.\d %</b>", legend)
