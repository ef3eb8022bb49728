"""LoRA adapters: several on one model, and a LoRA checkpoint merged into its base."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import DEBATER, TRAINED, gives_answers, role_of
from debate_train.batches.row_types import let_speak
from debate_train.interrupts import ModelError
from debate_train.models.model_files import ADAPTER, is_folder, read_json, reading_model

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn
    from transformers import PreTrainedModel

    from debate_protocol.forms import DebateForm
    from debate_train.batches.row_types import Batch
    from debate_train.models.loaded_model import LoadedModel, Lora


ONLY = "default"
"""What peft calls an adapter that has no name of its own."""
_MARK = "lora_"


def adapter_of(parameter: str) -> str | None:
    """Return the adapter that a parameter belongs to, None for one of the base."""
    parts = parameter.split(".")
    for part, following in pairwise(parts):
        if part.startswith(_MARK):
            return following
    return None


def trained_parameters(loaded: "LoadedModel") -> "dict[str, nn.Parameter]":
    """Return the parameters that a trainer of this model changes, by name."""
    own = loaded.model.named_parameters()
    if loaded.lora is None:
        return {name: p for name, p in own if p.requires_grad}
    trained = loaded.training or loaded.lora.adapters or (ONLY,)
    return {name: p for name, p in own if adapter_of(name) in trained}


def freeze_others(loaded: "LoadedModel") -> "dict[str, nn.Parameter]":
    """Let only the adapters have gradients that are trained now; return their parameters.

    The first of them speaks until another is named.
    """
    let_speak(loaded.model, next(iter(loaded.training), None))
    trained = trained_parameters(loaded)
    for name, parameter in loaded.model.named_parameters():
        parameter.requires_grad_(name in trained)
    return trained


def with_names(batch: "Batch", loaded: "LoadedModel") -> "Batch":
    """Return the batch with the first adapter in rows that name none, where adapters have names."""
    names = () if loaded.lora is None else loaded.lora.adapters
    if not names:
        return batch
    rows = tuple(replace(row, adapter=row.adapter or names[0]) for row in batch.rows)
    return replace(batch, rows=rows)


def tokens_of_adapters(batch: "Batch") -> dict[str, int]:
    """Return the sampled tokens of each adapter that has a name."""
    counted: dict[str, int] = {}
    for row in batch.rows:
        if row.adapter is not None:
            counted[row.adapter] = counted.get(row.adapter, 0) + int(row.mask.sum())
    return counted


def unknown_adapter(lora: "Lora | None", name: str | None) -> str | None:
    """Return what is wrong with the adapter that a role names, None for nothing."""
    known = () if lora is None else lora.adapters
    if name is None or name in known:
        return None
    if not known:
        return f"found {name!r}, but model.lora.adapters has no names; expected it among them"
    return (
        f"found {name!r}, expected one of {', '.join(known)} (model.lora.adapters)"
        f"{did_you_mean(name, known)}"
    )


def trained_adapters(lora: "Lora | None", form: "DebateForm") -> tuple[str, ...]:
    """Return the adapters, of those with names, that the debates of a phase train."""
    if lora is None or not lora.adapters:
        return ()
    rules = form.protocol()
    roles = [role_of(rules, agent) for agent in form.trained_agents()]
    named = {role.adapter or lora.adapters[0] for role in roles if role.policy == TRAINED}
    return tuple(name for name in lora.adapters if name in named)


def answering_role(form: "DebateForm") -> dict[str, dict[str, str | bool | None]]:
    """Return what a recipe says of the role of single replies, prompted as in this form.

    Where roles name adapters, it is that of the first role of the trained policy which owes an
    answer, of one that is trained on, if there is one.
    """
    rules = form.protocol()
    if not any(role.adapter for role in rules.roles):
        return {}
    roles = [role_of(rules, i) for i in range(form.num_agents) if gives_answers(rules, i)]
    own = sorted((r for r in roles if r.policy == TRAINED), key=lambda role: not role.trains)
    adapter = own[0].adapter if own else None
    trains = any(role.trains and role.adapter == adapter for role in own)
    return {DEBATER: {"adapter": adapter, "train": trains}}


_WEIGHTS = "adapter_model.safetensors"
_LONGEST_CHAIN = 8
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "use_dora": (False, None),
}


def is_adapter(name: str) -> bool:
    """Return whether a model's name is that of a folder with an adapter and no model of its own."""
    folder = Path(name)
    return is_folder(name) and (folder / ADAPTER).is_file() and not _is_whole(folder)


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def bases_of(name: str) -> tuple[str, ...]:
    """Return a model's adapters from itself down, and last the model that they all adapt.

    The base of an adapter is what its `adapter_config.json` names. A base that is itself a folder
    with an adapter was trained on from, and is merged first.

    Raises:
        ModelError: An adapter names no base, its base is not there, or they lead in a ring.
    """
    found = [name]
    while is_adapter(found[-1]):
        file = Path(found[-1]) / ADAPTER
        base = read_json(file, "the configuration of an adapter").get("base_model_name_or_path")
        if not isinstance(base, str) or not base:
            raise ModelError(
                f"model.name: {str(file)!r} names no base; expected the model that the adapter was "
                "trained on as base_model_name_or_path"
            )
        if base in found or len(found) > _LONGEST_CHAIN:
            raise ModelError(
                f"model.name: the bases of {name!r} lead back to {base!r}; expected a model with "
                "weights of its own at their end"
            )
        is_path = base.startswith((".", "/", "~")) or base.count("/") > 1
        if is_path and not is_folder(base):
            raise ModelError(
                f"model.name: {str(file)!r} names the base {base!r}, which is not there; expected "
                "the folder or hub id of the model that the adapter was trained on "
                "(base_model_name_or_path; a relative path starts at the working directory)"
            )
        found.append(base)
    if is_folder(found[-1]) and (Path(found[-1]) / ADAPTER).is_file():
        raise ModelError(
            f"model.name: {found[-1]!r} holds {ADAPTER} beside a model of its own; expected one of "
            "them: take the other out of the folder"
        )
    return tuple(found)


def merge_adapter(name: str, model: "PreTrainedModel") -> "PreTrainedModel":
    """Return a model with an adapter's product added to its weights, in their own dtype.

    Args:
        name: The adapter's folder.
        model: What it was trained on; changed.

    Raises:
        ModelError: The adapter is damaged, of another kind than LoRA, or of another model.
    """
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from safetensors import safe_open

    settings = _settings(name)
    with reading_model(name, "adapter"):
        adapted: PeftModel = get_peft_model(model, LoraConfig(**settings, task_type="CAUSAL_LM"))
        own = get_peft_model_state_dict(adapted, state_dict=adapted.state_dict(keep_vars=True))
        with safe_open(Path(name) / _WEIGHTS, framework="pt") as stored:
            other = sorted(set(stored.keys()) ^ set(own))
            if other:
                raise ModelError(
                    f"model.name: the adapter {name!r} is not one of its base: missing or "
                    f"unexpected {', '.join(other[:3])}; expected what peft saves of it"
                )
            with torch.no_grad():
                for key, parameter in own.items():
                    held = stored.get_tensor(key)
                    if held.shape != parameter.shape or not held.is_floating_point():
                        raise ModelError(
                            f"model.name: the adapter {name!r} is not one of its base: {key} has "
                            f"shape {tuple(held.shape)} instead of {tuple(parameter.shape)}"
                        )
                    parameter.copy_(held)
        merged: PreTrainedModel = adapted.merge_and_unload().requires_grad_(True)  # peft froze it
    # A later adapter names what it was trained on, which is this one and not its base.
    merged.name_or_path = merged.config.name_or_path = name
    return merged


def _settings(name: str) -> dict[str, object]:
    """Return the settings of an adapter that decide what it adds.

    Raises:
        ModelError: They are not those of plain LoRA.
    """
    file = Path(name) / ADAPTER
    held = read_json(file, "the configuration of an adapter")
    layers = held.get("target_modules")
    names = isinstance(layers, list) and all(isinstance(one, str) for one in layers)
    odd = [key for key, plain in _NEUTRAL.items() if held.get(key) not in plain]
    odd += ["peft_type"] if held.get("peft_type") != "LORA" else []
    odd += ["target_modules"] if not names and layers != "all-linear" else []
    if not (Path(name) / _WEIGHTS).is_file():
        raise ModelError(f"model.name: {name!r} holds no {_WEIGHTS}; expected an adapter's weights")
    if odd:
        raise ModelError(
            f"model.name: {str(file)!r} has settings that are not merged here: {', '.join(odd)}; "
            "expected a LoRA adapter on named layers: merge it with peft (merge_and_unload) and "
            "save_pretrained, and give that folder"
        )
    taken = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
    return {key: held[key] for key in taken if held.get(key) is not None} | {
        "target_modules": layers
    }
