"""What a checkpoint does not hold of its model, as one hash."""

import hashlib
import json
from typing import TYPE_CHECKING

import torch

from debate_train.adapters import adapter_of

if TYPE_CHECKING:
    from debate_train.models.loaded_model import LoadedModel

_VALUES = 64
"""Values that are read of each tensor."""


@torch.no_grad()
def model_print(loaded: "LoadedModel") -> str:
    """Return a hash of the tokenizer, and of weights that an adapter leaves as they are.

    It knows the model at another place. Of each tensor shape and evenly spaced values are read.
    """
    digest = hashlib.sha256()
    tokenizer = loaded.tokenizer
    digest.update(json.dumps(sorted(tokenizer.get_vocab().items())).encode())
    digest.update(json.dumps(tokenizer.chat_template, sort_keys=True, default=str).encode())
    if loaded.lora is not None:
        for name, parameter in loaded.model.named_parameters():
            if adapter_of(name) is None:
                flat = parameter.detach().flatten()
                values = flat[:: max(1, flat.numel() // _VALUES)][:_VALUES].float().cpu()
                digest.update(f"{name} {tuple(parameter.shape)}".encode())
                digest.update(values.numpy().tobytes())
    return digest.hexdigest()
