"""Packs: shared prefixes, budgets, even work over ranks, and the same gradient as rows alone."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from arithmetic import assert_rounded, in_float64
from debate_train.batches import forward, prefix_forest
from debate_train.batches.packs import pack
from debate_train.batches.prefix_forest import PrefixForest, make_layout
from debate_train.batches.row_types import Batch, Row, lexicographic, shared_length, weigh
from debate_train.losses import PpoClip
from debate_train.models.loaded_model import LoadedModel, with_adapter
from debate_train.trainers.torch_session import (
    KnownLogps,
    StepStats,
    accumulate,
    row_logps,
    trainable,
)
from train.made_rows import row_of

pytestmark = pytest.mark.numeric


# What sequences share, against layouts worked by hand


def grow_forest(sequences):
    """Add sequences in this order; return the forest and where each one's tokens stand."""
    forest = PrefixForest()
    positions = []
    previous = np.zeros(0, np.int64)
    for sequence in sequences:
        tokens = np.array(sequence, np.int64)
        forest.add(len(tokens), shared_length(previous, tokens))
        positions.append(forest.positions().tolist())
        previous = tokens
    return forest, positions


def test_sequences_share_what_they_begin_with(monkeypatch):
    monkeypatch.setattr(prefix_forest, "MIN_SHARED", 2)
    forest, positions = grow_forest([[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 7], [8]])
    # 1 2 3 | 4 | 5 6 are there when 1 2 7 comes and cuts 1 2 from 3; 8 begins anew.
    assert positions == [[0, 1, 2, 3], [0, 1, 2, 4, 5], [0, 1, 6], [7]]
    layout = make_layout(forest)
    assert layout.starts == (0, 2, 3, 4, 6, 7, 8)
    assert layout.parents == (-1, 0, 1, 1, 0, -1)
    # 1 2 is seen by the queries up to 7, and 3 by 4, 5 and 6.
    assert layout.ancestor_blocks == ((0, 2, 2, 7), (2, 3, 3, 6))
    assert layout.keys_K.tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 4, 5, 0, 1, 6, 7]
    assert layout.key_starts_N.tolist() == [0, 2, 5, 9, 14, 17, 18]
    assert (layout.longest_run, layout.longest_path) == (2, 5)


def test_branch_that_saves_too_little_is_not_made():
    start = list(range(10, 10 + prefix_forest.MIN_SHARED))
    assert grow_forest([[*start, 1], [*start, 2]])[0].tokens == len(start) + 2
    assert grow_forest([[*start[1:], 1], [*start[1:], 2]])[0].tokens == 2 * len(start)
    # Below a shared beginning, too: the last two go on alike for less than is worth a node.
    longer = [*start, *start[:-1]]
    forest, _ = grow_forest([[*start, 1], [*longer, 2], [*longer, 3]])
    assert forest.tokens == len(start) + 1 + 2 * len(start)


@settings(max_examples=50, derandomize=True)
@given(
    sequences=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=9),
    shortest=st.integers(1, 4),
)
def test_every_path_spells_its_sequence(sequences, shortest):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix_forest, "MIN_SHARED", shortest)
        order = lexicographic([np.array(sequence) for sequence in sequences])
        sequences = [sequences[index] for index in order]
        forest, positions = grow_forest(sequences)
        layout = make_layout(forest)
    tokens = np.full(forest.tokens, -1)
    for sequence, sequence_positions in zip(sequences, positions, strict=True):
        is_free = tokens[sequence_positions] == -1
        assert (is_free | (tokens[sequence_positions] == sequence)).all()
        tokens[sequence_positions] = sequence
    assert (tokens >= 0).all()
    positions_by_end = {path[-1]: path for path in positions}
    for node in range(len(layout.parents)):
        runs = [np.arange(run.start, run.stop) for run in layout.path(node)]
        path = np.concatenate(runs).tolist()
        assert path == positions_by_end.get(path[-1], path)
    in_blocks = np.concatenate([block.indices_NL[block.real_NL] for block in layout.blocks])
    assert sorted(in_blocks.tolist()) == list(range(forest.tokens))
    if shortest == 1:  # Everything that any two share is there once.
        prefixes = {tuple(s[:size]) for s in sequences for size in range(1, len(s) + 1)}
        assert forest.tokens == len(prefixes)


# Budgets and ranks


def make_row(tokens, sampled, debate=0, rng=None):
    """Make a row with random credit, log-probabilities and temperature."""
    rng = rng or np.random.default_rng(0)
    size = len(tokens)
    return row_of(
        tokens,
        sampled,
        advantages=rng.normal(size=size),
        sampler_logps=rng.normal(-4.0, 0.1, size),
        temperatures=rng.uniform(0.5, 1.5),
        debate=debate,
    )


def make_batch(rows):
    return Batch(tuple(rows), ("generator",), int(sum(row.mask.sum() for row in rows)), len(rows))


def pack_rows(batch, budget, **options):
    weights = [row.mask[row.sampled_positions] for row in batch.rows]
    return pack(batch, weights, budget, **options)


def sizes(rank_packs):
    return [one_pack.tokens_BT.numel() for one_pack in rank_packs]


def rows_in(one_pack):
    return set(one_pack.rows_A.tolist())


def random_tokens(rng, size):
    return rng.integers(6, 120, size).tolist()


@pytest.mark.parametrize("share", ["prefix", "rows"])
def test_packs_hold_every_action_once_within_the_budget(random_batch, share):
    batch = random_batch(lengths=(8, 23, 14, 30, 9, 9, 70))
    (rank_packs,) = pack_rows(batch, 64, share=share)
    # A row's last token predicts nothing: 7 + 22 + 13 + 29 + 8 + 8 + 69 tokens.
    assert sum(sizes(rank_packs)) == 156
    # 69 is over the budget alone; 87 are left for two packs.
    assert sorted(size > 64 for size in sizes(rank_packs)) == [False, False, True]
    assert sum(len(one_pack.targets_A) for one_pack in rank_packs) == batch.sampled_tokens
    for one_pack in rank_packs:
        for index in rows_in(one_pack):
            tokens = batch.rows[index].tokens
            is_row = one_pack.rows_A == index
            sources = one_pack.sources_A[is_row]
            assert one_pack.targets_A[is_row].tolist() == tokens[3:].tolist()
            assert one_pack.tokens_BT.flatten()[sources].tolist() == tokens[2:-1].tolist()
            positions = one_pack.positions_BT.flatten()[sources].tolist()
            assert positions == list(range(2, len(tokens) - 1))


def test_padded_packs_hold_rows_of_like_length(random_batch):
    (rank_packs,) = pack_rows(random_batch(lengths=(8, 23, 14, 30, 9, 9, 70)), 64, share="none")
    # 69 alone; 29 and 22 pad to 58; 13, 8, 8 and 7 to 52.
    shapes = [tuple(one_pack.tokens_BT.shape) for one_pack in rank_packs]
    assert shapes == [(1, 69), (2, 29), (4, 13)]


@pytest.mark.parametrize("share", ["prefix", "rows", "none"])
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_ranks_have_as_many_packs_of_even_work(random_batch, share, num_ranks):
    batch = random_batch(lengths=tuple(10 + number % 7 for number in range(40)))
    packs_by_rank = pack_rows(batch, 100, share=share, ranks=num_ranks)
    assert len(packs_by_rank) == num_ranks
    assert len({len(rank_packs) for rank_packs in packs_by_rank}) == 1
    numbers = []
    for one_pack in chain(*packs_by_rank):
        numbers += rows_in(one_pack)
    assert sorted(numbers) == list(range(40))
    work = [sum(sizes(rank_packs)) for rank_packs in packs_by_rank]
    assert max(work) - min(work) <= 2 * 16  # two rows


def test_rank_without_rows_has_a_pack_that_carries_no_loss(random_batch):
    packs_by_rank = pack_rows(random_batch(lengths=(8,)), 100, ranks=3)
    assert sorted(len(only_pack.targets_A) for (only_pack,) in packs_by_rank) == [0, 0, 5]
    assert [len(p) for p in pack_rows(random_batch(lengths=()), 100, ranks=2)] == [0, 0]


@pytest.mark.parametrize("share", ["prefix", "rows", "none"])
def test_pair_stands_in_one_pack(random_batch, share):
    rows = random_batch(lengths=(20,) * 12).rows
    rows = [replace(row, pair=number % 6) for number, row in enumerate(rows)]
    ways = [{"ranks": 2}, {"with_trunks": True}]
    for rank_packs in chain(*(pack_rows(make_batch(rows), 45, share=share, **way) for way in ways)):
        for one_pack in rank_packs:
            numbers = rows_in(one_pack)
            assert {(number + 6) % 12 for number in numbers} == numbers
            assert set(one_pack.pairs_A.tolist()) == {number % 6 for number in numbers}


def debate_read_alike(num_agents, num_rounds, size):
    """Make a debate's rows: all agents first read the same, a question and all earlier rounds."""
    rng = np.random.default_rng(0)
    history = random_tokens(rng, size)
    rows = []
    for _ in range(num_rounds):
        replies = [random_tokens(rng, size) for _ in range(num_agents)]
        for agent, reply in enumerate(replies):
            # What is said to one agent stands between the debate and its reply.
            prompt = [*history, 200 + agent]
            rows.append(make_row(prompt + reply, [False] * len(prompt) + [True] * size))
        history = [*history, *chain(*replies)]
    return rows


@pytest.mark.parametrize(("num_agents", "num_rounds"), [(3, 2), (7, 4)])
def test_debate_read_alike_is_computed_once_however_small_the_budget(num_agents, num_rounds):
    size = 20
    rows = debate_read_alike(num_agents, num_rounds, size)
    # The question and all rounds but the last, as read, and all replies, as said.
    num_shared = size * (1 + num_agents * (num_rounds - 1)) + num_rounds * num_agents * size
    for budget in (10**6, 2 * size, 1):
        pack_sizes = sizes(pack_rows(make_batch(rows), budget)[0])
        # First answers share half at most: beyond the budget each computes the question again.
        num_repeated = 0 if budget > num_shared else num_agents * size
        assert num_shared <= sum(pack_sizes) <= num_shared + num_repeated
        assert max(pack_sizes) <= max(budget, 2 * len(rows[-1]))


def test_debate_beyond_the_budget_goes_behind_a_trunk():
    rows = debate_read_alike(num_agents=7, num_rounds=4, size=20)
    (rank_packs,) = pack_rows(make_batch(rows), 160, with_trunks=True)
    *behind, first_answers = rank_packs
    # The last round reads question and three rounds, 20 + 3·7·20 tokens. Rounds two to four are
    # said behind them, 21 replies of 20 tokens; the first answers share too little and fit alone.
    trunk = behind[0].trunk
    assert trunk.tokens.tolist() == rows[-1].tokens[:440].tolist()
    assert [one_pack.trunk for one_pack in behind] == [trunk] * len(behind)
    assert sum(sizes(behind)) == 21 * 20
    assert first_answers.trunk is None and sizes([first_answers]) == [20 + 7 * 20]
    # A quarter of the 860 tokens goes forward twice. So fewer than half are held at once.
    computed_twice, kept = trunk.runs
    assert [run.tokens_1T.numel() for run in trunk.runs] == [215, 225]
    assert kept.keeps_activations and not computed_twice.keeps_activations
    assert kept.tokens_1T.numel() + max(sizes(behind)) == 225 + 40
    actions = [number for one_pack in rank_packs for number in one_pack.rows_A.tolist()]
    assert sorted(actions) == [number for number in range(28) for _ in range(20)]


@pytest.mark.parametrize(("budget", "run_sizes"), [(400, [95, 345]), (500, [440])])
def test_trunk_keeps_as_many_activations_as_the_budget_allows(budget, run_sizes):
    rows = debate_read_alike(num_agents=7, num_rounds=4, size=20)
    (rank_packs,) = pack_rows(make_batch(rows), budget, with_trunks=True)
    *behind, _ = rank_packs
    # Packs may have 440 / 8 = 55 tokens, or 60 up to 500.
    assert [run.tokens_1T.numel() for run in behind[0].trunk.runs] == run_sizes
    assert run_sizes[-1] + max(sizes(behind)) <= budget


@pytest.mark.parametrize("num_turns", [2, 9])
def test_split_turns_compute_no_more_tokens_than_a_merged_row(num_turns):
    size = 20  # of each prompt's news with its reply
    tokens = random_tokens(np.random.default_rng(0), num_turns * size)
    rows = []
    for end in range(size, len(tokens) + 1, size):
        rows.append(make_row(tokens[:end], [False] * (end - 12) + [True] * 12))
    # 1 + 2 + … + T turns' tokens beside T: (T + 1)/2.
    assert sum(map(len, rows)) == len(tokens) * (num_turns + 1) / 2
    assert sizes(pack_rows(make_batch(rows), 10**6)[0]) == [len(tokens) - 1]


# The same loss and gradient however rows are packed

LOSS = PpoClip(aggregation="token_mean_batch")
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
LAYER_TYPES = ["sliding_attention", "full_attention"]
MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "mistral sliding": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=7)),
    "gemma3 sliding": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SHAPE, sliding_window=7, layer_types=LAYER_TYPES)
    ),
}


def make_model(kind="qwen3"):
    torch.manual_seed(0)
    return MODELS[kind]()


def gradient_of_parameters(model):
    gradient = {}
    for name, parameter in trainable(model).items():
        gradient[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return {name: slope.clone() for name, slope in gradient.items()}


def compute_by_rows(model, batch):
    """Compute loss and gradient the plain way: every row alone, its whole logits, summed."""
    model.zero_grad()
    loss = torch.zeros((), dtype=torch.float64)
    batch, weights = weigh(batch, LOSS.aggregation)
    for row, row_weights in zip(batch.rows, weights, strict=True):
        tokens = torch.from_numpy(row.over_tokens("tokens"))
        temperatures = torch.from_numpy(row.over_tokens("temperatures"))
        sampler_logps = torch.from_numpy(row.over_tokens("sampler_logps"))
        advantages = torch.from_numpy(row.over_tokens("advantages"))[1:]
        token_weights = replace(row, advantages=row_weights).over_tokens("advantages")[1:]
        logits = model(input_ids=tokens[None]).logits[0, :-1] / temperatures[1:, None]
        logps = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        ratio = (logps - sampler_logps[1:]).exp()
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
        loss = loss - (surrogate * torch.from_numpy(token_weights)).sum()
    if loss.requires_grad:
        loss.backward()
    return float(loss.detach()), gradient_of_parameters(model)


def compute_packed(model, batch, budget=10**6, num_ranks=1, share="prefix", with_trunks=False):
    """Compute loss and gradient of all ranks' packs, summed."""
    model.zero_grad()
    batch, weights = weigh(batch, LOSS.aggregation)
    loss = 0.0
    ways = {"ranks": num_ranks, "share": share, "with_trunks": with_trunks}
    for rank_packs in pack(batch, weights, budget, **ways):
        stats = StepStats()
        logps = [KnownLogps()] * len(rank_packs)
        accumulate(model, rank_packs, LOSS, logps, lambda part: part.backward(), stats)
        loss += stats.metrics(1).get("loss", 0.0)
    return loss, gradient_of_parameters(model)


def assert_equal(computed, expected):
    """Compare loss and gradient in float64: sums of some hundred terms, each rounded by 1e-16."""
    gap = 1e-12
    loss, gradient = computed
    expected_loss, expected_gradient = expected
    assert loss == pytest.approx(expected_loss, rel=10 * gap, abs=gap)
    largest = max(float(slope.abs().max()) for slope in expected_gradient.values())
    for name, slope in expected_gradient.items():
        assert float((gradient[name] - slope).abs().max()) <= gap * max(largest, 1e-3), name


@st.composite
def batches(draw):
    """Draw rows that begin as another one does, or do not; copies and beginnings among them."""
    sequences = []
    for _ in range(draw(st.integers(1, 7))):
        start = []
        if sequences and draw(st.booleans()):
            other = draw(st.sampled_from(sequences))
            start = other[: draw(st.integers(0, len(other)))]
        end = draw(st.lists(st.integers(1, 5), min_size=0 if start else 1, max_size=12))
        sequences.append(start + end)
    rng = np.random.default_rng(0)
    rows = []
    for debate, tokens in enumerate(sequences):
        sampled = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
        rows.append(make_row(tokens, sampled, debate, rng))
    return make_batch(rows)


NETWORK = make_model().double()


@settings(max_examples=40, derandomize=True)
@given(
    batch=batches(),
    budget=st.sampled_from([1, 9, 10**6]),
    num_ranks=st.sampled_from([1, 2, 3]),
    share=st.sampled_from(["prefix", "rows", "none"]),
    shortest=st.sampled_from([1, 4]),
    with_trunks=st.booleans(),
)
def test_loss_and_gradient_are_those_of_rows_alone_when_packed_in_any_way(
    batch, budget, num_ranks, share, shortest, with_trunks
):
    with pytest.MonkeyPatch.context() as patch, in_float64():
        patch.setattr(prefix_forest, "MIN_SHARED", shortest)
        computed = compute_packed(NETWORK, batch, budget, num_ranks, share, with_trunks)
        assert_equal(computed, compute_by_rows(NETWORK, batch))


def two_questions():
    """Make two questions of four replies; three second turns go on from one first turn."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(2):
        prompt = rng.integers(1, 60, 12).tolist()
        first_reply = rng.integers(1, 60, 10).tolist()
        for size in (5, 9, 3):
            news_and_reply = rng.integers(1, 60, 2 + size).tolist()
            sampled = [False] * 12 + [True] * 10 + [False] * 2 + [True] * size
            rows.append(make_row(prompt + first_reply + news_and_reply, sampled, len(rows), rng))
        other_reply = rng.integers(1, 60, 8).tolist()
        rows.append(make_row(prompt + other_reply, [False] * 12 + [True] * 8, len(rows), rng))
    return make_batch(rows)


WAYS = [
    (10**6, 1, "prefix", False),
    (40, 2, "prefix", False),
    (10**6, 1, "rows", False),
    (20, 1, "prefix", True),
]


@pytest.mark.parametrize("kind", MODELS)
def test_every_architecture_is_packed_without_a_difference(kind):
    model = make_model(kind).double().train()
    model.gradient_checkpointing_enable()
    attention = model.config._attn_implementation
    with in_float64():
        expected = compute_by_rows(model, two_questions())
        for way in WAYS:
            assert_equal(compute_packed(model, two_questions(), *way), expected)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize("kind", MODELS)
def test_packs_round_as_rows_alone_do(kind):
    _, plain = compute_by_rows(make_model(kind), two_questions())
    with in_float64():
        _, exact = compute_by_rows(make_model(kind).double(), two_questions())
    for way in WAYS:
        _, rounded = compute_packed(make_model(kind), two_questions(), *way)
        assert_rounded(rounded, plain, exact)


def test_bfloat16_is_as_near_packed_as_padded():
    _, exact = compute_by_rows(make_model().double(), two_questions())
    _, shared = compute_packed(make_model().bfloat16(), two_questions(), share="prefix")
    _, padded = compute_packed(make_model().bfloat16(), two_questions(), share="none")
    assert {slope.dtype for slope in shared.values()} == {torch.bfloat16}
    assert_rounded(shared, padded, exact, factor=2)


@pytest.mark.parametrize("budget", [1, 60, 120])
def test_debate_has_the_gradient_of_its_rows_behind_a_trunk(budget):
    rows = debate_read_alike(num_agents=2, num_rounds=3, size=9)
    # A row may end within the trunk.
    rows.append(make_row(rows[-1].tokens[:20], [False] * 12 + [True] * 8))
    rows = [replace(row, tokens=row.tokens % 60) for row in rows]
    with in_float64():
        computed = compute_packed(NETWORK, make_batch(rows), budget, with_trunks=True)
        assert_equal(computed, compute_by_rows(NETWORK, make_batch(rows)))


def test_copies_of_a_row_have_its_gradient_behind_a_trunk():
    row = make_row(np.arange(1, 51), [False] * 10 + [True] * 40)
    with in_float64():
        computed = compute_packed(NETWORK, make_batch([row, row]), budget=10, with_trunks=True)
        assert_equal(computed, compute_by_rows(NETWORK, make_batch([row, row])))


def test_rows_score_alike_behind_a_trunk():
    batch = make_batch([replace(row, tokens=row.tokens % 60) for row in debate_read_alike(3, 2, 9)])
    with in_float64():
        (packed,) = pack_rows(batch, 10**6)
        (behind_trunk,) = pack_rows(batch, 30, with_trunks=True)
        assert any(one_pack.trunk for one_pack in behind_trunk)
        expected = row_logps(NETWORK, packed, LOSS)
        assert row_logps(NETWORK, behind_trunk, LOSS) == pytest.approx(expected, abs=1e-12)


def test_adapter_is_trained_alike_when_packed(tiny):
    loaded = LoadedModel(make_model(), tiny().tokenizer)
    model = with_adapter(replace(loaded, lora=tiny(lora_rank=2).lora), 0).model.double()
    with torch.no_grad():  # B starts at 0: move it, so that adapters matter.
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    with in_float64():
        expected = compute_by_rows(model, two_questions())
        assert all("lora_" in name for name in expected[1])
        for way in [*WAYS, (10**6, 1, "none", False)]:
            assert_equal(compute_packed(model, two_questions(), *way), expected)


def show_a_sibling(layout):
    """Widen one rectangle so that a child sees its sibling."""
    start, end, *queries = layout.ancestor_blocks[0]
    blocks = ((start, end + 3, *queries), *layout.ancestor_blocks[1:])
    return replace(layout, ancestor_blocks=blocks)


def repeat_a_position(layout):
    """Put the second position of a block twice."""
    first = layout.blocks[0]
    indices = first.indices_NL.clone()
    indices[0, 2] = indices[0, 1]
    return replace(layout, blocks=(replace(first, indices_NL=indices), *layout.blocks[1:]))


@pytest.mark.parametrize("damage", [show_a_sibling, repeat_a_position])
def test_equality_notices_a_wrong_layout(damage, monkeypatch):
    attend = forward.block_attention

    def attend_wrongly(query, key, value, layout, scale):
        return attend(query, key, value, damage(layout), scale)

    monkeypatch.setattr(forward, "block_attention", attend_wrongly)
    with in_float64(), pytest.raises(AssertionError):
        expected = compute_by_rows(NETWORK, two_questions())
        assert_equal(compute_packed(NETWORK, two_questions()), expected)


def test_copy_adds_nothing_and_a_beginning_comes_first(monkeypatch):
    monkeypatch.setattr(prefix_forest, "MIN_SHARED", 1)
    sequences = [[1, 2, 3], [1, 2], [1, 2, 3], [1, 2]]
    order = lexicographic([np.array(sequence) for sequence in sequences])
    assert order == [1, 3, 0, 2]
    forest, positions = grow_forest([sequences[index] for index in order])
    assert forest.tokens == 3
    assert positions == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]


def test_row_without_an_action_is_left_out(random_batch):
    rows = random_batch(lengths=(8, 9)).rows
    silent = Row.of_tokens(rows[0].tokens, np.zeros(8), agent=0, debate=0)
    (rank_packs,) = pack_rows(make_batch([silent, rows[1]]), 100)
    assert [rows_in(one_pack) for one_pack in rank_packs] == [{1}]


def test_group_computes_its_prompt_once():
    rng = np.random.default_rng(0)
    prompts = [random_tokens(rng, 64) for _ in range(4)] * 8
    rows = [make_row(p + random_tokens(rng, 61), [False] * 64 + [True] * 61) for p in prompts]
    # 4·(64 + 8·60) tokens shared, 32·124 not: the last of a reply predicts nothing.
    assert sizes(pack_rows(make_batch(rows), 10**6)[0]) == [4 * (64 + 8 * 60)]
    assert sizes(pack_rows(make_batch(rows), 10**6, share="rows")[0]) == [32 * 124]
