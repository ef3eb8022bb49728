"""What is checked of policies that speak beside the trained one: windows, memory, devices, vLLM."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_rollout import engine as engines
from debate_train.commands.cli import main
from debate_train.errors import RecipeError
from debate_train.recipe.check import check
from debate_train.recipe.refusals import Launch, refuse, refuse_absent_devices
from train.test_plan import QWEN3_8B
from train.test_policies import LEARNER_AGAINST_START, OTHER, TWO_MODELS, recipe


def test_policies_share_no_process_with_a_second_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "vllm" else name)
    rival = {"type": "model", "model": OTHER}
    shared: dict[str, Any] = {"engine": {"type": "vllm"}, "policies": {"rival": rival}}
    said = check(recipe(TWO_MODELS, **shared))
    (error,) = said.errors
    assert error == (
        "rollout.policies.rival.engine: found a vllm inside this process, which can hold one, and "
        "rollout.engine is there; expected type: vllm_server"
    )
    (error,) = check(recipe(LEARNER_AGAINST_START, engine={"type": "vllm"})).errors
    assert error.startswith("rollout.engine (for policy start): found a vllm inside this process")
    own = {**rival, "engine": {"type": "vllm_server"}}
    said = check(recipe(TWO_MODELS, engine={"type": "vllm"}, policies={"rival": own}))
    assert said.errors == []
    # It may run elsewhere; here each is missing.
    missing = [text.partition(":")[0] for text in said.warnings if "needs vllm" in text]
    assert missing == ["rollout.engine.type", "rollout.policies.rival.engine.type"]
    with pytest.raises(
        RecipeError, match=r"rollout\.policies\.rival\.engine\.type: found vllm_server"
    ):
        refuse(recipe(TWO_MODELS, policies={"rival": own}), Launch(is_here=True))


def test_check_compares_each_policy_with_its_own_window() -> None:
    narrow = {"type": "model", "model": {**OTHER, "context_window": 40}}
    said = check(recipe(TWO_MODELS, policies={"rival": narrow}))
    (line,) = (text for text in said.lines if "context" in text)
    assert "  context: at most" in line and "window 512 (model.context_window)" in line
    (error,) = said.errors
    assert error.startswith("context of policy rival: at most") and "of agent 1 in round 2" in error
    assert "above the window of 40 (rollout.policies.rival.model.context_window)" in error
    script = {"type": "scripted", "replies": ["x"], "context_window": 30}
    said = check(recipe(TWO_MODELS, policies={"rival": {"type": "engine", "engine": script}}))
    (error,) = said.errors
    assert "above the window of 30 (rollout.policies.rival.engine.context_window)" in error
    # A frozen role that is shown more than the trained one is not held against the trained one.
    wide = {"type": "model", "model": {**OTHER, "context_window": 100_000}}
    roles = {"ours": {"sees": {}}, "theirs": {"policy": "rival", "count": 3}}
    lines = check(recipe(roles, policies={"rival": wide})).lines
    ours, theirs = (
        int(text.partition("(prompt ")[2].split()[0].replace(",", ""))
        for text in lines
        if "context" in text
    )
    assert 0 < ours < theirs


def test_devices_of_policies_are_looked_for() -> None:
    there = {"type": "model", "model": OTHER, "engine": {"type": "transformers"}}
    absent = {**there, "engine": {"type": "transformers", "device": "cuda:77"}}
    refuse_absent_devices(recipe(TWO_MODELS, policies={"rival": there}))
    with pytest.raises(RecipeError, match=r"^rollout.policies.rival.engine.device: found"):
        refuse_absent_devices(recipe(TWO_MODELS, policies={"rival": absent}))


def test_plan_counts_the_models_of_all_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    trained = f"model.name={tmp_path}"
    roles = "debate.roles={a: {count: 3}, judge: {policy: start}, rival: {policy: rival}}"

    def free(rival: str, *more: str) -> str:
        named = f"name: {tmp_path}, dtype: bfloat16"
        model = f"{{type: model, model: {{{named}}}, engine: {{{rival}}}}}"
        frozen = [
            "rollout.engine={type: transformers}",
            roles,
            f"rollout.policies={{rival: {model}}}",
        ]
        assert main(["selfplay_v2", trained, "--plan", *frozen, *more]) == 0
        return capsys.readouterr().out

    # Copies of 8.19 B weights of 2 bytes for the rival, and with adapters of 8.28 B for the trained
    # policy and its start.
    printed = free("type: transformers")
    assert "policy start: 8.28 B parameters, 16.6 GB of weights" in printed
    assert "policy rival: 8.19 B parameters, 16.4 GB of weights" in printed
    assert "30.5 of 80 GB are free for training" in printed  # 80 - 2 * 16.56 - 16.38
    printed = free("type: transformers, device: cpu")
    assert "takes 0.00 GB" in printed and "46.9 of 80 GB are free for training" in printed
    # A server has GPUs of its own, which a rank cannot have.
    printed = free("type: vllm_server, devices: '1'", "--gpus", "2")
    assert "1 trainer rank, 1 GPUs for engines alone" in printed
    assert "policy rival: " in printed and "takes 36.00 GB of its own GPUs" in printed
