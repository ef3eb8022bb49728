"""How rows of a file become questions: keys, conversations, kinds of answers, choices, limits."""

import json
from itertools import chain

import pytest

from debate_protocol.forms import Direct
from debate_protocol.forms.settings import OwnContract
from debate_protocol.parsing import parse
from debate_rewards.answer_checking import check
from debate_train.data.questions import Fields, Questions
from debate_train.errors import DataError
from debate_train.recipe.data_view import look_at_data

SUMS = [{"question": f"What is {n} + 1?", "answer": n + 1} for n in range(40)]


def make_data(folder, rows, **settings):
    path = folder / "q.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return Questions.model_validate({"path": str(path)} | settings)


def all_questions(data):
    source = data.open()
    splits = [source.split(name, 10**9) for name in ("train", "dev", "test")]
    return list(chain.from_iterable(splits))


def rows_of(answers, **more):
    return [{"question": f"{n}?", "answer": answer, **more} for n, answer in enumerate(answers)]


# Keys


def test_question_key_that_is_named_is_the_only_one(tmp_path):
    rows = [{"problem": "1 + 1 = ?", "answer": 2}]
    data = make_data(tmp_path, rows, fields=Fields(question="text"))
    with pytest.raises(DataError, match=r"row 1: no text under text \(found keys: problem, answer"):
        data.open()


def test_fields_step_inside_of_objects_and_lists(tmp_path):
    rows = rows_of({"all": ["x", f"a{n}"]} for n in range(40))
    questions = all_questions(make_data(tmp_path, rows, fields={"answer": "answer.all.1"}))
    assert {question.answer for question in questions} == {f"a{n}" for n in range(40)}
    questions = all_questions(make_data(tmp_path, rows_of([n] for n in range(40))))
    assert {question.answer for question in questions} == {str(n) for n in range(40)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"passage": "contxt"}, "data.fields.passage: found 'contxt', and no row of"),
        ({"labelled": "labeled"}, "data.fields.labelled: found 'labeled', and no row of"),
        ({"passage": "contxt"}, "did you mean 'context'?"),
        ({"answer": "gold.value"}, "data.fields.answer: found 'gold.value', and no row of"),
        ({"id": "context", "kind": None, "choices": "choices"}, None),
    ],
)
def test_key_that_is_named_is_in_some_row(tmp_path, fields, message):
    rows = [*SUMS[:30], {"question": "Who?", "answer": "Ann", "context": "Ann sings."}]
    data = make_data(tmp_path, rows, fields=fields)
    if message is None:
        assert len(all_questions(data)) == len(rows)
        return
    with pytest.raises(DataError) as error:
        data.open()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"kind": "maths"}, "did you mean 'math'?"),
        ({"answer": {"value": "3"}}, "data.fields can name what is inside, such as answer.value"),
        ({"answer": True}, "found true; expected a text or a number, or data.kind=yes_no"),
        ({"passage": ["a"]}, "passage: found ['a']; expected a text"),
        ({"worked_checks": ["up"]}, "worked_checks: found ['up']; expected an object from answers"),
        ({"choices": "A) 1 B) 2"}, "choices: found 'A) 1 B) 2'; expected a list of texts"),
        ({"level": float("nan")}, "level: found nan, which JSON in UTF-8 cannot hold"),
        ({"tools": [{"type": "function"}]}, "tools: found"),
    ],
)
def test_row_that_cannot_be_read_is_refused_with_its_place(tmp_path, row, message):
    rows = [*SUMS[:4], {"question": "What?", "answer": "5"} | row]
    with pytest.raises(DataError) as error:
        make_data(tmp_path, rows).open()
    assert str(error.value).startswith(f"data.path: {str(tmp_path / 'q.jsonl')!r}, row 5: ")
    assert message in str(error.value)


@pytest.mark.parametrize("path", ["a" * 300 + ".jsonl", "a\0b.jsonl", "a" * 300, "a\0b.parquet"])
@pytest.mark.parametrize("key", ["path", "test_path"])
def test_path_that_no_file_can_have_is_refused(tmp_path, path, key):
    data = make_data(tmp_path, SUMS).model_copy(update={key: path})
    view = look_at_data(data)
    assert view.errors or "hub dataset" in view.lines[0]
    if data.is_file and path.endswith("l"):
        with pytest.raises(DataError, match=r"File name too long|embedded null byte"):
            data.open()


def test_path_of_another_kind_is_named_as_what_it_is(tmp_path):
    (tmp_path / "rows.csv").write_text("question,answer\n1?,1\n")
    for path, kind in (("rows.csv", "a file of another kind"), ("", "a folder"), ("x", "no file")):
        data = Questions(path=str(tmp_path / path))
        (message,) = look_at_data(data).errors
        assert message.startswith(f"data.path: found {kind} ")


# Conversations


def test_last_user_message_is_the_question_and_the_others_its_passage(tmp_path):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello", "image": None}]},
        {"role": "assistant", "content": "Hi", "tool_calls": None},
        {"role": "user", "content": "1 + 1 = ?"},
    ]
    (question, *_) = make_data(tmp_path, [{"prompt": messages, "answer": 2}] * 9).open().batch(0)
    assert (question.text, question.answer) == ("1 + 1 = ?", "2")
    assert question.meta["passage"] == "system: Be brief.\n\nuser: Hello\n\nassistant: Hi"
    with pytest.raises(DataError, match="no text under question or problem or prompt"):
        make_data(tmp_path, [{"prompt": messages[:1], "answer": 2}]).open()


def test_conversations_that_end_alike_are_different_questions(tmp_path):
    rows = []
    for size in range(2, 42):
        prompt = [
            {"role": "user", "content": f"A box holds {size}."},
            {"role": "user", "content": "How many eggs are that?"},
        ]
        rows.append({"prompt": prompt, "answer": 12 * size})
    source = make_data(tmp_path, rows).open()
    questions = source.batch(0)
    assert len({question.id for question in questions}) == len(questions) > 1
    for question in questions:
        assert question.text == "How many eggs are that?"
        assert question.meta["passage"] == f"user: A box holds {int(question.answer) // 12}."
    (note,) = [note for note in source.notes if "earlier turns" in note]
    assert "40 of 40 rows" in note


CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


# As TRL 1.16 and verl 0.9 have them.
@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "assistant", "content": "", "tool_calls": [CALL]}, r"1\.tool_calls: found \[\{"),
        ({"role": "tool", "name": "add", "content": "2"}, r"1\.role: found 'tool'"),
        (
            {"role": "user", "content": [{"type": "image", "text": None}]},
            r"1\.content\.0: found \{'type': 'image'",
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "Which?"}, IMAGE]},
            r"1\.content\.1: found \{'type': 'image_url'",
        ),
    ],
)
def test_conversation_is_refused_when_a_message_is_more_than_text(message, place, tmp_path):
    plain = {"role": "user", "content": "So?"}
    rows = [*SUMS[:3], {"prompt": [plain, message, plain], "answer": 2}]
    expected = rf"row 4: prompt\.{place}.*expected messages with a role"
    with pytest.raises(DataError, match=expected):
        make_data(tmp_path, rows).open()


# Kinds of answers


def test_kind_is_inferred_from_choices(tmp_path):
    colors = ["red", "green", "blue", "grey"]
    rows = []
    for n in range(40):
        for name, answer in (("index", n % 4), ("letter", "ABCD"[n % 4]), ("text", colors[n % 4])):
            rows.append({"question": f"{name} {n}?", "choices": colors, "answer": answer})
    data = make_data(tmp_path, rows + SUMS)
    for question in all_questions(data):
        if "choices" not in question.meta:
            assert "kind" not in question.meta
            continue
        assert question.meta["kind"] == "choice"
        letter = "ABCD"[int(question.text.rstrip("?").split()[1]) % 4]  # counted from 0
        assert check(question, f"\\boxed{{{letter}}}").verdict == "right"
        assert check(question, "\\boxed{E}").verdict != "right"
    assert "data.path: answers are compared as: choice 120, math 40" in look_at_data(data).lines


NUMBERS = ["0", "2", "1", "3"]
AMBIGUOUS = {"question": "degree?", "choices": NUMBERS, "answer": 1}


@pytest.mark.parametrize(
    ("choices", "answer", "expected"),
    [(["red", "green"], 1, "B"), (["10", "20"], 10, "C")],
    ids=["indices", "texts"],
)
def test_integer_that_is_an_index_and_a_text_is_read_as_its_file_does(
    tmp_path, choices, answer, expected
):
    rows = [{"question": f"{n}?", "choices": choices, "answer": answer} for n in range(10)]
    answers = {q.text: q.answer for q in all_questions(make_data(tmp_path, [*rows, AMBIGUOUS]))}
    assert answers["degree?"] == expected


def test_choices_of_two_lists_and_labels_that_are_numbers(tmp_path):
    choices = {"text": ["red", "green"], "label": ["1", "2"]}
    for question in all_questions(make_data(tmp_path, rows_of(["2"] * 40, choices=choices))):
        assert question.meta["choices"] == {"1": "red", "2": "green"}
        assert check(question, "\\boxed{2}").verdict == "right"
        assert check(question, "\\boxed{1}").verdict == "wrong"


def test_kind_is_inferred_when_all_answers_are_yes_or_no(tmp_path):
    data = make_data(tmp_path, rows_of(["Yes", "no"] * 20))
    assert {question.meta["kind"] for question in all_questions(data)} == {"yes_no"}
    assert "data.path: answers are compared as: yes_no 40" in look_at_data(data).lines
    booleans = make_data(tmp_path, rows_of([True, False] * 20), kind="yes_no")
    answers = {question.text: question.answer for question in all_questions(booleans)}
    assert (answers["4?"], answers["5?"]) == ("yes", "no")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "yes"}, "the answer is 'yes' and that of row 1 is '1'"),
        (
            {"choices": ["x", "y"], "answer": "12"},
            "the row has choices, but its answer '12' is neither",
        ),
        (
            {"choices": NUMBERS, "answer": 1},
            "found 1, which is the text of C and the number of B",
        ),
        (
            {"choices": ["O", "A", "B", "AB"], "answer": "B"},
            "found 'B', which is the label of B and the text of C",
        ),
    ],
)
def test_kind_that_is_not_clear_is_refused(tmp_path, row, message):
    rows = [*SUMS, {"question": "a?", **row}]
    with pytest.raises(DataError, match=r"row 41: ") as error:
        make_data(tmp_path, rows).open()
    assert message in str(error.value)


# Patterns and limits


def test_answer_pattern_that_takes_exponential_time_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("debate_train.data.question_rows.LIMIT_S", 0.05)
    data = make_data(tmp_path, rows_of(["a" * 60 + "b"]), answer_pattern="^(a|aa)+$")
    message = r"row 1: data.answer_pattern: '\^\(a\|aa\)\+\$' takes more than"
    with pytest.raises(DataError, match=message):
        data.open()


def test_limit_takes_a_seeded_sample_of_the_whole_file(tmp_path):
    rows = [{"question": f"{n:03}?", "answer": n} for n in range(400)]

    def texts(rows, **settings):
        source = make_data(tmp_path, rows, **settings).open()
        return {question.text for question in source.split("train", 10**9)}

    sample = texts(rows, limit=60)
    assert len(sample) == 60
    # The first 60 rows hold at most 60 of 400; a fair sample has 60 · 200/400 = 30 (± 4) of the
    # second half.
    assert 15 <= sum(text >= "200" for text in sample) <= 45
    assert texts(rows[::-1], limit=60) == sample < texts(rows)
    assert texts(rows, limit=80) > sample
    assert texts(rows, limit=60, seed=1) != sample


# Worked solutions as demonstrations

SOLVED = rows_of(["2"] * 40, solution="Add one.\n\\boxed{2}")
OWN = OwnContract(name="mine", sections=("check", "solution"), stop=None)


@pytest.mark.parametrize(
    "form",
    [
        Direct(contract="three_section"),
        Direct(contract="five_section"),
        Direct(think="drop"),  # without a stop string that would tell the contract
        Direct(contract=OWN),
    ],
    ids=["three", "five", "no stop", "own"],
)
def test_demonstration_is_a_valid_first_turn_of_the_contract(tmp_path, form):
    source = make_data(tmp_path, SOLVED).open()
    (request,) = next(form.start(source.batch(0)[0], seed=0))
    parsed = parse(source.demonstrate(request, errors=False), form.contract_rules())
    assert parsed.problems == ()
    assert parsed.answer == "Add one.\n\\boxed{2}"
    assert parsed.comparisons == ()
