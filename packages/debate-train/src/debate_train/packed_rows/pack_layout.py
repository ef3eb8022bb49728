"""Which tokens of a pack see which, in the forms that attention is computed from."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from debate_train.packed_rows.prefix_forest import Node, PrefixForest

_EVEN = 0.8
"""Nodes at least this share of the longest are padded to it and computed together."""


@dataclass(frozen=True, slots=True)
class Squares:
    """Nodes of similar length, each of which sees itself causally; padded on the right to L."""

    places_NL: Tensor
    """Tokens of each node as indices into the pack; padding repeats the node's first."""
    real_NL: Tensor
    """False on padding."""

    def gather(self, x: Tensor, fill: float | None = None) -> Tensor:
        """Return (N, heads, L, …) of x (1, heads, T, …), with `fill` on padding."""
        found = x[0].transpose(0, 1)[self.places_NL]
        if fill is not None:
            found[~self.real_NL] = fill
        return found.transpose(1, 2)

    def put(self, found: Tensor, into: Tensor) -> None:
        """Write (N, heads, L, …) without its padding into (1, heads, T, …)."""
        own = found.transpose(1, 2)[self.real_NL].to(into.dtype)
        into[0].transpose(0, 1)[self.places_NL[self.real_NL]] = own


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tokens of a flat sequence see which: each node its ancestors and, causally, itself."""

    starts: tuple[int, ...]
    """Where each node begins; the last entry is the number of tokens."""
    parents: tuple[int, ...]
    """Number of the node before it in its path, -1 for a root; parents come first."""
    keys_K: Tensor
    """For each node its path's tokens, one node after the other: indices into the pack."""
    query_starts_N: Tensor
    key_starts_N: Tensor
    """Where the queries and keys of each node begin, and the end of the last: int32."""
    longest_run: int
    longest_path: int

    squares: tuple[Squares, ...]
    """Every node, as what sees itself causally."""
    rectangles: tuple[tuple[int, int, int], ...]
    """Start and end of each node with descendants, and where the last of these, who all see it,
    ends."""

    def to(self, device: torch.device) -> "Layout":
        """Return the layout on a device."""
        squares = tuple(replace(square, **tensors_on(square, device)) for square in self.squares)
        return replace(self, squares=squares, **tensors_on(self, device))

    def path(self, node: int) -> list[slice]:
        """Return the runs of tokens from the root to this node."""
        found: list[slice] = []
        while node >= 0:
            found.append(slice(self.starts[node], self.starts[node + 1]))
            node = self.parents[node]
        return found[::-1]


def tensors_on(record: Any, device: torch.device) -> dict[str, Any]:
    """Return the tensors of a dataclass on a device, by field."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}


def make_layout(forest: PrefixForest) -> Layout:
    """Return the layout of the pack that holds this forest."""
    nodes = forest.in_order()
    number = {id(node): n for n, node in enumerate(nodes)}
    parents = [-1 if n.parent is None else number[id(n.parent)] for n in nodes]
    starts = [node.start for node in nodes] + [forest.tokens]
    paths = [_path(node) for node in nodes]
    keys = [np.arange(part.start, part.start + len(part)) for path in paths for part in path]
    lengths = [sum(len(part) for part in path) for path in paths]
    return Layout(
        starts=tuple(starts),
        parents=tuple(parents),
        keys_K=torch.from_numpy(np.concatenate(keys)),
        query_starts_N=torch.tensor(starts, dtype=torch.int32),
        key_starts_N=torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
        longest_run=max(len(node) for node in nodes),
        longest_path=max(lengths),
        squares=_squares(nodes),
        rectangles=_rectangles(starts, parents),
    )


def _path(node: Node) -> list[Node]:
    found = [node]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found[::-1]


def _squares(nodes: Sequence[Node]) -> tuple[Squares, ...]:
    found: list[list[Node]] = []
    for node in sorted(nodes, key=lambda node: -len(node)):
        if not found or len(node) < _EVEN * len(found[-1][0]):
            found.append([])
        found[-1].append(node)
    return tuple(_padded(alike) for alike in found)


def _padded(nodes: Sequence[Node]) -> Squares:
    steps = np.arange(len(nodes[0]))
    starts, lengths = ([[node.start] for node in nodes], [[len(node)] for node in nodes])
    real = steps < np.array(lengths)
    places = np.array(starts) + np.where(real, steps, 0)
    return Squares(torch.from_numpy(places), torch.from_numpy(real))


def _rectangles(starts: Sequence[int], parents: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Return the nodes with descendants, which follow them without a gap."""
    ends = list(starts[1:])
    for node in reversed(range(len(parents))):
        if parents[node] >= 0:
            ends[parents[node]] = max(ends[parents[node]], ends[node])
    return tuple(
        (start, after, end)
        for start, after, end in zip(starts, starts[1:], ends, strict=False)
        if end > after
    )
