"""Does training on debates help debates? SDRL-rand and SDRL-freq beside DAPO on the signs puzzle.

All begin with one start: recipes/sdrl_freq_puzzle.yaml, seed 0, up to its phase `reinforce`, so
that it has imitated right turns of debates of 3, 5 and 7 agents and of pairs until its votes were
good. From it each seed trains three arms:

- `dapo`: the same phase with single replies alone,
- `rand`, `freq`: SDRL with the two rules of pairing.

Each arm is measured at its first checkpoint (every `EVERY` steps) at which it has sampled `BUDGET`
tokens, those of questions that were left out included; DAPO, which samples less a step, also at as
many steps as `freq` has made (`dapo_steps`). Start and arms are measured on the same test
questions: single replies, debates of 3, 5 and 7 agents under three topologies (all, sparse with
degree 2, central), and on the prompts of training. T = 1 … 4 rounds of debate follow the first
turns; `maj` is T = 0. `dapo_steps` is measured on single replies, debates of 5 under `all`, and the
prompts of training.

Fixed before any of these seeds was run, from runs with other seeds (100 to 102), whose figures are
not used:

- seeds 0 to 4, each with its own order of training questions, samples and test questions; they
  share the start, as the paper's runs share a base model, so intervals say nothing of other starts;
- the figure that decides: accuracy of Debate (majority, ties in expectation), `all`, N = 5 and
  T = 2, each SDRL arm minus `dapo`, paired by seed, with a 95 % interval of Student's t over the
  seeds; beside it the same of single replies;
- the check of the mechanism, which comes first: accuracy of second turns on prompts of training,
  rule `freq`, minus that of `dapo`, is above 0.

Each policy is a line of benchmarks/data/sdrl_study.jsonl as soon as it is measured. What is done is
not done again; a run that was killed is resumed:

    python -m benchmarks.learning.sdrl_study --jobs 2 && python -m benchmarks.learning.sdrl_tables
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes/sdrl_freq_puzzle.yaml"
SINGLE = ROOT / "recipes/dapo_sdrl_puzzle.yaml"
RESULTS = ROOT / "benchmarks/data/sdrl_study.jsonl"
SEEDS = (0, 1, 2, 3, 4)
ARMS = ("dapo", "rand", "freq")
BUDGET, EVERY, MOST_STEPS = 1_000_000, 5, 1_000
QUESTIONS, SAMPLES = 64, 16
CONTRACT = {"name": "critique", "sections": ["comparison", "solution"]}
QUIET = ("tracking.wandb=false", "recording.debates=0")
WARM = ("warm_start", "all_sizes", "settle")
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "all": {},
    "sparse": {"topology": "sparse", "degree": 2},
    "central": {"topology": "central"},
}
DEBATES: dict[str, dict[str, Any]] = {
    f"{name}, N={agents}": {"num_agents": agents, "max_rounds": 5} | topology
    for name, topology in TOPOLOGIES.items()
    for agents in (5, 3, 7)
}
DECIDING = "all, N=5"


def policy(seed: int, arm: str, root: Path) -> dict[str, Any]:
    """Train an arm, unless it is one of those that need no training; return its line."""
    folder = root / f"{arm}-{seed}"
    settings = [f"seed={seed}", f"data.seed={seed}", "evaluation.questions=0", *QUIET]
    start = newest(root / "start")
    assert start is not None
    if arm == "start":
        return {"seed": seed, "arm": arm, "measures": measure(start, seed)}
    if arm == "dapo_steps":
        single, step = root / f"dapo-{seed}", reached(root / f"freq-{seed}") or 0
        return line(single, seed, arm, min(step, reached(single) or step), (DECIDING,))
    recipe = SINGLE if arm == "dapo" else RECIPE
    settings += [f"phases.{name}={{steps: 0, exit_criterion: null}}" for name in WARM]
    settings += ["model.type=pretrained", f"model.name={start}"]
    settings += ["model.dtype=float32", f"steps={MOST_STEPS}", f"checkpoint.every={EVERY}"]
    settings += ["checkpoint.keep_last=1000"]
    settings += ["debate.pairing=rand"] if arm == "rand" else []
    if reached(folder) is None:
        train(folder, recipe, settings)
    step = reached(folder)
    assert step is not None
    return line(folder, seed, arm, step)


def line(
    folder: Path, seed: int, arm: str, step: int, debates: Sequence[str] = tuple(DEBATES)
) -> dict[str, Any]:
    """Measure the policy of a step; return its line of the results."""
    found = {"seed": seed, "arm": arm, "steps": step, "sampled_tokens": sampled(folder)[step - 1]}
    measures = measure(folder / f"checkpoints/step-{step:06d}", seed, debates)
    return found | dynamics(folder, step) | {"measures": measures}


def train(folder: Path, recipe: Path, settings: Sequence[str]) -> None:
    """Train, or go on, until the run ends or has the checkpoint that is measured."""
    from debate_train.commands.cli import main as debate_train

    command = [str(recipe), *settings, "--output", str(folder)]
    has_ended = threading.Event()
    watcher = threading.Thread(target=stop_when_reached, args=(folder, has_ended))
    watcher.start()
    try:
        code = debate_train(command + (["--resume"] if folder.is_dir() else []))
    finally:
        has_ended.set()
        watcher.join()
    if code and reached(folder) is None:
        raise RuntimeError(f"{folder.name}: exit code {code}")


def stop_when_reached(folder: Path, has_ended: threading.Event) -> None:
    """Interrupt the run once; it ends its step, and what is measured is an earlier one."""
    while not has_ended.wait(1.0):
        if reached(folder) is not None:
            os.kill(os.getpid(), signal.SIGTERM)
            return


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint of a run, None where there is none."""
    return max(folder.glob("checkpoints/step-*"), default=None)


def is_whole(folder: Path) -> bool:
    """Return whether a run of the start has ended."""
    checkpoint = newest(folder)
    if checkpoint is None:
        return False
    state = json.loads((checkpoint / "state.json").read_text())
    return bool(state["phase"] == len(WARM) + 1)


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run's steps so far."""
    file = folder / "metrics.jsonl"
    if not file.is_file():
        return []
    lines = file.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def sampled(folder: Path) -> list[int]:
    """Return the tokens sampled up to each step, those of questions that were left out included."""
    found, total = [], 0.0
    for row in rows(folder):
        if "sampling/dropped_tokens" not in row:
            continue  # Of a phase that imitates.
        turns, each = row["env/all/total_turns"], row.get("env/all/ac_tokens_per_turn", 0.0)
        total += turns * each + row["sampling/dropped_tokens"]
        found.append(round(total))
    return found


def reached(folder: Path) -> int | None:
    """Return the step of the first checkpoint with so many tokens, None before it is written."""
    for step, tokens in enumerate(sampled(folder), 1):
        if step % EVERY == 0 and tokens >= BUDGET:
            return step if (folder / f"checkpoints/step-{step:06d}").is_dir() else None
    return None


def dynamics(folder: Path, steps: int) -> dict[str, Any]:
    """Return the curves of the paper's Figure 4 up to a step; nothing for single replies."""
    names = ("debate_prompts", "debate_samples", "debate_accuracy", "debate_accuracy_improvement")
    found = [row for row in rows(folder)[:steps] if "sdrl/debate_prompts" in row]
    curves = {name: [round(row.get(f"sdrl/{name}", 0), 4) for row in found] for name in names}
    return {"dynamics": curves} if found else {}


def measure(
    checkpoint: Path, seed: int, debates: Sequence[str] = tuple(DEBATES)
) -> dict[str, float]:
    """Return the figures of a policy on the test questions of a seed."""
    import torch

    from debate_protocol.forms import SelfDebate, Simultaneous
    from debate_rollout.engines import TransformersEngine
    from debate_train.data import SignsPuzzle
    from debate_train.evaluation import Debate, DirectAnswers
    from debate_train.evaluation.measuring import evaluate
    from debate_train.evaluation.settings import Setup
    from debate_train.models import PretrainedModel
    from debate_train.playing import Rollout

    speaking: Any = {"contract": CONTRACT, "style": "compact", "personas": "none"}
    speaking["max_chars_per_field"] = 60
    form = Simultaneous(history_rounds=1, conversation="rebuild", **speaking)
    chosen = [DEBATES[name] for name in debates]
    modes: dict[str, Any] = {"direct": DirectAnswers(samples=SAMPLES)}
    modes |= {f"debate-{n}": Debate(**changes) for n, changes in enumerate(chosen)}
    modes["pairs"] = Debate(debate=SelfDebate(pairing="freq", second_turns=4, **speaking))
    rollout = Rollout(engine=TransformersEngine(max_batch=768), max_tokens=288)
    loaded = PretrainedModel(name=str(checkpoint), dtype="float32").load(0)
    loaded.model.to("cuda" if torch.cuda.is_available() else "cpu")
    engine = rollout.engine.open(loaded.model, loaded.tokenizer, loaded.template_kwargs)
    questions = SignsPuzzle(largest_digit=6, seed=seed).open(seed).split("test", QUESTIONS)
    found = evaluate(Setup(form, modes, rollout, 1, seed), engine, questions, "test")
    figures = {"direct": found.found["eval/direct/accuracy"].mean}
    for n, name in enumerate(debates):
        figures |= {f"{name}, {what}": v for what, v in by_round(found.played[f"debate-{n}"])}
    figures |= {f"pairs freq, {what}": v for what, v in by_round(found.played["pairs"])}
    return {name: round(value, 5) for name, value in figures.items()}


def by_round(debates: Sequence[Any]) -> Iterator[tuple[str, float]]:
    """Yield the figures of debates that end after T = 0, 1, … rounds of debate."""
    from debate_rewards.metrics import debate_metrics

    names = {"maj@k": "majority", "decision/peer_vote": "peer vote", "correct": "one agent"}
    names |= {"decision/central": "center", "judge/accuracy": "judge"}
    for last in range(debates[0].protocol.max_rounds):
        ended = [
            replace(one, turns=tuple(turn for turn in one.turns if turn.round <= last))
            for one in debates
        ]
        found = debate_metrics(ended)
        for name, ours in names.items():
            if name in found:
                yield f"T={last}, {ours}", found[name]


def done() -> set[tuple[int, str]]:
    """Return the seeds and arms that were measured."""
    if not RESULTS.is_file():
        return set()
    return {(x["seed"], x["arm"]) for x in map(json.loads, RESULTS.read_text().splitlines())}


def one_policy(seed: int, arm: str, root: Path) -> None:
    """Train and measure a policy in this process, unless it was measured before."""
    if (seed, arm) not in done():
        found = policy(seed, arm, root)
        with RESULTS.open("ab", buffering=0) as file:
            file.write((json.dumps(found) + "\n").encode())


def in_a_process(part: str, root: Path) -> int:
    """Do a part of the study in a process of its own, with one thread."""
    command = [sys.executable, "-m", "benchmarks.learning.sdrl_study"]
    command += ["--only", part, "--output", str(root)]
    with (root / f"part-{part}.log").open("a") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, stdout=log, stderr=log, env=environment).returncode


def main() -> int:
    """Do what is missing of all seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "runs/sdrl_study")
    parser.add_argument("--jobs", type=int, default=2, help="policies at once, one thread each")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--only", help="do `start`, or a policy as in `dapo-3`, in this process")
    chosen = parser.parse_args()
    root = chosen.output.resolve()
    root.mkdir(parents=True, exist_ok=True)
    if chosen.only == "start":
        train(root / "start", RECIPE, [*QUIET, "phases.reinforce.steps=0"])
        return 0 if is_whole(root / "start") else 1
    if chosen.only is not None:
        arm, seed = chosen.only.split("-")
        one_policy(int(seed), arm, root)
        return 0
    if not is_whole(root / "start") and in_a_process("start", root):
        return 1
    with ThreadPoolExecutor(chosen.jobs) as pool:  # `dapo_steps` needs what the others trained.
        for arms in ((*ARMS, "start"), ("dapo_steps",)):
            parts = [f"{arm}-{seed}" for seed in chosen.seeds for arm in arms]
            if failed := max(pool.map(lambda part: in_a_process(part, root), parts)):
                return failed
    return 0


if __name__ == "__main__":
    sys.exit(main())
