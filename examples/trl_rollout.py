"""TRL trains on debates: a `rollout_func` whose completions are turns of our debate forms.

python examples/trl_rollout.py MODEL OUTPUT

The completion for a prompt is the last turn of agent 0 in a debate on it, under the prompt that it
was shown; how many of the others end with its answer is `agreement`, the reward.
"""

import sys
from typing import Any

from debate_protocol import Question, Simultaneous, Transcript, get_contract, parse
from debate_rewards import same_answer
from debate_rollout.drivers import play
from debate_rollout.engines import TransformersEngine

FORM = Simultaneous(num_agents=3, max_rounds=2, personas="none")
CONTRACT = get_contract("three_section")


def debates(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
    """Return a completion for each prompt, with the ids and log-probabilities as sampled."""
    model, step = trainer.accelerator.unwrap_model(trainer.model), trainer.state.global_step
    engine = TransformersEngine().open(model, trainer.processing_class)  # It speaks with a copy.
    runs = [FORM.start(Question(f"{step}/{n}", text), seed=n) for n, text in enumerate(prompts)]
    found = play(runs, engine, max_tokens=trainer.max_completion_length)
    replies = [debate.turns[-FORM.num_agents].reply for debate in found]
    return {
        "prompt_ids": [list(reply.prompt_ids) for reply in replies],
        "completion_ids": [list(reply.token_ids) for reply in replies],
        "logprobs": [list(reply.logps) for reply in replies],
        "agreement": [agreement_in(debate) for debate in found],
    }


def agreement_in(debate: Transcript) -> float:
    """Return the share of the others whose last answer is that of agent 0."""
    own, *others = [parse(turn.text, CONTRACT).answer for turn in debate.turns[-FORM.num_agents :]]
    return sum(same_answer(debate.question, own, other) for other in others) / len(others)


def agreed(completions: list[Any], agreement: list[float], **columns: Any) -> list[float]:
    """Return the reward of each completion: what its debate said of it."""
    return agreement


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        sys.argv[2], per_device_train_batch_size=4, num_generations=2, max_completion_length=8,
        max_steps=1, use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
    )  # fmt: skip
    questions = Dataset.from_dict({"prompt": ["1 + 1 = ?", "2 + 2 = ?"]})
    trainer = GRPOTrainer(sys.argv[1], [agreed], config, questions, rollout_func=debates)
    trainer.train()
    print(f"reward {trainer.state.log_history[0]['rewards/agreed/mean']}")
