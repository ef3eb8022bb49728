"""A study of two arms that runs in seconds."""

from typing import Any

from debate_studies.lines import FinishedRun
from debate_studies.study_file import Study

RECIPE = "grpo_puzzle"
MINIATURE: dict[str, Any] = {
    "name": "miniature",
    "seeds": [0, 1],
    "settings": [
        "phases.warm_start.exit_criterion=null",
        "phases.warm_start.steps=1",
        "phases.warm_start.data.batch_size=2",
        "phases.reinforce.steps=2",
        "data.batch_size=2",
        "rollout.debates_per_question=2",
        "rollout.max_tokens=16",
        "evaluation.questions=2",
        "recording.debates=0",
        "tracking.wandb=false",
    ],
    "starts": {
        "warm": {
            "recipe": RECIPE,
            "settings": ["phases.reinforce.steps=0"],
            "phases": ["warm_start"],
        }
    },
    "arms": {
        "grpo": {"recipe": RECIPE, "start": "warm"},
        "other": {"recipe": RECIPE, "start": "warm", "settings": ["reward.values=zero_one"]},
    },
    "measures": {"direct": "eval/direct/accuracy", "format": "eval/direct/format"},
    "curves": {"reward": "reward/total"},
    "compared": [
        {"arm": "grpo", "measures": ["direct"]},
        {"arm": "grpo", "over": "other", "measures": ["direct", "format"]},
    ],
    "plot": ["direct", "reward"],
}


def study_of(**changes: Any) -> Study:
    """The miniature without a plot, changed."""
    return Study.model_validate(MINIATURE | {"plot": []} | changes)


def finished_run(
    arm: str, seed: int, *, before: float | None = None, after: float | None = None, **more: Any
) -> FinishedRun:
    """A run with these direct accuracies."""
    return FinishedRun(
        arm=arm,
        seed=seed,
        start_met=more.pop("start_met", True),
        steps=1,
        before={} if before is None else {"direct": before},
        after={} if after is None else {"direct": after},
        **more,
    )
