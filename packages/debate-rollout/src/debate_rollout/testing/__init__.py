"""Conformance checks that every engine passes; for the tests of engines, also of third parties.

Each check raises AssertionError saying what was expected. They send short asks and need no
particular model: replies may be nonsense.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from debate_rollout.engine import Capability, Engine, Weights
from debate_rollout.testing import refreshing, replies
from debate_rollout.testing.replies import (
    SAMPLING,
    Bench,
    Logps,
    NotApplicable,
    Refresh,
    ask,
    request,
)

__all__ = [
    "CHECKS",
    "SAMPLING",
    "Bench",
    "Check",
    "Logps",
    "NotApplicable",
    "Refresh",
    "ask",
    "check_engine",
    "conformance",
    "conformance_table",
    "request",
]


@dataclass(frozen=True, slots=True)
class Check:
    """One check, and the capabilities without which it is left out."""

    name: str
    needs: tuple[Capability, ...]
    run: Callable[[Bench], None]


CHECKS: tuple[Check, ...] = (
    Check("one reply a request, in order", (), replies.check_order),
    Check("token limit", (), replies.check_max_tokens),
    Check("ids in, ids out, text of the ids", ("tokens",), replies.check_ids),
    Check("stop string", ("tokens",), replies.check_stop),
    Check("stop string inside a token", ("tokens", "logps"), replies.check_stop_inside_token),
    Check("same seed, same reply", ("seeds",), replies.check_seeds),
    Check("n samples of a prompt", ("logps",), replies.check_samples),
    Check("no influence of neighbours", ("tokens", "seeds"), replies.check_batch),
    Check("trainer's log-probabilities", ("logps",), replies.check_trainer_logps),
    Check("empty prompt", ("tokens",), replies.check_empty_prompt),
    Check("over-long prompt", ("tokens",), replies.check_overflow),
    Check("extended prompt keeps ids", ("tokens",), replies.check_extension),
    Check("each submitted request ends once", ("streams",), replies.check_stream),
    Check("collect keeps its time", ("streams",), replies.check_collect),
    Check("cancellation", ("streams",), replies.check_cancel),
    Check("overdue request is named", ("streams",), replies.check_overdue),
    Check("full refresh", ("full_weights",), refreshing.check_full_refresh),
    Check("LoRA refresh", ("lora",), refreshing.check_lora_refresh),
    Check("an adapter for each ask", ("adapters",), refreshing.check_adapters),
    Check("prefix cache dropped", ("prefix_cache",), refreshing.check_prefix_cache),
    Check("unfit weights refused", ("full_weights",), refreshing.check_refused_weights),
    Check("load in flight", ("load_in_flight",), refreshing.check_load_in_flight),
    Check("death is named", (), replies.check_killed),
)


def check_engine(bench: Bench | Engine, weights: Weights | None = None) -> dict[str, str]:
    """Run every check that the engine's capabilities ask for; the first failure is raised.

    Args:
        bench: The engine with what checks need, or the engine alone.
        weights: Weights to load when `bench` is an engine alone.

    Returns:
        For each check `passed`, or why it was left out.
    """
    if not isinstance(bench, Bench):
        bench = Bench(bench, refreshes=() if weights is None else (Refresh(weights),))
    found: dict[str, str] = {}
    for check in CHECKS:
        try:
            found[check.name] = _result(check, bench)
        except AssertionError as error:
            error.add_note(f"conformance check: {check.name}")
            raise
    return found


def conformance(bench: Bench) -> dict[str, str]:
    """Run every check and return its result: `passed`, why it was left out, or `FAILED: …`."""
    found: dict[str, str] = {}
    for check in CHECKS:
        try:
            found[check.name] = _result(check, bench)
        except Exception as error:
            found[check.name] = f"FAILED: {type(error).__name__}: {error}"
    return found


def conformance_table(results: Mapping[str, Mapping[str, str]]) -> str:
    """Return results by engine as a Markdown table of check × engine."""
    marks = {name: [_mark(found[name]) for found in results.values()] for name in _names(results)}
    head = ["check", *results]
    rows = [head, ["---"] * len(head), *([name, *row] for name, row in marks.items())]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _result(check: Check, bench: Bench) -> str:
    lacking = [name for name in check.needs if not bench.can(name)]
    if lacking:
        return f"without {', '.join(lacking)}"
    try:
        check.run(bench)
    except NotApplicable as reason:
        return str(reason)
    return "passed"


def _names(results: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [
        check.name for check in CHECKS if all(check.name in found for found in results.values())
    ]


def _mark(result: str) -> str:
    return {"passed": "✓"}.get(result, "FAILED" if result.startswith("FAILED") else "–")
