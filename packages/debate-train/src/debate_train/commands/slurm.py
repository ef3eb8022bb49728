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

_PROCESSES = 8


def submit(arguments: argparse.Namespace, recipe: Recipe) -> None:
    """Write the job file into the output directory and submit it, or print it.

    Raises:
        UsageError: No directory is named, or the recipe samples elsewhere.
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
    done = subprocess.run(["sbatch", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailure(f"sbatch: {done.stderr.strip()}")
    print(f"{done.stdout.strip()}: {path}")


def job_file(arguments: argparse.Namespace, recipe: Recipe, output: Path) -> str:
    """Return the text of the job file."""
    training, servers = arguments.slurm
    processes = arguments.nproc or _PROCESSES
    engine, server, split = recipe.rollout.engine, ["false"], 1
    settings = list(arguments.overrides)
    if servers:
        # A model from scratch has no base, and is on no disk.
        model, dtype = getattr(recipe.model, "base", ""), getattr(recipe.model, "dtype", "auto")
        found, takes = engine.server(model, dtype), engine.footprint(0, 0.0)
        split = takes.split * takes.replicas
        if found is None or not model or split > processes:
            raise UsageError(
                f"--slurm: found {servers} nodes that serve, and an engine or a model that cannot "
                "be served; expected rollout.engine.type vllm_server, without url or urls, on at "
                f"most {processes} GPUs, and a model with a name"
            )
        trained = TrainedPolicy(engine, recipe.model, recipe.seed)
        for name, policy in used_policies(recipe).items():
            if policy.engine_config(trained).server(model, dtype) is not None:
                raise UsageError(
                    f"--slurm: policy {name!r} has a vllm_server, and the nodes that serve have "
                    f"the model that is trained; expected rollout.policies.{name}.engine.url"
                )
        server = found
        settings.append(f"rollout.engine.shared_folder={output}/weights")
    on_cpu = os.environ.get("DS_ACCELERATOR") == "cpu"
    path = Path(arguments.recipe)
    named = str(path.resolve()) if path.is_file() else arguments.recipe
    values = {
        "command": f"debate-train {named} --slurm: change it as your cluster needs it.",
        "name": recipe.name,
        "nodes": training + servers,
        "processes": processes,
        "output": shlex.quote(str(output)),
        "options": "\n".join(f"#SBATCH {option}" for option in arguments.sbatch),
        "training": training,
        "servers": servers,
        "tasks_each": processes // split,
        "server_tasks": servers * (processes // split),
        "job_gpus": "" if on_cpu else f"#SBATCH --gpus-per-node={processes}",
        "invariant": " VLLM_BATCH_INVARIANT=1" * bool(getattr(engine, "batch_invariant", False)),
        "server_gpus": "" if on_cpu else f"--gpus-per-task={split}",
        "gpus": "" if on_cpu else "--gpus-per-task=1",
        "ranks": training * processes,
        "server": shlex.join(server),
        "train": shlex.join([sys.executable, "-m", "debate_train", named, *settings]),
    }
    text = files("debate_train.commands").joinpath("job.sh").read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text
