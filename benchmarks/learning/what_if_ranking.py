"""Whether rewards that follow the truth on recorded debates are those that training gained by.

    MODEL='model={type: pretrained, name: RUN/checkpoints/step-N}'
    debate-rollout recipes/quickstart.yaml "$MODEL" steps=8 --output debates
    python -m benchmarks.learning.what_if_ranking debates/transcripts.jsonl

RUN is a from_nothing and N the last step of its phase `settle`, where self-play begins. The debates
are scored by the reward of each arm of the study `incentives`, and √R² is shown beside the arm's
mean gain of direct accuracy (benchmarks/data/incentives.jsonl). The studies recorded no debates of
their own. Study `own_judge` recorded how often its rewards were right: its first ten steps are
shown beside the gain of each arm and level.
"""

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.stats import spearmanr

from benchmarks.measurement import print_line
from debate_protocol.command_line import transcripts_in
from debate_rewards.what_if import what_if
from debate_rewards.what_if_command import named_rewards

DATA = Path(__file__).resolve().parents[1] / "data"
PACKAGES = ("debate-rewards",)
# Arms of `incentives` whose reward can be had of transcripts alone; `peers` is peer prediction with
# no weight on judges, and `truth_single` and `certainty` have other debates or need the policy.
REWARDS_BY_ARM = {
    "truth": "verifiable",
    "peers": "v2:consensus=peer_prediction",
    "peer_prediction": "v2:consensus=peer_prediction,judge_credit=segment",
    "leave_one_out": "v2:consensus=leave_one_out,judge_credit=segment",
    "correlated_agreement": "v2_peer_scores:consensus=correlated_agreement,judge_credit=segment",
    "determinant_mutual_information": "v2_peer_scores:consensus=determinant_mutual_information,"
    "judge_credit=segment",
    "majority": "majority:scope=debate,values=plus_minus",
    "majority_verified": "majority:scope=debate,values=plus_minus,verified=true",
    "shuffled": "v2_control:shuffle_votes=true,shuffle_verdicts=true",
}
FIRST_STEPS = 10
LEVELS = ("55", "65", "75", "85", "95")


def main() -> None:
    """Print one line a ranking."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("transcripts", help="debates of a start of self-play")
    arguments = parser.parse_args()
    incentives(arguments.transcripts)
    own_judge()


def incentives(path: str) -> None:
    """Rank the rewards of an unlabeled study by debates, and by what training gained."""
    transcripts = list(transcripts_in("what_if_ranking", path))
    replays = what_if(
        transcripts,
        named_rewards(list(REWARDS_BY_ARM.values())),
        with_habits=False,
    )
    gains = mean_gains(rows_of("incentives"))
    correlations = {}
    for arm, reward in REWARDS_BY_ARM.items():
        (replay,) = (replay for replay in replays if replay.name == reward)
        if replay.truth is not None:
            correlations[arm] = max(0.0, replay.truth.value)
    for arm, correlation in correlations.items():
        settings = {"arm": arm, "gain": gains[arm], "of_the_truth": gains[arm] / gains["truth"]}
        print_line(
            "what_if_ranking/root_r_squared", [correlation], "1", "higher", settings, PACKAGES
        )
    print_ranking("incentives", correlations, gains)


def own_judge() -> None:
    """Rank arms and levels by how often their reward is right, and by what training gained."""
    rows = [row for row in rows_of("own_judge") if row["start_met"]]
    gains = mean_gains(rows)
    rightness_by_arm: dict[str, list[float]] = {}
    for row in rows:
        points = row["curves"]["reward accuracy"][:FIRST_STEPS]
        known_values = [value for _, value in points if value is not None]
        rightness_by_arm.setdefault(row["arm"], []).append(fmean(known_values))
    rightness = {arm: fmean(values) for arm, values in rightness_by_arm.items()}
    print_ranking("own_judge", rightness, gains)
    for level in LEVELS:
        arms = [arm for arm in rightness if arm.endswith(level)]
        print_ranking(f"own_judge/{level}", {arm: rightness[arm] for arm in arms}, gains)


def rows_of(study: str) -> list[dict[str, Any]]:
    """Read the runs of a study."""
    lines = (DATA / f"{study}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def mean_gains(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Average each arm's gain of direct accuracy over its seeds."""
    gains: dict[str, list[float]] = {}
    for row in rows:
        gains.setdefault(row["arm"], []).append(row["after"]["direct"] - row["before"]["direct"])
    return {arm: fmean(values) for arm, values in gains.items()}


def print_ranking(study: str, expected: Mapping[str, float], gains: Mapping[str, float]) -> None:
    """Print the rank correlation of what was expected and what was gained."""
    gained = [gains[arm] for arm in expected]
    rank_correlation = float(spearmanr(list(expected.values()), gained).statistic)
    settings = {"arms": len(expected)}
    print_line(
        f"what_if_ranking/spearman/{study}", [rank_correlation], "1", "higher", settings, PACKAGES
    )


if __name__ == "__main__":
    main()
