"""The runner of studies: from a file to its lines and tables, and what a kill leaves behind."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from debate_studies.lines import FinishedRun, Lines, interval
from debate_studies.runs import Figure, Results, Runs, Train, call_rates, first_warnings
from debate_studies.study_file import Arm, Compared, StartingRun, Study, read_study
from debate_studies.tables import differences, tables
from debate_train.checkpoints.run_directory import with_hash, write_json
from debate_train.commands.cli import main as debate_train

RECIPE = "grpo_puzzle"
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


def both_arms(study: Study, folder: Path, lines: Lines, train: Train, seed: int) -> None:
    for arm in ("grpo", "other"):
        Runs(study, folder, folder, lines, train).arm(arm, seed)


def test_miniature_study_runs_to_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(MINIATURE | {"seeds": [0]}))
    study, lines = read_study(file), Lines(tmp_path / "lines.jsonl")
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
    assert grpo.before == other.before and grpo.steps == 2
    assert [step for step, _ in grpo.curves["reward"]] == [1, 2]
    capsys.readouterr()
    found = "\n".join(tables(study, lines.read(), tmp_path / "plots/plot.svg"))
    more = grpo.after["direct"] - other.after["direct"]
    assert f"| grpo − other | direct | 1 | {more:+.3f} |" in found
    image = (tmp_path / "plots/plot.svg").read_text()
    # Two arms: a dot of the measure, and a line of the curve with two.
    assert image.count("<path d=") == 2 and image.count("<circle") == 2 + 4


def test_start_that_misses_its_criterion_is_counted_and_in_no_mean(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")

    def train(arguments: Sequence[str], log: Path) -> int:
        folder = Path(arguments[arguments.index("--output") + 1])
        assert folder.name == "warm-1"  # No arm is run.
        folder.mkdir()
        side = {"eval/direct/accuracy": {"mean": 0.25}, "eval/direct/format": {"mean": 1.0}}
        found = {"exit_criteria": {"warm_start": False}, "before": side, "after": side, "steps": 7}
        write_json(folder / "results.json", with_hash(found))
        return 0

    study = Study.model_validate(MINIATURE)
    both_arms(study, tmp_path, lines, train, 1)
    assert [run.start_met for run in lines.read()] == [False, False]
    assert all(run.before == run.after for run in lines.read())
    one, other = lines.read()
    # A start that missed measures what its recipe says, on other questions than arms do: it is in
    # no mean.
    met = {"start_met": True, "before": {}, "after": {"direct": 0.5}, "seed": 0}
    shown = tables(study, [one, one.model_copy(update=met), other], tmp_path / "plot.svg")
    unread = one.model_copy(update={"start_met": True, "after": {"direct": 0.5}})
    both = one.model_copy(update={"start_met": True, "seed": 0})
    lacking = tables(study, [both, unread], tmp_path / "plot.svg")
    assert "| format | 1.000 (1) |" in lacking and "| direct | 0.250 → 0.375 ± 1.588 |" in lacking
    assert shown[2:7] == [
        "|  | grpo | other |",
        "|---|---|---|",
        "| seeds | 0 | – |",
        "| start missed its criterion | 1 | 1 |",
        "| direct | 0.500 | – |",
    ]
    runs = {(run.arm, run.seed): run for run in lines.read()}
    for name in ("direct", "judged by arms alone"):
        assert differences(runs, Compared(arm="grpo", measures=(name,)), name) == {}


def test_gains_are_compared_where_arms_begin_apart() -> None:
    runs = {
        (arm, 1): FinishedRun(
            arm=arm, seed=1, start_met=True, steps=1, before={"m": before}, after={"m": after}
        )
        for arm, before, after in (("a", 0.25, 0.5), ("b", 0.375, 0.75))
    }
    for gains, expected in ((False, 0.25), (True, 0.125)):
        one = Compared(arm="b", over="a", gains=gains, measures=("m",))
        assert differences(runs, one, "m") == {1: expected}


def study_of_gains(gains: Sequence[float], expected: float | None, folder: Path) -> str:
    """Write the comparison table of an arm whose seeds gained these."""
    comparison = {"arm": "grpo", "measures": ["direct"], "expected": expected}
    study = Study.model_validate({**MINIATURE, "seeds": [*range(8)], "compared": [comparison]})
    runs = [
        FinishedRun(
            arm="grpo",
            seed=seed,
            start_met=True,
            steps=1,
            before={"direct": 0.5},
            after={"direct": 0.5 + gain},
        )
        for seed, gain in enumerate(gains)
    ]
    return "\n".join(tables(study, runs, folder / "plot.svg"))


def test_too_few_seeds_for_the_expected_difference_decide_nothing(tmp_path: Path) -> None:
    # Standard deviation .01; ((1.960 + .8416) · .01 / .01)² + 1.92 = 9.77, and for .02 3.88.
    gains = [0.09, 0.10, 0.11]
    assert "| +0.010 | 10, not decided |" in study_of_gains(gains, 0.01, tmp_path)
    assert "| +0.020 | 4, not decided |" in study_of_gains(gains, 0.02, tmp_path)
    assert "| at least 3, not decided |" in study_of_gains(gains[:2], 0.02, tmp_path)
    few_seeds = study_of_gains(gains, 0.01, tmp_path)
    assert "| 0.0033 | 0.0033 |" in few_seeds and "no p is bold" in few_seeds
    # Five seeds of standard deviation .0079: ((2.802 · .0079) / .02)² + 1.92 = 3.15.
    enough_seeds = study_of_gains([*gains, 0.095, 0.105], 0.02, tmp_path)
    assert "| +0.020 | 4 |" in enough_seeds and "| **9.3e-06** |" in enough_seeds
    assert "expected" not in study_of_gains(gains, None, tmp_path)


def test_expected_difference_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a difference other than 0"):
        Compared(arm="grpo", measures=("direct",), expected=0.0)


def test_interval_of_a_mean_by_hand() -> None:
    # Mean 2, deviations -1, 0, 1: s = 1, standard error 1/√3, t = 2√3; with 2 degrees of freedom
    # p = 1 - t / √(2 + t²) = 1 - √12/√14.
    mean, error, half, p = interval([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert half == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert p == pytest.approx(1 - math.sqrt(12 / 14), rel=1e-9)


def side(strict: float, accuracy: float) -> dict[str, dict[str, float]]:
    names = {"strict_accuracy": strict, "accuracy": accuracy}
    return {f"eval/judge/{name}": {"mean": value} for name, value in names.items()}


def rates(strict: float, accuracy: float) -> dict[str, float]:
    own = side(strict, accuracy)
    return call_rates({name: Figure(**value) for name, value in own.items()})


def test_table_of_warnings_says_in_how_many_runs_and_from_when(tmp_path: Path) -> None:
    spoke = [(35, "collapse"), (40, "coverage"), (90, "collapse")]
    found = {"health": [{"step": step, "detector": name, "value": 0.1} for step, name in spoke]}
    empty = {"exit_criteria": {}, "before": {}, "after": {}, "steps": 1}
    first = first_warnings(TypeAdapter(Results).validate_python(empty | found))
    assert first == {"collapse": 35, "coverage": 40}
    assert first_warnings(TypeAdapter(Results).validate_python(empty)) == {}
    study = Study.model_validate(MINIATURE | {"seeds": [0, 1, 2], "plot": []})
    side = {"before": {}, "after": {}, "start_met": True, "steps": 90}
    lines = [
        {"arm": "grpo", "seed": 0, "warnings": {"collapse": 35, "coverage": 40}, **side},
        {"arm": "grpo", "seed": 1, "warnings": {"collapse": 8}, **side},
        {"arm": "grpo", "seed": 2, "warnings": {}, **side},
        {"arm": "other", "seed": 0, **side},
    ]
    runs = [FinishedRun.model_validate(line) for line in lines]
    assert tables(study, runs, tmp_path / "plot.svg")[-5:] == [
        "| arm | the watch warned of | runs | first at step |",
        "|---|---|---|---|",
        "| grpo | collapse | 2 of 3 | 8 to 35 |",
        "| grpo | coverage | 1 of 3 | 40 to 40 |",
        "| grpo | nothing | 1 of 3 |  |",
    ]


def test_call_rates_give_votes_as_good_as_the_judge() -> None:
    # Rates .9 and .2: right .9 · .8 = .72, wrong .2 · .1 = .02, the rest `=`: accuracy .85.
    assert rates(0.72, 0.85) == pytest.approx({"tpr": 0.9, "fpr": 0.2})
    # No `=`: t (1 - f) + f (1 - t) = 1 has no solution but 1 and 0; the difference .6 stays.
    assert rates(0.8, 0.8) == pytest.approx({"tpr": 0.8, "fpr": 0.2})
    assert call_rates({}) == {}


def test_start_goes_on_from_another_and_arms_take_the_rates_of_its_judge(tmp_path: Path) -> None:
    calls: dict[str, list[str]] = {}

    def train(arguments: Sequence[str], log: Path) -> int:
        folder = Path(arguments[arguments.index("--output") + 1])
        calls[folder.name] = [*arguments]
        (folder / "checkpoints/step-000003").mkdir(parents=True)
        (folder / "recipe.yaml").write_text("model: {dtype: bfloat16}")
        both = {"eval/direct/accuracy": {"mean": 0.25}} | side(0.72, 0.85)
        found = {"before": both, "after": both, "steps": 3, "seconds": {"all": 1.0}}
        write_json(folder / "results.json", with_hash(found | {"exit_criteria": {}}))
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
    assert "a=1" in calls["solver-4"] and "a=1" not in calls["judge-4"]
    skipped = "phases.{}={{steps: 0, exit_criterion: null, keep_if: null}}".format
    assert skipped("solver") in calls["judge-4"] and skipped("judge") not in calls["judge-4"]
    assert skipped("solver") in calls["better-4"] and skipped("judge") not in calls["better-4"]
    assert {skipped("solver"), skipped("judge")} <= {*calls["drawn-4"]}
    assert f"model.name={tmp_path}/better-4/checkpoints/step-000003" in calls["drawn-4"]
    assert "reward.votes_from={tpr: 0.900000, fpr: 0.200000}" in calls["drawn-4"]
    assert {"name=drawn-4", "tracking.group=x", "seed=4"} <= {*calls["drawn-4"]}
    assert {"c=4", "model.type=pretrained", "model.dtype=bfloat16"} <= {*calls["drawn-4"]}


def test_study_that_extends_another_has_its_keys_and_leaves_arms_out(tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(yaml.safe_dump(MINIATURE | {"compared": []}))
    own = {
        "extends": "first.yaml",
        "name": "second",
        "seeds": [3],
        "environment": {"MKL_CBWR": "AVX2"},
    }
    (tmp_path / "second.yaml").write_text(yaml.safe_dump(own | {"arms": {"other": None}}))
    first, second = (read_study(tmp_path / f"{name}.yaml") for name in ("first", "second"))
    assert (second.name, second.seeds) == ("second", (3,))
    assert second.arms == {"grpo": first.arms["grpo"]}
    assert (first.environment, second.environment) == ({}, {"MKL_CBWR": "AVX2"})
