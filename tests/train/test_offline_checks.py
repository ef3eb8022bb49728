"""What --check says of phases that learn from examples."""

from typing import Any

import pytest
from pydantic import ValidationError

from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from train.two_adapters import settings

ROLES = {"ours": {"adapter": "first"}, "theirs": {"adapter": "second"}}
DPO = {"type": "dpo"}
PAIRS = {"type": "answer_pairs"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"loss": {"type": "sft"}}, "expected dpo"),
        ({"offline": {"type": "chosen_replies"}}, "expected sft"),
        (
            {"offline": {"type": "chosen_replies", "held_out": 0.1}, "loss": {"type": "sft"}},
            "offline.held_out: found 0.1 with offline.type chosen_replies",
        ),
        ({"offline": None}, "expected offline: {type: guided_pairs}"),
        (
            {"offline": {"type": "guided_pairs", "role": "theirs"}},
            "offline.type: guided_pairs compares guided replies",
        ),
    ],
)
def test_check_refuses_what_cannot_be_learned(
    base: str, change: dict[str, Any], problem: str
) -> None:
    asked = settings(base, ROLES, **{"offline": PAIRS, "loss": DPO} | change)
    errors = check(Recipe.model_validate(asked)).errors
    assert any(problem in error for error in errors), errors


def test_nearest_name_of_a_set_is_named(base: str) -> None:
    asked = settings(base, ROLES, offline={"type": "answer_pair"}, loss=DPO)
    with pytest.raises(ValidationError, match="answer_pairs"):
        Recipe.model_validate(asked)


def test_check_counts_what_is_played_once(base: str) -> None:
    pairs = {"type": "guided_pairs", "role": "critic", "questions": 6, "batch_size": 5}
    debate = {
        "type": "actor_critic",
        "contract": "boxed",
        "max_rounds": 3,
        "guided": True,
        "continuations": 2,
        "roles": {"actor": {"adapter": "first", "train": False}, "critic": {"adapter": "second"}},
    }
    asked = settings(base, {}, debate=debate, offline=pairs, loss=DPO, steps=3)
    report = check(Recipe.model_validate(asked))
    assert report.errors == []
    # 5 natural turns; of rounds 1 and 2 two guided ones of each of 3 turns, 6; of the states after
    # the actor's turn of round 1 and the critic's 3 x 2 roll-outs of two and of one turn, 18.
    assert any("6 questions x 1 debate = 6 debates; 174 turns" in line for line in report.lines)
    assert any("a step: 5 of them; in all 15" in line for line in report.lines)
