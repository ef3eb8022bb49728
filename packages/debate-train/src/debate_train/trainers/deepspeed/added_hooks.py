"""Takes away what an engine added to a model and did not take with it."""

from collections.abc import Callable, Iterator

from torch import nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def remover_of_additions(model: nn.Module) -> Callable[[], None]:
    """Return a call that removes the hooks and attributes that the model gets from now on.

    DeepSpeed's `destroy` leaves the engine's hooks on the modules and bound methods on the
    parameters. Through them a phase that is over would keep its float32 weights and moments, 12
    bytes a parameter, until the end of the run, and its hooks would run in the next phase.
    """
    before = {id(place): set(place) for place in _places(model)}

    def remove() -> None:
        for place in _places(model):
            for key in set(place) - before.get(id(place), set()):
                del place[key]

    return remove


def _places(model: nn.Module) -> Iterator[dict[str, object]]:
    for module in model.modules():
        yield from (getattr(module, name) for name in _HOOKS)
    for parameter in model.parameters():
        yield parameter.__dict__
