"""Self-play measured against its start: when, by which weights, and after a resume."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from debate_protocol.types import TRAINED, Question, TurnRequest
from debate_rollout.engine import Request, Sampling
from debate_train.commands.cli import main
from debate_train.models.loaded_model import export_weights
from debate_train.playing.phase_start import FILE, POLICY, PhaseStart
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from train.small_runs import RECIPE, end_of, steps

CHANGES = ["debate.num_agents=3", "debate.max_rounds=2", "evaluation.questions=3"]
ONCE = "checkpoint.every=1"


def recipe(**changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "rollout": {"max_tokens": 32},
    }
    return Recipe.model_validate(settings | changes)


def test_self_play_with_a_batch_engine_is_measured_against_its_start() -> None:
    made = recipe()
    mode = made.start_mode()
    assert mode is not None
    plays = mode.plays(made.debate)
    # Each question in one of three seats: 6 turns, and not 18.
    assert [one.share for one in plays] == [(0, 3), (1, 3), (2, 3)]
    assert sum(one.turns for one in plays) == 6
    line = "6 turns of debate against phase_start in one of 3 seats"
    assert any(line in text for text in check(made).lines)


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": {"modes": {"start": None}}},
        {"evaluation": {"modes": {"start": {"type": "opponents"}}}},
        {"evaluation": {"questions": 0}},
        {"rollout": {"engine": {"type": "vllm"}}},
        {"rollout": {"engine": {"type": "demonstrations"}}, "loss": {"type": "sft"}},
        {"debate": {"num_agents": 3, "max_rounds": 1}},
        {"debate": {"type": "direct"}},
        {"debate": {"roles": {"a": {"count": 2}, "b": {"policy": "start"}}, "max_rounds": 2}},
        {  # Others speak in training, and evaluations are of debates of equals.
            "debate": {"roles": {"a": {"count": 2}, "b": {"policy": "start"}}, "max_rounds": 2},
            "evaluation": {"debate": {"type": "simultaneous", "num_agents": 3, "max_rounds": 2}},
        },
    ],
)
def test_what_is_no_self_play_or_costs_more_is_not(changes: dict[str, Any]) -> None:
    assert recipe(**changes).start_mode() is None


def test_engine_answers_with_the_start_where_it_is_asked(tiny: Any, tmp_path: Path) -> None:
    made, loaded = recipe(), tiny(0)
    mode = made.start_mode()
    assert mode is not None
    engine = made.rollout.engine.open(loaded.model, loaded.tokenizer)
    start = PhaseStart.begun(mode, export_weights(loaded, 3), tmp_path, "p")

    def replies(of: Any, *policies: str) -> list[tuple[int, ...]]:
        ids = (1, 2, 3, 4)
        messages = ({"role": "user", "content": "q"},)
        turn_requests = [
            TurnRequest(Question("q", "q"), 0, 0, messages, policy=name, seed=5)
            for name in policies
        ]
        sampling = Sampling(max_tokens=8, temperature=0)
        return [
            reply.token_ids
            for reply in of.generate([Request(a, sampling, ids) for a in turn_requests])
        ]

    (old,) = replies(engine, TRAINED)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    current = export_weights(loaded, 7)
    engine.load(current)
    (new,) = replies(engine, TRAINED)
    assert old != new
    beside = start.beside(engine, current)
    assert replies(beside, TRAINED, POLICY, TRAINED) == [new, old, new]
    # Afterwards the engine serves the policy; what is kept on the disk is the start.
    assert replies(engine, TRAINED) == [new]
    again = PhaseStart.kept(mode, current, tmp_path, "p")
    assert again is not None
    assert replies(again.beside(engine, current), POLICY, TRAINED) == [old, new]
    assert PhaseStart.kept(mode, current, tmp_path, "another phase") is None
    other = export_weights(tiny(0, lora_rank=2), 1)
    assert PhaseStart.kept(mode, other, tmp_path, "p") is None
    (tmp_path / FILE).write_bytes(b"torn")
    assert PhaseStart.kept(mode, current, tmp_path, "p") is None


def test_run_measures_its_start_and_a_resumed_one_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    whole = [str(tmp_path / "small.yaml"), *CHANGES, ONCE, "--output", str(tmp_path / "run")]
    assert main([*whole, "steps=3", "checkpoint.keep_last=3"]) == 0
    shown = capsys.readouterr().out
    assert "among its start: accuracy" in shown
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    name = "eval/start/learned/format"
    assert name in results["after"] and name not in results["before"]
    rows, *weights = end_of(tmp_path / "run")
    assert [row["step"] for row in rows if name in row] == [2]
    kept = (tmp_path / "run" / FILE).read_bytes()
    # Without it everything else is the same.
    assert (
        main([*whole[:-1], str(tmp_path / "plain"), "evaluation.modes.start=null", "steps=3"]) == 0
    )
    plain, *same = end_of(tmp_path / "plain")
    against = ("eval/start/", "health/self_play_strength")
    assert plain == [{k: v for k, v in row.items() if not k.startswith(against)} for row in rows]
    assert same == weights
    found = json.loads((tmp_path / "plain" / "results.json").read_text())
    assert found["before"] == results["before"]
    assert found["after"] == {k: v for k, v in results["after"].items() if "eval/start/" not in k}
    assert not (tmp_path / "plain" / FILE).exists()
    # Stopped after its first step: what follows is measured against the same start.
    for step in steps(tmp_path)[1:]:
        folder = tmp_path / "run" / "checkpoints" / f"step-{step:06d}"
        folder.rename(tmp_path / f"gone-{step}")
    assert main([*whole, "steps=3", "checkpoint.keep_last=3", "--resume"]) == 0
    assert end_of(tmp_path / "run") == (rows, *weights)
    assert (tmp_path / "run" / FILE).read_bytes() == kept
    again = json.loads((tmp_path / "run" / "results.json").read_text())
    assert again["after"] == results["after"]
    # Where the start is lost a run goes on, and says what it does no more.
    last = tmp_path / "run" / "checkpoints" / "step-000003"
    last.rename(tmp_path / "gone-again")
    (tmp_path / "run" / FILE).unlink()
    capsys.readouterr()
    assert main([*whole, "steps=3", "checkpoint.keep_last=3", "--resume"]) == 0
    assert f"{FILE} is not as this phase has written it" in capsys.readouterr().err
    again = json.loads((tmp_path / "run" / "results.json").read_text())
    assert again["after"] == found["after"]


@pytest.mark.parametrize(("wanted", "step"), [("null", 2), ("a", 0), ("b", 1)])
def test_run_is_compared_with_the_start_of_the_phase_that_is_named(
    tmp_path: Path, wanted: str, step: int
) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    phases = "phases={a: {steps: 1}, b: {steps: 1}, c: {steps: 1}}"
    run = [str(tmp_path / "small.yaml"), phases, f"evaluation.before={wanted}"]
    assert main([*run, "--output", str(tmp_path / "run")]) == 0
    (found,) = (tmp_path / "run/evaluations").glob("before-*.json")
    assert json.loads(found.read_text())["step"] == step


def test_phase_to_compare_with_has_to_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    assert main([str(tmp_path / "small.yaml"), "phases={a: {}}", "evaluation.before=b"]) == 2
    assert "evaluation.before: found 'b', expected one of a" in capsys.readouterr().err
