"""Figures of recorded debates, and several runs on one page."""

import json
import re

import pytest

from debate_report import report_main
from debate_report.browsing import read_all
from debate_report.page import make_comparison, write_report
from debate_report.run_files import read_run
from debate_report.society import _rounds, _votes
from debate_train.checkpoints.run_directory import RunDirectory
from report.report_runs import debate


def run_of(path, seed, after, reward="v2"):
    run = RunDirectory.create(
        path, f"seed: {seed}\nmodel: {{type: scratch}}\nreward: {{type: {reward}}}\n"
    )
    for step in (1, 2, 3):
        run.metrics.log("train", step, {"loss": seed / step, "reward/total": step / 9})
    change = {"low": 0.01, "high": 0.25, "won": 9, "lost": 2}
    row = {"measure": "majority vote", "before": {"mean": 0.5}, "after": {"mean": after}}
    run.write_results({"summary": f"Seed {seed} rose.", "table": [row | {"change": change}]})
    return run


@pytest.fixture
def recorded(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    run.write_transcripts(
        "train", 1, [debate("mended", "455", "444"), debate("spoiled", "445", "555")]
    )
    return read_all(read_run(run.path)).found


def test_rounds_count_right_answers_and_agreement(recorded):
    # Round 1: 4 5 5 and 4 4 5, round 2: 4 4 4 and 5 5 5; 4 is right.
    assert list(_rounds(recorded)) == [
        ["1", "6", "50.0 %", "–", "–", "0.0 %", "–"],
        ["2", "6", "50.0 %", "66.7 %", "66.7 %", "100.0 %", "–"],
    ]


def test_votes_are_counted_by_judge(recorded):
    # Of 4 5 5: 1 > 2 (both wrong), 2 > 0 (wrong), 0 = 1 (half). Of 4 4 5: 1 > 2 (right), 2 > 0
    # (wrong), 0 = 1 (both right).
    assert _votes(recorded) == [
        ["judge", "accuracy", "=", "for 0", "for 1", "for 2"],
        ["0", "100.0 %", "0.0 %", "–", "100.0 %", "0.0 %"],
        ["1", "0.0 %", "0.0 %", "0.0 %", "–", "100.0 %"],
        ["2", "50.0 %", "100.0 %", "50.0 %", "50.0 %", "–"],
    ]


def test_runs_stand_side_by_side_with_the_deviation_between_them(tmp_path, capsys):
    runs = [
        run_of(tmp_path / f"s{seed}" / "run", seed, after) for seed, after in ((1, 0.6), (2, 0.8))
    ]
    output = tmp_path / "both.html"
    assert report_main([str(run.path) for run in runs] + ["--output", str(output)]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    text = " ".join(re.sub("<[^>]*>", " ", output.read_text()).split())
    # Changes of 0.1 and 0.3: their mean is 0.2, their deviation sqrt(2 · 0.1²).
    assert "+0.200 ± 0.141" in text
    assert "0.600 (+0.100)" in text
    assert "s1/run" in text
    assert "s2/run" in text
    assert report_main([str(runs[0].path), str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_only_seeds_of_one_recipe_are_averaged(tmp_path):
    runs = [run_of(tmp_path / f"seed_{seed}", seed, after) for seed, after in ((1, 0.6), (2, 0.8))]
    runs.append(run_of(tmp_path / "other", 1, 0.55, reward="win_rate"))
    page = make_comparison([read_run(run.path) for run in runs])
    text = " ".join(re.sub("<[^>]*>", " ", page).split())
    assert "+0.150" not in text
    assert "mean ± deviation" not in text
    assert "reward.type v2 v2 win_rate" in text  # What the runs differ in.


def test_evaluated_debates_of_both_ends_are_there(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    run.write_transcripts("train", 3, [debate("own", "444", "444")])
    source = next(run.transcripts_path.iterdir()).read_bytes()
    for name in ("before-debate", "after-debate", "after-direct", "dev-debate"):
        (run.evaluations_path / f"{name}-000003.jsonl").write_bytes(source)
    files = read_run(run.path)
    assert [recorded.phase for recorded in read_all(files).found] == [
        "train",
        "test questions before the run, debate",
        "test questions after the run, debate",
    ]


def test_change_of_a_run_is_that_on_the_same_questions(tmp_path):
    runs = [run_of(tmp_path / f"seed_{k}", k, 0.7) for k in (0, 1)]
    results = json.loads((runs[0].path / "results.json").read_text())
    # As where the later evaluation has a value for other questions, too.
    results["table"][0]["change"]["difference"] = 0.124
    runs[0].write_results(results)
    page = make_comparison([read_run(run.path) for run in runs])
    assert "(+0.124" in page
    assert "(+0.200" in page
    assert "+12.4" in write_report(runs[0].path).read_text()
    assert "+0.162 ± 0.054" in page.replace("−", "-")  # deviation .076 / √2
