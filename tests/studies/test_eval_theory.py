"""`debate-theory`: the debates of a finished evaluation beside SDRL's theory."""

import json
from pathlib import Path

import pytest

from debate_studies.theory import main
from debate_train.commands.evaluate import main as evaluate

RECIPE = """\
name: t
steps: 1
model: {type: scratch}
data: {type: signs_puzzle, batch_size: 2}
debate: {num_agents: 3, max_rounds: 2, style: compact, personas: none}
rollout: {engine: {type: demonstrations}, max_tokens: 48}
reward: {type: win_rate}
loss: {type: sft}
trainer: {type: torch}
evaluation:
  questions: 12
  direct_samples: 1
  runs: 2
  modes:
    once: {type: debate, max_rounds: 1}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("home")
    (home / "r.yaml").write_text(RECIPE)
    arguments = [str(home / "r.yaml")]
    assert evaluate([*arguments, "--output", str(home / "found")]) == 0
    return str(home / "found")


def test_rounds_of_debates_of_one_policy_are_laid_beside_the_theory(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([folder, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # Neither single replies nor debates of one round have a drift.
    assert set(found) == {"recipe, debate"}
    first, second = found["recipe, debate"]["run"]
    assert second["drift"] == pytest.approx(second["accuracy"] - first["accuracy"])
    assert second["drift_low"] <= second["drift"] <= second["drift_high"]
    # Demonstrations mend in the second round what was wrong in the first.
    assert second["drift_low"] > 0
    assert main([f"{folder}:recipe"]) == 0
    assert "recipe, debate\n\n| round | accuracy |" in capsys.readouterr().out


def test_what_the_theory_says_nothing_about_is_refused(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"{folder}:reciep"]) == 2
    assert "did you mean 'recipe'?" in capsys.readouterr().err
    home = Path(folder).parent
    arguments = [str(home / "r.yaml"), "evaluation.modes={debate: null, once: {max_rounds: 1}}"]
    assert evaluate([*arguments, "--output", str(home / "once")]) == 0
    assert main([str(home / "once")]) == 2
    assert "found no debates of several rounds among agents of one" in capsys.readouterr().err
