"""A job file of `--slurm` under a real slurmctld, with two nodes' worth of tasks on loopback."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from debate_train.commands.cli import main
from json_lines import timeless_metrics

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
needs_slurm = pytest.mark.skipif(
    not all(shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") for program in PROGRAMS)
    or os.geteuid() != 0,
    reason="needs SLURM's programs and root",
)
RECIPE = """\
name: job
steps: 8
model: {type: scratch, hidden_size: 32, layers: 1, head_dim: 16}
data: {type: signs_puzzle, batch_size: 4}
debate: {num_agents: 3, max_rounds: 2, style: compact}
rollout: {engine: {type: transformers}, max_tokens: 16}
reward: {type: v2}
advantage: {baseline: none, streams: {generator: {weight: 1.0}, judge: {weight: 0.0}}}
loss: {type: importance_sampling}
trainer: {type: deepspeed, zero_stage: 2}
evaluation: {questions: 0}
checkpoint: {every: 1}
tracking: {wandb: false}
"""
CONFIG = """\
ClusterName=here
SlurmctldHost=localhost
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
JobRequeue=1
NodeName=node[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first}-{second}] CPUs=2
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def run(*command: str) -> str:
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, f"{command}: {completed.stdout}{completed.stderr}"
    return completed.stdout


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    config = folder / "slurm.conf"
    # Below the ports that the system gives to others meanwhile.
    port = 10_000 + os.getpid() % 10_000
    config.write_text(CONFIG.format(folder=folder, port=port, first=port + 1, second=port + 2))
    files = ("socket", "pid", "log", "seed")
    munge = [f"--{n}-file={folder}/munge.{n}" for n in files[1:]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
        patch.setenv("SLURM_CONF", str(config))
        # Loopback has no names for the nodes, and no GPU.
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setenv("DS_ACCELERATOR", "cpu")
        patch.setenv("OMP_NUM_THREADS", "1")
        run("munged", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket", *munge)
        run("slurmctld")
        for node in ("node1", "node2"):
            run("slurmd", "-N", node)
        try:
            until(lambda: run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2")
            yield
        finally:
            run("scancel", "--user=root")
            run("scontrol", "shutdown")
            os.kill(int((folder / "munge.pid").read_text()), 15)


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.1)


def submitted(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The number of a job that trains on two nodes."""
    folder.mkdir()
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    options = ["--slurm", "2", "--nproc", "1", "--sbatch=--cpus-per-task=1"]
    assert main([str(recipe), "--output", str(folder / "out"), *options]) == 0
    return capsys.readouterr().out.split("Submitted batch job ")[1].partition(":")[0]


def state(job: str) -> str:
    words = run("scontrol", "show", "job", job, "--oneliner").split()
    return next(word for word in words if word.startswith("JobState=")).removeprefix("JobState=")


def description(job: str) -> str:
    """What SLURM knows of a job, and the log of its runs."""
    described = run("scontrol", "show", "job", job)
    log = re.search(r"StdOut=(\S+)", described)
    return described if log is None else f"{described}\n{Path(log[1]).read_text()}"


def nothing_runs(job: str) -> bool:
    """Whether no process is left of the job, on either node."""
    completed = subprocess.run(["pgrep", "-f", rf"^slurmstepd: \[{job}\."], check=False)
    return completed.returncode == 1


def node_is_back() -> bool:
    """Ask SLURM to take the node again, which it may have done by itself."""
    back = ["scontrol", "update", "nodename=node2", "state=resume"]
    subprocess.run(back, capture_output=True, check=False)
    return "down" not in run("sinfo", "-h", "-n", "node2", "-o", "%T")


def is_completed(job: str) -> bool:
    """Whether the job has ended; one that waits for its time, or is held, is started at once."""
    if state(job) == "PENDING":
        # Each change makes SLURM's next look at the job later.
        time.sleep(1)
        for soon in (["update", f"jobid={job}", "starttime=now"], ["release", job]):
            subprocess.run(["scontrol", *soon], capture_output=True, check=False)
    assert state(job) not in ("FAILED", "CANCELLED"), description(job)
    return state(job) == "COMPLETED"


def rows(folder: Path) -> list[dict[str, Any]]:
    return timeless_metrics(folder / "out" / "run")


@needs_slurm
@pytest.mark.slow
def test_job_that_loses_a_node_goes_on_and_ends_as_one_that_did_not(
    cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calm = submitted(tmp_path / "calm", capsys)
    until(lambda: state(calm) == "COMPLETED")
    job = submitted(tmp_path / "job", capsys)
    checkpoints = tmp_path / "job" / "out" / "run" / "checkpoints"
    until(lambda: any(checkpoints.glob("step-*[2-6]")))
    run("scontrol", "update", "nodename=node2", "state=down", "reason=lost")
    until(lambda: state(job) in ("PENDING", "COMPLETING"))
    assert not any(checkpoints.glob("step-*8"))
    # A job that is started again on a node where it still runs would be held.
    until(lambda: state(job) == "PENDING" and nothing_runs(job))
    until(node_is_back)
    # A node refuses credentials of the second in which it ended the job: SLURM calls that FAILED.
    time.sleep(2)
    until(lambda: is_completed(job))
    assert rows(tmp_path / "job") == rows(tmp_path / "calm")
    assert len(rows(tmp_path / "job")) == 8
    (log,) = (tmp_path / "job" / "out").glob("slurm-*.log")
    assert "Node failure on node2" in log.read_text()


def job_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments, "--output", "out", "--slurm", "2+2", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    return printed[printed.index("#!/bin/bash") :]


def test_job_file_serves_on_the_last_nodes_and_trains_on_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    engine = "{type: vllm_server, vllm_args: {tensor_parallel_size: 2}, max_lora_rank: 32}"
    changes = ["selfplay_v2", f"rollout.engine={engine}", "--sbatch=--partition=gpu"]
    job = job_of(capsys, *changes)
    assert "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n" in job
    assert "#SBATCH --partition=gpu\n" in job and "#SBATCH --gpus-per-node=8\n" in job
    assert "srun --overlap --nodes=2 --ntasks=8 --ntasks-per-node=4 --gpus-per-task=2" in job
    assert "--nodes=2 --ntasks=16 --ntasks-per-node=8 --gpus-per-task=1" in job
    assert "--model Qwen/Qwen3-8B --host 0.0.0.0" in job and "--tensor-parallel-size 2" in job
    path = tmp_path / "job.sh"
    path.write_text(job)
    subprocess.run(["bash", "-n", str(path)], check=True)
    # Where a node's name stands, the servers' URLs follow from it.
    urls = job[job.index("  DEBATE_VLLM_URLS=") : job.index("  export DEBATE_VLLM_URLS")]
    script = f"serving=(a b)\n{urls}\necho $DEBATE_VLLM_URLS"
    completed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == [
        f"http://{node}:{8000 + k}" for node, k in product("ab", range(4))
    ]


def test_job_file_keeps_what_servers_are_started_with(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    sizes = "{data_parallel_size: 2, pipeline_parallel_size: 2}"
    engine = f"type: vllm_server, batch_invariant: true, min_servers: 4, vllm_args: {sizes}"
    job = job_of(capsys, "selfplay_v2", f"rollout.engine={{{engine}, max_lora_rank: 32}}")
    assert "VLLM_BATCH_INVARIANT=1\n" in job
    assert "--nodes=2 --ntasks=4 --ntasks-per-node=2 --gpus-per-task=4" in job


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["papers/selfplay_stronger_judge", "--slurm", "1+1", "--output", "out"],
            "policy 'judge' has a vllm_server",
        ),
        (["selfplay_v2", "--nproc", "1", "--slurm", "2"], "--slurm: expected --output"),
        (
            ["selfplay_v2", "--nproc", "1", "--slurm", "1+1", "--output", "out"],
            "found 1 nodes that serve, and an engine",
        ),
        (["selfplay_v2", "--dry-run"], "found without --slurm"),
    ],
)
def test_job_that_cannot_be_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("left", [(), ("recipe.yaml",), ("recipe.yaml", "checkpoints/step-000001")])
def test_job_resumes_wherever_it_was_lost(
    left: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job file runs under bash, with programs that say what SLURM would be told to start."""
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    output = tmp_path / "out"
    command = [str(tmp_path / "recipe.yaml"), "--output", str(output), "--slurm", "1", "--dry-run"]
    assert main([*command, "--nproc", "1"]) == 0
    job = tmp_path / "job.sh"
    job.write_text(capsys.readouterr().out.partition("#!/bin/bash")[2])
    for name, text in (("scontrol", "echo node1"), ("srun", f'echo "$@" > {tmp_path}/started')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for name in left:
        (output / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (output / "run" / name).touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node1")
    run("bash", str(job))
    started = (tmp_path / "started").read_text().split()
    assert ("--resume" in started) == bool(left)
