"""Log-probabilities of an output head on a GPU, where memory traffic and not arithmetic decides.

`logps.py` passes over its logits a dozen times, as a CPU may: there they stay in the cache. On a
GPU each pass reads and writes gigabytes. Here everything that is done to a chunk of logits is one
function that PyTorch compiles into one kernel; it reads them in the model's type, and computes in
float32. Where no compiler works the same functions run step by step.
"""

import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

CHUNK_LOGITS = 1 << 26
"""Logits held at once; smaller products leave most of a GPU idle."""


class FusedTokenLogps(torch.autograd.Function):
    """Per-token log softmax(cap(h·Wᵀ)/T)[target] in chunks, recomputed for the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies; arguments are those of `hidden_logps`."""
        chunk = max(1, CHUNK_LOGITS // weight.shape[0])
        logps = temperatures.new_empty(len(targets))
        entropies, norms = torch.empty_like(logps), torch.empty_like(logps)
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            logits = hidden[part] @ weight.T
            logps[part], entropies[part], norms[part] = _chunk_logps(
                logits, targets[part], temperatures[part], cap
            )
        ctx.save_for_backward(hidden, weight, targets, temperatures, norms)
        ctx.chunk, ctx.cap = chunk, cap
        ctx.mark_non_differentiable(entropies)
        return logps, entropies

    @staticmethod
    def backward(ctx: Any, grad_logps: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states and weight."""
        hidden, weight, targets, temperatures, norms = ctx.saved_tensors
        grad_hidden, grad_weight = torch.empty_like(hidden), None
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros_like(weight, dtype=temperatures.dtype)
        for start in range(0, len(targets), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits = hidden[part] @ weight.T
            given = (targets[part], temperatures[part], norms[part], grad_logps[part])
            slopes = _chunk_slopes(logits, *given, ctx.cap)
            grad_hidden[part] = slopes @ weight
            if grad_weight is not None:
                _add_product(grad_weight, slopes, hidden[part])
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None


def _add_product(total: Tensor, slopes: Tensor, hidden: Tensor) -> None:
    """Add slopesᵀ · hidden to a sum in float32, whatever the type of the two is."""
    if slopes.dtype == total.dtype:
        total.addmm_(slopes.T, hidden)
    else:  # One kernel multiplies in half precision and adds in float32.
        torch.addmm(total, slopes.T, hidden, out_dtype=total.dtype, out=total)


def _scaled(logits: Tensor, temperatures: Tensor, cap: float | None) -> Tensor:
    wide = logits.to(temperatures.dtype)
    if cap is not None:
        wide = cap * torch.tanh(wide / cap)
    return wide / temperatures[:, None]


def chunk_logps(
    logits: Tensor, targets: Tensor, temperatures: Tensor, cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities, entropies and log-denominators of a chunk, each of shape (A,).

    Args:
        logits: of the head before cap and temperature, shape (A, V).
        targets: token ids, shape (A,).
        temperatures: shape (A,); their type is that of the result.
        cap: of the logits, None for none.
    """
    scaled = _scaled(logits, temperatures, cap)
    norms = torch.logsumexp(scaled, -1)
    chances = (scaled - norms[:, None]).exp()
    logps = scaled.gather(1, targets[:, None])[:, 0] - norms
    return logps, norms - (chances * scaled).sum(-1), norms


def chunk_slopes(
    logits: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    norms: Tensor,
    grad_logps: Tensor,
    cap: float | None,
) -> Tensor:
    """Return the gradient of a chunk's logits, shape (A, V), in their type.

    d logp[x] / d z = (onehot(x) - softmax) / T, times 1 - tanh²(z / cap) where logits are capped.
    """
    scaled = _scaled(logits, temperatures, cap)
    words = torch.arange(logits.shape[1], device=logits.device)
    hot = (words[None] == targets[:, None]).to(scaled.dtype)
    slopes = (hot - (scaled - norms[:, None]).exp()) * (grad_logps / temperatures)[:, None]
    if cap is not None:
        slopes = slopes * (1 - (scaled * (temperatures[:, None] / cap)) ** 2)
    return slopes.to(logits.dtype)


class _Compiled:
    """A function that is compiled at its first call, or not at all where that fails."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._compiled: Callable[..., Any] | None = torch.compile(function, dynamic=True)

    def __call__(self, *given: object) -> Any:
        from torch._dynamo.exc import TorchDynamoException

        if self._compiled is None or not compiles(cast(Tensor, given[0])):
            return self._function(*given)
        try:
            return self._compiled(*given)
        except TorchDynamoException as error:
            self._compiled = None
            warnings.warn(
                f"the output head is not compiled, which makes training slower: {error}",
                stacklevel=2,
            )
            return self._function(*given)


def compiles(logits: Tensor) -> bool:
    """Return whether functions of these logits are compiled."""
    from torch._subclasses.fake_tensor import FakeTensor

    return logits.is_cuda and not isinstance(logits, FakeTensor)


_chunk_logps, _chunk_slopes = _Compiled(chunk_logps), _Compiled(chunk_slopes)
