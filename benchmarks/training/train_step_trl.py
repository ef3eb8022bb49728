"""TRL's side of `train_step.py`: the update of GRPOTrainer on given completions, and its step."""

import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.training.train_step_data import (
    GROUP,
    MAX_COMPLETION,
    PROMPTS,
    tiny_model,
    word_tokenizer,
)
from debate_train.batches.row_types import Batch

ROWS = PROMPTS * GROUP
SETTINGS = {
    "loss_type": "dapo", "beta": 0.0, "bf16": False, "gradient_checkpointing": False,
    "num_generations": GROUP, "max_completion_length": MAX_COMPLETION,
}  # fmt: skip


def trainer(micro_batch: int, prompts: Sequence[str], steps: int = 1, **more: Any) -> Any:
    """Return a GRPOTrainer of the tiny model."""
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=ROWS // micro_batch,
        max_steps=steps,
        learning_rate=1e-5,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        epsilon_high=0.28,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        **SETTINGS,  # type: ignore[arg-type]
    )
    return GRPOTrainer(
        model=tiny_model(),
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=word_tokenizer(),
        **more,
    )


def reward(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """Return the share of even tokens."""
    return [sum(token % 2 == 0 for token in ids) / max(1, len(ids)) for ids in completion_ids]


class Update:
    """GRPOTrainer's loss, backward passes and optimizer step on given completions.

    Nothing of the trainer's loop around them is counted.
    """

    def __init__(self, micro_batch: int) -> None:
        self.micro_batch = micro_batch
        self._trainer = trainer(micro_batch, ["w5"] * PROMPTS)
        self._trainer.create_optimizer()
        self._trainer.current_gradient_accumulation_steps = ROWS // micro_batch
        self.model = self._trainer.model.train()

    def gradients(self, batch: Batch) -> None:
        """Leave the gradient of the loss in the model's parameters."""
        inputs = _inputs(batch)
        for start in range(0, len(batch.rows), self.micro_batch):
            part = slice(start, start + self.micro_batch)
            own = {name: x[part] if x.dim() else x for name, x in inputs.items()}
            with self._trainer.compute_loss_context_manager():
                loss = self._trainer.compute_loss(self.model, own)
            loss.backward()

    def __call__(self, batch: Batch) -> None:
        """Make one optimizer step."""
        self.gradients(batch)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._trainer.optimizer.step()
        self._trainer.optimizer.zero_grad()


def _inputs(batch: Batch) -> dict[str, Tensor]:
    """Return rows as GRPOTrainer pads them: prompts on the left, completions on the right."""
    prompts = [torch.from_numpy(row.tokens[row.mask == 0]).long() for row in batch.rows]
    replies = [torch.from_numpy(row.tokens[row.sampled_positions]).long() for row in batch.rows]
    pad = torch.nn.utils.rnn.pad_sequence
    found = {}
    for name, rows, side in (("prompt", prompts, "left"), ("completion", replies, "right")):
        found[f"{name}_ids"] = pad(rows, batch_first=True, padding_side=side)
        ones = [torch.ones_like(row) for row in rows]
        found[f"{name}_mask"] = pad(ones, batch_first=True, padding_side=side)
    advantages = torch.tensor([float(row.advantages[-1]) for row in batch.rows])
    count = found["completion_mask"].sum()
    return found | {"advantages": advantages, "num_items_in_batch": count}


class _Clock(TrainerCallback):
    def __init__(self, between: Callable[[], None]) -> None:
        self.wall: list[float] = []
        self.busy: list[float] = []
        self._between = between

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.perf_counter(), time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.wall.append(time.perf_counter() - self._began[0])
        self.busy.append(time.process_time() - self._began[1])
        self._between()


def whole_steps(
    micro_batch: int, prompts: Sequence[str], steps: int, between: Callable[[], None]
) -> tuple[list[float], list[float]]:
    """Run GRPOTrainer with transformers' generation; return wall and processor time of each step.

    `between` is called after each step, outside its time.
    """
    clock = _Clock(between)
    trainer(micro_batch, prompts, steps, callbacks=[clock]).train()
    return clock.wall, clock.busy
