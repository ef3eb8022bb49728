"""Phases on a server of the Tinker interface: conflicts, its answer to a check, costs."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from debate_rollout.engine import EngineConfigError
from debate_rollout.engines.tinker import served_models
from debate_train.losses import Loss
from debate_train.trainers.tinker import SERVED_ALPHA, SERVED_LOSSES, TinkerTrainer

if TYPE_CHECKING:
    from debate_train.recipe.recipe import Recipe


_PATIENCE_S = 10.0
"""Most seconds of a check's question to a server."""


def ask_server(recipe: "Recipe") -> tuple[list[str], list[str], list[str]]:
    """Ask the server of a trainer for its models; collect lines, warnings and errors."""
    trainer = next(iter(recipe.phase_recipes().values())).trainer
    if not isinstance(trainer, TinkerTrainer):
        return [], [], []
    try:
        served = served_models(trainer.base_url, _PATIENCE_S)
    except EngineConfigError as error:
        return [], [], [str(error)]
    except (OSError, ValueError) as error:
        return [], [f"trainer.base_url: {trainer.base_url} gave no answer ({error})"], []
    line = f"server: {trainer.base_url} has {', '.join(served)}"
    names = trainer.base_names(recipe.model)
    if set(names) & set(served):
        return [line], [], []
    error_text = f"trainer.base_model: found {names[-1]}; expected one of {', '.join(served)}"
    return [line], [], [error_text]


def cost_lines(name: str, phase: "Recipe", num_turns: int, most_rows: tuple[int, int]) -> list[str]:
    """Bound a phase's tokens on a server, without evaluations.

    Args:
        name: Of the phase.
        phase: As a whole recipe.
        num_turns: Turns of a step.
        most_rows: Rows of a step, and tokens of the longest.
    """
    num_rows, row_tokens = most_rows
    max_tokens = phase.rollout.max_tokens
    prompt_tokens = phase.steps * num_turns * (row_tokens - max_tokens)
    sampled_tokens = phase.steps * num_turns * max_tokens
    trained_tokens = phase.steps * num_rows * row_tokens * phase.trainer.epochs
    return [
        f"phase {name}: the server holds weights and memory; it samples from at most "
        f"{prompt_tokens:,} tokens of prompts, {sampled_tokens:,} of replies, and trains on at "
        f"most {trained_tokens:,}, without evaluations"
    ]


def served_conflicts(phase: "Recipe") -> Iterator[str]:
    """Yield each conflict with the server, with the key to change and the reason."""
    if phase.phases:  # Each phase is checked as a whole recipe.
        return
    engine = phase.rollout.engine
    trainer = phase.trainer
    if engine.serves_trainer not in (None, trainer.type):
        yield (
            f"trainer.type: found {trainer.type} with rollout.engine.type {engine.type}, which "
            f"samples on the server that trains; expected {engine.serves_trainer}"
        )
    if not isinstance(trainer, TinkerTrainer):
        return
    if engine.is_sampled and engine.serves_trainer != trainer.type:
        yield (
            f"rollout.engine.type: found {engine.type} with trainer.type tinker, whose weights "
            "stay on the server; expected tinker"
        )
    yield from _adapter_conflicts(phase)
    yield from _loss_conflicts(phase.loss)
    if phase.pipeline.max_staleness > 0:
        yield (
            f"pipeline.max_staleness: found {phase.pipeline.max_staleness}; expected 0: a client "
            "of older weights that samples puts them back over the trained ones"
        )


def _adapter_conflicts(phase: "Recipe") -> Iterator[str]:
    lora = phase.model.lora
    if lora is None:
        yield (
            "model.lora: found null; expected {rank: 16, alpha: 32}: servers of this interface "
            "train adapters alone"
        )
        return
    if lora.alpha != SERVED_ALPHA:
        yield (
            f"model.lora.alpha: found {lora.alpha:g}; expected {SERVED_ALPHA:g}, which servers of "
            "this interface always use"
        )
    if lora.adapters:
        yield (
            f"model.lora.adapters: found {', '.join(lora.adapters)}; expected none: trainer tinker "
            "trains one adapter"
        )


def _loss_conflicts(loss: Loss) -> Iterator[str]:
    if loss.type not in SERVED_LOSSES:
        yield (
            f"loss.type: found {loss.type}, which servers of this interface do not have; expected "
            f"one of {', '.join(sorted(SERVED_LOSSES))}"
        )
    elif loss.reference_policy is not None:
        yield (
            "loss.kl.weight: found more than 0; expected 0: servers of this interface have no "
            "penalty, and its gradient is not that of an advantage"
        )
    if getattr(loss, "dual_clip", None) is not None:
        yield "loss.dual_clip: found a number; expected null: servers of this interface have none"
