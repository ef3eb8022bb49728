"""Scripts as engines, with and without tokens."""

from dataclasses import replace
from typing import Any

import pytest

from debate_protocol.types import DebateRun, Message, Protocol, Reply, Transcript, Turn, TurnRequest
from debate_rollout.drivers import play
from debate_rollout.engine import Request, Sampling, Weights
from debate_rollout.engines import ScriptedEngine
from debate_rollout.testing import request, turn_request

SAMPLING = Sampling(max_tokens=50)


def test_generate_draws_from_the_list_by_the_seed_and_not_by_the_order_of_calls() -> None:
    config = ScriptedEngine(replies=("a", "b", "c"))
    sent = [Request(replace(turn_request(), seed=seed), SAMPLING) for seed in (0, 5, 1, 3)]
    engine = config.open()
    assert [reply.text for reply in engine.generate(sent)] == ["a", "c", "b", "a"]
    assert [reply.text for reply in engine.generate(sent[::-1])] == ["a", "b", "c", "a"]
    (resumed,) = config.open().generate(sent[1:2])
    assert resumed.text == "c"


@pytest.mark.parametrize(
    ("agent", "round_", "text"), [(0, 0, "exact"), (0, 1, "agent"), (1, 1, "round"), (1, 2, "any")]
)
def test_generate_reads_the_closest_key_when_replies_are_a_mapping(
    agent: int, round_: int, text: str
) -> None:
    replies = {"0/0": "exact", "0/*": "agent", "*/1": "round", "*": "any"}
    engine = ScriptedEngine(replies=replies).open()
    asked_turn = replace(turn_request(agent=agent), round=round_)
    assert engine.generate([Request(asked_turn, SAMPLING)])[0].text == text


def test_generate_makes_trainable_tokens_when_it_has_a_tokenizer(byte_bpe: Any) -> None:
    def script(_: TurnRequest) -> str:
        return "<solution>漢字 🙂</solution> and on"

    engine = ScriptedEngine().open(None, byte_bpe, script=script)
    engine.load(Weights(4, {}))
    stopped, complete, short = (
        engine.generate([request(engine, turn_request(), sampling)])[0]
        for sampling in (
            replace(SAMPLING, stop=("</solution>",)),
            replace(SAMPLING, max_tokens=200),
            replace(SAMPLING, max_tokens=4),
        )
    )
    assert stopped.text == "<solution>漢字 🙂</solution>"
    assert stopped.finish == "stop"
    assert list(stopped.token_ids) == byte_bpe.encode(stopped.text, add_special_tokens=False)
    assert complete.finish == "end"
    assert complete.token_ids[-1] == byte_bpe.eos_token_id
    assert short.finish == "length"
    assert short.token_ids == complete.token_ids[:4]
    for reply in (stopped, complete, short):
        assert reply.logps == (0.0,) * len(reply.token_ids)
        assert reply.weight_version == 4
        assert reply.prompt_ids == engine.renderer.render(turn_request()).prompt_ids


def test_play_extends_a_dialogue_at_token_level(byte_bpe: Any) -> None:
    engine = ScriptedEngine(replies={"*/0": "one 🙂", "*/1": "two"}).open(None, byte_bpe)

    def dialogue() -> DebateRun:
        first = turn_request()
        (reply,) = yield [first]
        assert isinstance(reply, Reply)
        news: tuple[Message, ...] = (
            {"role": "assistant", "content": reply.text},
            {"role": "user", "content": "news"},
        )
        (second,) = yield [replace(first, round=1, messages=first.messages + news, previous=reply)]
        assert isinstance(second, Reply)
        turns = (Turn(0, 0, reply.text, reply=reply), Turn(0, 1, second.text, reply=second))
        return Transcript("t", first.question, Protocol(1, 2), turns)

    (transcript,) = play([dialogue()], engine, max_tokens=50)
    first, second = (turn.reply for turn in transcript.turns)
    assert first is not None
    assert second is not None
    earlier_ids = (*first.prompt_ids, *first.token_ids)
    assert second.prompt_ids[: len(earlier_ids)] == earlier_ids
