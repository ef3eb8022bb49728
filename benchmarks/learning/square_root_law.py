"""Does the correlation of values with the truth rank estimators as training does?

    debate study benchmarks/studies/estimators.yaml --jobs 2
    python -m benchmarks.learning.square_root_law --runs runs/estimators
    python -m benchmarks.learning.square_root_law

With `--runs`, the folder of the study, the start of each level and seed plays 256 training
questions, and the reward of each arm values them. R is the correlation of values with the truth
over all turns, both centered within their debate; a turn without a value has 0. Rows go to
benchmarks/data/square_root_law.jsonl. Without it, prints R, the mean gain of each arm, and their
rank correlation over the arms of a level; `majority` is left out of it, as the study's head says.
Both print the differences of arms that decide: the mean over the levels, paired by seed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.learning.what_if_ranking import DATA, PACKAGES, print_ranking, rows_of
from benchmarks.measurement import print_line
from debate_protocol import Transcript
from debate_protocol.command_line import transcripts_in
from debate_rewards.answer_rewards import usable_verdicts
from debate_rewards.reward import Score, read_debate, score_debates
from debate_rewards.what_if_command import named_rewards
from debate_studies.lines import with_interval

ROWS = DATA / "square_root_law.jsonl"
REWARDS = {
    "votes": "v2:consensus=none",
    "pooled": "v2_control:consensus=none,pool=answer,judged_only=true",
    "pooled_all": "v2:consensus=none,pool=answer",
    "majority": "majority:scope=debate,values=plus_minus",
    "shuffled": "v2_control:consensus=none,shuffle_votes=true",
    "truth": "verifiable:values=plus_minus",
}
LEVELS = ("55", "65", "75")
DECIDING = (("pooled", "votes"), ("pooled_all", "pooled"), ("votes", "shuffled"))


def main() -> None:
    """Measure the starts, or print the rankings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="the folder of the study's runs")
    arguments = parser.parse_args()
    if arguments.runs is not None:
        rows = list(measured_starts(arguments.runs))
        ROWS.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    print_rankings()
    print_differences()


def print_differences() -> None:
    """Print differences in gains between arms, with a 95 % t interval over seeds."""
    for measure in ("direct", "last round"):
        gains: dict[tuple[str, int], float] = {}
        for row in rows_of("estimators"):
            if row["start_met"]:
                gains[row["arm"], row["seed"]] = row["after"][measure] - row["before"][measure]
        for arm, other in DECIDING:
            differences = mean_differences(gains, arm, other)
            settings = {
                "measure": measure,
                "arms": f"{arm} - {other}",
                "seeds": len(differences),
                "interval": with_interval(differences),
            }
            name = "square_root_law/difference"
            print_line(name, [fmean(differences)], "1", "higher", settings, PACKAGES)


def mean_differences(gains: dict[tuple[str, int], float], arm: str, other: str) -> list[float]:
    """Average the difference of two arms over the levels, for each seed."""
    differences = []
    for seed in sorted({seed for _, seed in gains}):
        at_levels = []
        for level in LEVELS:
            gain = gains.get((f"{arm}_{level}", seed))
            other_gain = gains.get((f"{other}_{level}", seed))
            if gain is not None and other_gain is not None:
                at_levels.append(gain - other_gain)
        if at_levels:
            differences.append(fmean(at_levels))
    return differences


def measured_starts(runs: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each level and seed whose start is there."""
    for level in LEVELS:
        for start in sorted(runs.glob(f"judge_{level}-*/checkpoints")):
            checkpoint = max(start.glob("step-*"), default=None)
            if checkpoint is None:
                continue
            _, seed = start.parent.name.split("-")
            transcripts = played(checkpoint, int(seed))
            for arm, reward in REWARDS.items():
                (named,) = named_rewards([reward]).values()
                correlation = correlation_with_truth(transcripts, score_debates(named, transcripts))
                row = {"level": level, "seed": int(seed), "arm": arm, "r": round(correlation, 4)}
                yield row


def played(checkpoint: Path, seed: int) -> list[Transcript]:
    """Play 256 training questions as the study's arms do at their start."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "debate"), "rollout", "from_nothing"]
        model = f"model={{type: pretrained, name: {checkpoint.resolve()}, dtype: float32}}"
        settings = [model, "phases=null", "steps=8", f"data.seed={seed}", f"seed={seed}"]
        subprocess.run([*command, *settings, "--output", f"{folder}/debates"], check=True)
        return list(transcripts_in("square_root_law", f"{folder}/debates/transcripts.jsonl"))


def correlation_with_truth(transcripts: Sequence[Transcript], scores: Sequence[Score]) -> float:
    """Correlate values with being right, both centered within their debate."""
    debates = [read_debate(transcript) for transcript in transcripts]
    products = value_squares = truth_squares = 0.0
    for score, verdicts in zip(scores, usable_verdicts(debates), strict=True):
        if not verdicts:
            continue
        value_of = {
            (credit.agent, credit.round): credit.value
            for credit in score.credits
            if credit.stream == "generator" and credit.value is not None and not credit.penalty
        }
        values = [value_of.get(tuple(key), 0.0) for key in verdicts]
        truths = [float(verdict.verdict == "right") for verdict in verdicts.values()]
        mean_value = fmean(values)
        mean_truth = fmean(truths)
        for value, truth in zip(values, truths, strict=True):
            products += (value - mean_value) * (truth - mean_truth)
            value_squares += (value - mean_value) ** 2
            truth_squares += (truth - mean_truth) ** 2
    if not value_squares or not truth_squares:
        return 0.0
    return products / sqrt(value_squares * truth_squares)


def print_rankings() -> None:
    """Print R and gain of each arm by level, and how far they rank alike."""
    measured = [json.loads(line) for line in ROWS.read_text(encoding="utf-8").splitlines()]
    gains: dict[str, list[float]] = {}
    for row in rows_of("estimators"):
        gains.setdefault(row["arm"], []).append(row["after"]["direct"] - row["before"]["direct"])
    mean_gains = {arm: fmean(values) for arm, values in gains.items()}
    for level in LEVELS:
        correlations = {}
        for arm in REWARDS:
            seed_values = [
                row["r"] for row in measured if (row["level"], row["arm"]) == (level, arm)
            ]
            name = f"{arm}_{level}"
            if not seed_values or name not in mean_gains:
                continue
            correlation = fmean(seed_values)
            settings = {"arm": name, "seeds": len(seed_values), "gain": round(mean_gains[name], 4)}
            print_line("square_root_law/r", [correlation], "1", "higher", settings, PACKAGES)
            if arm != "majority":
                correlations[name] = max(0.0, correlation)
        if correlations:
            print_ranking(f"estimators/{level}", correlations, mean_gains)


if __name__ == "__main__":
    main()
