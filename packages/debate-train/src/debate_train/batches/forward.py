"""Forward passes over packs: their attention, and log-probabilities without a batch's logits.

A node attends to itself causally and to all tokens of its ancestors. So the pairs of query and key
are a causal block for each node and, as descendants follow a node in the pack, a full block for
each node with descendants. Each block runs through torch's flash attention, without a mask or a
copy of keys; outputs are united by their log-sum-exp.

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

from debate_train.batches.packs import Pack, Trunk, make_pack
from debate_train.batches.prefix_forest import Layout
from debate_train.batches.row_types import Batch, Row, Share, let_speak
from debate_train.batches.trunks import TrunkPass, language_model
from debate_train.errors import ModelError, RecipeError, RunFailure

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


NAME = "debate_packed"
"""The name of `packed_attention` in transformers' table of attention functions."""
GPU_CHUNK_LOGITS = 1 << 26
"""Logits held at once; smaller products leave most of a GPU idle."""
CHUNK_LOGITS = 1 << 21
"""Logits held at once on a CPU; a chunk of tokens is this over the vocabulary's size."""
_UNSUPPORTED_SETTINGS = ("softcap", "s_aux", "position_bias", "dropout")
# The rows of `check_packing`: a common prefix, and the two rows' own tokens behind it.
_CHECK_PREFIX = 12
_CHECK_LENGTHS = (6, 9)
# Mean rounding error in nats a token; another context is worth more in a trained model.
_MEAN_GAP = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
# Largest change in nats that a row may cause in the next one: nothing, but for rounding where
# experts take the tokens of all rows in one product.
_LEAK = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 0.05}
# Errors of models that take other arguments, of an older torch, or of a GPU without the kernel.
_REFUSALS = (TypeError, KeyError, AttributeError, ImportError, RuntimeError)

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
_kernels: dict[Callable[..., Any], Callable[..., Any]] = {}
"""The compiled form of each function, or the function itself where compiling failed."""


class PackedAttentionError(Exception):
    """The model's attention does more than packs compute."""


def block_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float | None
) -> Tensor:
    """Compute the attention output of a pack on a CPU, shape (1, T, heads, features of a head).

    Args:
        query: shape (1, heads, T, features of a head).
        key: as the query, with as many heads or fewer (grouped queries); behind a trunk, its S
            keys come first.
        value: as the key.
        layout: the pack's.
        scale: factor of the products before the softmax; `None` is 1 / √features.
    """
    output: Tensor = _BlockAttention.apply(query, key, value, layout, scale)  # type: ignore[no-untyped-call]
    return output


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, scale: float | None
    ) -> Tensor:
        # Outputs of many blocks are summed up: half precision would round after each of them.
        sum_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        # Without values: the first blocks cover every token, as each belongs to one node.
        output = torch.empty_like(query, dtype=sum_dtype)
        log_sums = output.new_empty(query.shape[:3])
        own_key = key[:, :, layout.trunk_tokens :]
        own_value = value[:, :, layout.trunk_tokens :]
        # First every node against itself: one causal call for all nodes of about one length.
        for blocks in layout.blocks:
            block_output, block_log_sums = _flash(
                blocks.gather(query),
                blocks.gather(own_key),
                blocks.gather(own_value),
                0.0,
                True,
                scale=scale,
            )
            blocks.scatter(block_output, output)
            blocks.scatter(block_log_sums, log_sums)
        # Then each node against all of its descendants at once, which follow it without a gap. Two
        # softmaxes over different keys are united by their log-sum-exps: no score is made twice.
        for start, end, first_query, end_query in layout.ancestor_blocks:
            ancestor = slice(start, end)
            descendants = slice(first_query, end_query)
            block_output, block_log_sums = _flash(
                query[:, :, descendants],
                key[:, :, ancestor],
                value[:, :, ancestor],
                0.0,
                False,
                scale=scale,
            )
            united = torch.logaddexp(log_sums[:, :, descendants], block_log_sums)
            old_share = (log_sums[:, :, descendants] - united).exp_()
            block_share = (block_log_sums - united).exp_()
            output[:, :, descendants] *= old_share[..., None]
            output[:, :, descendants] += block_output * block_share[..., None]
            log_sums[:, :, descendants] = united
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, log_sums)
        ctx.layout = layout
        ctx.scale = scale
        # transformers' attention functions put heads after tokens, torch's kernels before.
        return output.transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, log_sums = ctx.saved_tensors
        grad_query = torch.zeros_like(query)
        grad_key = torch.zeros_like(key)
        grad_value = torch.zeros_like(value)
        slope = grad_output.contiguous().transpose(1, 2)
        layout = ctx.layout
        own = slice(layout.trunk_tokens, None)
        own_key = key[:, :, own]
        own_value = value[:, :, own]
        # The united output and log-sum-exp make a block's share of the slope exact by itself.
        # Padding has a log-sum-exp of infinity: its probabilities, and so its slopes, are 0.
        for blocks in layout.blocks:
            block_query, block_key, block_value = _flash_backward(
                blocks.gather(slope, 0.0),
                blocks.gather(query),
                blocks.gather(own_key),
                blocks.gather(own_value),
                blocks.gather(output),
                blocks.gather(log_sums, float("inf")),
                0.0,
                True,
                scale=ctx.scale,
            )
            blocks.scatter(block_query, grad_query)
            blocks.scatter(block_key, grad_key[:, :, own])
            blocks.scatter(block_value, grad_value[:, :, own])
        for start, end, first_query, end_query in layout.ancestor_blocks:
            ancestor = slice(start, end)
            descendants = slice(first_query, end_query)
            block_query, block_key, block_value = _flash_backward(
                slope[:, :, descendants],
                query[:, :, descendants],
                key[:, :, ancestor],
                value[:, :, ancestor],
                output[:, :, descendants],
                log_sums[:, :, descendants],
                0.0,
                False,
                scale=ctx.scale,
            )
            grad_query[:, :, descendants] += block_query
            grad_key[:, :, ancestor] += block_key
            grad_value[:, :, ancestor] += block_value
        return grad_query, grad_key, grad_value, None, None


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: "Layout",
    scale: float | None,
    window: int | None,
) -> Tensor:
    """Compute the attention output of a pack on a GPU, shape (1, T, heads, features of a head).

    Args:
        query: shape (1, heads, T, features); `key` and `value` may have fewer heads.
        key: of the pack's tokens.
        value: likewise.
        layout: attention of the pack.
        scale: factor of the scores; `None` is 1 / √features.
        window: most tokens visible to a token, including the token itself; `None` is all.
    """
    from torch.nn.attention.varlen import varlen_attn

    # The kernel takes one run of keys for each run of queries: a shared prefix is copied to each
    # path that goes through it, which costs memory and not time.
    keys = key[0].transpose(0, 1)
    values = value[0].transpose(0, 1)
    has_branches = max(layout.parents) >= 0
    if has_branches or layout.trunk_tokens:  # Else every run is its own path.
        keys = keys[layout.keys_K]
        values = values[layout.keys_K]
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
    batched_output: Tensor = output[None]
    return batched_output


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Compute the attention output of a pack, shape (1, T, heads, features of a head).

    transformers calls it in every attention layer. `settings` holds the pack's layout, an argument
    of the model's forward.

    Raises:
        PackedAttentionError: The layer asks for more than packs compute.
    """
    layout: Layout = settings["pack_layout"]
    trunk: TrunkPass | None = settings.get("pack_trunk")
    if trunk is not None:
        key, value = trunk.extend(module, key, value)
    for name in _UNSUPPORTED_SETTINGS:
        setting = settings.get(name)
        if isinstance(setting, Tensor) or setting:
            raise PackedAttentionError(f"attends with {name}, which packs do not compute")
    scale = settings.get("scaling")
    window = settings.get("sliding_window")
    # Two fast kernels, each for one kind of device; the loop below serves all other cases.
    if key.device.type == "cuda" and key.dtype in (torch.bfloat16, torch.float16):
        return varlen_attention(query, key, value, layout, scale, window), None
    window_cuts = window is not None and layout.longest_path > window
    if key.device.type == "cpu" and value.shape == key.shape and not window_cuts:
        return block_attention(query, key, value, layout, scale), None
    outputs = []
    has_fewer_keys = query.shape[1] != key.shape[1]
    for node in range(layout.trunk_nodes, len(layout.parents)):
        path = layout.path(node)
        first_query = path[-1].start - layout.trunk_tokens
        end_query = path[-1].stop - layout.trunk_tokens
        queries = query[:, :, first_query:end_query]
        keys = torch.cat([key[:, :, run] for run in path], 2)
        values = torch.cat([value[:, :, run] for run in path], 2)
        fits_window = window is None or keys.shape[2] <= window
        # A root within the window is causal attention, which has faster kernels without a mask.
        is_causal = len(path) == 1 and fits_window
        mask = None
        if not is_causal:
            mask = _path_mask(queries.shape[2], keys, window)
        output = functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=has_fewer_keys,
        )
        outputs.append(output)
    # Nodes are in the order of the flat sequence, so their outputs are, too.
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def _path_mask(num_queries: int, keys: Tensor, window: int | None) -> Tensor:
    # The last query sees up to the last key, so both triangles are aligned there.
    num_keys = keys.shape[2]
    diagonal = num_keys - num_queries
    is_visible = torch.ones(num_queries, num_keys, dtype=torch.bool, device=keys.device)
    is_visible = is_visible.tril(diagonal)
    if window is not None:
        is_visible = is_visible.triu(diagonal - window + 1)
    return is_visible


def forward_inputs(pack: Pack, trunk: TrunkPass | None = None) -> dict[str, object]:
    """Collect the arguments of the model's forward."""
    inputs: dict[str, object] = {"input_ids": pack.tokens_BT, "use_cache": False}
    if pack.layout is not None:
        # Padded rows need neither: positions count from 0, and attention is plainly causal.
        inputs["position_ids"] = pack.positions_BT
        inputs["pack_layout"] = pack.layout
        inputs["pack_trunk"] = trunk
    return inputs


def attention_of(model: nn.Module, pack: Pack | Trunk) -> AbstractContextManager[None]:
    """Activate a pack's adapter and attention for forward and backward passes."""
    let_speak(model, pack.adapter)
    return nullcontext() if pack.layout is None else attending_packs(model)


@contextmanager
def attending_packs(model: nn.Module) -> Iterator[None]:
    """Let the model attend by layouts of packs, backward passes that recompute layers included."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_attention)
    config: PreTrainedConfig = model.config
    # Layers look up the config's attention in every forward, recomputed ones included.
    previous = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = previous


class TokenLogps(torch.autograd.Function):
    """Per-token log softmax(cap(h·Wᵀ)/T)[target] in chunks, recomputed for the gradient.

    A chunk is `fused` into a single pass over logits on CUDA; a CPU is faster step by step.
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
        """Compute log-probabilities and entropies; see `hidden_logps` for the arguments."""
        fused = fuses(weight)
        chunk_logits = GPU_CHUNK_LOGITS if fused else CHUNK_LOGITS
        chunk = max(1, chunk_logits // weight.shape[0])
        score_chunk = chunk_logps if fused else _stepwise_logps
        logps = temperatures.new_empty(len(targets))
        entropies = torch.empty_like(logps)
        norms = torch.empty_like(logps)
        for start in range(0, len(targets), chunk):
            tokens = slice(start, start + chunk)
            logits = hidden[tokens] @ weight.T
            logps[tokens], entropies[tokens], norms[tokens] = _call_compiled(
                score_chunk,
                logits,
                targets[tokens],
                temperatures[tokens],
                cap,
            )
        # Only the denominators are saved: logits of all tokens would be the largest tensor of all.
        ctx.save_for_backward(hidden, weight, targets, temperatures, norms)
        ctx.chunk = chunk
        ctx.cap = cap
        ctx.fused = fused
        ctx.mark_non_differentiable(entropies)
        return logps, entropies

    @staticmethod
    def backward(ctx: Any, grad_logps: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of hidden states and weight."""
        hidden, weight, targets, temperatures, norms = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = None
        # A frozen head, as under LoRA, needs no gradient of the size of the vocabulary.
        if ctx.needs_input_grad[1]:
            grad_weight = torch.zeros_like(weight, dtype=temperatures.dtype)
        compute_slopes = chunk_slopes if ctx.fused else _stepwise_slopes
        for start in range(0, len(targets), ctx.chunk):
            tokens = slice(start, start + ctx.chunk)
            logits = hidden[tokens] @ weight.T
            slopes = _call_compiled(
                compute_slopes,
                logits,
                targets[tokens],
                temperatures[tokens],
                norms[tokens],
                grad_logps[tokens],
                ctx.cap,
            )
            grad_hidden[tokens] = slopes @ weight
            if grad_weight is None:
                continue
            if slopes.dtype == grad_weight.dtype:
                grad_weight.addmm_(slopes.T, hidden[tokens])
            elif not ctx.fused:  # Products in half precision, their sum in float32.
                grad_weight += slopes.T @ hidden[tokens]
            else:  # One kernel does both.
                torch.addmm(
                    grad_weight,
                    slopes.T,
                    hidden[tokens],
                    out_dtype=grad_weight.dtype,
                    out=grad_weight,
                )
        if grad_weight is not None:
            grad_weight = grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None


def fuses(weight: Tensor) -> bool:
    """Decide whether a chunk is a single pass over logits for this head."""
    return weight.is_cuda


def _scale_logits(logits: Tensor, temperatures: Tensor, cap: float | None) -> Tensor:
    scaled = logits.to(temperatures.dtype)
    if cap is not None:
        scaled = cap * torch.tanh(scaled / cap)
    return scaled / temperatures[:, None]


def chunk_logps(
    logits: Tensor, targets: Tensor, temperatures: Tensor, cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute log-probabilities, entropies and log-denominators of a chunk, each of shape (A,).

    Args:
        logits: output of the head before cap and temperature, shape (A, V).
        targets: token ids, shape (A,).
        temperatures: shape (A,), of the result's type.
        cap: cap of the logits, or `None`.
    """
    scaled = _scale_logits(logits, temperatures, cap)
    norms = torch.logsumexp(scaled, -1)
    probabilities = (scaled - norms[:, None]).exp()
    logps = scaled.gather(1, targets[:, None])[:, 0] - norms
    # H = -Σ p·(z - log Σ exp z) = log Σ exp z - Σ p·z
    entropies = norms - (probabilities * scaled).sum(-1)
    return logps, entropies, norms


def chunk_slopes(
    logits: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    norms: Tensor,
    grad_logps: Tensor,
    cap: float | None,
) -> Tensor:
    """Compute the gradient of a chunk's logits, shape (A, V), in their type.

    d logp[x] / d z = (onehot(x) - softmax) / T, times 1 - tanh²(z / cap) where logits are capped.
    """
    scaled = _scale_logits(logits, temperatures, cap)
    token_ids = torch.arange(logits.shape[1], device=logits.device)
    # A comparison, no scatter: the compiler fuses it into the one pass over the logits.
    one_hot = (token_ids[None] == targets[:, None]).to(scaled.dtype)
    probabilities = (scaled - norms[:, None]).exp()
    slopes = (one_hot - probabilities) * (grad_logps / temperatures)[:, None]
    if cap is not None:
        # scaled · T / cap is tanh(z / cap).
        slopes = slopes * (1 - (scaled * (temperatures[:, None] / cap)) ** 2)
    return slopes.to(logits.dtype)


def _stepwise_logps(
    logits: Tensor, targets: Tensor, temperatures: Tensor, cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    scaled = _scale_logits(logits, temperatures, cap)
    probabilities = scaled.softmax(-1)
    # The log of the softmax's denominator, from the likeliest token; no third array.
    max_logits, likeliest = scaled.max(-1)
    norms = max_logits - probabilities.gather(1, likeliest[:, None])[:, 0].log()
    logps = scaled.gather(1, targets[:, None])[:, 0] - norms
    entropies = norms - torch.linalg.vecdot(probabilities, scaled)
    return logps, entropies, norms


def _stepwise_slopes(
    logits: Tensor,
    targets: Tensor,
    temperatures: Tensor,
    _: Tensor,
    grad_logps: Tensor,
    cap: float | None,
) -> Tensor:
    scaled = _scale_logits(logits, temperatures, cap)
    # softmax - onehot in place, then the sign turned with the factor: one array of shape (A, V).
    slopes = scaled.softmax(-1)
    slopes.scatter_add_(1, targets[:, None], -torch.ones_like(slopes[:, :1]))
    slopes *= (-grad_logps / temperatures)[:, None]
    if cap is not None:
        slopes *= 1 - (scaled * (temperatures[:, None] / cap)) ** 2
    return slopes.to(logits.dtype)


def compiles(logits: Tensor) -> bool:
    """Decide whether functions of these logits are compiled."""
    from torch._subclasses.fake_tensor import FakeTensor

    return logits.is_cuda and not isinstance(logits, FakeTensor)


def _call_compiled(function: Callable[..., Any], logits: Tensor, *arguments: object) -> Any:
    """Call a function of logits, on CUDA as one kernel."""
    if not compiles(logits):
        return function(logits, *arguments)
    from torch._dynamo.exc import TorchDynamoException

    # At the first call and not at import: `torch.compile` alone loads seconds of modules.
    if function not in _kernels:
        _kernels[function] = torch.compile(function, dynamic=True)
    try:
        return _kernels[function](logits, *arguments)
    except TorchDynamoException as error:
        _kernels[function] = function
        warnings.warn(f"the output head is not compiled and slower: {error}", stacklevel=2)
        return function(logits, *arguments)


def hidden_logps(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperatures: Tensor, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Compute log-probabilities and entropies of an output head, both of shape (A,).

    Args:
        hidden: hidden states before the targets, shape (A, D).
        weight: the head's, shape (V, D).
        targets: token ids, shape (A,).
        temperatures: divisors of the logits, shape (A,).
        cap: logits z are cap · tanh(z / cap) before that, as in Gemma 2; `None` leaves them.
    """
    # Probabilities are computed in float32 at least.
    wide_temperatures = temperatures.to(torch.promote_types(hidden.dtype, torch.float32))
    logps_and_entropies: tuple[Tensor, Tensor] = TokenLogps.apply(  # type: ignore[no-untyped-call]
        hidden, weight, targets, wide_temperatures, cap
    )
    return logps_and_entropies


def token_logps(
    model: nn.Module, pack: Pack, trunk: TrunkPass | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the log-probability and the entropy of each action.

    Args:
        model: a causal language model of transformers, or peft around one; a flat pack needs
            `attending_packs` around this call and the backward pass.
        pack: on the model's device.
        trunk: the pass over the pack's trunk, if it has one.

    Returns:
        logps and entropies in nats at each action's temperature, shape (A,); the entropy carries
        no gradient.
    """
    base = language_model(model)
    output = base.base_model(**forward_inputs(pack, trunk))
    hidden_KD = output.last_hidden_state.flatten(0, 1)
    if trunk is not None:
        # The pack's first tokens may be predicted by the trunk's last.
        hidden_KD = torch.cat((trunk.hidden_SD, hidden_KD))
    # Only tokens that predict an action go through the head.
    hidden_AD = hidden_KD[pack.sources_A]
    head = base.get_output_embeddings()
    cap = getattr(base.config.get_text_config(), "final_logit_softcapping", None)
    with _scoring(head, cap):
        logps_A, entropies_A = head(hidden_AD, pack.targets_A, pack.temperatures_A)
    return logps_A, entropies_A


@contextmanager
def _scoring(head: Any, cap: float | None) -> Iterator[None]:
    """Let the output head compute log-probabilities in place of logits.

    The head is called as a module because ZeRO-3 gathers the weight only for such calls, and again
    for the backward pass.
    """

    def score(hidden: Tensor, targets: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        return hidden_logps(hidden, head.weight, targets, temperatures, cap)

    head.forward = score
    try:
        yield
    finally:
        del head.forward


def check_packing(model: nn.Module, share: Share) -> None:
    """Compare log-probabilities of two rows with a common prefix, packed and padded.

    A second comparison changes the first row: the second must not notice. An untrained model makes
    so little of a leak, as through a recurrent layer, as to pass the first comparison.

    Every rank calls it where parameters are sharded.

    Raises:
        RecipeError: The model does not take packs, or computes other values for them.
        ModelError: Log-probabilities are not finite, packed or not.
    """
    padded_logps = _check_logps(model, "none")
    if not bool(padded_logps.isfinite().all()):
        raise ModelError(
            "model: the log-probabilities of its own tokens are not finite: its weights hold NaN "
            "or infinity, or overflow; expected those of a working model: look for a damaged "
            "folder, an earlier phase that exploded, or a dtype too narrow (float16)"
        )
    if share == "none":
        return
    try:
        # Dropout and the like are active in training alone; this pass meets their refusals.
        _check_logps(model, share, training=True)
        packed_logps = _check_logps(model, share)
        changed_logps = _check_logps(model, share, shift=1)
    except PackedAttentionError as error:
        raise _packing_error(model, share, str(error)) from error
    except _REFUSALS as error:
        # Another process of the run is gone, or memory is: no fault of packing. gloo names a
        # lost process in the text alone, such as "Connection closed by peer".
        is_lost = isinstance(error, RunFailure | torch.OutOfMemoryError)
        if is_lost or "onnection" in str(error):
            raise
        lines = str(error).strip().splitlines()
        first_line = lines[0] if lines else ""
        raise _packing_error(
            model,
            share,
            f"does not take them with torch {torch.__version__} on this device "
            f"({type(error).__name__}: {first_line})",
        ) from error
    dtype = next(model.parameters()).dtype
    second_row = slice(_CHECK_LENGTHS[0], None)
    changes = changed_logps - packed_logps
    leak = float(changes[second_row].abs().max())
    # `not … <=` also catches NaN.
    if not leak <= _LEAK.get(dtype, 1e-4):
        raise _packing_error(
            model,
            share,
            f"lets a row read the one before it (log-probabilities change by {leak:.2g} nats)",
        )
    gap = float((packed_logps - padded_logps).abs().mean())
    if not gap <= _MEAN_GAP.get(dtype, 1e-3):
        problem = f"gives log-probabilities that are off by {gap:.2g} nats a token"
        raise _packing_error(model, share, problem)


def _packing_error(model: nn.Module, share: Share, problem: str) -> RecipeError:
    config = getattr(model, "config", None)
    name = getattr(config, "model_type", type(model).__name__)
    return RecipeError(
        f"trainer.packing: found {share!r}, but a model of type {name!r} {problem}; expected "
        "packed rows to score as rows alone do: set trainer.packing=none"
    )


def _check_logps(model: nn.Module, share: Share, training: bool = False, shift: int = 0) -> Tensor:
    """Compute log-probabilities of both rows' own tokens; `shift` changes the first row's ids."""
    config: PreTrainedConfig = model.config
    vocabulary = config.get_text_config().vocab_size
    tokens = np.random.default_rng(0).integers(0, vocabulary, 64)
    prefix = tokens[:_CHECK_PREFIX]
    rows = []
    for number, num_sampled in enumerate(_CHECK_LENGTHS):
        start = _CHECK_PREFIX * (number + 1)
        sampled = tokens[start : start + num_sampled]
        if number == 0:
            sampled = (sampled + shift) % vocabulary
        row_tokens = np.append(prefix, sampled)
        is_sampled = np.arange(len(row_tokens)) >= _CHECK_PREFIX
        rows.append(Row.of_tokens(row_tokens, is_sampled, agent=0, debate=0))
    batch = Batch(
        rows=tuple(rows),
        streams=(),
        sampled_tokens=sum(_CHECK_LENGTHS),
        turns=len(rows),
    )
    # Weights of the loss do not matter here; a row's advantages have their shape.
    weights = [row.advantages for row in rows]
    pack = make_pack(batch, weights, range(len(rows)), share)
    device = next(model.parameters()).device
    was_training = model.training
    model.train(training)
    try:
        with torch.no_grad(), attention_of(model, pack):
            logps, _ = token_logps(model, pack.to(device))
            return logps
    finally:
        model.train(was_training)
