"""A slice of the mutation scripts: no traceback, nothing executed, nothing wrongly accepted."""

import sys

import pytest

from benchmarks.robustness import mutate_models, mutate_recipes, mutations

pytestmark = pytest.mark.slow


def test_mutated_recipes_are_refused_or_read_again_the_same() -> None:
    counts = mutate_recipes.main(mutate_recipes.parsed(["--every", "149"]))
    assert counts["trials"] > 200
    assert counts["failures"] == 0, counts
    assert counts["groups"]["override"]["accepted"] > 0


def test_damaged_models_are_refused() -> None:
    counts = mutate_models.main(["--every", "41"])
    assert counts["trials"] > 10
    assert counts["failures"] == 0, counts
    assert counts["groups"]["check"]["accepted"] > 0  # The first is whole.


def test_trials_notice_what_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> int:
        print("Traceback (most recent call last):", file=sys.stderr)
        return 1

    def sleep() -> int:
        while True:
            pass

    assert mutations.tried("t", fail).ended == "traceback"
    assert mutations.tried("t", lambda: 1).ended == "exit 1"
    assert mutations.tried("t", lambda: 1 // 0).ended == "raised"
    assert mutations.tried("t", lambda: print("caf\udce9") or 0).ended == "raised"  # type: ignore[func-returns-value]
    assert mutations.tried("t", sleep, limit_s=0.05).ended == "hang"
