"""Which failures does the health monitor notice? Runs that are made to fail, and runs that do well.

    python -m benchmarks.learning.health_runs --output runs/health

`good_0`, `good_1`: quickstart_three with seeds 0 and 1; the first looks at the dev split, too.
Those of `FAILURES` start where self-play of `good_0` started. `pairs_good` is the critic's phase of
acc_debate_puzzle, from the start that its earlier phases make, and the others of `PAIRS` are from
that start; `debate` and `judge_alone` are from that of judged_puzzle, whose judge stays as it is.
Runs that ended are not repeated, those that were stopped go on. Prints the alarms of each run, and
writes to `tests/train/health_rows.json` the step of each alarm, and what detectors read of the last
phase, rounded to four digits.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from benchmarks.learning import health_failures as made
from debate_train import train
from debate_train.monitoring.detectors import ROWS
from debate_train.monitoring.health import alarms_of

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "train" / "health_rows.json"
GOOD = {"good_0": ("seed=0", "evaluation.every=10"), "good_1": ("seed=1",)}


@dataclass(frozen=True, slots=True)
class Failure:
    """A phase that is made to fail: changes of its recipe, another reward, reference or pairs."""

    changes: Sequence[str] = ()
    reward: made.Reward | None = None
    within: Callable[[], AbstractContextManager[Any]] = nullcontext


LOOKS = ("evaluation.questions=256", "evaluation.every=10")
FREE = ("trainer.learning_rate=1e-3", "loss.kl.weight=0")
FAILURES: Mapping[str, Failure] = {
    "fast": Failure((*LOOKS, "trainer.learning_rate=3e-3", "loss.kl.weight=0")),
    "liars": Failure(
        (
            *LOOKS,
            "reward.type=v2_control",
            "reward.votes_from={tpr: 0.1, fpr: 0.9}",
            "reward.consensus=none",
        )
    ),
    "plus_signs": Failure((*LOOKS, *FREE), made.plus_signs),
    "ties": Failure(FREE, made.ties),
    "first_shown": Failure(FREE, made.first_shown),
    "agent_1": Failure(FREE, made.agent_1),
    "tokens": Failure((*FREE, "rollout.max_tokens=96", "steps=25"), made.tokens),
    "moving": Failure(("steps=10",), within=made.moving_reference),
    "exchanged": Failure(("steps=10",), within=made.exchanged_reference),
}
PAIRS: Mapping[str, Failure] = {
    "pairs_good": Failure(),
    "pairs_one_sided": Failure(within=made.one_sided),
    "pairs_backwards": Failure(within=made.backwards),
    "pairs_still": Failure(("trainer.learning_rate=1e-12", "steps=20")),
    "pairs_curt": Failure(("trainer.learning_rate=5e-4",), within=made.curt),
    "pairs_fast": Failure(("trainer.learning_rate=1e-2",)),
}
JUDGED: Mapping[str, Failure] = {
    "debate": Failure(("steps=60",)),
    "judge_alone": Failure(("steps=60", "debate.opponent=none", "debate.max_rounds=2")),
}
READ = (
    *(row.metric for row in ROWS.values()),
    *("eval/flips/right_to_wrong", "eval/flips/wrong_to_right"),
    *(f"eval/accuracy/round_{number}" for number in range(5)),
    *("offline/chosen_right_share", "offline/rejected_right_share"),
    *("offline/chosen_ok_share", "offline/actor_right_share"),
    *("offline/kept/toward_right", "offline/kept/away_from_wrong", "offline/kept/changed"),
    *("eval/direct/accuracy", "eval/direct/maj@2", "eval/direct/maj@4"),
    *("eval/direct/tokens/answer", "train/tokens/answer"),
    *("eval/start/learned/accuracy", "eval/start/opponent/accuracy"),
    *(f"judge/wins/agent_{agent}" for agent in range(3)),
    *("reward/accuracy", "reward/chance", "reward/total", "optim/grad_norm"),
)


def trained(recipe: Path, output: Path, failure: Failure) -> list[Mapping[str, Any]]:
    """Return the metrics of a run, which is begun or gone on with; one that ended does nothing."""
    with failure.within():
        train(
            recipe,
            failure.changes,
            output=output,
            resume=(output / "checkpoints").exists(),
            reward=failure.reward,
        )
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    for path in (output / "evaluations").glob("start-*.json"):  # What keep_if measured.
        evaluation = json.loads(path.read_text())
        means = {}
        for figure, by_question in evaluation["values"].items():
            known = [value for value in by_question.values() if value is not None]
            if known:
                means[figure] = fmean(known)
        rows.insert(0, {"step": evaluation["step"], "phase": rows[-1]["phase"], **means})
    return rows


def self_play(output: Path, good: Path) -> Path:
    """Write the recipe of self-play of three agents from the weights that it started with."""
    recipe = yaml.safe_load((ROOT / "recipes" / "quickstart_three.yaml").read_text())
    del recipe["phases"]
    start = min((good / "checkpoints").glob("step-*"))
    recipe["model"] = {"type": "pretrained", "name": str(start.resolve()), "dtype": "float32"}
    recipe |= {"steps": 40, "evaluation": {"questions": 0}, "tracking": {"wandb": False}}
    # Its alarm counts, and the run goes on to what other detectors see.
    recipe["health"] = {"detectors": {"no_signal": {"stops": False}}}
    path = output / "self_play.yaml"
    path.write_text("# Self-play of quickstart_three, from its start.\n" + yaml.safe_dump(recipe))
    return path


def critic(output: Path) -> Path:
    """Train up to the critic's phase of acc_debate_puzzle; write the recipe of that phase alone."""
    path, recipe = _last_phase(output, "acc_debate_puzzle", "pairs", 2)
    recipe["evaluation"] |= {"every": 20}
    path.write_text(json.dumps(recipe))
    return path


def before_a_judge(output: Path) -> Path:
    """Train the start of judged_puzzle; write the recipe of its debates, whose judge is frozen."""
    path, recipe = _last_phase(output, "judged_puzzle", "judged", 1)
    recipe["debate"]["roles"] = {"judge": {"train": False, "policy": "start"}}
    recipe["evaluation"] = {"questions": 0}
    path.write_text(json.dumps(recipe))
    return path


def _last_phase(output: Path, name: str, called: str, count: int) -> tuple[Path, dict[str, Any]]:
    """Train the first phases of a recipe; return the next one from there, and where to write it."""
    recipe = yaml.safe_load((ROOT / "recipes" / f"{name}.yaml").read_text())
    phases, start = recipe.pop("phases"), output / f"{called}_start"
    recipe |= {"tracking": {"wandb": False}, "recording": {"debates": 0}}
    recipe["evaluation"].pop("before", None)  # It names a phase that is left out here.
    path = output / f"{called}.json"
    first = {one: phases[one] for one in list(phases)[:count]}
    path.write_text(json.dumps(recipe | {"phases": first}))
    trained(path, start, Failure())
    weights = max((start / "checkpoints").glob("step-*"))
    model = {"type": "pretrained", "name": str(weights.resolve()), "dtype": "float32"}
    own = list(phases)[count]
    return path, recipe | {"model": model, "phases": {own: phases[own]}}


def alarms_in(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Print the step of each alarm of a run, by detector."""
    alarms = {alarm["detector"]: alarm["step"] for alarm in alarms_of(rows)}
    print(name, json.dumps(alarms), flush=True)
    return alarms


def figures_read(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """List what detectors read of a run's last phase: names, then a list for each row."""
    last = [row for row in rows if row["phase"] == rows[-1]["phase"]]
    columns = ["step", *(n for n in dict.fromkeys(READ) if any(n in row for row in last))]
    return [columns, *([_short(row.get(column)) for column in columns] for row in last)]


def write_fixtures(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write alarms and figures of runs, one row a line."""
    alarms = {name: alarms_in(name, rows) for name, rows in runs.items()}
    parts = [f'"alarms": {json.dumps(alarms)}']
    for name, rows in runs.items():
        table = figures_read(rows)
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in table)
        parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
    FIXTURES.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _short(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    """Run all, one after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "health")
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    quickstart = ROOT / "recipes" / "quickstart_three.yaml"
    runs = {}
    for name, changes in GOOD.items():
        runs[name] = trained(quickstart, output / name, Failure(changes))
    recipe = self_play(output, output / "good_0")
    for name, failure in FAILURES.items():
        runs[name] = trained(recipe, output / name, failure)
    for make, failures in ((critic, PAIRS), (before_a_judge, JUDGED)):
        recipe = make(output)
        for name, failure in failures.items():
            runs[name] = trained(recipe, output / name, failure)
    write_fixtures(runs)


if __name__ == "__main__":
    main()
