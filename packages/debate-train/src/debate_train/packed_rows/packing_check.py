"""Whether a model computes for packed rows what it computes for each row alone."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from debate_train.batches.row_types import Batch, Row
from debate_train.errors import ModelError, RecipeError, RunFailure
from debate_train.packed_rows.logps import token_logps
from debate_train.packed_rows.packed_attention import PackedAttentionError, attention_of
from debate_train.packed_rows.packs import make_pack
from debate_train.packed_rows.prefix_forest import Share

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

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
            "model: the log-probabilities of its own tokens are not finite, so it cannot be "
            "trained: its weights hold NaN or infinity, or its numbers overflow; expected the "
            "weights of a working model: look for a damaged folder, an earlier training step or "
            "phase that exploded (a lower trainer.learning_rate), or a dtype too narrow (float16)"
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
    """Return log-probabilities of the rows' own tokens; those of the first are moved by so much."""
    config: PreTrainedConfig = model.config
    vocabulary = config.get_text_config().vocab_size
    tokens = np.random.default_rng(0).integers(0, vocabulary, 64)
    tokens[_SHARED : 2 * _SHARED] = (tokens[_SHARED : 2 * _SHARED] + moved) % vocabulary
    rows = []
    for number, own in enumerate(_OWN):
        sampled = np.arange(_SHARED + own) >= _SHARED
        zeros = np.zeros(len(sampled), np.int64)
        rows.append(
            Row(
                tokens=np.append(tokens[:_SHARED], tokens[_SHARED * (number + 1) :][:own]),
                mask=sampled.astype(np.float32),
                advantages=zeros.astype(np.float32),
                sampler_logps=zeros.astype(np.float32),
                temperatures=np.ones(len(sampled), np.float32),
                streams=zeros,
                versions=zeros,
                segments=sampled.astype(np.int64),
                agent=0,
                debate=0,
            )
        )
    batch = Batch(tuple(rows), (), sum(_OWN), len(rows))
    pack = make_pack(batch, [row.mask for row in rows], range(len(rows)), share)
    before = model.training
    model.train(training)
    try:
        with torch.no_grad(), attention_of(model, pack):
            return token_logps(model, pack.to(next(model.parameters()).device))[0]
    finally:
        model.train(before)
