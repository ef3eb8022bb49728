"""The runner of studies: from a file to its lines and tables, and what a kill leaves behind."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from benchmarks.study import ROOT, Lines, Runs, Study, read_study
from benchmarks.study_tables import fall, interval, quantile, tables, within

from debate_train.commands.cli import main as debate_train

RECIPE = "recipes/grpo_puzzle.yaml"
MINIATURE: dict[str, Any] = {
    "name": "miniature",
    "seeds": [0, 1],
    "settings": [
        "phases.warm_start.exit_criterion=null",
        "phases.warm_start.steps=1",
        "phases.warm_start.data.batch_size=2",
        "phases.reinforce.steps=2",
        "data.batch_size=2",
        "rollout.debates_per_question=2",
        "rollout.max_tokens=16",
        "evaluation.questions=2",
        "recording.debates=0",
        "tracking.wandb=false",
    ],
    "starts": {
        "warm": {
            "recipe": RECIPE,
            "settings": ["phases.reinforce.steps=0"],
            "phases": ["warm_start"],
        }
    },
    "arms": {
        "grpo": {"recipe": RECIPE, "start": "warm"},
        "other": {"recipe": RECIPE, "start": "warm", "settings": ["reward.values=zero_one"]},
    },
    "measures": {"direct": "eval/direct/accuracy", "format": "eval/direct/format"},
    "curves": {"reward": "reward/total"},
    "compared": [
        {"arm": "grpo", "measures": ["direct"]},
        {"arm": "grpo", "over": "other", "measures": ["direct", "format"]},
    ],
    "plot": ["direct", "reward"],
}


class Counted:
    """`debate-train` in this process; it can be killed after a run."""

    def __init__(self, most: int = 100) -> None:
        self.calls: list[list[str]] = []
        self.most = most

    def __call__(self, arguments: Sequence[str], log: Path) -> int:
        if len(self.calls) == self.most:
            raise KeyboardInterrupt
        self.calls.append([*arguments])
        return debate_train([*arguments])


def test_miniature_study_runs_to_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(MINIATURE | {"seeds": [0]}))
    study, lines = read_study(file), Lines(tmp_path / "lines.jsonl")
    killed = Counted(2)  # The start and the first arm.
    with pytest.raises(KeyboardInterrupt):
        Runs(study, tmp_path, lines, killed).one_seed(0)
    assert lines.done() == {("grpo", 0)}
    lines.file.write_text(lines.file.read_text() + '{"arm": "other", "se')
    lines.mend()
    again = Counted()
    Runs(study, tmp_path, lines, again).one_seed(0)
    Runs(study, tmp_path, lines, again).one_seed(0)
    assert [Path(call[call.index("--output") + 1]).name for call in again.calls] == ["other-0"]
    grpo, other = lines.read()
    assert (grpo["arm"], other["arm"]) == ("grpo", "other")
    # Both begin with the same weights, on the same questions.
    assert grpo["before"] == other["before"] and grpo["steps"] == 2
    assert [step for step, _ in grpo["curves"]["reward"]] == [1, 2]
    capsys.readouterr()
    found = "\n".join(tables(study, lines.read(), tmp_path / "plots/plot.svg"))
    more = grpo["after"]["direct"] - other["after"]["direct"]
    assert f"| grpo − other | direct | 1 | {more:+.3f} |" in found
    plot = (tmp_path / "plots/plot.svg").read_text()
    assert plot.count("<polyline") == 2 and plot.count("<circle") == 2


def test_start_that_misses_its_criterion_counts_as_no_gain(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")

    def train(arguments: Sequence[str], log: Path) -> int:
        folder = Path(arguments[arguments.index("--output") + 1])
        assert folder.name == "warm-1"  # No arm is run.
        folder.mkdir()
        side = {"eval/direct/accuracy": {"mean": 0.25}, "eval/direct/format": {"mean": 1.0}}
        found = {"exit_criteria": {"warm_start": False}, "before": side, "after": side, "steps": 7}
        (folder / "results.json").write_text(json.dumps(found))
        return 0

    Runs(Study.model_validate(MINIATURE), tmp_path, lines, train).one_seed(1)
    assert [line["start_met"] for line in lines.read()] == [False, False]
    assert all(line["before"] == line["after"] for line in lines.read())


def test_students_quantiles_are_those_of_tables() -> None:
    # Abramowitz and Stegun, table 26.10, A(t) = .95; 1 degree of freedom: tan(.475 pi).
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 10: 2.228, 30: 2.042}
    assert {n: round(quantile(n), 3) for n in table} == table
    assert quantile(1) == pytest.approx(math.tan(0.475 * math.pi), rel=1e-9)
    # 2 degrees of freedom: P(|T| <= t) = t / sqrt(2 + t²).
    assert within(1.5, 2) == pytest.approx(1.5 / math.sqrt(2 + 1.5**2), rel=1e-12)


def test_interval_of_a_mean_by_hand() -> None:
    # Mean 2, deviations -1, 0, 1: s = 1, standard error 1/√3, t = 2√3; with 2 degrees of freedom
    # p = 1 - t / √(2 + t²) = 1 - √12/√14.
    mean, error, half, p = interval([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert half == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert p == pytest.approx(1 - math.sqrt(12 / 14), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "step"),
    [([0.5, 0.6, 0.4, 0.4], 3), ([0.5, 0.4, 0.6], None), ([0.5, 0.46], None), ([], None)],
)
def test_fall_is_the_first_look_of_those_that_stay_below(
    values: list[float], step: float | None
) -> None:
    assert fall([[number, value] for number, value in enumerate(values, 1)], 0.05) == step


@pytest.mark.parametrize(
    "file", sorted(ROOT.glob("benchmarks/studies/*.yaml")), ids=lambda f: f.stem
)
def test_files_of_studies_name_what_is_there(file: Path) -> None:
    study = read_study(file)
    assert study.name == file.stem
    for run in (*study.starts.values(), *study.arms.values()):
        assert (ROOT / run.recipe).is_file(), run.recipe
