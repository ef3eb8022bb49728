"""What overlap saves: wall time of the same steps at `max_staleness` 1 over `max_staleness` 0.

    OMP_NUM_THREADS=1 .venv/bin/python -m benchmarks.engines.overlap --parts a b
    OMP_NUM_THREADS=1 .venv-vllm/bin/python -m benchmarks.engines.overlap --parts c

a: an engine that takes time but none of our processor: scripted replies that sleep, in place of a
   server elsewhere; as long a step as training takes.
b: the transformers engine, in a thread of the process that trains.
c: a vLLM server that the run starts, on the same machine.

Rollout and training times are those of the same run at 0. With r and t seconds a step, n
steps take n(r + t) at 0 and at best r + t + (n - 1) max(r, t) at 1. Parts b and c
share processors with training, so a line says first what two processes that only multiply
matrices lose to each other: 1 is nothing, 2 is a machine without a second processor.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from rich.console import Console

from benchmarks.measurement import print_line
from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine, TransformersEngine, VllmServerEngine
from debate_rollout.engines.scripted import Delay
from debate_train.checkpoints import Checkpoints, RunState, run_hash
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.interrupts import Interrupts
from debate_train.models.loaded_model import LoadedModel
from debate_train.monitoring.progress import Progress
from debate_train.monitoring.tracking import Tracker
from debate_train.recipe import Recipe
from debate_train.running.loop import train
from debate_train.running.run_context import RunContext, Saving, open_phase

PACKAGES = ["debate-train", "debate-rollout", "torch", "transformers"]
ROUNDS = 2
PARTS = {
    "a": "scripted replies that sleep",
    "b": "transformers in a thread",
    "c": "vLLM as a server",
}


def main() -> None:
    """Print the lines of the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["a", "b"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="of each run")
    parser.add_argument("--questions", type=int, default=8, help="of each step")
    parser.add_argument("--max-tokens", type=int, default=48, help="of a reply")
    options = parser.parse_args()
    if {"b", "c"} & {*options.parts}:
        side_by_side(options.repeats)
    for part in options.parts:
        if part == "c" and importlib.util.find_spec("vllm") is None:
            print("part c is left out: vLLM is not installed", file=sys.stderr)
            continue
        measure(part, options)


def side_by_side(repeats: int) -> None:
    """Print how much longer a process works beside another one like it."""
    program = (
        "import time, torch; torch.set_num_threads(1); a = torch.randn(512, 512); a @ a\n"
        "input()\n"
        "began = time.perf_counter()\n"
        "for _ in range(200): a @ a\n"
        "print(time.perf_counter() - began)"
    )
    found = []
    for _ in range(repeats):
        (alone,), both = _multiply(program, 1), _multiply(program, 2)
        found.append(max(both) / alone)
    settings = {"product": 512, "times": 200, "threads": 1}
    print_line("overlap/machine/side_by_side", found, "ratio", "lower", settings, ["torch"])


def _multiply(program: str, processes: int) -> list[float]:
    arguments = [sys.executable, "-c", program]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(arguments, stdin=pipe, stdout=pipe, text=True) for _ in range(processes)
    ]
    time.sleep(3 * processes)  # All have imported torch.
    for one in started:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    return [float(one.communicate(timeout=60)[0]) for one in started]


def measure(part: str, options: argparse.Namespace) -> None:
    """Run the same steps at both values in turns; print times and their ratio."""
    recipes = {stale: recipe(stale, options) for stale in (0, 1)}
    loaded = recipes[0].model.load(0)
    engine = _engine(part, recipes[0], loaded)
    found: dict[str, list[float]] = {}
    try:
        for repeat in range(options.repeats + 1):
            seconds, means = {}, {}
            for stale, one in recipes.items():
                seconds[stale], means[stale] = _run(one, loaded, engine, options.steps)
            if repeat == 0:  # warms up
                continue
            r, t = means[0]["time/rollout_s"], means[0]["time/train_s"]
            best = (r + t + (options.steps - 1) * max(r, t)) / (options.steps * (r + t))
            ratio = seconds[1] / seconds[0]
            values = {"ratio": ratio, "limit": best, "ratio_over_limit": ratio / best}
            values |= {f"seconds_at_{stale}": one for stale, one in seconds.items()}
            for stale, mean in means.items():
                values |= {f"{n[5:]}_at_{stale}": mean[n] for n in sorted(mean)}
            for name, value in values.items():
                found.setdefault(name, []).append(value)
    finally:
        engine.close()
    settings = {
        "engine": PARTS[part], "steps": options.steps, "questions": options.questions,
        "agents": 3, "rounds": ROUNDS, "max_tokens": options.max_tokens,
        "hidden": 128, "layers": 4, "head_dim": 32, "torch_threads": torch.get_num_threads(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "medians": {n: round(sorted(v)[len(v) // 2], 4) for n, v in found.items()},
        "limit": "(r + t + (n - 1) max(r, t)) / (n (r + t)) from 0 of the same repeat",
    }  # fmt: skip
    for name, better in (("ratio", "lower"), ("limit", "lower"), ("ratio_over_limit", "lower")):
        print_line(f"overlap/{part}/{name}", found[name], "ratio", better, settings, PACKAGES)


def recipe(stale: int, options: argparse.Namespace) -> Recipe:
    """Return a recipe of a tiny model whose rollouts and updates take about as long."""
    return Recipe.model_validate(
        {
            "name": "overlap",
            "steps": options.steps,
            "model": {"type": "scratch", "hidden_size": 128, "layers": 4, "head_dim": 32},
            "data": {"type": "signs_puzzle", "batch_size": options.questions},
            "debate": {
                "num_agents": 3,
                "max_rounds": ROUNDS,
                "style": "compact",
                "personas": "none",
            },
            "rollout": {"max_tokens": options.max_tokens},
            "pipeline": {"max_staleness": stale},
            "reward": {"type": "verifiable"},
            "advantage": {"baseline": "none"},
            "loss": {"type": "ppo_clip"},
            "recording": {"debates": 0},
            "trainer": {"type": "torch", "device": "cpu", "learning_rate": 1e-5},
        }
    )


def _engine(part: str, form: Recipe, loaded: LoadedModel) -> Engine:
    if part == "b":
        engine: Engine = TransformersEngine(device="cpu").open(loaded.model, loaded.tokenizer)
        return engine
    if part == "c":
        config = VllmServerEngine(
            max_batch=64,
            context_window=512,
            kv_cache_mib=256,
            enforce_eager=True,
            dtype="float32",
        )
        return config.open(loaded.model, loaded.tokenizer)
    source = form.data.open()
    script: Callable[[Any], str] = source.demonstrate
    quick = ScriptedEngine().open(None, loaded.tokenizer, script=script)
    _run(form, loaded, quick, 1)
    _, means = _run(form, loaded, quick, 4)
    delay = Delay(median_s=means["time/train_s"] / ROUNDS, spread=0, slots=1024)
    return ScriptedEngine(delay=delay).open(None, loaded.tokenizer, script=script)


def _run(
    form: Recipe, loaded: LoadedModel, engine: Engine, steps: int
) -> tuple[float, dict[str, float]]:
    """Train some steps; return their wall time, and the mean of each part's."""
    trainer = form.trainer.open(loaded, form.loss, steps)
    with TemporaryDirectory() as folder, Progress(Console(file=StringIO())) as progress:
        directory = RunDirectory.create(folder, "name: overlap\n")
        run = RunContext(
            recipe=form.model_copy(update={"steps": steps}),
            directory=directory,
            tracker=Tracker(),
            progress=progress,
            interrupts=Interrupts(),
            source=form.data.open(),
            engine=engine,
            loaded=loaded,
            checkpoints=Checkpoints(directory.checkpoints_path, run_hash("name: overlap"), 1),
            state=RunState(),
        )
        engine.load(trainer.weights(version=0))
        progress.start("train", steps)
        phase = open_phase(run, "train", run.recipe, trainer)
        started = time.perf_counter()
        train(run, phase, Saving(run, phase))
        seconds = time.perf_counter() - started
        lines = directory.metrics_path.read_text().splitlines()
        directory.close()
    trainer.close()
    rows = [json.loads(line) for line in lines]
    return seconds, {n: fmean(row[n] for row in rows) for n in rows[0] if n.startswith("time/")}


if __name__ == "__main__":
    main()
