"""The plots of studies, by the places of what is drawn."""

import re
from pathlib import Path

import pytest

from debate_studies.lines import FinishedRun
from debate_studies.study_file import Study
from debate_studies.tables import tables

pytestmark = pytest.mark.slow


def test_plot_holds_every_dot_and_interval_in_its_panel(tmp_path: Path) -> None:
    named = {"name": "s", "seeds": [0, 1], "measures": {"gain": "a", "other": "b"}}
    arms = {"one": {"recipe": "r"}, "two": {"recipe": "r", "seeds": [0]}}
    study = Study.model_validate(named | {"arms": arms, "plot": ["gain", "other"]})
    gains = {("one", 0): 0.02, ("one", 1): 0.04, ("two", 0): -0.1}
    lines = [
        FinishedRun(arm=arm, seed=seed, start_met=True, steps=1, before={"gain": 0, "other": 0},
                 after={"gain": gain, "other": gain})
        for (arm, seed), gain in gains.items()
    ]  # fmt: skip
    tables(study, lines, tmp_path / "plot.svg")
    image = (tmp_path / "plot.svg").read_text()
    assert image.count('<text x="8" y="20">') == 2 and image.count('class="bound"') == 2 * 3
    dots = [float(y) for y in re.findall(r'cy="([\d.]+)"', image)]
    assert len(dots) == 6 and dots[:3] == dots[3:]
    assert dots[1] < dots[0] < dots[2]  # The higher the gain, the nearer to the top.
    assert "1 one" in image and "2 two" in image
    ends = [
        line.model_copy(update={"before": {}}) for line in lines
    ]  # Where nothing was measured before.
    tables(study, ends, tmp_path / "plot.svg")
    image = (tmp_path / "plot.svg").read_text()
    assert image.count('class="bound"') == 2 * 2  # No change of zero.
    assert [float(y) for y in re.findall(r'cy="([\d.]+)"', image)][1] < dots[2]
