"""Reference policies: what a KL penalty or a preference loss compares the trained policy with.

A reference lets the model itself be the other policy for a while, so that one forward pass serves
both and sharded models work alike: only what differs from the trained policy is kept, in CPU
memory, each process keeping what it holds of a parameter.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from debate_train.checkpoints.policy_files import StoredTensors, stored_policy
from debate_train.interrupts import ModelError
from debate_train.losses import reference_error

if TYPE_CHECKING:
    from peft import PeftModel

    from debate_train.losses import ReferencePolicy
    from debate_train.models.loaded_model import LoadedModel

REFERENCE = "reference"
"""How the files of a reference in a checkpoint begin."""
Read = Callable[[str], Tensor]
"""Returns the whole value of a parameter by name."""


class AdapterOff:
    """The model without its adapter."""

    def __init__(self, model: nn.Module) -> None:
        self._model: PeftModel = model

    def acting(self) -> AbstractContextManager[None]:
        """Let the model be this policy for a while."""
        off: AbstractContextManager[None] = self._model.disable_adapter()
        return off


class KeptReference:
    """Parameters as they were when this was made; what is written to them while acting is kept.

    Args:
        parameters: those that differ from the trained policy, by name.
        settle: drops what a sharded model has gathered; called before values change.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], settle: Callable[[], None] | None = None
    ) -> None:
        self.parameters, self._settle = parameters, settle or (lambda: None)
        self._kept = {
            name: _held(p).detach().to("cpu", copy=True) for name, p in parameters.items()
        }

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Let the model hold the kept values for a while."""
        changed: list[str] = []
        self._settle()
        try:
            for name in self.parameters:
                self._exchange(name)
                changed.append(name)
            yield
        finally:
            self._settle()
            for name in changed:
                self._exchange(name)

    @torch.no_grad()
    def _exchange(self, name: str) -> None:
        held, kept = _held(self.parameters[name]), self._kept[name]
        # In place: a second copy of the model on its device could be too much.
        self._kept[name] = held.detach().to("cpu", copy=True)
        held.copy_(kept)


def _held(parameter: nn.Parameter) -> Tensor:
    """Return what this process holds of a parameter: its shard where DeepSpeed split it."""
    held: Tensor = getattr(parameter, "ds_tensor", parameter)
    return held


Reference = AdapterOff | KeptReference
"""A policy that is not trained; all processes of a model let it act together."""


def open_reference(
    policy: "ReferencePolicy | None", model: nn.Module, settle: Callable[[], None] | None = None
) -> Reference | None:
    """Return the reference as far as the model alone determines it.

    Where `values_of` returns something, those values must be written while it acts.
    """
    if policy is None:
        return None
    if policy == "base" and hasattr(model, "disable_adapter"):
        return AdapterOff(model)
    return KeptReference({n: p for n, p in model.named_parameters() if p.requires_grad}, settle)


def in_checkpoints(
    policy: "ReferencePolicy | None", reference: Reference | None
) -> KeptReference | None:
    """Return the reference where only a checkpoint can bring it back, else None."""
    if policy == "phase_start" and isinstance(reference, KeptReference):
        return reference
    return None


def stored_reference(directory: Path) -> Read:
    """Return the values of the phase's start that a checkpoint holds.

    Raises:
        ModelError: The checkpoint was written by a loss that has no such reference.
    """
    tensors = StoredTensors.of(directory, REFERENCE)
    if not tensors.names():
        raise ModelError(
            f"loss: found the reference phase_start, of which checkpoint {directory} keeps "
            "nothing; expected its own loss, or as reference base or a directory with weights"
        )
    return tensors.read


def values_of(policy: "ReferencePolicy | None", loaded: "LoadedModel") -> Read | None:
    """Return the parameters of a policy that is not the model's own, None for one that is.

    Raises:
        ModelError: The directory holds no such policy.
    """
    if policy is None or policy == "phase_start" or (policy == "base" and loaded.lora is not None):
        return None
    if policy == "base":
        assert loaded.again is not None
        tensors = dict(loaded.again().named_parameters())
        return lambda name: tensors[name].detach()
    return _directory(policy, loaded)


def _directory(path: Path, loaded: "LoadedModel") -> Read:
    if found := reference_error(path):
        raise ModelError(found)
    wanted = "an adapter as peft writes it" if loaded.lora else "a model of the same shape"
    try:
        read = stored_policy(path, loaded)
        for name, parameter in loaded.model.named_parameters():
            if parameter.requires_grad:
                read(name)
    except ValueError as error:
        raise ModelError(
            f"loss: found the reference {str(path)!r} with another policy ({error}); expected a "
            f"directory that holds {wanted}"
        ) from error
    return read
