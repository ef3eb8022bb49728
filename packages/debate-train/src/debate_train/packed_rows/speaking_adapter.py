"""Which adapter of a model speaks; without pydantic, as all that packs need."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import nn


def let_speak(model: "nn.Module", adapter: str | None) -> None:
    """Let the model be the policy of this adapter, whose parameters alone have gradients then.

    Args:
        model: peft's, where the adapter has a name.
        adapter: None where the model has no adapters with names.
    """
    speaking: PeftModel = model
    if adapter is not None and speaking.active_adapter != adapter:
        speaking.set_adapter(adapter)
