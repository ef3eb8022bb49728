"""Does ACC-Debate help an actor and its critic? On the signs puzzle, beside what else could.

All begin with one start: recipes/acc_debate_puzzle.yaml, seed 0, up to its phase `critic`, which
imitates demonstrated exchanges until the critic's checks bring debates on, and then settles. From
it each seed trains:

- `team`: ACC-Debate, a low-rank adapter for each side on the frozen start: critic, then actor
  (ACC), then both a second time (ACC+),
- `sft`: the actor's adapter imitates the start's own right first answers for as many steps as both
  phases of ACC together; its critic is the start,
- `society`: two equals who read each other's answers. The start knows no such prompts, so all its
  weights imitate demonstrated turns of such debates first.

Measured on all test questions in debates of 5 rounds: the start, each arm, and of ACC and ACC+ each
trained side with the other as the start has it. Direct replies give the majority of 9, which costs
as many turns as a debate.

Fixed before any figure of these seeds was seen:

- seeds 0 to 2, each with its own order of training questions and samples. They share the start and
  the test questions, so intervals over seeds say nothing of other starts;
- the checks of the mechanism come first: states after replies guided to the right answer are worth
  more than natural ones and these more than those guided to a wrong one, and held-out preference
  accuracy is above one half;
- the figure that decides: accuracy of the actor's fifth answer, ACC minus the untrained start and
  ACC minus SFT, paired by seed, with a 95 % interval of Student's t over the seeds; beside it
  intervals over questions and seeds, and the paired test over questions. All else is secondary;
- rates: one run from another start (seed 102) with 1e-3 for both adapters lowered what natural
  states are worth. The rates here are a fifth and a tenth of it; no others were tried.

Each policy is a line of benchmarks/data/acc_study.jsonl as soon as it is measured. What is done is
not done again; a run that was killed is resumed:

    python -m benchmarks.learning.acc_study --jobs 2 && python -m benchmarks.learning.acc_tables
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "recipes/acc_debate_puzzle.yaml"
RESULTS = ROOT / "benchmarks/data/acc_study.jsonl"
SEEDS = (0, 1, 2)
PARTS = ("team", "sft", "society")
ROUNDS, RUNS, REPLIES = 5, 2, 9
STEPS = 40
"""Of one phase of ACC-Debate."""
QUIET = ("tracking.wandb=false", "recording.debates=0")
WARM = ("warm_start", "settle")
EXCHANGE: dict[str, Any] = {"type": "actor_critic", "contract": "answer_line", "style": "compact"}
SPOKEN = {name: {"adapter": name} for name in ("actor", "critic")}
OF_START: dict[str, Any] = {"policy": "start", "adapter": None}
PAIRS = {"type": "guided_pairs", "questions": 320, "held_out": 0.15, "batch_size": 32}
RATES = {
    "critic": {"learning_rate": 2.0e-4, "schedule": "linear", "warmup_steps": 6},
    "actor": {"learning_rate": 1.0e-4, "schedule": "linear", "warmup_steps": 6},
}
KEPT = ("offline/value_", "offline/kept/", "offline/left_out/", "offline/margin", "held_out/")
SHARES = tuple(f"offline/{one}_share" for one in ("chosen_right", "chosen_ok", "actor_right"))
FIGURES = ("direct/accuracy", "replies/accuracy", "format")
SOCIETY: dict[str, Any] = {
    "type": "simultaneous",
    "num_agents": 2,
    "max_rounds": 2,
    "history_rounds": 1,
    "conversation": "rebuild",
    "contract": {"name": "critique", "sections": ["comparison", "solution"]},
    "style": "compact",
    "personas": "none",
}

SFT: dict[str, Any] = {
    "steps": 2 * STEPS,
    "debate": {
        **EXCHANGE,
        "type": "direct",
        "personas": "none",
        "roles": {"debater": {"adapter": "actor"}},
    },
    "rollout": {"debates_per_question": 8},
    "offline": {
        "type": "chosen_replies",
        "round": "first",
        "questions": 512,
        "batch_size": 32,
    },
    "reward": {"type": "verifiable"},
    "loss": {"type": "sft"},
    "trainer": RATES["actor"],
}


def base() -> dict[str, Any]:
    """Return the recipe that the study is about."""
    found: dict[str, Any] = yaml.safe_load(RECIPE.read_text())
    return found


def start_recipe() -> dict[str, Any]:
    """Return the recipe of the start: that of the study up to its phase `critic`."""
    whole = base()
    del whole["evaluation"]["before"]
    return whole | {"phases": {one: whole["phases"][one] for one in WARM}}


def arm_recipe(arm: str, start: Path) -> dict[str, Any]:
    """Return the recipe that trains an arm from a start and measures it."""
    adapters = {"rank": 16, "alpha": 32, "adapters": list(SPOKEN)}
    recipe = base() | {
        "name": f"acc_study_{arm}",
        "model": {"type": "pretrained", "name": str(start), "dtype": "float32", "lora": adapters},
        "evaluation": {"debate": {**EXCHANGE, "max_rounds": ROUNDS, "roles": SPOKEN}},
        "phases": {},
    }
    phases = recipe["phases"]
    if arm == "team":
        recipe["debate"] = recipe["debate"] | {"roles": SPOKEN}
        recipe["evaluation"]["modes"] = {
            f"{kept}_alone": {
                "type": "debate",
                "debate": {**EXCHANGE, "max_rounds": ROUNDS, "roles": {**SPOKEN, other: OF_START}},
            }
            for kept, other in (("actor", "critic"), ("critic", "actor"))
        }
        recipe["evaluation"]["modes"]["replies"] = {"type": "direct", "samples": REPLIES}
        frozen = {"critic": "actor", "actor": "critic"}
        for name in ("critic", "actor", "critic_again", "actor_again"):
            role = name.removesuffix("_again")
            kept = {**SPOKEN[frozen[role]], "train": False}
            phases[name] = {
                "steps": STEPS,
                "debate": {"roles": {frozen[role]: kept}},
                "offline": {**PAIRS, "role": role},
                "trainer": RATES[role],
            }
        return recipe
    if arm == "sft":
        phases[arm] = SFT
        return recipe
    del recipe["model"]["lora"]
    recipe["rollout"] = recipe["rollout"] | {"max_tokens": 64}  # Checks of two answers.
    recipe["evaluation"]["debate"] = {**SOCIETY, "max_rounds": ROUNDS}
    phases[arm] = {
        "steps": 100,
        "data": {"batch_size": 24},
        "debate": {**SOCIETY, "max_rounds": ROUNDS},
        "rollout": {"engine": {"type": "demonstrations"}},
        "reward": {"type": "verifiable", "values": "zero_one"},
        "advantage": {"streams": {"generator": {"sections": {"solution": 3, "comparison": 1}}}},
        "loss": {"type": "sft"},
        "trainer": {"learning_rate": 3.0e-3, "schedule": "linear", "warmup_steps": 5},
    }
    phases["speak"] = {"steps": 0}  # The policy speaks with the recipe's engine, not by rule.
    return recipe


def train(folder: Path, recipe: Path, settings: Sequence[str]) -> None:
    """Train, or go on; what has ended is left as it is."""
    from debate_train.commands.cli import main as debate_train

    if (folder / "results.json").is_file():
        return
    command = [str(recipe), *settings, *QUIET, "--output", str(folder)]
    if code := debate_train(command + (["--resume"] if folder.is_dir() else [])):
        raise RuntimeError(f"{folder.name}: exit code {code}")


def measured(recipe: Path, policies: Sequence[str], folder: Path, seed: int) -> dict[str, Any]:
    """Return what `debate-eval` finds of policies, by their names: figures, and by question."""
    from debate_train.commands.evaluate import main as debate_eval

    command = [str(recipe), f"seed={seed}", f"evaluation.runs={RUNS}", *QUIET]
    command += ["--questions", "1000"]
    for policy in policies:
        command += ["--policy", policy]
    if not (folder / "results.json").is_file():
        again = ["--resume"] if folder.is_dir() else []
        if code := debate_eval([*command, "--output", str(folder), *again]):
            raise RuntimeError(f"{folder.name}: exit code {code}")
    found: dict[str, Any] = {}
    for file in (folder / "policies").glob("*.json"):
        policy = json.loads(file.read_text())
        for figure, values in policy["values"].items():
            name = figure.removeprefix("eval/")
            if "accuracy/round_" in name or name in FIGURES:
                own = {question: round(value, 4) for question, value in values.items()}
                found.setdefault(policy["name"], {})[name] = own
    return found


def policies(seed: int, part: str, root: Path) -> list[dict[str, Any]]:
    """Train and measure what a part of a seed gives; return its lines."""
    start, folder = root / "start", root / f"{part}-{seed}"
    seeds = [f"seed={seed}"]
    recipe = root / "start.json"
    recipe.write_text(json.dumps(start_recipe()))
    train(start, recipe, ["seed=0"])
    recipe = root / f"{part}-{seed}.json"
    recipe.write_text(json.dumps(arm_recipe(part, newest(start))))
    every = ["evaluation.questions=0", "checkpoint.keep_last=1000", f"checkpoint.every={STEPS}"]
    train(folder, recipe, [*seeds, *every])
    names = [f"{part}={folder}"]
    if part == "team":
        names = ["start=recipe", f"acc={folder}@{2 * STEPS}", f"plus={folder}"]
    found = measured(recipe, names, root / f"{part}-{seed}-measured", seed)
    lines = []
    for name, figures in found.items():
        ids = sorted(figures["accuracy/round_0"])
        columns = {what: [by[q] for q in ids] for what, by in figures.items()}
        line = {"seed": seed, "arm": name, "questions": ids, "figures": columns}
        if name == "start":
            line["steps"] = rows(start)[-1]["step"]
        elif name != "plus":
            line["phases"] = phases_of(folder)
        lines.append(line)
    return lines


def newest(folder: Path) -> Path:
    """Return the newest checkpoint of a run."""
    return max(folder.glob("checkpoints/step-*"))


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def phases_of(folder: Path) -> dict[str, dict[str, float]]:
    """Return what each phase says of its examples, and of the pairs that it held out."""
    found: dict[str, dict[str, float]] = {}
    for row in rows(folder):
        own = found.setdefault(row["phase"], {})
        own |= {k: round(v, 4) for k, v in row.items() if k.startswith((*KEPT, *SHARES))}
    return found


def done() -> set[tuple[int, str]]:
    """Return the seeds and arms that were measured."""
    if not RESULTS.is_file():
        return set()
    return {(x["seed"], x["arm"]) for x in map(json.loads, RESULTS.read_text().splitlines())}


def one_seed(seed: int, root: Path) -> None:
    """Do what is missing of a seed in this process."""
    for part in PARTS:
        if (seed, "plus" if part == "team" else part) not in done():
            lines = policies(seed, part, root)
            with RESULTS.open("ab", buffering=0) as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines).encode())


def in_a_process(seed: int, root: Path) -> int:
    """Do a seed in a process of its own, with one thread."""
    command = [sys.executable, "-m", "benchmarks.learning.acc_study"]
    command += ["--only", str(seed), "--output", str(root)]
    with (root / f"seed-{seed}.log").open("a") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(command, stdout=log, stderr=log, env=environment).returncode


def main() -> int:
    """Do what is missing of all seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "runs/acc_study")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at once, one thread each")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--only", type=int, help="do this seed, in this process")
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
