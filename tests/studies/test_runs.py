"""Runs of a study: what is started with what, what is kept, and what was begun or went wrong."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from debate_studies.lines import FinishedRun, Lines
from debate_studies.runs import Runs, Task, Train, without, work
from debate_studies.study_file import Arm, StartingRun, Study, read_study
from debate_studies.tables import tables
from debate_train.checkpoints.run_directory import as_written, with_hash, write_json
from debate_train.commands.cli import main as debate_train
from debate_train.errors import RunFailure, UsageError
from studies.miniature import MINIATURE, RECIPE


class Counted:
    """`debate-train` in this process; it can be killed after a run."""

    def __init__(self, max_calls: int = 100) -> None:
        self.calls: list[list[str]] = []
        self.most = max_calls

    def __call__(self, arguments: Sequence[str], log: Path) -> int:
        if len(self.calls) == self.most:
            raise KeyboardInterrupt
        self.calls.append([*arguments])
        return debate_train([*arguments])


def both_arms(study: Study, folder: Path, lines: Lines, train: Train, seed: int) -> None:
    for arm in ("grpo", "other"):
        Runs(study, folder, folder, lines, train).arm(arm, seed)


def test_miniature_study_runs_to_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(MINIATURE | {"seeds": [0]}))
    study = read_study(file)
    lines = Lines(tmp_path / "lines.jsonl")
    killed = Counted(2)  # The start and the first arm.
    with pytest.raises(KeyboardInterrupt):
        both_arms(study, tmp_path, lines, killed, 0)
    assert lines.done() == {("grpo", 0)}
    lines.file.write_text(lines.file.read_text() + '{"arm": "other", "se')
    again = Counted()
    Runs(study, tmp_path, tmp_path, lines, again).arm("other", 0)
    assert [Path(call[call.index("--output") + 1]).name for call in again.calls] == ["other-0"]
    grpo, other = lines.read()
    assert (grpo.arm, other.arm) == ("grpo", "other")
    # Both begin with the same weights, on the same questions.
    assert grpo.before == other.before
    assert grpo.steps == 2
    assert [step for step, _ in grpo.curves["reward"]] == [1, 2]
    capsys.readouterr()
    printed = "\n".join(tables(study, lines.read(), tmp_path / "plots/plot.svg"))
    more = grpo.after["direct"] - other.after["direct"]
    assert f"| grpo − other | direct | 1 | {more:+.3f} |" in printed
    image = (tmp_path / "plots/plot.svg").read_text()
    # Two arms: a dot of the measure, and a line of the curve with two.
    assert image.count("<path d=") == 2
    assert image.count("<circle") == 2 + 4


def side(strict: float, accuracy: float) -> dict[str, dict[str, float]]:
    names = {"strict_accuracy": strict, "accuracy": accuracy}
    return {f"eval/judge/{name}": {"mean": value} for name, value in names.items()}


def test_start_goes_on_from_another_and_arms_take_the_rates_of_its_judge(tmp_path: Path) -> None:
    calls: dict[str, list[str]] = {}

    def train(arguments: Sequence[str], log: Path) -> int:
        folder = Path(arguments[arguments.index("--output") + 1])
        calls[folder.name] = [*arguments]
        (folder / "checkpoints/step-000003").mkdir(parents=True)
        (folder / "recipe.yaml").write_text("model: {dtype: bfloat16}")
        figures = {"eval/direct/accuracy": {"mean": 0.25}} | side(0.72, 0.85)
        results = {"before": figures, "after": figures, "steps": 3, "seconds": {"all": 1.0}}
        write_json(folder / "results.json", with_hash(results | {"exit_criteria": {}}))
        return 0

    solver = StartingRun(recipe=RECIPE, settings=("a=1",), phases=("solver",))
    judge = StartingRun(recipe=RECIPE, start="solver", settings=("b=2",), phases=("judge",))
    better = StartingRun(recipe=RECIPE, start="judge", phases=("judge",))
    votes = "reward.votes_from={tpr: {tpr}, fpr: {fpr}}"
    study = Study(
        name="x",
        seeds=(4,),
        settings=("c={seed}",),
        starts={"solver": solver, "judge": judge, "better": better},
        arms={"drawn": Arm(recipe=RECIPE, start="better", settings=(votes,))},
        measures={"direct": "eval/direct/accuracy"},
    )
    Runs(study, tmp_path, tmp_path, Lines(tmp_path / "lines.jsonl"), train).arm("drawn", 4)
    assert [*calls] == ["solver-4", "judge-4", "better-4", "drawn-4"]
    assert "a=1" in calls["solver-4"]
    assert "a=1" not in calls["judge-4"]
    skipped = "phases.{}={{steps: 0, exit_criterion: null, keep_if: null}}".format
    assert skipped("solver") in calls["judge-4"]
    assert skipped("judge") not in calls["judge-4"]
    assert skipped("solver") in calls["better-4"]
    assert skipped("judge") not in calls["better-4"]
    assert {skipped("solver"), skipped("judge")} <= {*calls["drawn-4"]}
    assert f"model.name={tmp_path}/better-4/checkpoints/step-000003" in calls["drawn-4"]
    assert "reward.votes_from={tpr: 0.900000, fpr: 0.200000}" in calls["drawn-4"]
    assert {"name=drawn-4", "tracking.group=x", "seed=4"} <= {*calls["drawn-4"]}
    assert {"c=4", "model.type=pretrained", "model.dtype=bfloat16"} <= {*calls["drawn-4"]}


class Ended:
    """In the place of `debate-train`: it writes results at once, and notes its arguments."""

    def __init__(self, **results: Any) -> None:
        sides = {"before": {"eval/direct/accuracy": {"mean": 0.25}}}
        sides["after"] = {"eval/direct/accuracy": {"mean": 0.75}}
        self.results = {"exit_criteria": {}, "steps": 3, **sides, **results}
        self.calls: list[list[str]] = []

    def __call__(self, arguments: Sequence[str], log: Path) -> int:
        self.calls.append([*arguments])
        folder = Path(arguments[arguments.index("--output") + 1])
        (folder / "checkpoints/step-000003").mkdir(parents=True, exist_ok=True)
        (folder / "recipe.yaml").write_text("model: {dtype: float32}")
        write_json(folder / "results.json", with_hash(self.results))
        return 0


def one_arm(**changes: Any) -> Study:
    measures = {"direct": "eval/direct/accuracy"}
    arms = {"arm": {"recipe": RECIPE}}
    return Study.model_validate(
        {"name": "x", "seeds": [0], "arms": arms, "measures": measures, **changes}
    )


def test_run_that_was_begun_is_resumed(tmp_path: Path) -> None:
    train = Ended()
    lines = Lines(tmp_path / "lines.jsonl")
    (tmp_path / "arm-0").mkdir()
    (tmp_path / "arm-0/recipe.yaml").write_text("")
    Runs(one_arm(), tmp_path, tmp_path, lines, train).arm("arm", 0)
    Runs(one_arm(), tmp_path, tmp_path, lines, train).arm("arm", 1)
    assert ["--resume" in call for call in train.calls] == [True, False]


def test_run_without_results_or_checkpoints_is_a_failure_with_words(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    with pytest.raises(RunFailure, match=r"arm-0: its files are not as its run has written them"):
        Runs(one_arm(), tmp_path, tmp_path, lines, lambda *_: 0).arm("arm", 0)
    starts = {"warm": {"recipe": RECIPE, "phases": ["warm_start"]}}
    begun = one_arm(starts=starts, arms={"arm": {"recipe": RECIPE, "start": "warm"}})
    Runs(begun, tmp_path, tmp_path, lines, Ended()).start("warm", 0)
    (tmp_path / "warm-0/checkpoints/step-000003").rmdir()
    with pytest.raises(RunFailure, match=r"warm-0/checkpoints: found none"):
        Runs(begun, tmp_path, tmp_path, lines, Ended()).arm("arm", 0)


@pytest.mark.parametrize("content", [b"a: [", b"model: {}"])
def test_recipe_of_a_start_that_was_changed_is_one_line(tmp_path: Path, content: bytes) -> None:
    Ended()(["--output", str(tmp_path / "warm-0")], tmp_path)
    (tmp_path / "warm-0/recipe.yaml").write_bytes(content)
    with pytest.raises(RunFailure, match="warm-0: its files are not as its run has written them"):
        without([], tmp_path / "warm-0")


def test_run_that_was_begun_with_other_settings_is_refused(tmp_path: Path) -> None:
    train = Ended()
    lines = Lines(tmp_path / "lines.jsonl")
    starts = {"warm": {"recipe": RECIPE, "phases": ["warm_start"]}}
    arms = {"arm": {"recipe": RECIPE, "start": "warm"}}
    study = one_arm(starts=starts, arms=arms)
    Runs(study, tmp_path, tmp_path, lines, train).arm("arm", 0)
    Runs(study, tmp_path, tmp_path, lines, train).arm("arm", 0)  # It takes what there is.
    assert len(train.calls) == 2
    starts["warm"] |= {"settings": ["steps=7"]}
    changed = one_arm(starts=starts, arms=arms)
    with pytest.raises(RunFailure, match="warm-0: was run with other settings"):
        Runs(changed, tmp_path, tmp_path, lines, train).arm("arm", 0)


def line_of_earlier(run: FinishedRun) -> str:
    """Return a line as versions wrote it that kept no hash."""
    return json.dumps(run.model_dump(exclude_defaults=True)) + "\n"


def test_whole_last_line_without_its_end_counts_and_a_torn_one_goes(tmp_path: Path) -> None:
    def run(seed: int) -> FinishedRun:
        return FinishedRun(arm="arm", seed=seed, start_met=True, steps=1, before={}, after={})

    lines = Lines(tmp_path / "lines.jsonl")
    lines.add(run(0))
    text, other = (line_of_earlier(run(seed)) for seed in (0, 1))
    lines.file.write_text(f"{other}\n{text.strip()}")  # Edited by hand: no newline at its end.
    assert lines.done() == {("arm", 0), ("arm", 1)}
    lines.add(run(2))
    lines.file.write_text(lines.file.read_text() + text[:20])
    lines.add(run(3))
    lines.add(run(3))  # As another call may have.
    assert [line.seed for line in lines.read()] == [1, 0, 2, 3]


def test_file_that_cannot_be_written_stops_no_other_run(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError("no space left on device")

    finished = list[str]()
    tasks = {"a": Task(full), "b": Task(lambda: finished.append("b"))}
    failed, lost = work(tasks, 1, lambda: None)
    assert str(failed["a"]) == "no space left on device"
    assert (finished, lost) == (["b"], [])


def test_lines_of_one_run_that_differ_are_refused(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    lines.add(FinishedRun(arm="arm", seed=0, start_met=True, steps=1, before={}, after={}))
    text = lines.file.read_text()
    lines.file.write_text(text.replace('"steps": 1', '"steps": 2'))
    with pytest.raises(UsageError, match=r"lines\.jsonl:1: is not as it was written"):
        lines.read()
    text = line_of_earlier(FinishedRun.model_validate(as_written(text)))
    lines.file.write_text(text + text)  # As two branches that were merged may have it.
    assert len(lines.read()) == 1
    lines.file.write_text(text + text.replace('"steps": 1', '"steps": 2'))
    with pytest.raises(UsageError, match="arm arm, seed 0: found lines that differ"):
        lines.read()
