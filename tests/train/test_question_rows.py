"""Which keys of a row are read, and worked solutions as demonstrations."""

import json
from pathlib import Path

import pytest

from debate_protocol.forms import Direct, Simultaneous
from debate_protocol.forms.settings import OwnContract
from debate_protocol.parsing import parse
from debate_protocol.types import TurnRequest
from debate_train.data.questions import Fields, Questions
from debate_train.errors import DataError


def source(folder: Path, rows: list[dict[str, object]], **settings: object) -> Questions:
    path = folder / "q.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return Questions.model_validate({"path": str(path)} | settings)


def rows(key: str = "question", **more: object) -> list[dict[str, object]]:
    return [{key: f"{i} + 1 = ?", "answer": i + 1} | more for i in range(40)]


@pytest.mark.parametrize("key", ["question", "problem", "prompt"])
def test_question_is_found_under_usual_keys(tmp_path: Path, key: str) -> None:
    (question, *_) = source(tmp_path, rows(key)).open().batch(0)
    first = int(question.text.split()[0])
    assert question.answer == str(first + 1)


def test_last_user_message_is_the_question_where_a_prompt_is_a_conversation(tmp_path: Path) -> None:
    turns = [("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi"), ("user", "1 + 1 = ?")]
    prompt = [{"role": role, "content": text} for role, text in turns]
    (question, *_) = source(tmp_path, [{"prompt": prompt, "answer": 2}] * 9).open().batch(0)
    assert (question.text, question.answer) == ("1 + 1 = ?", "2")
    assert question.meta["passage"] == "system: Be brief.\n\nuser: Hello\n\nassistant: Hi"
    with pytest.raises(DataError, match="no text under question or problem or prompt"):
        source(tmp_path, [{"prompt": prompt[:1], "answer": 2}]).open()


def test_dialogues_that_end_alike_are_different_questions(tmp_path: Path) -> None:
    dialogues: list[dict[str, object]] = [
        {
            "prompt": [
                {"role": "system", "content": "All amounts are in dozens."},
                {"role": "user", "content": [{"type": "text", "text": f"A box holds {size}."}]},
                {"role": "user", "content": "How many eggs are that?"},
                {"role": "assistant", "content": "Twelve times as many."},
            ],
            "answer": 12 * size,
        }
        for size in range(2, 42)
    ]
    opened = source(tmp_path, dialogues).open()
    questions = opened.batch(0)
    assert len({question.id for question in questions}) == len(questions) > 1
    for question in questions:
        size = int(str(question.answer)) // 12
        assert question.text == "How many eggs are that?"
        assert question.meta["passage"].endswith(f"dozens.\n\nuser: A box holds {size}.")
    (note,) = [note for note in opened.notes if "earlier turns" in note]
    assert "40 of 40 rows" in note


CALL = {"type": "function", "function": {"name": "add", "arguments": {"x": 1}}}


# As TRL 1.16 and verl 0.9 have them; keys that a parquet file fills with null are no parts.
@pytest.mark.parametrize(
    ("message", "found"),
    [
        ({"role": "assistant", "content": "", "tool_calls": [CALL]}, r"1\.tool_calls: found \[\{"),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, r"1\.tool_calls: found"),
        ({"role": "assistant", "content": None}, r"1\.content: found None"),
        ({"role": "tool", "name": "add", "content": "2"}, r"1\.role: found 'tool'"),
        ({"content": "2"}, r"1\.role: found None"),
        (
            {"role": "user", "content": [{"type": "image", "text": None}]},
            r"1\.content\.0: found \{'type': 'image'",
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Which bird is it?"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                ],
            },
            r"1\.content\.1: found \{'type': 'image_url'",
        ),
        ("1 + 1 = ?", r"1: found '1 \+ 1 = \?'"),
    ],
)
@pytest.mark.parametrize("num_after", [0, 1])
def test_dialogue_is_refused_when_a_message_is_more_than_text(
    message: object, found: str, num_after: int, tmp_path: Path
) -> None:
    plain = {"role": "user", "content": [{"type": "text", "text": "So?", "image": None}]}
    prompt = [plain, message] + [plain | {"tool_calls": None, "name": None}] * num_after
    dialogues = [{"question": f"{i}?"} for i in range(3)] + [{"prompt": prompt, "answer": 2}]
    with pytest.raises(DataError, match=rf"row 4: prompt\.{found}.*expected messages with a role"):
        source(tmp_path, dialogues).open()
    prompt[1] = plain
    source(tmp_path, dialogues * 9).open()


@pytest.mark.parametrize(
    "beside", [{"images": [{"bytes": "AA"}]}, {"image": "bird.png"}, {"tools": [CALL]}]
)
def test_row_is_refused_when_its_question_shows_more_than_text(
    beside: dict[str, object], tmp_path: Path
) -> None:
    (key,) = beside
    with pytest.raises(DataError, match=f"row 40: {key}: found .*expected questions of text alone"):
        source(tmp_path, [*rows()[:39], rows()[39] | beside]).open()
    source(tmp_path, rows(**{key: [], "videos": None})).open()


def test_question_key_that_is_named_is_the_only_one(tmp_path: Path) -> None:
    config = source(tmp_path, rows("problem"), fields=Fields(question="text"))
    with pytest.raises(DataError, match=r"row 1: no text under text \(found keys: problem, answer"):
        config.open()


def first_request(form: Direct | Simultaneous, config: Questions) -> TurnRequest:
    requests = next(form.start(config.open().batch(0)[0], seed=0))
    assert isinstance(requests, list)
    first = requests[0]
    assert isinstance(first, TurnRequest)
    return first


@pytest.mark.parametrize("contract", ["three_section", "five_section"])
def test_demonstration_is_a_valid_first_turn_of_the_contract(tmp_path: Path, contract: str) -> None:
    config = source(tmp_path, rows(solution="Add one.\n\\boxed{2}", answer=2))
    text = config.open().demonstrate(first_request(Direct(contract=contract), config), errors=False)
    parsed = parse(text, contract)
    assert parsed.problems == ()
    assert parsed.sections["solution"].text == "Add one.\n\\boxed{2}"
    assert parsed.comparisons == ()
    assert (parsed.consensus is None) == (contract == "three_section")


@pytest.mark.parametrize(
    "form",
    [
        Direct(think="drop"),  # without a stop string that would tell the contract
        Direct(contract=OwnContract(name="mine", sections=("check", "solution"), stop=None)),
    ],
)
def test_demonstration_keeps_the_contract_when_no_stop_string_tells_it(
    tmp_path: Path, form: Direct
) -> None:
    config = source(tmp_path, rows(solution="\\boxed{2}", answer=2))
    said = config.open().demonstrate(first_request(form, config), errors=False)
    parsed = parse(said, form.contract_rules())
    assert (parsed.answer, parsed.problems) == ("\\boxed{2}", ())


def test_demonstration_is_the_solution_alone_without_sections(tmp_path: Path) -> None:
    config = source(tmp_path, rows(solution="\\boxed{2}", answer=2))
    asked = first_request(Direct(contract="boxed"), config)
    assert config.open().demonstrate(asked, errors=False) == "\\boxed{2}"


def test_source_demonstrates_only_when_every_row_has_an_answer(tmp_path: Path) -> None:
    assert source(tmp_path, rows()).open().can_demonstrate
    lacking: list[dict[str, object]] = [{"question": f"{i}?"} for i in range(40)]
    assert not source(tmp_path, [*rows(), *lacking]).open().can_demonstrate
