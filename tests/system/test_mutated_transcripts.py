"""A slice of benchmarks/robustness/mutate_transcripts.py, and that it notices what goes wrong."""

import json
import sys
import time

import pytest

from benchmarks.robustness import mutate_transcripts as mutating

pytestmark = pytest.mark.slow


def test_no_command_fails_on_mutated_transcripts(monkeypatch):
    monkeypatch.setattr("debate_rewards.estimates.RESAMPLES", 20)
    # Every fifth case verifies mathematics, for whose workers other tests wait.
    cases = [case for case in range(30) if case % 5 < 4]
    with mutating.limited_time():
        found = mutating.counts(mutating.run_case(7, case) for case in cases)
    assert (found["cases"], found["inputs"]) == (24, 192)
    assert {name: found[name] for name in mutating.FAILURES} == dict.fromkeys(mutating.FAILURES, 0)
    # Not all are refused at the door.
    assert found["exit_codes"]["stats"]["0"] > 3 and found["exit_codes"]["show"]["2"] > 3


@pytest.mark.parametrize(
    ("expected", "command"),
    [
        ("traceback: ZeroDivisionError", lambda arguments: 1 // 0),
        ("traceback: exit 3", lambda arguments: 3),
        ("slow", lambda arguments: time.sleep(9)),
        ("raw", lambda arguments: print("\x9b31m") or 0),
        ("silent", lambda arguments: 2),
        ("lost", lambda arguments: 0),
    ],
)
def test_a_command_that_fails_is_counted(monkeypatch, expected, command):
    monkeypatch.setattr(mutating, "LIMIT_S", 0.05)
    with mutating.limited_time():
        outcome = mutating.run(command, [])
    assert mutating.failure(outcome, lambda out: True).startswith(expected)


def test_a_stopped_run_goes_on_where_it_was(monkeypatch, tmp_path, capsys):
    ran = []

    def run_case(seed, case):
        ran.append(case)
        found = {"validate": {"code": 0, "seconds": 0.0}}
        if case == 3:
            found["validate"]["failure"] = "raw"
        return {"seed": seed, "case": case, "commands": found}

    monkeypatch.setattr(mutating, "run_case", run_case)
    state = tmp_path / "state.jsonl"
    for cases, code in ((3, 0), (5, 1)):
        options = ["mutate", "--cases", str(cases), "--seed", "4", "--state", str(state)]
        monkeypatch.setattr(sys, "argv", options)
        assert mutating.main() == code
        with state.open("a") as file:
            file.write('{"seed": 4, "ca')
    assert ran == [0, 1, 2, 3, 4]
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["cases"], last["raw"], last["traceback"]) == (5, 1, 0)
