"""Forward passes over packs: their attention, and log-probabilities without a batch's logits.

A node sees itself causally and its ancestors whole. So the pairs that attend to each other are
one causal block a node and, as a node's descendants follow it in the pack, one full block a node
that has some. Each block runs through torch's flash attention; outputs are united by
their log-sum-exp. No mask and no copy of keys is made.

Source: uniting blocks by log-sum-exp, Milakov & Gimelshein 2018 and Dao et al. 2022; the backward
pass of a block takes the united output and log-sum-exp, as in ring attention (Liu et al. 2023).
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from debate_train.batches.packs import Layout, Pack, make_pack
from debate_train.batches.row_types import Batch, Row, Share, let_speak
from debate_train.interrupts import ModelError, RecipeError, RunFailure

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def block_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float | None
) -> Tensor:
    """Return the attention output of a pack, shape (1, T, heads, features of a head).

    Args:
        query: shape (1, heads, T, features of a head).
        key: as the query, with as many heads or fewer (grouped queries).
        value: as the key.
        layout: of the pack.
        scale: of the products before the softmax; None is 1 / √features.
    """
    output: Tensor = _BlockAttention.apply(query, key, value, layout, scale)  # type: ignore[no-untyped-call]
    return output


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float | None
    ) -> Tensor:
        wide = torch.float64 if query.dtype == torch.float64 else torch.float32
        output = torch.empty_like(query, dtype=wide)
        total = output.new_empty(query.shape[:3])
        # First every node against itself: one causal call for all nodes of about one length.
        for blocks in layout.blocks:
            parts = [blocks.gather(x) for x in (query, key, value)]
            found, sums = _flash(*parts, 0.0, True, scale=scale)
            blocks.scatter(found, output)
            blocks.scatter(sums, total)
        # Then each node against all of its descendants at once, which follow it without a gap. Two
        # softmaxes over different keys are united by their log-sum-exps: no score is made twice.
        for start, end, until in layout.ancestor_blocks:
            below, above = slice(end, until), slice(start, end)
            found, sums = _flash(
                query[:, :, below], key[:, :, above], value[:, :, above], 0.0, False, scale=scale
            )
            united = torch.logaddexp(total[:, :, below], sums)
            output[:, :, below] *= (total[:, :, below] - united).exp_()[..., None]
            output[:, :, below] += found * (sums - united).exp_()[..., None]
            total[:, :, below] = united
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, total)
        ctx.layout, ctx.scale = layout, scale
        return output.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, total = ctx.saved_tensors
        grads = [torch.zeros_like(x) for x in (query, key, value)]
        slope = grad_output.contiguous().transpose(1, 2)
        # The united output and log-sum-exp make a block's share of the slope exact by itself.
        # Padding has a log-sum-exp of infinity: its probabilities, and so its slopes, are 0.
        for blocks in ctx.layout.blocks:
            found = _flash_backward(
                blocks.gather(slope, 0.0),
                *(blocks.gather(x) for x in (query, key, value)),
                blocks.gather(output),
                blocks.gather(total, float("inf")),
                0.0,
                True,
                scale=ctx.scale,
            )
            for grad, own in zip(grads, found, strict=True):
                blocks.scatter(own, grad)
        for start, end, until in ctx.layout.ancestor_blocks:
            below, above = slice(end, until), slice(start, end)
            found = _flash_backward(
                slope[:, :, below],
                query[:, :, below],
                key[:, :, above],
                value[:, :, above],
                output[:, :, below],
                total[:, :, below],
                0.0,
                False,
                scale=ctx.scale,
            )
            for grad, own, where in zip(grads, found, (below, above, above), strict=True):
                grad[:, :, where] += own
        return (*grads, None, None)


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: "Layout",
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Return the attention output of a pack, shape (1, T, heads, features of a head).

    Args:
        query: shape (1, heads, T, features); `key` and `value` may have fewer heads.
        key: of the pack's tokens; each run of queries is given those of its path.
        value: likewise.
        layout: which tokens of the pack see which.
        scale: of the scores; None is 1 / √features.
        window: most tokens that one sees, itself included; None is all.
    """
    from torch.nn.attention.varlen import varlen_attn

    # The kernel takes one run of keys for each run of queries: a shared prefix is copied to each
    # path that goes through it, which costs memory and not time.
    keys, values = key[0].transpose(0, 1), value[0].transpose(0, 1)
    if max(layout.parents) >= 0:  # Else every run is its own path.
        keys, values = keys[layout.keys_K], values[layout.keys_K]
    output: Any = varlen_attn(
        query[0].transpose(0, 1).contiguous(),
        keys.contiguous(),
        values.contiguous(),
        layout.query_starts_N,
        layout.key_starts_N,
        layout.longest_run,
        layout.longest_path,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),  # 0 ahead: causal, at the last key.
        enable_gqa=query.shape[1] != key.shape[1],
    )
    found: Tensor = output[None]
    return found


NAME = "debate_packed"
"""The name under which transformers finds `packed_attention`."""

_NOT_COMPUTED = ("softcap", "s_aux", "position_bias", "dropout")


class PackedAttentionError(Exception):
    """The model's attention is not what packs compute."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Return the attention output of a pack, shape (1, T, heads, features of a head).

    Called by transformers in every attention layer; `settings` holds the pack's layout, which the
    trainer gave to the model's forward.
    """
    layout: Layout = settings["pack_layout"]
    for name in _NOT_COMPUTED:
        found = settings.get(name)
        if isinstance(found, Tensor) or found:
            raise PackedAttentionError(f"attends with {name}, which packs do not compute")
    scale, window = settings.get("scaling"), settings.get("sliding_window")
    if key.device.type == "cuda" and key.dtype in (torch.bfloat16, torch.float16):
        return varlen_attention(query, key, value, layout, scale, window), None
    slides = window is not None and layout.longest_path > window
    if key.device.type == "cpu" and value.shape == key.shape and not slides:
        return block_attention(query, key, value, layout, scale), None
    shared = query.shape[1] != key.shape[1]
    outputs = []
    for node in range(len(layout.parents)):
        path = layout.path(node)
        own = path[-1]
        keys = torch.cat([key[:, :, run] for run in path], 2)
        values = torch.cat([value[:, :, run] for run in path], 2)
        outputs.append(
            functional.scaled_dot_product_attention(
                query[:, :, own],
                keys,
                values,
                attn_mask=_mask(own.stop - own.start, keys, window),
                is_causal=len(path) == 1 and not _slides(keys, window),
                scale=scale,
                enable_gqa=shared,
            )
        )
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def _slides(keys: Tensor, window: int | None) -> bool:
    return window is not None and keys.shape[2] > window


def _mask(queries: int, keys: Tensor, window: int | None) -> Tensor | None:
    """Return which keys each query sees, aligned at the last key; None where is_causal does."""
    size = keys.shape[2]
    if queries == size and not _slides(keys, window):
        return None
    sees = torch.ones(queries, size, dtype=torch.bool, device=keys.device)
    sees = sees.tril(size - queries)
    return sees if window is None else sees.triu(size - queries - window + 1)


def forward_inputs(pack: Pack) -> dict[str, object]:
    """Return what the model's forward is called with."""
    inputs: dict[str, object] = {"input_ids": pack.tokens_BT, "use_cache": False}
    if pack.layout is None:
        return inputs
    return inputs | {"position_ids": pack.positions_BT, "pack_layout": pack.layout}


def attention_of(model: nn.Module, pack: Pack) -> AbstractContextManager[None]:
    """Return the context in which a pack's forward and backward passes run, by its adapter."""
    let_speak(model, pack.adapter)
    return nullcontext() if pack.layout is None else attending_packs(model)


@contextmanager
def attending_packs(model: nn.Module) -> Iterator[None]:
    """Let the model attend as packs say, backward passes that recompute layers included."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    config: PreTrainedConfig = model.config
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


GPU_CHUNK_LOGITS = 1 << 26
"""Logits held at once; smaller products leave most of a GPU idle."""
CHUNK_LOGITS = 1 << 21
"""Logits held at once on a CPU; a chunk of tokens is this over the vocabulary's size."""


class TokenLogps(torch.autograd.Function):
    """Per-token log softmax(cap(h·Wᵀ)/T)[target] in chunks, recomputed for the gradient.

    A chunk is `fused` into one pass over its logits on CUDA; a CPU is faster step by step.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperatures: Tensor,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies; see `hidden_logps` for the arguments."""
        fused = fuses(weight)
        chunk = max(1, (GPU_CHUNK_LOGITS if fused else CHUNK_LOGITS) // weight.shape[0])
        scored = chunk_logps if fused else _steps_logps
        logps = temperatures.new_empty(len(targets))
        entropies, norms = torch.empty_like(logps), torch.empty_like(logps)
        for start in range(0, len(targets), chunk):
            part = slice(start, start + chunk)
            logits = hidden[part] @ weight.T
            logps[part], entropies[part], norms[part] = _compiled(
                scored, logits, targets[part], temperatures[part], cap
            )
        ctx.save_for_backward(hidden, weight, targets, temperatures, norms)
        ctx.chunk, ctx.cap, ctx.fused = chunk, cap, fused
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
            sloping = chunk_slopes if ctx.fused else _steps_slopes
            slopes = _compiled(sloping, logits, *given, ctx.cap)
            grad_hidden[part] = slopes @ weight
            if grad_weight is None:
                continue
            if slopes.dtype == grad_weight.dtype:
                grad_weight.addmm_(slopes.T, hidden[part])
            elif not ctx.fused:  # Products in half precision, their sum in float32.
                grad_weight += slopes.T @ hidden[part]
            else:  # One kernel does both.
                wide = grad_weight.dtype
                torch.addmm(grad_weight, slopes.T, hidden[part], out_dtype=wide, out=grad_weight)
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None


def fuses(weight: Tensor) -> bool:
    """Return whether a chunk is one pass over its logits for this head."""
    return weight.is_cuda


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
        temperatures: shape (A,), of the type that the result shall have.
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


def _steps_logps(
    logits: Tensor, targets: Tensor, temperatures: Tensor, cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    scaled = _scaled(logits, temperatures, cap)
    chances = scaled.softmax(-1)
    # The log of the softmax's denominator, from the likeliest token; no third array.
    best, where = scaled.max(-1)
    norms = best - chances.gather(1, where[:, None])[:, 0].log()
    logps = scaled.gather(1, targets[:, None])[:, 0] - norms
    return logps, norms - torch.linalg.vecdot(chances, scaled), norms


def _steps_slopes(
    logits: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    _: Tensor,
    grad_logps: Tensor,
    cap: float | None,
) -> Tensor:
    scaled = _scaled(logits, temperatures, cap)
    slopes = scaled.softmax(-1)
    slopes.scatter_add_(1, targets[:, None], -torch.ones_like(slopes[:, :1]))
    slopes *= (-grad_logps / temperatures)[:, None]
    if cap is not None:
        slopes *= 1 - (scaled * (temperatures[:, None] / cap)) ** 2
    return slopes.to(logits.dtype)


def compiles(logits: Tensor) -> bool:
    """Return whether functions of these logits are compiled."""
    from torch._subclasses.fake_tensor import FakeTensor

    return logits.is_cuda and not isinstance(logits, FakeTensor)


_kernels: dict[Callable[..., Any], Callable[..., Any]] = {}
"""What each function is compiled to, or the function itself where that failed."""


def _compiled(function: Callable[..., Any], logits: Tensor, *given: object) -> Any:
    """Call a function of logits, on CUDA as one kernel."""
    if not compiles(logits):
        return function(logits, *given)
    from torch._dynamo.exc import TorchDynamoException

    # At the first call and not at import: `torch.compile` alone loads seconds of modules.
    if function not in _kernels:
        _kernels[function] = torch.compile(function, dynamic=True)
    try:
        return _kernels[function](logits, *given)
    except TorchDynamoException as error:
        _kernels[function] = function
        warnings.warn(f"the output head is not compiled and slower: {error}", stacklevel=2)
        return function(logits, *given)


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
    # Probabilities are computed in float32 at least.
    heat = temperatures.to(torch.promote_types(hidden.dtype, torch.float32))
    found: tuple[Tensor, Tensor] = TokenLogps.apply(  # type: ignore[no-untyped-call]
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


_SHARED, _OWN = 12, (6, 9)
_MEAN_GAP = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""What rounding may come to, in nats a token; another context is worth more in a trained model."""
_LEAK = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}
"""What a row may change of the next, in nats: nothing, but for rounding where experts take the
tokens of all rows in one product."""

_REFUSALS = (TypeError, KeyError, AttributeError, ImportError, RuntimeError)
"""What a model says that takes other arguments, an older torch, or a GPU without the kernel."""


def check_packing(model: nn.Module, share: Share) -> None:
    """Compare log-probabilities of two rows that begin alike, packed and padded.

    And change the first of them: the second must not notice, however little the weights of a model
    that is not trained yet make of what leaks, as through a recurrent layer.

    Every rank calls it where parameters are sharded.

    Raises:
        RecipeError: The model does not take packs, or computes something else for them.
        ModelError: Its log-probabilities are not finite, packed or not.
    """
    padded = _logps(model, "none")
    if not bool(padded.isfinite().all()):
        raise ModelError(
            "model: the log-probabilities of its own tokens are not finite: its weights hold NaN "
            "or infinity, or overflow; expected those of a working model: look for a damaged "
            "folder, an earlier phase that exploded, or a dtype too narrow (float16)"
        )
    if share == "none":
        return
    try:
        _logps(model, share, training=True)  # Meets what is there in training alone: dropout.
        packed = _logps(model, share)
        changed = _logps(model, share, moved=1)
    except PackedAttentionError as error:
        raise _refused(model, share, str(error)) from error
    except _REFUSALS as error:
        if isinstance(error, RunFailure | torch.OutOfMemoryError) or "onnection" in str(error):
            raise  # Another process of the run is gone, or memory is.
        lines = str(error).strip().splitlines() or [""]
        what = f"does not take them with torch {torch.__version__} on this device"
        raise _refused(model, share, f"{what} ({type(error).__name__}: {lines[0]})") from error
    kind = next(model.parameters()).dtype
    leak = float((changed - packed)[_OWN[0] :].abs().max())
    if not leak <= _LEAK.get(kind, 1e-4):
        what = f"lets a row read the one before it (log-probabilities change by {leak:.2g} nats)"
        raise _refused(model, share, what)
    gap = float((packed - padded).abs().mean())
    if not gap <= _MEAN_GAP.get(kind, 1e-3):
        what = f"gives log-probabilities that are off by {gap:.2g} nats a token"
        raise _refused(model, share, what)


def _refused(model: nn.Module, share: Share, found: str) -> RecipeError:
    config = getattr(model, "config", None)
    name = getattr(config, "model_type", type(model).__name__)
    return RecipeError(
        f"trainer.packing: found {share!r}, but a model of type {name!r} {found}; expected packed "
        "rows to score as rows alone do: set trainer.packing=none"
    )


def _logps(model: nn.Module, share: Share, training: bool = False, moved: int = 0) -> Tensor:
    """Return log-probabilities of the rows' own tokens, the first row's moved by so much."""
    config: PreTrainedConfig = model.config
    vocabulary = config.get_text_config().vocab_size
    tokens = np.random.default_rng(0).integers(0, vocabulary, 64)
    tokens[_SHARED : 2 * _SHARED] = (tokens[_SHARED : 2 * _SHARED] + moved) % vocabulary
    rows = []
    for number, own in enumerate(_OWN):
        sampled = np.arange(_SHARED + own) >= _SHARED
        own_tokens = np.append(tokens[:_SHARED], tokens[_SHARED * (number + 1) :][:own])
        rows.append(Row.of_tokens(own_tokens, sampled, agent=0, debate=0))
    batch = Batch(tuple(rows), (), sum(_OWN), len(rows))
    pack = make_pack(batch, [row.advantages for row in rows], range(len(rows)), share)
    before = model.training
    model.train(training)
    try:
        with torch.no_grad(), attention_of(model, pack):
            return token_logps(model, pack.to(next(model.parameters()).device))[0]
    finally:
        model.train(before)
