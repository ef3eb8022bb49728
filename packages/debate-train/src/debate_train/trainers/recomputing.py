"""Layers computed again for their gradient (Chen et al. 2016), through transformers."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def gradient_checkpointing(model: "PreTrainedModel", *, is_sharded: bool = False) -> None:
    """Keep only what enters each layer; what it needs for its gradient is computed again.

    Args:
        model: of transformers, or peft around one.
        is_sharded: whether ZeRO-3 holds the parameters. The newer way of torch then compares a
            whole parameter with the shard that it saw first, and fails.
    """
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": is_sharded})
    if is_sharded:  # The older way gives no gradient where nothing that enters has one (LoRA).
        model.enable_input_require_grads()


def keep_layers(model: "PreTrainedModel") -> None:
    """Undo `gradient_checkpointing`."""
    model.gradient_checkpointing_disable()
