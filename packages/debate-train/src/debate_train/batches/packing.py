"""From rows to packs of even work, and whether a model may be given packed rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from debate_train.batches.attention import PackedAttentionError, attention_of
from debate_train.batches.logps import token_logps
from debate_train.batches.packs import Pack, empty_pack, make_pack, needed_tokens
from debate_train.batches.row_types import (
    Batch,
    PrefixForest,
    Row,
    Share,
    lexicographic,
    shared_length,
)
from debate_train.interrupts import ModelError, RecipeError, RunFailure

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from debate_train.batches.row_types import Batch, Floats


CONTEXT_COST = 8192
"""Tokens of context at which attending to them costs as much as all else a token goes through."""
_SEARCH_STEPS = 20


@dataclass(frozen=True, slots=True)
class _Unit:
    """Rows that must stand in one pack: a row, or the two of a pair."""

    rows: tuple[int, ...]
    lengths: tuple[int, ...]
    shared: tuple[int, ...]
    """How many tokens each row begins with as the row before it does, maybe another unit's."""


def pack(
    batch: "Batch",
    weights: Sequence["Floats"],
    token_budget: int,
    *,
    ranks: int = 1,
    share: Share = "prefix",
) -> list[list[Pack]]:
    """Return packs for every rank: the same number, of even cost.

    Where rows are of several adapters, each adapter has packs of its own, one adapter's after the
    other's: what rows begin with has other hidden states under another adapter.

    Args:
        batch: the rows of a step; those without an action are left out.
        weights: of each row what its tokens' losses are multiplied by, shape (T,).
        token_budget: most tokens of a pack, padding included; a row that is longer is alone.
        ranks: processes that share the step.
        share: what rows may share; see `make_pack`.
    """
    given: list[list[Pack]] = [[] for _ in range(ranks)]
    for adapter in dict.fromkeys(row.adapter for row in batch.rows):
        numbers = [n for n, row in enumerate(batch.rows) if row.adapter == adapter]
        parts = _even_parts(_units(batch, numbers, share), token_budget, ranks, share)
        packs = [
            (cost, make_pack(batch, weights, [n for unit in part for n in unit.rows], share))
            for cost, part in parts
        ]
        empty = replace(empty_pack(share), adapter=adapter)
        for own, packed in zip(given, _dealt(packs, ranks, empty), strict=True):
            own += packed
    return given


def _dealt(packs: Sequence[tuple[float, Pack]], ranks: int, empty: Pack) -> list[list[Pack]]:
    """Return as many packs for every rank, of about the same cost; some may be empty."""
    each = -(-len(packs) // ranks)
    given: list[list[Pack]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for cost, made in sorted(packs, key=lambda found: -found[0]):
        free = [rank for rank in range(ranks) if len(given[rank]) < each]
        rank = min(free, key=lambda rank: load[rank])
        given[rank].append(made)
        load[rank] += cost
    return [own + [empty] * (each - len(own)) for own in given]


def _units(batch: "Batch", rows: Sequence[int], share: Share) -> list[_Unit]:
    """Return those of the rows that have actions in the order in which packs are filled."""
    inputs = {n: batch.rows[n].tokens[: needed_tokens(batch.rows[n])] for n in rows}
    numbers = [n for n, tokens in inputs.items() if len(tokens)]
    if share == "none":
        numbers.sort(key=lambda n: -len(inputs[n]))
    elif share == "prefix":
        numbers = [numbers[k] for k in lexicographic([inputs[n] for n in numbers])]
    groups: dict[int, list[int]] = {}
    for n in numbers:
        pair = batch.rows[n].pair
        groups.setdefault(pair if pair >= 0 else -1 - n, []).append(n)
    units, before = [], np.zeros(0, np.int64)
    for group in groups.values():
        shared = []
        for n in group:
            shared.append(shared_length(before, inputs[n]) if share == "prefix" else 0)
            before = inputs[n]
        units.append(_Unit(tuple(group), tuple(len(inputs[n]) for n in group), tuple(shared)))
    return units


class _Filling(Protocol):
    """A pack that is being filled: what it would hold and cost with one more unit."""

    tokens: int
    cost: float

    def add(self, unit: _Unit) -> None: ...


class _FillingFlat:
    def __init__(self) -> None:
        self._forest = PrefixForest()
        self.tokens, self.cost = 0, 0.0

    def add(self, unit: _Unit) -> None:
        for length, shared in zip(unit.lengths, unit.shared, strict=True):
            new = self._forest.add(length, shared)
            self.cost += new * (1 + (length - new / 2) / CONTEXT_COST)
        self.tokens = self._forest.tokens


class _FillingPadded:
    def __init__(self) -> None:
        self._rows = self._longest = 0
        self.tokens, self.cost = 0, 0.0

    def add(self, unit: _Unit) -> None:
        self._rows += len(unit.rows)
        self._longest = max(self._longest, *unit.lengths)
        self.tokens = self._rows * self._longest
        self.cost = self.tokens * (1 + self._longest / 2 / CONTEXT_COST)


def _even_parts(
    units: Sequence[_Unit], token_budget: int, ranks: int, share: Share
) -> list[tuple[float, list[_Unit]]]:
    """Return runs of units, each with its cost: as few a rank as the budget allows, then even."""
    parts = _filled(units, token_budget, float("inf"), share)
    if not parts:
        return []
    wanted = -(-len(parts) // ranks) * ranks
    low, high = 0.0, max(cost for cost, _ in parts)
    # The lowest limit on a pack's cost that still needs no more packs; a bisection suffices.
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        found = _filled(units, token_budget, middle, share)
        if len(found) <= wanted:
            parts, high = found, middle
        else:
            low = middle
    return parts


def _filled(
    units: Sequence[_Unit], token_budget: int, most: float, share: Share
) -> list[tuple[float, list[_Unit]]]:
    """Return runs of units, each as long as budget and cost allow."""
    parts: list[tuple[float, list[_Unit]]] = []
    filling, own = _start(share), list[_Unit]()
    for unit in units:
        before = filling.cost
        filling.add(unit)
        if own and (filling.tokens > token_budget or filling.cost > most):
            parts.append((before, own))
            filling, own = _start(share), []
            filling.add(unit)
        own.append(unit)
    return [*parts, (filling.cost, own)] if own else parts


def _start(share: Share) -> _Filling:
    return _FillingPadded() if share == "none" else _FillingFlat()


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
