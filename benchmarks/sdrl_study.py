"""Does training on debates help debates? SDRL-rand and SDRL-freq beside DAPO on the signs puzzle.

For each seed one start: recipes/sdrl_freq_puzzle.yaml up to its phase `reinforce`, so that the
start has imitated right turns of debates of 3, 5 and 7 agents and of pairs. From it three arms:

- `dapo`: the same phase with single replies alone,
- `rand`, `freq`: SDRL with the two rules of pairing.

Each arm is measured at its first checkpoints (every `EVERY` steps) at which it has sampled as many
tokens as `BUDGETS` says, those of questions that were left out included. Start and arms are
measured on the same test questions: single replies, debates of 5 agents under three topologies
(all, sparse with degree 2, central), of 3 and of 7 agents under `all`, and on the prompts of
training. T rounds of debate follow the first turns; `maj` is T = 0.

Fixed before any of these seeds was run, from one run with another seed (100):

- seeds 0 to 4, each with its own weights, training questions and test questions;
- the figure that decides: accuracy of Debate (majority, ties in expectation), `all`, N = 5 and
  T = 2, and beside it the accuracy of single replies: each arm minus `dapo`, paired by seed, with
  a 95 % interval of Student's t over the seeds;
- the check of the mechanism: accuracy of second turns on prompts of training, rule `freq`, minus
  that of `dapo`, is above 0.

The second budget was added when seeds 0 and 1 had been measured at the first, which is about 14
steps of SDRL: training curves were still flat. All else stayed.

Each policy is a line of benchmarks/data/sdrl_study.jsonl as soon as it is measured. What is done is
not done again; a run that was killed is resumed:

    python benchmarks/sdrl_study.py --jobs 2 && python benchmarks/sdrl_tables.py
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

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "recipes/sdrl_freq_puzzle.yaml"
RESULTS = ROOT / "benchmarks/data/sdrl_study.jsonl"
SEEDS = (0, 1, 2, 3, 4)
ARMS = ("dapo", "rand", "freq")
BUDGETS, EVERY, MOST_STEPS = (100_000, 400_000), 2, 400
QUESTIONS, SAMPLES = 48, 8
CONTRACT = {"name": "critique", "sections": ["comparison", "solution"]}
SINGLE = """\
extends: {recipe}
phases:
  reinforce:
    debate:
      type: direct
      contract: {{name: critique, sections: [comparison, solution]}}
      style: compact
      personas: none
      gate_after: [0]
    rollout: {{debates_per_question: 8, select: {{type: informative, group: question}}}}
    advantage: {{leave_out_zeros: []}}
"""
WARM = ("warm_3", "warm_5", "warm_7", "warm_2")
DEBATES: dict[str, dict[str, Any]] = {
    "all, N=5": {"num_agents": 5, "max_rounds": 5},
    "all, N=3": {"num_agents": 3, "max_rounds": 2},
    "all, N=7": {"num_agents": 7, "max_rounds": 2},
    "sparse, N=5": {"num_agents": 5, "max_rounds": 3, "topology": "sparse", "degree": 2},
    "central, N=5": {"num_agents": 5, "max_rounds": 3, "topology": "central"},
}


def policies(seed: int, arm: str, root: Path) -> Iterator[dict[str, Any]]:
    """Train an arm; yield a line for each of its policies that is measured."""
    folder = root / f"{arm}-{seed}"
    settings = [f"seed={seed}", f"data.seed={seed}", "tracking.wandb=false"]
    settings += ["evaluation.questions=0", "recording.debates=0"]
    if arm == "start":
        if not is_whole(folder):
            train(folder, RECIPE, [*settings, "phases.reinforce.steps=0", "checkpoint.every=50"])
        checkpoint = newest(folder)
        assert checkpoint is not None
        yield {"seed": seed, "arm": arm, "budget": 0, "measures": measure(checkpoint, seed)}
        return
    recipe = RECIPE
    if arm == "dapo":
        recipe = root / f"single-{seed}.yaml"
        recipe.write_text(SINGLE.format(recipe=os.path.relpath(RECIPE, root)))
    settings += [f"phases.{name}.steps=0" for name in WARM]
    settings += ["model.type=pretrained", f"model.name={newest(root / f'start-{seed}')}"]
    settings += ["model.dtype=float32", f"steps={MOST_STEPS}", f"checkpoint.every={EVERY}"]
    settings += ["checkpoint.keep_last=1000"]
    settings += ["debate.pairing=rand"] if arm == "rand" else []
    if reached(folder, BUDGETS[-1]) is None:
        train(folder, recipe, settings)
    for budget in BUDGETS:
        step = reached(folder, budget)
        assert step is not None
        line = {"seed": seed, "arm": arm, "budget": budget, "steps": step}
        if (seed, arm, budget) not in done():
            line["sampled_tokens"] = sampled(folder)[step - 1]
            measures = measure(folder / f"checkpoints/step-{step:06d}", seed)
            yield line | dynamics(folder, step) | {"measures": measures}


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
    if code and reached(folder, BUDGETS[-1]) is None:
        raise RuntimeError(f"{folder.name}: exit code {code}")


def stop_when_reached(folder: Path, has_ended: threading.Event) -> None:
    """Interrupt the run once; it ends its step, and what is measured is an earlier one."""
    while not has_ended.wait(1.0):
        if reached(folder, BUDGETS[-1]) is not None:
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


def reached(folder: Path, budget: int) -> int | None:
    """Return the step of the first checkpoint with so many tokens, None before it is written."""
    for step, tokens in enumerate(sampled(folder), 1):
        if step % EVERY == 0 and tokens >= budget:
            return step if (folder / f"checkpoints/step-{step:06d}").is_dir() else None
    return None


def dynamics(folder: Path, steps: int) -> dict[str, Any]:
    """Return the curves of the paper's Figure 4 up to a step; nothing for single replies."""
    names = ("debate_prompts", "debate_samples", "debate_accuracy", "debate_accuracy_improvement")
    found = [row for row in rows(folder)[:steps] if "sdrl/debate_prompts" in row]
    curves = {name: [round(row.get(f"sdrl/{name}", 0), 4) for row in found] for name in names}
    return {"dynamics": curves} if found else {}


def measure(checkpoint: Path, seed: int) -> dict[str, float]:
    """Return the figures of a policy on the test questions of a seed."""
    from debate_protocol.forms import SelfDebate, Simultaneous
    from debate_rollout.engines import TransformersEngine
    from debate_train.data import SignsPuzzle
    from debate_train.evaluation import Debate, DirectAnswers
    from debate_train.evaluation.measuring import evaluate
    from debate_train.evaluation.settings import Setup
    from debate_train.models import PretrainedModel
    from debate_train.playing.rollout_settings import Rollout

    speaking: Any = {"contract": CONTRACT, "style": "compact", "personas": "none"}
    form = Simultaneous(history_rounds=1, conversation="rebuild", **speaking)
    modes: dict[str, Any] = {"direct": DirectAnswers(samples=SAMPLES)}
    modes |= {f"debate-{n}": Debate(**changes) for n, changes in enumerate(DEBATES.values())}
    modes["pairs"] = Debate(debate=SelfDebate(pairing="freq", second_turns=4, **speaking))
    rollout = Rollout(engine=TransformersEngine(max_batch=768), max_tokens=208)
    loaded = PretrainedModel(name=str(checkpoint), dtype="float32").load(0)
    engine = rollout.engine.open(loaded.model, loaded.tokenizer, loaded.template_kwargs)
    questions = SignsPuzzle(num_digits=3, seed=seed).open(seed).split("test", QUESTIONS)
    found = evaluate(Setup(form, modes, rollout, 1, seed), engine, questions, "test")
    figures = {"direct": found.found["eval/direct/accuracy"].mean}
    for n, name in enumerate(DEBATES):
        figures |= {f"{name}, {what}": v for what, v in by_round(found.played[f"debate-{n}"])}
    figures |= {f"pairs freq, {what}": v for what, v in by_round(found.played["pairs"])}
    return {name: round(value, 5) for name, value in figures.items()}


def by_round(debates: Sequence[Any]) -> Iterator[tuple[str, float]]:
    """Yield the figures of debates that end after T = 0, 1, … rounds of debate."""
    from debate_rewards.metrics.debate_metrics import debate_metrics

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


def done() -> set[tuple[int, str, int]]:
    """Return the seeds, arms and budgets that were measured."""
    if not RESULTS.is_file():
        return set()
    lines = RESULTS.read_text().splitlines()
    return {(line["seed"], line["arm"], line["budget"]) for line in map(json.loads, lines)}


def one_seed(seed: int, root: Path) -> None:
    """Train and measure what a seed still lacks, in this process."""
    wanted = [("start", 0), *((arm, BUDGETS[-1]) for arm in ARMS)]
    for arm, last in wanted:
        if (seed, arm, last) not in done():
            for line in policies(seed, arm, root):
                with RESULTS.open("ab", buffering=0) as file:
                    file.write((json.dumps(line) + "\n").encode())


def in_a_process(seed: int, root: Path) -> int:
    """Do a seed in a process of its own, with one thread."""
    command = [sys.executable, __file__, "--only", str(seed), "--output", str(root)]
    with (root / f"seed-{seed}.log").open("a") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, stdout=log, stderr=log, env=environment).returncode


def main() -> int:
    """Do what is missing of all seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "runs/sdrl_study")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at once, one thread each")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--only", type=int, help="do this seed in this process")
    chosen = parser.parse_args()
    root = chosen.output.resolve()
    root.mkdir(parents=True, exist_ok=True)
    if chosen.only is not None:
        one_seed(chosen.only, root)
        return 0
    with ThreadPoolExecutor(chosen.jobs) as pool:
        return max(pool.map(lambda seed: in_a_process(seed, root), chosen.seeds))


if __name__ == "__main__":
    sys.exit(main())
