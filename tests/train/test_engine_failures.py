"""An engine that dies in the middle of a run costs the step under way and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from debate_rollout.engines.transformers_sampler import TransformersSampler
from debate_rollout.errors import EndpointError, RolloutError
from debate_train.cli import main

RECIPE = """\
name: small
steps: 4
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 1, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 2, max_rounds: 1, style: compact, personas: none}
rollout: {max_tokens: 4}
reward: {type: v2}
advantage: {center: none}
loss: {type: ppo_clip}
trainer: {type: torch, learning_rate: 1.0e-2}
evaluation: {questions: 0}
recording: {debates: 0}
tracking: {wandb: false}
"""


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("generate", RolloutError("vLLM has died: EngineDeadError")),
        ("generate", EndpointError("http://host: cannot be reached")),
        ("load", EndpointError("the vLLM server has ended")),
        ("load", TimeoutError("refreshing weights")),
    ],
)
def test_run_saves_its_last_complete_step_when_the_engine_dies(
    depth: int, call: str, error: Exception, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "small.yaml").write_text(RECIPE)
    load, called, loads = TransformersSampler.load, getattr(TransformersSampler, call), [0]

    def counts(sampler: Any, weights: Any) -> None:
        loads[0] += 1
        load(sampler, weights)

    def dies(sampler: Any, *arguments: Any) -> Any:
        if loads[0] >= 3:  # The weights of the phase's start, and those of two steps.
            raise error
        return (counts if call == "load" else called)(sampler, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TransformersSampler, "load", counts)
        patch.setattr(TransformersSampler, call, dies)
        run = [str(tmp_path / "small.yaml"), f"--output={tmp_path / 'run'}"]
        assert main([*run, f"pipeline.depth={depth}"]) == 1
    assert str(error) in capsys.readouterr().err
    (saved,) = (tmp_path / "run/checkpoints").glob("step-*")
    assert saved.name in ("step-000002", "step-000003")
    assert main([*run, f"pipeline.depth={depth}", "--resume"]) == 0
    assert (tmp_path / "run/checkpoints/step-000004").is_dir()
