"""What --check reports of a recipe: arithmetic, context length, data, phases and refusals."""

from pathlib import Path
from typing import Any

import pytest

from debate_protocol.forms import Conl, Direct, Sequential, Simultaneous
from debate_protocol.types import Question
from debate_train.recipe import Recipe
from debate_train.recipe.check import CheckReport, check
from debate_train.recipe.context import TokenCounter, longest_prompt
from train.small_recipes import recipe_of, write_rows

BASE = """\
name: t
steps: 10
model: {type: scratch, context_window: 4096}
data: {type: signs_puzzle, batch_size: 8, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 5, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 16}
advantage: {baseline: question_round}
evaluation: {questions: 4}
"""
HUB = "model.type=pretrained model.context_window=null"
GATED = """\
debate.type=self_debate debate.first_turns=4 debate.second_turns=2 reward.type=verifiable
loss.type=dapo trainer.type=torch trainer.minibatch_size=12
rollout.oversample=3 rollout.select.type=in_order
"""


def recipe(changes: str = "", **sections: Any) -> Recipe:
    return recipe_of(BASE, changes, **sections)


def line_with(report: CheckReport, text: str) -> str:
    (line,) = [line for line in report.lines if text in line]
    return line


def error_of(changes: str) -> str:
    (error,) = check(recipe(changes)).errors
    return error


def questions(folder: Path) -> Path:
    return write_rows(folder / "q.jsonl", ({"question": f"{n} ?"} for n in range(40)))


def test_check_multiplies_out_a_step_and_the_run() -> None:
    report = check(recipe("rollout.debates_per_question=2"))
    # 8 questions x 2 = 16 debates; x 5 agents x 2 rounds = 160 turns; 16 x 5 = 80 rows.
    step = line_with(report, "a step:")
    assert "8 questions x 2 debates = 16 debates; x 5 agents x 2 rounds = 160 turns" in step
    assert "80 samples" in step
    # 10 steps: 80 questions, 160 debates, 1,600 turns, 800 samples; 1,600 x 16 = 25,600 tokens.
    run = line_with(report, "in all:")
    assert "80 questions, 160 debates, 1,600 turns, 800 samples, 10 updates" in run
    assert "at most 25,600 tokens" in run
    assert report.warnings == report.errors == []


@pytest.mark.parametrize(
    ("rules", "turns", "drawn_turns"),
    [
        # 8 questions x 4 first turns, of which 3 go on to 2 more each: 32 + 6 rows, in updates of
        # at most 12. Three batches of questions: 3 x 32 first turns, and still 6 second ones.
        (
            "[{type: informative}, {type: at_most, go_on: 3}]",
            "x 4 turns, 3 of them x 2 more = 38 turns; 38 samples",
            102,
        ),
        # A rule that counts nothing lets those of the last batch go on that are too many, too.
        ("[{type: informative}]", "x 4 turns, 8 of them x 2 more = 48 turns; 48 samples", 128),
    ],
    ids=["three go on", "all go on"],
)
def test_check_counts_what_goes_on_after_a_gate(rules: str, turns: str, drawn_turns: int) -> None:
    report = check(recipe(f"{GATED} rollout.select.rules='{rules}'"))
    assert "10 steps of at most 4 optimizer updates each" in line_with(report, "phase train")
    assert f"= 8 debates; {turns}" in line_with(report, "a step:")
    assert "at most 40 updates" in line_with(report, "in all:")
    most_tokens = f"at most {drawn_turns * 16:,} tokens in replies"
    assert line_with(report, "draws up to 3").endswith(most_tokens)


def test_check_refuses_context_above_the_smaller_window() -> None:
    # Prompt: own 512 and 4 peers x 512; reply 512: at least 3,072 of 4,096 fits; 1,024 does not.
    assert check(recipe("rollout.max_tokens=512")).errors == []
    error = error_of("rollout.max_tokens=1024")
    assert "is above the window of 4,096 (model.context_window)" in error
    assert "lower rollout.max_tokens" in error
    engine = "rollout.engine.type=transformers rollout.engine.context_window=2048"
    error = error_of(f"rollout.max_tokens=512 {engine}")
    assert "window of 2,048 (rollout.engine.context_window)" in error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bare", "holds no tokenizer.json"),
        ("gone/model", "there is no directory"),
        ("runs/frist", "there is no directory 'runs/frist'"),
    ],
)
def test_check_refuses_a_model_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "gone").mkdir()
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "config.json").write_text("{}")
    model = tmp_path / name if name == "bare" else name
    assert message in error_of(f"model.type=pretrained model.name={model}")


def test_check_looks_up_nothing_on_the_hub() -> None:
    report = check(recipe(f"{HUB} model.name=someone/some-model"))
    assert "set model.context_window to check it" in line_with(report, "context:")
    assert report.errors == []
    report = check(recipe("data.type=questions data.path=openai/gsm8k"))
    assert "hub dataset, not checked here" in line_with(report, "data.path")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty.jsonl", "is empty"),
        ("gone.jsonl", "found no file"),
        ("q.txt", "expected a file that ends in .jsonl, .json or .parquet"),
    ],
)
def test_check_refuses_data_that_cannot_be_read(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "q.txt").write_text("?")
    error = error_of(f"data.type=questions data.path={tmp_path / name}")
    assert error.startswith("data.path:")
    assert message in error


def test_check_reads_the_data_of_each_phase_once(tmp_path: Path) -> None:
    phases = f"""{{
        small: {{data: {{batch_size: 2}}}},
        other: {{data: {{type: questions, path: {questions(tmp_path)}}}}},
        gone: {{data: {{type: questions, path: gone.jsonl}}}}
    }}"""
    report = check(recipe(f"phases='{phases}'"))
    assert any(line.startswith("data: signs_puzzle") for line in report.lines)
    assert sum(line.startswith("data: ") for line in report.lines) == 2
    (error,) = report.errors
    assert "gone.jsonl" in error
    assert "2 questions x 1 debate" in line_with(report, "a step: 2")


def test_check_names_the_phase_and_refuses_what_a_run_has_once(tmp_path: Path) -> None:
    demonstrate = "loss: {type: sft}, rollout: {engine: {type: demonstrations}, max_tokens: 256}"
    phases = f"""{{
        few: {{debate: {{num_agents: 3}}}},
        seeded: {{seed: 1}},
        served: {{rollout: {{engine: {{max_batch: 3}}}}}},
        good: {{{demonstrate}, debate: {{num_agents: 3}}}},
        lacking: {{{demonstrate}, data: {{type: questions, path: {questions(tmp_path)}}}}}
    }}"""
    report = check(recipe(f"phases='{phases}'"))
    assert [warning.partition(" with")[0] for warning in report.warnings] == ["phase few: v2"]
    assert sorted(error.partition(":")[0] for error in report.errors) == [
        "phases.lacking.rollout.engine.type",
        "phases.seeded.seed",
        "phases.served.rollout.engine",
    ]


PRETRAINED = "model.type=pretrained model.name=Qwen/Qwen3-8B rollout.engine.type=vllm"


@pytest.mark.parametrize(
    ("lora_rank", "served_rank", "message"),
    [
        (8, 16, None),
        (None, "null", None),
        (8, "null", "found null; expected at least model.lora.rank, which is 8"),
        (8, 4, "found 4; expected at least model.lora.rank, which is 8"),
        (None, 4, "expected null"),
    ],
)
def test_check_matches_served_adapters_with_trained_ones(
    lora_rank: int | None, served_rank: object, message: str | None
) -> None:
    changes = f"{PRETRAINED} rollout.engine.max_lora_rank={served_rank}"
    if lora_rank is not None:
        changes += f" model.lora.rank={lora_rank}"
    errors = check(recipe(changes)).errors
    assert len(errors) == (message is not None)
    assert all(message in error for error in errors if message)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("{type: scripted, replies: [x]}", "found scripted, whose replies have no log-prob"),
        ("{type: transformers, copy_model: false}", "copy_model: found false"),
        ("{type: demonstrations}", "rollout.engine.type: found demonstrations"),
    ],
)
def test_check_refuses_an_engine_that_training_cannot_use(engine: str, message: str) -> None:
    assert message in error_of(f"rollout.engine='{engine}'")


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ("advantage.baseline=debate", "advantage.baseline: debate"),
        (
            "debate.contract='{name: poem, sections: [poem, comparison]}' "
            "advantage.streams='{generator: {sections: [comparison]}, judge: {}}'",
            "no stream covers section poem of the contract",
        ),
        ("debate.type=direct reward.type=verifiable", "advantage.baseline"),
        (
            "debate.type=direct reward.type=verifiable advantage.baseline=debate "
            "rollout.debates_per_question=8",
            "advantage.baseline",
        ),
    ],
    ids=["group", "uncovered", "lone reply", "lone in its debate"],
)
def test_check_warns_of_settings_that_learn_badly(changes: str, warning: str) -> None:
    (text,) = check(recipe(changes)).warnings
    assert warning in text


COUNTS_REPLIES_ONLY = TokenCounter(lambda text: 0, 0, 0, "counted")
QUESTION = Question("q", "1 + 1 = ?", "2")


@pytest.mark.parametrize(
    ("form", "num_replies"),
    [
        # Last prompt of 4 agents in 3 rounds: own 2 replies and 3 peers x 2 rounds.
        (Simultaneous(num_agents=4, max_rounds=3), 2 + 3 * 2),
        # Only news of the last round in each ask, but an appended dialogue keeps them all.
        (Simultaneous(num_agents=4, max_rounds=3, history_rounds=1), 2 + 3 * 2),
        # The last agent of a sequence also sees 3 peers of its own round.
        (Sequential(num_agents=4, max_rounds=3, contract="five_section"), 2 + 3 * 2 + 3),
        # A revision reads 4 first solutions, and all that 3 critics say of its agent.
        (Conl(num_agents=4), 4 + 3),
        (Direct(contract="boxed"), 0),
    ],
)
def test_longest_prompt_counts_every_reply_in_sight(form: Any, num_replies: int) -> None:
    longest = longest_prompt(form, QUESTION, 1000, COUNTS_REPLIES_ONLY)
    assert longest.prompt_tokens == num_replies * 1000


def test_longest_prompt_keeps_own_replies_uncut_when_fields_are_clipped() -> None:
    form = Simultaneous(num_agents=3, max_rounds=2, max_chars_per_field=26)
    # Own reply 1,000; of each of 2 peers at most 3 sections x (26 + 24) characters = 150.
    longest = longest_prompt(form, QUESTION, 1000, COUNTS_REPLIES_ONLY)
    assert longest.prompt_tokens == 1000 + 2 * 150


def test_longest_prompt_counts_a_long_question_and_passage_once() -> None:
    counted_texts: list[str] = []

    def count(text: str) -> int:
        counted_texts.append(text)
        return len(text)

    question = Question("q", "x" * 100_000, "2", {"passage": "y" * 50_000})
    form = Simultaneous(num_agents=5, max_rounds=3, conversation="rebuild")
    longest = longest_prompt(form, question, 10, TokenCounter(count, 0, 0, "counted"))
    assert longest.question_tokens == 150_000
    assert 150_000 < longest.prompt_tokens < 175_000  # both once; the rest are instructions
    assert sum(len(text) >= 50_000 for text in counted_texts) == 2
