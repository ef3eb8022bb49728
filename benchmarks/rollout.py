"""How fast are debates played? In parts, each with lines of its own.

    OMP_NUM_THREADS=1 python benchmarks/rollout.py --parts c d

c: free running beside lock-step with replies of skewed length, and what a driver costs an ask.
d: the transformers engine beside one `model.generate` for each round.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "examples"))

PARTS = ("c", "d")


def main() -> None:
    """Print the lines of the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--debates", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128, help="width of the model of part d")
    parser.add_argument("--layers", type=int, default=2, help="its layers")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--device", default="cpu", help="cpu or cuda, for part d")
    options = parser.parse_args()
    if "c" in options.parts:
        import rollout_pace

        rollout_pace.measure(options.repeats, options.debates)
    if "d" in options.parts:
        import rollout_generate

        sizes = {key: getattr(options, key) for key in ("hidden", "layers", "dtype", "device")}
        rollout_generate.measure(options.repeats, max(1, options.debates // 4), sizes)


if __name__ == "__main__":
    main()
