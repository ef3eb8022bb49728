"""The studies that ship: every run is a recipe, and their tables say what their data says."""

import json
import re
import runpy
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.learning import hidden_passages
from debate_studies.command import main as debate_study
from debate_studies.lines import Lines
from debate_studies.study_file import Study, loaded_runs, made_by, read_study
from debate_studies.tables import tables

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
    loaded = {key: found for key, found, _ in loaded_runs(study, file.parent)}
    assert len(loaded) == len(study.starts) + len(study.arms)
    for name in study.arms:
        recipe = loaded[f"arms.{name}"]
        figures = {*recipe.recipe.evaluated().measured()}
        for curve in {*study.curves.values()} - figures:  # Of the steps themselves.
            short = curve.removeprefix("train/").replace("round_0", "round_r")
            cell = rf"^\|[^|]*`({re.escape(curve)}|{re.escape(short)})`[^|]*\|"
            assert re.search(cell, DOCUMENTED, re.MULTILINE), curve


@pytest.fixture(scope="module")
def passages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the command of two studies' heads has made questions, fewer than theirs."""
    folder = tmp_path_factory.mktemp("passages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hidden_passages", str(folder / "runs/hidden")])
        patch.setattr(hidden_passages, "TRAIN", 2_000)  # A tenth, to be read by every arm.
        patch.setattr(hidden_passages, "IMITATED", 600)
        hidden_passages.main()
    return folder


@pytest.mark.parametrize("file", [*FILES, EXAMPLE], ids=lambda file: file.stem)
def test_studies_can_be_run_again(
    file: Path, passages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(passages)
    assert debate_study([str(file), "--check"]) == 0  # No prompt leaves its window.


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
    named = [name for names in script["TOPICS"].values() for name in names]
    data = ROOT / "benchmarks/data"
    finished = [file.stem for file in FILES if (data / f"{file.stem}.jsonl").exists()]
    assert sorted(named) == sorted(finished)


def test_documented_example_is_the_file() -> None:
    documented = (ROOT / "docs/studies.md").read_text(encoding="utf-8")
    assert f"```yaml\n{EXAMPLE.read_text(encoding='utf-8')}```" in documented


def test_every_key_of_studies_is_documented() -> None:
    documented = (ROOT / "docs/studies.md").read_text(encoding="utf-8")
    for name in Study.model_fields:
        assert f"`{name}`" in documented


ROW = re.compile(
    r"^\| (.+?) − (.+?) \| (.+?) \| (\d+) \| (\S+)(?: \[(\S+), (\S+)\])?"
    r" \| \S+ \| .+? to \S+ \| (\S+) \| (\S+) \|(?: (\S+) \|)?",
    re.MULTILINE,
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_differences_in_the_tables_follow_from_the_data(file: Path, tmp_path: Path) -> None:
    """Compute them again with scipy, from the lines of the runs alone."""
    study = read_study(file)
    ends: dict[tuple[str, str], dict[int, float]] = {}
    gains: dict[tuple[str, str], dict[int, float]] = {}
    planned: dict[str, set[int]] = defaultdict(set)
    failed: dict[str, set[int]] = defaultdict(set)
    """Seeds whose start missed its criterion, by arm: nothing was trained."""
    results = file.parent / study.results
    for line in results.read_text("utf-8").splitlines() if results.exists() else ():
        run = json.loads(line)
        planned[run["arm"]].add(run["seed"])
        if not run["start_met"]:
            failed[run["arm"]].add(run["seed"])
            continue
        for name, after in run["after"].items():
            key, start = (run["arm"], name), run["before"].get(name)
            ends.setdefault(key, {})[run["seed"]] = after
            if start is not None:
                gains.setdefault(key, {})[run["seed"]] = after - start
    lines = Lines(results).read()
    printed = tables(study, lines, tmp_path / "plot.svg") if lines else []
    rows = ROW.findall("\n".join(printed))
    p_values, printed_holm = [], []
    for arm, other, name, seeds, mean, low, high, p, p_holm, failed_starts in rows:
        values = [*gains.get((arm, name), {}).values()]
        num_failed = len(failed[arm])
        if other != "start":
            sides = gains if other.endswith(", gains") else ends
            base_arm = other.removesuffix(", gains")
            own, base = sides[arm, name], sides[base_arm, name]
            values = [own[seed] - base[seed] for seed in own if seed in base]
            num_failed = len((failed[arm] | failed[base_arm]) & planned[arm] & planned[base_arm])
        assert (len(values), num_failed) == (int(seeds), int(failed_starts.replace("–", "") or 0))
        assert float(mean) == pytest.approx(float(np.mean(values)), abs=6e-4)
        if len(values) > 1:
            half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
            expected = [np.mean(values) - half, np.mean(values) + half]
            assert [float(low), float(high)] == pytest.approx(expected, abs=6e-4)
            if np.ptp(values) < 1e-9 < abs(np.mean(values)):
                assert (p, p_holm) == ("–", "–")  # No spread to test by.
                continue
            p_values.append(1.0 if np.ptp(values) < 1e-9 else stats.ttest_1samp(values, 0).pvalue)
            assert float(p) == pytest.approx(p_values[-1], rel=0.06)
            printed_holm.append(p_holm)
    # Holm by its definition: in the order of p, each is compared with .05 / (tests not yet done).
    survives = [False] * len(p_values)
    for num_done, test in enumerate(np.argsort(p_values)):
        if p_values[test] > 0.05 / (len(p_values) - num_done):
            break
        survives[test] = True
    assert [cell.startswith("**") for cell in printed_holm] == survives
    assert rows or not ends
