"""How far are an engine's log-probabilities from the trainer's? Largest and mean |q - p|.

q is what the engine sampled with, p one plain forward pass of the same weights in the same type.

    OMP_NUM_THREADS=1 python -m benchmarks.engines.logp_mismatch --engines vllm transformers
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from benchmarks.engines.rollout_debates import debates, random_model
from benchmarks.engines.rollout_vllm import vllm_packages
from benchmarks.measurement import print_line
from debate_protocol.types import Reply
from debate_rollout.drivers import play
from debate_rollout.engine import Weights
from debate_rollout.engines import TransformersEngine, VllmEngine
from debate_rollout.engines.sampling import plain_logps

PACKAGES = vllm_packages()


def main() -> None:
    """Print two lines an engine, type and temperature."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=["vllm"], choices=("vllm", "transformers"))
    parser.add_argument("--model", help="a directory or hub id; left out, random weights")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--debates", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args()
    for dtype in options.dtypes:
        for name in options.engines:
            _measure(name, dtype, options)


def _measure(name: str, dtype: str, options: argparse.Namespace) -> None:
    model, tokenizer = _load(dtype, options)
    engine: Any = _open(name, model, tokenizer)
    # Refreshed weights: the figures are those of a training run, not of a checkpoint's loader.
    engine.load(Weights(1, model.state_dict()))
    for temperature in (1.0, 0.5):
        told = play(
            debates(options.debates, rounds=3, agents=3), engine, max_tokens=64,
            sampling={"temperature": temperature},
        )  # fmt: skip
        gaps = _gaps([turn.reply for one in told for turn in one.turns if turn.reply], model)
        settings = {
            "engine": name, "dtype": dtype, "temperature": temperature, "debates": options.debates,
            "model": options.model or f"random, {options.layers} layers of {options.hidden}",
            "tokens": len(gaps),
        }  # fmt: skip
        line = f"logp_mismatch/{name}_{dtype}_t{temperature:g}"
        for kind, value in (("max", max(gaps)), ("mean", fmean(gaps))):
            print_line(f"{line}_{kind}", [value], "nats", "lower", settings, PACKAGES)
    engine.close()


def _gaps(replies: Sequence[Reply], model: Any) -> list[float]:
    score = plain_logps(model)
    return [
        abs(q - p)
        for reply in replies
        if reply.token_ids
        for q, p in zip(
            reply.logps,
            score(reply.prompt_ids, reply.token_ids, reply.temperature),
            strict=True,
        )
    ]


def _load(dtype: str, options: argparse.Namespace) -> tuple[Any, Any]:
    if options.model is None:
        return random_model(options.hidden, options.layers, dtype)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, dtype))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device).eval(), AutoTokenizer.from_pretrained(options.model)


def _open(name: str, model: Any, tokenizer: Any) -> Any:
    if name == "transformers":
        return TransformersEngine().open(model, tokenizer)
    return VllmEngine(max_batch=32, context_window=4096, kv_cache_mib=256).open(model, tokenizer)


if __name__ == "__main__":
    main()
