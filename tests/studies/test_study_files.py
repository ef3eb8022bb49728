"""The studies that ship: every run is a recipe, and their tables follow from their data."""

import re
import runpy
from itertools import chain
from pathlib import Path

import pytest

from debate_studies.lines import Lines
from debate_studies.study_file import loaded_runs, made_by, read_study

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
DOCUMENTED = "".join(
    (ROOT / f"docs/{page}.md").read_text(encoding="utf-8") for page in ("figures", "rewards")
)
FILES = sorted(ROOT.glob("benchmarks/studies/*.yaml"))
EXAMPLE = ROOT / "examples/compare_rewards.yaml"


@pytest.mark.parametrize("file", [*FILES, EXAMPLE], ids=lambda file: file.stem)
def test_every_run_of_the_studies_is_a_recipe(file: Path) -> None:
    study = read_study(file)
    assert study.name == file.stem
    loaded = {key: recipe for key, recipe, _ in loaded_runs(study, file.parent)}
    assert len(loaded) == len(study.starts) + len(study.arms)
    for name in study.arms:
        recipe = loaded[f"arms.{name}"]
        figures = {*recipe.recipe.evaluated().measured()}
        for curve in {*study.curves.values()} - figures:  # Of the steps themselves.
            short = curve.removeprefix("train/").replace("round_0", "round_r")
            cell = rf"^\|[^|]*`({re.escape(curve)}|{re.escape(short)})`[^|]*\|"
            assert re.search(cell, DOCUMENTED, re.MULTILINE), curve


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_finished_runs_have_the_settings_of_the_study(file: Path) -> None:
    study = read_study(file)
    assert study.results is not None
    current = {name: (None, made_by(study, name)) for name in study.arms}
    lines = Lines(file.parent / study.results).read()
    assert all(run.made_by in current[run.arm] for run in lines if run.arm in current)


def test_results_page_says_what_the_finished_runs_say() -> None:
    script = runpy.run_path(str(ROOT / "docs/make_results.py"))
    assert (ROOT / "docs/results.md").read_text("utf-8") == script["page"]()
    named = list(chain.from_iterable(script["TOPICS"].values()))
    data = ROOT / "benchmarks/data"
    finished = [file.stem for file in FILES if (data / f"{file.stem}.jsonl").exists()]
    assert sorted(named) == sorted(finished)
