"""How fast a step was: tokens a second of each device, and the memory that it took."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True)
class Speed:
    """What steps of a phase are measured against.

    Attributes:
        epochs: How often a step learns from its rows.
        training: Processes that train, each on a device of its own.
        devices: These, and the devices that the engine has for itself.
    """

    epochs: int = 1
    training: int = 1
    devices: int = 1

    @classmethod
    def of(cls, engine: "EngineSettings", processes: int, epochs: int = 1) -> "Speed":
        """Return what the steps of a phase are measured against."""
        taken = engine.footprint(0, 0.0)
        return cls(epochs, processes, processes + (0 if taken.shares else taken.gpus))

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
        return found
