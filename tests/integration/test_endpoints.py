"""Endpoints collect transcripts and speak for a role; no key is written."""

import shutil
from itertools import chain
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tests.rollout.chat_server import Answer, Endpoint, Seen, said, serving

from debate_protocol.transcripts.files import read_transcripts
from debate_train.commands.cli import main as train
from debate_train.commands.rollout import main as collect
from train.small_runs import AHEAD, end_of
from train.small_runs import RECIPE as RUN_RECIPE

KEY = "k3y-of-the-test-0123456789abcdef"
POLICY = """\
  policies:
    teacher:
      type: engine
      engine:
        {type: openai, model: some-model, base_url: URL, api_key_env: AN_API_KEY, backoff_s: 0}
"""
SAYS = ("<solution> + - + </solution>", "I do not know.")
RECIPE = """\
name: t
steps: 2
model: {{name: org/some-model}}
data: {{type: signs_puzzle, batch_size: 3}}
debate: {{num_agents: 2, max_rounds: 2, style: compact}}
rollout:
  max_tokens: 16
  top_p: 0.9
  engine: {{type: openai, base_url: "{url}", api_key_env: AN_API_KEY, retries: 1, backoff_s: 0}}
reward: {{type: win_rate}}
loss: {{type: sft}}
"""


def answer_by_seed(number: int, sent: Seen) -> Answer:
    """Fail once; then say what follows from what was asked."""
    if number == 0:
        return Answer(500, "busy")
    return said(SAYS[sent.body["seed"] % 2])


def recipe_with_teacher(url: str) -> str:
    roles = "max_rounds: 2, roles: {learner: {count: 2}, master: {policy: teacher}}"
    rollout = "rollout:\n  max_tokens: 4\n" + POLICY.replace("URL", url)
    return (
        RUN_RECIPE.replace("num_agents: 2, max_rounds: 1", roles)
        .replace("rollout: {max_tokens: 4}\n", rollout)
        .replace("recording: {debates: 0}", "recording: {every: 1}")
    )


@pytest.mark.parametrize("ahead", [(), AHEAD], ids=["at once", "ahead"])
def test_run_trains_beside_an_endpoint_and_resumes(
    ahead: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AN_API_KEY", KEY)
    endpoint = Endpoint(answer_by_seed)
    file = tmp_path / "recipe.yaml"
    changes = ("checkpoint.every=1", "checkpoint.keep_last=9", *ahead)
    undisturbed = tmp_path / "whole"
    again = tmp_path / "again"
    with serving(endpoint) as url:
        file.write_text(recipe_with_teacher(url))
        assert train([str(file), *changes, "--output", str(undisturbed)]) == 0
        played = [
            debate
            for path in sorted((undisturbed / "transcripts").glob("*.jsonl"))
            for debate in read_transcripts(path)
        ]
        shutil.copytree(undisturbed, again)
        for late in sorted((again / "checkpoints").glob("step-*"))[1:]:
            shutil.rmtree(late)
        assert train([str(file), *changes, "--resume", "--output", str(again)]) == 0
    assert end_of(again) == end_of(undisturbed)
    assert {sent.body["model"] for sent in endpoint.seen} == {"some-model"}
    assert played
    for debate in played:
        assert {turn.agent for turn in debate.turns} == {0, 1, 2}
        for turn in debate.turns:
            assert (turn.agent == 2) == (turn.text in SAYS)
    rows = [load_file(path)["agent_B"] for path in (undisturbed / "tokens").glob("*.safetensors")]
    assert rows
    assert set(chain.from_iterable(agents.tolist() for agents in rows)) == {0, 1}
    written = b"".join(path.read_bytes() for path in undisturbed.rglob("*") if path.is_file())
    assert KEY.encode() not in written


def answer_after_failure(number: int, _: Seen) -> Answer:
    return Answer(500, KEY) if number == 0 else said("<solution> + - </solution>")


def test_recipe_with_an_endpoint_collects_and_keeps_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AN_API_KEY", KEY)
    endpoint = Endpoint(answer_after_failure)
    path = tmp_path / "r.yaml"
    folder = tmp_path / "out"
    with serving(endpoint) as url:
        path.write_text(RECIPE.format(url=url))
        assert collect([str(path), "--output", str(folder)]) == 0
    debates = read_transcripts(folder / "transcripts.jsonl")
    assert [len(debate.turns) for debate in debates] == [4] * 6
    assert {sent.body["model"] for sent in endpoint.seen} == {"org/some-model"}
    assert {sent.body["top_p"] for sent in endpoint.seen} == {0.9}
    # Personas keep their temperatures; agents take them in turn.
    assert {sent.body["temperature"] for sent in endpoint.seen} == {0.6, 1.0}
    printed = capsys.readouterr()
    written = "".join(file.read_text() for file in folder.rglob("*") if file.is_file())
    assert "api_key_env: AN_API_KEY" in written
    assert KEY not in written + printed.out + printed.err


def test_collecting_stops_with_one_message_when_the_key_is_missing_or_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    with serving(Endpoint(lambda *_: Answer(401, f"wrong key {KEY}"))) as url:
        path.write_text(RECIPE.format(url=url))
        argv = [str(path), "--output", str(tmp_path / "out")]
        monkeypatch.delenv("AN_API_KEY", raising=False)
        codes = [collect(argv)]
        monkeypatch.setenv("AN_API_KEY", KEY)
        codes.append(collect(argv))
    error = capsys.readouterr().err
    assert codes == [2, 1]
    assert "the environment variable AN_API_KEY is not set" in error
    assert "the key in AN_API_KEY was refused" in error
    assert KEY not in error
    assert "Traceback" not in error
