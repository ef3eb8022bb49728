"""Probes of a server: how it adds up losses, and gradients left in its places."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from tinker import types

from debate_rollout.engines.tinker import CALL_TIMEOUT_S
from debate_train.batches.row_types import Row, needed_tokens
from debate_train.errors import RunFailure
from debate_train.trainers.tinker_rows import PLAIN, Reduction, SentRow, datum, datums

if TYPE_CHECKING:
    from tinker import TrainingClient

    from debate_train.trainers.tinker import TinkerTrainer


_NUM_TRAINED = 8
PROBE_ROW = Row.of_tokens(
    tokens=np.arange(1, 33), mask=np.arange(32) >= 32 - _NUM_TRAINED, agent=0, debate=0
)
"""A row of 31 targets, 8 of them trained; any model has these ids."""
_TOLERANCE = 0.02


def probe(config: "TinkerTrainer", client: "TrainingClient") -> Reduction:
    """Find out how a server adds up losses, and clear the adapter's place.

    A run killed between its gradient and its step leaves the gradient in the place, and the next
    adapter there would take it into its moments. The first step, of rate 0, drops it.

    Args:
        config: Of the trainer.
        client: Of a new adapter, unloaded afterwards.

    Raises:
        RunFailure: The server adds up in no known way, or does not say the gradient's norm.
    """
    _norm_after(config, client, [])
    sent = SentRow(PROBE_ROW, np.ones(_NUM_TRAINED), np.full(_NUM_TRAINED, -4.0, np.float32))
    # All passes have one shape: what is added are empty rows, and whole passes of them.
    row, *padding = datums([sent], PLAIN)
    empty = datum(replace(sent, slopes=np.zeros(_NUM_TRAINED)), 1.0)
    norms = [
        _norm_after(config, client, [[datum(sent, 1.0, with_weights=False), *padding]]),
        _norm_after(config, client, [[row, *padding]]),
        _norm_after(config, client, [[row, *padding], [empty, *padding]]),
    ]
    unweighed, weighed, beside_empty_rows = norms
    if not min(norms) > 0:
        raise RunFailure(f"{config.base_url}: found gradients of norm {norms}; expected some")
    divides_by_tokens = _is_divided(weighed / unweighed, needed_tokens(PROBE_ROW) / _NUM_TRAINED)
    divides_by_rows = _is_divided(weighed / beside_empty_rows, 2.0)
    if divides_by_tokens is None or divides_by_rows is None:
        raise RunFailure(
            f"{config.base_url}: found gradients of norm {norms} for one row without weights, with "
            "weights, and beside as many empty rows again; expected those of a mean or of a sum "
            "over tokens and rows"
        )
    return Reduction(divides_by_tokens, divides_by_rows)


def norm_of(metrics: Mapping[str, float] | None) -> float | None:
    """Find the norm of the gradient in the metrics of `optim_step`, if any."""
    for name, value in (metrics or {}).items():
        if name.rpartition("/")[2] == "grad_norm":
            return float(value)
    return None


def _norm_after(
    config: "TinkerTrainer", client: "TrainingClient", passes: Sequence[list[types.Datum]]
) -> float:
    """Compute the norm of the gradient of some passes; a step of rate 0 drops it."""
    for rows in passes:
        future = client.forward_backward(rows, "importance_sampling")
        future.result(timeout=CALL_TIMEOUT_S)
    parameters = types.AdamParams(learning_rate=0.0)
    response = client.optim_step(parameters).result(timeout=CALL_TIMEOUT_S)
    norm = norm_of(response.metrics)
    if norm is None:
        raise RunFailure(
            f"{config.base_url}: optim_step gives no norm of the gradient, which shows how the "
            "server adds up losses; expected one in its metrics"
        )
    return norm


def _is_divided(quotient: float, divisor: float) -> bool | None:
    """Say whether a quotient of norms is the divisor rather than 1; None where it is neither."""
    if abs(quotient - divisor) < _TOLERANCE * divisor:
        return True
    if abs(quotient - 1) < _TOLERANCE:
        return False
    return None
