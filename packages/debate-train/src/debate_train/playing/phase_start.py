"""The policy at the start of a phase of self-play, as an opponent in evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from debate_protocol.forms import DebateForm
from debate_protocol.types import TRAINED, Reply, roles_of
from debate_rollout.engine import Capability, Engine, EngineSettings, Request, Weights
from debate_rollout.routing import ForwardingEngine
from debate_train.checkpoints.run_directory import written
from debate_train.checkpoints.whole_files import whole_file
from debate_train.evaluation import Opponents
from debate_train.evaluation.settings import Evaluation, Setup

MODE = "start"
"""The evaluation mode in which the policy meets its start."""
POLICY = "phase_start"
"""Name of the opponent in transcripts."""
FILE = "phase_start.safetensors"
_WEIGHT_KINDS: frozenset[Capability] = frozenset(("full_weights", "lora"))


def start_mode(
    evaluation: Evaluation, setup: Setup, debate: DebateForm, engine: EngineSettings
) -> Opponents | None:
    """Build the mode in which a phase is measured against its start, `None` where it is not.

    The mode needs one policy in all roles, in training and in evaluated debates of several rounds,
    and an engine that answers batch by batch, so that loading two sets of weights in turn costs
    little. A mode that the recipe names `start`, or null, takes its place.

    Args:
        evaluation: the recipe's settings.
        setup: forms and modes of the evaluation.
        debate: the form in training.
        engine: samples from the policy.
    """
    if MODE in evaluation.modes or evaluation.questions == 0:
        return None
    # A server that trains may load older weights over the trained ones when these are sampled.
    if engine.serves_trainer is not None:
        return None
    answers_batches = engine.is_sampled and "streams" not in engine.capabilities
    takes_weights = bool(engine.capabilities & _WEIGHT_KINDS)
    if not answers_batches or not takes_weights or setup.form.max_rounds <= 1:
        return None
    # Adapters and other policies have no common start to play against.
    for role in (*roles_of(setup.form.protocol()), *roles_of(debate.protocol())):
        if role.policy != TRAINED or role.adapter is not None:
            return None
    mode = Opponents(opponent=POLICY, in_turn=True)
    try:
        return mode if len(mode.plays(setup.form)) > 1 else None
    except ValueError:  # A form with roles that no other policy can have.
        return None


@dataclass(frozen=True, slots=True)
class PhaseStart:
    """The weights at the start of one phase, and the mode that plays against them."""

    mode: Opponents
    weights: Weights

    @classmethod
    def begun(cls, mode: Opponents, weights: Weights, folder: Path, phase: str) -> "PhaseStart":
        """Copy the weights, into memory and into the run directory."""
        from safetensors.torch import save_file

        # Copies, as the trainer goes on to change its own tensors.
        tensors = {}
        for name, tensor in weights.tensors.items():
            tensors[name] = tensor.detach().cpu().clone().contiguous()
        with written(folder / FILE), whole_file(folder / FILE) as unfinished:
            save_file(tensors, unfinished, metadata={"phase": phase})
        return cls(mode, replace(weights, tensors=tensors))

    @classmethod
    def kept(cls, mode: Opponents, like: Weights, folder: Path, phase: str) -> "PhaseStart | None":
        """Read the file of `begun`; `None` where it is missing, damaged or another phase's.

        Args:
            mode: the mode.
            like: weights of the same names and shapes.
            folder: the run directory.
            phase: the name of the phase.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(folder / FILE, framework="pt") as file:
                saved_phase = (file.metadata() or {}).get("phase")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            return None
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        expected_shapes = {name: tensor.shape for name, tensor in like.tensors.items()}
        if saved_phase != phase or shapes != expected_shapes:
            return None
        return cls(mode, replace(like, tensors=tensors))

    def added_to(self, setup: Setup) -> Setup:
        """Add the mode to an evaluation, as its last."""
        return replace(setup, modes={**setup.modes, MODE: self.mode})

    def beside(self, engine: Engine, current: Weights) -> Engine:
        """Wrap an engine to serve both policies; `current` are the weights it has loaded."""
        return _AlternatingEngine(engine, self.weights, current)


class _AlternatingEngine(ForwardingEngine):
    """An engine that serves the start to requests for it; else, and afterwards, the policy."""

    def __init__(self, engine: Engine, start: Weights, current: Weights) -> None:
        super().__init__(engine)
        self._start = start
        self._current = current

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        start_indices: list[int] = []
        current_indices: list[int] = []
        for index, request in enumerate(requests):
            if request.turn_request.policy == POLICY:
                start_indices.append(index)
            else:
                current_indices.append(index)

        replies: dict[int, Reply] = {}
        if start_indices:
            self._engine.load(self._start)
            try:
                start_replies = self._engine.generate([requests[index] for index in start_indices])
            finally:
                # Also after an error: the next step samples from the engine as it is.
                self._engine.load(self._current)
            replies |= dict(zip(start_indices, start_replies, strict=True))
        if current_indices:
            current_replies = self._engine.generate([requests[index] for index in current_indices])
            replies |= dict(zip(current_indices, current_replies, strict=True))
        return [replies[index] for index in range(len(requests))]

    def load(self, weights: Weights) -> None:
        self._current = weights
        super().load(weights)
