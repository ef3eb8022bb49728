"""Self-play where no question has an answer: a recipe for a large model, run with a tiny one."""

import json
import runpy
from pathlib import Path

import pytest

from debate_train.commands.cli import main

ROOT = Path(__file__).resolve().parents[2]
PROMPTS = [f"Write {n} words about a harbour." for n in range(40)]


def test_open_prompts_train_by_votes_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompts, output = tmp_path / "tiny", tmp_path / "prompts.jsonl", tmp_path / "run"
    runpy.run_path(str(ROOT / "examples/tiny_model.py"))["main"](str(model))
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    arguments = [
        str(ROOT / "recipes/selfplay_open.yaml"),
        f"model.name={model}",
        "rollout.engine.type=transformers",
        "rollout.max_tokens=8",
        "trainer.type=torch",
        f"data={{type: questions, path: {prompts}, batch_size: 2}}",
        "steps=1",
        "evaluation={questions: 1, every: 1, direct_samples: 1}",
        "tracking.wandb=false",
    ]
    assert main([*arguments, "--check"]) == 0
    said = capsys.readouterr().out
    assert "answers are compared as: no answer 40" in said
    assert main([*arguments, "--check-data"]) == 0
    assert main([*arguments, "--output", str(output)]) == 0
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    step, look = rows[0], rows[1]
    # Random weights write no section: every turn failed and was worth -1.
    assert step["reward/total"] == -1
    assert look["eval/format"] == 0
    assert not [name for row in rows for name in row if "accuracy" in name]
    results = json.loads((output / "results.json").read_text())
    assert {row["measure"] for row in results["table"]} == {"valid format"}
