"""Rewards for lists of responses, as other trainers call them; with TRL installed, in a trainer."""

import importlib.util
import inspect
import runpy
from pathlib import Path

import pytest

from debate_rewards import answer_reward, verify

ROOT = Path(__file__).parents[2]


def test_verify_judges_lists_in_order() -> None:
    found = verify(["5", "1/2", None, "B"], [r"\boxed{5}", r"\boxed{0.6}", "x", None])
    assert [verdict.verdict for verdict in found] == ["right", "wrong", "unverifiable", "wrong"]
    assert [v.verdict for v in verify(["B"], ["(B)"], "choice")] == ["right"]
    assert verify([], []) == []


def test_verify_refuses_lists_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="1 golds and 0 predictions"):
        verify(["5"], [])


def test_answer_reward_reads_texts_and_chats() -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "Answer: 5"}]
    completions = [
        r"\boxed{5}",
        [{"role": "user", "content": "4?"}, {"role": "assistant", "content": r"\boxed{5}"}],
        [{"role": "assistant", "content": parts}],
        [{"role": "assistant", "content": None}],
        [],
        "",
    ]
    assert answer_reward(completions=completions, answer=[5] * 6) == [1, 1, 1, 0, 0, 0]


def test_answer_reward_takes_a_kind_for_each_and_has_no_signal_without_gold() -> None:
    rewards = answer_reward(
        prompts=["?"] * 3,
        completions=["no", "(B)", r"\boxed{5}"],
        answer=["no", "B", None],
        kind=["yes_no", "choice", "math"],
        difficulty=[1, 2, 3],
    )
    assert rewards == [1.0, 1.0, None]


def test_answer_reward_refuses_columns_of_another_length() -> None:
    with pytest.raises(ValueError, match="2 completions, 1 answers"):
        answer_reward(completions=["a", "b"], answer=["a"])


def test_verl_function_has_the_arguments_that_verl_gives() -> None:
    compute_score = runpy.run_path(str(ROOT / "examples" / "verl_reward.py"))["compute_score"]
    names = list(inspect.signature(compute_score).parameters)
    assert names[:4] == ["data_source", "solution_str", "ground_truth", "extra_info"]
    info = {"kind": "choice", "choices": ["red", "blue"], "index": 7}
    given = {"solution_str": "blue", "ground_truth": "B", "extra_info": info}
    assert compute_score(data_source="x", **given, reward_router_address=None)["score"] == 1.0


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs trl")
def test_trl_trains_with_answer_reward(tmp_path: Path) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    runpy.run_path(str(ROOT / "examples" / "tiny_model.py"))["main"](str(tmp_path / "model"))
    calls = []

    def watched(prompts, completions, **columns):  # type: ignore[no-untyped-def]
        calls.append(answer_reward(prompts, completions, **columns))
        return calls[-1]

    rows = {"prompt": ["1 + 1 =", "2 + 2 =", "3 + 3 ="], "answer": ["2", None, "6"]}
    config = GRPOConfig(
        output_dir=str(tmp_path / "run"),
        per_device_train_batch_size=6,
        num_generations=2,
        max_completion_length=4,
        max_steps=1,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
    )
    trainer = GRPOTrainer(
        str(tmp_path / "model"),
        reward_funcs=[watched],
        args=config,
        train_dataset=Dataset.from_dict(rows),
    )
    trainer.train()
    (rewards,) = calls
    # A model with random weights is not right; the row without a gold answer has no signal.
    assert sorted(map(str, rewards)) == ["0.0"] * 4 + ["None"] * 2
