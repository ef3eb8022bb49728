"""How long do rewards of votes take on one debate of many agents, beside an earlier commit?

One CoNL conversation in which every agent ranks all others blind and again in the end, and
criticizes each of them; for v2 the same ballots in two rounds. The clock is the process's own
time. With --before, the sources of that commit are unpacked into a temporary folder and measured in
a process of their own right after each measurement of ours; the scores of both must be equal.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.many_agents --agents 16 64 --before b2e1b730
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from itertools import combinations
from pathlib import Path
from typing import Any

from debate_protocol.forms import Conl
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards import V2, ConlReward
from debate_rewards.metrics import debate_metrics

MOST_DIGITS = 9


def conversation(agents: int, seed: int) -> Transcript:
    """Return a CoNL conversation with complete rankings, drawn by seed."""
    draw = random.Random(seed)

    def speak(request: TurnRequest) -> Reply:
        if request.round in (0, 2):
            return Reply("<solution>\\boxed{1}</solution>")
        others = [agent for agent in range(agents) if agent != request.agent]
        lines = [f"Agent {a} {draw.choice('>=<')} Agent {b}" for a, b in combinations(others, 2)]
        text = "<comparison>" + "\n".join(lines) + "</comparison>"
        if request.round == 1:
            critiques = " ".join(f"Agent {agent}: no." for agent in others)
            text += f"<evaluation>{critiques}</evaluation>"
        return Reply(text)

    form = Conl(personas="none", num_agents=agents)
    run = form.start(Question("q", "?", "1", {"kind": "number"}), seed=0)
    requests: Any = next(run)
    try:
        while True:
            requests = run.send([speak(request) for request in requests])
    except StopIteration as end:
        transcript: Transcript = end.value
        return transcript


def measure(agents: int, seed: int) -> dict[str, dict[str, Any]]:
    """Return seconds and values of each reward, and of all figures, on one conversation."""
    transcript = conversation(agents, seed)
    works: dict[str, Any] = {
        "conl": ConlReward(),
        "conl_bradley_terry": ConlReward(values="bradley_terry"),
        "v2": V2(),
        "v2_peer_prediction": V2(consensus="peer_prediction"),
    }
    measured: dict[str, dict[str, Any]] = {}
    for name, reward in works.items():
        start = time.process_time()
        (score,) = reward([transcript])
        seconds = time.process_time() - start
        values = [
            c.value if c.value is None else round(c.value, MOST_DIGITS) for c in score.credits
        ]
        measured[name] = {"seconds": seconds, "values": values}
    start = time.process_time()
    figures = debate_metrics([transcript])
    seconds = time.process_time() - start
    rounded = sorted((name, round(value, MOST_DIGITS)) for name, value in figures.items())
    measured["stats"] = {"seconds": seconds, "values": [list(figure) for figure in rounded]}
    return measured


def measure_in_process(agents: int, seed: int, sources: Path | None) -> dict[str, dict[str, Any]]:
    """Return `measure` of a new process, with the packages of a folder where one is given."""
    environment = dict(os.environ)
    if sources is not None:
        folders = sorted(map(str, sources.glob("packages/*/src")))
        environment["PYTHONPATH"] = os.pathsep.join(folders)
    command = [sys.executable, "-m", "benchmarks.speed.many_agents", "--measure", str(agents)]
    done = subprocess.run(
        [*command, "--seed", str(seed)], env=environment, capture_output=True, text=True, check=True
    )
    measured: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Print one line for each reward and number of agents."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--before", metavar="COMMIT", help="measured beside, for the ratio")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure, options.seed)))
        return
    from benchmarks.measurement import print_line

    with tempfile.TemporaryDirectory() as folder:
        if options.before:
            archive = ["git", "archive", options.before, "packages"]
            packed = subprocess.run(archive, capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=packed, check=True)
        for agents in options.agents:
            seconds: dict[str, list[float]] = {}
            ratios: dict[str, list[float]] = {}
            for _ in range(options.repeats):
                ours = measure_in_process(agents, options.seed, None)
                theirs = ours
                if options.before:
                    theirs = measure_in_process(agents, options.seed, Path(folder))
                for name, measured in ours.items():
                    if measured["values"] != theirs[name]["values"]:
                        raise SystemExit(f"{name}, {agents} agents: values differ")
                    seconds.setdefault(name, []).append(measured["seconds"])
                    ratio = theirs[name]["seconds"] / measured["seconds"]
                    ratios.setdefault(name, []).append(ratio)
            settings = {"agents": agents, "seed": options.seed, "clock": "process time"}
            packages = ("debate-protocol", "debate-rewards")
            for name in seconds:
                title = f"many_agents/{name}"
                print_line(f"{title}/seconds", seconds[name], "s", "lower", settings, packages)
                if options.before:
                    beside = settings | {"before": options.before}
                    print_line(f"{title}/ratio", ratios[name], "ratio", "higher", beside, packages)


if __name__ == "__main__":
    main()
