"""A recipe for a large model on real questions, with a tiny random model on a CPU."""

import runpy
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from arithmetic import UNIT, in_float64
from debate_train.commands.cli import main
from json_lines import read_rows

ROOT = Path(__file__).resolve().parents[2]
AGENTS = 5
ROUNDS = 3
QUESTIONS = 2
STEPS = 2
MAX_TOKENS = 16


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    runpy.run_path(str(ROOT / "examples/tiny_model.py"))["main"](str(directory))
    return directory


def arguments(model: Path, output: Path) -> list[str]:
    return [
        str(ROOT / "recipes/selfplay_v2.yaml"),
        f"model.name={model}",
        "rollout.engine.type=transformers",
        f"rollout.max_tokens={MAX_TOKENS}",
        "evaluation.questions=2",
        "evaluation.direct_samples=1",
        "trainer.type=torch",
        "tracking.wandb=false",
        f"data.path={ROOT / 'recipes/data/gsm8k_50.jsonl'}",
        f"data.batch_size={QUESTIONS}",
        f"steps={STEPS}",
        "--output",
        str(output),
    ]


@pytest.fixture(scope="module")
def run(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run's directory, and what the command printed."""
    output = tmp_path_factory.mktemp("run") / "real"
    with redirect_stdout(StringIO()) as printed:
        assert main(arguments(tiny, output)) == 0
    return output, printed.getvalue()


def rows(output: Path) -> list[dict[str, Any]]:
    return read_rows(output / "metrics.jsonl")


def test_metrics_are_those_of_turns_that_all_failed(run: tuple[Path, str]) -> None:
    steps = rows(run[0])
    assert [(row["phase"], row["step"]) for row in steps] == [("train", 1), ("train", 2)]
    for row in steps:
        assert row["env/all/total_episodes"] == QUESTIONS
        assert row["env/all/total_turns"] == QUESTIONS * AGENTS * ROUNDS
        assert row["env/all/turns_per_episode"] == AGENTS * ROUNDS
        assert 1 <= row["env/all/ac_tokens_per_turn"] <= MAX_TOKENS
        # Three turns share a row: 30 turns are 10 rows, 1 - 10/30 merged.
        assert row["rollout/merged_turn_fraction"] == pytest.approx(2 / 3)
        assert row["v2/failed_turns"] == AGENTS * ROUNDS
        assert row["train/format"] == row["train/format_all"] == 0
        assert row["train/accuracy/round_0"] == row["train/pass@k"] == 0
        assert row["reward/gen/mean"] == row["reward/total"] == -1
        assert row["v2/total_votes"] == 0
        # No turn was expected to compare, as nobody had a valid turn to compare.
        assert row["v2/missing_comparisons"] == 0
        assert "reward/judge/mean" not in row
        assert "judge/accuracy" not in row
        # The first sample is drawn and scored by the same weights, bfloat16 apart.
        assert 0.9 < row["optim/ratio_min"] <= 1 <= row["optim/ratio_max"] < 1.1
        # Equal values are their own baseline.
        assert row["loss"] == row["optim/grad_norm"] == 0


def test_checkpoint_is_an_adapter_that_peft_reads(run: tuple[Path, str], tiny: Path) -> None:
    from peft import PeftModel

    checkpoint = run[0] / "checkpoints/step-000002"
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny), checkpoint)
    assert model.peft_config["default"].r == 32
    assert len(AutoTokenizer.from_pretrained(checkpoint)) == 1024
    adapter = load_file(checkpoint / "adapter_model.safetensors")
    second = [tensor for name, tensor in adapter.items() if "lora_B" in name]
    assert second
    assert all((tensor == 0).all() for tensor in second)  # nothing was to be learnt


def test_uncentred_penalty_reaches_every_sampled_token_and_all_weights(
    tiny: Path, tmp_path: Path
) -> None:
    output = tmp_path / "full"
    changes = ["model.lora=null", "model.dtype=float32", "advantage.baseline=none", "steps=1"]
    smaller = ["debate.num_agents=2", "debate.max_rounds=2", "evaluation.questions=0"]
    with in_float64():
        assert main([*arguments(tiny, output), *changes, *smaller]) == 0
    sample = load_file(output / "tokens/step-1.safetensors")
    assert torch.equal(sample["advantages_BT"], -sample["mask_BT"])
    (row,) = rows(output)
    # Loss: the sum over tokens of -ratio·A with ratio 1 and A = -1, that is their number.
    # Rows keep log-probabilities in float32; of 1,024 tokens one is below 16 in size, so it is
    # rounded by 8 units at most, and so is its ratio.
    assert row["loss"] == pytest.approx(float(sample["mask_BT"].sum()), rel=8 * UNIT)
    assert row["optim/grad_norm"] > 0
    before = AutoModelForCausalLM.from_pretrained(tiny).state_dict()
    after = AutoModelForCausalLM.from_pretrained(output / "checkpoints/step-000001").state_dict()
    assert before.keys() == after.keys()
    assert not torch.equal(before["lm_head.weight"], after["lm_head.weight"])
