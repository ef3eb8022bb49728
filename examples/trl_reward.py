"""Train with right answers in TRL: `answer_reward` is a reward function as GRPOTrainer calls it.

python examples/trl_reward.py

    from trl import GRPOTrainer
    GRPOTrainer(model, reward_funcs=[answer_reward, brief], train_dataset=questions).train()

The data set has the columns `prompt` and `answer`; None in `answer` leaves a row out.
"""

from typing import Any

from debate_rewards import answer_reward


def brief(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
    """Your own reward function beside it: half a point off for more than 200 words."""
    return [-0.5 if len(str(completion).split()) > 200 else 0.0 for completion in completions]


def main() -> None:
    """Print what a trainer would be given for four completions of one step."""
    batch: dict[str, Any] = {
        "prompts": ["What is one half of 3?"] * 4,
        "completions": [
            r"It is \boxed{1.5}.",
            r"Agent 1 says \boxed{\frac{3}{2}}, but it is \boxed{2}.",
            [{"role": "assistant", "content": "Answer: 1 1/2"}],
            "I do not know.",
        ],
        "answer": [r"\frac{3}{2}"] * 4,
        "completion_ids": [[0]] * 4,
    }
    print(answer_reward(**batch))
    print(brief(**batch))


if __name__ == "__main__":
    main()
