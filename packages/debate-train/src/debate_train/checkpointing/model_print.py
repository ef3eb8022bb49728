"""A model as a hash: what a checkpoint does not hold of it, and what a run begins with."""

import hashlib
import json
from typing import TYPE_CHECKING

import torch

from debate_train.adapters import adapter_of

if TYPE_CHECKING:
    from debate_train.models.loaded_model import LoadedModel

_VALUES = 64
"""Values that are read of each tensor."""
_MOST_VALUES = 65_536
"""The same of the weights that a run begins with, to which no run is to be compared by chance."""


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
                _add(digest, name, parameter, _VALUES)
    return digest.hexdigest()


@torch.no_grad()
def weight_prints(loaded: "LoadedModel") -> dict[str, str]:
    """Return a hash of the weights to be trained (`start`), and one of the others (`frozen`).

    Runs whose hashes are equal began with the same weights. Of each tensor name, shape and up to
    65,536 evenly spaced values are read. Nothing frozen has no hash.
    """
    found: dict[str, hashlib._Hash] = {}
    for name, parameter in sorted(loaded.model.named_parameters()):
        is_base = loaded.lora is not None and adapter_of(name) is None
        kind = "frozen" if is_base else "start"
        _add(found.setdefault(kind, hashlib.sha256()), name, parameter, _MOST_VALUES)
    return {kind: digest.hexdigest() for kind, digest in sorted(found.items(), reverse=True)}


def _add(digest: "hashlib._Hash", name: str, parameter: torch.Tensor, most: int) -> None:
    flat = parameter.detach().flatten()
    values = flat[:: max(1, flat.numel() // most)][:most].float().cpu()
    digest.update(f"{name} {tuple(parameter.shape)}".encode())
    digest.update(values.numpy().tobytes())
