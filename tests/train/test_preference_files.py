"""Files of examples as other trainers read them: one step of TRL's preference trainer."""

import json
from pathlib import Path

import pytest
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from debate_train.offline import Completion, Example

PROMPT = ({"role": "user", "content": "make 4 Q 6 5 1 6"},)


def examples(pairs: bool) -> list[Example]:
    return [
        Example(
            PROMPT,  # type: ignore[arg-type]
            (5, 6, 7),
            Completion("+ - -", (8, 9)),
            Completion("- - +", (9, 9)) if pairs else None,
            meta={"question": f"q{n}", "chosen_value": 0.5, "chosen_standard_error": None},
        )
        for n in range(4)
    ]


def written(folder: Path, pairs: bool) -> str:
    path = folder / "examples.jsonl"
    rows = [{**example.to_json(), "made_from": "0"} for example in examples(pairs)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("pairs", [True, False])
def test_trl_trains_a_step_on_the_file(base: str, tmp_path: Path, pairs: bool) -> None:
    data = load_dataset("json", data_files=written(tmp_path, pairs), split="train")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {
        "output_dir": str(tmp_path / "out"),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "report_to": [],
        "use_cpu": True,
        "learning_rate": 0.1,
        "save_strategy": "no",
        "bf16": False,
    }
    tokenizer = AutoTokenizer.from_pretrained(base)
    if pairs:
        trainer = DPOTrainer(
            model, args=DPOConfig(**settings), train_dataset=data, processing_class=tokenizer
        )
    else:
        trainer = SFTTrainer(
            model, args=SFTConfig(**settings), train_dataset=data, processing_class=tokenizer
        )
    found = trainer.train()
    assert found.training_loss > 0
    after = trainer.model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
