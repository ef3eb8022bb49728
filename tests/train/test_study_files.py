"""The studies that ship: every run is a recipe, and their pages say what their data says."""

from pathlib import Path

import pytest
from benchmarks.study import ROOT, Lines, filled
from benchmarks.study_file import read_study
from benchmarks.study_tables import page, tables

from debate_train.reading.recipe_file import load_recipe
from debate_train.recipe import Recipe

DOCUMENTED = "".join(
    (ROOT / f"docs/{page}.md").read_text(encoding="utf-8") for page in ("figures", "rewards")
)
FILES = sorted(ROOT.glob("benchmarks/studies/*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_run_of_the_studies_is_a_recipe(file: Path) -> None:
    study = read_study(file)
    assert study.name == file.stem
    runs = (*study.starts.values(), *study.arms.values())
    left_out = {phase for run in runs if run.start for phase in study.left_out(run.start)}
    # Arms that differ in their starts alone are one.
    measured = {(arm.recipe, arm.settings) for arm in study.arms.values()}
    for recipe, own in {(run.recipe, run.settings) for run in runs}:
        settings = [filled(one, {"tpr": 0.9, "fpr": 0.2}) for one in (*study.settings, *own)]
        loaded = load_recipe(ROOT / recipe, settings, model=Recipe)
        assert left_out <= {*loaded.phases}
        for arm in study.arms.values():  # What its starts leave is self-play alone.
            if arm.start and (arm.recipe, arm.settings) == (recipe, own):
                assert {*loaded.phases} - study.left_out(arm.start) == {"self_play"}
        figures = {*loaded.recipe.evaluated().measured()}
        if (recipe, own) not in measured:  # A start, which may measure less.
            continue
        assert {*study.measures.values()} <= figures
        for curve in {*study.curves.values()} - figures:  # Of the steps themselves.
            name = curve.removeprefix("train/").replace("round_0", "round_r")
            assert f"| `{name}` |" in DOCUMENTED


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_pages_and_plots_say_what_the_finished_runs_say(file: Path, tmp_path: Path) -> None:
    study, image = read_study(file), tmp_path / "plot.svg"
    lines = Lines(ROOT / f"benchmarks/data/{study.name}.jsonl").read()
    found = tables(study, lines, image)
    kept = ROOT / f"docs/studies/{study.name}.md"
    if not lines:
        assert not kept.exists()
        return
    assert kept.read_text(encoding="utf-8") == page(study.name, file.read_text("utf-8"), found)
    assert kept.with_suffix(".svg").read_text("utf-8") == image.read_text("utf-8")
