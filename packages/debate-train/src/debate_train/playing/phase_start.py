"""The weights that a phase of self-play began with, as opponents of what it has become."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from debate_protocol.types import TRAINED, Reply, roles_of
from debate_rollout.engine import Capability, Engine, Request, Weights
from debate_rollout.routing import ForwardingEngine
from debate_train.checkpointing.directory_layout import written
from debate_train.checkpointing.whole_files import whole_file
from debate_train.evaluation import Opponents
from debate_train.evaluation.settings import Setup
from debate_train.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor


MODE, POLICY = "start", "phase_start"
"""The mode in which the policy meets its start, and how transcripts name that policy."""
FILE = "phase_start.safetensors"
_SERVED: frozenset[Capability] = frozenset(("full_weights", "lora"))


def start_mode(recipe: Recipe) -> Opponents | None:
    """Return the mode in which a phase is measured against its start, None where it is not.

    That is where one policy plays all roles, in training and in the debates of several rounds that
    are evaluated, learns from what it samples, and has an engine that answers batch by batch, into
    which two sets of weights are loaded in turn at little cost. A mode that the recipe names
    `start`, or null, takes its place.
    """
    engine, evaluation = recipe.rollout.engine, recipe.evaluation
    batches = engine.is_sampled and "streams" not in engine.capabilities
    learns = not recipe.loss.supervised and recipe.offline is None
    if MODE in evaluation.modes or evaluation.questions == 0 or not (batches and learns):
        return None
    form = recipe.evaluated().form
    roles = (*roles_of(form.protocol()), *roles_of(recipe.debate.protocol()))
    is_self_play = all(role.policy == TRAINED and role.adapter is None for role in roles)
    if not (engine.capabilities & _SERVED and is_self_play and form.max_rounds > 1):
        return None
    mode = Opponents(opponent=POLICY, in_turn=True)
    try:
        return mode if len(mode.plays(form)) > 1 else None
    except ValueError:  # A form whose roles nobody else can have.
        return None


def start_lines(recipe: Recipe) -> list[str]:
    """Say what evaluations play against the start of the phase, if anything."""
    mode = start_mode(recipe)
    if mode is None:
        return []
    return [f"  evaluations from its start on also have {mode.counted(recipe.evaluated().form)}"]


@dataclass(frozen=True, slots=True)
class PhaseStart:
    """The start of one phase, and the mode that plays against it."""

    mode: Opponents
    weights: Weights

    @classmethod
    def begun(cls, mode: Opponents, weights: Weights, folder: Path, phase: str) -> "PhaseStart":
        """Keep a copy of the weights, in memory and in the run directory."""
        from safetensors.torch import save_file

        tensors = {
            name: tensor.detach().cpu().clone().contiguous()
            for name, tensor in weights.tensors.items()
        }
        with written(folder / FILE), whole_file(folder / FILE) as unfinished:
            save_file(tensors, unfinished, metadata=_said(phase, tensors))
        return cls(mode, replace(weights, tensors=tensors))

    @classmethod
    def kept(cls, mode: Opponents, like: Weights, folder: Path, phase: str) -> "PhaseStart | None":
        """Return what `begun` kept of this phase; None where nothing can be read.

        Args:
            mode: The mode.
            like: Weights of the same names and shapes.
            folder: The run directory.
            phase: The name of the phase.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(folder / FILE, framework="pt") as file:
                said = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            return None
        if said != _said(phase, tensors):
            return None
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if shapes != {name: tuple(tensor.shape) for name, tensor in like.tensors.items()}:
            return None
        return cls(mode, replace(like, tensors=tensors))

    def added_to(self, setup: Setup) -> Setup:
        """Return what an evaluation is made with, this mode as its last."""
        return replace(setup, modes={**setup.modes, MODE: self.mode})

    def beside(self, engine: Engine, current: Weights) -> Engine:
        """Return the engine with both policies; `current` are the weights that it serves."""
        return _InTurn(engine, self.weights, current)


def _said(phase: str, tensors: "Mapping[str, Tensor]") -> dict[str, str]:
    """Return what the file says of itself: the phase, and a hash of all names and values.

    It is one entry, as the order in which several are written is not always the same.
    """
    import torch

    digest = hashlib.sha256(phase.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return {"sha256": digest.hexdigest()}


class _InTurn(ForwardingEngine):
    """An engine that serves the start where an ask names it; else, and afterwards, the policy."""

    def __init__(self, engine: Engine, start: Weights, current: Weights) -> None:
        super().__init__(engine)
        self._start, self._current = start, current

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        replies: dict[int, Reply] = {}
        old = [n for n, request in enumerate(requests) if request.ask.policy == POLICY]
        if old:
            self._engine.load(self._start)
            try:
                found = self._engine.generate([requests[n] for n in old])
            finally:
                self._engine.load(self._current)
            replies |= dict(zip(old, found, strict=True))
        now = [n for n in range(len(requests)) if n not in replies]
        if now:
            found = self._engine.generate([requests[n] for n in now])
            replies |= dict(zip(now, found, strict=True))
        return [replies[n] for n in range(len(requests))]

    def load(self, weights: Weights) -> None:
        self._current = weights
        super().load(weights)
