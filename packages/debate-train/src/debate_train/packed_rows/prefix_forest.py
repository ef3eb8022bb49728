"""Sequences that begin alike, as a forest: what they share stands once.

A node is a run of tokens with a parent; a sequence is the path from a root to a node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Share = Literal["prefix", "rows", "none"]
"""What rows of a pack share: what they begin with, a flat sequence, or nothing (padded)."""
MIN_SHARED = 8
"""Fewest tokens that a node for two sequences must save; less costs more than it saves."""


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens: `start` in the flat sequence, `depth` in its path."""

    parent: "Node | None"
    start: int
    depth: int
    length: int

    def __len__(self) -> int:
        return self.length


class PrefixForest:
    """Grows by one sequence at a time; equal beginnings are found between neighbours.

    Sequences in lexicographic order share all that any two of them have in common, except where
    a branch would save fewer than `MIN_SHARED` tokens.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tokens = 0
        self._last: list[Node] = []

    def add(self, length: int, shared: int) -> int:
        """Add a sequence; return how many tokens it adds to the flat sequence.

        Args:
            length: its tokens.
            shared: how many of them its predecessor begins with, too.
        """
        path: list[Node] = []
        for node in self._last:
            here = min(shared, node.depth + len(node)) - node.depth
            if here == len(node):
                path.append(node)
                continue
            if here >= MIN_SHARED:
                path.append(self._split(node, here))
            break
        depth = path[-1].depth + len(path[-1]) if path else 0
        if depth < length:
            parent = path[-1] if path else None
            path.append(Node(parent, self.tokens, depth, length - depth))
            self.nodes.append(path[-1])
            self.tokens += length - depth
        self._last = path
        return length - depth

    def positions(self) -> NDArray[np.int64]:
        """Return where in the flat sequence the tokens of the last added sequence stand."""
        runs = [np.arange(node.start, node.start + len(node)) for node in self._last]
        return np.concatenate(runs) if runs else np.zeros(0, np.int64)

    def in_order(self) -> list[Node]:
        """Return the nodes as they stand in the flat sequence; parents come before children."""
        return sorted(self.nodes, key=lambda node: node.start)

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two and return the upper part; what hung below hangs below still."""
        upper = Node(node.parent, node.start, node.depth, at)
        node.parent, node.start, node.depth = upper, node.start + at, node.depth + at
        node.length -= at
        self.nodes.append(upper)
        return upper


def shared_length(one: NDArray[np.int64], other: NDArray[np.int64]) -> int:
    """Return how many tokens both begin with."""
    size = min(len(one), len(other))
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size


def lexicographic(sequences: Sequence[NDArray[np.int64]]) -> list[int]:
    """Return the order in which sequences that begin alike are neighbours."""
    return sorted(range(len(sequences)), key=lambda k: sequences[k].astype(">i8").tobytes())
