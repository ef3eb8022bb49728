"""Replies of an evaluation that is stopped: kept as they come, and never sampled twice."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from debate_protocol.types import Reply
from debate_train.commands.evaluate import main
from debate_train.commands.evaluation_files import ReplyJournal
from debate_train.errors import UsageError

RECIPE = """\
name: t
steps: 1
model: {type: scratch}
data: {type: signs_puzzle, batch_size: 2}
debate: {num_agents: 3, max_rounds: 2, style: compact, personas: none}
rollout:
  max_tokens: 16
  engine: {type: scripted, replies: {"*": "<solution> + - </solution>"}}
reward: {type: win_rate}
loss: {type: sft}
trainer: {type: torch}
evaluation: {questions: 3, direct_samples: 2}
"""
STREAMS = "rollout.engine.delay={median_s: 0.001, slots: 4}"


@pytest.mark.parametrize(("change", "calls"), [("seed=0", 3), (STREAMS, 3 * (2 + 6))])
def test_stopped_evaluation_asks_only_for_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, calls: int
) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    kept: list[int] = []
    append = ReplyJournal.append

    def counted(self: ReplyJournal, replies: Iterable[tuple[str, Reply]]) -> None:
        found = list(replies)
        kept.append(len(found))
        append(self, found)

    monkeypatch.setattr(ReplyJournal, "append", counted)
    arguments = [str(tmp_path / "r.yaml"), change, "--output"]
    assert main([*arguments, str(tmp_path / "whole")]) == 0
    # 3 questions, each with 2 direct replies and 3 agents in 2 rounds; a batch engine is called for
    # the replies and for each round, one that streams ends replies one by one or some together.
    assert sum(kept) == 3 * (2 + 6)
    assert len(kept) == calls if calls == 3 else 3 < len(kept) <= calls
    whole = list(kept)

    def stopped(self: ReplyJournal, replies: Iterable[tuple[str, Reply]]) -> None:
        counted(self, replies)
        if sum(kept) > 3 * 2:  # How many come together is a matter of time.
            raise KeyboardInterrupt

    kept.clear()
    monkeypatch.setattr(ReplyJournal, "append", stopped)
    assert main([*arguments, str(tmp_path / "stopped")]) == 130
    before = sum(kept)
    assert 0 < before < sum(whole)
    journal = tmp_path / "stopped" / "replies" / "recipe.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert sum(len(line["replies"]) for line in lines) == before
    monkeypatch.setattr(ReplyJournal, "append", counted)
    kept.clear()
    assert main([*arguments, str(tmp_path / "stopped"), "--resume"]) == 0
    assert before + sum(kept) == sum(whole)
    for name in ("results.json", "policies/recipe.json", "transcripts/recipe/debate.jsonl"):
        expected = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "stopped" / name).read_bytes() == expected


def test_reply_comes_back_as_it_was(tmp_path: Path) -> None:
    reply = Reply(
        "a\ud800 \u2028b",
        "length",
        (1, 2),
        (3, 4, 5),
        (-0.1, -1e-17, float("-inf")),
        0.7,
        9,
        ((8, 0, 1), (9, 1, 3)),
        (0, 1, 2),
    )
    journal = ReplyJournal(tmp_path / "r.jsonl")
    journal.append([("key", reply), ("key", Reply("another of the same call")), ("other", reply)])
    journal.close()
    again = ReplyJournal(tmp_path / "r.jsonl")
    again.close()
    assert again.known == {"key": reply, "other": reply}
    assert again.known["key"].starts == (0, 1, 2)


def test_line_that_is_torn_is_cut_and_one_that_is_damaged_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    journal = ReplyJournal(path)
    journal.append([("a", Reply("a"))])
    journal.append([("b", Reply("b"))])
    journal.close()
    text = path.read_bytes()
    path.write_bytes(text[:-5])
    torn = ReplyJournal(path)
    torn.close()
    assert set(torn.known) == {"a"}
    for damaged in (text.replace(b'"text":"a"', b'"text":"c"'), b"[]\n", b"1e\n", b"{}\n"):
        path.write_bytes(damaged)
        with pytest.raises(UsageError, match=r"r\.jsonl:1: found other replies than an evaluation"):
            ReplyJournal(path)
