"""Trees of common beginnings of sequences, and the attention between the tokens of a tree."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MIN_SHARED = 8
"""Fewest tokens that a node for two sequences must save; less costs more than it saves."""
# Nodes at least this share of the longest are padded to it and computed together.
_EVEN_LENGTH_SHARE = 0.8


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens: `start` in the flat sequence, `depth` in the path from the root."""

    parent: "Node | None"
    start: int
    depth: int
    length: int

    def __len__(self) -> int:
        return self.length


class PrefixForest:
    """Trees of shared prefixes, grown sequence by sequence.

    Only neighbors are compared. Sequences in lexicographic order share every common prefix, except
    where a branch would save fewer than `MIN_SHARED` tokens.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tokens = 0
        self._last_path: list[Node] = []
        self._trunk_nodes: list[Node] = []

    def add(self, length: int, shared: int) -> int:
        """Add a sequence and count the tokens it adds to the flat sequence.

        Args:
            length: number of tokens.
            shared: length of the common prefix with the last sequence.
        """
        path: list[Node] = []
        # Neighbors in lexicographic order share most, so the last path is the only candidate.
        for node in self._last_path:
            shared_in_node = min(shared, node.depth + len(node)) - node.depth
            if shared_in_node == len(node):
                path.append(node)
                continue
            if shared_in_node >= MIN_SHARED:
                # The old node becomes the lower half: its children keep their parent unchanged.
                upper = Node(
                    parent=node.parent,
                    start=node.start,
                    depth=node.depth,
                    length=shared_in_node,
                )
                node.parent = upper
                node.start += shared_in_node
                node.depth += shared_in_node
                node.length -= shared_in_node
                self.nodes.append(upper)
                path.append(upper)
            break
        parent = None
        depth = 0
        if path:
            parent = path[-1]
            depth = parent.depth + len(parent)
        num_new = length - depth
        if num_new > 0:
            leaf = Node(parent=parent, start=self.tokens, depth=depth, length=num_new)
            path.append(leaf)
            self.nodes.append(leaf)
            self.tokens += num_new
        self._last_path = path
        return num_new

    def grow_trunk(self, length: int, depths: Sequence[int]) -> None:
        """Begin with a sequence that others leave at `depths`: a run of nodes between these."""
        ends = sorted({depth for depth in depths if 0 < depth < length} | {length})
        parent = None
        start = 0
        for end in ends:
            parent = Node(parent=parent, start=start, depth=start, length=end - start)
            self._trunk_nodes.append(parent)
            start = end
        self.nodes += self._trunk_nodes
        self.tokens = length

    def follow_trunk(self, depth: int) -> None:
        """Let the next sequence be compared with the trunk's first `depth` tokens alone."""
        self._last_path = [node for node in self._trunk_nodes if node.start < depth]

    def positions(self) -> NDArray[np.int64]:
        """Compute the indices of the last sequence's tokens in the flat sequence."""
        if not self._last_path:
            return np.zeros(0, np.int64)
        runs = [np.arange(node.start, node.start + len(node)) for node in self._last_path]
        return np.concatenate(runs)

    def in_order(self) -> list[Node]:
        """Sort the nodes by their start in the flat sequence; parents come before children."""
        return sorted(self.nodes, key=lambda node: node.start)


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """N nodes of similar length, each attending to itself causally; padded on the right to L."""

    indices_NL: Tensor
    """Tokens of each node as indices into the pack; padding repeats the node's first."""
    real_NL: Tensor
    """False on padding."""

    def gather(self, x: Tensor, fill: float | None = None) -> Tensor:
        """Copy x (1, heads, T, …) into blocks (N, heads, L, …), with `fill` on padding."""
        blocks = x[0].transpose(0, 1)[self.indices_NL]
        if fill is not None:
            blocks[~self.real_NL] = fill
        return blocks.transpose(1, 2)

    def scatter(self, blocks: Tensor, into: Tensor) -> None:
        """Write blocks (N, heads, L, …) without their padding into (1, heads, T, …)."""
        values = blocks.transpose(1, 2)[self.real_NL].to(into.dtype)
        into[0].transpose(0, 1)[self.indices_NL[self.real_NL]] = values


@dataclass(frozen=True, slots=True)
class Layout:
    """Attention of a flat sequence: each node sees all ancestors and, causally, itself.

    Behind a trunk of S tokens, keys are those of the trunk, then those of the pack; queries are the
    pack's alone.
    """

    starts: tuple[int, ...]
    """Start of each node among the keys; the last entry is the number of keys."""
    parents: tuple[int, ...]
    """Index of each node's parent, -1 for a root; parents come first."""
    keys_K: Tensor
    """Path of each of the pack's nodes, one after the other, as indices of keys."""
    query_starts_N: Tensor
    key_starts_N: Tensor
    """Starts of each node's queries and keys, and the end of the last: int32."""
    longest_run: int
    longest_path: int

    blocks: tuple[AttentionBlocks, ...]
    """Attention of every node to itself."""
    ancestor_blocks: tuple[tuple[int, int, int, int], ...]
    """Keys of each node that has descendants, and the queries of all of these: starts and ends."""
    trunk_tokens: int = 0
    """S, the keys before the pack's own."""
    trunk_nodes: int = 0
    """Nodes of the trunk, which come first."""

    def to(self, device: torch.device) -> "Layout":
        """Copy the layout to a device."""
        blocks = tuple(replace(block, **tensors_on(block, device)) for block in self.blocks)
        return replace(self, blocks=blocks, **tensors_on(self, device))

    def path(self, node: int) -> list[slice]:
        """List the runs of keys from the root to a node."""
        runs: list[slice] = []
        while node >= 0:
            runs.append(slice(self.starts[node], self.starts[node + 1]))
            node = self.parents[node]
        return runs[::-1]


def tensors_on(record: Any, device: torch.device) -> dict[str, Any]:
    """Copy the tensors of a dataclass to a device, keyed by field."""
    tensors = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = value.to(device)
    return tensors


def make_layout(forest: PrefixForest, trunk_tokens: int = 0) -> Layout:
    """Build the layout of a pack from the forest of prefixes.

    Args:
        forest: the nodes of the pack behind those of a trunk.
        trunk_tokens: length of the trunk.
    """
    all_nodes = forest.in_order()
    starts = [node.start for node in all_nodes] + [forest.tokens]
    number_of = {id(node): number for number, node in enumerate(all_nodes)}
    parents = [-1 if node.parent is None else number_of[id(node.parent)] for node in all_nodes]
    nodes = [node for node in all_nodes if node.start >= trunk_tokens]
    keys = []
    path_lengths = []
    for node in nodes:
        path = [node]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        for ancestor in reversed(path):
            keys.append(np.arange(ancestor.start, ancestor.start + len(ancestor)))
        path_lengths.append(node.depth + len(node))
    trunk_nodes = len(all_nodes) - len(nodes)
    query_starts = [start - trunk_tokens for start in starts[trunk_nodes:]]
    return Layout(
        starts=tuple(starts),
        parents=tuple(parents),
        keys_K=torch.from_numpy(np.concatenate(keys)),
        query_starts_N=torch.tensor(query_starts, dtype=torch.int32),
        key_starts_N=torch.tensor([0, *np.cumsum(path_lengths)], dtype=torch.int32),
        longest_run=max(len(node) for node in nodes),
        longest_path=max(path_lengths),
        blocks=_self_blocks(nodes, trunk_tokens),
        ancestor_blocks=_ancestor_blocks(starts, parents, trunk_tokens),
        trunk_tokens=trunk_tokens,
        trunk_nodes=trunk_nodes,
    )


def _self_blocks(nodes: Sequence[Node], trunk_tokens: int) -> tuple[AttentionBlocks, ...]:
    # One call for all nodes of about one length: a kernel's launch costs more than some padding.
    groups: list[list[Node]] = []
    for node in sorted(nodes, key=lambda node: -len(node)):
        if not groups or len(node) < _EVEN_LENGTH_SHARE * len(groups[-1][0]):
            groups.append([])
        groups[-1].append(node)
    blocks = []
    for group in groups:
        starts_N1 = np.array([[node.start - trunk_tokens] for node in group])
        lengths_N1 = np.array([[len(node)] for node in group])
        offsets_L = np.arange(len(group[0]))
        real_NL = offsets_L < lengths_N1
        indices_NL = starts_N1 + np.where(real_NL, offsets_L, 0)
        blocks.append(
            AttentionBlocks(
                indices_NL=torch.from_numpy(indices_NL),
                real_NL=torch.from_numpy(real_NL),
            )
        )
    return tuple(blocks)


def _ancestor_blocks(
    starts: Sequence[int], parents: Sequence[int], trunk_tokens: int
) -> tuple[tuple[int, int, int, int], ...]:
    # Descendants follow their ancestor without a gap, so one end per node describes them all.
    # Children come after their parent: from the back, each passes on its last descendant's end.
    last_ends = list(starts[1:])
    for node in reversed(range(len(parents))):
        parent = parents[node]
        if parent >= 0:
            last_ends[parent] = max(last_ends[parent], last_ends[node])
    blocks = []
    for node, last_end in enumerate(last_ends):
        node_end = starts[node + 1]
        first_query = max(node_end - trunk_tokens, 0)
        end_query = last_end - trunk_tokens
        if end_query > first_query:
            blocks.append((starts[node], node_end, first_query, end_query))
    return tuple(blocks)
