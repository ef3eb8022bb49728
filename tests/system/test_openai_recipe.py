"""Recipes with an endpoint: transcripts are collected, nothing is trained, no key is written."""

from pathlib import Path
from typing import Any

import pytest
from tests.rollout.chat_server import Answer, Endpoint, Seen, said, serving

from debate_protocol.transcripts.files import read_transcripts
from debate_train.commands.cli import main as train
from debate_train.commands.rollout import main as collect

KEY = "k3y-of-the-test-0123456789abcdef"
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


def answer(number: int, _: Seen) -> Answer:
    return Answer(500, KEY) if number == 0 else said("<solution> + - </solution>")


def test_recipe_with_an_endpoint_collects_and_keeps_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AN_API_KEY", KEY)
    endpoint = Endpoint(answer)
    path, folder = tmp_path / "r.yaml", tmp_path / "out"
    with serving(endpoint) as url:
        path.write_text(RECIPE.format(url=url))
        assert collect([str(path), "--output", str(folder)]) == 0
    debates = read_transcripts(folder / "transcripts.jsonl")
    assert [len(debate.turns) for debate in debates] == [4] * 6
    assert {seen.body["model"] for seen in endpoint.seen} == {"org/some-model"}
    assert {seen.body["top_p"] for seen in endpoint.seen} == {0.9}
    # Personas keep their temperatures; agents take them in turn.
    assert {seen.body["temperature"] for seen in endpoint.seen} == {0.6, 1.0}
    printed = capsys.readouterr()
    kept = "".join(file.read_text() for file in folder.rglob("*") if file.is_file())
    assert "api_key_env: AN_API_KEY" in kept
    assert KEY not in kept + printed.out + printed.err


def test_recipe_with_an_endpoint_is_refused_by_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE.format(url="http://localhost:1/v1"))
    assert collect([str(path), "--check"]) == 0
    sent = "rollout.engine: the value of AN_API_KEY is sent to http://localhost:1/v1"
    assert sent in capsys.readouterr().out.splitlines()
    for argv in ([str(path), "--check"], [str(path), "--output", str(tmp_path / "run")]):
        assert train([*argv, "model={type: scratch}"]) == 2
        error = capsys.readouterr().err
        assert "rollout.engine.type: found openai" in error
        assert "no token ids and no log-probabilities to train on" in error


@pytest.mark.parametrize(
    "setting",
    [
        f"rollout.engine.api_key_env={KEY}",
        f"rollout.engine.api_key={KEY}",
        f"rollout.engine.extra_body={{api_key: {KEY}}}",
        f"rollout.engine.base_url=https://me:{KEY}@host/v1",
    ],
)
def test_message_about_a_recipe_does_not_repeat_a_key(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[Any]
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE.format(url="http://localhost:1/v1"))
    assert collect([str(path), setting, "--check"]) == 2
    printed = capsys.readouterr()
    assert "rollout.engine" in printed.err
    assert KEY not in printed.out + printed.err


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
