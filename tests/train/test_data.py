"""Where questions come from: splits, batches, demonstrations and bad rows."""

import json
import random
from itertools import combinations
from pathlib import Path

import pytest
from pydantic import ValidationError

from debate_protocol.types import Question
from debate_rewards.answer_checking import check
from debate_train.data import Questions, SignsPuzzle
from debate_train.data.signs_puzzle import read_puzzle, running_totals, solutions
from debate_train.errors import DataError

PUZZLES = SignsPuzzle(batch_size=48).open()


def total(digits: tuple[int, ...], signs: str) -> int:
    """The arithmetic by Python itself."""
    return eval(str(digits[0]) + "".join(s + str(d) for s, d in zip(signs.split(), digits[1:])))  # noqa: B905


def test_running_totals_add_from_the_left() -> None:
    # 6 + 5 = 11; 11 - 1 = 10; 10 - 6 = 4
    assert running_totals((6, 5, 1, 6), ["+", "-", "-"]) == [11, 10, 4]
    assert solutions((6, 5, 1, 6), 4) == ("+ - -",)
    # 6+5+1-6 = 6 and 6+5-1+6 = 16 and 6-5-1+6 = 6
    assert solutions((6, 5, 1, 6), 6) == ("+ + -", "- - +")


def test_puzzle_splits_never_meet_and_are_always_the_same() -> None:
    splits = {name: PUZZLES.split(name, 300) for name in ("train", "dev", "test")}
    texts = {name: {q.text for q in questions} for name, questions in splits.items()}
    assert all(len(own) == 300 for own in texts.values())
    assert all(not texts[a] & texts[b] for a, b in combinations(texts, 2))
    for step in range(30):
        drawn = {q.text for q in PUZZLES.batch(step)}
        assert len(drawn) == 48
        assert not drawn & (texts["dev"] | texts["test"])
    assert PUZZLES.split("test", 300) == splits["test"]
    assert PUZZLES.split("test", 20) == splits["test"][:20]


def test_puzzle_batch_is_a_function_of_the_step_and_the_seed() -> None:
    other = SignsPuzzle(batch_size=48).open()
    other.batch(3)
    assert other.batch(5) == PUZZLES.batch(5)
    assert PUZZLES.batch(5) != PUZZLES.batch(6)
    assert SignsPuzzle(batch_size=48, seed=1).open().batch(5) != PUZZLES.batch(5)


def _drawn(config: SignsPuzzle | Questions, run_seed: int) -> tuple[list[str], list[str]]:
    source = config.open(run_seed)
    return texts(source.batch(0)), texts(source.split("test", 10))


@pytest.mark.parametrize("kind", ["questions", "signs_puzzle"])
def test_the_run_seed_draws_training_questions_and_data_seed_held_out_ones_too(
    kind: str, tmp_path: Path
) -> None:
    def config(seed: int | None) -> SignsPuzzle | Questions:
        if kind == "signs_puzzle":
            return SignsPuzzle(batch_size=12, seed=seed)
        return Questions(path=path, batch_size=12, holdout=0.4, seed=seed)

    path = write(tmp_path / "a.jsonl", ROWS)
    (train_0, test_0), (train_1, test_1) = _drawn(config(None), 0), _drawn(config(None), 1)
    assert train_0 != train_1
    assert test_0 == test_1
    (fixed_0, drawn_0), (fixed_1, drawn_1) = _drawn(config(7), 0), _drawn(config(7), 1)
    assert (fixed_0, drawn_0) == (fixed_1, drawn_1)
    assert fixed_0 not in (train_0, train_1)
    assert drawn_0 != test_0


def test_questions_of_other_seeds_are_in_the_same_splits(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    first, second = (Questions(path=path, seed=seed).open() for seed in (0, 1))
    for name in ("train", "dev", "test"):
        own, other = (set(texts(source.split(name, 10**9))) for source in (first, second))  # type: ignore[arg-type]
        assert own == other
    puzzles = SignsPuzzle(num_digits=3)
    every = {q.text for q in puzzles.open().split("test", 1000)}
    drawn = puzzles.model_copy(update={"seed": 3}).open().split("test", 50)
    assert {q.text for q in drawn} <= every


def test_puzzle_split_ends_when_it_holds_no_more() -> None:
    # 2,058 different puzzles of three digits, of which 196 fall into the test split.
    found = SignsPuzzle(num_digits=3).open().split("test", 1000)
    assert len(found) == 196


def test_puzzle_accepts_every_right_choice_of_signs_and_no_other() -> None:
    for question in PUZZLES.split("dev", 40):
        digits, target = read_puzzle(question)
        assert question.text == f"make {target} Q {' '.join(map(str, digits))}"
        for k in range(8):
            signs = " ".join("+-"[k >> bit & 1] for bit in range(3))
            right = total(digits, signs) == target
            assert (check(question, signs).verdict == "right") == right, (question.text, signs)
        assert check(question, "+ +").verdict == "wrong"
        accepted, wrong = question.meta["accept"], question.meta["wrong_answers"]
        assert sorted([*accepted, *wrong]) == sorted({*accepted, *wrong}) and len(wrong) > 0
        assert all(check(question, signs).verdict == "wrong" for signs in wrong)
        assert len(accepted) + len(wrong) == 8


def test_free_text_gets_the_wrong_answer_that_its_row_names_or_that_of_another_row(
    tmp_path: Path,
) -> None:
    answers = ["Rome", "rome", "Oslo", "Bern"]
    rows: list[dict[str, object]] = [
        {"question": f"q{n}?", "answer": answer, "kind": "text", "subject": "towns"}
        for n, answer in enumerate(answers)
    ]
    rows.append({"question": "alone?", "answer": "x", "kind": "text", "subject": "letters"})
    rows.append({**rows[0], "question": "named?", "wrong_answers": ["Nice", 7]})
    rows.append({"question": "2 + 2?", "answer": "4", "kind": "math"})
    source = Questions(path=write(tmp_path / "a.jsonl", rows), holdout=0.01).open()
    found = {q.text: q for name in ("train", "dev", "test") for q in source.split(name, 99)}  # type: ignore[arg-type]
    for n in range(4):
        (wrong,) = found[f"q{n}?"].meta["wrong_answers"]
        assert wrong in answers and check(found[f"q{n}?"], wrong).verdict == "wrong"
    assert found["named?"].meta["wrong_answers"] == ["Nice", "7"]
    assert all("wrong_answers" not in found[text].meta for text in ("alone?", "2 + 2?"))
    kept = Questions(path=str(tmp_path / "a.jsonl"), holdout=0.01, labelled=0).open()
    assert all("wrong_answers" not in q.meta for q in kept.split("train", 99))


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


ROWS = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(200)]


def texts(questions: list[Question]) -> list[str]:
    return [question.text for question in questions]


def test_file_splits_never_meet_and_follow_from_the_text(tmp_path: Path) -> None:
    source = Questions(path=write(tmp_path / "a.jsonl", ROWS)).open()
    shuffled = random.Random(0).sample(ROWS, len(ROWS))
    again = Questions(path=write(tmp_path / "b.jsonl", shuffled)).open()
    parts = {name: set(texts(source.split(name, 10**9))) for name in ("train", "dev", "test")}
    assert set().union(*parts.values()) == {row["question"] for row in ROWS}
    assert sum(map(len, parts.values())) == 200
    assert 8 <= len(parts["dev"]) <= 35
    assert 8 <= len(parts["test"]) <= 35
    assert {n: set(texts(again.split(n, 10**9))) for n in parts} == parts


def test_file_batches_go_through_shuffled_epochs_by_the_step_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    source = Questions(path=path, batch_size=7, limit=20).open()
    drawn = [text for step in range(20) for text in texts(source.batch(step))]  # 140 = 7 epochs
    epochs = [drawn[start : start + 20] for start in range(0, 140, 20)]
    assert all(set(epoch) == set(epochs[0]) and len(set(epoch)) == 20 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 7
    assert texts(Questions(path=path, batch_size=7, limit=20).open().batch(11)) == drawn[77:84]


def test_test_rows_are_never_trained_on(tmp_path: Path) -> None:
    held = write(tmp_path / "test.jsonl", ROWS[:50])
    path = write(tmp_path / "train.jsonl", ROWS)
    source = Questions(path=path, test_path=held).open()
    test = set(texts(source.split("test", 10**9)))
    assert test == {row["question"] for row in ROWS[:50]}
    assert not test & set(texts(source.split("train", 10**9)))
    assert not test & set(texts(source.split("dev", 10**9)))


def test_duplicates_are_used_once_and_ids_are_unique(tmp_path: Path) -> None:
    rows = [row | {"id": "same"} for row in (*ROWS, *ROWS)]
    source = Questions(path=write(tmp_path / "a.jsonl", rows)).open()
    found = [q for name in ("train", "dev", "test") for q in source.split(name, 10**9)]  # type: ignore[arg-type]
    assert len(found) == len(set(texts(found))) == 200
    assert len({question.id for question in found}) == 200


def test_answer_is_what_the_pattern_finds(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answer": f"Because.\n#### {n}"} for n in range(40)]
    path = write(tmp_path / "a.jsonl", rows)
    source = Questions(path=path, answer_pattern=r"####\s*(.+)", kind="number").open()
    for question in source.batch(0):
        assert (question.answer, question.meta["kind"]) == (question.text[1:], "number")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"\n \n", "is empty"),
        ("a.jsonl", b'{"question": "x"}\n{"question": ', r"a\.jsonl', line 2: Expecting value"),
        ("a.jsonl", b"[1]", r"line 1: found \[1\]; expected one object a line"),
        ("a.jsonl", b'{"text": "x"}', "row 1: no text under question or problem or prompt"),
        ("a.jsonl", b'{"question": 3}', "row 1: no text under question"),
        ("a.jsonl", b'{"question": "\\ud83d"}', "row 1: question: found"),
        ("a.jsonl", b'{"question": "\xff"}', "a.jsonl': 'utf-8' codec can't decode"),
        ("a.json", b'{"q": "x"}', "row 1: no text under question"),
        ("a.json", b"[1]", "found 1; expected a list of objects"),
        ("a.json", b"[", "line 1: Expecting value"),
        ("a.json", b"[]", "is empty"),
        ("a.jsonl", b'{"question": "q3"}', "leaves no question to train on"),
        ("no.jsonl", None, "found no file"),
    ],
)
def test_bad_rows_end_in_one_message(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        Questions(path=str(tmp_path / name), holdout=0.49).open()
    assert str(caught.value).startswith("data.path: ")


def test_json_file_and_byte_order_mark_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(ROWS))
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8-sig")
    first, second = (Questions(path=str(tmp_path / n)).open() for n in ("a.json", "b.jsonl"))
    assert first.batch(0) == second.batch(0)


@pytest.mark.parametrize(("pattern", "message"), [("(", "no regular expr"), ("#", "a group")])
def test_answer_pattern_that_finds_nothing_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Questions(path="a.jsonl", answer_pattern=pattern)
