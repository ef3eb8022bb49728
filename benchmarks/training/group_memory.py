"""How much memory does a debate larger than a pack take with a trunk, beside one large pack?

Forward and backward pass over the rows of one debate that all agents read alike, each way in a
process of its own: the peak of its resident memory above what it held before, gradients left out.
Gradients are compared first. Without trunks is how packs were built until they had them.

    OMP_NUM_THREADS=1 python -m benchmarks.training.group_memory
"""

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from typing import Any

import torch

from benchmarks.measurement import print_line
from benchmarks.training.logp_memory import forget_peak, resident
from benchmarks.training.train_step_data import LOSS, VOCABULARY, shared_debates
from debate_train.batches.packs import pack
from debate_train.batches.row_types import weigh
from debate_train.trainers.torch_session import KnownLogps, StepStats, accumulate

PACKAGES = ("debate-train", "torch", "transformers")
WAYS = {"trunk": True, "pack": False}


def main() -> None:
    """Print two lines a way and one a ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turn-tokens", type=int, default=128)
    parser.add_argument("--budget", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--way", choices=WAYS, help="measure this one here and print raw figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.way:
        print(json.dumps(measure(options.way, options)))
        return
    gap = gradient_gap(options)
    if not gap < 1e-5:
        raise SystemExit(f"gradients differ by {gap:.1e} of the largest; nothing is measured")
    settings = {
        "agents": options.agents,
        "rounds": options.rounds,
        "turn_tokens": options.turn_tokens,
        "tokens_per_micro_batch": options.budget,
        "layers": options.layers,
        "hidden": options.hidden,
        "dtype": "float32",
        "threads": 1,
        "gradient_gap": float(f"{gap:.1e}"),
    }
    figures: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(options.repeats):
        for way in WAYS:
            figures[way].append(measure_in_a_process(way))
    for name, unit in (("peak", "bytes"), ("time", "s")):
        values = {way: [figure[name] for figure in figures[way]] for way in WAYS}
        for way in WAYS:
            line = f"group_memory/{name}_{way}"
            print_line(line, values[way], unit, "lower", settings, PACKAGES)
        ratios = [a / b for a, b in zip(values["trunk"], values["pack"], strict=True)]
        line = f"group_memory/{name}_trunk_over_pack"
        print_line(line, ratios, "ratio", "lower", settings, PACKAGES)


def measure_in_a_process(way: str) -> dict[str, float]:
    """Measure one way in a fresh process."""
    module = "benchmarks.training.group_memory"
    command = [sys.executable, "-m", module, *sys.argv[1:], "--way", way]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    figures: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return figures


def measure(way: str, options: argparse.Namespace) -> dict[str, float]:
    """Measure the peak of resident memory above the start, and the time."""
    model = make_model(options)
    # The first pass loads libraries and makes the gradients.
    learn(model, shared_debates(1, 2, 1, 8, seed=0), options.budget, WAYS[way])
    batch = debate(options)
    forget_peak()
    memory_before = resident("VmRSS")
    time_before = time.process_time()
    learn(model, batch, options.budget, WAYS[way])
    return {
        "peak": resident("VmHWM") - memory_before,
        "time": time.process_time() - time_before,
    }


def gradient_gap(options: argparse.Namespace) -> float:
    """Compute the largest difference of gradients over the largest slope."""
    slopes = {}
    for way, with_trunks in WAYS.items():
        model = make_model(options)
        learn(model, debate(options), options.budget, with_trunks)
        gradients = [parameter.grad for parameter in model.parameters()]
        slopes[way] = torch.cat([gradient.flatten() for gradient in gradients])
    return float((slopes["trunk"] - slopes["pack"]).abs().max() / slopes["pack"].abs().max())


def debate(options: argparse.Namespace) -> Any:
    """Make the rows of one debate."""
    return shared_debates(1, options.agents, options.rounds, options.turn_tokens, seed=1)


def make_model(options: argparse.Namespace) -> Any:
    """Make a Qwen3-shaped model with grouped queries."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=options.hidden,
        intermediate_size=3 * options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=options.hidden // 8,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).train()


def learn(model: Any, batch: Any, budget: int, with_trunks: bool) -> None:
    """Make the forward and backward passes of one update."""
    weighed_batch, weights = weigh(batch, LOSS.aggregation)
    (packs,) = pack(weighed_batch, weights, budget, with_trunks=with_trunks)
    known = [KnownLogps()] * len(packs)
    accumulate(model, packs, LOSS, known, lambda loss: loss.backward(), StepStats())


if __name__ == "__main__":
    main()
