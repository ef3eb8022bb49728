"""What ZeRO-3 needs beside DeepSpeed's engine: packs through its hooks, a reference in shards."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from debate_train.logps import token_logps
from debate_train.packs import Pack
from debate_train.trainers.objective import trainable


def prepare_for_packs(engine: Any) -> None:
    """Let forward passes begin below the top module, as those of packs do.

    What the engine's own call does before the model's must be done there: start the record of
    which parameters come next, and count micro-batches, whose gradients else replace each other.
    """
    model, optimizer = engine.module, engine.optimizer
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model

    def begin(*_: object) -> None:
        optimizer.clear_backward_seen_flag()
        optimizer.parameter_offload.get_param_coordinator().reset_step()

    inner.base_model.register_forward_pre_hook(begin)


@dataclass(frozen=True, slots=True)
class ShardedReference:
    """The trained parameters as they once were, each rank holding its shards."""

    engine: Any
    shards: Mapping[str, Tensor]

    @classmethod
    def of(cls, engine: Any) -> "ShardedReference":
        """Return the policy as it is now."""
        own = trainable(engine.module)
        return cls(engine, {name: _shard(p).detach().clone() for name, p in own.items()})

    @torch.no_grad()
    def logps(self, model: nn.Module, pack: Pack) -> Tensor:
        """Return the kept policy's log-probabilities of the pack's actions, shape (A,)."""
        with self.swapped():
            return token_logps(model, pack)[0]

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Let gathered parameters hold the kept values; none stays gathered over the change."""
        parameters = trainable(self.engine.module)
        own = {name: _shard(parameter).data for name, parameter in parameters.items()}
        let_go = self.engine.optimizer.parameter_offload.partition_all_parameters
        let_go()
        try:
            for name, parameter in parameters.items():
                _shard(parameter).data = self.shards[name]
            yield
        finally:
            let_go()
            for name, parameter in parameters.items():
                _shard(parameter).data = own[name]


def _shard(parameter: nn.Parameter) -> Tensor:
    shard: Tensor = parameter.ds_tensor  # type: ignore[attr-defined]
    return shard
