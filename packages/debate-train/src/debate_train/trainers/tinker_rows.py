"""Rows as datums of the Tinker interface, with the gradient of our loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tinker import types

from debate_train.batches.row_types import Floats, Row, needed_tokens
from debate_train.errors import RunFailure

ROWS_AT_ONCE = 16
"""Rows are sent in multiples of this number: servers compile for each count."""
_PADDING = types.Datum(
    model_input=types.ModelInput.from_ints([0]),
    loss_fn_inputs={
        "target_tokens": types.TensorData.from_numpy(np.zeros(1, np.int64)),
        "weights": types.TensorData.from_numpy(np.zeros(1, np.float32)),
        "logprobs": types.TensorData.from_numpy(np.zeros(1, np.float32)),
        "advantages": types.TensorData.from_numpy(np.zeros(1, np.float32)),
    },
)


@dataclass(frozen=True, slots=True)
class Reduction:
    """How a server adds up losses: a mean over a row's weighted tokens, a mean over rows."""

    divides_by_tokens: bool
    divides_by_rows: bool

    def scale(self, num_tokens: int, num_rows: int) -> float:
        """Compute the factor of advantages against the divisors of the server."""
        factor = 1.0
        if self.divides_by_tokens:
            factor *= num_tokens
        if self.divides_by_rows:
            factor *= num_rows
        return factor


PLAIN = Reduction(divides_by_tokens=False, divides_by_rows=False)
"""A server without divisors."""


@dataclass(frozen=True, slots=True)
class SentRow:
    """A row with the values of its sampled tokens, each of shape (A,).

    `slopes` are advantages times weights, the factors of ratios; `old_logps` are the denominators
    of ratios.
    """

    row: Row
    slopes: NDArray[np.float64]
    old_logps: Floats


def datums(rows: Sequence[SentRow], reduction: Reduction) -> list[types.Datum]:
    """Build the datums of an update, padded to a multiple of `ROWS_AT_ONCE`.

    The losses are linear in the advantage: it takes the weight of each token and the server's
    divisors. Sent weights only mark the sampled tokens: a server may divide their size away.

    Args:
        rows: Rows with sampled tokens; their values must be finite.
        reduction: How the server adds up.
    """
    num_padding = -len(rows) % ROWS_AT_ONCE
    num_rows = len(rows) + num_padding
    built = []
    for sent in rows:
        scale = reduction.scale(len(sent.slopes), num_rows)
        built.append(datum(sent, scale))
    return built + [_PADDING] * num_padding


def datum(sent: SentRow, scale: float, *, with_weights: bool = True) -> types.Datum:
    """Build the datum of a row: input `tokens[:-1]`, targets `tokens[1:]`.

    Raises:
        RunFailure: A value is not finite; servers do not check it.
    """
    # Tokens after the last sampled one predict nothing.
    tokens = sent.row.tokens[: needed_tokens(sent.row) + 1]
    # The token at index t is target t - 1.
    targets_A = sent.row.sampled_positions - 1
    advantages = np.zeros(len(tokens) - 1, np.float32)
    logps = np.zeros(len(tokens) - 1, np.float32)
    weights = np.zeros(len(tokens) - 1, np.float32)
    advantages[targets_A] = sent.slopes * scale
    logps[targets_A] = sent.old_logps
    weights[targets_A] = 1
    if not (np.isfinite(advantages).all() and np.isfinite(logps).all()):
        raise RunFailure(
            f"a row of debate {sent.row.debate}, agent {sent.row.agent}: found advantages or "
            "log-probabilities that are not finite; expected finite ones"
        )
    inputs = {
        "target_tokens": types.TensorData.from_numpy(tokens[1:].astype(np.int64)),
        "logprobs": types.TensorData.from_numpy(logps),
        "advantages": types.TensorData.from_numpy(advantages),
    }
    if with_weights:
        inputs["weights"] = types.TensorData.from_numpy(weights)
    return types.Datum(types.ModelInput.from_ints(tokens[:-1].tolist()), inputs)


def logps_of(
    outputs: Sequence[dict[str, types.TensorData]], rows: Sequence[Row]
) -> list[NDArray[np.float64]]:
    """Select the log-probabilities of each row's sampled tokens; padding comes last.

    Raises:
        RunFailure: The server gave others than asked for, or some not finite.
    """
    logps = []
    for output, row in zip(outputs, rows, strict=False):
        values = np.asarray(output["logprobs"].to_numpy(), np.float64)
        if len(values) != needed_tokens(row) or not np.isfinite(values).all():
            raise RunFailure(
                f"a row of {needed_tokens(row)} targets: the server gave {len(values)} "
                "log-probabilities, or some that are not finite; expected a finite one a target"
            )
        logps.append(values[row.sampled_positions - 1])
    if len(logps) != len(rows):
        raise RunFailure(f"{len(rows)} rows: the server answered {len(logps)}; expected all")
    return logps
