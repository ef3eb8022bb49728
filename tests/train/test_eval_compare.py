"""`debate-eval compare`: policies of finished evaluations, paired on the same questions."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.forms import Simultaneous
from debate_train.commands.evaluate import main
from debate_train.commands.evaluation_files import EvaluationDirectory, write_results
from debate_train.evaluation import Debate, DirectAnswers
from debate_train.evaluation.settings import Setup

SETUP = Setup(Simultaneous(num_agents=3), {"direct": DirectAnswers(), "debate": Debate()})
MAJORITY, DIRECT, HIDDEN = "eval/maj/last", "eval/direct/accuracy", "eval/pass@k"
BEFORE = {
    # Of 8 questions 5 are lost or won: 1 lost, 4 won.
    MAJORITY: [1, 1, 1, 0, 0, 0, 0, 0],
    DIRECT: [0.5, 0.5, 0.25, 0, 0, 0.75, 1, 0],
    HIDDEN: [1] * 8,
}
AFTER = {
    MAJORITY: [1, 1, 0, 1, 1, 1, 1, 0],
    DIRECT: [0.75, 0.5, 0.5, 0.25, 0, 1, 1, 0.25],
    HIDDEN: [1] * 7 + [0],
}


def written(path: Path, policies: dict[str, dict[str, list[float]]], digest: str = "a") -> str:
    """Write a finished evaluation by its own writer; return its folder."""
    questions = [f"q{k}\u2028" for k in range(8)]
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "figures": {},
            "curves": {},
            "values": {
                figure: dict(zip(questions, values, strict=True)) for figure, values in own.items()
            },
        }
        for name, own in policies.items()
    ]
    plan = {"questions": {"count": 8, "sha256": digest}}
    with EvaluationDirectory(path, plan, "name: t\n") as directory:
        for one in found:
            directory.keep(one)
        write_results(directory, plan, SETUP, found)
    return str(path)


def test_policies_of_one_evaluation_are_compared_in_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(tmp_path / "both", {"old": BEFORE, "new": AFTER})
    assert main(["compare", folder, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] == "old"
    rows = {row["figure"]: row for row in found["compared"]}
    assert set(rows) == {MAJORITY, DIRECT}
    majority = rows[MAJORITY]
    assert (majority["before"], majority["after"], majority["difference"]) == (3 / 8, 6 / 8, 3 / 8)
    assert (majority["lost"], majority["won"], majority["test"]) == (1, 4, "mcnemar")
    # Two-sided, of 5 fair coins at most one shows tails: 2 (1 + 5) / 32.
    assert majority["p"] == pytest.approx(12 / 32, abs=1e-15)
    assert rows[DIRECT]["test"] == "bootstrap"
    assert rows[DIRECT]["difference"] == pytest.approx(1.25 / 8)
    # In the other direction all is turned round.
    assert main(["compare", f"{folder}:new", folder, "--all", "--json"]) == 0
    turned = {row["figure"]: row for row in json.loads(capsys.readouterr().out)["compared"]}
    assert set(turned) == {MAJORITY, DIRECT, HIDDEN}
    assert turned[MAJORITY]["difference"] == -3 / 8
    assert turned[MAJORITY]["p"] == majority["p"]


def test_table_of_two_evaluations_fits_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = written(tmp_path / "one", {"old": BEFORE})
    other = written(tmp_path / "other", {"new": AFTER, "worse": BEFORE})
    assert main(["compare", one, f"{other}:new"]) == 0
    shown = capsys.readouterr().out
    assert "+0.375 [" in shown and "4 / 1 / 8" in shown and "0.375 " in shown
    assert max(map(len, shown.splitlines())) <= 80
    # Both have a policy of one name: then the folders tell them apart.
    third = written(tmp_path / "third", {"old": AFTER})
    assert main(["compare", one, third, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["baseline"] == f"{one}:old"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{one}"], "found 'old' alone; expected another policy"),
        (["{one}:odl", "{two}"], "found no policy 'odl'; expected old; did you mean 'old'?"),
        (["{one}", "{other}"], "8 and 8; expected the same data"),
        (["{one}", "{one}"], "found 'old' alone; expected another policy"),
        (["{one}", "nowhere"], "nowhere: found no results"),
        (["{one}", "{begun}"], "found an evaluation that is not finished: go on with --resume"),
        (["{one}", "{torn}"], "policies/new.json: is not as debate-eval has written it"),
        (["{one}", "{changed}"], "results.json: is not as debate-eval has written it"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    folders = {
        "one": written(tmp_path / "one", {"old": BEFORE}),
        "two": written(tmp_path / "two", {"new": AFTER}),
        "other": written(tmp_path / "other", {"new": AFTER}, digest="b"),
    }
    for name in ("begun", "torn", "changed"):
        folders[name] = shutil.copytree(folders["two"], tmp_path / name)
    (tmp_path / "begun" / "results.json").unlink()
    policy = tmp_path / "torn" / "policies" / "new.json"
    policy.write_text(policy.read_text()[:-20])
    text = (tmp_path / "changed" / "results.json").read_text()
    (tmp_path / "changed" / "results.json").write_text(text.replace('"count": 8', '"count": 9'))
    assert main(["compare", *(one.format(**folders) for one in arguments)]) == 2
    assert message in capsys.readouterr().err
