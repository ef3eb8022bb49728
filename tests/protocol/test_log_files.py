"""Transcripts as files of inspect, verifiers and TRL."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.cli import main
from debate_protocol.transcripts.log_files import rollout_rows, to_inspect
from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey

DEBATES = Path(__file__).resolve().parents[2] / "examples/data/debates.jsonl"
TURNS = (
    Turn(0, 0, "four \ud800", prompt=({"role": "user", "content": "2 + 2, agent 0?"},)),
    Turn(1, 0, "five", failure="empty", extra={"tokens": [7, 3]}),
    Turn(0, 1, "four again", shown=(TurnKey(0, 0), TurnKey(1, 0))),
)
META = {"reward": 0.5, "note": "text", "nan": float("nan"), "flag": True}
DEBATE = Transcript("d", Question("q", "2 + 2?", "4"), Protocol(2, max_rounds=2), TURNS, META)


def exported(capsysbinary: pytest.CaptureFixture[bytes], program: str) -> list[dict[str, Any]]:
    assert main(["export", str(DEBATES), "--to", program]) == 0
    return [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]


def test_log_has_a_sample_for_each_debate_with_its_turns_in_order() -> None:
    log = to_inspect([DEBATE, DEBATE], "mine", "2026-01-01T00:00:00+00:00")
    first, second = log["samples"]
    assert [(one["id"], one["epoch"]) for one in (first, second)] == [("q", 1), ("q", 2)]
    said = [message["content"] for message in first["messages"]]
    assert said[0] == "2 + 2?" and said[1].startswith("Agent 0, round 0\n\nfour")
    assert said[2] == "Agent 1, round 0 (failed: empty)\n\nfive"
    assert (first["target"], first["output"]["completion"]) == ("4", "four again")
    assert first["scores"] == {"reward": {"value": 0.5}}
    assert first["metadata"]["shown"]["agent 0, round 1"] == [[0, 0], [1, 0]]
    assert log["eval"]["config"] == {"epochs": 2}


def test_inspect_opens_the_log(capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> None:
    log = pytest.importorskip("inspect_ai.log")
    main(["export", str(DEBATES), "--to", "inspect"])
    path = tmp_path / "debates.json"
    path.write_bytes(capsysbinary.readouterr().out)
    read = log.read_eval_log(str(path))
    assert (read.status, len(read.samples)) == ("success", 4)
    assert read.samples[0].messages[1].text.startswith("Agent 0, round 0")


@pytest.mark.parametrize(("program", "keys"), [("verifiers", "example_id"), ("trl", "step")])
def test_rows_are_one_for_each_turn(
    program: str, keys: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    rows = exported(capsysbinary, program)
    assert len(rows) == 24 and all(keys in row for row in rows)
    first, second, third = rollout_rows([DEBATE], program)
    assert first["prompt"] == [{"role": "user", "content": "2 + 2, agent 0?"}]
    assert third["prompt"] == [{"role": "user", "content": "2 + 2?"}]
    assert second["completion"] == [{"role": "assistant", "content": "five"}]
    assert (first["reward"], "note" in first, "nan" in first) == (0.5, False, False)
    assert ("token_usage" in second) == (program == "verifiers")
