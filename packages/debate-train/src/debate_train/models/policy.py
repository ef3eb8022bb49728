"""The trained policy: what is trained of a model, and how its weights leave the trainer."""

from debate_rollout.engine import Weights
from debate_train.adapters import ONLY, freeze_others
from debate_train.errors import ModelError
from debate_train.models.loaded_model import LoadedModel, Lora


def with_adapter(loaded: LoadedModel, seed: int) -> LoadedModel:
    """Return the model ready to train: with its LoRA adapters where some are asked for.

    Raises:
        ModelError: An adapter has the name of a part of the model, which peft would confuse.
    """
    if loaded.lora is None or hasattr(loaded.model, "peft_config"):
        return loaded
    import dataclasses

    import torch
    from peft import get_peft_model

    first, *others = loaded.lora.adapters or (ONLY,)
    parts = {part for name, _ in loaded.model.named_modules() for part in name.split(".")}
    for name in (first, *others):
        if name in parts:
            raise ModelError(
                f"model.lora.adapters: found {name!r}, which names a part of the model, too; "
                "expected another name"
            )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = get_peft_model(loaded.model, lora_config(loaded.lora), adapter_name=first)
        for name in others:
            model.add_adapter(name, lora_config(loaded.lora))
    made = dataclasses.replace(loaded, model=model)
    freeze_others(made)
    return made


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
    """Return all weights, or only those of adapters when these are trained."""
    if loaded.lora is None:
        return Weights(version, loaded.model.state_dict())
    from peft import get_peft_model_state_dict

    config, names = lora_config(loaded.lora).to_dict(), loaded.lora.adapters
    if not names:
        return Weights(version, get_peft_model_state_dict(loaded.model), "lora", config)
    tensors = {
        f"{name}/{key}": tensor
        for name in names
        for key, tensor in get_peft_model_state_dict(loaded.model, adapter_name=name).items()
    }
    return Weights(version, tensors, "lora", config, names)
