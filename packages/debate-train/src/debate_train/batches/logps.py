"""Log-probabilities of given tokens without keeping the logits of a whole batch."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from debate_train.batches.attention import forward_inputs
from debate_train.batches.packs import Pack

if TYPE_CHECKING:
    from transformers import PreTrainedModel


GPU_CHUNK_LOGITS = 1 << 26
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
        chunk = max(1, GPU_CHUNK_LOGITS // weight.shape[0])
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


CHUNK_LOGITS = 1 << 21
"""Logits held at once on a CPU; a chunk of tokens is this over the vocabulary's size."""


class _TokenLogps(torch.autograd.Function):
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
        chunk = max(1, CHUNK_LOGITS // weight.shape[0])
        logps = hidden.new_empty(len(targets), dtype=_wide(hidden.dtype))
        entropies, chances = torch.empty_like(logps), None
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part], weight, temperatures[part], cap)
            chances = logits.softmax(-1)
            # The log of the softmax's denominator, from the likeliest token; no third array.
            best, where = logits.max(-1)
            norms = best - chances.gather(1, where[:, None])[:, 0].log()
            logps[part] = logits.gather(1, targets[part, None])[:, 0] - norms
            entropies[part] = norms - torch.linalg.vecdot(chances, logits)
        # What fits into one chunk is kept: recomputing it would save no memory at the peak.
        # Capped logits are needed for the slope of the cap, too.
        kept = chances if len(targets) <= chunk and cap is None else None
        ctx.save_for_backward(hidden, weight, targets, temperatures, kept)
        ctx.chunk, ctx.cap = chunk, cap
        ctx.mark_non_differentiable(entropies)
        return logps, entropies

    @staticmethod
    def backward(ctx: Any, grad_logps: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, temperatures, kept = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros_like(weight, dtype=_wide(weight.dtype))
        for start in range(0, len(targets), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            bent = None
            if kept is None:
                logits = _logits(hidden[part], weight, temperatures[part], ctx.cap)
                slope = logits.softmax(-1)
                if ctx.cap is not None:  # d cap·tanh(z/cap) / dz = 1 - tanh²(z/cap)
                    bent = 1 - (logits * (temperatures[part, None] / ctx.cap)) ** 2
            else:
                slope = kept.clone()
            # d logp[x] / d logits = (onehot(x) - softmax) / T
            slope.scatter_add_(1, targets[part, None], -torch.ones_like(slope[:, :1]))
            slope *= (-grad_logps[part] / temperatures[part])[:, None]
            if bent is not None:
                slope *= bent
            narrow = slope.to(weight.dtype)
            grad_hidden[part] = (narrow @ weight).to(hidden.dtype)
            if grad_weight is None:
                continue
            if narrow.dtype == grad_weight.dtype:
                grad_weight.addmm_(narrow.T, hidden[part])
            else:  # Products in half precision, their sum in float32.
                grad_weight += narrow.T @ hidden[part].to(narrow.dtype)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None


def _logits(hidden: Tensor, weight: Tensor, temperatures: Tensor, cap: float | None) -> Tensor:
    logits = (hidden @ weight.T).to(_wide(hidden.dtype))
    if cap is not None:
        logits.div_(cap).tanh_().mul_(cap)
    return logits.div_(temperatures[:, None])


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which probabilities are computed: float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def hidden_logps(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperatures: Tensor, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies of an output head, both of shape (A,).

    Args:
        hidden: what predicts each target, shape (A, D).
        weight: of the head, shape (V, D).
        targets: token ids.
        temperatures: that logits are divided by.
        cap: logits z are cap · tanh(z / cap) before that, as in Gemma 2; None leaves them.
    """
    way = FusedTokenLogps if weight.is_cuda else _TokenLogps
    heat = temperatures.to(_wide(hidden.dtype))
    found: tuple[Tensor, Tensor] = way.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, heat, cap
    )
    return found


def token_logps(model: nn.Module, pack: Pack) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each action and the entropy where it was drawn.

    Args:
        model: a causal language model of transformers, or peft around one; a flat pack needs
            `attending_packs` around this call and its backward pass.
        pack: on the model's device.

    Returns:
        logps and entropies in nats at each action's temperature, shape (A,); the entropy carries
        no gradient.
    """
    base: PreTrainedModel = model
    if hasattr(model, "get_base_model"):  # peft's wrapper; the adapters stay in the layers.
        base = base.get_base_model()
    hidden_BTD = base.base_model(**forward_inputs(pack)).last_hidden_state
    hidden_AD = hidden_BTD.flatten(0, 1)[pack.sources_A]
    head = base.get_output_embeddings()
    cap = getattr(base.config.get_text_config(), "final_logit_softcapping", None)
    with _scoring(head, cap):
        logps_A, entropies_A = head(hidden_AD, pack.targets_A, pack.temperatures_A)
    return logps_A, entropies_A


@contextmanager
def _scoring(head: Any, cap: float | None) -> Iterator[None]:
    """Let the output head return log-probabilities in place of logits.

    It is called as a module because ZeRO-3 makes its weight whole only for that, and again for
    the backward pass.
    """

    def score(hidden: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        return hidden_logps(hidden, head.weight, targets, temperatures, cap)

    head.forward = score
    try:
        yield
    finally:
        del head.forward
