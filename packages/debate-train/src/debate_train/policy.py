"""The trained policy: what is trained of a model, and how its weights leave the trainer."""

from debate_rollout.engine import Weights
from debate_train.loaded_model import LoadedModel, Lora


def with_adapter(loaded: LoadedModel, seed: int) -> LoadedModel:
    """Return the model ready to train: with its LoRA adapter where one is asked for."""
    if loaded.lora is None:
        return loaded
    import dataclasses

    import torch
    from peft import get_peft_model

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = get_peft_model(loaded.model, lora_config(loaded.lora))
    return dataclasses.replace(loaded, model=model)


def lora_config(lora: Lora):  # type: ignore[no-untyped-def]
    """Return peft's configuration of an adapter on every linear layer."""
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def export_weights(loaded: LoadedModel, version: int) -> Weights:
    """Return all weights, or only the adapter's when one is trained."""
    if loaded.lora is None:
        return Weights(version, loaded.model.state_dict())
    from peft import get_peft_model_state_dict

    tensors = get_peft_model_state_dict(loaded.model)
    return Weights(version, tensors, "lora", lora_config(loaded.lora).to_dict())
