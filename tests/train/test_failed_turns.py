"""The value of a failed turn holds for all its tokens, whatever the contract and its streams."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pydantic import TypeAdapter

from debate_protocol.parsing import CONTRACTS, Contract
from debate_protocol.types import Protocol, Question, Reply, Transcript, Turn
from debate_rewards.rewards import RewardChoice
from debate_train.advantages import Grouped, Stream
from debate_train.batches.rows import build_batch
from debate_train.models.scratch import word_tokenizer

TOKENIZER = word_tokenizer()
FAILED = "no Agent 1 > Agent 2 <comparison> Agent 0 = Agent 2 </comparison> ok"
WORDS = 14
CONTRACTS_TRIED = (
    CONTRACTS["three_section"],
    CONTRACTS["five_section"],
    CONTRACTS["boxed"],
    CONTRACTS["answer_line"],
    Contract("poem", ("poem", "comparison"), None),
    Contract("verdict", ("answer", "critique", "verdict"), None),
    Contract("reasons", ("evaluation", "solution"), None),
    Contract("own_box", (), None, "boxed"),
)
REWARDS: Sequence[Mapping[str, Any]] = (
    {"type": "v2"},
    {"type": "v2", "consensus": "peer_prediction", "judge_credit": "segment"},
    {"type": "win_rate"},
    {"type": "win_minus_loss"},
    {"type": "bradley_terry"},
    {"type": "verifiable"},
    {"type": "partial_trajectory"},
    {
        "type": "mixed",
        "components": {
            "a": {"reward": {"type": "v2", "consensus": "none"}, "weight": 0.75},
            "b": {"reward": {"type": "verifiable"}, "weight": 0.25},
        },
    },
)
STREAMS: Sequence[Mapping[str, Stream]] = (
    {name: Stream() for name in ("generator", "judge", "return")},
    {name: Stream(sections=("solution",)) for name in ("generator", "return")},
    {name: Stream(sections=("poem", "answer")) for name in ("generator", "return")},
    {
        name: Stream(sections={"comparison": 0.5, "solution": 3.0})
        for name in ("generator", "return")
    },
)


def debate(contract: Contract) -> Transcript:
    ids = tuple(TOKENIZER.encode(FAILED, add_special_tokens=False))
    reply = Reply(TOKENIZER.decode(ids), "stop", (1, 2, 3), ids, (0.0,) * len(ids))
    turn = Turn(1, 0, reply.text, failure="no_solution", reply=reply)
    rules = Protocol(num_agents=3, contract=contract)
    return Transcript("d", Question("q", "?", "7", {"kind": "number"}), rules, (turn,))


@pytest.mark.parametrize("reward", REWARDS, ids=lambda one: "-".join(map(str, one.values()))[:40])
@pytest.mark.parametrize("contract", CONTRACTS_TRIED, ids=str)
def test_value_of_a_failed_turn_holds_for_all_its_tokens(
    contract: Contract, reward: Mapping[str, Any]
) -> None:
    failed = debate(contract)
    scores = TypeAdapter(RewardChoice).validate_python(reward)([failed])
    for streams in STREAMS:
        advantages = Grouped(baseline="none", streams=dict(streams))
        batch = build_batch([failed], advantages([failed], scores), streams, TOKENIZER)
        (row,) = batch.rows
        assert row.over_tokens("advantages").tolist() == [0.0] * 3 + [-1.0] * WORDS
        # The denominators of the stream that has the value count all of them.
        given = batch.streams.index("return" if "win_" in reward["type"] else "generator")
        assert (row.over_tokens("streams")[3:] >> given & 1).tolist() == [1] * WORDS


def test_length_of_a_failed_turn_counts_on_all_its_tokens() -> None:
    failed = debate(CONTRACTS_TRIED[5])
    reward = {"type": "overlong", "max_tokens": 8, "buffer": 4}
    scores = TypeAdapter(RewardChoice).validate_python(reward)([failed])
    streams = {"generator": Stream(sections=("critique",))}
    (found,) = Grouped(baseline="none", streams=streams)([failed], scores)
    (row,) = build_batch([failed], [found], streams, TOKENIZER).rows
    assert row.over_tokens("advantages").tolist() == [0.0] * 3 + [-1.0] * WORDS
