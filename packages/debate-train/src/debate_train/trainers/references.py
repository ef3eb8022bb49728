"""Reference policies, which a KL penalty or a preference loss compares with the trained policy.

A reference turns the model itself into the other policy for a while, so the same forward pass
serves both, sharded models included. Only parameters with other values are stored, in CPU memory;
each process stores shards.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from debate_train.checkpoints.policy_files import StoredTensors, stored_policy
from debate_train.errors import ModelError
from debate_train.losses import reference_error

if TYPE_CHECKING:
    from peft import PeftModel

    from debate_train.losses import ReferencePolicy
    from debate_train.models.loaded_model import LoadedModel

REFERENCE = "reference"
"""Prefix of a reference's files in a checkpoint."""
Read = Callable[[str], Tensor]
"""Reads the whole value of a parameter by name."""


class AdapterOff:
    """The model without the adapter."""

    def __init__(self, model: nn.Module) -> None:
        self._model: PeftModel = model

    def acting(self) -> AbstractContextManager[None]:
        """Let the model be this policy for a while."""
        disabled: AbstractContextManager[None] = self._model.disable_adapter()
        return disabled


class KeptReference:
    """A copy of parameters at the time of construction; writes while it acts change the copy.

    Args:
        parameters: parameters with other values than the trained policy's, by name.
        settle: drops gathered parameters of a sharded model; called before values change.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], settle: Callable[[], None] | None = None
    ) -> None:
        self.parameters = parameters
        self._settle = settle or (lambda: None)
        self._other_values: dict[str, Tensor] = {}
        for name, parameter in parameters.items():
            self._other_values[name] = _local_tensor(parameter).detach().to("cpu", copy=True)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Exchange the model's values with the copy for a while."""
        exchanged: list[str] = []
        self._settle()
        try:
            for name in self.parameters:
                self._exchange(name)
                exchanged.append(name)
            yield
        finally:
            # Only what was exchanged: an interrupt may come in the middle of the loop above.
            self._settle()
            for name in exchanged:
                self._exchange(name)

    @torch.no_grad()
    def _exchange(self, name: str) -> None:
        tensor = _local_tensor(self.parameters[name])
        new_value = self._other_values[name]
        # In place: a second copy of the model on its device could be too much.
        self._other_values[name] = tensor.detach().to("cpu", copy=True)
        tensor.copy_(new_value)


def _local_tensor(parameter: nn.Parameter) -> Tensor:
    # A parameter that DeepSpeed split is empty; its shard on this rank is `ds_tensor`.
    tensor: Tensor = getattr(parameter, "ds_tensor", parameter)
    return tensor


Reference = AdapterOff | KeptReference
"""A policy that is not trained; all processes of a model exchange it together."""


def open_reference(
    policy: "ReferencePolicy | None", model: nn.Module, settle: Callable[[], None] | None = None
) -> Reference | None:
    """Open the reference with the model's present values.

    Values of `values_of`, if any, must be written while it acts.
    """
    if policy is None:
        return None
    if policy == "base" and hasattr(model, "disable_adapter"):
        return AdapterOff(model)
    # Frozen parameters are the same in both policies.
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return KeptReference(trained, settle)


def in_checkpoints(
    policy: "ReferencePolicy | None", reference: Reference | None
) -> KeptReference | None:
    """Select a reference that must be in checkpoints, as nothing else can restore it."""
    if policy == "phase_start" and isinstance(reference, KeptReference):
        return reference
    return None


def stored_reference(directory: Path) -> Read:
    """Open the values of the phase's start in a checkpoint.

    Raises:
        ModelError: The checkpoint was written by a loss without this reference.
    """
    tensors = StoredTensors.of(directory, REFERENCE)
    if not tensors.names():
        raise ModelError(
            f"loss: found the reference phase_start, of which checkpoint {directory} keeps "
            "nothing; expected its own loss, or as reference base or a directory with weights"
        )
    return tensors.read


def values_of(policy: "ReferencePolicy | None", loaded: "LoadedModel") -> Read | None:
    """Load the parameters of a reference, unless the present model has them: then `None`.

    Raises:
        ModelError: The directory holds no such policy.
    """
    if policy is None or policy == "phase_start" or (policy == "base" and loaded.lora is not None):
        return None
    if policy == "base":
        # An earlier phase trained the weights; the base is the model as it was first loaded.
        assert loaded.again is not None
        tensors = dict(loaded.again().named_parameters())
        return lambda name: tensors[name].detach()

    directory = policy
    if problem := reference_error(directory):
        raise ModelError(problem)
    try:
        read = stored_policy(directory, loaded)
        # Read every value once now, so that a wrong shape is refused before the first step.
        for name, parameter in loaded.model.named_parameters():
            if parameter.requires_grad:
                read(name)
    except ValueError as error:
        expected = "an adapter as peft writes it" if loaded.lora else "a model of the same shape"
        raise ModelError(
            f"loss: found the reference {str(directory)!r} with another policy ({error}); "
            f"expected a directory that holds {expected}"
        ) from error
    return read
