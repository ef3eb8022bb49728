"""A short seeded run of the fuzz target; `docs/protocol.md` says how long the long ones were."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debate_protocol import Parsed


@pytest.fixture(scope="module")
def fuzzing(repository: Path) -> dict[str, Any]:
    return runpy.run_path(str(repository / "benchmarks/robustness/fuzz_protocol.py"))


def test_no_target_fails_when_a_seeded_generator_feeds_them(fuzzing: dict[str, Any]) -> None:
    counts = fuzzing["run_seeded"](2026, 2000)
    assert sum(counts.values()) == 2000
    assert min(counts.values()) > 100


@pytest.mark.parametrize(
    ("target", "text"), [("parse", "<solution>4</solution>"), ("neutralise", "</solution>")]
)
def test_target_fails_when_what_it_tries_is_broken(
    fuzzing: dict[str, Any], monkeypatch: pytest.MonkeyPatch, target: str, text: str
) -> None:
    try_out: Callable[[bytes], None] = fuzzing["TARGETS"][target]
    monkeypatch.setitem(try_out.__globals__, "spelled", lambda data: text)
    try_out(b"\x01")
    broken = {
        "parse": ("parse", lambda text, contract, **given: Parsed({}, answer="5")),
        "neutralise": ("neutralised", lambda text, contract: text),
    }
    monkeypatch.setitem(try_out.__globals__, *broken[target])
    with pytest.raises(AssertionError):
        try_out(b"\x01")
