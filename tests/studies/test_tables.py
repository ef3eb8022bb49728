"""Tables and plots of studies: differences, intervals, tests and warnings."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from debate_studies.lines import FinishedRun, Lines, holm, interval
from debate_studies.runs import Results, Runs, first_warnings
from debate_studies.study_file import Compared, Study
from debate_studies.tables import differences, failed_starts, tables
from debate_train.checkpoints.run_directory import with_hash, write_json
from studies.miniature import MINIATURE, finished_run, study_of


def table_of_gains(gains: Sequence[float], expected: float | None, folder: Path) -> str:
    """Write the comparison table of an arm whose seeds gained these."""
    comparison = {"arm": "grpo", "measures": ["direct"], "expected": expected}
    runs = [
        finished_run("grpo", seed, before=0.5, after=0.5 + gain) for seed, gain in enumerate(gains)
    ]
    return printed(study_of(seeds=[*range(8)], compared=[comparison]), runs, folder)


def printed(study: Study, runs: Sequence[FinishedRun], folder: Path) -> str:
    return "\n".join(tables(study, runs, folder / "plot.svg"))


def by_arm_and_seed(runs: Sequence[FinishedRun]) -> dict[tuple[str, int], FinishedRun]:
    return {(run.arm, run.seed): run for run in runs}


def test_interval_of_a_mean_by_hand() -> None:
    # Mean 2, deviations -1, 0, 1: s = 1, standard error 1/√3, t = 2√3; with 2 degrees of freedom
    # p = 1 - t / √(2 + t²) = 1 - √12/√14.
    mean, error, half, p = interval([1.0, 2.0, 3.0])
    assert (mean, error) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert half == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert p == pytest.approx(1 - math.sqrt(12 / 14), rel=1e-9)


def test_holm_adjusts_four_p_values_by_hand() -> None:
    # Smallest first, times 4, 3, 2, 1: .005 → .02, .01 → .03, .03 → .06; .04 → .04, which is raised
    # to .06, as no test survives where a smaller p does not.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_differences_are_of_seeds_that_have_both_sides(tmp_path: Path) -> None:
    runs = [
        finished_run("grpo", 0, before=0.5, after=0.75),
        finished_run("grpo", 1, before=0.25, after=0.25, start_met=False),
        finished_run("grpo", 2, before=0.5, after=1.0),
        finished_run("other", 0, before=0.5, after=0.5),
        finished_run("other", 2, before=0.5, after=0.875),
        finished_run("other", 3, before=0.5, after=0.1),
    ]
    over_other = Compared(arm="grpo", over="other", measures=("direct",))
    over_start = Compared(arm="grpo", measures=("direct",))
    assert differences(by_arm_and_seed(runs), over_other, "direct") == {0: 0.25, 2: 0.125}
    assert differences(by_arm_and_seed(runs), over_start, "direct") == {0: 0.25, 2: 0.5}
    # Seeds that the file no longer names count nowhere.
    table = printed(study_of(seeds=[0]), runs, tmp_path)
    assert "| grpo − other | direct | 1 | +0.250 |" in table


def test_differences_that_survive_holm_are_marked(tmp_path: Path) -> None:
    # Gains 1, 2, 3 have p = .0742 (t = 2√3, 2 degrees of freedom), 10, 10.1, 10.2 p = .000033.
    runs = []
    for seed, formats in enumerate((10.0, 10.1, 10.2)):
        after = {"format": formats, "direct": seed + 1.0}
        run = finished_run("grpo", seed, before=0.0, after=0.0)
        runs.append(run.model_copy(update={"before": dict.fromkeys(after, 0.0), "after": after}))
    compared = [{"arm": "grpo", "measures": ["direct", "format"]}]
    table = printed(study_of(seeds=[0, 1, 2], compared=compared), runs, tmp_path)
    *_, direct, marked = table.splitlines()
    assert direct.endswith("| 0.074 | 0.074 |")
    assert marked.endswith("| 3.3e-05 | **6.5e-05** |")


def test_start_that_misses_its_criterion_is_counted_and_in_no_mean(tmp_path: Path) -> None:
    def train(arguments: Sequence[str], log: Path) -> int:
        folder = Path(arguments[arguments.index("--output") + 1])
        assert folder.name == "warm-1"  # No arm is run.
        folder.mkdir()
        figures = {"eval/direct/accuracy": {"mean": 0.25}, "eval/direct/format": {"mean": 1.0}}
        results = {"before": figures, "after": figures, "steps": 7}
        results["exit_criteria"] = {"warm_start": False}
        write_json(folder / "results.json", with_hash(results))
        return 0

    lines = Lines(tmp_path / "lines.jsonl")
    study = Study.model_validate(MINIATURE)
    for arm in ("grpo", "other"):
        Runs(study, tmp_path, tmp_path, lines, train).arm(arm, 1)
    first, other = lines.read()
    assert not first.start_met
    assert not other.start_met
    assert first.before == first.after
    met = finished_run("grpo", 0, before=None, after=0.5)
    assert printed(study, [first, met, other], tmp_path).splitlines()[2:7] == [
        "|  | grpo | other |",
        "|---|---|---|",
        "| seeds | 0 | – |",
        "| start missed its criterion | 1 | 1 |",
        "| direct | 0.500 | – |",
    ]


def test_table_of_warnings_says_in_how_many_runs_and_from_when(tmp_path: Path) -> None:
    warnings = [(35, "collapse"), (40, "coverage"), (90, "collapse")]
    health = [{"step": step, "detector": name, "value": 0.1} for step, name in warnings]
    results = {"exit_criteria": {}, "before": {}, "after": {}, "steps": 1, "health": health}
    first = first_warnings(TypeAdapter(Results).validate_python(results))
    assert first == {"collapse": 35, "coverage": 40}
    runs = [
        finished_run("grpo", 0, warnings=first),
        finished_run("grpo", 1, warnings={"collapse": 8}),
        finished_run("grpo", 2, warnings={}),
        finished_run("other", 0),
    ]
    table = printed(study_of(seeds=[0, 1, 2]), runs, tmp_path)
    assert table.splitlines()[-5:] == [
        "| arm | the monitor warned of | runs | first at step |",
        "|---|---|---|---|",
        "| grpo | collapse | 2 of 3 | 8 to 35 |",
        "| grpo | coverage | 1 of 3 | 40 to 40 |",
        "| grpo | nothing | 1 of 3 |  |",
    ]


def test_plot_holds_every_dot_and_interval_in_its_panel(tmp_path: Path) -> None:
    study = study_of(plot=["direct", "format"], compared=[])
    runs = []
    for arm, seed, gain in (("grpo", 0, 0.02), ("grpo", 1, 0.04), ("other", 0, -0.1)):
        run = finished_run(arm, seed, before=0.0, after=gain)
        after = {"direct": gain, "format": gain}
        runs.append(run.model_copy(update={"before": dict.fromkeys(after, 0.0), "after": after}))
    printed(study, runs, tmp_path)
    image = (tmp_path / "plot.svg").read_text()
    assert image.count('<text x="8" y="20">') == 2
    assert image.count('class="bound"') == 2 * 3
    heights = [float(y) for y in re.findall(r'cy="([\d.]+)"', image)]
    assert len(heights) == 6
    assert heights[:3] == heights[3:]
    assert heights[1] < heights[0] < heights[2]  # The higher the gain, the nearer to the top.
    assert "1 grpo" in image
    assert "2 other" in image


def test_too_few_seeds_for_the_expected_difference_decide_nothing(tmp_path: Path) -> None:
    # Standard deviation .01; ((1.960 + .8416) · .01 / .01)² + 1.92 = 9.77, and for .02 3.88.
    gains = [0.09, 0.10, 0.11]
    few_seeds = table_of_gains(gains, 0.01, tmp_path)
    assert "| +0.010 | 10, not decided |" in few_seeds
    assert "| 0.0033 | 0.0033 |" in few_seeds
    assert "no p is bold" in few_seeds
    assert "| +0.020 | 4, not decided |" in table_of_gains(gains, 0.02, tmp_path)
    assert "| at least 3, not decided |" in table_of_gains(gains[:2], 0.02, tmp_path)
    # Five seeds of standard deviation .0079: ((2.802 · .0079) / .02)² + 1.92 = 3.15.
    enough_seeds = table_of_gains([*gains, 0.095, 0.105], 0.02, tmp_path)
    assert "| +0.020 | 4 |" in enough_seeds
    assert "| **9.3e-06** |" in enough_seeds
    assert "expected" not in table_of_gains(gains, None, tmp_path)
    with pytest.raises(ValueError, match="expected a difference other than 0"):
        Compared(arm="grpo", measures=("direct",), expected=0.0)


def test_start_that_failed_is_in_no_interval_and_counted_beside(tmp_path: Path) -> None:
    # Seeds 0 and 1 gain 1/4 and 3/4: mean 1/2, s = √2/4, standard error 1/4; t of one degree of
    # freedom is 12.706, so half the interval is 3.177. With a third gain of 0: mean 1/3,
    # s² = (1/144 + 25/144 + 16/144) / 2 = 7/48, standard error √(7/144) = .2205; t is 4.303 of
    # two degrees of freedom, half the interval .949.
    runs = [
        finished_run("grpo", 0, before=0.0, after=0.25),
        finished_run("grpo", 1, before=0.0, after=0.75),
        finished_run("grpo", 2, before=0.9, after=0.9, start_met=False),
    ]
    compared = Compared(arm="grpo", measures=("direct",))
    assert differences(by_arm_and_seed(runs), compared, "direct") == {0: 0.25, 1: 0.75}
    assert failed_starts(by_arm_and_seed(runs), compared) == [2]
    page = printed(study_of(seeds=[0, 1, 2]), runs, tmp_path)
    assert "| grpo − start | direct | 2 | +0.500 [-2.677, +3.677] |" in page
    assert "| 1 | +0.333 [-0.615, +1.282] |" in page
