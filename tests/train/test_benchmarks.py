"""Published benchmarks by name: rows as their authors publish them, kinds, splits and answers."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pytest
from pydantic import ValidationError

from debate_protocol.types import Question
from debate_rewards.answer_checking import check
from debate_train.data import Benchmark
from debate_train.data.benchmarks import BENCHMARKS
from debate_train.errors import DataError
from debate_train.recipe.data_view import look_at_data

ROW: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": "2 bags of 600?", "answer": "2*600 = <<2*600=1200>>1200\n#### 1,200"},
    "math": {
        "problem": "Half of one?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": r"A box \boxed{1} first, then \boxed{\frac{1}{2}}.",
    },
    "math500": {
        "problem": "Half of one?",
        "solution": "…",
        "answer": r"\frac{1}{2}",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1.json",
    },
    "aime24": {"id": 60, "problem": "How many?", "solution": "…", "answer": "025", "year": "2024"},
    "aime25": {"id": "0", "problem": "How many?", "answer": "70"},
    "amc23": {"id": 0, "question": "How many?", "answer": 27.0, "url": ""},
    "dapo_math": {
        "data_source": "math_dapo",
        "prompt": [
            {
                "role": "user",
                "content": "Solve the following math problem step by step. The last line of your "
                "response should be of the form Answer: $Answer (without quotes) where $Answer is "
                "the answer to the problem.\n\nWhat is 30 + 4?\n\nSay it in digits.\n\nRemember to "
                'put your answer on its own line after "Answer:".',
            }
        ],
        "ability": "MATH",
        "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4"},
    },
    "boolq": {"question": "is ice cold", "passage": "Ice is cold.", "answer": True},
    "mmlu": {"question": "Which?", "subject": "anatomy", "choices": list("wxyz"), "answer": 2},
    "bbh": {"input": "Which one?\nOptions:\n(A) a dog\n(B) a cat", "target": "(B)"},
    "sciq": {
        "question": "A copy?",
        "distractor1": "adult",
        "distractor2": "male",
        "distractor3": "sum",
        "correct_answer": "clone",
        "support": "",
    },
    "arc_challenge": {
        "id": "Mercury_1",
        "question": "Which?",
        "choices": {"text": ["rock", "ice", "fire"], "label": ["1", "2", "3"]},
        "answerKey": "3",
    },
    "arc_easy": {
        "id": "Mercury_2",
        "question": "Which?",
        "choices": {"text": ["rock", "ice"], "label": ["A", "B"]},
        "answerKey": "A",
    },
    "longwriter": {
        "messages": [
            {"role": "user", "content": "Write a long story."},
            {"role": "assistant", "content": "Once…"},
        ]
    },
    "longbench_write": {"prompt": "Write 100 words.", "type": "Blog", "length": 100},
}
"""A row of each, with the keys under which its authors publish it."""

READ: dict[str, tuple[str, str | None, str]] = {
    "gsm8k": ("2 bags of 600?", "1200", "math"),
    "math": ("Half of one?", r"\frac{1}{2}", "math"),
    "math500": ("Half of one?", r"\frac{1}{2}", "math"),
    "aime24": ("How many?", "25", "math"),
    "aime25": ("How many?", "70", "math"),
    "amc23": ("How many?", "27", "math"),
    "dapo_math": ("What is 30 + 4?\n\nSay it in digits.", "34", "math"),
    "boolq": ("is ice cold", "yes", "yes_no"),
    "mmlu": ("Which?", "C", "choice"),
    "bbh": ("Which one?", "B", "choice"),
    "arc_challenge": ("Which?", "3", "choice"),
    "arc_easy": ("Which?", "A", "choice"),
    "longwriter": ("Write a long story.", None, "text"),
    "longbench_write": ("Write 100 words.", None, "text"),
}


def file_of(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def numbered(row: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Rows that differ in their question."""
    text = json.dumps(row)
    old = {"question", "problem", "input", "prompt", "messages"} & set(row)
    asked = row[min(old)]
    asked = asked[0]["content"] if isinstance(asked, list) else asked
    first = json.dumps(asked)[1:-1]
    return [json.loads(text.replace(first, f"{n}. {first}", 1)) for n in range(count)]


def only(config: Benchmark) -> Question:
    (question,) = config.checked_questions(config.open())
    return question


def test_every_benchmark_has_a_row_here() -> None:
    assert set(ROW) == set(BENCHMARKS) == {*READ, "sciq"}


@pytest.mark.parametrize("name", READ)
def test_published_row_becomes_a_question(tmp_path: Path, name: str) -> None:
    path = file_of(tmp_path / "rows.jsonl", [ROW[name]])
    # A single row to evaluate on: the test rows are the ones that always exist.
    question = Benchmark(name=name, test_path=path).open().split("test", 9)[0]
    kind = question.meta.get("kind", "math")
    assert (question.text, question.answer, kind) == READ[name]
    assert str(question.meta.get("choices")) == str(
        {
            "mmlu": ["w", "x", "y", "z"],
            "bbh": {"A": "a dog", "B": "a cat"},
            "arc_challenge": {"1": "rock", "2": "ice", "3": "fire"},
            "arc_easy": {"A": "rock", "B": "ice"},
        }.get(name)
    )


def test_sciq_answer_stands_at_every_place_among_the_distractors(tmp_path: Path) -> None:
    rows = numbered(ROW["sciq"], 200)
    config = Benchmark(name="sciq", test_path=file_of(tmp_path / "rows.jsonl", rows))
    questions = config.open().split("test", 999)
    for question in questions:
        assert question.meta["choices"][ord(str(question.answer)) - 65] == "clone"
    places = Counter(question.answer for question in questions)
    # A fair place has mean 50 and standard deviation 6.1.
    assert set(places) == set("ABCD")
    assert all(25 <= count <= 75 for count in places.values())


@pytest.mark.parametrize("name", sorted(set(BENCHMARKS) - {"longbench_write"}))
def test_rows_of_the_hub_are_those_of_its_splits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None, str]] = []

    def load(hub: str, config: str | None, split: str, streaming: bool) -> Any:
        asked.append((hub, config, split))
        rows = numbered(ROW[name], 8 if config in (None, "main", "all") else 3)
        # Rows of one split are not those of another.
        text = json.dumps(rows).replace("0. ", f"0. {config} {split} ")
        return datasets.Dataset.from_list(json.loads(text))

    monkeypatch.setattr(datasets, "load_dataset", load)
    one = BENCHMARKS[name]
    source = Benchmark(name=name, batch_size=2).open()
    assert source.split("test", 99)
    expected = {split for split in (one.splits[1],) if split} or {one.splits[0]}
    assert {split for *_, split in asked} == expected  # Nothing but the test rows is downloaded.
    assert {config for _, config, _ in asked} == set(one.configs or (one.config,))
    if one.only_evaluates:
        with pytest.raises(DataError, match=f"data.test={name}"):
            source.batch(0)
    else:
        assert len(source.batch(0)) == 2


def test_training_and_test_rows_may_come_from_two_benchmarks(tmp_path: Path) -> None:
    train = file_of(tmp_path / "train.jsonl", numbered(ROW["dapo_math"], 30))
    test = file_of(tmp_path / "test.jsonl", numbered(ROW["aime24"], 5))
    config = Benchmark(name="dapo_math", path=train, test="aime24", test_path=test)
    source = config.open()
    assert {q.text.split(". ")[1] for q in source.split("test", 99)} == {"How many?"}
    assert len(source.split("train", 99)) + len(source.split("dev", 99)) == 30
    assert {q.answer for q in source.batch(0)} == {"34"}
    assert config.dataset == "dapo_math"


def test_big_bench_hard_is_split_within_each_task(tmp_path: Path) -> None:
    rows = [
        {"input": f"{task} {n} is", "target": "True", "subject": task}
        for task in ("one", "two", "three")
        for n in range(100)
    ]
    source = Benchmark(name="bbh", path=file_of(tmp_path / "rows.jsonl", rows)).open()
    for name, count in (("test", 25), ("dev", 10), ("train", 65)):
        tasks = Counter(q.meta["subject"] for q in source.split(name, 999))  # type: ignore[arg-type]
        assert tasks == dict.fromkeys(("one", "two", "three"), count), name


def test_small_tasks_have_their_share_of_the_whole(tmp_path: Path) -> None:
    rows = [
        {"input": f"{task} {n} is", "target": "7", "subject": str(task)}
        for task in range(20)
        for n in range(3)
    ]
    source = Benchmark(name="bbh", path=file_of(tmp_path / "rows.jsonl", rows)).open()
    sizes = [len(source.split(name, 99)) for name in ("test", "dev", "train")]  # type: ignore[arg-type]
    assert sizes == [15, 6, 39]


@pytest.mark.parametrize(
    ("target", "kind"),
    [("True", "yes_no"), ("no", "yes_no"), ("-12", "number"), ("valid", "text"), ("] > )", "text")],
)
def test_answers_of_big_bench_hard_have_the_kind_that_they_look_like(
    tmp_path: Path, target: str, kind: str
) -> None:
    path = file_of(tmp_path / "rows.jsonl", [{"input": "So?", "target": target}])
    question = Benchmark(name="bbh", test_path=path).open().split("test", 1)[0]
    assert question.meta["kind"] == kind
    assert check(question, f"It is.\nAnswer: {target}").verdict == "right"


def test_orders_of_big_bench_hard_name_wrong_ones(tmp_path: Path) -> None:
    rows = [
        {"input": f"Sort {n}: c a b", "target": target}
        for n, target in enumerate(("a b c", "] ] )"))
    ]
    source = Benchmark(name="bbh", test_path=file_of(tmp_path / "rows.jsonl", rows)).open()
    named = {q.answer: q.meta["wrong_answers"] for q in source.split("test", 2)}
    assert named == {"a b c": ["b a c", "a c b"], "] ] )": ["] ) ]"]}


def test_unbalanced_braces_can_be_boxed_when_escaped() -> None:
    question = Question("q", "close [ {", "] }", {"kind": "text"})
    assert check(question, r"So \boxed{] \}}").verdict == "right"
    assert check(question, r"So \boxed{] ]}").verdict == "wrong"


def test_questions_that_differ_in_choices_or_passage_are_not_repeats(tmp_path: Path) -> None:
    rows = [
        {**ROW["mmlu"], "choices": ["v", "w", "x", "y"]},
        {**ROW["mmlu"], "choices": ["v", "w", "x", "z"]},
        {**ROW["mmlu"], "choices": ["v", "w", "x", "y"]},
    ]
    config = Benchmark(name="mmlu", test_path=file_of(tmp_path / "rows.jsonl", rows))
    source = config.open()
    assert len(source.split("test", 9)) == 2
    assert "data.test_path: 1 of 3 rows repeat a question and are left out" in source.notes


def test_integers_of_mmlu_count_choices_also_where_a_choice_is_that_number(tmp_path: Path) -> None:
    row = {"question": "degree?", "choices": ["0", "2", "1", "3"], "answer": 1}
    config = Benchmark(name="mmlu", test_path=file_of(tmp_path / "rows.jsonl", [row]))
    (question,) = config.open(0).split("test", 10)
    assert question.answer == "B"
    verdicts = {reply: check(question, f"Answer: {reply}").verdict for reply in ("B", "C", "2")}
    assert verdicts == {"B": "right", "C": "wrong", "2": "right"}


def test_unknown_benchmark_gets_the_nearest_name() -> None:
    with pytest.raises(ValidationError, match="did you mean 'gsm8k'"):
        Benchmark(name="gsm8")


def test_check_says_when_a_benchmark_only_evaluates(tmp_path: Path) -> None:
    path = file_of(tmp_path / "rows.jsonl", numbered(ROW["aime25"], 4))
    view = look_at_data(Benchmark(name="aime25", path=path))
    (error,) = view.errors
    assert error.startswith("data.name: aime25 leaves no question to train on")
    assert "(gsm8k, math, dapo_math, " in error
    assert error.endswith("with data.test=aime25 to evaluate on this one")


def test_benchmark_on_no_hub_asks_for_a_file() -> None:
    with pytest.raises(DataError, match=r"data\.path: this benchmark is on no hub"):
        Benchmark(name="longbench_write").open().split("test", 1)


def test_only_needed_rows_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def load(hub: str, config: str | None, split: str, streaming: bool) -> Any:
        assert streaming
        for row in numbered(ROW["dapo_math"], 50):
            drawn.append(row)
            yield row

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = Benchmark(name="dapo_math", first_rows=20).open()
    total = sum(len(source.split(name, 99)) for name in ("train", "dev", "test"))  # type: ignore[arg-type]
    assert total == len(drawn) == 20
