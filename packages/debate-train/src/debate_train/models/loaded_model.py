"""A model in memory: LoRA adapters, trained parameters, weights."""

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import Field, StringConstraints, field_validator

from debate_protocol.plugins import Config, did_you_mean
from debate_protocol.types import DEBATER, TRAINED, gives_answers, role_of
from debate_rollout.engine import Weights
from debate_train.batches.row_types import let_speak
from debate_train.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_protocol.forms import DebateForm
    from debate_train.batches.row_types import Batch


ONLY = "default"
"""peft's name of an adapter without a name of its own."""
ADAPTER_MARK = "lora_"
# Numbers of glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3

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
    def _refuse_ambiguous_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"found {name!r} {names.count(name)} times; expected each once")
            if name == "default":
                raise ValueError(f"found {name!r}, which an adapter without a name is called")
        return names


class RemotePolicy(Protocol):
    """The trained policy, where a server holds its weights."""

    def prints(self) -> dict[str, str]:
        """Hash what the policy began with, as `weight_prints` does."""
        ...

    def export(self, version: int) -> Weights:
        """Make the weights that the engine of the same server loads."""
        ...

    def load(self, directory: Path) -> None:
        """Restore the policy of a checkpoint."""
        ...

    def leave(self) -> None:
        """Give the server's place free at the end of a run."""
        ...


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with a tokenizer, and the folder or hub id of both for other processes."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerFast"
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    path: str | None = None
    lora: Lora | None = None
    training: tuple[str, ...] = ()
    """The named adapters that are trained now; empty for all."""
    again: "Callable[[], PreTrainedModel] | None" = None
    """Loads the model once more, as it was before any training."""
    remote: RemotePolicy | None = None
    """The policy on a server; the model's parameters here then have no values."""


def with_adapter(loaded: LoadedModel, seed: int) -> LoadedModel:
    """Make the model ready to train: with LoRA adapters where the settings have some.

    Raises:
        ModelError: An adapter has the name of a part of the model: peft would confuse them.
    """
    import torch

    if sys.platform == "linux" and not torch.cuda.is_available():
        # Let the C library keep freed memory: the kernel zeros each fresh page.
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            # 32 MB is the highest threshold: larger tensors go back to the kernel.
            libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
            libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    if loaded.lora is None or hasattr(loaded.model, "peft_config"):
        return loaded
    from peft import get_peft_model

    from debate_train.models.fused_lora import fuse

    names = loaded.lora.adapters or (ONLY,)
    module_parts: set[str] = set()
    for module_name, _ in loaded.model.named_modules():
        module_parts.update(module_name.split("."))
    for name in names:
        if name in module_parts:
            raise ModelError(
                f"model.lora.adapters: found {name!r}, which names a part of the model, too; "
                "expected another name"
            )
    # The draw of the adapters must not move the random states of the run.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = get_peft_model(loaded.model, lora_config(loaded.lora), adapter_name=names[0])
        for name in names[1:]:
            model.add_adapter(name, lora_config(loaded.lora))
    fuse(model)
    adapted = replace(loaded, model=model)
    freeze_others(adapted)
    return adapted


def lora_config(lora: Lora):  # type: ignore[no-untyped-def]
    """Build peft's configuration of an adapter on every linear layer."""
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def export_weights(loaded: LoadedModel, version: int) -> Weights:
    """Export all weights, or only the adapters when these are trained."""
    if loaded.remote is not None:
        return loaded.remote.export(version)
    if loaded.lora is None:
        return Weights(version, loaded.model.state_dict())
    names = loaded.lora.adapters
    tensors = adapter_tensors(loaded, names)
    return Weights(version, tensors, "lora", lora_config(loaded.lora).to_dict(), names)


def adapter_tensors(
    loaded: LoadedModel, names: Iterable[str], state: "dict[str, Tensor] | None" = None
) -> "dict[str, Tensor]":
    """Collect the tensors of adapters under peft's names, each after the adapter's name, if any.

    Args:
        loaded: A model with adapters.
        names: Of the adapters; an empty list means the only adapter, without a name.
        state: Tensors of the model, by default its `state_dict`.
    """
    from peft import get_peft_model_state_dict

    tensors = {}
    for name in names or ("",):
        state_of_adapter = get_peft_model_state_dict(
            loaded.model, state_dict=state, adapter_name=name or ONLY
        )
        for key, tensor in state_of_adapter.items():
            tensors[f"{name}/{key}".removeprefix("/")] = tensor
    return tensors


def adapter_of(parameter: str) -> str | None:
    """Parse the adapter's name in a parameter's name, `None` for a parameter of the base."""
    parts = parameter.split(".")
    for part, following in pairwise(parts):
        if part.startswith(ADAPTER_MARK):
            return following
    return None


def trained_parameters(loaded: "LoadedModel") -> "dict[str, nn.Parameter]":
    """Select the parameters to train, by name."""
    parameters = dict(loaded.model.named_parameters())
    if loaded.lora is None:
        return {name: p for name, p in parameters.items() if p.requires_grad}
    # By name, not by requires_grad: adapters that rest now have none.
    adapters = loaded.training or loaded.lora.adapters or (ONLY,)
    return {name: p for name, p in parameters.items() if adapter_of(name) in adapters}


def freeze_others(loaded: "LoadedModel") -> "dict[str, nn.Parameter]":
    """Give gradients only to the adapters trained now; return their parameters.

    The first of them speaks until another is named.
    """
    let_speak(loaded.model, next(iter(loaded.training), None))
    trained = trained_parameters(loaded)
    for name, parameter in loaded.model.named_parameters():
        parameter.requires_grad_(name in trained)
    return trained


def with_names(batch: "Batch", loaded: "LoadedModel") -> "Batch":
    """Name the first adapter in rows without one, if the model's adapters have names."""
    names = () if loaded.lora is None else loaded.lora.adapters
    if not names:
        return batch
    rows = tuple(replace(row, adapter=row.adapter or names[0]) for row in batch.rows)
    return replace(batch, rows=rows)


def tokens_of_adapters(batch: "Batch") -> dict[str, int]:
    """Count the sampled tokens of each named adapter."""
    num_tokens: dict[str, int] = {}
    for row in batch.rows:
        if row.adapter is not None:
            num_tokens.setdefault(row.adapter, 0)
            num_tokens[row.adapter] += len(row.sampled_positions)
    return num_tokens


def unknown_adapter(lora: "Lora | None", name: str | None) -> str | None:
    """Describe the fault of a role's adapter, `None` without a fault."""
    adapters = () if lora is None else lora.adapters
    if name is None or name in adapters:
        return None
    if not adapters:
        return f"found {name!r}, but model.lora.adapters has no names; expected it among them"
    return (
        f"found {name!r}, expected one of {', '.join(adapters)} (model.lora.adapters)"
        f"{did_you_mean(name, adapters)}"
    )


def trained_adapters(lora: "Lora | None", form: "DebateForm") -> tuple[str, ...]:
    """List the named adapters trained by the debates of a phase."""
    if lora is None or not lora.adapters:
        return ()
    protocol = form.protocol()
    trained = set()
    for agent in form.trained_agents():
        role = role_of(protocol, agent)
        if role.policy == TRAINED:
            trained.add(role.adapter or lora.adapters[0])
    return tuple(name for name in lora.adapters if name in trained)


def answering_role(form: "DebateForm") -> dict[str, dict[str, str | bool | None]]:
    """Write the recipe's role of single replies, prompted as in this form.

    Where roles name adapters, it has the adapter of the first answering role of the trained
    policy; roles with turns to train on go before others.
    """
    protocol = form.protocol()
    if not any(role.adapter for role in protocol.roles):
        return {}
    answering = []
    for agent in range(form.num_agents):
        role = role_of(protocol, agent)
        if gives_answers(protocol, agent) and role.policy == TRAINED:
            answering.append(role)
    # Single replies are sampled with an adapter that learns, where there is one.
    answering.sort(key=lambda role: not role.trains)
    adapter = answering[0].adapter if answering else None
    is_trained = any(role.trains and role.adapter == adapter for role in answering)
    return {DEBATER: {"adapter": adapter, "train": is_trained}}
