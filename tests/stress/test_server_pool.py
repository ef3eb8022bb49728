"""A run whose vLLM servers die and return, or are cut off, ends as one whose servers do not."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.rollout.vllm_stand_in import StandIn, serving

from arithmetic import FACTOR
from debate_train.checkpoints.policy_files import save_policy
from debate_train.commands.cli import main
from debate_train.models import ScratchModel
from json_lines import timeless_metrics

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
SCRIPT = Path(__file__).parents[1] / "train" / "deepspeed_processes.py"
PORT = 29500


class Run:
    """A recipe, its servers and where it writes."""

    def __init__(self, folder: Path, opened: ExitStack, servers: list[StandIn]) -> None:
        folder.mkdir()
        self.servers = servers
        self._folder = folder
        self._urls = ", ".join(opened.enter_context(serving(server)) for server in servers)

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
    transcripts = {path.name: path.read_text() for path in run.glob("transcripts/*.jsonl")}
    return transcripts | {"metrics": timeless_metrics(run)}


@pytest.fixture
def opened() -> Any:
    with ExitStack() as stack:
        yield stack


def test_run_is_as_undisturbed_when_servers_die_and_return(
    tmp_path: Path, opened: ExitStack
) -> None:
    calm = Run(tmp_path / "calm", opened, [StandIn(), StandIn()])
    assert calm.train() == 0
    servers = [StandIn(delay_s=0.01) for _ in range(3)]
    is_over = threading.Event()
    kills = 0

    def trouble() -> None:
        # By answers, not by time: a slow machine must load weights before the next one dies.
        nonlocal kills
        rng = random.Random(0)
        mark = 20
        while not is_over.wait(0.002):
            if sum(len(server.asked) for server in servers) < mark:
                continue
            server = rng.choice(servers)
            server.kill()
            kills += 1
            time.sleep(rng.uniform(0.0, 0.2))
            server.start_again()
            mark = sum(len(server.asked) for server in servers) + rng.randint(5, 120)

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
    for server in servers:
        server.start_again()
    assert run.train("--resume", "--changed") == 0  # with more patience
    assert run.left() == calm.left()


def _kill_after(servers: list[StandIn], requests: int) -> None:
    while sum(len(server.asked) for server in servers) < requests:
        time.sleep(0.002)
    for server in servers:
        server.kill()


@dataclass(frozen=True, slots=True)
class Node:
    """A namespace, its network interface and its address."""

    name: str
    link: str
    address: str

    def run(self, *command: str, **environment: str) -> "subprocess.Popen[str]":
        """Start a command on this node."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *command],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def sent_bytes(self) -> int:
        """Return what has left the node over its link."""
        statistics = ip("-n", self.name, "-s", "-j", "link", "show", "dev", self.link)
        return int(json.loads(statistics)[0]["stats64"]["tx"]["bytes"])


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """Two namespaces joined by a pair of virtual interfaces, and by nothing else."""
    if shutil.which("ip") is None:
        pytest.skip("two nodes need `ip` (iproute2), which is not installed")
    number = os.getpid()
    pair = [
        Node(f"debate-{number}-{k}", f"db{number}{'ab'[k]}"[-15:], f"10.213.7.{k + 1}")
        for k in (0, 1)
    ]
    try:
        try:
            for node in pair:
                ip("netns", "add", node.name)
            first, second = pair
            link = ["link", "add", first.link, "netns", first.name, "type", "veth"]
            ip(*link, "peer", "name", second.link, "netns", second.name)
            for node in pair:
                ip("-n", node.name, "address", "add", f"{node.address}/24", "dev", node.link)
                ip("-n", node.name, "link", "set", node.link, "up")
                ip("-n", node.name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"two nodes need network namespaces: {error.stderr.strip()}")
        yield first, second
    finally:
        for node in pair:
            subprocess.run(["ip", "netns", "delete", node.name], capture_output=True)


def test_two_nodes_match_one_process_when_started_by_torchrun(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    small = ScratchModel(hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, ffn_size=16)
    save_policy(tmp_path, small.load(0))
    running = [
        node.run(
            sys.executable,
            *("-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={rank}"),
            *("--nproc-per-node=1", f"--master-addr={nodes[0].address}"),
            *(f"--master-port={PORT}", str(SCRIPT), str(tmp_path), "stage 2", "stage 3"),
            GLOO_SOCKET_IFNAME=node.link,
            DS_ACCELERATOR="cpu",
            OMP_NUM_THREADS="1",
            PYTHONPATH=str(SCRIPT.parents[1]),
        )
        for rank, node in enumerate(nodes)
    ]
    try:
        printed = [process.communicate() for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, printed, strict=True):
        assert process.returncode == 0, errors[-3000:]
    cases = json.loads(printed[0][0].splitlines()[-1])
    kinds = [(case["case"], bool(case["lora"])) for case in cases]
    # All parameters; one adapter, and the second of two.
    assert kinds == [
        (name, lora) for lora, name in product((False, True, True), ("stage 2", "stage 3"))
    ]
    for case in cases:
        assert max(case["rounding"].values()) <= FACTOR, case
        assert case["moved"] > 1e-3, case
    # Each node reduces the gradients of 5 steps of 4 cases: at least one 4-byte number for each
    # of the adapters' parameters went over the link.
    assert all(node.sent_bytes() > 50_000 for node in nodes)
