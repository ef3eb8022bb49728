"""An endpoint speaks for one role of a training run, and needs no token ids for it."""

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file
from tests.rollout.chat_server import Answer, Endpoint, Seen, said, serving

from debate_protocol.transcripts.files import read_transcripts
from debate_train.commands.cli import main
from train.small_runs import AHEAD, RECIPE, end_of

KEY = "k3y-of-the-test-0123456789abcdef"
POLICY = """\
  policies:
    teacher:
      type: engine
      engine:
        {type: openai, model: some-model, base_url: URL, api_key_env: AN_API_KEY, backoff_s: 0}
"""
SAYS = ("<solution> + - + </solution>", "I do not know.")


def answer(number: int, seen: Seen) -> Answer:
    """Fail once; then say what follows from what was asked."""
    if number == 0:
        return Answer(500, "busy")
    return said(SAYS[seen.body["seed"] % 2])


def recipe(url: str) -> str:
    roles = "max_rounds: 2, roles: {learner: {count: 2}, master: {policy: teacher}}"
    rollout = "rollout:\n  max_tokens: 4\n" + POLICY.replace("URL", url)
    return (
        RECIPE.replace("num_agents: 2, max_rounds: 1", roles)
        .replace("rollout: {max_tokens: 4}\n", rollout)
        .replace("recording: {debates: 0}", "recording: {every: 1}")
    )


@pytest.mark.parametrize("ahead", [(), AHEAD], ids=["at once", "ahead"])
def test_run_trains_beside_an_endpoint_and_resumes(
    ahead: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AN_API_KEY", KEY)
    endpoint, file = Endpoint(answer), tmp_path / "recipe.yaml"
    changes = ("checkpoint.every=1", "checkpoint.keep_last=9", *ahead)
    whole, again = tmp_path / "whole", tmp_path / "again"
    with serving(endpoint) as url:
        file.write_text(recipe(url))
        assert main([str(file), *changes, "--output", str(whole)]) == 0
        played = [
            debate
            for path in sorted((whole / "transcripts").glob("*.jsonl"))
            for debate in read_transcripts(path)
        ]
        shutil.copytree(whole, again)
        for late in sorted((again / "checkpoints").glob("step-*"))[1:]:
            shutil.rmtree(late)
        assert main([str(file), *changes, "--resume", "--output", str(again)]) == 0
    assert end_of(again) == end_of(whole)
    assert {seen.body["model"] for seen in endpoint.seen} == {"some-model"}
    assert played
    for debate in played:
        assert {turn.agent for turn in debate.turns} == {0, 1, 2}
        for turn in debate.turns:
            assert (turn.agent == 2) == (turn.text in SAYS)
    rows = [load_file(path)["agent_B"] for path in (whole / "tokens").glob("*.safetensors")]
    assert rows and {agent for found in rows for agent in found.tolist()} == {0, 1}
    kept = b"".join(path.read_bytes() for path in whole.rglob("*") if path.is_file())
    assert KEY.encode() not in kept


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            "rollout.policies.teacher.engine.model=null",
            "rollout.policies.teacher.engine: found openai, which is opened with a model",
        ),
        (
            "rollout.policies.teacher="
            "{type: model, model: {type: scratch}, engine: {type: openai}}",
            "rollout.policies.teacher.engine.type: found openai, which takes messages",
        ),
        (
            "rollout.engine={type: openai, model: m}",
            "rollout.engine.type: found openai, whose replies have no token ids",
        ),
    ],
)
def test_check_says_where_an_endpoint_may_stand(
    change: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(recipe("http://localhost:1/v1"))
    assert main([str(file), "--check", change]) == 2
    assert problem in capsys.readouterr().err
