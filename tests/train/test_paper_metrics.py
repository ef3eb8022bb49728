"""Metrics under the names of the papers, worked by hand."""

from typing import Any

import numpy as np
import pytest

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript
from debate_rewards.metrics import debate_metrics
from debate_train.batches.row_types import Row
from debate_train.data import Questions, SignsPuzzle
from debate_train.running.step_metrics import paper_metrics


def transcript(said: dict[tuple[int, int], str], n: int, **protocol: Any) -> Transcript:
    question = {"text": "?", "answer": "7", "meta": {"kind": "number"}}
    turns: list[dict[str, Any]] = [
        {"agent": a, "round": r, "text": text} for (a, r), text in said.items()
    ]
    if protocol.get("topology") == "pair":
        for turn in turns:
            turn["shown"] = [[0, 0], [1, 0]] if turn["round"] else []
    rules = {"num_agents": n} | protocol
    return from_json({"id": "d", "question": question, "protocol": rules, "turns": turns})


def solved(answer: str, consensus: str = "NO") -> str:
    return f"<solution>{answer}</solution><consensus>{consensus}</consensus>"


def measured(
    *transcripts: Transcript, rows: tuple[Row, ...] = (), agents: int = 3
) -> dict[str, float]:
    whole = [t for t in transcripts if t.protocol.num_agents == agents]
    return paper_metrics(transcripts, rows, debate_metrics(whole), "gsm8k", agents)


def test_format_is_a_filled_box_in_the_last_round() -> None:
    said = {
        (0, 0): solved("no box"),
        (1, 0): "unreadable",
        (2, 0): solved("\\boxed{7}"),
        (0, 1): solved("so \\boxed{7}"),
        (1, 1): solved("\\boxed{}"),
        (2, 1): solved("7"),
    }
    found = measured(transcript(said, 3, contract="three_section"))
    # One of three replies of the last round holds a box with something in it.
    assert found["train_gsm8k/format"] == pytest.approx(1 / 3, abs=1e-12)
    # 7 and 7 are right, an empty box is not: 2 of 3.
    assert found["train_gsm8k/correct"] == pytest.approx(2 / 3, abs=1e-12)
    assert found["train_gsm8k/avg@k"] == pytest.approx(2 / 3, abs=1e-12)
    assert (found["train_gsm8k/pass@k"], found["train_gsm8k/cons@k"]) == (1.0, 1.0)
    # One turn of six cannot be read; rounds 0, 0, 0, 1, 1, 1.
    assert found["parse_error"] == pytest.approx(1 / 6, abs=1e-12)
    assert found["round"] == 0.5
    assert "consensus_reached" not in found


def test_format_under_other_contracts_and_where_none_is_asked() -> None:
    lines = {(0, 0): "Work.\nAnswer: 7", (1, 0): "\\boxed{7}", (2, 0): "Answer: 8"}
    found = measured(transcript(lines, 3, contract="answer_line"))
    assert found["train_gsm8k/format"] == pytest.approx(2 / 3, abs=1e-12)
    boxes = {(0, 0): "Work.\nAnswer: 7", (1, 0): "\\boxed{7}", (2, 0): "\\boxed{8}"}
    found = measured(transcript(boxes, 3, contract="boxed"))
    assert found["train_gsm8k/format"] == pytest.approx(2 / 3, abs=1e-12)
    compact = transcript(boxes, 3, contract="three_section", style="compact")
    assert "train_gsm8k/format" not in measured(compact)


@pytest.mark.parametrize(("schedule", "reached"), [("parallel", 3), ("sequential", 1)])
def test_consensus_is_reached_after_the_last_yes_of_a_round(schedule: str, reached: int) -> None:
    votes = {0: ("YES", "NO", "YES"), 1: ("YES", "YES", "YES")}
    said = {(a, r): solved("7", votes[r][a]) for r in votes for a in range(3)}
    debate = transcript(said, 3, contract="five_section", schedule=schedule)
    # In parallel all three turns of round 1 end together; in sequence only the last one.
    assert measured(debate)["consensus_reached"] == pytest.approx(reached / 6, abs=1e-12)


def row(debate: int, agent: int, advantage: float) -> Row:
    floats, ints = np.zeros(2, np.float32), np.zeros(2, np.int64)
    given = np.array([0, advantage], np.float32)
    return Row.of_tokens(
        ints,
        [0, 1],
        advantages=given,
        sampler_logps=floats,
        temperatures=floats,
        streams=ints,
        versions=ints,
        segments=ints,
        agent=agent,
        debate=debate,
    )


def self_debate(first: list[str], second: list[str]) -> Transcript:
    said = {(a, 0): f"\\boxed{{{x}}}" for a, x in enumerate(first)}
    said |= {(len(first) + a, 1): f"\\boxed{{{x}}}" for a, x in enumerate(second)}
    rules = {"topology": "pair", "first_turns": len(first), "max_rounds": 2, "contract": "boxed"}
    return transcript(said, len(first) + max(2, len(second)), **rules)


def test_self_debates_are_counted_before_and_after_the_filter() -> None:
    taught = self_debate(["7", "8"], ["7", "9"])
    filtered = self_debate(["7", "8"], ["7", "7"])
    undebated = self_debate(["7", "7"], [])
    single = transcript({(0, 0): "\\boxed{7}"}, 1, contract="boxed")
    rows = (
        row(1, 0, 1.0),  # first answers are no debate samples
        row(1, 2, 1.0),
        row(1, 3, -1.0),
        row(2, 2, 0.0),
        row(2, 3, 0.0),
    )
    found = measured(single, taught, filtered, undebated, rows=rows, agents=4)
    assert {k.removeprefix("sdrl/"): v for k, v in found.items() if k.startswith("sdrl/")} == {
        "debate_prompts": 1.0,
        "debate_samples": 2.0,
        "debate_prompts_built": 2.0,
        "debate_samples_drawn": 4.0,
        # 3 of 4 second answers are right; 2 of 4 first ones to the questions that were debated.
        "debate_accuracy": 0.75,
        "debate_accuracy_improvement": 0.25,
    }


def test_votes_of_a_few_first_turns_and_of_many_second_ones_have_no_difference() -> None:
    found = debate_metrics([self_debate(["7", "8"], ["7", "7", "9", "7"])])
    assert (found["maj/first"], found["maj/last"]) == (0.5, 1.0)
    assert "maj/delta" not in found and found["improvement"] == pytest.approx(0.5)
    assert "decision/peer_vote" not in found  # Nobody votes in these debates.


def test_other_debates_have_no_counters_of_self_debates() -> None:
    debate = transcript({(0, 0): solved("7"), (1, 0): solved("7")}, 2)
    assert not any(name.startswith("sdrl/") for name in measured(debate, agents=2))
    assert measured(agents=2) == {}


def test_data_has_a_name() -> None:
    assert Questions(path="a b/gsm8k train.jsonl").dataset == "gsm8k_train"
    assert Questions(path="openai/gsm8k").dataset == "gsm8k"
    assert SignsPuzzle().dataset == "signs_puzzle"
