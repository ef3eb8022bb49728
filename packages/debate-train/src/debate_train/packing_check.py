"""Whether a model computes for packed rows what it computes for each row alone."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from debate_train.errors import RecipeError
from debate_train.logps import token_logps
from debate_train.packed_attention import PackedAttentionError, attention_of
from debate_train.packs import make_pack
from debate_train.rows import Batch, Row
from debate_train.trainers.trainer import Share

_SHARED, _OWN = 12, (6, 9)
_MEAN_GAP = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""What rounding may come to, in nats a token; another context is worth more in a trained model."""


def check_packing(model: nn.Module, share: Share) -> None:
    """Compare log-probabilities of two rows that begin alike, packed and padded.

    Every rank calls it where parameters are sharded.

    Raises:
        RecipeError: The model does not take packs, or computes something else for them.
    """
    if share == "none":
        return
    padded = _logps(model, "none")
    try:
        _logps(model, share, training=True)  # Meets what is there in training alone: dropout.
        packed = _logps(model, share)
    except PackedAttentionError as error:
        raise _refused(model, share, str(error)) from error
    except (TypeError, KeyError) as error:
        what = f"does not take them ({type(error).__name__}: {error})"
        raise _refused(model, share, what) from error
    gap = float((packed - padded).abs().mean())
    if not gap <= _MEAN_GAP.get(next(model.parameters()).dtype, 1e-3):
        what = f"gives log-probabilities that are off by {gap:.2g} nats a token"
        raise _refused(model, share, what)


def _refused(model: nn.Module, share: Share, found: str) -> RecipeError:
    config = getattr(model, "config", None)
    name = getattr(config, "model_type", type(model).__name__)
    return RecipeError(
        f"trainer.packing: found {share!r}, but a model of type {name!r} {found}; expected packed "
        "rows to score as rows alone do: set trainer.packing=none"
    )


def _logps(model: nn.Module, share: Share, training: bool = False) -> Tensor:
    config: Any = model.config
    tokens = np.random.default_rng(0).integers(0, config.get_text_config().vocab_size, 64)
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
