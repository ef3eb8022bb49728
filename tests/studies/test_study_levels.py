"""Where gains change sign over levels, and what votes are worth in labels, by hand."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from debate_studies.lines import Finished, level_tables, reached, sign_change
from debate_studies.study_file import Levels, Study, Worth

pytestmark = pytest.mark.slow

INFINITE = math.inf


@pytest.mark.parametrize(
    ("points", "where"),
    [
        ([(0.5, -1), (0.7, 3)], 0.55),  # A quarter of the way.
        ([(0.5, 3), (0.7, -1)], 0.65),
        ([(0.5, -1), (0.6, 0), (0.7, 1)], 0.6),  # Exactly at a level.
        ([(0.5, -1), (0.6, 0), (0.65, 0), (0.7, 1)], 0.6),
        ([(0.5, -1), (0.6, 0), (0.7, -1)], None),
        ([(0.5, 0), (0.7, 1)], None),
        ([(0.5, 1), (0.7, 2)], None),
        ([(0.5, -1), (0.6, 1), (0.7, -1)], 0.55),
        ([], None),
    ],
)
def test_sign_changes_on_the_straight_line(
    points: list[tuple[float, float]], where: float | None
) -> None:
    assert sign_change(points) == (None if where is None else pytest.approx(where, rel=1e-12))


@pytest.mark.parametrize(
    ("value", "share"),
    # The line rises by .1 from .1 to .3 and by .2 from there to 1.
    [(0.15, 0.2), (0.1, 0.1), (0.05, -INFINITE), (0.2, 0.3), (0.3, 0.65), (0.41, INFINITE)],
)
def test_line_reaches_a_value(value: float, share: float) -> None:
    line = [(0.1, 0.1), (0.3, 0.2), (1.0, 0.4)]
    assert reached(line, value) == pytest.approx(share, rel=1e-12)


def run(gain: float, judge: float = 0.5, *, met: bool = True) -> Finished:
    sides = [{"direct": 0.5, "judge": judge}, {"direct": 0.5 + gain, "judge": judge}]
    return Finished(arm="any", seed=0, start_met=met, steps=1, before=sides[0], after=sides[1])


def study(**chosen: Any) -> Study:
    arms = {name: {"recipe": "any.yaml"} for name in ("low", "high", "other", "third")}
    measures = {"direct": "eval/direct/accuracy", "judge": "eval/judge/accuracy"}
    return Study.model_validate(
        {"name": "x", "seeds": [0], "arms": arms, "measures": measures, **chosen}
    )


LIVE = Levels(name="live", measure="direct", levels={0.6: "low", 0.8: "high"})


def rows(chosen: Study, runs: dict[tuple[str, int], Finished]) -> list[str]:
    return level_tables(chosen, runs)[3:]


def test_seeds_that_agree_have_a_point_for_an_interval() -> None:
    runs = {(arm, seed): run(g) for seed in range(4) for arm, g in (("low", -0.25), ("high", 0.25))}
    assert rows(study(by_level=[LIVE]), runs) == [
        "| live | direct | 0.600: -0.250, 0.800: +0.250 | 0.700 [0.700, 0.700] "
        "| +0.000 [+0.000, +0.000], 4 seeds |"
    ]
    one_seed = {key: line for key, line in runs.items() if key[1] == 0}
    assert rows(study(by_level=[LIVE]), one_seed)[0].endswith("| 0.700 | +0.000, 1 seed |")


def test_curve_that_keeps_its_sign_is_said_to() -> None:
    chosen = study(by_level=[LIVE])
    above = {(arm, seed): run(0.25) for seed in range(2) for arm in ("low", "high")}
    assert rows(chosen, above)[0].count("| no change of sign: nowhere below 0 |")
    below = {key: run(-0.25) for key in above}
    assert rows(chosen, below)[0].count("| no change of sign: nowhere above 0 |")
    assert rows(chosen, dict.fromkeys(above, run(0)))[0].count(
        "| no change of sign: 0 at every level |"
    )
    assert rows(chosen, {})[0].endswith("| – | no finished run | – |")


def test_interval_resamples_whole_seeds_and_counts_those_without_a_change() -> None:
    # Seed 0 changes at .65, seed 1 at .75; seed 2 is above 0 at both levels.
    gains = {0: (-0.125, 0.375), 1: (-0.375, 0.125), 2: (0.0625, 0.0625)}
    runs = {("low", seed): run(low) for seed, (low, _) in gains.items()}
    runs |= {("high", seed): run(high) for seed, (_, high) in gains.items()}
    (row,) = rows(study(by_level=[LIVE]), runs)
    # Means: -.4375 / 3 and .5625 / 3; 1 of 27 draws is seed 2 three times.
    where = 0.6 + 0.2 * 0.4375 / (0.4375 + 0.5625)
    assert f"| {where:.3f} [" in row
    low, high = (float(end) for end in row.split("[")[1].split("]")[0].split(", "))
    # The least, 3 of 27 draws, is that of seed 0 twice and seed 2: -.1875 and .8125, at .6375. The
    # greatest, 1 of 27, is seed 1 three times, at .75. Seed 0 with seed 2 twice is 0 at the low
    # level, which is no change, either: 3 draws.
    assert (low, high) == (pytest.approx(0.6375, abs=0.0006), 0.75)
    share = float(row.split("no change in ")[1].split("%")[0]) / 100
    assert share == pytest.approx(4 / 27, abs=0.03)


def test_differences_are_paired_by_seed_and_stand_where_the_judges_are() -> None:
    levels = {
        "name": "live − frozen",
        "measure": "direct",
        "levels": {0.6: "low", 0.8: "high"},
        "over": {0.6: "other", 0.8: "third"},
        "place": "judge",
    }
    runs = {("low", seed): run(0.25, 0.625) for seed in (0, 1)}
    runs |= {("high", seed): run(0.5, 0.875) for seed in (0, 1)}
    runs |= {("other", 0): run(0.5), ("other", 1): run(0.25), ("third", 0): run(0.25)}
    runs["third", 1] = run(0, met=False)  # A level that is left out of this seed's figures.
    (row,) = rows(study(by_level=[levels]), runs)
    # Low: (-.25 + 0) / 2 at .625; high: .25 of seed 0 alone, at .875. A third of the way.
    assert "| 0.625: -0.125, 0.875: +0.250 | 0.708 [" in row
    assert row.endswith("| +0.000, 1 seed |")  # -.25 and .25; seed 1 lacks a level.


def test_without_places_a_missed_start_is_no_gain() -> None:
    runs = {(arm, seed): run(0.5) for arm in ("low", "high") for seed in (0, 1)}
    runs["low", 1] = run(0, met=False)
    (row,) = rows(study(by_level=[LIVE]), runs)
    assert "| 0.600: +0.250, 0.800: +0.500 |" in row and row.endswith(", 2 seeds |")


def test_votes_are_worth_a_share_of_a_known_line() -> None:
    worth = Worth(
        name="votes", measure="direct", arm="third", share=0.125, line={0.25: "low", 0.75: "high"}
    )
    line = {("low", seed): run(0.125) for seed in range(3)}
    line |= {("high", seed): run(0.375) for seed in range(3)}

    def said(gain: float) -> str:
        return rows(study(worths=[worth]), line | {("third", s): run(gain) for s in range(3)})[0]

    # .25 is reached half way, at a share of .5, four times .125.
    assert said(0.25) == "| votes | direct | 4.00 [4.00, 4.00] times the labels |"
    assert "| more than 6.00 [more than 6.00, more than 6.00] times the labels" in said(0.5)
    assert "| less than 2.00 [less than 2.00, less than 2.00] times the labels" in said(0)
    assert rows(study(worths=[worth]), line)[0].endswith("| no finished run |")
    # A start that was missed counts as gain 0: (.375 + .375 + 0) / 3 = .25.
    mixed = line | {("third", seed): run(0.375) for seed in (0, 1)}
    mixed["third", 2] = run(0, met=False)
    (row,) = rows(study(worths=[worth]), mixed)
    assert row == "| votes | direct | 4.00 [less than 2.00, 6.00] times the labels |"


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"levels": {0.6: "low", 0.8: "none"}}, "'none' is not among the arms"),
        ({"over": {0.6: "low"}}, "'live' has other levels in over"),
        ({"place": "luck"}, "'luck' is not among the measures"),
    ],
)
def test_names_of_levels_are_checked(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        study(by_level=[LIVE.model_dump() | chosen])


def test_plots_name_what_they_show() -> None:
    drawn = {"title": "gain", "across": "judge", "lines": ["live", "dead"]}
    with pytest.raises(ValidationError, match="'dead' is not among by_level"):
        study(by_level=[LIVE], level_plots=[drawn])
