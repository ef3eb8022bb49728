"""Debates played ahead come back from a checkpoint exactly as they were, tokens included."""

from dataclasses import replace
from pathlib import Path

import pytest

from debate_protocol.types import Branch, Question, Reply, Transcript, Turn
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.errors import UsageError
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import start_debates
from debate_train.playing.lookahead import read_lookahead, write_lookahead
from debate_train.recipe import Recipe

SOURCE = SignsPuzzle(batch_size=3).open()


def played(form: str) -> list[Transcript]:
    debate = {"type": form, "style": "compact", "max_rounds": 2, "personas": "none"}
    beside = {"guided": True, "continuations": 2} if form == "actor_critic" else {"num_agents": 3}
    recipe = Recipe.model_validate(
        {
            "name": "t",
            "steps": 1,
            "model": {"type": "scratch", "context_window": 4096},
            "data": {"type": "signs_puzzle", "batch_size": 3},
            "debate": debate | beside,
            "reward": {"type": "verifiable"},
        }
    )
    engine = ScriptedEngine().open(None, word_tokenizer(), script=SOURCE.demonstrate)
    return play(start_debates(recipe, SOURCE.batch(0), "train/0"), engine, max_tokens=64)


def replies(transcript: Transcript) -> list[Reply | None]:
    """Replies do not count when transcripts are compared, so they are compared apart."""
    waiting, found = list(transcript.turns), []
    while waiting:
        turn = waiting.pop(0)
        found.append(turn.reply)
        waiting += [b.turn for b in turn.branches] + list(turn.continuations)
    return found


@pytest.mark.parametrize("form", ["simultaneous", "actor_critic"])
def test_transcripts_and_tokens_come_back_when_they_were_played_ahead(
    form: str, tmp_path: Path
) -> None:
    before = {7: played(form), 8: played(form)[:1], 9: []}
    write_lookahead(tmp_path, before)
    after = read_lookahead(tmp_path)
    assert after == before
    for step, transcripts in before.items():
        for was, now in zip(transcripts, after[step], strict=True):
            assert replies(now) == replies(was)
    assert any(reply and reply.token_ids for reply in replies(before[7][0]))
    is_branched = any(turn.branches for turn in before[7][0].turns)
    assert is_branched == (form == "actor_critic")


def test_numbers_of_a_reply_come_back_exactly(tmp_path: Path) -> None:
    reply = Reply(
        "é\ud800",
        "length",
        prompt_ids=(1, 2**31 - 1),
        token_ids=(5, 6, 7),
        logps=(-0.1, -1e-300, -1 / 3),
        temperature=0.7,
        weight_version=4,
        version_spans=((3, 0, 1), (4, 1, 3)),
        counted=(9, 2),
    )
    leaf = Turn(1, 1, "leaf", reply=replace(reply, token_ids=(8,), version_spans=()))
    beside = Branch("4", Turn(0, 0, "no reply", continuations=(leaf,)))
    turn = Turn(0, 0, "cut", reply=reply, branches=(beside,), continuations=(leaf, leaf))
    debate = replace(played("simultaneous")[0], question=Question("q", "?"), turns=(turn,))
    write_lookahead(tmp_path, {0: [debate]})
    (found,) = read_lookahead(tmp_path)[0]
    assert replies(found) == [reply, None, leaf.reply, leaf.reply, leaf.reply]
    assert found.turns[0].token_counts == (9, 2)  # Which replies are not compared by.
    assert found.turns == (turn,)


@pytest.mark.parametrize("harm", ["torn", "another file"])
def test_spoilt_file_ends_in_one_message(harm: str, tmp_path: Path) -> None:
    write_lookahead(tmp_path, {7: played("simultaneous")})
    lines = tmp_path / "lookahead.jsonl"
    text = lines.read_text()
    if harm == "torn":
        lines.write_text(text[: len(text) // 2])
    elif harm == "short":
        lines.write_text("".join(text.splitlines(keepends=True)[:-1]))
    else:
        lines.write_text('{"loss": 1}\n[]\n')
    with pytest.raises(UsageError, match=r"lookahead\.jsonl cannot be read"):
        read_lookahead(tmp_path)
