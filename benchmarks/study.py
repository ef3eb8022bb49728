"""Run a study: arms of recipes over seeds, as a YAML file says, and print and write its tables.

A file of benchmarks/studies/ names starts (runs of the phases before), arms (runs from them),
seeds, measures and what is compared; its header says what was decided before the first run. For
each seed the starts are trained once and shared by all arms. A finished run is a line of
benchmarks/data/NAME.jsonl; what has a line is not run again, and a run that was killed goes on
from its last checkpoint. Seeds run beside each other, with one thread each; all that a seed needs
runs in the order of the file.

A start that misses an exit criterion ends its seed: each arm from it has the start's measures
before and after, so that it counts with a gain of 0.

Tables and plot are written to docs/studies/NAME.md and NAME.svg, too.

    python benchmarks/study.py benchmarks/studies/quickstart_five_priced.yaml --jobs 2
    python benchmarks/study.py benchmarks/studies/quickstart_five_priced.yaml --tables
"""

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # The folder of this package.

from benchmarks.study_file import Study, read_study  # noqa: E402
from benchmarks.study_tables import page, tables  # noqa: E402

Train = Callable[[Sequence[str], Path], int]
"""From the arguments of `debate-train` and a log to its exit code."""
MOST_POINTS = 120
"""Of a curve that is kept; longer ones are thinned out evenly."""


class Lines:
    """The finished runs of a study, a line each; an unfinished last line does not count."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> list[dict[str, Any]]:
        """Return the lines."""
        if not self.file.is_file():
            return []
        lines = self.file.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def done(self) -> set[tuple[str, int]]:
        """Return the arm and the seed of each."""
        return {(line["arm"], line["seed"]) for line in self.read()}

    def mend(self) -> None:
        """Cut off a line that was being written when the process was killed."""
        if self.file.is_file():
            whole, _, torn = self.file.read_bytes().rpartition(b"\n")
            if torn:
                self.file.write_bytes(whole + b"\n" if whole else b"")

    def add(self, line: dict[str, Any]) -> None:
        """Write a line at the end, at once."""
        with self.file.open("ab", buffering=0) as file:
            file.write((json.dumps(line) + "\n").encode())


def in_a_process(arguments: Sequence[str], log: Path, variables: Mapping[str, str] = {}) -> int:
    """Run `debate-train` with one thread and these further variables of the environment."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"} | variables
    command = [sys.executable, "-m", "debate_train", *arguments]
    with log.open("a", encoding="utf-8") as file:
        return subprocess.run(command, stdout=file, stderr=file, env=environment).returncode


class Runs:
    """The runs of a study below one folder.

    Args:
        study: What is run.
        root: Where run directories and logs go.
        lines: Where results go.
        train: Runs `debate-train`.
    """

    def __init__(self, study: Study, root: Path, lines: Lines, train: Train = in_a_process) -> None:
        self.study, self.root, self.lines, self.train = study, root, lines, train

    def one_seed(self, seed: int, arms: Sequence[str] | None = None) -> None:
        """Do what a seed still lacks, of all arms or of some."""
        for name, arm in self.study.arms_of(seed).items():
            if (name, seed) in self.lines.done() or name not in (arms or self.study.arms):
                continue
            line: dict[str, Any] = {"arm": name, "seed": seed}
            found, settings = self.begun(arm.start, seed, ())
            if found is None or all(found["exit_criteria"].values()):
                rates = {} if found is None else call_rates(found["after"])
                settings += [filled(setting, rates) for setting in arm.settings]
                folder = self.root / f"{name}-{seed}"
                found = self.results(folder, arm.recipe, settings, seed)
            if not all(found["exit_criteria"].values()):
                self.lines.add(line | {"start_met": False} | self.missed(found))
                continue
            figures = {when: self.figures(found[when]) for when in ("before", "after")}
            taken = {
                "steps": found["steps"],
                "seconds": round(sum(found["seconds"].values()), 1),
                "warnings": first_warnings(found),
            }
            curves = {"curves": self.curves(folder)} if self.study.curves else {}
            self.lines.add(line | {"start_met": True} | taken | figures | curves)

    def begun(
        self, name: str | None, seed: int, again: Sequence[str]
    ) -> tuple[dict[str, Any] | None, list[str]]:
        """Return the results of a start, and the settings of a run that goes on from it.

        That run leaves out the phases of the start, but for those that it goes through again.
        """
        if name is None:
            return None, []
        start, folder = self.study.starts[name], self.root / f"{name}-{seed}"
        found, settings = self.begun(start.start, seed, start.phases)
        if found is None or all(found["exit_criteria"].values()):
            found = self.results(folder, start.recipe, [*settings, *start.settings], seed)
        if not all(found["exit_criteria"].values()):
            return found, []
        return found, without(sorted(self.study.left_out(name) - {*again}), folder)

    def results(self, folder: Path, recipe: str, settings: list[str], seed: int) -> dict[str, Any]:
        """Return the results of a run, which is done or ended first where they are missing."""
        file = folder / "results.json"
        if not file.is_file():
            arguments = [str(ROOT / recipe), f"seed={seed}", f"data.seed={seed}"]
            arguments += [*self.study.settings, *settings, "--output", str(folder)]
            arguments += ["--resume"] if (folder / "recipe.yaml").is_file() else []
            log = self.root / f"{folder.name}.log"
            if code := self.train(arguments, log):
                raise RuntimeError(f"{folder.name}: exit code {code}, see {log}")
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found

    def missed(self, found: dict[str, Any]) -> dict[str, Any]:
        """Return the measures of a start that missed an exit criterion, as both sides of an arm."""
        own = self.figures(found["after"])
        return {"steps": found["steps"], "before": own, "after": own}

    def figures(self, found: dict[str, Any]) -> dict[str, float]:
        """Return the study's measures of one side of results.json."""
        names = self.study.measures.items()
        return {name: round(found[key]["mean"], 6) for name, key in names if key in found}

    def curves(self, folder: Path) -> dict[str, list[list[float]]]:
        """Return step and value of each curve."""
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found = {}
        for name, key in self.study.curves.items():
            points = [[row["step"], round(row[key], 5)] for row in rows if key in row]
            found[name] = points[:: -(-len(points) // MOST_POINTS) or 1]
        return found


def first_warnings(found: Mapping[str, Any]) -> dict[str, int]:
    """Return the step at which each detector of the health watch first spoke, from results.json."""
    return {one["detector"]: one["step"] for one in reversed(found.get("health", []))}


def without(phases: Sequence[str], folder: Path) -> list[str]:
    """Return the settings with which a run leaves phases out and begins where a start ended."""
    checkpoint = max(folder.glob("checkpoints/step-*"))
    settings = [f"phases.{name}={{steps: 0, exit_criterion: null}}" for name in phases]
    model = ["model.type=pretrained", f"model.name={checkpoint}", "model.dtype=float32"]
    return [*settings, *model]


def call_rates(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the rates of `votes_from` with which drawn votes are as good as a judge's.

    A judge names the right of two turns with probability s (strict accuracy) and is right at half
    weight for `=` with A (accuracy), so it names the wrong one with w = 1 − 2A + s. Calls with
    rates t and f name them with t (1 − f) = s and f (1 − t) = w, whose difference is t − f; so t
    is the larger root of t² − (1 + s − w) t + s = 0. A judge that says `=` less often than two
    calls can has no root: then t and f are the nearest, with the same difference.
    """
    if "eval/judge/strict_accuracy" not in found:
        return {}
    right, accuracy = (found[f"eval/judge/{n}"]["mean"] for n in ("strict_accuracy", "accuracy"))
    difference = 2 * accuracy - 1
    root = math.sqrt(max(0.0, (1 + difference) ** 2 - 4 * right))
    tpr = (1 + difference + root) / 2
    return {"tpr": min(tpr, 1.0), "fpr": min(max(tpr - difference, 0.0), 1.0)}


def filled(setting: str, rates: Mapping[str, float]) -> str:
    """Return a setting with the rates in the place of their names."""
    for name, rate in rates.items():
        setting = setting.replace(f"{{{name}}}", f"{rate:.6f}")
    return setting


def main() -> int:
    """Do what is missing of a study, and print its tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="a file of benchmarks/studies/")
    parser.add_argument("--output", type=Path, help="of run directories; runs/NAME by default")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at once, one thread each")
    parser.add_argument("--seeds", nargs="+", type=int, help="of those of the study, these alone")
    parser.add_argument("--arms", nargs="+", help="of those of the study, these alone")
    parser.add_argument("--tables", action="store_true", help="run nothing; print what there is")
    chosen = parser.parse_args()
    study = read_study(chosen.file)
    for wanted in set(chosen.arms or ()) - set(study.arms):
        parser.error(f"--arms: found {wanted!r}, expected one of {', '.join(study.arms)}")
    lines = Lines(ROOT / f"benchmarks/data/{study.name}.jsonl")
    if not chosen.tables:
        root = (chosen.output or ROOT / "runs" / study.name).resolve()
        root.mkdir(parents=True, exist_ok=True)
        lines.mend()
        with ThreadPoolExecutor(chosen.jobs) as pool:
            train = partial(in_a_process, variables=study.environment)
            seeds, runs = chosen.seeds or study.all_seeds(), Runs(study, root, lines, train)
            list(pool.map(partial(runs.one_seed, arms=chosen.arms), seeds))
    image = ROOT / f"docs/studies/{study.name}.svg"
    found = tables(study, lines.read(), image)
    print("\n".join(found))
    text = page(study.name, chosen.file.read_text(encoding="utf-8"), found)
    image.with_suffix(".md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
