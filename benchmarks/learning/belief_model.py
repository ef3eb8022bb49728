"""How many agent-rounds a second does the belief model of SDRL simulate on one core?

5 agents who hear all others, 3 answers, 4 rounds after the first; an agent-round is one answer of
one agent. The clock is the process's own time, so that neighbours on the machine count little.

    OMP_NUM_THREADS=1 python -m benchmarks.learning.belief_model
"""

import argparse
import time

import numpy as np

from benchmarks.measurement import print_line
from debate_studies.belief_model import FindsRight, Lift, lemma_e1, neighbours, simulate, symmetric

AGENTS, ROUNDS = 5, 4
CRITIQUES = {"neutral": Lift(1, 0), "finds_right": FindsRight(1, 0.6)}


def main() -> None:
    """Print one line for each critique and way to draw answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--debates", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    for name, critique in CRITIQUES.items():
        model = symmetric((2, 1, 1), neighbours("all", AGENTS), 0.5, critique)
        for through_theta in (False, True):
            found = []
            for _ in range(options.repeats + 1):
                start = time.process_time()
                simulated = simulate(
                    model, ROUNDS, options.debates, rng, through_theta=through_theta
                )
                seconds = time.process_time() - start
                found.append(options.debates * AGENTS * (ROUNDS + 1) / seconds)
                away = abs((simulated.beliefs[1:] - lemma_e1(model, simulated)).mean())
                if away > 0.01:
                    raise SystemExit(f"{name}: beliefs are {away:.3f} away from Lemma E.1")
            way = "through_theta" if through_theta else "from_mean"
            settings = vars(options) | {"agents": AGENTS, "rounds": ROUNDS, "clock": "process time"}
            packages = ("debate-train", "numpy")
            print_line(f"belief_model/{name}/{way}", found[1:], "1/s", "higher", settings, packages)


if __name__ == "__main__":
    main()
