"""All phases of a run on one time line: boundaries, exit criteria, gates, weights, labels."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from debate_report.charts import DIGIT, WIDTH, Chart, Marks, Series, line_chart
from debate_report.curves import curves
from debate_report.panels import PANELS, Panel, meaning
from debate_report.stages import stages
from debate_report.timeline import phase_axis
from report.report_runs import run_of

ASKED = {"metric": "eval/judge/accuracy", "at_least": 0.75}
RECIPE = {
    "advantage": {"streams": {"generator": {"weight": 1.0}, "judge": {"weight": 0.0}}},
    "phases": {
        "warm_start": {"exit_criterion": ASKED},
        "settle": {"exit_criterion": ASKED | {"at_least": 0.85}},
        "self_play": {},
    },
}


def rows(*, settled=0.9):
    """Three phases; looks at the judge stand at steps 20, 30 and 40."""
    found = []
    for step in range(1, 61):
        phase = "warm_start" if step <= 30 else "settle" if step <= 40 else "self_play"
        row = {"phase": phase, "step": step, "loss": 1 / step, "rollout/staleness_mean": 0.0}
        row |= {"reward/gen/mean": step / 60, "reward/judge/mean": -step / 60}
        if phase == "self_play":
            row |= {"train/accuracy/round_0": 0.5, "train/accuracy/round_1": 0.6}
        found.append(row)
    looks = {20: 0.5, 30: 0.8, 40: settled}
    for step, value in looks.items():
        phase = "warm_start" if step <= 30 else "settle"
        found.append({"phase": phase, "step": step, "eval/judge/accuracy": value})
    return found


def chart_of(page, title):
    return next(
        part.split("</figure>")[0]
        for part in page.split('<figure class="panel">')
        if part.strip().startswith(f"<figcaption><strong>{title}</strong>")
    )


def test_phases_stand_on_one_time_line_and_say_what_became_of_them():
    run = run_of(rows(), RECIPE, {"exit_criteria": {"warm_start": True, "settle": True}})
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
    assert judge.count('class="bound"') - 1 == 2 and judge.count('class="met"') == 2
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
    page = curves(run_of(rows(settled=0.8), RECIPE, results))
    assert outcome in page
    assert ">2 settle ✗</text>" in page and ">1 warm_start ✓</text>" in page


def test_a_phase_under_way_has_not_missed_its_criterion():
    under_way = [row for row in rows(settled=0.8) if row["phase"] != "self_play"]
    settle = stages(run_of(under_way, RECIPE))[-1]
    assert settle.criterion == "not yet met: eval/judge/accuracy ≥ 0.85" and settle.outcome == ""


def test_streams_of_weight_0_are_not_drawn():
    page = curves(run_of(rows(), RECIPE))
    assert "</svg>generator <b>" in page and "</svg>judge <b>" not in page
    heavy = RECIPE | {"advantage": {"streams": {"judge": {"weight": 0.5}}}}
    assert "</svg>judge <b>" in curves(run_of(rows(), heavy))
    # A phase's own weight comes before that of the recipe.
    own = {"self_play": {"advantage": {"streams": {"judge": {"weight": 0.1}}}}}
    page = chart_of(curves(run_of(rows(), RECIPE | {"phases": own})), "Reward")
    assert page.count('class="line s2"') - 1 == 1


def test_what_is_0_throughout_is_named_and_not_drawn():
    page = curves(run_of(rows(), RECIPE))
    assert "0 throughout: staleness." in page and "<strong>Staleness</strong>" not in page


def test_a_health_alarm_stands_at_its_step():
    alarmed = [*rows(), {"phase": "self_play", "step": 50, "health/alarm/entropy": 1.0}]
    page = curves(run_of(alarmed, RECIPE))
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
        found = re.findall(rf'<text x="([\d.]+)" y="[\d.]+" class="{kind}">([^<]*)</text>', chart)
        ends = [
            (float(at) - wide * len(text) / 2, float(at) + wide * len(text) / 2)
            for at, text in found
            if text
        ]
        assert all(
            left[1] <= right[0] + 0.1 for left, right in pairwise(ends)
        )  # One digit is kept.
        assert all(end <= WIDTH + 0.1 for _, end in ends)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=20))
def test_phases_share_the_axis_in_order_and_none_vanishes(lengths):
    along = phase_axis({str(k): (1.0, float(n)) for k, n in enumerate(lengths)})
    assert along.ends[0] >= 0 and along.ends[1] <= 1 + 1e-9
    for place, stretch in enumerate(along.stretches):
        assert stretch.end - stretch.start >= 0.2 / len(lengths)
        assert along.stretch_index(stretch.at(stretch.first)) == place
        assert along.stretch_index(stretch.at(stretch.last)) == place
        assert stretch.step(stretch.at(stretch.last)) == pytest.approx(stretch.last)


def test_measures_are_drawn_by_name_where_they_are_there():
    named = {
        "Model-FLOP utilisation": {"time/mfu": 0.3},
        "Throughput": {"tokens_per_s": 9.0, "tokens_per_s/trained": 99.0},
        "No advantage, by cause": {"advantage/zero/no_value": 0.2, "advantage/zero/share": 0.3},
        "Questions left out": {"sampling/all_right": 3},
        "Staleness": {"rollout/staleness_max": 2},
        "Changed answers": {"train/flips/right_to_wrong": 0.1},
        "Cut off": {"rollout/truncated_fraction": 0.1},
    }
    for title, row in named.items():
        page = curves(run_of([{"phase": "p", "step": step, **row} for step in (1, 2)]))
        assert f"<strong>{title}</strong>" in page
        assert page.count('<figure class="panel">') == 1, title


def test_each_chart_and_result_is_explained_where_it_stands():
    panels = [panel for _, group in PANELS for panel in group]
    assert not [panel.title for panel in panels if not panel.why]
    assert len({panel.title for panel in panels}) == len(panels)
    page = curves(run_of([{"phase": "p", "step": step, "loss": 1.0 / step} for step in (1, 2)]))
    assert '<details class="why"><summary aria-label="What Loss means">?</summary>' in page
    assert "may stand below a single answer" in meaning("eval/majority/accuracy")
    assert meaning("eval/unknown") == ""


def test_panel_draws_the_first_of_two_measures_with_one_label_and_counts_rounds_from_1():
    panel = Panel(
        "T", "", "share", (("a", "x"), ("b", "x"), (r"r_(?P<round>\d+)", "round {round}"))
    )
    assert list(panel.names(["b", "a", "r_10", "r_2"])) == [
        ("a", "x"),
        ("r_2", "round 3"),
        ("r_10", "round 11"),
    ]
    braces = Panel.of("T", "", "share", [("eval/{x}", "{x}")])
    assert list(braces.names(["eval/{x}"])) == [("eval/{x}", "{x}")]
