"""`debate-study`: what it runs, prints and refuses."""

import re
import runpy
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from debate_studies.command import main as debate_study
from debate_studies.lines import FinishedRun, Lines
from debate_studies.study_file import loaded_runs, made_by, read_study
from studies.miniature import MINIATURE

pytestmark = pytest.mark.slow


def test_study_that_extends_another_has_its_keys_and_leaves_arms_out(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(yaml.safe_dump(MINIATURE | {"compared": []}))
    second_study = {
        "extends": "first.yaml",
        "name": "second",
        "seeds": [3],
        "environment": {"MKL_CBWR": "AVX2"},
    }
    (tmp_path / "second.yaml").write_text(yaml.safe_dump(second_study | {"arms": {"other": None}}))
    first, second = (read_study(tmp_path / f"{name}.yaml") for name in ("first", "second"))
    assert (second.name, second.seeds) == ("second", (3,))
    assert second.arms == {"grpo": first.arms["grpo"]}
    assert (first.environment, second.environment) == ({}, {"MKL_CBWR": "AVX2"})


def written(folder: Path, **changes: Any) -> Path:
    file = folder / "study.yaml"
    file.write_text("# Asked: does it run?\n" + yaml.safe_dump(MINIATURE | changes))
    return file


def line(arm: str, seed: int, after: float) -> FinishedRun:
    before = {"direct": 0.25, "format": 1.0}
    sides = {"before": before, "after": before | {"direct": after}}
    return FinishedRun(arm=arm, seed=seed, start_met=True, steps=2, seconds=1.0, **sides)


def test_study_runs_what_is_missing_in_processes_and_writes_its_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, about="Small.", results="kept/lines.jsonl")
    (tmp_path / "kept").mkdir()
    lines = Lines(tmp_path / "kept/lines.jsonl")
    for finished in (line("grpo", 0, 0.5), line("other", 0, 0.25), line("grpo", 1, 0.5)):
        lines.add(finished)
    arguments = [str(file), "--output", str(tmp_path / "runs"), "--jobs", "2"]
    assert debate_study([*arguments, "--seeds", "1"]) == 0
    printed = capfd.readouterr().out
    begun = f"1 of 2 runs to do; logs: {tmp_path}/runs\nstart warm, seed 1: done\n"
    assert printed.startswith(begun + "[1/1] other, seed 1: direct ")
    assert len(lines.read()) == 4
    assert lines.read()[-1].steps == 2
    assert sorted(finished.name for finished in (tmp_path / "runs").iterdir()) == [
        "other-1", "other-1.arguments", "other-1.log", "study.md", "study.svg",
        "warm-1", "warm-1.arguments", "warm-1.log",
    ]  # fmt: skip
    page = (tmp_path / "runs/study.md").read_text()
    assert page.startswith(
        "# Study miniature\n\nSmall.\n\nWritten by `debate-study study.yaml` from "
        "`lines.jsonl`.\n\nThe head of its file:\n\n```text\nAsked: does it run?\n```\n\n"
        "![Plot of miniature](study.svg)\n\nMeans over seeds"
    )
    assert "\n".join(page.splitlines()[15:]) in printed
    # Nothing is left to run.
    assert debate_study([*arguments, "--arms", "grpo"]) == 0
    assert "[1/" not in capfd.readouterr().out


def test_failed_runs_are_named_with_their_logs_and_others_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arms = {
        "broken": {"recipe": "grpo_puzzle", "settings": ["model.context_window=16"]},
        "grpo": {"recipe": "grpo_puzzle"},
    }
    few = {"arms": arms, "starts": {}, "compared": [], "seeds": [0]}
    file = written(tmp_path, **few, results="lines.jsonl")
    arguments = [str(file), "--output", str(tmp_path / "runs"), "-q"]
    assert debate_study(arguments) == 1
    log = tmp_path / "runs/broken-0.log"
    failure = f"debate-study: broken-0: debate-train ended with 2; see {log}\n"
    printed = capfd.readouterr()
    assert printed.err == failure
    assert "|  | grpo |\n|---|---|\n| seeds | 0 |\n" in printed.out  # Tables of what there is.
    assert "context_window" in log.read_text()
    assert Lines(tmp_path / "lines.jsonl").done() == {("grpo", 0)}


def test_check_says_how_much_there_is_and_what_is_wrong(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, results="lines.jsonl")
    assert debate_study([str(file), "--check"]) == 0
    printed = capfd.readouterr().out
    first, results = printed.splitlines()
    assert first == "study miniature: 4 runs, 0 of them finished"
    assert results == f"results: {tmp_path}/lines.jsonl"
    arms = {"broken": {"recipe": "grpo_puzzle", "settings": ["model.context_window=16"]}}
    written(tmp_path, arms=arms, compared=[])
    assert debate_study([str(file), "--check"]) == 2
    assert "arms.broken: " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"arm": {}}, [], "unknown key; did you mean 'arms'?"),
        (
            {
                "measures": {"direct": "eval/direct/acuracy"},
                "compared": [{"arm": "grpo", "measures": ["direct"]}],
                "plot": [],
            },
            [],
            "arms.grpo: measures.direct: found 'eval/direct/acuracy', which the arm does not",
        ),
        (
            {"settings": ["reward.value=zero_one"]},
            [],
            "starts.warm: command line: reward.value: unknown key; did you mean 'values'?",
        ),
        (
            {"settings": [*MINIATURE["settings"], "phases.second={steps: 1}"]},
            [],
            "arms.grpo: evaluation.before: found 'second', until whose start phase 'reinforce' "
            "learns; expected 'reinforce', as",
        ),
        (
            {"settings": [*MINIATURE["settings"], "seed=5"]},
            [],
            "settings: found 'seed=5'; expected seeds, which the study gives its runs",
        ),
        ({"seeds": [0, 0]}, [], "seeds: found 0, 0; expected each seed once"),
        (
            {"compared": [{"arm": "grpo", "over": "grpo", "measures": ["direct"]}]},
            [],
            "compared: found 'grpo' over itself",
        ),
        ({"name": "a/b"}, [], "name: found 'a/b'; expected text that matches ^"),
        (
            {"settings": ["evaluation.questions=0"]},
            [],
            "starts.warm: evaluation.questions: found 0; expected at least 1",
        ),
        (
            {"environment": {"PYTHONPATH": "/evil"}},
            [],
            "environment.PYTHONPATH: found '/evil'; expected ATEN_CPU_CAPABILITY, ",
        ),
        ({"page": "linked/new.md"}, [], "page: found 'linked/new.md'; expected a new file below"),
        ({"results": "mine.jsonl"}, [], "results: found 'mine.jsonl', a file that this study has"),
        ({}, ["--arms", "gripo"], "--arms: found gripo; expected some of grpo, other"),
        ({}, ["--jobs", "0"], "--jobs: found 0; expected at least 1"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    changes: dict[str, Any],
    options: list[str],
    message: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "studies"
    folder.mkdir()
    (folder / "linked").symlink_to(tmp_path)
    (folder / "link.md").symlink_to("nowhere")
    for name in ("mine.md", "mine.jsonl", "drawn.svg"):
        (folder / name).write_text("precious")
    file = written(folder, **changes)
    arguments = [str(file), "--output", str(tmp_path / "runs"), *options]
    assert debate_study(arguments) == 2
    printed = capfd.readouterr()
    assert message in printed.err
    assert "Traceback" not in printed.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ("../data/lines.jsonl", 0),
        ("../data/deeper/lines.jsonl", 2),
        ("../missing/lines.jsonl", 2),
        ("../lines.jsonl", 2),
        ("../../data/lines.jsonl", 2),
    ],
)
def test_first_results_may_lie_in_a_folder_beside_the_studies(
    results: str, code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("data/deeper", "benchmarks/data/deeper", "benchmarks/studies"):
        (tmp_path / name).mkdir(parents=True)
    file = written(tmp_path / "benchmarks/studies", results=results)
    assert debate_study([str(file), "--check"]) == code
    expected = f"results: found '{results}'; expected a new file below {file.parent}, or in a"
    assert (expected in capfd.readouterr().err) == bool(code)


ROOT = Path(__file__).parents[2]
DOCUMENTED = "".join(
    (ROOT / f"docs/{page}.md").read_text(encoding="utf-8")
    for page in ("figures", "rewards", "tokens")
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
            family = f"{curve.rpartition('/')[0]}/NAME"
            names = "|".join(re.escape(name) for name in (curve, short, family))
            cell = rf"^\|[^|]*`({names})`[^|]*\|"
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
