"""Proposed puzzles: which the checker accepts, and that no held-out puzzle is trained on."""

from pathlib import Path

import pytest

from debate_protocol.forms import Checked
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine
from debate_train.data.signs_puzzle import SignsPuzzle
from debate_train.errors import UsageError
from debate_train.playing import check_of
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe

RECIPE = Path(__file__).parents[2] / "recipes/proposed_puzzle.yaml"
PUZZLES = SignsPuzzle(largest_digit=6)
SOURCE = PUZZLES.open(0)


def test_a_training_puzzle_is_accepted_as_the_source_would_draw_it():
    for question in SOURCE.batch(0):
        assert SOURCE.check_proposal(question.text) == question
        assert SOURCE.check_proposal(f"\n  {question.text.replace(' ', '  ')} ") == question


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_held_out_puzzle_is_refused_in_any_spelling(split):
    for question in SOURCE.split(split, 50):
        assert SOURCE.check_proposal(question.text) == "held_out_question"
        assert SOURCE.check_proposal(question.text.replace(" ", "\t")) == "held_out_question"
        # Zeros and digits of other scripts would be the same puzzle under another checksum.
        _, target, *rest = question.text.split()
        for spelling in (
            f"0{target}",
            f"+{target}",
            target.translate({55: "\uff17", 52: "\u0664"}),
        ):
            if spelling != target:
                text = " ".join(["make", spelling, *rest])
                assert SOURCE.check_proposal(text) == "invalid_question"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "make 4 Q 6 5 1",  # three digits
        "make 4 Q 6 5 1 6 1",
        "make 4 Q 6 5 1 7",  # digits end at 6 here
        "make 4 Q 6 5 1 0",
        "make 3 Q 6 5 1 6",  # 18 is even, so is every total
        "make 98 Q 6 5 1 6",
        "make -6 Q 1 1 1 5",
        "make 4 Q 6 5 1 6 <solution> + - - </solution>",
        "</question> make 4 Q 6 5 1 6",
        "make 4 Q 6 5 1 6\nmake 4 Q 6 5 1 6",
        "make 4 q 6 5 1 6",
        "make " + "4" * 100_000 + " Q 6 5 1 6",
        "make 4 Q " + "6 " * 100_000,
    ],
)
def test_what_is_no_puzzle_is_invalid(text):
    assert SOURCE.check_proposal(text) == "invalid_question"


def test_a_puzzle_of_several_answers_is_invalid_where_one_is_asked_for():
    one_answer = SignsPuzzle(largest_digit=6, one_answer=True).open(0)
    for question in SOURCE.batch(0):
        is_unique = len(question.meta["accept"]) == 1
        assert one_answer.check_proposal(question.text) == (
            question if is_unique else "invalid_question"
        )


def test_demonstrated_proposals_are_other_training_puzzles():
    form = Checked.model_validate(
        {
            "type": "proposed",
            "debaters": 2,
            "judges": 2,
            "style": "compact",
            "contract": {"name": "answer", "sections": ["solution"]},
        }
    )
    runs = [
        form.start(question, seed=seed, debate_id=str(seed), check_proposal=check_of(SOURCE))
        for seed, question in enumerate(SOURCE.batch(0))
    ]
    debates = play(runs, ScriptedEngine().open(script=SOURCE.demonstrate), max_tokens=64)
    texts = [debate.question.text for debate in debates]
    assert all(debate.meta["ended"] != "invalid_question" for debate in debates)
    assert {SOURCE.split_rule(text) for text in texts} == {"train"}
    assert len(set(texts)) > len(texts) * 0.9
    for debate in debates:
        assert debate.turns[0].text == f"<question> {debate.question.text} </question>"
        assert not any(turn.failure for turn in debate.turns)


def test_questions_of_data_without_a_checker_are_refused():
    with pytest.raises(UsageError, match="which cannot check them"):
        load_recipe(RECIPE, ["data={type: questions, path: x.jsonl}"], model=Recipe)
