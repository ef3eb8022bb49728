"""Figures of files: what transcripts allow, what they do not, and rollouts of other programs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.forms import Direct, Simultaneous
from debate_protocol.types import Question, Reply, Transcript, Turn
from debate_report.rollout_files import import_rollouts
from debate_train.evaluation.measuring import figures_of_transcripts
from debate_train.interrupts import UsageError

QUESTION = Question("q", "How many?", "4", {"kind": "number"})


def held(rounds: list[str], question: Question = QUESTION, **settings: Any) -> Transcript:
    """Hold a debate of numbers, each turn of ten tokens of log-probability −1."""
    reply = Reply("", token_ids=(1,) * 10, logps=(-1.0,) * 10)
    turns = tuple(
        Turn(agent, round, f"\\boxed{{{answer}}}", reply=reply)
        for round, answers in enumerate(rounds)
        for agent, answer in enumerate(answers)
    )
    plain = {"contract": "boxed", "personas": "none", **settings}
    form = (
        Simultaneous.model_validate({"num_agents": len(rounds[0]), "max_rounds": 9} | plain)
        if len(rounds[0]) > 1
        else Direct.model_validate(plain)
    )
    return Transcript(f"{question.id}/{rounds}", question, form.protocol(), turns)


def bare(one: Transcript) -> Transcript:
    return replace(one, turns=tuple(replace(turn, reply=None) for turn in one.turns))


def test_debates_and_replies_of_a_file_give_their_figures_apart() -> None:
    other = replace(QUESTION, id="r")
    replies = [held([answer]) for answer in "4455"] + [held(["4"], other), held(["5"], other)]
    found = figures_of_transcripts([held(["455", "445"]), held(["444", "555"]), *replies])
    assert (found.replies, found.debates) == (6, 2)
    means = {name: estimate.value for name, estimate in found.found.items()}
    # Two questions of 1/2 each; K = 2, the fewest of a question. Of pairs of 4 4 5 5 one is right,
    # one wrong and four are ties; of 4 5 the only one is a tie.
    assert means["replies/accuracy"] == means["replies/maj@2"] == 0.5
    assert means["replies/pass@2"] == pytest.approx(((1 - 1 / 6) + 1) / 2)
    assert means["replies/tokens/answer"] == 10
    assert "replies/maj@3" not in means
    assert (means["maj/first"], means["maj/last"], means["maj/delta"]) == (0.5, 0.5, 0)
    assert means["tokens/answer"] == 60
    assert found.values["maj/delta"] == {"q": 0}
    assert set(found.curves) == {
        *(f"replies/{name}@k" for name in ("maj", "pass", "cons")),
        *(f"debate/{name}" for name in ("majority", "agent", "all_rounds")),
    }


def test_debate_that_cannot_be_measured_counts_as_such_and_ends_nothing() -> None:
    broken = held(["45", "44"], replace(QUESTION, id="broken", meta={"kind": "none such"}))
    found = figures_of_transcripts([held(["45", "44"]), broken, held(["4"])])
    assert found.found["unmeasured"].value == 0.5
    assert found.found["maj/last"].value == 1
    assert figures_of_transcripts([]).found == {}


VERIFIERS: list[dict[str, Any]] = [
    {
        "example_id": 3,
        "prompt": [
            {"role": "system", "content": "Think."},
            {"role": "user", "content": "2 + 2 = ?"},
        ],
        "completion": [{"role": "assistant", "content": "So \\boxed{4}"}],
        "answer": "4",
        "reward": 1.0,
        "timing": {"total_ms": 1.5},
        "is_completed": True,
        "is_truncated": False,
        "stop_condition": "max_turns_reached",
        "metrics": {"correct_answer": 1.0},
        "correct_answer": 1.0,
        "error": None,
    },
    {
        "example_id": 3,
        "prompt": [{"role": "user", "content": [{"type": "text", "text": "2 + 2 = ?"}]}],
        "completion": [
            {"role": "assistant", "content": "\\boxed{4}?"},
            {"role": "tool", "content": "no", "tool_call_id": "1"},
            {"role": "assistant", "content": "\\boxed{5}"},
        ],
        "answer": "4",
        "reward": 0.0,
        "metrics": {},
    },
    {"example_id": 4, "prompt": "1 + 1 = ?", "completion": None, "answer": "2", "reward": 0.0},
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_results_of_verifiers_are_replies_with_their_answers(tmp_path: Path) -> None:
    found = import_rollouts(written(tmp_path / "results.jsonl", VERIFIERS), kind="number")
    assert [one.question.id for one in found] == ["3", "3", "4"]
    first, second, failed = found
    assert (first.question.text, first.question.answer) == ("2 + 2 = ?", "4")
    assert first.turns[0].text == "So \\boxed{4}"
    assert first.meta == {"reward": 1.0, "correct_answer": 1.0, "is_completed": True,
                          "is_truncated": False}  # fmt: skip
    assert second.question.text == "2 + 2 = ?"
    assert second.turns[0].text == "\\boxed{5}"
    prompt = second.turns[0].prompt
    assert prompt is not None
    assert [message["role"] for message in prompt] == ["user", "assistant", "user"]
    assert (second.meta["replies"], failed.turns[0].text) == (2, "")
    figures = figures_of_transcripts(found)
    assert figures.found["replies/accuracy"].value == (0.5 + 0) / 2
    assert figures.found["reward"].value == 0.25


TRL: list[dict[str, Any]] = [
    {"step": 5, "prompt": "2 + 2 = ?", "completion": "\\boxed{4}", "accuracy_reward": 1.0,
     "solution": "4", "advantage": 0.7},
    {"step": 5, "prompt": "2 + 2 = ?", "completion": "\\boxed{5}", "accuracy_reward": 0.0,
     "solution": "4", "advantage": -0.7},
    {"step": 5, "prompt": "1 + 1 = ?", "completion": "2", "accuracy_reward": 0.0,
     "solution": "2", "advantage": 0.0},
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_completions_of_trl_are_replies_to_the_same_prompts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"completions_00005{suffix}"
    if suffix == ".parquet":
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("datasets")
        pandas.DataFrame(TRL).to_parquet(path)
    else:
        written(path, TRL)
    found = import_rollouts(path, kind="number")
    assert found[0].question.id == found[1].question.id != found[2].question.id
    assert (found[0].question.text, found[0].question.answer) == ("2 + 2 = ?", "4")
    assert found[0].meta == {"step": 5, "accuracy_reward": 1.0, "advantage": 0.7}
    figures = figures_of_transcripts(found)
    assert figures.found["replies/accuracy"].value == (0.5 + 0) / 2
    assert "replies/tokens/answer" not in figures.found
    unknown = import_rollouts(
        written(tmp_path / "plain.jsonl", [{"prompt": "?", "completion": "\\boxed{4}"}])
    )
    assert unknown[0].question.answer is None
    assert "replies/accuracy" not in figures_of_transcripts(unknown).found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found no rows; expected traces.jsonl or results"),
        ("{]", r":1: (not JSON|the last line)"),
        ("[1]", ":1: expected an object"),
        ('{"text": "a"}', "row 1: found text; expected traces.jsonl or"),
        ('{"prompt": 1, "completion": "a"}', "row 1: prompt: found int; expected a text or"),
    ],
)
def test_files_that_are_no_rollouts_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        import_rollouts(path)


def test_import_names_columns_contracts_and_files_that_are_not_there(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", TRL)
    with pytest.raises(UsageError, match="found no column 'gold'; expected one of accuracy_reward"):
        import_rollouts(path, answer="gold")
    with pytest.raises(UsageError, match="contract: "):
        import_rollouts(path, contract="box")
    with pytest.raises(UsageError, match="rollouts: there is no file"):
        import_rollouts(tmp_path / "none.parquet")
