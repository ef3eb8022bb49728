"""Log-probabilities of given tokens without keeping the logits of a whole batch."""

from typing import Any

import torch
from torch import Tensor, nn

CHUNK_LOGITS = 1 << 22
"""Logits held at once; a chunk of tokens is this over the vocabulary's size."""


class _TokenLogps(torch.autograd.Function):
    """Per-token log softmax(h·Wᵀ/T)[target] in chunks, logits recomputed for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperatures: Tensor
    ) -> tuple[Tensor, Tensor]:
        chunk = max(1, CHUNK_LOGITS // weight.shape[0])
        logps = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logps)
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            all_logps = _log_softmax(hidden[part], weight, temperatures[part])
            logps[part] = all_logps.gather(1, targets[part, None])[:, 0]
            entropies[part] = -(all_logps.exp() * all_logps).sum(1)
        ctx.save_for_backward(hidden, weight, targets, temperatures)
        ctx.chunk = chunk
        ctx.mark_non_differentiable(entropies)
        return logps, entropies

    @staticmethod
    def backward(ctx: Any, grad_logps: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, temperatures = ctx.saved_tensors
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32)
        for start in range(0, len(targets), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            # d logp[x] / d logits = (onehot(x) - softmax) / T
            slope = _log_softmax(hidden[part], weight, temperatures[part]).exp_().neg_()
            slope.scatter_add_(1, targets[part, None], torch.ones_like(slope[:, :1]))
            slope *= (grad_logps[part] / temperatures[part])[:, None]
            grad_hidden[part] = (slope.to(weight.dtype) @ weight).to(hidden.dtype)
            if ctx.needs_input_grad[1]:
                grad_weight += slope.T @ hidden[part].float()
        return (
            grad_hidden,
            grad_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )


def _log_softmax(hidden: Tensor, weight: Tensor, temperatures: Tensor) -> Tensor:
    return torch.log_softmax((hidden @ weight.T).float() / temperatures[:, None], dim=-1)


def token_logps(
    model: nn.Module, tokens_BT: Tensor, targets_BT: Tensor, temperatures_BT: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each wanted token and the entropy there.

    Args:
        model: a causal language model of transformers, or peft around one.
        tokens_BT: right-padded ids; causal attention never looks at the padding.
        targets_BT: which positions to score, as a boolean mask; never the first of a row.
        temperatures_BT: that the logits are divided by, aligned with the target token.

    Returns:
        logps and entropies in nats, shape (number of targets,), in row order; the entropy
        carries no gradient.
    """
    base: Any = model
    if hasattr(model, "get_base_model"):  # peft's wrapper; the adapters stay in the layers.
        base = base.get_base_model()
    hidden_BTD = base.base_model(input_ids=tokens_BT, use_cache=False).last_hidden_state
    wanted = targets_BT[:, 1:]
    hidden = hidden_BTD[:, :-1][wanted]
    weight = base.get_output_embeddings().weight
    targets, temperatures = tokens_BT[:, 1:][wanted], temperatures_BT[:, 1:][wanted]
    logps, entropies = _TokenLogps.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, temperatures
    )
    return logps, entropies
