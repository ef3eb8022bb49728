"""`debate-train RECIPE --slurm`: a run as a job of SLURM, with nodes that train and that serve."""

import argparse
import os
import shlex
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from debate_train.errors import RunFailure, UsageError
from debate_train.models.policies import TrainedPolicy
from debate_train.recipe import Recipe
from debate_train.recipe.policies import used_policies

# GPUs of a node where --nproc does not say how many there are.
_DEFAULT_PROCESSES = 8


def submit(arguments: argparse.Namespace, recipe: Recipe) -> None:
    """Write the job file into the output directory and submit it, or print it.

    Raises:
        UsageError: The call has no directory, or the recipe samples elsewhere.
        RunFailure: SLURM refuses the job.
    """
    if arguments.output is None:
        raise UsageError("--slurm: expected --output, a directory that all nodes share")
    job = job_file(arguments, recipe, Path(arguments.output).resolve())
    if arguments.dry_run:
        print(job, end="")
        return
    path = Path(arguments.output) / "job.sh"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(job)
    process = subprocess.run(["sbatch", str(path)], capture_output=True, text=True, check=False)
    if process.returncode:
        raise RunFailure(f"sbatch: {process.stderr.strip()}")
    print(f"{process.stdout.strip()}: {path}")


def job_file(arguments: argparse.Namespace, recipe: Recipe, output: Path) -> str:
    """Fill in the template of the job file."""
    num_training_nodes, num_server_nodes = arguments.slurm
    num_processes = arguments.nproc or _DEFAULT_PROCESSES
    engine = recipe.rollout.engine
    settings = list(arguments.overrides)
    server_command = ["false"]
    gpus_per_server = 1
    if num_server_nodes:
        server_command, gpus_per_server = _server(recipe, num_server_nodes, num_processes)
        # Weights go from the trainer to the servers through files that all nodes see.
        settings.append(f"rollout.engine.shared_folder={output}/weights")
    servers_per_node = num_processes // gpus_per_server

    # SLURM on a cluster of CPUs, as the tests have one, refuses requests for GPUs.
    on_cpu = os.environ.get("DS_ACCELERATOR") == "cpu"
    # The job starts in another directory, so a file is named by its whole path.
    path = Path(arguments.recipe)
    recipe_name = str(path.resolve()) if path.is_file() else arguments.recipe
    is_batch_invariant = bool(getattr(engine, "batch_invariant", False))
    values = {
        "command": f"debate-train {recipe_name} --slurm: change it as your cluster needs it.",
        "name": recipe.name,
        "nodes": num_training_nodes + num_server_nodes,
        "processes": num_processes,
        "output": shlex.quote(str(output)),
        "options": "\n".join(f"#SBATCH {option}" for option in arguments.sbatch),
        "training": num_training_nodes,
        "servers": num_server_nodes,
        "tasks_each": servers_per_node,
        "server_tasks": num_server_nodes * servers_per_node,
        "job_gpus": "" if on_cpu else f"#SBATCH --gpus-per-node={num_processes}",
        "invariant": " VLLM_BATCH_INVARIANT=1" if is_batch_invariant else "",
        "server_gpus": "" if on_cpu else f"--gpus-per-task={gpus_per_server}",
        "gpus": "" if on_cpu else "--gpus-per-task=1",
        "ranks": num_training_nodes * num_processes,
        "server": shlex.join(server_command),
        "train": shlex.join([sys.executable, "-m", "debate_train", recipe_name, *settings]),
    }
    text = files("debate_train.commands").joinpath("job.sh").read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def _server(recipe: Recipe, num_nodes: int, num_processes: int) -> tuple[list[str], int]:
    """Build the command of a server, and count its GPUs.

    Raises:
        UsageError: The engine or the model cannot be served, or a policy needs another server.
    """
    engine = recipe.rollout.engine
    # A model from scratch has no base, and is on no disk.
    model = getattr(recipe.model, "base", "")
    dtype = getattr(recipe.model, "dtype", "auto")
    server_command = engine.server(model, dtype)
    footprint = engine.footprint(0, 0.0)
    num_gpus = footprint.split * footprint.replicas
    if server_command is None or not model or num_gpus > num_processes:
        raise UsageError(
            f"--slurm: found {num_nodes} nodes that serve, and an engine or a model that cannot "
            "be served; expected rollout.engine.type vllm_server, without url or urls, on at "
            f"most {num_processes} GPUs, and a model with a name"
        )
    trained = TrainedPolicy(engine, recipe.model, recipe.seed)
    for name, policy in used_policies(recipe).items():
        if policy.engine_config(trained).server(model, dtype) is not None:
            raise UsageError(
                f"--slurm: policy {name!r} has a vllm_server, and the nodes that serve have "
                f"the model that is trained; expected rollout.policies.{name}.engine.url"
            )
    return server_command, num_gpus
