"""Branches and continuations in files."""

from typing import Any

import pytest

from debate_protocol.transcripts.files import from_json, to_json
from debate_protocol.types import Turn


def test_files_refuse_branches_that_are_malformed_or_too_deep() -> None:
    turn: dict[str, Any] = {"agent": 0, "round": 0, "text": "x"}

    def file(**more: Any) -> dict[str, Any]:
        return {
            "question": {"text": "?"},
            "protocol": {"num_agents": 1},
            "turns": [{**turn, **more}],
        }

    with pytest.raises(ValueError, match=r"turns\[0\]\.branches\[0\]\.guide: found nothing"):
        from_json(file(branches=[{"turn": turn}]))
    with pytest.raises(ValueError, match=r"turns\[0\]\.continuations\[0\]: found 7"):
        from_json(file(continuations=[7]))
    deep = turn
    for _ in range(1000):
        deep = {**turn, "continuations": [deep]}
    with pytest.raises(ValueError, match="nested too deeply"):
        from_json(file(continuations=[deep]))


def test_turns_have_no_keys_for_branches_when_there_are_none() -> None:
    transcript = from_json(
        {
            "question": {"text": "?"},
            "protocol": {"num_agents": 1},
            "turns": [{"agent": 0, "round": 0, "text": "x", "branches": [], "continuations": None}],
        }
    )
    (turn,) = transcript.turns
    assert turn == Turn(0, 0, "x")
    assert set(to_json(transcript)["turns"][0]) == {"agent", "round", "text", "shown", "prompt"}
