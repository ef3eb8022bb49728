"""What debate-protocol writes for verifiers and TRL is read back, as are their own files."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_protocol import read_transcripts
from debate_protocol.cli import main
from debate_protocol.transcripts.files import transcript_problems
from debate_report import report_main
from debate_report.rollout_files import debates_in, import_rollouts
from debate_train.commands.cli import main as train
from debate_train.errors import UsageError

DEBATES = Path(__file__).resolve().parents[2] / "examples/data/debates.jsonl"


def node(parent: int | None, role: str, content: Any, *, sampled: bool = False) -> dict[str, Any]:
    return {"parent": parent, "message": {"role": role, "content": content}, "sampled": sampled}


def trace(start: float, said: str, reward: float) -> dict[str, Any]:
    """A trace of verifiers: two replies, the second to what came after the first."""
    return {
        "nodes": [
            node(None, "system", "be brief"),
            node(0, "user", [{"type": "text", "text": "2 + 2 = ?"}]),
            node(1, "assistant", said, sampled=True),
            node(2, "tool", "checked"),
            node(3, "assistant", f"\\boxed{{{said}}}", sampled=True),
        ],
        "rewards": {"right": {"score": reward, "weight": 2.0}, "unscored": None},
        "metrics": {"turns": 2.0, "missing": None},
        "timing": {"start": start},
    }


def episode(*traces: dict[str, Any], **data: Any) -> dict[str, Any]:
    task = {"type": "Any", "key": "k", "data": {"idx": 3, "prompt": "2 + 2 = ?", **data}}
    return {"id": "e", "task": task, "ok": True, "traces": list(traces)}


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_exported_rows_of_trl_are_read_as_replies(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    main(["export", str(DEBATES), "--to", "trl"])
    path = tmp_path / "completions.jsonl"
    path.write_bytes(capsysbinary.readouterr().out)
    replies = import_rollouts(path)
    assert len(replies) == 24
    assert len({reply.question.id for reply in replies}) == 4
    assert replies[0].question.answer == "5"
    assert "15 divided by 3" in replies[0].turns[0].text


def test_rollouts_of_verl_are_read_as_replies(tmp_path: Path) -> None:
    row = {"input": "user\nWhat is 6 * 7?", "output": "So \\boxed{42}.", "gts": "42", "score": 1.0}
    file = tmp_path / "12.jsonl"
    file.write_text("".join(json.dumps(row | {"step": 12, "acc": acc}) + "\n" for acc in (1, 0)))
    first, second = import_rollouts(file)
    assert first.question == second.question
    assert (first.question.answer, first.turns[0].text) == ("42", "So \\boxed{42}.")
    assert first.meta == {
        "reward": 1.0, "score": 1.0, "step": 12, "acc": 1, "verdict": "right", "verdict_by": "acc"
    }  # fmt: skip
    assert (second.meta["verdict"], first.question.text) == ("wrong", "What is 6 * 7?")
    assert report_main([str(file)]) == 0
    assert "42" in (tmp_path / "12.jsonl.html").read_text()


def test_exported_traces_of_verifiers_are_imported_as_the_debates_they_were(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    main(["export", str(DEBATES), "--to", "verifiers"])
    path = tmp_path / "traces.jsonl"
    path.write_bytes(capsysbinary.readouterr().out)
    assert debates_in(path, "debates", answer=None) == read_transcripts(DEBATES)
    assert train(["import", str(path)]) == 0
    (tmp_path / "debates.jsonl").write_bytes(capsysbinary.readouterr().out)
    assert read_transcripts(tmp_path / "debates.jsonl") == read_transcripts(DEBATES)


def test_episode_is_a_debate_whose_agents_are_its_traces(tmp_path: Path) -> None:
    path = written(tmp_path / "traces.jsonl", episode(trace(9, "5", 0), trace(1, "4", 1), answer=4))
    (debate,) = import_rollouts(path, kind="number")
    assert (debate.id, debate.question.answer) == ("e", "4")
    assert debate.question.id.startswith("3-")
    assert debate.question.text == "2 + 2 = ?"
    assert [(turn.agent, turn.round, turn.text) for turn in debate.turns] == [
        (0, 0, "4"),  # It began first, though its trace was complete last.
        (1, 0, "5"),
        (0, 1, "\\boxed{4}"),
        (1, 1, "\\boxed{5}"),
    ]
    last = debate.turns[-1].prompt
    assert [one["content"] for one in last] == ["be brief", "2 + 2 = ?", "5", "checked"]
    assert [one["role"] for one in last] == ["system", "user", "assistant", "user"]
    # Agent 0 earned 2 * 1, agent 1 2 * 0.
    assert debate.meta == {"right": 0.5, "turns": 2.0, "reward": 1.0, "group": "k"}
    assert transcript_problems(debate) == []


def test_episode_without_traces_or_prompt_keeps_its_question(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", episode(), episode(trace(0, "4", 1), prompt=None))
    nothing, shown = import_rollouts(path)
    assert (nothing.turns, nothing.question.text) == ((), "2 + 2 = ?")
    assert nothing.meta == {"group": "k"}
    assert shown.question.text == "2 + 2 = ?"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"traces": [1]}, "row 1: traces: found int; expected an object"),
        ({"traces": []}, "row 1: task: found NoneType; expected an object"),
        (episode({"nodes": 1}), "row 1: trace 0: nodes: found int; expected a list"),
        (episode({"nodes": [node(7, "user", "a", sampled=True)]}), "node 0: found parent 7"),
        (episode({"nodes": [], "info": {"debate": {}}}), "row 1: info.debate: "),
    ],
)
def test_file_that_holds_no_episodes_is_refused(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        import_rollouts(written(tmp_path / "traces.jsonl", row))
    with pytest.raises(UsageError, match="found no field 'gold'; expected one of idx, prompt"):
        import_rollouts(written(tmp_path / "gold.jsonl", episode()), answer="gold")
