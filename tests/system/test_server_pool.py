"""A run whose vLLM servers die and return ends as one whose servers do not (stand-ins)."""

import json
import random
import re
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.vllm_stand_in import StandIn, serving

from debate_train.commands.cli import main

pytestmark = pytest.mark.slow

RECIPE = """\
name: pool
steps: 20
model: {{type: scratch, hidden_size: 32, layers: 1, head_dim: 16, context_window: 256}}
data: {{type: signs_puzzle, batch_size: 8}}
debate: {{num_agents: 3, max_rounds: 3, style: compact, conversation: shared}}
rollout:
  engine: {{type: vllm_server, urls: [{urls}], reconnect_timeout_s: {patience_s}}}
  max_tokens: 4
reward: {{type: v2}}
advantage: {{baseline: none, streams: {{generator: {{weight: 1.0}}, judge: {{weight: 0.0}}}}}}
loss: {{type: importance_sampling}}
trainer: {{type: torch, learning_rate: 1.0e-2}}
evaluation: {{questions: 0}}
recording: {{every: 1, debates: 8}}
tracking: {{wandb: false}}
"""


class Run:
    """A recipe, its servers and where it writes."""

    def __init__(self, folder: Path, opened: ExitStack, servers: list[StandIn]) -> None:
        folder.mkdir()
        self.servers, self._folder = servers, folder
        self._urls = ", ".join(opened.enter_context(serving(one)) for one in servers)

    def train(self, *arguments: str, patience_s: float = 20.0) -> int:
        recipe = self._folder / "recipe.yaml"
        recipe.write_text(RECIPE.format(urls=self._urls, patience_s=patience_s))
        output = ["--output", str(self._folder / "run")]
        code: int = main([str(recipe), *output, *arguments])
        return code

    def left(self) -> dict[str, Any]:
        return left_by(self._folder / "run")


def left_by(run: Path) -> dict[str, Any]:
    """Transcripts and metrics of a run, without times."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = ("time", "memory", "tokens_per", "speed", "throughput")
    said = {path.name: path.read_text() for path in run.glob("transcripts/*.jsonl")}
    return said | {
        "metrics": [{k: v for k, v in x.items() if not k.startswith(timed)} for x in rows]
    }


@pytest.fixture
def opened() -> Any:
    with ExitStack() as stack:
        yield stack


def test_run_is_as_undisturbed_when_servers_die_and_return(
    tmp_path: Path, opened: ExitStack
) -> None:
    calm = Run(tmp_path / "calm", opened, [StandIn(), StandIn()])
    assert calm.train() == 0
    servers, is_over, kills = [StandIn(delay_s=0.01) for _ in range(3)], threading.Event(), 0

    def trouble() -> None:
        # By answers, not by time: a slow machine must load weights before the next one dies.
        nonlocal kills
        rng, mark = random.Random(0), 20
        while not is_over.wait(0.002):
            if sum(len(one.asked) for one in servers) < mark:
                continue
            one = rng.choice(servers)
            one.kill()
            kills += 1
            time.sleep(rng.uniform(0.0, 0.2))
            one.start_again()
            mark = sum(len(one.asked) for one in servers) + rng.randint(5, 120)

    killer = threading.Thread(target=trouble, daemon=True)
    killer.start()
    try:
        run = Run(tmp_path / "run", opened, servers)
        assert run.train() == 0
    finally:
        is_over.set()
        killer.join()
    assert kills >= 10
    assert run.left() == calm.left()


def test_run_ends_with_a_checkpoint_when_no_server_is_left_and_goes_on_from_there(
    tmp_path: Path, opened: ExitStack, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = Run(tmp_path / "calm", opened, [StandIn(), StandIn()])
    assert calm.train() == 0
    servers = [StandIn(delay_s=0.02), StandIn(delay_s=0.02)]
    run = Run(tmp_path / "run", opened, servers)
    # In the third step: what a step asks is 8 debates of 9 turns.
    threading.Thread(target=_kill_after, args=(servers, 2 * 72 + 20), daemon=True).start()
    assert run.train(patience_s=0.5) == 1
    # The request that ends the run finds no server up, or was itself at the second one's end.
    ending = r"(0 of 2 vLLM servers serve; expected at least 1|cannot be reached).*; waited 0\.5 s"
    assert re.search(ending, capsys.readouterr().err)
    names = sorted(p.name for p in (tmp_path / "run" / "run" / "checkpoints").glob("step-*"))
    assert names == ["step-000002"]
    for one in servers:
        one.start_again()
    assert run.train("--resume", "--changed") == 0  # with more patience
    assert run.left() == calm.left()


def _kill_after(servers: list[StandIn], requests: int) -> None:
    while sum(len(one.asked) for one in servers) < requests:
        time.sleep(0.002)
    for one in servers:
        one.kill()
