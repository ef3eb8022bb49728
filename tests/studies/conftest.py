"""Debates written in short form: per round, each agent's comparison lines."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript

Round = Mapping[int, str | None] | Sequence[str | None]
Hold = Callable[..., Transcript]


def _text(solution: str, lines: str, evaluation: str) -> str:
    rows = "\n".join(
        line.strip().replace("A", "Agent ") for line in lines.split(";") if line.strip()
    )
    return (
        f"<solution>{solution}</solution>\n<evaluation>{evaluation}</evaluation>\n"
        f"<comparison>\n{rows or 'N/A'}\n</comparison>"
    )


def _hold(
    *rounds: Round,
    n: int = 3,
    id: str = "d",
    answers: Mapping[tuple[int, int], str] | None = None,
    answer: str | None = None,
    meta: Mapping[str, Any] | None = None,
    evaluation: str | Mapping[tuple[int, int], str] = "N/A",
    **protocol: Any,
) -> Transcript:
    """Build a debate; `"A1>A2; A0=A2"` are comparison lines, None is a failed turn."""
    turns = []
    for number, spoken in enumerate(rounds):
        pairs = spoken.items() if isinstance(spoken, Mapping) else enumerate(spoken)
        for agent, lines in pairs:
            solution = (answers or {}).get((agent, number), f"s{agent}")
            text_of_evaluation = evaluation
            if isinstance(text_of_evaluation, Mapping):
                text_of_evaluation = text_of_evaluation.get((agent, number), "N/A")
            text = "no tags" if lines is None else _text(solution, lines, text_of_evaluation)
            turns.append({"agent": agent, "round": number, "text": text})
    return from_json(
        {
            "id": id,
            "question": {"text": "?", "answer": answer, "meta": {"kind": "text", **(meta or {})}},
            "protocol": {"num_agents": n, **protocol},
            "turns": turns,
        }
    )


@pytest.fixture
def hold() -> Hold:
    return _hold
