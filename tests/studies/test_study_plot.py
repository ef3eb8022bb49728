"""The plots of studies, by the places of what is drawn."""

import re

import pytest

from debate_studies.tables import LEFT, RIGHT, Dots, plot

pytestmark = pytest.mark.slow


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
