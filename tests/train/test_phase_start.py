"""Self-play measured against its start: when, by which weights, and after a resume."""

import json
import shutil

import pytest
import torch

from debate_protocol.types import TRAINED, Question, TurnRequest
from debate_rollout.engine import Request, Sampling
from debate_train.commands.cli import main
from debate_train.models.loaded_model import export_weights
from debate_train.playing.phase_start import FILE, POLICY, PhaseStart
from debate_train.recipe import Recipe
from train.small_runs import RECIPE, end_of

TWO_ROLES = {"roles": {"a": {"count": 2}, "b": {"policy": "start"}}, "max_rounds": 2}


def make_recipe(**changes):
    settings = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "rollout": {"max_tokens": 32},
    }
    return Recipe.model_validate(settings | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation": {"modes": {"start": None}}},
        {"rollout": {"engine": {"type": "demonstrations"}}, "loss": {"type": "sft"}},
        {  # Others speak in training, and evaluations are of debates of equals.
            "debate": TWO_ROLES,
            "evaluation": {"debate": {"type": "simultaneous", "num_agents": 3, "max_rounds": 2}},
        },
    ],
)
def test_other_runs_and_those_that_would_cost_more_are_not(changes):
    assert make_recipe(**changes).start_mode() is None


def test_engine_answers_with_the_start_where_it_is_asked(tiny, tmp_path):
    recipe = make_recipe()
    loaded = tiny(0)
    mode = recipe.start_mode()
    engine = recipe.rollout.engine.open(loaded.model, loaded.tokenizer)
    start = PhaseStart.begun(mode, export_weights(loaded, 3), tmp_path, "p")

    def ask(asked_engine, *policies):
        requests = []
        for policy in policies:
            messages = ({"role": "user", "content": "q"},)
            turn = TurnRequest(Question("q", "q"), 0, 0, messages, policy=policy, seed=5)
            requests.append(Request(turn, Sampling(max_tokens=8, temperature=0), (1, 2, 3, 4)))
        return [reply.token_ids for reply in asked_engine.generate(requests)]

    (old,) = ask(engine, TRAINED)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    current = export_weights(loaded, 7)
    engine.load(current)
    (new,) = ask(engine, TRAINED)
    assert old != new
    assert ask(start.beside(engine, current), TRAINED, POLICY, TRAINED) == [new, old, new]
    # Afterwards the engine serves the policy; the disk has the start.
    assert ask(engine, TRAINED) == [new]
    again = PhaseStart.kept(mode, current, tmp_path, "p")
    assert ask(again.beside(engine, current), POLICY, TRAINED) == [old, new]
    # Of another phase, of another policy, or damaged, it is none.
    adapter = export_weights(tiny(0, lora_rank=2), 1)
    assert PhaseStart.kept(mode, current, tmp_path, "another phase") is None
    assert PhaseStart.kept(mode, adapter, tmp_path, "p") is None
    (tmp_path / FILE).write_bytes(b"torn")
    assert PhaseStart.kept(mode, current, tmp_path, "p") is None


# Whole runs


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return str(path)


def read_results(run):
    return json.loads((run / "results.json").read_text())


def test_run_measures_its_start_and_a_resumed_one_the_same(small, tmp_path, capsys):
    run = tmp_path / "run"
    plain = tmp_path / "plain"
    settings = ["debate.num_agents=3", "debate.max_rounds=2", "evaluation.questions=3", "steps=3"]
    command = [small, *settings, "checkpoint={every: 1, keep_last: 3}"]
    assert main([*command, "--output", str(run)]) == 0
    results = read_results(run)
    rows, *weights = end_of(run)
    name = "eval/start/learned/format"
    assert name in results["after"] and name not in results["before"]
    assert [row["step"] for row in rows if name in row] == [2]
    # Without it everything else is the same.
    without = "evaluation.modes.start=null"
    assert main([*command, without, "--output", str(plain)]) == 0
    plain_rows, *plain_weights = end_of(plain)
    for row in rows:
        for key in [k for k in row if k.startswith(("eval/start/", "health/self_play_strength"))]:
            del row[key]
    assert plain_rows == rows
    assert plain_weights == weights
    plain_results = read_results(plain)
    assert plain_results["before"] == results["before"]
    assert plain_results["after"] == {
        key: value for key, value in results["after"].items() if "eval/start/" not in key
    }
    assert not (plain / FILE).exists()
    # Stopped after its first step: what follows is measured against the same start.
    start = (run / FILE).read_bytes()
    for step in (2, 3):
        shutil.rmtree(run / f"checkpoints/step-00000{step}")
    assert main([*command, "--output", str(run), "--resume"]) == 0
    assert end_of(run)[1:] == tuple(weights)
    assert (run / FILE).read_bytes() == start
    assert read_results(run)["after"] == results["after"]
    # Where the start is lost a run goes on, and says what it does no more.
    shutil.rmtree(run / "checkpoints/step-000003")
    (run / FILE).unlink()
    assert main([*command, "--output", str(run), "--resume"]) == 0
    assert f"{FILE} is not as this phase has written it" in capsys.readouterr().err
    assert read_results(run)["after"] == plain_results["after"]
