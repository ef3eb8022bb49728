"""The debate-rollout command: every debate once, whatever stopped it before."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.transcripts.files import read_transcripts, to_json
from debate_train.commands.rollout import main

RECIPE = """\
name: t
steps: 3
model: {type: scratch}
data: {type: signs_puzzle, batch_size: 4}
debate: {num_agents: 3, max_rounds: 2, style: compact, personas: none}
rollout:
  max_tokens: 16
  debates_per_question: 2
  engine: {type: scripted, replies: {"*": "<solution> + - </solution>"}}
reward: {type: win_rate}
loss: {type: sft}
"""
SLOW = "rollout.engine.delay={median_s: 0.05, spread: 1.0, slots: 4}"


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE)
    return str(path)


def found(folder: Path) -> dict[str, Any]:
    """The debates of a folder by id; fails when one stands there twice."""
    debates = read_transcripts(folder / "transcripts.jsonl")
    by_id = {debate.id: to_json(debate) for debate in debates}
    assert len(by_id) == len(debates)
    return by_id


def test_main_collects_every_debate_when_the_engine_waits_or_streams(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([recipe, "--output", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr()
    # 3 steps x 4 questions x 2 debates = 24 debates; x 3 agents x 2 rounds = 144 turns.
    assert "3 steps x 4 questions = 12 questions; 24 debates; 144 turns" in printed.out
    assert f"transcripts: {tmp_path / 'a' / 'transcripts.jsonl'} (24 debates)" in printed.out
    expected = {f"rollout/{s}/{q}/{c}" for s in range(3) for q in range(4) for c in range(2)}
    assert set(found(tmp_path / "a")) == expected
    quick = "rollout.engine.delay={median_s: 0.001}"
    assert main([recipe, quick, "--output", str(tmp_path / "b")]) == 0
    assert found(tmp_path / "a") == found(tmp_path / "b")


@pytest.mark.slow
def test_main_goes_on_and_repeats_nothing_when_it_was_killed(recipe: str, tmp_path: Path) -> None:
    folder, file = tmp_path / "out", tmp_path / "out" / "transcripts.jsonl"
    command = [str(Path(sys.executable).with_name("debate-rollout")), recipe, SLOW]
    process = subprocess.Popen([*command, "--output", str(folder)], stderr=subprocess.DEVNULL)
    while not file.exists() or file.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = file.read_bytes()
    assert 3 <= kept.count(b"\n") < 24
    with file.open("ab") as half:  # As a stop in the middle of a line leaves it.
        half.write(kept.splitlines()[0][:50])
    assert main([recipe, "--output", str(folder)]) == 0
    assert file.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    assert main([recipe, "--output", str(tmp_path / "whole")]) == 0
    assert found(folder) == found(tmp_path / "whole")


@pytest.mark.parametrize("change", ["seed=4", "debate.max_rounds=1"])
def test_main_refuses_to_mix_debates_of_two_recipes(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    output = ["--output", str(tmp_path / "out")]
    assert main([recipe, "steps=1", *output]) == 0
    before = (tmp_path / "out" / "transcripts.jsonl").read_bytes()
    assert main([recipe, change, *output]) == 2
    assert f"debate-rollout: {change.split('=')[0].split('.max_r')[0]}" in capsys.readouterr().err
    assert (tmp_path / "out" / "transcripts.jsonl").read_bytes() == before


def test_main_refuses_to_mix_debates_of_files_that_differ(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f'{{"question": "What is {n}?"}}\n' for n in range(20)]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(rows))
    data = f"data={{type: questions, path: {path}, batch_size: 2}}"
    arguments = [recipe, data, "--output", str(tmp_path / "out")]
    assert main([*arguments, "steps=1"]) == 0
    assert main([*arguments, "steps=2"]) == 0
    path.write_text("".join(rows[1:]))
    assert main([*arguments, "steps=3"]) == 2
    assert "data.path: found a file with other content than" in capsys.readouterr().err
    assert len(found(tmp_path / "out")) == 8
