"""Tables of benchmarks/data/acc_study.jsonl, for docs/acc-debate.md.

python -m benchmarks.learning.acc_tables > tables.md

Three intervals of 95 % and tests of a difference, paired throughout: Student's t over seeds (of the
means over questions); a bootstrap that draws seeds and questions anew, both with replacement; and
`debate_rewards.estimates` over questions, each averaged over the seeds.
"""

import json
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.learning.sdrl_tables import with_interval as over_seeds
from debate_rewards.estimates import RESAMPLES, paired, quantile

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/data/acc_study.jsonl"
ARMS = {
    "untrained": ("start", ""),
    "SFT": ("sft", ""),
    "society of minds": ("society", ""),
    "ACC-Debate": ("acc", ""),
    "ACC-Debate+": ("plus", ""),
    "ACC: actor alone": ("acc", "actor_alone/"),
    "ACC: critic alone": ("acc", "critic_alone/"),
    "ACC+: actor alone": ("plus", "actor_alone/"),
    "ACC+: critic alone": ("plus", "critic_alone/"),
}
"""Each arm's policy, and the mode that it is measured in."""
CONTRASTS = (
    ("ACC-Debate", "untrained"),
    ("ACC-Debate", "SFT"),
    ("ACC-Debate", "society of minds"),
    ("ACC-Debate", "ACC: actor alone"),
    ("ACC-Debate", "ACC: critic alone"),
    ("ACC: actor alone", "untrained"),
    ("ACC: critic alone", "untrained"),
    ("ACC-Debate+", "ACC-Debate"),
    ("ACC-Debate+", "untrained"),
    ("SFT", "untrained"),
)
FIRST, LAST = 0, 4
Grid = Sequence[Mapping[str, float]]
"""For each seed the value of each question."""


class Study:
    """The lines of the seeds of which ACC-Debate is measured.

    Attributes:
        seeds: These seeds.
        arms: Names of the arms that are measured of each of them.
    """

    def __init__(self, lines: Sequence[Mapping[str, Any]]) -> None:
        self._found = {(line["seed"], line["arm"]): line for line in lines}
        seeds = sorted({seed for seed, arm in self._found if arm == "plus"})
        self.seeds = [s for s in seeds if (s, "start") in self._found and (s, "acc") in self._found]
        self.arms = [
            name
            for name, (policy, _) in ARMS.items()
            if all((seed, policy) in self._found for seed in self.seeds)
        ]

    def lines(self, policy: str) -> list[Mapping[str, Any]]:
        """Return a policy's line of each seed."""
        return [self._found[seed, policy] for seed in self.seeds]

    def grid(self, arm: str, figure: str) -> Grid:
        """Return a figure of an arm."""
        policy, mode = ARMS[arm]
        return [
            dict(zip(line["questions"], line["figures"][mode + figure], strict=True))
            for line in self.lines(policy)
        ]

    def at(self, arm: str, round: int) -> Grid:
        """Return the accuracy of an arm's answers in a round."""
        return self.grid(arm, f"accuracy/round_{round}")


def means(grid: Grid) -> list[float]:
    """Return the mean over questions, for each seed."""
    return [fmean(values.values()) for values in grid]


def minus(after: Grid, before: Grid) -> Grid:
    """Return the differences of all questions."""
    return [{q: one[q] - other[q] for q in one} for one, other in zip(after, before, strict=True)]


def over_both(grid: Grid) -> str:
    """Return the interval of a mean over questions and seeds, both drawn again, in percent."""
    chance = random.Random(0)
    questions = sorted(grid[0])
    drawn = []
    for _ in range(RESAMPLES):
        own = chance.choices(questions, k=len(questions))
        drawn.append(
            fmean(fmean(values[q] for q in own) for values in chance.choices(grid, k=len(grid)))
        )
    ends = (100 * quantile(sorted(drawn), share) for share in (0.025, 0.975))
    return "[{:+.1f}, {:+.1f}]".format(*ends)


def over_questions(after: Grid, before: Grid) -> str:
    """Return the p-value of the paired test over questions, each averaged over the seeds."""
    sides = [{q: fmean(values[q] for values in grid) for q in grid[0]} for grid in (before, after)]
    return f"{paired(*sides).p:.4f}"


def by_round(study: Study) -> list[str]:
    """Return the table of accuracy by round, and of the improvement of eq. 5."""
    rounds = range(FIRST, LAST + 1)
    rows = ["| arm | " + " | ".join(f"round {r}" for r in rounds) + " | last − first | eq. 5 |"]
    rows.append("|---" * (len(rounds) + 3) + "|")
    for arm in study.arms:
        cells = [over_seeds(means(study.at(arm, r))) for r in rounds]
        ends = [means(study.at(arm, r)) for r in (FIRST, LAST)]
        gains = [last - first for first, last in zip(*ends, strict=True)]
        cells.append(over_seeds(gains, "+"))
        cells.append(over_seeds([g / first for g, first in zip(gains, ends[0], strict=True)], "+"))
        rows.append(f"| {arm} | {' | '.join(cells)} |")
    return rows


def contrasts(study: Study) -> list[str]:
    """Return the table of differences of the answers of the last round."""
    rows = ["| last round | difference | each seed | questions and seeds | p over questions |"]
    rows.append("|---|---|---|---|---|")
    for after, before in CONTRASTS:
        if not {after, before} <= set(study.arms):
            continue
        sides = study.at(after, LAST), study.at(before, LAST)
        grid = minus(*sides)
        each = ", ".join(f"{100 * gain:+.1f}" for gain in means(grid))
        cells = (over_seeds(means(grid), "+"), each, over_both(grid), over_questions(*sides))
        rows.append(f"| {after} − {before} | {' | '.join(cells)} |")
    return rows


def cross_table(study: Study, name: str) -> list[str]:
    """Return the accuracy of the last round, by who is trained."""
    rows = [f"| {name} | critic untrained | critic trained |", "|---|---|---|"]
    short = name.replace("-Debate", "")
    for label, arms in (
        ("actor untrained", ("untrained", f"{short}: critic alone")),
        ("actor trained", (f"{short}: actor alone", name)),
    ):
        cells = [over_seeds(means(study.at(arm, LAST))) for arm in arms]
        rows.append(f"| {label} | {' | '.join(cells)} |")
    return rows


def others(study: Study) -> list[str]:
    """Return single replies, their majority, and how many replies can be read."""
    rows = ["| policy | a single reply | majority of 9 | replies in form |", "|---|---|---|---|"]
    for arm in ("untrained", "SFT", "ACC-Debate", "ACC-Debate+", "society of minds"):
        if arm not in study.arms:
            continue
        figures = study.lines(ARMS[arm][0])[0]["figures"]
        majority = "replies/maj@9"
        majority = majority if majority in figures else "replies/accuracy"  # In older studies.
        names = [n for n in ("direct/accuracy", majority, "format") if n in figures]
        cells = [over_seeds(means(study.grid(arm, name))) for name in names]
        cells = cells if len(cells) == 3 else [cells[0], "", cells[-1]]
        rows.append(f"| {arm} | {' | '.join(cells)} |")
    return rows


def mechanism(study: Study) -> list[str]:
    """Return what states are worth by guidance, and held-out preferences, of each phase."""
    rows = ["| seed, phase | to y | natural | to !y | pairs | held-out preference accuracy |"]
    rows.append("|---|---|---|---|---|---|")
    names = ("guided_right", "natural", "guided_wrong")
    for line in study.lines("acc"):
        for phase, own in line["phases"].items():
            if "offline/value_natural" not in own:
                continue
            cells = []
            for name in (f"offline/value_{one}" for one in names):
                cells.append(f"{own[name]:.3f} ({own[f'{name}_standard_error']:.3f})")
            kept = sum(v for k, v in own.items() if k.startswith("offline/kept/"))
            held = [own.get(f"held_out/preference_accuracy{end}") for end in ("", "_low", "_high")]
            shown = "none" if None in held else "{:.2f} [{:.2f}, {:.2f}]".format(*held)
            cells += [f"{kept:.0f}", f"{shown}, {own.get('held_out/pairs', 0):.0f} pairs"]
            rows.append(f"| {line['seed']}, {phase} | {' | '.join(cells)} |")
    return rows


def held_out_by_side(study: Study) -> list[str]:
    """Return held-out preference accuracy of all phases of a side: the mean over their questions.

    Its standard error comes from those of the phases, which are independent samples of questions;
    a phase's is a quarter of the length of its interval.
    """
    rows = ["| side | phases | questions | held-out preference accuracy |", "|---|---|---|---|"]
    for side in ("critic", "actor"):
        phases = [
            own
            for line in study.lines("acc")
            for phase, own in line["phases"].items()
            if phase.startswith(side) and "held_out/preference_accuracy" in own
        ]
        sizes = [own["held_out/questions"] for own in phases]
        ends = [
            [own[f"held_out/preference_accuracy_{e}"] for e in ("low", "high")] for own in phases
        ]
        errors = [size * (high - low) / 4 for size, (low, high) in zip(sizes, ends, strict=True)]
        values = [own["held_out/preference_accuracy"] for own in phases]
        mean = sum(n * v for n, v in zip(sizes, values, strict=True)) / sum(sizes)
        half = 1.96 * math.hypot(*errors) / sum(sizes)
        interval = f"{mean:.2f} [{mean - half:.2f}, {mean + half:.2f}]"
        rows.append(f"| {side} | {len(phases)} | {sum(sizes):.0f} | {interval} |")
    return rows


def main() -> None:
    """Print the tables."""
    study = Study([json.loads(line) for line in RESULTS.read_text().splitlines()])
    count = len(study.at("untrained", LAST)[0])
    print(f"seeds {', '.join(map(str, study.seeds))}; {count} questions; percent")
    print(f"steps of the start: {[line['steps'] for line in study.lines('start')]}")
    for rows in (
        mechanism(study),
        held_out_by_side(study),
        by_round(study),
        contrasts(study),
        cross_table(study, "ACC-Debate"),
        cross_table(study, "ACC-Debate+"),
        others(study),
    ):
        print("\n" + "\n".join(rows))


if __name__ == "__main__":
    main()
