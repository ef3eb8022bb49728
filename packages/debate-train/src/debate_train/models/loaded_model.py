"""A model in memory: its LoRA adapters, which of its parameters are trained, its weights."""

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from debate_protocol.plugins import Config, did_you_mean
from debate_protocol.types import DEBATER, TRAINED, gives_answers, role_of
from debate_rollout.engine import Weights
from debate_train.batches.row_types import let_speak
from debate_train.interrupts import ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_protocol.forms import DebateForm
    from debate_train.batches.row_types import Batch


AdapterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=64)]


class Lora(Config):
    """Low-rank adapters (Hu et al. 2021) on every linear layer, through peft."""

    rank: int = Field(32, ge=1)
    """Rank r of the adapters' matrices."""
    alpha: float = Field(64.0, gt=0)
    """Adapters are scaled by alpha / rank."""
    dropout: Literal[0] = 0
    """Fixed at 0: with dropout the trained policy is not the sampled one."""
    adapters: tuple[AdapterName, ...] = ()
    """Names of several adapters on the one model, alike but for their values: roles of the debate
    name theirs (`debate.roles.NAME.adapter`; the first speaks for those that name none). Empty is
    one adapter for all."""

    @field_validator("adapters")
    @classmethod
    def _each_has_its_name(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"found {name!r} {names.count(name)} times; expected each once")
            if name == "default":
                raise ValueError(f"found {name!r}, which an adapter without a name is called")
        return names


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer and where an engine in another process finds both."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerFast"
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    path: str | None = None
    lora: Lora | None = None
    training: tuple[str, ...] = ()
    """Of adapters with names those that are trained now; empty for all."""
    again: "Callable[[], PreTrainedModel] | None" = None
    """Loads the model once more, as it was before any training."""


def with_adapter(loaded: LoadedModel, seed: int) -> LoadedModel:
    """Return the model ready to train: with its LoRA adapters where some are asked for.

    Raises:
        ModelError: An adapter has the name of a part of the model, which peft would confuse.
    """
    import torch

    if sys.platform == "linux" and not torch.cuda.is_available():
        _keep_freed_memory()
    if loaded.lora is None or hasattr(loaded.model, "peft_config"):
        return loaded
    from peft import get_peft_model

    from debate_train.models.fused_lora import fuse

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
    fuse(model)
    made = replace(loaded, model=model)
    freeze_others(made)
    return made


def _keep_freed_memory() -> None:
    """Let the C library keep what tensors free: the kernel fills fresh pages with zeros."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # As glibc's malloc.h numbers them.
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc.mallopt(m_mmap_threshold, 32 << 20)  # The highest; larger tensors do not stay.
        libc.mallopt(m_trim_threshold, 2**31 - 1)


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
    config, names = lora_config(loaded.lora).to_dict(), loaded.lora.adapters
    return Weights(version, adapter_tensors(loaded, names), "lora", config, names)


def adapter_tensors(
    loaded: LoadedModel, names: Iterable[str], state: "dict[str, Tensor] | None" = None
) -> "dict[str, Tensor]":
    """Return the tensors of adapters as peft names them, after the name of each that has one.

    Args:
        loaded: A model with adapters.
        names: Of the adapters; without any it is the one that has no name.
        state: Tensors of the model, else those of its `state_dict`.
    """
    from peft import get_peft_model_state_dict

    return {
        f"{name}/{key}".removeprefix("/"): tensor
        for name in names or ("",)
        for key, tensor in get_peft_model_state_dict(
            loaded.model, state_dict=state, adapter_name=name or ONLY
        ).items()
    }


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
            counted[row.adapter] = counted.get(row.adapter, 0) + len(row.sampled_positions)
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
