"""`debate-study`: what it runs, prints and refuses."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from debate_studies.command import main as debate_study
from debate_studies.lines import FinishedRun, Lines
from debate_studies.study_file import made_by, read_study
from studies.test_study import MINIATURE

pytestmark = pytest.mark.slow


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
    kept = Lines(tmp_path / "kept/lines.jsonl")
    for one in (line("grpo", 0, 0.5), line("other", 0, 0.25), line("grpo", 1, 0.5)):
        kept.add(one)
    asked = [str(file), "--output", str(tmp_path / "runs"), "--jobs", "2"]
    assert debate_study([*asked, "--seeds", "1"]) == 0
    said = capfd.readouterr().out
    begun = f"1 of 2 runs to do; logs: {tmp_path}/runs\nstart warm, seed 1: done\n"
    assert said.startswith(begun + "[1/1] other, seed 1: direct ")
    assert len(kept.read()) == 4 and kept.read()[-1].steps == 2
    assert sorted(one.name for one in (tmp_path / "runs").iterdir()) == [
        "other-1", "other-1.arguments", "other-1.log", "study.md", "study.svg",
        "warm-1", "warm-1.arguments", "warm-1.log",
    ]  # fmt: skip
    page = (tmp_path / "runs/study.md").read_text()
    assert page.startswith(
        "# Study miniature\n\nSmall.\n\nWritten by `debate-study study.yaml` from "
        "`lines.jsonl`.\n\nThe head of its file:\n\n```text\nAsked: does it run?\n```\n\n"
        "![Plot of miniature](study.svg)\n\nMeans over seeds"
    )
    assert "\n".join(page.splitlines()[15:]) in said
    # Nothing is left to run.
    assert debate_study([*asked, "--arms", "grpo"]) == 0
    assert "[1/" not in capfd.readouterr().out


def test_page_lies_where_the_study_says(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, results="lines.jsonl", page="pages/own.md")
    assert debate_study([str(file), "--tables"]) == 0
    assert capfd.readouterr().out == "no run is finished\n"
    Lines(tmp_path / "lines.jsonl").add(line("grpo", 0, 0.5))
    assert debate_study([str(file), "--tables"]) == 0
    assert "| grpo − start | direct | 1 | +0.250 |" in capfd.readouterr().out
    assert sorted(one.name for one in (tmp_path / "pages").iterdir()) == ["own.md", "own.svg"]


def test_failed_runs_are_named_with_their_logs_and_others_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arms = {
        "broken": {"recipe": "grpo_puzzle", "settings": ["model.context_window=16"]},
        "grpo": {"recipe": "grpo_puzzle"},
    }
    few = {"arms": arms, "starts": {}, "compared": [], "seeds": [0]}
    file = written(tmp_path, **few, results="lines.jsonl")
    asked = [str(file), "--output", str(tmp_path / "runs"), "-q"]
    assert debate_study(asked) == 1
    log = tmp_path / "runs/broken-0.log"
    failure = f"debate-study: broken-0: debate-train ended with 2; see {log}\n"
    found = capfd.readouterr()
    assert found.err == failure
    assert "|  | grpo |\n|---|---|\n| seeds | 0 |\n" in found.out  # Tables of what there is.
    assert "context_window" in log.read_text()
    assert Lines(tmp_path / "lines.jsonl").done() == {("grpo", 0)}


def test_check_says_how_much_there_is_and_what_is_wrong(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, results="lines.jsonl")
    assert debate_study([str(file), "--check"]) == 0
    found = capfd.readouterr().out
    first, results = found.splitlines()
    assert first == "study miniature: 4 runs, 0 of them finished"
    assert results == f"results: {tmp_path}/lines.jsonl"
    arms = {"broken": {"recipe": "grpo_puzzle", "settings": ["model.context_window=16"]}}
    written(tmp_path, arms=arms, compared=[])
    assert debate_study([str(file), "--check"]) == 2
    assert "arms.broken: " in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"arm": {}}, [], "unknown key; did you mean 'arms'?"),
        ({"plot": ["dirrect"]}, [], "'dirrect' is among neither the measures nor the curves"),
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
            {"measures": {"direct": "eval/direct/acuracy"}, "compared": [], "plot": []},
            [],
            "measures.direct: found 'eval/direct/acuracy', which no arm measures; expected one",
        ),
        (
            {"settings": ["reward.value=zero_one"]},
            [],
            "starts.warm: command line: reward.value: unknown key; did you mean 'values'?",
        ),
        (
            {"starts": {"warm": {"recipe": "grpo_puzzle", "phases": ["warm"]}}},
            [],
            "starts.warm: found no phase 'warm'; expected one of the recipe's: warm_start, rein",
        ),
        (
            {"starts": {"warm": {"recipe": "grpo_puzle", "phases": ["warm_start"]}}},
            [],
            "grpo_puzle: no such recipe; expected a YAML file or a name",
        ),
        ({"name": "a/b"}, [], "name: found 'a/b'; expected text that matches ^"),
        (
            {"starts": {"grpo": {"recipe": "grpo_puzzle", "phases": ["warm_start"]}}},
            [],
            "arms.grpo: is the name of a start, too; expected another",
        ),
        (
            {"settings": ["evaluation.questions=0"]},
            [],
            "starts.warm: evaluation.questions: found 0; expected at least 1",
        ),
        (
            {"arms": {"start": {"recipe": "grpo_puzzle"}}, "compared": []},
            [],
            "arms.start: means the measures before; expected another name",
        ),
        (
            {"arms": {"a": {"recipe": "grpo_puzzle", "settings": ["seed={tpr}"]}}, "compared": []},
            [],
            "arms.a: command line: seed: found a mapping",
        ),
        (
            {"environment": {"PYTHONPATH": "/evil"}},
            [],
            "environment.PYTHONPATH: found '/evil'; expected ATEN_CPU_CAPABILITY, ",
        ),
        ({"page": "mine.md"}, [], "page: found 'mine.md', a file that this study has not made"),
        ({"page": "../new.md"}, [], "page: found '../new.md'; expected a new file below"),
        ({"page": "/etc/new.md"}, [], "page: found '/etc/new.md'; expected a new file below"),
        ({"page": "linked/new.md"}, [], "page: found 'linked/new.md'; expected a new file below"),
        ({"page": "link.md"}, [], "page: found 'link.md'; expected a new file below"),
        ({"page": ".envrc"}, [], "page: found '.envrc'; expected a name that ends in .md"),
        ({"page": "drawn.md"}, [], "page: found 'drawn.md'; expected a new file below"),
        ({"results": "mine.jsonl"}, [], "results: found 'mine.jsonl', a file that this study has"),
        (
            {"results": "../new.jsonl"},
            [],
            "results: found '../new.jsonl'; expected a new file below",
        ),
        ({}, ["--seeds", "7"], "--seeds: found 7; expected some of 0, 1"),
        ({}, ["--arms", "gripo"], "--arms: found gripo; expected some of grpo, other"),
        ({}, ["--jobs", "0"], "--jobs: found 0; expected at least 1"),
        ({}, ["--jobs", "2", "--devices", "0"], "--jobs: found beside --devices"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    changes: dict[str, Any],
    options: list[str],
    said: str,
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
    asked = [str(file), "--output", str(tmp_path / "runs"), *options]
    assert debate_study(asked) == 2
    found = capfd.readouterr()
    assert said in found.err and "Traceback" not in found.err
    assert not (tmp_path / "runs").exists()


def test_file_that_is_not_there_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert debate_study(["nowhere.yaml"]) == 2
    expected = "debate-study: nowhere.yaml: found no such file; expected that of a study (.yaml)\n"
    assert capfd.readouterr().err == expected


def test_damaged_results_are_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, results="lines.jsonl")
    text = '{"arm": "grpo", "seed": "one"}\n'
    (tmp_path / "lines.jsonl").write_text(text)
    assert debate_study([str(file), "--tables"]) == 2
    found = capfd.readouterr().err
    assert found.startswith(f"debate-study: {tmp_path}/lines.jsonl:1: seed: ")
    assert found.endswith("; expected a finished run\n") and len(found.splitlines()) == 1


def test_arms_that_were_run_with_other_settings_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, results="lines.jsonl")
    old = line("grpo", 0, 0.5).model_copy(update={"made_by": made_by(read_study(file), "grpo")})
    Lines(tmp_path / "lines.jsonl").add(old)
    assert debate_study([str(file), "--tables"]) == 0
    written(tmp_path, results="lines.jsonl", settings=[*MINIATURE["settings"], "steps=3"])
    assert debate_study([str(file), "--tables"]) == 2
    found = capfd.readouterr().err
    assert "lines.jsonl: arm grpo, seed 0 was run with other settings; expected another" in found


def test_study_that_extends_another_has_results_of_its_own(tmp_path: Path) -> None:
    written(tmp_path, results="lines.jsonl", page="page.md")
    (tmp_path / "second.yaml").write_text("extends: study.yaml\nname: second\npage: own.md\n")
    study = read_study(tmp_path / "second.yaml")
    assert (study.results, study.page, len(study.arms)) == (None, "own.md", 2)


def test_page_that_cannot_be_written_is_said_beside_all_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, results="lines.jsonl", page="taken/page.md")
    (tmp_path / "taken").write_text("")
    Lines(tmp_path / "lines.jsonl").add(line("grpo", 0, 0.5))
    assert debate_study([str(file), "--tables"]) == 1
    said = capfd.readouterr().err
    assert "no page was written: " in said and "Traceback" not in said


@pytest.mark.parametrize("arm", ["[a]", "a" * 99, "${a}"])
def test_check_refuses_names_that_runs_would(
    tmp_path: Path, arm: str, capfd: pytest.CaptureFixture[str]
) -> None:
    arms = {arm: {"recipe": "grpo_puzzle"}}
    file = written(tmp_path, arms=arms, starts={}, compared=[], plot=[])
    assert debate_study([str(file), "--check"]) == 2
    assert f"arms.{arm}: " in capfd.readouterr().err


def test_study_that_extends_another_has_a_name_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path)
    (tmp_path / "second.yaml").write_text("extends: study.yaml\nseeds: [5]\n")
    assert debate_study([str(tmp_path / "second.yaml"), "--check"]) == 2
    assert "second.yaml: name: missing" in capfd.readouterr().err
