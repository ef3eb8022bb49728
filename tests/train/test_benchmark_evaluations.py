"""debate-eval on every benchmark: an engine that knows the answers, and one that does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.types import Ask
from debate_rollout.engines import ScriptedEngine
from debate_train.data import Benchmark
from debate_train.data.benchmarks import BENCHMARKS
from debate_train.evaluating.command import main
from train.test_benchmarks import ROW, file_of, numbered

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


def evaluated(folder: Path, name: str, *more: str) -> dict[str, float]:
    """Return the figures of an evaluation of six questions by their names."""
    contract = BENCHMARKS[name].contract
    path = file_of(folder / "rows.jsonl", numbered(ROW[name], 6))
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE.format(name=name, path=path, contract=contract))
    assert main([str(recipe), *more, "--output", str(folder / "found")]) == 0
    results = json.loads((folder / "found" / "results.json").read_text())
    (policy,) = results["policies"]
    return {figure: measure["mean"] for figure, measure in policy["figures"].items()}


def said(answer: str, contract: str) -> str:
    if contract == "answer_line":
        return f"Answer: {answer}"
    text = f"\\boxed{{{answer}}}"
    if contract == "boxed":
        return text
    rest = "<evaluation>N/A</evaluation><comparison>N/A</comparison>"
    return f"<solution>{text}</solution>{rest}"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_answers_of_every_benchmark_are_read_and_judged(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = BENCHMARKS[name]
    path = file_of(tmp_path / "gold.jsonl", numbered(ROW[name], 6))
    questions = Benchmark(name=name, test_path=path).open().split("test", 6)
    gold = {question.text: question.answer for question in questions}
    assert len(gold) == 6
    told = [next(iter(gold))]  # One question that the engine does not know.

    def script(ask: Ask) -> str:
        known = gold[ask.question.text]
        wrong = known is None or ask.question.text in told
        return said("nothing at all" if wrong else str(known), published.contract)

    opened = ScriptedEngine.open

    def open_with(self: ScriptedEngine, *given: Any, **more: Any) -> Any:
        return opened(self, *given, **{**more, "script": script})

    monkeypatch.setattr(ScriptedEngine, "open", open_with)
    found = evaluated(tmp_path, name)
    if published.shares is None and not any(gold.values()):
        assert "eval/direct/accuracy" not in found
        assert found["eval/format"] == 1
        return
    for figure in ("direct/accuracy", "majority/accuracy", "last_round/accuracy"):
        assert found[f"eval/{figure}"] == pytest.approx(5 / 6), figure
