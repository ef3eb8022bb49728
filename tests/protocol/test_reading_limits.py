"""What no transcript may hold, as it would take too long to read: alike in every command."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.cli import main
from debate_protocol.transcripts.files import from_json
from debate_protocol.types import MAX_AGENTS, MAX_ROUNDS, Protocol, answering_agents

TURN = {"agent": 0, "round": 0, "text": "<solution>42</solution>"}


def debate(turn: dict[str, Any] | None = None, **rules: Any) -> dict[str, Any]:
    return {
        "id": "d",
        "question": {"text": "?"},
        "protocol": {"num_agents": 2} | rules,
        "turns": [TURN | (turn or {})],
    }


ABSURD = {
    "protocol.num_agents": debate(num_agents=10**9),
    "protocol.max_rounds": debate(max_rounds=10**20),
    "turns[0].agent": debate({"agent": MAX_AGENTS}),
    "turns[0].round": debate({"round": 10**9}),
    "turns[0].continuations[0].round": debate({"continuations": [TURN | {"round": 10**9}]}),
}


@pytest.mark.parametrize("where", ABSURD)
@pytest.mark.parametrize("command", ["validate", "show", "export"])
def test_a_transcript_with_an_absurd_number_is_refused_in_every_command(
    command: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "debates.jsonl"
    file.write_text(json.dumps(ABSURD[where]))
    options = ["--to", "xml"] if command == "export" else []
    assert main([command, str(file), *options]) == (1 if command == "validate" else 2)
    out, err = capsys.readouterr()
    assert f"debates.jsonl:1: {where}: found 1" in out + err
    assert ", expected at most " in out + err


def test_a_transcript_is_read_when_it_is_as_large_as_it_may_be() -> None:
    data = debate(
        {"agent": MAX_AGENTS - 1, "round": MAX_ROUNDS - 1},
        num_agents=MAX_AGENTS,
        max_rounds=MAX_ROUNDS,
    )
    assert from_json(data).turns[0].round == MAX_ROUNDS - 1


def test_no_more_agents_answer_than_there_are_when_first_turns_says_so() -> None:
    rules = Protocol(5, 2, topology="pair", extra={"first_turns": 10**20})
    assert answering_agents(rules, 0) == (0, 1, 2, 3, 4)
    assert len(answering_agents(rules, 1)) == 0
