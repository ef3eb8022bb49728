"""Putting a trainer's weights into a served Hugging Face model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from debate_protocol.plugins import did_you_mean
from debate_rollout.engine import Weights, WeightsError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


ONLY = "default"
"""What peft calls an adapter that has no name of its own."""
HEAD = "lm_head.weight"
WITHOUT_HEAD = frozenset(("gemma2", "gemma3n_text"))
"""Types of models of which vLLM knows no head, and ends when it is handed one."""


def load_full(model: "PreTrainedModel", weights: Weights) -> "PreTrainedModel":
    """Copy every parameter in place; tied parameters may be given under any of their names.

    Returns:
        The model, without the adapter that it may have carried.

    Raises:
        WeightsError: When a name or a shape does not fit, or a parameter is missing; the model is
            as it was then.
    """
    own = base_tensors(model)
    given = weights.tensors
    check_fits(own, given)
    check_complete(own, weights)
    with torch.no_grad():
        for name, tensor in given.items():
            own[name].copy_(tensor)
    return model.unload() if hasattr(model, "peft_config") else model


def load_lora(model: "PreTrainedModel", weights: Weights) -> "PreTrainedModel":
    """Return the model with the adapters on its base; wraps it on the first call.

    The only adapter of weights without names is the one that the model has, or `default`.

    Raises:
        WeightsError: When the adapter's configuration is absent or its tensors do not fit; the
            model is as it was then.
    """
    from peft import get_peft_model_state_dict
    from peft import set_peft_model_state_dict as put

    parts = {name or ONLY: part for name, part in weights.by_adapter().items()}
    before = set(getattr(model, "peft_config", ()))
    added = [name for name in parts if name not in before]
    for name in added:
        model = _with_adapter(model, name, weights)
    try:
        for name, part in parts.items():
            own = get_peft_model_state_dict(model, adapter_name=name)
            check_fits(own, part.tensors)
            check_complete(own, part)
    except WeightsError:
        if not before:
            model.unload()
        for name in added if before else ():
            model.delete_adapter(name)
        raise
    for name, part in parts.items():
        put(model, dict(part.tensors), adapter_name=name)
    return model


def _with_adapter(model: "PreTrainedModel", name: str, weights: Weights) -> "PreTrainedModel":
    from peft import LoraConfig, get_peft_model

    if weights.adapter is None:
        raise WeightsError(
            f"weights version {weights.version}: expected peft's LoraConfig in `adapter`"
        )
    settings = {k: v for k, v in weights.adapter.items() if k != "peft_type"}
    if not hasattr(model, "peft_config"):
        return get_peft_model(model, LoraConfig(**settings), adapter_name=name)
    model.add_adapter(name, LoraConfig(**settings))
    return model


def blank_model(config: object) -> "PreTrainedModel":
    """Return a model of this configuration without values."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def base_tensors(model: "PreTrainedModel") -> dict[str, Tensor]:
    """Return the tensors of a model by its own names, those of an adapter on it left out."""
    if not hasattr(model, "peft_config"):
        tensors: dict[str, Tensor] = model.state_dict(keep_vars=True)
        return tensors
    return {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.get_base_model().state_dict(keep_vars=True).items()
        if ".lora_" not in name
    }


def check_complete(own: Mapping[str, Tensor], weights: Weights) -> None:
    """Check that every tensor of the served model is given, tied ones under any of their names.

    Raises:
        WeightsError: When one is missing.
    """
    covered = {id(own[name]) for name in weights.tensors}
    missing = [name for name, tensor in own.items() if id(tensor) not in covered]
    if missing:
        raise WeightsError(
            f"weights version {weights.version}: {len(missing)} tensors are missing, such as "
            f"{missing[0]!r}; expected all {len(own)} that are served"
        )


def check_fits(own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Check names and shapes against the served model's.

    Raises:
        WeightsError: At the first that does not fit.
    """
    for name, tensor in given.items():
        if name not in own:
            raise WeightsError(
                f"weights hold {name!r}, which the served model does not{did_you_mean(name, own)}"
            )
        if tuple(tensor.shape) != tuple(own[name].shape):
            raise WeightsError(
                f"weights hold {name!r} of shape {tuple(tensor.shape)}; "
                f"expected {tuple(own[name].shape)}"
            )


def with_tied(
    own: Mapping[str, Tensor], given: Mapping[str, Tensor], model_type: str
) -> dict[str, Tensor]:
    """Return the tensors under every name that vLLM has for them, tied ones more than once.

    Files of tied models leave the output head out; vLLM would go on with the copy it packed.

    Args:
        own: the served model's tensors by its own names; tied ones are one object.
        given: those that are handed over.
        model_type: the served model's, as its configuration names it.
    """
    headless = model_type in WITHOUT_HEAD
    by_tensor = {id(own[name]): tensor for name, tensor in given.items()}
    return {
        name: by_tensor[id(tensor)]
        for name, tensor in own.items()
        if id(tensor) in by_tensor and not (headless and name == HEAD)
    }
