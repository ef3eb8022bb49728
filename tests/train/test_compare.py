"""`debate-eval compare`: policies of finished evaluations, paired on the same questions."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.forms import Simultaneous
from debate_train.commands.evaluate import main
from debate_train.commands.evaluation_files import EvaluationDirectory, write_results
from debate_train.evaluation import Debate, DirectAnswers
from debate_train.evaluation.settings import Setup

SETUP = Setup(Simultaneous(num_agents=3), {"direct": DirectAnswers(), "debate": Debate()})
MAJORITY, DIRECT, UNLISTED = "eval/maj/last", "eval/direct/accuracy", "eval/pass@k"
Values = Mapping[str, Sequence[float]]
BEFORE: Values = {
    # Of 8 questions 5 are lost or won: 1 lost, 4 won.
    MAJORITY: [1, 1, 1, 0, 0, 0, 0, 0],
    DIRECT: [0.5, 0.5, 0.25, 0, 0, 0.75, 1, 0],
    UNLISTED: [1] * 8,
}
AFTER: Values = {
    MAJORITY: [1, 1, 0, 1, 1, 1, 1, 0],
    DIRECT: [0.75, 0.5, 0.5, 0.25, 0, 1, 1, 0.25],
    UNLISTED: [1] * 7 + [0],
}


def write_evaluation(path: Path, digest: str = "a", **policies: Values) -> str:
    """Write a finished evaluation by its own writer; return its folder."""
    questions = [f"q{number}\u2028" for number in range(8)]
    measured: list[dict[str, Any]] = []
    for name, figures in policies.items():
        by_question = {
            n: dict(zip(questions, values, strict=True)) for n, values in figures.items()
        }
        measured.append({"name": name, "figures": {}, "curves": {}, "values": by_question})
    plan = {"questions": {"count": 8, "sha256": digest}}
    with EvaluationDirectory(path, plan, "name: t\n") as directory:
        for policy in measured:
            directory.save(policy)
        write_results(directory, plan, SETUP, measured)
    return str(path)


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, dict[str, Any]]:
    """The baseline's name, and the rows by figure."""
    assert main(["compare", *arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    return printed["baseline"], {row["figure"]: row for row in printed["compared"]}


def test_policies_of_one_evaluation_are_compared_in_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_evaluation(tmp_path / "both", old=BEFORE, new=AFTER)
    baseline, rows = compared(capsys, folder)
    assert baseline == "old"
    assert set(rows) == {MAJORITY, DIRECT}
    majority = rows[MAJORITY]
    assert (majority["before"], majority["after"], majority["difference"]) == (3 / 8, 6 / 8, 3 / 8)
    assert (majority["lost"], majority["won"], majority["test"]) == (1, 4, "mcnemar")
    # Two-sided, of 5 fair coins at most one shows tails: 2 (1 + 5) / 32.
    assert majority["p"] == pytest.approx(12 / 32, abs=1e-15)
    assert rows[DIRECT]["test"] == "bootstrap"
    assert rows[DIRECT]["difference"] == pytest.approx(1.25 / 8)
    # In the other direction all is turned round.
    _, turned = compared(capsys, f"{folder}:new", folder, "--all")
    assert set(turned) == {MAJORITY, DIRECT, UNLISTED}
    assert turned[MAJORITY]["difference"] == -3 / 8
    assert turned[MAJORITY]["p"] == majority["p"]


def test_table_of_two_evaluations_fits_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_evaluation(tmp_path / "first", old=BEFORE)
    second = write_evaluation(tmp_path / "second", new=AFTER, worse=BEFORE)
    assert main(["compare", first, f"{second}:new"]) == 0
    printed = capsys.readouterr().out
    for cell in ("+0.375 [", "4 / 1 / 8", "0.375 "):
        assert cell in printed
    assert max(map(len, printed.splitlines())) <= 80
    # Both have a policy of one name: then the folders tell them apart.
    third = write_evaluation(tmp_path / "third", old=AFTER)
    assert compared(capsys, first, third)[0] == f"{first}:old"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("{one}", "found 'old' alone; expected another policy"),
        ("{one}:odl {two}", "found no policy 'odl'; expected old; did you mean 'old'?"),
        ("{one} {other}", "8 and 8; expected the same data"),
        ("{one} nowhere", "nowhere: found no results"),
        ("{one} {begun}", "found an evaluation that is not finished: go on with --resume"),
        ("{one} {torn}", "policies/new.json: is not as debate-eval has written it"),
        ("{one} {changed}", "results.json: is not as debate-eval has written it"),
    ],
)
def test_evaluations_that_cannot_be_compared_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, message: str
) -> None:
    folders = {
        "one": write_evaluation(tmp_path / "one", old=BEFORE),
        "two": write_evaluation(tmp_path / "two", new=AFTER),
        "other": write_evaluation(tmp_path / "other", digest="b", new=AFTER),
    }
    for name in ("begun", "torn", "changed"):
        folders[name] = str(shutil.copytree(folders["two"], tmp_path / name))
    (tmp_path / "begun" / "results.json").unlink()
    policy = tmp_path / "torn" / "policies" / "new.json"
    policy.write_text(policy.read_text()[:-20])
    results = tmp_path / "changed" / "results.json"
    results.write_text(results.read_text().replace('"count": 8', '"count": 9'))
    assert main(["compare", *arguments.format(**folders).split()]) == 2
    assert message in capsys.readouterr().err
