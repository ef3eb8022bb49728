"""What a study keeps of each run, and what it does with runs that were begun or went wrong."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from debate_studies.lines import FinishedRun, Lines, holm, interval
from debate_studies.runs import Runs, Task, without, work
from debate_studies.study_file import Compared, Study
from debate_studies.tables import differences, failed_starts, tables
from debate_train.checkpoints.run_directory import as_written, with_hash, write_json
from debate_train.errors import RunFailure, UsageError
from studies.test_study import MINIATURE, RECIPE

pytestmark = pytest.mark.slow


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
    train, lines = Ended(), Lines(tmp_path / "lines.jsonl")
    (tmp_path / "arm-0").mkdir()
    (tmp_path / "arm-0/recipe.yaml").write_text("")
    Runs(one_arm(), tmp_path, tmp_path, lines, train).arm("arm", 0)
    Runs(one_arm(), tmp_path, tmp_path, lines, train).arm("arm", 1)
    assert ["--resume" in call for call in train.calls] == [True, False]


def test_arm_that_misses_a_criterion_of_its_own_keeps_its_figures(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines.jsonl")
    train = Ended(exit_criteria={"later": False})
    run = Runs(one_arm(), tmp_path, tmp_path, lines, train).arm("arm", 0)
    assert (run.start_met, run.before["direct"], run.after["direct"]) == (True, 0.25, 0.75)
    assert lines.read() == [run]


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


def test_curves_and_totals_leave_out_what_is_not_finite(tmp_path: Path) -> None:
    rows = [{"step": n, "a": None if n == 5 else n / 4} for n in range(1, 251)]
    (tmp_path / "arm-0").mkdir()
    (tmp_path / "arm-0/metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    study = one_arm(curves={"a": "a", "none": "b"}, totals={"all of a": "a"})
    run = Runs(study, tmp_path, tmp_path, Lines(tmp_path / "lines.jsonl"), Ended()).arm("arm", 0)
    assert run.totals == {"all of a": (sum(range(251)) - 5) / 4}
    assert "| arm | 0 | 7,842 |" in tables(study, [run], tmp_path / "plot.svg")
    assert run.curves["none"] == () and 5 not in dict(run.curves["a"])
    assert run.curves["a"][0] == (1, 0.25) and run.curves["a"][-1] == (250, 62.5)
    assert len(run.curves["a"]) <= 121


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.json", b'{"steps": 1}'),
        ("results.json", b"\xff"),
        ("metrics.jsonl", b'{"step": 1, "a"'),
        ("metrics.jsonl", b'[1]\n{"a": 1.0}'),
        ("metrics.jsonl", b'{"step": 1, "a": "much"}'),
        ("metrics.jsonl", None),
    ],
)
def test_files_of_a_finished_run_that_were_changed_are_one_line(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    lines, study = Lines(tmp_path / "lines.jsonl"), one_arm(curves={"a": "a"})
    (tmp_path / "arm-0").mkdir()
    Ended()(["--output", str(tmp_path / "arm-0")], tmp_path)
    if content is not None:
        (tmp_path / "arm-0" / name).write_bytes(content)
    with pytest.raises(RunFailure, match="arm-0: its files are not as its run has written them"):
        Runs(study, tmp_path, tmp_path, lines, Ended()).arm("arm", 0)
    assert not lines.read()


@pytest.mark.parametrize("content", [b"a: [", b"\xff", b"[]", b"model: {}"])
def test_recipe_of_a_start_that_was_changed_is_one_line(tmp_path: Path, content: bytes) -> None:
    Ended()(["--output", str(tmp_path / "warm-0")], tmp_path)
    (tmp_path / "warm-0/recipe.yaml").write_bytes(content)
    with pytest.raises(RunFailure, match="warm-0: its files are not as its run has written them"):
        without([], tmp_path / "warm-0")


def test_arms_with_a_start_take_no_settings_of_a_model_from_scratch(tmp_path: Path) -> None:
    train, lines = Ended(), Lines(tmp_path / "lines.jsonl")
    starts = {"warm": {"recipe": RECIPE, "phases": ["warm_start"]}}
    arms = {"arm": {"recipe": RECIPE, "start": "warm"}}
    shared = ["model.layers=4", "model.context_window=640", "steps=2"]
    study = one_arm(starts=starts, arms=arms, settings=shared)
    Runs(study, tmp_path, tmp_path, lines, train).arm("arm", 0)
    start, arm = train.calls
    assert {*shared} <= {*start}
    assert "model.layers=4" not in arm and {"model.context_window=640", "steps=2"} <= {*arm}


def test_run_that_was_begun_with_other_settings_is_refused(tmp_path: Path) -> None:
    train, lines = Ended(), Lines(tmp_path / "lines.jsonl")
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


def test_arms_that_begin_at_once_leave_what_their_start_was_run_with_alone(tmp_path: Path) -> None:
    starts = {"warm": {"recipe": RECIPE, "phases": ["warm_start"]}}
    study = one_arm(starts=starts, arms={"arm": {"recipe": RECIPE, "start": "warm"}})
    runs = Runs(study, tmp_path, tmp_path, Lines(tmp_path / "lines.jsonl"), Ended())
    runs.start("warm", 0)
    kept = tmp_path / "warm-0.arguments"
    os.utime(kept, ns=(7, 7))
    runs.arm("arm", 0)
    assert kept.stat().st_mtime_ns == 7  # A file written again is empty for a moment.


def test_start_of_another_environment_is_not_taken_over(tmp_path: Path) -> None:
    train, lines = Ended(), Lines(tmp_path / "lines.jsonl")
    Runs(one_arm(), tmp_path, tmp_path, lines, train).arm("arm", 0)
    other = one_arm(environment={"ATEN_CPU_CAPABILITY": "default"})
    with pytest.raises(RunFailure, match="arm-0: was run with other settings"):
        Runs(other, tmp_path, tmp_path, lines, train).arm("arm", 0)


def test_file_that_cannot_be_written_stops_no_other_run(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError("no space left on device")

    done = list[str]()
    tasks = {"a": Task(full), "b": Task(lambda: done.append("b"))}
    failed, lost = work(tasks, 1, lambda: None)
    assert str(failed["a"]) == "no space left on device" and (done, lost) == (["b"], [])


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
    assert [one.seed for one in lines.read()] == [1, 0, 2, 3]


def test_differences_are_of_seeds_that_have_both_sides(tmp_path: Path) -> None:
    def run(arm: str, seed: int, after: float, *, met: bool = True) -> FinishedRun:
        sides = [{"direct": 0.5 if met else after}, {"direct": after}]
        return FinishedRun(
            arm=arm, seed=seed, start_met=met, steps=1, before=sides[0], after=sides[1]
        )

    lines = [run("grpo", 0, 0.75), run("grpo", 1, 0.25, met=False), run("grpo", 2, 1.0)]
    lines += [run("other", 0, 0.5), run("other", 2, 0.875), run("other", 3, 0.1)]
    runs = {(one.arm, one.seed): one for one in lines}
    over = Compared(arm="grpo", over="other", measures=("direct",))
    assert differences(runs, over, "direct") == {0: 0.25, 2: 0.125}
    gained = differences(runs, Compared(arm="grpo", measures=("direct",)), "direct")
    assert gained == {0: 0.25, 2: 0.5}
    # Seeds that the file no longer names count nowhere.
    study = Study.model_validate(MINIATURE | {"seeds": [0], "plot": []})
    found = "\n".join(tables(study, lines, tmp_path / "plot.svg"))
    assert "| grpo − other | direct | 1 | +0.250 |" in found


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


def test_start_that_failed_is_in_no_interval_and_counted_beside(tmp_path: Path) -> None:
    # Seeds 0 and 1 gain 1/4 and 3/4: mean 1/2, s = √2/4, standard error 1/4; t of one degree of
    # freedom is 12.706, so half the interval is 3.177. With a third gain of 0: mean 1/3,
    # s² = (1/144 + 25/144 + 16/144) / 2 = 7/48, standard error √(7/144) = .2205; t is 4.303 of
    # two degrees of freedom, half the interval .949.
    def run(seed: int, after: float, *, is_met: bool) -> FinishedRun:
        before = {"direct": 0.0 if is_met else after}
        return FinishedRun(
            arm="grpo", seed=seed, start_met=is_met, steps=1, before=before, after={"direct": after}
        )

    lines = [run(0, 0.25, is_met=True), run(1, 0.75, is_met=True), run(2, 0.9, is_met=False)]
    one = Compared(arm="grpo", measures=("direct",))
    runs = {(line.arm, line.seed): line for line in lines}
    assert differences(runs, one, "direct") == {0: 0.25, 1: 0.75}
    assert failed_starts(runs, one) == [2]
    study = Study.model_validate(MINIATURE | {"seeds": [0, 1, 2], "plot": []})
    page = "\n".join(tables(study, lines, tmp_path / "plot.svg"))
    assert "| grpo − start | direct | 2 | +0.500 [-2.677, +3.677] |" in page
    assert "| 1 | +0.333 [-0.615, +1.282] |" in page


def test_start_that_failed_counts_on_both_sides() -> None:
    direct = {"direct": 0.5}
    failed = FinishedRun(arm="a", seed=0, start_met=False, steps=1, before=direct, after=direct)
    ran = FinishedRun(arm="b", seed=0, start_met=True, steps=1, before=direct, after=direct)
    runs = {("a", 0): failed, ("b", 0): ran}
    for arm, over in (("a", "b"), ("b", "a")):
        one = Compared(arm=arm, over=over, measures=())
        assert differences(runs, one, "direct") == {} and failed_starts(runs, one) == [0]
    assert failed_starts(runs, Compared(arm="b", measures=())) == []


def test_holm_adjusts_four_p_values_by_hand() -> None:
    # Smallest first, times 4, 3, 2, 1: .005 → .02, .01 → .03, .03 → .06; .04 → .04, which is raised
    # to .06, as no test survives where a smaller p does not.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_equal_differences_have_no_p() -> None:
    assert interval([0.3 - 0.1, 0.2]) == (pytest.approx(0.2), 0.0, 0.0, None)
    assert interval([0.0, 0.0]) == (0.0, 0.0, 0.0, 1.0)


def test_differences_that_survive_holm_are_marked(tmp_path: Path) -> None:
    def run(seed: int, **after: float) -> FinishedRun:
        before = dict.fromkeys(after, 0.0)
        return FinishedRun(
            arm="grpo", seed=seed, start_met=True, steps=1, before=before, after=after
        )

    # Gains 1, 2, 3 have p = .0742 (t = 2√3, 2 degrees of freedom), 10, 10.1, 10.2 p = .000033.
    lines = [run(0, format=10.0, direct=1.0), run(1, format=10.1, direct=2.0)]
    lines += [run(2, format=10.2, direct=3.0)]
    compared = [{"arm": "grpo", "measures": ["direct", "format"]}]
    study = Study.model_validate(MINIATURE | {"seeds": [0, 1, 2], "plot": [], "compared": compared})
    *_, direct, marked = tables(study, lines, tmp_path / "plot.svg")
    assert direct.endswith("| 0.074 | 0.074 |")
    assert marked.endswith("| 3.3e-05 | **6.5e-05** |")
