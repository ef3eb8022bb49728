"""debate-eval on every benchmark: an engine that knows the answers, and one that does not."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from debate_protocol.types import TurnRequest
from debate_rollout.engines import ScriptedEngine
from debate_train.commands.evaluate import main
from debate_train.data import Benchmark, ReasoningGym
from debate_train.data.benchmarks import BENCHMARKS
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

    def script(request: TurnRequest) -> str:
        known = gold[request.question.text]
        wrong = known is None or request.question.text in told
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


def test_several_benchmarks_have_one_table_with_their_average(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, asked = tmp_path / "recipe.yaml", []
    for name, replies in (("math500", 2), ("aime24", 3)):
        path = file_of(tmp_path / f"{name}.jsonl", numbered(ROW[name], 6))
        asked += [
            "--benchmark",
            f"{name},data.test_path={path},evaluation.direct_samples={replies}",
        ]
    recipe.write_text(RECIPE.format(name="gsm8k", path="none.jsonl", contract="boxed"))
    questions = Benchmark(name="math500", test_path=str(tmp_path / "math500.jsonl")).open()
    gold = {
        one.text: one.answer for one in questions.split("test", 6)
    }  # Of the other it knows none.
    opened = ScriptedEngine.open

    def script(request: TurnRequest) -> str:
        return f"\\boxed{{{gold.get(request.question.text, 0.5)}}}"

    def open_with(self: ScriptedEngine, *given: Any, **more: Any) -> Any:
        return opened(self, *given, **{**more, "script": script})

    monkeypatch.setattr(ScriptedEngine, "open", open_with)
    folder = tmp_path / "found"
    assert main([str(recipe), *asked, "--check"]) == 0 and not folder.exists()
    assert main([str(recipe), *asked, "--output", str(folder)]) == 0
    with (folder / "benchmarks.csv").open() as file:
        rows = {(row["mode"], row["figure"]): row for row in csv.DictReader(file)}
    equal = {figure: row for (mode, figure), row in rows.items() if mode == "at equal tokens"}
    assert list(equal) == [
        "direct/maj@k",
        *(f"debate/{n}" for n in ("majority", "agent", "all_rounds")),
    ]
    assert equal["debate/majority"]["average"] == rows["debate", "Debate"]["average"]
    rows = {key: row for key, row in rows.items() if key[0] != "at equal tokens"}
    assert [figure for _, figure in rows] == ["mean@K", "maj@K", "Maj", "Debate", "Δ"]
    for (mode, figure), row in rows.items():
        ends = [
            json.loads((folder / name / "results.json").read_text())["policies"][0]["figures"]
            for name in ("math500", "aime24")
        ]
        names = {
            "mean@K": ("accuracy",) * 2,
            "maj@K": ("maj@2", "maj@3"),
            "Maj": ("maj/first",) * 2,
        }
        names |= {"Debate": ("maj/last",) * 2, "Δ": ("maj/delta",) * 2}
        where = "eval/direct/" if mode == "direct" else "eval/"
        means = [own[where + one]["mean"] for own, one in zip(ends, names[figure], strict=True)]
        assert [float(row["math500"]), float(row["aime24"])] == pytest.approx(means)
        assert float(row["average"]) == pytest.approx(sum(means) / 2)
    debate = rows["debate", "Debate"]
    assert float(debate["math500"]) == 1.0 > float(debate["average"])
    printed = capsys.readouterr().out
    assert "average" in printed and "100.0" in printed
    # Each is an evaluation of its own, and another call goes on with them.
    assert main([str(recipe), *asked, "--output", str(folder), "--resume"]) == 0


def test_a_benchmark_takes_the_place_of_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(name="gsm8k", path="none.jsonl", contract="boxed"))
    # The file of the recipe's own data is not read as another benchmark's.
    assert main([str(recipe), "--benchmark", "math500", "--check"]) == 0
    assert main([str(recipe), "--benchmark", "math5000"]) == 2
    assert "math500" in capsys.readouterr().err


def test_tasks_of_reasoning_gym_stand_beside_benchmarks(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--benchmark", "gym.leg_counting,data.tasks.leg_counting.max_animals=3"]
    assert main(["smollm2_selfplay", *asked, "--print"]) == 0
    data = TypeAdapter(ReasoningGym).validate_python(
        yaml.safe_load(capsys.readouterr().out)["data"]
    )
    asked_of = {question.meta["subject"] for question in data.open().split("test", 20)}
    assert asked_of == {"leg_counting"}  # And none of the recipe's own tasks.
    assert (data.chosen["leg_counting"].model_extra or {}) == {"max_animals": 3}
    assert main(["smollm2_selfplay", "--benchmark", "gym.leg_countin", "--check"]) == 2
    assert "leg_counting" in capsys.readouterr().err
