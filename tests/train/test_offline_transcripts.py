"""Sets of examples that read debates which were held before."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.transcripts.files import read_transcripts, write_transcripts
from debate_protocol.types import Transcript
from debate_train.commands.cli import main
from debate_train.data import SignsPuzzle
from debate_train.offline import ChosenReplies
from train.test_offline_sets import debate, who

RECIPE: dict[str, Any] = {
    "name": "small",
    "steps": 1,
    "model": {
        "type": "scratch",
        "hidden_size": 8,
        "layers": 1,
        "heads": 1,
        "kv_heads": 1,
        "head_dim": 8,
        "ffn_size": 8,
    },
    "data": {"type": "signs_puzzle", "batch_size": 4, "num_digits": 3, "largest_digit": 4},
    "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
    "rollout": {"max_tokens": 48},
    "reward": {"type": "v2"},
    "loss": {"type": "sft"},
    "evaluation": {"questions": 0},
    "recording": {"debates": 99},
    "tracking": {"wandb": False},
}


def run(folder: Path, offline: dict[str, Any], *arguments: str) -> int:
    file = folder.with_suffix(".yaml")
    file.write_text(json.dumps(RECIPE | {"offline": offline}))
    return main([str(file), *arguments, "--output", str(folder)])


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "offline/train-000000.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "made_from"} for row in found]


def counts(folder: Path) -> dict[str, float]:
    said: dict[str, dict[str, float]] = json.loads(
        (folder / "offline/train-000000.json").read_text()
    )
    return {k.removeprefix("offline/"): v for k, v in said["metrics"].items()}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that imitates every reply of debates it plays, and keeps them all."""
    folder = tmp_path_factory.mktemp("played") / "run"
    written = "phases={train: {rollout: {engine: {type: demonstrations}}}}"
    assert run(folder, {"type": "every_reply", "questions": 4, "batch_size": 4}, written) == 0
    return folder


@pytest.fixture(scope="module")
def debates(played: Path) -> list[Transcript]:
    return list(read_transcripts(played / "offline/train-000000.debates.jsonl"))


def test_examples_of_a_file_are_those_of_the_debates_that_were_played(
    played: Path, debates: list[Transcript], tmp_path: Path
) -> None:
    # The same prompts and replies as ids, made again from text; a folder as debate-rollout leaves.
    write_transcripts(tmp_path / "transcripts.jsonl", debates)
    folder = tmp_path / "run"
    assert run(folder, {"type": "every_reply", "path": str(tmp_path), "batch_size": 4}) == 0
    assert rows(folder) == rows(played)
    # The samples of a run are transcripts of any folder, too; `questions` takes the first ones.
    (played / "transcripts").mkdir(exist_ok=True)
    write_transcripts(played / "transcripts/train-000001.jsonl", debates)
    other = tmp_path / "other"
    few = {"type": "every_reply", "path": str(played), "batch_size": 4, "questions": 3}
    assert run(other, few) == 0
    assert rows(other) == rows(played)[: 3 * 6]


def test_what_cannot_be_learned_from_is_left_out_and_counted(
    debates: list[Transcript], tmp_path: Path
) -> None:
    settings = SignsPuzzle.model_validate(RECIPE["data"])
    (held,) = settings.open().split("test", 1)
    first, second, third, *_ = debates
    bare = replace(second, turns=tuple(replace(turn, prompt=None) for turn in second.turns))
    long = {"role": "user", "content": "Agent " * 600}  # The window is 512 tokens.
    last = replace(first.turns[-1], prompt=(long,))
    twice = replace(third, id="twice", turns=(*third.turns, third.turns[0]))
    path = tmp_path / "debates.jsonl"
    write_transcripts(
        path,
        [
            replace(first, turns=(*first.turns[:-1], last)),
            bare,
            replace(third, id="held", question=replace(held, text=held.text.upper())),
            twice,
        ],
    )
    folder = tmp_path / "run"
    assert run(folder, {"type": "every_reply", "path": str(path), "batch_size": 4}) == 0
    assert counts(folder) == {
        "debates": 2,
        "held_out": 0,
        "kept/natural": 5,
        "left_out/dev_or_test": 1,
        "left_out/no_tokens": 7,
        "left_out/unreadable": 1,
        "sampled_tokens": counts(folder)["sampled_tokens"],
    }


def test_rollouts_of_others_are_learned_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [{"role": "user", "content": "make 6 Q 2 4"}]
    said = [("+", "+"), ("-", "+"), ("+", "+"), ("+", "+")]
    path = tmp_path / "results.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {
                    "example_id": number // 2,
                    "prompt": asked,
                    "completion": [{"role": "assistant", "content": f"\\boxed{{{text}}}"}],
                    "answer": right,
                }
            )
            + "\n"
            for number, (text, right) in enumerate(said)
        )
    )
    offline = {
        "type": "chosen_replies",
        "path": str(path),
        "imported": {"kind": "text"},
        "replies_per_question": 1,
        "batch_size": 2,
    }
    folder = tmp_path / "run"
    assert run(folder, offline, "--check") == 0
    said_by_check = capsys.readouterr().out
    assert "4 debates of 1 question in" in said_by_check
    assert "4 turns, 0 of them without the prompt" in said_by_check
    assert run(folder, offline) == 0
    found = rows(folder)
    assert [row["prompt"] for row in found] == [asked, asked]
    questions = [row["meta"]["question"].partition("-")[0] for row in found]
    assert questions == ["0", "1"]
    assert counts(folder)["left_out/other_answer"] == 1
    assert counts(folder)["left_out/more_than_wanted"] == 1


def test_files_that_are_not_there_or_hold_no_debates_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, problem in ((tmp_path / "none", "found nothing at"), (empty, "found neither")):
        for arguments in (("--check",), ()):
            assert (
                run(tmp_path / "run", {"type": "every_reply", "path": str(path)}, *arguments) == 2
            )
            assert f"offline.path: {problem}" in "".join(capsys.readouterr())


def votes(*lines: str) -> Transcript:
    """Three agents answer 4, 5 and 5, and then compare each other in these lines."""
    one = debate(["4", "5", "5"], ["4", "4", "5"], answer=None)
    later = [
        replace(turn, text=turn.text.replace("N/A", line), shown=tuple(others))
        for turn, line, others in zip(one.turns[3:], lines, SHOWN, strict=True)
    ]
    return replace(one, turns=(*one.turns[:3], *later))


SHOWN = [[t.key for n, t in enumerate(debate(["4", "5", "5"]).turns) if n != i] for i in range(3)]


def test_replies_are_chosen_by_what_agents_voted_for() -> None:
    # Agent 0 wins 2 votes, agents 1 and 2 lose one each, and half of a tie.
    for_four = votes("Agent 1 = Agent 2", "Agent 0 > Agent 2", "Agent 0 > Agent 1")
    taken = ChosenReplies(by="votes", round="first").take([for_four])
    assert [who(e.chosen) for e in taken.examples] == ["a00"]
    taken = ChosenReplies(by="votes", round="last").take([for_four])
    assert [who(e.chosen) for e in taken.examples] == ["a10", "a11"]
    # Two answers at the same standing, and no votes at all, are no decision.
    tied = votes("Agent 1 = Agent 2", "Agent 0 = Agent 2", "Agent 0 = Agent 1")
    taken = ChosenReplies(by="votes").take([tied, debate(["4", "5"], answer=None)])
    assert taken.counts == {"left_out/no_decision": 2}
    # Two agents first with one answer are a decision.
    for_five = votes("Agent 1 = Agent 2", "Agent 2 > Agent 0", "Agent 1 > Agent 0")
    taken = ChosenReplies(by="votes", round="first").take([for_five])
    assert [who(e.chosen) for e in taken.examples] == ["a01", "a02"]


def test_replies_weigh_as_much_as_the_votes_that_they_won() -> None:
    one = votes("Agent 1 > Agent 2", "Agent 0 > Agent 2", "Agent 0 = Agent 1")
    taken = ChosenReplies(by="any", round="every", weight="votes").take([one])
    # Of two votes each: agent 0 won 1 + 1/2, agent 1 1 + 1/2, agent 2 none.
    assert [(who(e.chosen), e.weight) for e in taken.examples] == [("a00", 0.75), ("a01", 0.75)]
    assert +taken.counts == {"kept/any": 2, "left_out/no_vote_won": 1, "left_out/no_votes": 3}
