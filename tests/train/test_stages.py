"""Stages of a curriculum: what one is measured on no other trains on, and one split for all."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from debate_train.commands.cli import main
from debate_train.data import Questions, Split
from debate_train.data.mixture import Mixture, PartOfMixture
from train.small_runs import RECIPE

GSM8K = Path(__file__).parents[2] / "recipes/data/gsm8k_50.jsonl"

ASKED = [f"How much is {n} and {n + 1}?" for n in range(40)]
STAGES = """\
steps: 1
model:
  {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: questions, path: FOLDER/hard.jsonl, batch_size: 2}
reward: {type: verifiable}
evaluation: {questions: 2, direct_samples: 1, every: 1, target: true}
phases:
  easy: {data: {path: FOLDER/easy.jsonl}}
  hard: {}
"""
REPLACED = ("steps", "model", "data", "reward", "evaluation")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Two files that share 20 questions, written otherwise, so that splits by text differ."""
    for name, asked in (("easy", [q.upper() for q in ASKED[:30]]), ("hard", ASKED[10:])):
        rows = [json.dumps({"question": q, "answer": "1"}) for q in asked]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    kept = [line for line in RECIPE.splitlines() if not line.startswith(REPLACED)]
    path = tmp_path / "r.yaml"
    path.write_text("\n".join(kept) + "\n" + STAGES.replace("FOLDER", str(tmp_path)))
    return path


def texts(path: Path, *names: Split) -> set[str]:
    source = Questions(path=str(path)).open()
    return {q.text.casefold() for name in names for q in source.split(name, 99)}


def test_stage_trains_on_nothing_that_another_is_measured_on(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    easy, hard = tmp_path / "easy.jsonl", tmp_path / "hard.jsonl"
    counts = {
        one.stem: len(texts(one, "train") & texts(other, "dev", "test"))
        for one, other in ((easy, hard), (hard, easy))
    }
    assert all(counts.values())  # Or nothing is shown here.
    lines = [
        f"data: {count} training questions of {name} are held out in another stage, and are not "
        "trained on"
        for name, count in counts.items()
    ]
    assert main([str(recipe), "--check"]) == 0
    checked = capsys.readouterr().out
    assert all(line in checked for line in lines)
    assert main([str(recipe), "--output", str(tmp_path / "run")]) == 0
    said = " ".join("".join(capsys.readouterr()).split())
    assert all(f"{name}: {line}" in said for name, line in zip(counts, lines, strict=True))
    # One split for all stages: in the first one another than its own, in the last one the same.
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    looks = [row for row in rows if "target/format" in row]
    assert [row["phase"] for row in looks] == ["easy", "hard"]
    own = {name: value for name, value in looks[1].items() if name.startswith("eval/")}
    assert own == {
        name.replace("target/", "eval/"): value
        for name, value in looks[1].items()
        if name.startswith("target/")
    }


def test_questions_that_are_left_out_come_in_no_step() -> None:
    source = Mixture(sources={"one": PartOfMixture(data=Questions(path=str(GSM8K)))}).open()
    held = source.split("train", 5)
    bare = [replace(question, text=f" {question.text.upper()}?") for question in held]
    assert source.leave_out(lambda: bare) == 5
    assert source.leave_out(lambda: bare) == 0
    trained = {q.text for step in range(20) for q in source.batch(step)}
    assert trained and not trained & {q.text for q in held}
