"""Published benchmarks by name: rows as their authors publish them, splits and answers."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from debate_protocol.types import Question, TurnRequest
from debate_rewards.answer_checking import check
from debate_rollout.engines import ScriptedEngine
from debate_train.commands.evaluate import main
from debate_train.data import Benchmark
from debate_train.data.benchmarks import BENCHMARKS
from debate_train.errors import DataError
from train.small_recipes import write_rows

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


CHOICES: dict[str, Any] = {
    "mmlu": ["w", "x", "y", "z"],
    "bbh": {"A": "a dog", "B": "a cat"},
    "arc_challenge": {"1": "rock", "2": "ice", "3": "fire"},
    "arc_easy": {"A": "rock", "B": "ice"},
}


def file_of(path: Path, rows: list[dict[str, Any]]) -> str:
    return str(write_rows(path, rows))


def numbered(row: dict[str, Any], num_rows: int) -> list[dict[str, Any]]:
    """Rows that differ in the number before their question."""
    (key,) = {"question", "problem", "input", "prompt", "messages"} & set(row)
    question_text = row[key][0]["content"] if isinstance(row[key], list) else row[key]
    text = json.dumps(row)
    question = json.dumps(question_text)[1:-1]
    return [json.loads(text.replace(question, f"{n}. {question}", 1)) for n in range(num_rows)]


def questions_of_rows(folder: Path, name: str, rows: list[dict[str, Any]]) -> list[Question]:
    """Questions of a file that is only evaluated on."""
    test_path = file_of(folder / "rows.jsonl", rows)
    return Benchmark(name=name, test_path=test_path).open().split("test", 999)


@pytest.mark.parametrize("name", READ)
def test_published_row_becomes_a_question(tmp_path: Path, name: str) -> None:
    (question,) = questions_of_rows(tmp_path, name, [ROW[name]])
    kind = question.meta.get("kind", "math")
    assert (question.text, question.answer, kind) == READ[name]
    if question.answer is not None:
        reply = reply_of(question.answer, BENCHMARKS[name].contract)
        assert check(question, reply).verdict == "right"
    choices: Any = question.meta.get("choices")
    assert (None if choices is None else json.loads(json.dumps(choices))) == CHOICES.get(name)


@pytest.mark.parametrize("name", sorted(set(BENCHMARKS) - {"longbench_write"}))
def test_rows_of_the_hub_are_those_of_its_splits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[tuple[str | None, str]] = []

    def load(hub: str, config: str | None, split: str, streaming: bool) -> Any:
        loads.append((config, split))
        rows = numbered(ROW[name], 40 if config in (None, "main", "all") else 3)
        # Rows of one split are not those of another.
        text = re.sub(r"\b(\d+)\. ", rf"\1. {config} {split} ", json.dumps(rows))
        return datasets.Dataset.from_list(json.loads(text))

    monkeypatch.setattr(datasets, "load_dataset", load)
    published = BENCHMARKS[name]
    source = Benchmark(name=name, batch_size=2).open()
    assert source.split("test", 99)
    # Nothing but the test rows is downloaded.
    assert {split for _, split in loads} == {published.splits[1] or published.splits[0]}
    assert {config for config, _ in loads} == set(published.configs or (published.config,))
    if published.only_evaluates:
        with pytest.raises(DataError, match=f"data.test={name}"):
            source.batch(0)
    else:
        assert len(source.batch(0)) == 2


RECIPE = """\
name: benchmarks
model: {{type: scratch, hidden_size: 8, layers: 1, heads: 1, head_dim: 8, context_window: 4096}}
data: {{type: benchmark, name: {name}, test_path: {path}}}
debate: {{type: simultaneous, num_agents: 3, max_rounds: 2, contract: {contract}, personas: none}}
rollout: {{engine: {{type: scripted}}, max_tokens: 64}}
reward: {{type: verifiable}}
evaluation: {{questions: 6, direct_samples: 2, runs: 2}}
steps: 1
tracking: {{wandb: false}}
"""


def recipe_of_benchmark(folder: Path, name: str, path: str) -> str:
    recipe = folder / "recipe.yaml"
    contract = BENCHMARKS[name].contract
    recipe.write_text(RECIPE.format(name=name, path=path, contract=contract))
    return str(recipe)


@pytest.fixture
def answer_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[TurnRequest], str]], None]:
    """Let scripted engines answer by a function."""
    open_engine = ScriptedEngine.open

    def use(script: Callable[[TurnRequest], str]) -> None:
        def open_with(self: ScriptedEngine, *arguments: Any, **settings: Any) -> Any:
            return open_engine(self, *arguments, **{**settings, "script": script})

        monkeypatch.setattr(ScriptedEngine, "open", open_with)

    return use


def reply_of(answer: str, contract: str) -> str:
    if contract == "answer_line":
        return f"Answer: {answer}"
    if contract == "boxed":
        return f"\\boxed{{{answer}}}"
    sections = "<evaluation>N/A</evaluation><comparison>N/A</comparison>"
    return f"<solution>\\boxed{{{answer}}}</solution>{sections}"


# One of each contract and kind of answer.
@pytest.mark.parametrize("name", ["amc23", "boolq", "bbh", "longwriter"])
def test_answers_of_a_benchmark_are_read_and_judged(
    tmp_path: Path, name: str, answer_by: Callable[[Callable[[TurnRequest], str]], None]
) -> None:
    published = BENCHMARKS[name]
    questions = questions_of_rows(tmp_path, name, numbered(ROW[name], 6))
    gold = {question.text: question.answer for question in questions}
    assert len(gold) == 6
    unknown = questions[0].text  # The engine does not know its answer.

    def script(request: TurnRequest) -> str:
        answer = gold[request.question.text]
        knows_answer = answer is not None and request.question.text != unknown
        return reply_of(str(answer) if knows_answer else "nothing at all", published.contract)

    answer_by(script)
    recipe = recipe_of_benchmark(tmp_path, name, str(tmp_path / "rows.jsonl"))
    assert main([recipe, "--output", str(tmp_path / "evaluation")]) == 0
    results = json.loads((tmp_path / "evaluation" / "results.json").read_text())
    figures = results["policies"][0]["figures"]
    if published.shares is None and not any(gold.values()):
        assert "eval/direct/accuracy" not in figures
        assert figures["eval/format"]["mean"] == 1
        return
    for figure in ("direct/accuracy", "majority/accuracy", "last_round/accuracy"):
        assert figures[f"eval/{figure}"]["mean"] == pytest.approx(5 / 6), figure


# A figure's name in the table, by mode and row.
TABLE = {
    ("direct", "mean@K"): "eval/direct/accuracy",
    ("direct", "maj@K"): "eval/direct/maj@{replies}",
    ("debate", "Maj"): "eval/maj/first",
    ("debate", "Debate"): "eval/maj/last",
    ("debate", "Δ"): "eval/maj/delta",
}


def test_several_benchmarks_have_one_table_with_their_average(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answer_by: Callable[[Callable[[TurnRequest], str]], None],
) -> None:
    num_replies = {"math500": 2, "aime24": 3}
    arguments = [recipe_of_benchmark(tmp_path, "gsm8k", "none.jsonl")]
    for name, replies in num_replies.items():
        path = file_of(tmp_path / f"{name}.jsonl", numbered(ROW[name], 6))
        changes = f"data.test_path={path},evaluation.direct_samples={replies}"
        arguments += ["--benchmark", f"{name},{changes}"]
    questions = questions_of_rows(tmp_path, "math500", numbered(ROW["math500"], 6))
    gold = {question.text: question.answer for question in questions}  # Of the other it knows none.
    answer_by(lambda request: f"\\boxed{{{gold.get(request.question.text, 0.5)}}}")
    folder = tmp_path / "evaluation"
    assert main([*arguments, "--check"]) == 0
    assert not folder.exists()
    assert main([*arguments, "--output", str(folder)]) == 0

    with (folder / "benchmarks.csv").open() as file:
        rows = {(row["mode"], row["figure"]): row for row in csv.DictReader(file)}
    at_equal_tokens = {
        figure: row for (mode, figure), row in rows.items() if mode == "at equal tokens"
    }
    assert list(at_equal_tokens) == [
        "direct/maj@k",
        "debate/majority",
        "debate/agent",
        "debate/all_rounds",
    ]
    debate = rows["debate", "Debate"]
    assert at_equal_tokens["debate/majority"]["average"] == debate["average"]
    assert float(debate["math500"]) == 1.0 > float(debate["average"])
    assert [key for key in rows if key[0] != "at equal tokens"] == [*TABLE]
    for key, figure in TABLE.items():
        means = []
        for name, replies in num_replies.items():
            results = json.loads((folder / name / "results.json").read_text())
            mean = results["policies"][0]["figures"][figure.format(replies=replies)]["mean"]
            assert float(rows[key][name]) == pytest.approx(mean)
            means.append(mean)
        assert float(rows[key]["average"]) == pytest.approx(sum(means) / 2)
    printed = capsys.readouterr().out
    assert "average" in printed
    assert "100.0" in printed
    # Each is an evaluation of its own, and another call goes on with them.
    assert main([*arguments, "--output", str(folder), "--resume"]) == 0
