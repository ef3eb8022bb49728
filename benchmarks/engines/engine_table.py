"""Which engine passes which check of the conformance suite? Prints a Markdown table.

A Qwen3-shaped model of random weights in float32, refreshed with other weights and adapters;
log-probabilities are compared with a plain forward pass. Engines whose packages are missing are
left out. Reasons and failures go to standard error; the exit code is 1 when a check failed.

    OMP_NUM_THREADS=1 python -m benchmarks.engines.engine_table
    OMP_NUM_THREADS=1 python -m benchmarks.engines.engine_table --engines transformers vllm
"""

import argparse
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "examples"))

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

from benchmarks.engines.rollout_debates import random_model
from debate_protocol.types import TurnRequest
from debate_rollout.engine import MissingExtraError, Weights
from debate_rollout.engines import (
    ScriptedEngine,
    TransformersEngine,
    VllmEngine,
    VllmServerEngine,
)
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.engines.scripted import Delay
from debate_rollout.testing import Bench, Refresh, conformance, conformance_table

WINDOW, RANK = 512, 8
SMALL: Mapping[str, Any] = {
    "context_window": WINDOW,
    "enforce_eager": True,
    "kv_cache_mib": 64,
    "max_batch": 32,
}
ENGINES: Mapping[str, Any] = {
    "transformers": TransformersEngine(context_window=WINDOW),
    "vllm": VllmEngine(**SMALL),
    "vllm, LoRA": VllmEngine(**SMALL, max_lora_rank=RANK),
    "vllm_server": VllmServerEngine(**SMALL),
    "scripted": ScriptedEngine(context_window=WINDOW),
    "scripted, delay": ScriptedEngine(context_window=WINDOW, delay=Delay(median_s=0.001)),
}


def weights(seed: int) -> Refresh:
    """Return all parameters of another random model."""
    model, _ = random_model(64, 2)
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    return Refresh(Weights(1, model.state_dict()), plain_logps(model))


def adapter(seed: int) -> Refresh:
    """Return a random adapter on the model that is served at first."""
    base, _ = random_model(64, 2)
    torch.manual_seed(seed)
    config = LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    tensors = get_peft_model_state_dict(model)
    return Refresh(Weights(1, tensors, "lora", config.to_dict()), plain_logps(model))


def tried(config: Any) -> dict[str, str]:
    """Open one engine and run every check on it."""
    model, tokenizer = random_model(64, 2)
    if isinstance(config, ScriptedEngine):
        return conformance(Bench(config.open(None, tokenizer, script=echo)))
    before = processes()
    engine = config.open(model, tokenizer)
    own = processes() - before

    def kill() -> None:
        for process in own:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    try:
        # The last full weights are those of the start: adapters are made for them.
        back = Refresh(Weights(1, model.state_dict()), plain_logps(model))
        refreshes = (weights(1), back, adapter(2), adapter(3))
        kinds = {"full" if "full_weights" in engine.capabilities else "lora"}
        kinds |= {"lora"} & engine.capabilities
        fitting = tuple(one for one in refreshes if one.weights.kind in kinds)
        return conformance(Bench(engine, plain_logps(model), fitting, kill if own else None))
    finally:
        engine.close()


def processes() -> set[int]:
    """Return the numbers of this process's children and their children (on Linux)."""
    found, fresh = set[int](), {os.getpid()}
    while fresh:
        paths = [path for one in fresh for path in Path(f"/proc/{one}/task").glob("*/children")]
        fresh = {int(number) for path in paths for number in path.read_text().split()} - found
        found |= fresh
    return found


def echo(request: TurnRequest) -> str:
    """Return a reply that names the agent and what it was asked."""
    return f"I am {request.agent}: {request.messages[-1]['content']}"


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", choices=tuple(ENGINES), default=tuple(ENGINES))
    found: dict[str, dict[str, str]] = {}
    for name in parser.parse_args().engines:
        try:
            found[name] = tried(ENGINES[name])
        except MissingExtraError as error:
            print(f"{name}: left out: {error}", file=sys.stderr)
    for name, results in found.items():
        for check, result in results.items():
            if result != "passed":
                print(f"{name}: {check}: {result}", file=sys.stderr)
    print(conformance_table(found))
    return int(any(r.startswith("FAILED") for one in found.values() for r in one.values()))


if __name__ == "__main__":
    sys.exit(main())
