"""Several LoRA adapters on one model: their names, which of them speaks, and which are trained."""

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from debate_protocol.plugins import did_you_mean
from debate_protocol.roles import DEBATER, gives_answers, role_of
from debate_protocol.types import TRAINED
from debate_train.packed_rows.speaking_adapter import let_speak

if TYPE_CHECKING:
    from torch import nn

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
