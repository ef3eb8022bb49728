"""Log-probabilities of given tokens without keeping the logits of a whole batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from debate_train.packed_rows.fused_head import FusedTokenLogps
from debate_train.packed_rows.packed_attention import forward_inputs
from debate_train.packed_rows.packs import Pack

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
