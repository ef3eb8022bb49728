"""The plots of studies, by the places of what is drawn."""

import re
from pathlib import Path

import pytest

from debate_studies.lines import Finished
from debate_studies.study_file import Study
from debate_studies.tables import LEFT, RIGHT, Dots, plot, tables

pytestmark = pytest.mark.slow

RECIPE = "recipes/grpo_puzzle.yaml"


def test_plot_holds_every_dot_and_interval_in_its_panel() -> None:
    arms = {"one": ([0.02, 0.04], (-0.3, 0.36)), "two": ([-0.1], None)}
    panels = [Dots("gain", arms), Dots("other", arms)]
    image = plot(panels)
    ends = [
        float(x) for pair in re.findall(r'd="M([\d.-]+) [\d.]+H([\d.-]+)"', image) for x in pair
    ]
    assert len(ends) == 4 and all(LEFT < x < RIGHT for x in ends)
    assert ends[0] < ends[1]
    dots = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.-]+)" cy="([\d.]+)"', image)]
    assert len(dots) == 6 and all(ends[0] < x < ends[1] for x, _ in dots)
    assert [y > panels[0].height for _, y in dots] == [False] * 3 + [True] * 3


def test_plot_by_level_has_a_point_for_each_mean_and_names_levels(tmp_path: Path) -> None:
    def run(arm: str, seed: int, gain: float) -> Finished:
        before, after = {"direct": 0.5}, {"direct": 0.5 + gain}
        return Finished(arm=arm, seed=seed, start_met=True, steps=1, before=before, after=after)

    levels = {"low": {3: "one", 10: "two"}, "high": {10: "two", 100: "three"}}
    arms = ("one", "two", "three")
    study = Study.model_validate(
        {
            "name": "x",
            "seeds": [0, 1],
            "arms": {arm: {"recipe": RECIPE} for arm in arms},
            "measures": {"direct": "eval/direct/accuracy"},
            "by_level": [
                {"name": n, "measure": "direct", "levels": on} for n, on in levels.items()
            ],
            "level_plots": [
                {"title": "gain", "across": "labels", "even": True, "lines": [*levels]}
            ],
        }
    )
    lines = [
        run(arm, seed, gain + 0.125 * seed)
        for arm, gain in zip(arms, (0.0, 0.25, 0.5), strict=True)
        for seed in (0, 1)
    ]
    tables(study, lines, tmp_path / "x.svg")
    image = (tmp_path / "x.svg").read_text()
    dots = [(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', image)]
    assert len(dots) == 4 and image.count("<polyline") == 2
    low, high = dots[:2], dots[2:]
    assert low[1][1] == high[0][1], "one mean, that of both lines at 10"
    assert low[0][1] - low[1][1] == pytest.approx(high[0][1] - high[1][1]), "higher by .25 each"
    assert low[1][0] - low[0][0] == pytest.approx(high[1][0] - high[0][0]), "evenly apart"
    for name in ("3", "10", "100", "labels", "low", "high"):
        assert f">{name}</text>" in image
    intervals = re.findall(r'd="M([\d.]+) ([\d.-]+)V([\d.-]+)"', image)
    assert [(float(x), (float(a) + float(b)) / 2) for x, a, b in intervals] == [
        (pytest.approx(x), pytest.approx(y)) for x, y in dots
    ], "the interval of two seeds is even about their mean"
