"""Putting a trainer's weights into a served Hugging Face model."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from debate_protocol.plugins import did_you_mean
from debate_rollout.engine import Weights, WeightsError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


ONLY = "default"
"""peft's name for an adapter without a name."""
HEAD = "lm_head.weight"
WITHOUT_HEAD = frozenset(("gemma2", "gemma3n_text"))
"""Model types without an output head in vLLM, which ends when it is handed one."""


def load_full(model: "PreTrainedModel", weights: Weights) -> "PreTrainedModel":
    """Copy every parameter in place; tied parameters may be given under any of their names.

    Returns:
        The model, without the adapter that it may have carried.

    Raises:
        WeightsError: When a name or a shape does not fit, or a parameter is missing; the model is
            as it was then.
    """
    served_tensors = base_tensors(model)
    # All checks come before the first copy: a refused load leaves no mixture of old and new.
    check_fits(served_tensors, weights.tensors)
    check_complete(served_tensors, weights)
    with torch.no_grad():
        for name, tensor in weights.tensors.items():
            served_tensors[name].copy_(tensor)
    return model.unload() if hasattr(model, "peft_config") else model


def load_lora(model: "PreTrainedModel", weights: Weights) -> "PreTrainedModel":
    """Load adapters on the model's base; the first call wraps the model.

    The only adapter of weights without names is the model's own, or `default`.

    Raises:
        WeightsError: When the adapter's configuration is absent or its tensors do not fit; the
            model is as it was then.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    by_adapter = {name or ONLY: adapter for name, adapter in weights.by_adapter().items()}
    names_before = set(getattr(model, "peft_config", ()))
    new_names = [name for name in by_adapter if name not in names_before]
    for name in new_names:
        model = _with_adapter(model, name, weights)
    try:
        for name, adapter in by_adapter.items():
            served_tensors = get_peft_model_state_dict(model, adapter_name=name)
            check_fits(served_tensors, adapter.tensors)
            check_complete(served_tensors, adapter)
    except WeightsError:
        # Undo the new adapters: without old ones the whole wrapper goes.
        if not names_before:
            model.unload()
        else:
            for name in new_names:
                model.delete_adapter(name)
        raise
    for name, adapter in by_adapter.items():
        set_peft_model_state_dict(model, dict(adapter.tensors), adapter_name=name)
    return model


def _with_adapter(model: "PreTrainedModel", name: str, weights: Weights) -> "PreTrainedModel":
    from peft import LoraConfig, get_peft_model

    if weights.adapter is None:
        raise WeightsError(
            f"weights version {weights.version}: expected peft's LoraConfig in `adapter`"
        )
    settings = {key: value for key, value in weights.adapter.items() if key != "peft_type"}
    if not hasattr(model, "peft_config"):
        return get_peft_model(model, LoraConfig(**settings), adapter_name=name)
    model.add_adapter(name, LoraConfig(**settings))
    return model


def blank_model(config: object) -> "PreTrainedModel":
    """Build a model of this configuration without values."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def save_model(model: "PreTrainedModel", directory: Path, **settings: Any) -> None:
    """Write a model as transformers reads it, with the sampling that its authors suggest.

    transformers reads a temperature without `do_sample`, but refuses to write it.

    Args:
        model: A whole model, without adapters.
        directory: The folder to write.
        settings: Of `save_pretrained`.
    """
    suggested = model.generation_config
    model.generation_config = type(suggested)()
    try:
        model.save_pretrained(directory, **settings)
    finally:
        model.generation_config = suggested
    suggested.to_json_file(directory / "generation_config.json", keys_to_pop=["compile_config"])


def base_tensors(model: "PreTrainedModel") -> dict[str, Tensor]:
    """Collect the tensors of a model under the model's own names, without adapters."""
    if not hasattr(model, "peft_config"):
        tensors: dict[str, Tensor] = model.state_dict(keep_vars=True)
        return tensors
    wrapped_tensors = model.get_base_model().state_dict(keep_vars=True)
    # peft renames each layer that it wraps to `NAME.base_layer`.
    return {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in wrapped_tensors.items()
        if ".lora_" not in name
    }


def check_complete(served_tensors: Mapping[str, Tensor], weights: Weights) -> None:
    """Check for missing tensors; tied tensors may be given under any of their names.

    Raises:
        WeightsError: When one is missing.
    """
    # Tied parameters are one object under several names.
    covered_ids = {id(served_tensors[name]) for name in weights.tensors}
    missing = [name for name, tensor in served_tensors.items() if id(tensor) not in covered_ids]
    if missing:
        raise WeightsError(
            f"weights version {weights.version}: {len(missing)} tensors are missing, such as "
            f"{missing[0]!r}; expected all {len(served_tensors)} that are served"
        )


def check_fits(served_tensors: Mapping[str, Tensor], new_tensors: Mapping[str, Tensor]) -> None:
    """Check names and shapes against the served model's.

    Raises:
        WeightsError: At the first that does not fit.
    """
    for name, tensor in new_tensors.items():
        if name not in served_tensors:
            raise WeightsError(
                f"weights hold {name!r}, which the served model does not"
                f"{did_you_mean(name, served_tensors)}"
            )
        new_shape = tuple(tensor.shape)
        served_shape = tuple(served_tensors[name].shape)
        if new_shape != served_shape:
            raise WeightsError(
                f"weights hold {name!r} of shape {new_shape}; expected {served_shape}"
            )


def with_tied(
    served_tensors: Mapping[str, Tensor], new_tensors: Mapping[str, Tensor], model_type: str
) -> dict[str, Tensor]:
    """Repeat tied tensors under every name that vLLM has for them.

    Files of tied models leave the output head out; vLLM would go on with the copy it packed.

    Args:
        served_tensors: the served model's tensors by its own names; tied ones are one object.
        new_tensors: the tensors of a refresh.
        model_type: the served model's, as its configuration names it.
    """
    has_head = model_type not in WITHOUT_HEAD
    new_by_served_id = {id(served_tensors[name]): new for name, new in new_tensors.items()}
    repeated = {}
    for name, tensor in served_tensors.items():
        if id(tensor) in new_by_served_id and (has_head or name != HEAD):
            repeated[name] = new_by_served_id[id(tensor)]
    return repeated
