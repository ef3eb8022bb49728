"""How answers in rows are read and compared: refused, mapped or inferred, never guessed."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.types import Question
from debate_rewards.answer_checking import check
from debate_train.data.questions import Questions
from debate_train.errors import DataError
from debate_train.recipe.data_view import look_at_data

GOOD = [{"question": f"What is {n} + 1?", "answer": n + 1} for n in range(40)]


def config(folder: Path, rows: list[Any], **settings: object) -> Questions:
    path = folder / "q.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return Questions.model_validate({"path": str(path)} | settings)


def every(config: Questions) -> list[Question]:
    source = config.open()
    return [q for name in ("train", "dev", "test") for q in source.split(name, 10**9)]  # type: ignore[arg-type]


def refused(folder: Path, row: dict[str, Any] | str, **settings: object) -> str:
    with pytest.raises(DataError) as caught:
        config(folder, [*GOOD[:4], row], **settings).open()
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"kind": "word problem"}, "kind: found 'word problem', expected one of math, choice"),
        ({"kind": "maths"}, "did you mean 'math'?"),
        ({"kind": 3}, "kind: found 3"),
        ({"answer": {"value": "3"}}, "data.fields can name what is inside, such as answer.value"),
        ({"answer": ["3", "4"]}, "expected one text or one number; data.fields can name"),
        ({"answer": []}, "expected one text or one number"),
        ({"answer": float("nan")}, "answer: found nan"),
        ({"answer": float("inf")}, "answer: found inf"),
        ({"answer": True}, "found true; expected a text or a number, or data.kind=yes_no"),
        ({"answer": "\ud83d"}, "answer: found '\\ud83d', which JSON in UTF-8 cannot hold"),
        ({"passage": "\ud83d"}, "passage: found"),
        ({"passage": ["a"]}, "passage: found ['a']; expected a text"),
        ({"choices": ["a", "\ud83d"]}, "choices: found"),
        ({"choices": "A) 1 B) 2"}, "choices: found 'A) 1 B) 2'; expected a list of texts"),
        ({"choices": [["a"], ["b"]]}, "expected a list of texts"),
        ({"solution": {"steps": "x"}}, "expected a text; data.fields can name what is inside"),
        ({"id": "\ud83d"}, "id: found"),
        ({"id": {"oid": 3}}, "such as id.oid"),
        ({"level": float("nan")}, "level: found nan, which JSON in UTF-8 cannot hold"),
    ],
)
def test_row_that_cannot_be_read_is_refused_with_its_place(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    told = refused(tmp_path, {"question": "What?", "answer": "5"} | row)
    assert told.startswith(f"data.path: {str(tmp_path / 'q.jsonl')!r}, row 5: ")
    assert message in told


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_number_of_too_many_digits_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"q.{ending}"
    row = f'{{"question": "x", "answer": {"1" * 5000}}}'
    path.write_text(row if ending == "jsonl" else f"[{row}]")
    with pytest.raises(DataError, match="line 1: Exceeds the limit"):
        Questions(path=str(path)).open()


@pytest.mark.parametrize("path", ["a" * 300 + ".jsonl", "a\0b.jsonl", "a" * 300, "a\0b.parquet"])
@pytest.mark.parametrize("key", ["path", "test_path"])
def test_path_that_no_file_can_have_is_refused(tmp_path: Path, path: str, key: str) -> None:
    data = config(tmp_path, GOOD).model_copy(update={key: path})
    view = look_at_data(data)
    assert view.errors or "hub dataset" in view.lines[0]
    if data.is_file and path.endswith("l"):
        with pytest.raises(DataError, match=r"File name too long|embedded null byte"):
            data.open()


def test_kind_of_the_recipe_leaves_the_rows_unread(tmp_path: Path) -> None:
    rows = [row | {"kind": "word problem"} for row in GOOD]
    assert {q.meta["kind"] for q in every(config(tmp_path, rows, kind="number"))} == {"number"}
    unread = every(config(tmp_path, rows, fields={"kind": None}))
    assert all("kind" not in q.meta for q in unread)


def test_fields_step_inside_of_objects_and_lists(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": {"all": ["x", f"a{n}"]}} for n in range(40)]
    found = every(config(tmp_path, rows, fields={"answer": "answer.all.1"}))
    assert {q.answer for q in found} == {f"a{n}" for n in range(40)}
    alone = [{"question": f"{n}?", "answer": [n]} for n in range(40)]
    assert {q.answer for q in every(config(tmp_path, alone))} == {str(n) for n in range(40)}


def test_kind_is_inferred_from_choices(tmp_path: Path) -> None:
    texts = ["red", "green", "blue", "grey"]
    rows = [{"question": f"{n}?", "choices": texts, "answer": n % 4} for n in range(40)]
    rows += [{"question": f"b{n}?", "choices": texts, "answer": "BCD"[n % 3]} for n in range(10)]
    rows += [{"question": f"c{n}?", "choices": texts, "answer": texts[n % 3]} for n in range(10)]
    data = config(tmp_path, [*rows, *GOOD])
    for question in every(data):
        assert question.meta.get("kind") == ("choice" if "choices" in question.meta else None)
        if question.text in ("2?", "b1?", "c2?"):  # 2 is the third choice, counted from 0
            letter = {"2?": "C", "b1?": "C", "c2?": "C"}[question.text]
            assert check(question, f"\\boxed{{{letter}}}").verdict == "right"
            assert check(question, "\\boxed{A}").verdict == "wrong"
    assert "data.path: answers are compared as: choice 60, math 40" in look_at_data(data).lines


NUMBERS = ["0", "2", "1", "3"]


def test_integer_that_is_a_place_and_a_text_is_read_as_its_file_does(tmp_path: Path) -> None:
    texts = ["red", "green", "blue", "grey"]
    places = [{"question": f"{n}?", "choices": texts, "answer": n % 4} for n in range(10)]
    both = {"question": "degree?", "choices": NUMBERS, "answer": 1}
    degree = {q.text: q for q in every(config(tmp_path, [*places, both]))}["degree?"]
    assert degree.answer == "B"
    values = [{"question": f"{n}?", "choices": ["10", "20"], "answer": 10} for n in range(10)]
    degree = {q.text: q for q in every(config(tmp_path, [*values, both]))}["degree?"]
    assert degree.answer == "C"


@pytest.mark.parametrize(
    ("choices", "answer", "message"),
    [
        (NUMBERS, 1, "found 1, which is the text of C and the number of B"),
        (["O", "A", "B", "AB"], "B", "found 'B', which is the label of B and the text of C"),
    ],
)
def test_answer_that_may_mean_two_choices_is_refused_where_no_other_row_shows_it(
    tmp_path: Path, choices: list[str], answer: object, message: str
) -> None:
    rows = [*GOOD, {"question": "which?", "choices": choices, "answer": answer}]
    with pytest.raises(DataError, match="row 41: ") as caught:
        config(tmp_path, rows).open()
    assert message in str(caught.value)


def test_choices_of_two_lists_and_labels_that_are_numbers(tmp_path: Path) -> None:
    two = {"text": ["red", "green"], "label": ["1", "2"]}
    rows = [{"question": f"{n}?", "choices": two, "answer": "2"} for n in range(40)]
    for question in every(config(tmp_path, rows)):
        assert question.meta["choices"] == {"1": "red", "2": "green"}
        assert check(question, "\\boxed{2}").verdict == "right"
        assert check(question, "\\boxed{1}").verdict == "wrong"


def test_kind_is_inferred_when_all_answers_are_yes_or_no(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": ("Yes", "no")[n % 2]} for n in range(40)]
    data = config(tmp_path, rows)
    assert {q.meta["kind"] for q in every(data)} == {"yes_no"}
    assert "data.path: answers are compared as: yes_no 40" in look_at_data(data).lines
    booleans = [{"question": f"{n}?", "answer": n % 2 == 0} for n in range(40)]
    found = every(config(tmp_path, booleans, kind="yes_no"))
    assert {q.text: q.answer for q in found}["4?"] == "yes"
    assert {q.text: q.answer for q in found}["5?"] == "no"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "a?", "answer": "yes"}], "the answer is 'yes' and that of row 1 is '1'"),
        (
            [{"question": "a?", "choices": ["x", "y"], "answer": "12"}],
            "the row has choices, but its answer '12' is neither",
        ),
        (
            [{"question": "a?", "choices": ["x", "y"], "answer": 2}],
            "found 2 with 2 choices; expected the number of a choice, counted from 0",
        ),
    ],
)
def test_kind_that_is_not_clear_is_refused(
    tmp_path: Path, rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(DataError, match=r"row 41: ") as caught:
        config(tmp_path, [*GOOD, *rows]).open()
    assert message in str(caught.value)
    assert len(every(config(tmp_path, [*GOOD, *rows], kind="math"))) == 41


def test_letters_without_choices_need_a_kind(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": f"({'ABCD'[n % 4]})"} for n in range(40)]
    with pytest.raises(DataError, match=r"all answers are single letters, such as '\(A\)'"):
        config(tmp_path, rows).open()
    assert {q.meta["kind"] for q in every(config(tmp_path, rows, kind="choice"))} == {"choice"}


def test_answer_pattern_whose_group_takes_no_part_finds_nothing(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": n} for n in range(40)]
    lines = look_at_data(config(tmp_path, rows, answer_pattern=r"(x)?\d+")).lines
    assert any("holds nothing in 40 of 40 rows" in line for line in lines)


def test_answer_pattern_that_takes_exponential_time_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("debate_train.data.question_rows.LIMIT_S", 0.05)
    row = {"question": "x", "answer": "a" * 60 + "b"}
    told = refused(tmp_path, row, answer_pattern="^(a|aa)+$")
    assert "row 5: data.answer_pattern: '^(a|aa)+$' takes more than" in told


def test_answers_without_the_pattern_are_said(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?", "answer": f"#### {n}" if n else "none"} for n in range(40)]
    lines = look_at_data(config(tmp_path, rows, answer_pattern="#### (.+)")).lines
    assert any("holds nothing in 1 of 40 rows" in line for line in lines)


def test_limit_takes_a_seeded_sample_of_the_whole_file(tmp_path: Path) -> None:
    rows = [{"question": f"{n:03}?", "answer": n} for n in range(400)]

    def taken(rows: list[dict[str, Any]], **settings: object) -> set[str]:
        return {q.text for q in config(tmp_path, rows, **settings).open().split("train", 10**9)}

    whole = taken(rows)
    sample = taken(rows, limit=60)
    assert sample < whole
    assert len(sample) == 60
    # The first 60 rows hold at most 60 of 400; a fair sample has 60 · 200/400 = 30 (± 4) of the
    # second half.
    assert 15 <= sum(text >= "200" for text in sample) <= 45
    assert taken(rows[::-1], limit=60) == sample
    assert taken(rows, limit=80) > sample
    assert taken(rows, limit=60, seed=1) != sample
