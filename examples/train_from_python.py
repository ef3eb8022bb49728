"""Train from Python, with a loss of your own, a reward that is a function, and a call each step.

    python examples/train_from_python.py [OUTPUT] [key=value ...]

The policy starts from random weights and learns to write `+`; a recipe by name works in the same
way, `train("quickstart", ["steps=10"])`.
"""

import sys

from debate_protocol import Transcript
from debate_train import StepEnd, train
from debate_train.losses import LossInputs, TokenLoss


class PolicyGradient(TokenLoss):
    """-A log p of each token: no ratio, and nothing is clipped."""

    def per_action(self, x: LossInputs):
        """Return the loss of each action, shape (A,)."""
        return -x.advantages_A * x.logps_A


RECIPE = {
    "name": "from_python",
    "steps": 12,
    "model": {"type": "scratch", "hidden_size": 32, "layers": 1},
    "data": {"type": "signs_puzzle", "batch_size": 16},
    "debate": {"type": "direct", "style": "compact", "personas": "none"},
    "rollout": {"max_tokens": 16, "debates_per_question": 4},
    "advantage": {"baseline": "prompt"},
    "loss": PolicyGradient,  # Or PolicyGradient(...), or {"type": PolicyGradient, ...}.
    "trainer": {"learning_rate": 0.01},
    "evaluation": {"questions": 0},
    "tracking": {"wandb": False},
}


def share_of_plus(debate: Transcript) -> list[float]:
    """Return what each turn of a debate is worth."""
    return [turn.text.count("+") / max(1, len(turn.text.split())) for turn in debate.turns]


def show(end: StepEnd) -> None:
    """Print the mean value of a step's debates."""
    values = [value for score in end.scores for value in score.agents if value is not None]
    print(f"step {end.step}: {sum(values) / len(values):.3f}")


def main() -> None:
    """Train, and print what came of it."""
    output, *overrides = sys.argv[1:] or ["runs/from-python"]
    trained = train(RECIPE, overrides, output=output, reward=share_of_plus, on_step_end=show)
    print(f"{len(trained.metrics)} rows of metrics; weights: {trained.checkpoint}")


if __name__ == "__main__":
    main()
