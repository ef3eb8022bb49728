"""How fast a step was: tokens a second of each device, and the share of the devices' peak."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from debate_train.batches.row_types import lexicographic, needed_tokens, shared_length

if TYPE_CHECKING:
    from torch.nn import Parameter
    from transformers import PreTrainedModel

    from debate_rollout.engines import EngineSettings
    from debate_train.batches.row_types import Batch


def peak_memory_gib() -> float:
    """Return the most memory of this process so far, in GiB (2^30 bytes).

    On CUDA it is what tensors took on the current device, as
    `torch.cuda.max_memory_allocated` counts it; elsewhere the resident set of the process.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    import resource  # There is none on Windows, where modules import but nothing runs.

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**30 if sys.platform == "darwin" else 2**20)  # Bytes there, KiB on Linux.


PEAK_TFLOPS = {
    "B200": 2250.0,
    "GH200": 989.5,
    "H200": 989.5,
    "H100 PCIe": 756.5,
    "H100 NVL": 835.5,
    "H100": 989.5,
    "A100": 312.0,
    "L40S": 362.1,
    "RTX 4090": 165.2,
}
"""Dense bfloat16 of NVIDIA's datasheets, in 10^12 FLOP/s, by part of the device's name."""
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Work:
    """What an update has to compute: tokens, keys that queries see (`pairs`), and actions.

    What rows begin with in common counts once, and padding does not: it is what the update needs,
    not what a way of packing makes of it.
    """

    tokens: int
    pairs: int
    actions: int

    @classmethod
    def of(cls, batch: "Batch") -> "Work":
        """Return the work of a step's rows."""
        inputs = [row.tokens[: needed_tokens(row)] for row in batch.rows]
        tokens = pairs = 0
        before = np.zeros(0, np.int64)
        for number in lexicographic(inputs):
            length, shared = len(inputs[number]), shared_length(before, inputs[number])
            tokens += length - shared
            pairs += (length * (length + 1) - shared * (shared + 1)) // 2
            before = inputs[number]
        return cls(tokens, pairs, sum(int((row.sampled_positions > 0).sum()) for row in batch.rows))


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs of forward and backward passes, for each token, pair and action."""

    token: float
    pair: float
    action: float

    @classmethod
    def of(cls, model: "PreTrainedModel | None") -> "Cost | None":
        """Return the cost of a decoder-only model; None where it is not known, as with experts.

        Forward: 2 for each weight of the layers and token, 4 · heads · features of a head for each
        layer and pair, 2 for each weight of the head and action. Backward: twice that, half of it
        where weights are frozen. Nothing is counted for what is computed again, for a reference
        policy or for the optimizer.

        Source: Chowdhery et al. 2022, PaLM, appendix B; there a query sees as many keys as the
        sequence is long.
        """
        if model is None:
            return None
        config = model.config.get_text_config()
        heads = getattr(config, "num_attention_heads", None)
        if not heads or any((getattr(config, name, None) or 1) > 1 for name in _EXPERTS):
            return None
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        layers = {id(parameter): size for parameter, size in _matrices(model)}
        last = model.get_output_embeddings()
        head = 0.0 if last is None else sum(layers.pop(id(p), 0.0) for p in last.parameters())
        for parameter in model.get_input_embeddings().parameters():
            layers.pop(id(parameter), None)
        return cls(sum(layers.values()), 12.0 * heads * width * config.num_hidden_layers, head)

    def __call__(self, work: Work) -> float:
        """Return the FLOPs of an update."""
        return self.token * work.tokens + self.pair * work.pairs + self.action * work.actions


def _matrices(model: "PreTrainedModel") -> "Iterator[tuple[Parameter, float]]":
    """Yield each weight that multiplies tokens, with its FLOPs for each of them."""
    for parameter in model.parameters():
        if len(getattr(parameter, "ds_shape", parameter.shape)) > 1:
            yield parameter, _size(parameter) * (6.0 if parameter.requires_grad else 4.0)


def _size(parameter: "Parameter") -> int:
    """Return how many numbers a parameter has, of which this process may hold none (ZeRO-3)."""
    return prod(getattr(parameter, "ds_shape", parameter.shape))


def peak_flops(tflops: float | None) -> float | None:
    """Return the peak FLOP/s of a device: what is given, else that of this GPU if it is known."""
    import torch

    if tflops is None and torch.cuda.is_available():
        name = torch.cuda.get_device_name()
        tflops = next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)
    return None if tflops is None else tflops * 1e12


@dataclass(frozen=True, slots=True)
class Speed:
    """What steps of a phase are measured against.

    Attributes:
        epochs: How often a step learns from its rows.
        training: Processes that train, each on a device of its own.
        devices: These, and the devices that the engine has for itself.
        peak: FLOP/s of a training device, None where that is not known.
        cost: Of the model, None where that is not known.
    """

    epochs: int = 1
    training: int = 1
    devices: int = 1
    peak: float | None = None
    cost: Cost | None = None

    @classmethod
    def of(
        cls,
        engine: "EngineSettings",
        model: "PreTrainedModel | None",
        processes: int,
        epochs: int = 1,
        peak_tflops: float | None = None,
    ) -> "Speed":
        """Return what the steps of a phase are measured against."""
        taken = engine.footprint(0, 0.0)
        own = 0 if taken.shares else taken.gpus
        peak = peak_flops(peak_tflops)
        cost = None if peak is None else Cost.of(model)
        return cls(epochs, processes, processes + own, peak, cost)

    def measured(self, batch: "Batch", metrics: Mapping[str, float]) -> dict[str, float]:
        """Return how fast a step was.

        Args:
            batch: Its rows.
            metrics: Of the step: the seconds of its update and the tokens sampled a second.
        """
        found, seconds = {}, metrics.get("time/train_s", 0.0)
        if "tokens_per_s" in metrics:
            found["tokens_per_s/sampled_per_device"] = metrics["tokens_per_s"] / self.devices
        if seconds > 0 and batch.rows:
            trained = self.epochs * sum(len(row) for row in batch.rows) / seconds
            found["tokens_per_s/trained"] = trained
            found["tokens_per_s/trained_per_device"] = trained / self.training
            if self.cost is not None and self.peak is not None:
                done = self.epochs * self.cost(Work.of(batch)) / seconds
                found["time/mfu"] = done / (self.peak * self.training)
        return found
