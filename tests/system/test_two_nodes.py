"""Two nodes, as two network namespaces with an address each, train and serve as one does."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.rollout import vllm_stand_in
from tests.system.test_server_pool import RECIPE, left_by

from arithmetic import FACTOR
from debate_train.checkpoints.policy_files import save_policy
from debate_train.models import ScratchModel

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "train" / "deepspeed_processes.py"
PORT = 29500


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
        found = ip("-n", self.name, "-s", "-j", "link", "show", "dev", self.link)
        return int(json.loads(found)[0]["stats64"]["tx"]["bytes"])


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
        (name, lora) for lora in (False, True, True) for name in ("stage 2", "stage 3")
    ]
    for case in cases:
        assert max(case["rounding"].values()) <= FACTOR, case
        assert case["moved"] > 1e-3, case
    # Each node reduces the gradients of 5 steps of 4 cases: at least one 4-byte number for each
    # of the adapters' parameters went over the link.
    assert all(node.sent_bytes() > 50_000 for node in nodes)


def test_run_goes_on_when_the_node_of_a_server_is_cut_off(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    here, there = nodes
    program = Path(vllm_stand_in.__file__)
    servers = [
        node.run(sys.executable, str(program), node.address, str(PORT), delay_s)
        for node, delay_s in ((here, "0.02"), (there, "0.5"))
    ]
    urls = ", ".join(str(one.stdout.readline()).strip() for one in servers if one.stdout)

    def answered(server: "subprocess.Popen[str]") -> int:
        assert server.stdin and server.stdout
        server.stdin.write("\n")
        server.stdin.flush()
        return int(server.stdout.readline())

    def trained(name: str) -> "subprocess.Popen[str]":
        recipe = tmp_path / f"{name}.yaml"
        recipe.write_text(RECIPE.format(urls=urls, patience_s=60.0))
        command = ["-m", "debate_train", str(recipe), "steps=6", "--output"]
        return here.run(sys.executable, *command, str(tmp_path / name), OMP_NUM_THREADS="1")

    started = list(servers)
    try:
        started.append(calm := trained("calm"))
        _, errors = calm.communicate()
        assert calm.returncode == 0, errors[-3000:]
        before = [answered(one) for one in servers]
        started.append(run := trained("run"))
        while answered(servers[1]) < before[1] + 60:
            assert run.poll() is None, run.communicate()[1][-3000:]
            time.sleep(0.01)
        ip("-n", there.name, "link", "set", there.link, "down")
        time.sleep(5.0)
        cut_off = [answered(one) for one in servers]
        # Requests that are under way there fail after 25 s, and are asked here.
        while answered(servers[0]) < cut_off[0] + 30:
            assert run.poll() is None, run.communicate()[1][-3000:]
            time.sleep(0.01)
        assert answered(servers[1]) == cut_off[1]
        servers[0].send_signal(signal.SIGSTOP)  # The run cannot end before the other is back.
        ip("-n", there.name, "link", "set", there.link, "up")
        errors = ""
        while f"http://{there.address}:{PORT} serves again" not in errors:
            assert run.stderr
            line = run.stderr.readline()
            assert line, errors[-3000:]
            errors += line
        servers[0].send_signal(signal.SIGCONT)
        _, errors = run.communicate()
        assert run.returncode == 0, errors[-3000:]
        assert answered(servers[1]) > cut_off[1]
    finally:
        for process in started:
            process.kill()
    assert left_by(tmp_path / "run") == left_by(tmp_path / "calm")
