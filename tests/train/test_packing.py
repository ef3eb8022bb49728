"""Packs: budgets, even work over ranks, pairs, and how much sharing and merging save."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from debate_train.batches.packs import Packs, pack
from debate_train.batches.row_types import Batch, Row

pytestmark = pytest.mark.numeric

MakeBatch = Callable[..., Batch]


def packed(batch: Batch, budget: int, **settings: object) -> list[Packs]:
    return pack(batch, [row.mask[row.sampled_positions] for row in batch.rows], budget, **settings)  # type: ignore[arg-type]


def sizes(packs: Packs) -> list[int]:
    return [one.tokens_BT.numel() for one in packs]


def turn(tokens: list[int], first: int, row: Row) -> Row:
    """A row of these tokens, sampled from `first` on."""
    mask = np.arange(len(tokens)) >= first
    return Row.of_tokens(
        tokens=np.array(tokens),
        mask=mask.astype(np.float32),
        segments=mask.astype(np.int64),
        agent=row.agent,
        debate=row.debate,
        **{
            name: np.resize(row.over_tokens(name), len(tokens))
            for name in ("advantages", "sampler_logps", "temperatures", "streams", "versions")
        },
    )


def batch_of(rows: list[Row]) -> Batch:
    return Batch(tuple(rows), ("generator",), int(sum(r.mask.sum() for r in rows)), len(rows))


def test_packs_hold_every_action_once_within_the_budget(random_batch: MakeBatch) -> None:
    batch = random_batch(lengths=(8, 23, 14, 30, 9, 9, 70))
    # A row's last token predicts nothing: 7 + 22 + 13 + 29 + 8 + 8 + 69 = 156 tokens.
    for share, total in (("prefix", 156), ("rows", 156)):
        (packs,) = packed(batch, 64, share=share)
        assert sum(sizes(packs)) == total
        # 69 is over the budget alone; 87 are left for two packs.
        assert sorted(size > 64 for size in sizes(packs)) == [False, False, True]
        assert sum(len(one.targets_A) for one in packs) == batch.sampled_tokens
        for one in packs:
            for row in set(one.rows_A.tolist()):
                own = batch.rows[row]
                assert one.targets_A[one.rows_A == row].tolist() == own.tokens[3:].tolist()
                sources = one.sources_A[one.rows_A == row]
                assert one.tokens_BT.flatten()[sources].tolist() == own.tokens[2:-1].tolist()
                assert one.positions_BT.flatten()[sources].tolist() == list(range(2, len(own) - 1))


def test_padded_packs_hold_rows_of_like_length(random_batch: MakeBatch) -> None:
    (packs,) = packed(random_batch(lengths=(8, 23, 14, 30, 9, 9, 70)), 64, share="none")
    # 69 alone; 29 and 22 pad to 58; 13, 8, 8 and 7 to 52.
    assert [tuple(one.tokens_BT.shape) for one in packs] == [(1, 69), (2, 29), (4, 13)]


@pytest.mark.parametrize("share", ["prefix", "rows", "none"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_ranks_have_as_many_packs_of_even_work(
    random_batch: MakeBatch, share: str, ranks: int
) -> None:
    batch = random_batch(lengths=tuple(10 + k % 7 for k in range(40)))
    dealt = packed(batch, 100, share=share, ranks=ranks)
    assert len(dealt) == ranks
    assert len({len(packs) for packs in dealt}) == 1
    rows = [row for packs in dealt for one in packs for row in set(one.rows_A.tolist())]
    assert sorted(rows) == list(range(40))
    work = [sum(sizes(packs)) for packs in dealt]
    assert max(work) - min(work) <= 2 * 16  # two rows


def test_rank_without_rows_has_a_pack_that_carries_no_loss(random_batch: MakeBatch) -> None:
    dealt = packed(random_batch(lengths=(8,)), 100, ranks=3)
    assert [len(packs) for packs in dealt] == [1, 1, 1]
    assert sorted(len(packs[0].targets_A) for packs in dealt) == [0, 0, 5]
    assert [*map(len, packed(random_batch(lengths=()), 100, ranks=2))] == [0, 0]


def test_row_without_an_action_is_left_out(random_batch: MakeBatch) -> None:
    batch = random_batch(lengths=(8, 9))
    silent = Row.of_tokens(batch.rows[0].tokens, np.zeros(8), agent=0, debate=0)
    (packs,) = packed(replace(batch, rows=(silent, batch.rows[1])), 100)
    assert [set(one.rows_A.tolist()) for one in packs] == [{1}]


def test_pair_stands_in_one_pack(random_batch: MakeBatch) -> None:
    rows = [replace(r, pair=k % 6) for k, r in enumerate(random_batch(lengths=(20,) * 12).rows)]
    for share in ("prefix", "rows", "none"):
        for packs in packed(batch_of(rows), 45, share=share, ranks=2):
            for one in packs:
                held = set(one.rows_A.tolist())
                assert {(row + 6) % 12 for row in held} == held
                assert set(one.pairs_A.tolist()) == {row % 6 for row in held}


def test_group_computes_its_prompt_once(random_batch: MakeBatch) -> None:
    row = random_batch(lengths=(8,)).rows[0]
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(4):
        prompt = rng.integers(6, 120, 64).tolist()
        rows += [turn(prompt + rng.integers(6, 120, 61).tolist(), 64, row) for _ in range(8)]
    # 4·(64 + 8·60) tokens shared, 32·124 not: the last of a reply predicts nothing.
    assert sizes(packed(batch_of(rows), 10**6)[0]) == [4 * (64 + 8 * 60)]
    assert sizes(packed(batch_of(rows), 10**6, share="rows")[0]) == [32 * 124]


@pytest.mark.parametrize(("agents", "rounds"), [(3, 2), (5, 3), (7, 4)])
def test_debate_read_alike_is_computed_once_however_small_the_budget(
    random_batch: MakeBatch, agents: int, rounds: int
) -> None:
    row = random_batch(lengths=(8,)).rows[0]
    rng, size, rows = np.random.default_rng(0), 20, []
    told = rng.integers(6, 120, size).tolist()
    for _ in range(rounds):
        said = [rng.integers(6, 120, size).tolist() for _ in range(agents)]
        # What is said to one agent stands between the debate and its reply.
        asked = [[*told, 200 + agent] for agent in range(agents)]
        rows += [turn([*a, *b], len(a), row) for a, b in zip(asked, said, strict=True)]
        told = [*told, *(token for one in said for token in one)]
    batch = batch_of(rows)
    for budget in (10**6, 2 * size, 1):
        # The question and all rounds but the last, as read, and all replies, as said.
        once = size * (1 + agents * (rounds - 1)) + rounds * agents * size
        found = sizes(packed(batch, budget)[0])
        # First answers share half at most: beyond the budget each computes the question again.
        assert once <= sum(found) <= once + (0 if budget > once else agents * size)
        assert max(found) <= max(budget, 2 * len(rows[-1]))
        assert sum(sizes(packed(batch, budget, share="rows")[0])) == sum(len(r) - 1 for r in rows)


@pytest.mark.parametrize("turns", [2, 3, 6, 9])
def test_merged_turns_save_what_theory_says(random_batch: MakeBatch, turns: int) -> None:
    row = random_batch(lengths=(8,)).rows[0]
    size = 20  # told and said in every turn
    tokens = np.random.default_rng(0).integers(6, 120, turns * size).tolist()
    split = [turn(tokens[: (k + 1) * size], k * size + 8, row) for k in range(turns)]
    lengths = [len(one) for one in split]
    # 1 + 2 + … + T turns' tokens beside T: (T + 1)/2.
    assert sum(lengths) / lengths[-1] == (turns + 1) / 2
    apart = sizes(packed(batch_of(split), 10**6, share="rows")[0])
    assert apart == [sum(length - 1 for length in lengths)]
    # Rows of split turns share all that the merged row is: the same tokens are computed.
    assert sizes(packed(batch_of(split), 10**6)[0]) == [turns * size - 1]
