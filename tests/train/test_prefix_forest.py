"""What sequences share, against layouts worked by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_train.batches import packs as prefix_forest
from debate_train.batches.packs import PrefixForest, make_layout
from debate_train.batches.row_types import lexicographic, shared_length

pytestmark = pytest.mark.numeric


def grown(sequences: list[list[int]]) -> tuple[PrefixForest, list[list[int]]]:
    """The forest of these sequences in this order, and where each one's tokens stand."""
    forest, places, before = PrefixForest(), [], np.zeros(0, np.int64)
    for sequence in sequences:
        tokens = np.array(sequence, np.int64)
        forest.add(len(tokens), shared_length(before, tokens))
        places.append(forest.positions().tolist())
        before = tokens
    return forest, places


def test_sequences_share_what_they_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_forest, "MIN_SHARED", 2)
    forest, places = grown([[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 7], [8]])
    # 1 2 3 | 4 | 5 6 are there when 1 2 7 comes and cuts 1 2 from 3; 8 begins anew.
    assert places == [[0, 1, 2, 3], [0, 1, 2, 4, 5], [0, 1, 6], [7]]
    layout = make_layout(forest)
    assert layout.starts == (0, 2, 3, 4, 6, 7, 8)
    assert layout.parents == (-1, 0, 1, 1, 0, -1)
    # 1 2 is seen by all up to 7, and 3 by 4, 5 and 6.
    assert layout.ancestor_blocks == ((0, 2, 7), (2, 3, 6))
    assert layout.keys_K.tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 4, 5, 0, 1, 6, 7]
    assert layout.key_starts_N.tolist() == [0, 2, 5, 9, 14, 17, 18]
    assert (layout.longest_run, layout.longest_path) == (2, 5)


def test_copy_adds_nothing_and_a_beginning_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_forest, "MIN_SHARED", 1)
    sequences = [[1, 2, 3], [1, 2], [1, 2, 3], [1, 2]]
    order = lexicographic([np.array(sequence) for sequence in sequences])
    assert order == [1, 3, 0, 2]
    forest, places = grown([sequences[k] for k in order])
    assert forest.tokens == 3
    assert places == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]


def test_branch_that_saves_too_little_is_not_made() -> None:
    start = list(range(10, 10 + prefix_forest.MIN_SHARED))
    assert grown([[*start, 1], [*start, 2]])[0].tokens == len(start) + 2
    assert grown([[*start[1:], 1], [*start[1:], 2]])[0].tokens == 2 * len(start)
    # Below a shared beginning, too: the last two go on alike for less than is worth a node.
    more = [*start, *start[:-1]]
    forest, _ = grown([[*start, 1], [*more, 2], [*more, 3]])
    assert forest.tokens == len(start) + 1 + 2 * len(start)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9),
    shortest=st.integers(1, 4),
)
def test_every_path_spells_its_sequence(sequences: list[list[int]], shortest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_forest, "MIN_SHARED", shortest)
        order = lexicographic([np.array(sequence) for sequence in sequences])
        ordered = [sequences[k] for k in order]
        forest, places = grown(ordered)
        layout = make_layout(forest)
    flat = np.full(forest.tokens, -1)
    for sequence, place in zip(ordered, places, strict=True):
        assert (np.isin(flat[place], [-1]) | (flat[place] == sequence)).all()
        flat[place] = sequence
    assert (flat >= 0).all()
    ends = {place[-1]: place for place in places}
    for node in range(len(layout.parents)):
        path = [k for run in layout.path(node) for k in range(run.start, run.stop)]
        assert path == ends.get(path[-1], path)
    squared = np.concatenate([block.indices_NL[block.real_NL] for block in layout.blocks])
    assert sorted(squared.tolist()) == list(range(forest.tokens))
    if shortest == 1:  # Everything that any two share is there once.
        assert forest.tokens == len({tuple(s[: k + 1]) for s in sequences for k in range(len(s))})
