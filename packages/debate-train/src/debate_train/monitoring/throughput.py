"""How fast a step was: tokens a second of each device, and the share of the devices' peak."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import torch

from debate_train.batches.row_types import lexicographic, needed_tokens, shared_length

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from debate_rollout.engines import EngineSettings
    from debate_train.batches.row_types import Batch


# Dense bfloat16 of NVIDIA's datasheets, in 10^12 FLOP/s, by part of the device's name. The first
# part that fits counts, so that "H100 PCIe" comes before "H100".
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
# Keys of model configs with a number of experts.
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts")


def peak_memory_gib() -> float:
    """Measure the most memory of this process so far, in GiB (2^30 bytes).

    On CUDA these are the tensors on the current device, as `torch.cuda.max_memory_allocated` counts
    them; elsewhere the resident set of the process.
    """
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    import resource  # There is none on Windows, where modules import but nothing runs.

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    units_per_gib = 2**30 if sys.platform == "darwin" else 2**20  # bytes there, KiB on Linux
    return peak / units_per_gib


@dataclass(frozen=True, slots=True)
class Work:
    """The least work of an update: tokens, pairs of a query and a key, and actions.

    A common start of rows counts once, and padding does not count, however rows are packed.
    """

    tokens: int
    pairs: int
    actions: int

    @classmethod
    def of(cls, batch: "Batch") -> "Work":
        """Count the work of a step's rows."""
        inputs = [row.tokens[: needed_tokens(row)] for row in batch.rows]
        num_tokens = num_pairs = 0
        last_input = np.zeros(0, np.int64)
        # In lexicographic order a row has its longest common start with the row before it.
        for number in lexicographic(inputs):
            row_input = inputs[number]
            length = len(row_input)
            num_shared = shared_length(last_input, row_input)
            num_tokens += length - num_shared
            # Query k sees k keys: 1 + … + n = n(n + 1) / 2, less those of the shared queries.
            num_pairs += (length * (length + 1) - num_shared * (num_shared + 1)) // 2
            last_input = row_input
        # The first token has no prediction before it.
        num_actions = sum(int((row.sampled_positions > 0).sum()) for row in batch.rows)
        return cls(tokens=num_tokens, pairs=num_pairs, actions=num_actions)


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs of forward and backward passes, for each token, pair and action."""

    token: float
    pair: float
    action: float

    @classmethod
    def of(cls, model: "PreTrainedModel | None") -> "Cost | None":
        """Compute the cost of a decoder-only model; `None` if unknown, as with experts.

        Forward: 2 for each weight of the layers and token, 4 · heads · features of a head for each
        layer and pair, 2 for each weight of the head and action. Backward: twice that, half of it
        where weights are frozen. Recomputation, a reference policy and the optimizer do not count.

        Source: Chowdhery et al. 2022, PaLM, appendix B; there a query sees as many keys as the
        sequence is long.
        """
        if model is None:
            return None
        config = model.config.get_text_config()
        num_heads = getattr(config, "num_attention_heads", None)
        has_experts = any((getattr(config, key, None) or 1) > 1 for key in EXPERT_KEYS)
        if not num_heads or has_experts:
            return None
        head_width = getattr(config, "head_dim", None) or config.hidden_size // num_heads
        flops_by_id: dict[int, float] = {}
        for parameter in model.parameters():
            # With ZeRO-3 this process may hold none of a parameter's numbers.
            shape = getattr(parameter, "ds_shape", parameter.shape)
            if len(shape) > 1:
                flops_per_weight = 6.0 if parameter.requires_grad else 4.0
                flops_by_id[id(parameter)] = prod(shape) * flops_per_weight
        action_flops = 0.0
        output_layer = model.get_output_embeddings()
        if output_layer is not None:
            for parameter in output_layer.parameters():
                action_flops += flops_by_id.pop(id(parameter), 0.0)
        # Looking up an embedding multiplies nothing. Tied weights are gone with the output layer.
        for parameter in model.get_input_embeddings().parameters():
            flops_by_id.pop(id(parameter), None)
        return cls(
            token=sum(flops_by_id.values()),
            pair=12.0 * num_heads * head_width * config.num_hidden_layers,
            action=action_flops,
        )

    def __call__(self, work: Work) -> float:
        """Compute the FLOPs of an update."""
        return self.token * work.tokens + self.pair * work.pairs + self.action * work.actions


def peak_flops(tflops: float | None) -> float | None:
    """Compute the peak FLOP/s of a device from `tflops`; without it look up this GPU."""
    if tflops is None and torch.cuda.is_available():
        device_name = torch.cuda.get_device_name()
        tflops = next((peak for part, peak in PEAK_TFLOPS.items() if part in device_name), None)
    return None if tflops is None else tflops * 1e12


@dataclass(frozen=True, slots=True)
class Speed:
    """The devices and the cost of a step, to compute the step's speed.

    Attributes:
        epochs: Passes of a step over the rows.
        training: Training processes, each on a separate device.
        devices: Devices of these processes, and the engine's own devices.
        peak: FLOP/s of a training device; `None` if unknown.
        cost: Cost of the model; `None` if unknown.
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
        """Collect the devices and the cost of a phase's steps."""
        footprint = engine.footprint(0, 0.0)
        num_engine_devices = 0 if footprint.shares else footprint.gpus
        peak = peak_flops(peak_tflops)
        return cls(
            epochs=epochs,
            training=processes,
            devices=processes + num_engine_devices,
            peak=peak,
            cost=None if peak is None else Cost.of(model),
        )

    def measured(self, batch: "Batch", metrics: Mapping[str, float]) -> dict[str, float]:
        """Compute the speed of a step.

        Args:
            batch: The step's rows.
            metrics: The step's metrics: seconds of the update and tokens sampled a second.
        """
        speed = {}
        seconds = metrics.get("time/train_s", 0.0)
        if "tokens_per_s" in metrics:
            speed["tokens_per_s/sampled_per_device"] = metrics["tokens_per_s"] / self.devices
        if seconds > 0 and batch.rows:
            num_tokens = self.epochs * sum(len(row) for row in batch.rows)
            speed["tokens_per_s/trained"] = num_tokens / seconds
            speed["tokens_per_s/trained_per_device"] = num_tokens / seconds / self.training
            if self.cost is not None and self.peak is not None:
                flops_per_s = self.epochs * self.cost(Work.of(batch)) / seconds
                speed["time/mfu"] = flops_per_s / (self.peak * self.training)
        return speed
