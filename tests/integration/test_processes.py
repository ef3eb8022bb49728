"""`debate-train` in several processes: one run, one output, and errors said once."""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from arithmetic import FACTOR, UNIT, Trained, in_float64, largest_gap, rounding
from debate_rollout.engines.vllm.server_process import free_port
from debate_train.commands.cli import main
from debate_train.recipe import Recipe
from json_lines import read_rows

pytestmark = pytest.mark.slow

RECIPE = """\
# Two phases of a tiny model: imitation, then debates whose every turn is worth the same.
name: tiny
steps: 6
model: {type: scratch, hidden_size: 16, layers: 1, heads: 2, kv_heads: 1, head_dim: 8, ffn_size: 16}
data: {type: signs_puzzle, largest_digit: 6, batch_size: 3}
debate: {type: simultaneous, num_agents: 3, max_rounds: 2, style: compact, personas: none}
rollout: {engine: {type: transformers}, max_tokens: 12}
reward: {type: verifiable}
advantage: {baseline: none}
loss: {type: ppo_clip, kl: {weight: 0.1}}
trainer:
  type: deepspeed
  zero_stage: 3
  learning_rate: 3.0e-3
  deepspeed_args: {zero_optimization: {stage3_param_persistence_threshold: 0}}
evaluation: {questions: 0}
tracking: {wandb: false}
phases:
  imitate:
    steps: 2
    rollout: {engine: {type: demonstrations}, max_tokens: 48}
    loss: {type: sft, kl: {weight: 0}}
  debate: {}
"""
ENVIRONMENT = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


def command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "debate_train", *map(str, arguments)]


def start(*arguments: Any) -> "subprocess.Popen[str]":
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command(*arguments), env=ENVIRONMENT, **pipes)


def steps(run: Path) -> list[dict[str, float]]:
    return read_rows(run / "metrics.jsonl")


def weights(run: Path) -> dict[str, Any]:
    last = sorted((run / "checkpoints").glob("step-*"))[-1]
    return load_file(last / "model.safetensors")


@dataclass(frozen=True)
class Made:
    """What a run has made."""

    steps: list[dict[str, Any]]
    weights: dict[str, Any]

    @classmethod
    def by(cls, run: Path) -> "Made":
        return cls(steps(run), weights(run))

    def phase(self, name: str) -> Trained:
        """Return the steps of a phase, and the weights at the end of the run."""
        return [step for step in self.steps if step["phase"] == name], self.weights


def wait_for(process: "subprocess.Popen[str]", text: str) -> str:
    """Read what the process reports until a line holds this text; return all of it."""
    assert process.stderr is not None
    printed = ""
    for line in process.stderr:
        printed += line
        if text in line:
            return printed
    raise AssertionError(f"ended before {text!r}: {printed}")


def test_two_processes_make_the_run_of_one_when_interrupted_and_resumed(
    recipe: Path, tmp_path: Path
) -> None:
    """Ranks and stages add up in another order, and that is all: float64 says how much that is."""
    # From files: what is made from scratch is drawn anew in another type.
    loaded = Recipe.model_validate(yaml.safe_load(RECIPE)).model.load(0)
    for saved in (loaded.model, loaded.tokenizer):
        saved.save_pretrained(tmp_path / "model")
    model = f"model={{type: pretrained, name: {tmp_path / 'model'}, dtype: float32}}"
    two = tmp_path / "two"
    process = start(recipe, model, "--nproc", 2, "--output", two)
    wait_for(process, "debate 2/6")
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()
    assert process.returncode == 130, errors
    assert re.search(r"interrupted; go on from step \d with --resume", errors)
    assert out.count("recipe: ") == out.count("report: ") == 1

    # The rest at another stage, as its checkpoint does not depend on that.
    stage = ("trainer.zero_stage=1", "--resume", "--changed")
    more = start(recipe, model, *stage, "--nproc", 2, "--output", two)
    out, errors = more.communicate()
    assert more.returncode == 0, errors
    assert "Traceback" not in errors

    one_process = (str(recipe), model, "trainer.type=torch", "--output")
    assert main([*one_process, str(tmp_path / "plain")]) == 0
    with in_float64():
        assert main([*one_process, str(tmp_path / "exact")]) == 0
    resumed, plain, exact = (Made.by(tmp_path / name) for name in ("two", "plain", "exact"))
    assert [step["step"] for step in resumed.steps] == [1, 2, 3, 4, 5, 6, 7, 8]
    for phase in ("imitate", "debate"):
        times = rounding(*(made.phase(phase) for made in (resumed, plain, exact)))
        assert max(times.values()) <= FACTOR, times
    for key in ("optim/ratio_max", "optim/ratio_min"):
        # Sampled from the trainer's own weights: ratios are 1. Rows keep log-probabilities in
        # float32, and one below 16 in size is rounded by 8 units at most.
        ratios = [
            [step[key] for step in made.phase("debate")[0]] for made in (resumed, plain, exact)
        ]
        assert largest_gap(ratios[2], [1.0] * 6) <= 8 * UNIT
        bound = FACTOR * max(8 * UNIT, largest_gap(ratios[1], ratios[2]))
        assert largest_gap(ratios[0], ratios[2]) <= bound
    # It is compared with the start of the phase, which an interrupt does not move.
    assert resumed.steps[-1]["optim/kl_reference"] > 0


def test_two_processes_end_together_when_one_is_killed(recipe: Path, tmp_path: Path) -> None:
    process = start(recipe, "--nproc", 2, "--output", tmp_path / "run")
    printed = wait_for(process, "imitate 1/2")
    os.kill(_rank_1(process.pid), signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 1, printed + errors
    assert "a process was killed" in errors or "found another process of the run gone" in errors


ENDS_EARLY = """\
import os, signal, sys
from pathlib import Path
from debate_rollout.engines.transformers_sampler import TransformersSampler
from debate_rollout.engine import EngineFailure
from debate_train.commands.cli import main
from debate_train.recipe import Recipe

how, metrics, generate, has_ended = sys.argv[1], Path(sys.argv[2]), TransformersSampler.generate, []

def end_in_step_4(sampler, requests):
    if metrics.read_text().count("\\n") == 3 and (how == "failure" or not has_ended):
        has_ended.append(True)
        if how == "hang-up":  # As all processes get it when their terminal is closed.
            os.killpg(0, signal.SIGHUP)
        else:
            raise EngineFailure("the engine has gone")
    return generate(sampler, requests)

TransformersSampler.generate = end_in_step_4
sys.exit(main(sys.argv[3:]))
"""


@pytest.mark.parametrize(
    ("how", "code", "last", "message"),
    [
        ("hang-up", 130, 4, "interrupted; go on from step 4 with --resume"),
        ("failure", 1, 3, "EngineFailure: the engine has gone"),
    ],
)
def test_two_processes_leave_their_last_complete_step_when_they_end_early(
    recipe: Path, tmp_path: Path, how: str, code: int, last: int, message: str
) -> None:
    run = tmp_path / "run"
    port = str(free_port())
    paths = [str(run / "metrics.jsonl"), str(recipe), "--output", str(run)]
    rendezvous = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks: list[subprocess.Popen[str]] = []
    for rank in map(str, range(2)):
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", ENDS_EARLY, how, *paths],
                env=ENVIRONMENT | rendezvous | {"RANK": rank, "LOCAL_RANK": rank},
                stderr=subprocess.PIPE,
                text=True,
                process_group=ranks[0].pid if ranks else 0,
            )
        )
    try:
        errors = [process.communicate()[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [code, 0], errors
    assert message in errors[0]
    assert not any("Traceback" in error for error in errors)
    written = json.loads((run / f"checkpoints/step-{last:06d}/state.json").read_text())
    assert (written["step"], written["rows"]) == (last, last)
    assert sorted((run / "checkpoints").iterdir())[-1].name == f"step-{last:06d}"
    assert set(weights(run)) and [row["step"] for row in steps(run)] == list(range(1, last + 1))


def _rank_1(starter: int) -> int:
    """Return the process of rank 1 below the starter's launcher."""
    (launcher,) = _children(starter)
    for child in _children(launcher):
        if b"\0RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes():
            return child
    raise AssertionError("no process of rank 1")


def _children(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
    return [int(number) for number in listed.split()]
