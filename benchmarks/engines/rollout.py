"""How fast are debates played? In parts, each with lines of its own.

    OMP_NUM_THREADS=1 python -m benchmarks.engines.rollout --parts a b c d e

a: debates beside vLLM itself on the same requests, all handed over at once.
b: prompt tokens that vLLM computed beside those that differ.
c: free running beside lock-step with replies of skewed length, and what a driver costs an ask.
d: the transformers engine beside one `model.generate` for each round.
e: prompt tokens that vLLM computed with a cache that holds some of the debates: when all begin at
once, and when as many are under way as it holds.
"""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "examples"))

PARTS = ("a", "b", "c", "d", "e")


def main() -> None:
    """Print the lines of the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--debates", type=int, default=64)
    parser.add_argument("--hidden", type=int, help="width of the model: 128 for d, else 256")
    parser.add_argument("--layers", type=int, help="its layers: 2 for d, else 4")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for parts a, b, d and e")
    options = parser.parse_args()
    if {"a", "b", "e"} & {*options.parts}:
        if importlib.util.find_spec("vllm") is None:
            print("parts a, b and e are left out: vLLM is not installed", file=sys.stderr)
        else:
            from benchmarks.engines import rollout_vllm

            rollout_vllm.measure(
                options.parts, options.repeats, options.debates, _sizes(options, 256, 4)
            )
    if "c" in options.parts:
        from benchmarks.engines import rollout_pace

        rollout_pace.measure(options.repeats, options.debates)
    if "d" in options.parts:
        from benchmarks.engines import rollout_generate

        sizes = _sizes(options, 128, 2)
        rollout_generate.measure(options.repeats, max(1, options.debates // 4), sizes)


def _sizes(options: argparse.Namespace, hidden: int, layers: int) -> dict[str, Any]:
    return {
        "hidden": options.hidden or hidden,
        "layers": options.layers or layers,
        "dtype": options.dtype,
        "device": options.device,
    }


if __name__ == "__main__":
    main()
