"""Files of questions: splits, epochs, answers, bad rows, and what --check-data counts of them."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from debate_protocol.types import Question
from debate_rewards.answer_checking import check
from debate_train.commands.cli import main
from debate_train.data import DataSource, Questions
from debate_train.data.source import Split
from debate_train.data.splits import hold_out
from debate_train.errors import DataError
from debate_train.recipe.check import check as check_recipe
from debate_train.recipe.doubts import split_warnings
from train.small_recipes import recipe_of, write_rows

ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(200)]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
EVERYTHING = 10**9


def texts(questions: Sequence[Question]) -> list[str]:
    return [question.text for question in questions]


def splits_of(source: DataSource) -> dict[Split, set[str]]:
    return {name: set(texts(source.split(name, EVERYTHING))) for name in SPLITS}


def all_questions(source: DataSource) -> list[Question]:
    return [question for name in SPLITS for question in source.split(name, EVERYTHING)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(write_rows(tmp_path / "a.jsonl", ROWS))


def test_splits_never_meet_and_follow_from_the_text(path: str, tmp_path: Path) -> None:
    splits = splits_of(Questions(path=path).open())
    assert set().union(*splits.values()) == {row["question"] for row in ROWS}
    assert sum(map(len, splits.values())) == 200
    assert 8 <= len(splits["dev"]) <= 35
    assert 8 <= len(splits["test"]) <= 35
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    other_order = Questions(path=str(write_rows(tmp_path / "b.jsonl", shuffled)))
    assert splits_of(other_order.open()) == splits
    assert splits_of(Questions(path=path, seed=1).open()) == splits


def test_the_run_seed_draws_training_questions_and_the_data_seed_held_out_ones_too(
    path: str,
) -> None:
    def drawn(data_seed: int | None, run_seed: int) -> tuple[list[str], list[str]]:
        source = Questions(path=path, batch_size=12, holdout=0.4, seed=data_seed).open(run_seed)
        return texts(source.batch(0)), texts(source.split("test", 10))

    batch, held_out = drawn(None, 0)
    other_batch, other_held_out = drawn(None, 1)
    assert batch != other_batch
    assert held_out == other_held_out
    fixed_batch, fixed_held_out = drawn(7, 0)
    assert drawn(7, 1) == (fixed_batch, fixed_held_out)
    assert fixed_batch not in (batch, other_batch)
    assert fixed_held_out != held_out


def test_batches_go_through_shuffled_epochs_by_the_step_alone(path: str) -> None:
    source = Questions(path=path, batch_size=7, limit=20).open()
    drawn = [text for step in range(20) for text in texts(source.batch(step))]  # 140 = 7 epochs
    epochs = [drawn[start : start + 20] for start in range(0, 140, 20)]
    assert all(sorted(epoch) == sorted(set(epochs[0])) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 7
    again = Questions(path=path, batch_size=7, limit=20).open()
    assert texts(again.batch(11)) == drawn[77:84]


def test_test_rows_are_never_trained_on(path: str, tmp_path: Path) -> None:
    test_path = str(write_rows(tmp_path / "test.jsonl", ROWS[:50]))
    splits = splits_of(Questions(path=path, test_path=test_path).open())
    assert splits["test"] == {row["question"] for row in ROWS[:50]}
    assert not splits["test"] & (splits["train"] | splits["dev"])


def test_free_text_gets_the_wrong_answer_that_its_row_names_or_that_of_another_row(
    tmp_path: Path,
) -> None:
    towns = ["Rome", "rome", "Oslo", "Bern"]
    rows: list[dict[str, object]] = [
        {"question": f"q{n}?", "answer": town, "kind": "text", "subject": "towns"}
        for n, town in enumerate(towns)
    ]
    rows.append({"question": "alone?", "answer": "x", "kind": "text", "subject": "letters"})
    rows.append({**rows[0], "question": "named?", "wrong_answers": ["Nice", 7]})
    rows.append({"question": "2 + 2?", "answer": "4", "kind": "math"})
    path = str(write_rows(tmp_path / "a.jsonl", rows))
    source = Questions(path=str(path), holdout=0.01).open()
    questions = {question.text: question for question in all_questions(source)}
    for n in range(4):
        question = questions[f"q{n}?"]
        (wrong,) = question.meta["wrong_answers"]
        assert wrong in towns
        assert check(question, wrong).verdict == "wrong"
    assert questions["named?"].meta["wrong_answers"] == ["Nice", "7"]
    assert "wrong_answers" not in questions["alone?"].meta
    assert "wrong_answers" not in questions["2 + 2?"].meta
    unlabelled = Questions(path=path, holdout=0.01, labelled=0).open()
    assert all("wrong_answers" not in q.meta for q in unlabelled.split("train", 99))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"\n \n", "is empty"),
        ("a.jsonl", b'{"question": "x"}\n{"question": ', r"a\.jsonl', line 2: Expecting value"),
        ("a.jsonl", b'{"text": "x"}', "row 1: no text under question or problem or prompt"),
        ("a.jsonl", b'{"question": "\\ud83d"}', "row 1: question: found"),
        ("a.json", b"[1]", "found 1; expected a list of objects"),
        ("a.jsonl", b'{"question": "q3"}', "leaves no question to train on"),
        ("no.jsonl", None, "found no file"),
    ],
)
def test_bad_rows_end_in_one_message(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as refusal:
        Questions(path=str(tmp_path / name), holdout=0.49).open()
    assert str(refusal.value).startswith("data.path: ")


GOLD = [
    {"id": "good", "question": "1 + 1?", "answer": "2"},
    {"id": "half", "question": "1 / 2?", "answer": r"\frac{1}{2}"},
    {"id": "word", "question": "The opposite of full?", "answer": "empty", "kind": "text"},
    {"id": "open", "question": "Say something.", "answer": None},
    {"id": "much", "question": "How many?", "answer": "many", "kind": "number"},
    {"id": "brace", "question": "Close it: { [", "answer": "] }", "kind": "text"},
]


@pytest.mark.parametrize("contract", ["three_section", "answer_line"])
def test_check_data_names_rows_whose_own_answer_is_not_right(
    tmp_path: Path, contract: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", GOLD * 2)
    test_path = write_rows(tmp_path / "test.jsonl", [{"question": "3?", "answer": "3"}])
    keys = [f"data.path={path}", f"data.test_path={test_path}", "data.holdout=0.0001"]
    keys += [f"debate.contract={contract}", "data.answer_pattern=null", "data.kind=null"]
    assert main(["selfplay_v2", *keys, "--check-data"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "train: 5 answers, checked against themselves: 4 right, 0 wrong, 1 unverifiable" in lines
    assert "test: 1 answers, checked against themselves: 1 right, 0 wrong, 0 unverifiable" in lines
    (bad_row,) = [line for line in lines if "question " in line and "counts as" in line]
    assert bad_row.startswith("train: question much: its own answer 'many' (number) counts as")


RECIPE = """\
name: t
steps: 1
model: {type: scratch}
data: {type: signs_puzzle}
evaluation: {questions: 8, every: 1}
"""


@pytest.mark.parametrize("num_rows", [4, 60])
def test_check_warns_of_splits_without_questions(num_rows: int, tmp_path: Path) -> None:
    rows = [{"question": f"Tell of {n}."} for n in range(num_rows)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    recipe = recipe_of(RECIPE, f"data.type=questions data.path={path} data.batch_size=2")
    warnings = [text for text in check_recipe(recipe).warnings if "holds no question" in text]
    source = Questions(path=str(path)).open()
    empty_splits = [name for name in ("dev", "test") if not source.split(name, num_rows)]
    assert bool(empty_splits) == (num_rows == 4)
    for text, name in zip(warnings, empty_splits, strict=True):
        assert f"the {name} split" in text


@pytest.mark.parametrize("text", ["b {}?", "What is {} + 1?", "{}", "Question {:03}: solve."])
def test_numbered_questions_are_held_out_by_their_share(text: str) -> None:
    questions = [Question(str(n), text.format(n), "1") for n in range(500)]
    test, others = hold_out(questions, 0.2, 1)
    dev, train = hold_out(others, 0.2, 0)
    # Means 100 and 80; each bound is more than four standard deviations away.
    assert 60 <= len(test) <= 140
    assert 45 <= len(dev) <= 115
    assert len(train) == 500 - len(test) - len(dev)


class Overlapping(DataSource):
    """Trains on what it is measured on, as a source of somebody's own may."""

    def batch(self, step: int) -> list[Question]:
        return [Question(str(n), f"Tell of {n}.") for n in range(4)]

    def split(self, name: Split, size: int) -> list[Question]:
        return [Question(f"{name}-{n}", f"Tell of {n}.") for n in range(2, size)]


def test_check_warns_of_questions_that_are_trained_on_and_measured() -> None:
    phase = recipe_of(RECIPE)
    assert split_warnings(phase, phase.data.open()) == []
    (warning,) = split_warnings(phase, Overlapping())
    shared = "data: 2 of the 4 questions of step 1 are in the dev and the test split, too"
    assert warning.startswith(shared)
