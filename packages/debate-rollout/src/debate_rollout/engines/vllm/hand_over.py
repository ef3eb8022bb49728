"""Handing weights to vLLM in a file that gets its name when it is complete."""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from debate_rollout.errors import RolloutError, WeightsError

OLD_WEIGHTS_SERVE = "the old weights go on serving"
"""How an error of a worker says that it changed nothing."""


def write_weights(folder: Path, label: str, tensors: Mapping[str, Tensor]) -> Path:
    """Write tensors to a safetensors file and return its path."""
    path = folder / f"weights-{label}.safetensors"
    partial = path.with_suffix(".partial")
    # Copies: safetensors refuses tensors that share memory, as tied ones do.
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, partial)
    os.replace(partial, path)
    return path


def refresh_error(error: Exception, only_check: bool) -> Exception:
    """Return what a failed refresh is to the caller.

    A worker that only looked has changed nothing; one that failed later may serve half of each.
    """
    if only_check and OLD_WEIGHTS_SERVE in str(error):
        return WeightsError(str(error))
    return RolloutError(
        f"a refresh of weights failed half-way ({error}); what is served now is not known, so this "
        "engine answers no more requests: start it again"
    )
