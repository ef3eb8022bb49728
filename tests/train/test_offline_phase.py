"""Phases that learn from examples: played or read, made once, resumed at any step, refused."""

import os
import shutil
import signal

import pytest
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from debate_train.commands.cli import main
from debate_train.offline import AnswerPairs, ExampleSet
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.running import offline_phase
from train.offline_runs import DPO, PAIRS, ROLES, back_to, lines, patch_sets, write_recipe
from train.small_runs import end_of
from train.two_adapters import settings

# A run of three phases: pairs for one adapter, replies for the other, one step on policy


@pytest.fixture(scope="module", autouse=True)
def patched():
    with pytest.MonkeyPatch.context() as patch:
        patch_sets(patch)
        yield


@pytest.fixture(scope="module")
def recipe(base, tmp_path_factory):
    return write_recipe(base, tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    """Train without a stop."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert main([recipe, "--output", str(run)]) == 0
    return run


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


SAME_FILES = (
    "offline/prefer-000000.jsonl",
    "offline/prefer-000000.debates.jsonl",
    "offline/prefer-000000.held_out.jsonl",
    "offline/imitate-000004.jsonl",
    "checkpoints/step-000007/first/adapter_model.safetensors",
    "checkpoints/step-000007/second/adapter_model.safetensors",
)


def assert_resumed_as(whole, recipe, run):
    assert main([recipe, "--resume", "--output", str(run)]) == 0
    for name in SAME_FILES:
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    optimizer = "optimizer-00000.safetensors"
    assert end_of(run, optimizer) == end_of(whole, optimizer)


def test_phases_learn_from_the_examples_in_their_files(whole):
    pairs = lines(whole / "offline/prefer-000000.jsonl")
    replies = lines(whole / "offline/imitate-000004.jsonl")
    # What preference trainers read, and what only this one needs, under names of their own.
    names = {"meta", "sampled", "made_from", "prompt"}
    assert set(pairs[0]) == names | {"chosen", "rejected"}
    assert set(replies[0]) == names | {"completion"}
    assert pairs[0]["chosen"][0]["role"] == "assistant"
    assert (len(pairs), len(replies)) == (5, 4)
    # The second set was made with what the first phase had trained.
    assert pairs[0]["sampled"]["weight_version"] == 0
    assert replies[0]["sampled"]["weight_version"] == 4


def test_rows_of_metrics_say_what_each_phase_learned_from(whole):
    rows = lines(whole / "metrics.jsonl")
    end_of_first_phase = rows.pop(4)
    assert [row["phase"] for row in rows] == ["prefer"] * 4 + ["imitate"] * 2 + ["on_policy"]
    assert end_of_first_phase["held_out/pairs"] == 3
    first, second, *_ = rows
    assert first["offline/debates"] == 8
    assert first["offline/kept/majority"] == 5
    assert second["offline/epoch"] == pytest.approx(6 / 5)
    assert first["optim/preference_accuracy"] == 0  # The policy is still its own reference.
    assert rows[3]["optim/preference_reward_chosen"] > 0
    assert rows[4]["offline/left_out/other_answer"] == 4
    # Nothing is played in its steps, so nothing is said of debates.
    names = {name for name in first if name.startswith(("env/", "rollout/"))}
    assert names == {"env/all/sampled_tokens"}
    num_sampled = [row["env/all/sampled_tokens"] for row in rows[:4]]
    assert num_sampled == [first["offline/sampled_tokens"], 0, 0, 0]
    # Each phase trains the adapter of its role.
    assert "optim/grad_norm/second" in first and "optim/grad_norm/first" not in first
    assert "optim/grad_norm/first" in rows[4] and "optim/grad_norm/second" not in rows[4]


@pytest.mark.parametrize("step", [4, 5])
def test_run_goes_on_within_and_between_such_phases(recipe, whole, run, step):
    back_to(run, step)
    if step == 4:
        (run / "offline/imitate-000004.jsonl").unlink()
    assert_resumed_as(whole, recipe, run)


def test_interrupt_while_a_set_is_made_keeps_what_was_played(recipe, whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    play_chunk = offline_phase._Maker._play_chunk
    with monkeypatch.context() as patch:

        def interrupted(maker, number):
            if number == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return play_chunk(maker, number)

        patch.setattr(offline_phase._Maker, "_play_chunk", interrupted)
        assert main([recipe, "--output", str(run)]) == 130
    assert len(lines(run / "offline/prefer-000000.unfinished")) == 1
    assert_resumed_as(whole, recipe, run)


@pytest.mark.parametrize("damage", ["changed", "lost"])
def test_set_that_was_changed_or_lost_is_not_trained_on(recipe, run, capsys, damage):
    back_to(run, 2)
    path = run / "offline/prefer-000000.jsonl"
    text = path.read_text()
    path.unlink()
    if damage == "changed":
        path.write_text(text.replace('"weight_version": 0', '"weight_version": 1', 1))
    assert main([recipe, "--resume", "--output", str(run)]) == 2
    assert "offline/prefer-000000.jsonl is" in capsys.readouterr().err


def test_phase_without_an_example_ends_with_one_message(recipe, tmp_path, monkeypatch, capsys):
    def leave_out_all(config, transcripts):
        example_set = ExampleSet()
        example_set.leave_out("all_agree", len(transcripts))
        return example_set

    monkeypatch.setattr(AnswerPairs, "take", leave_out_all)
    assert main([recipe, "--output", str(tmp_path / "run")]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("debate-train: prefer: found no example to learn from (offline/")
    assert "left_out/all_agree: 5" in message


@pytest.mark.parametrize(
    ("name", "trainer_class", "config_class"),
    [
        ("prefer-000000.jsonl", DPOTrainer, DPOConfig),
        ("imitate-000004.jsonl", SFTTrainer, SFTConfig),
    ],
)
def test_trl_trains_a_step_on_the_file(base, whole, tmp_path, name, trainer_class, config_class):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = config_class(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        learning_rate=0.1,
        save_strategy="no",
        bf16=False,
    )
    examples = load_dataset("json", data_files=str(whole / "offline" / name), split="train")
    tokenizer = AutoTokenizer.from_pretrained(base)
    trainer = trainer_class(model, args=config, train_dataset=examples, processing_class=tokenizer)
    assert trainer.train().training_loss > 0
    after = trainer.model.state_dict()
    assert any(not torch.equal(tensor, after[name]) for name, tensor in before.items())


# What --check says


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": {"type": "sft"}}, "expected dpo"),
        (
            {"offline": {"type": "chosen_replies", "held_out": 0.1}, "loss": {"type": "sft"}},
            "offline.held_out: found 0.1 with offline.type chosen_replies",
        ),
        (
            {"offline": {"type": "guided_pairs", "role": "theirs"}},
            "offline.type: guided_pairs compares guided replies",
        ),
    ],
)
def test_check_refuses_what_cannot_be_learned(base, change, message):
    recipe = settings(base, ROLES, **{"offline": PAIRS, "loss": DPO} | change)
    errors = check(Recipe.model_validate(recipe)).errors
    assert any(message in error for error in errors), errors
