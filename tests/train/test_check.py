"""What --check says of a recipe: arithmetic, context length, warnings and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_train.recipe import Recipe
from debate_train.recipe.check import CheckReport, check


def recipe(**changes: Any) -> Recipe:
    data: dict[str, Any] = {
        "name": "t",
        "steps": 10,
        "model": {"type": "scratch", "context_window": 4096},
        "data": {"type": "signs_puzzle", "batch_size": 8},
        "debate": {"num_agents": 5, "max_rounds": 2, "style": "compact", "personas": "none"},
        "rollout": {"max_tokens": 16},
        "advantage": {"baseline": "question_round"},
    }
    return Recipe.model_validate(data | changes)


def line_with(report: CheckReport, text: str) -> str:
    (line,) = [line for line in report.lines if text in line]
    return line


def test_check_says_arithmetic_of_step_and_run() -> None:
    report = check(recipe(rollout={"max_tokens": 16, "debates_per_question": 2}))
    # 8 questions x 2 = 16 debates; x 5 agents x 2 rounds = 160 turns; 16 x 5 = 80 rows.
    step = line_with(report, "a step:")
    assert "8 questions x 2 debates = 16 debates; x 5 agents x 2 rounds = 160 turns" in step
    assert "80 samples" in step
    # 10 steps: 80 questions, 160 debates, 1,600 turns, 800 samples; 1,600 x 16 = 25,600 tokens.
    run = line_with(report, "in all:")
    assert "80 questions, 160 debates, 1,600 turns, 800 samples, 10 updates" in run
    assert "at most 25,600 tokens" in run
    assert report.warnings == report.errors == []


def test_check_names_a_context_once_for_all_forms_of_a_phase() -> None:
    form = {"type": "simultaneous", "num_agents": 5, "max_rounds": 2, "style": "compact"}
    others = [form | {"personas": "none", "temperature": heat} for heat in (0.5, 0.7)]
    report = check(recipe(rollout={"max_tokens": 16, "other_forms": others}))
    assert report.errors == []
    assert "reply 16" in line_with(report, "  context: at most")


def test_check_counts_a_sample_for_each_turn_when_rebuilt() -> None:
    debate = {"num_agents": 5, "max_rounds": 2, "style": "compact", "conversation": "rebuild"}
    assert "80 samples (one for each turn)" in line_with(check(recipe(debate=debate)), "a step:")


@pytest.mark.parametrize(
    ("go_on", "updates", "turns", "drawn"),
    [
        # 8 questions x 4 first turns, of which 3 go on to 2 more each: 32 + 6 rows, in updates of
        # at most 12. Three batches of questions: 3 x 32 first turns, and still 6 second ones.
        (3, 4, "x 4 turns, 3 of them x 2 more = 38 turns; 38 samples", 102),
        # A rule that counts nothing lets those of the last batch go on that are too many, too.
        (None, 4, "x 4 turns, 8 of them x 2 more = 48 turns; 48 samples", 128),
    ],
)
def test_check_counts_what_goes_on_after_a_gate(
    go_on: int | None, updates: int, turns: str, drawn: int
) -> None:
    rules: list[dict[str, Any]] = [{"type": "informative"}]
    rules += [] if go_on is None else [{"type": "at_most", "go_on": go_on}]
    select = {"type": "in_order", "rules": rules}
    report = check(
        recipe(
            debate={"type": "self_debate", "first_turns": 4, "second_turns": 2, "style": "compact"},
            rollout={"max_tokens": 16, "select": select, "oversample": 3},
            reward={"type": "verifiable"},
            loss={"type": "dapo"},
            trainer={"type": "torch", "minibatch_size": 12},
        )
    )
    steps = line_with(report, "phase train")
    assert f"10 steps of at most {updates} optimizer updates each" in steps
    assert f"= 8 debates; {turns}" in line_with(report, "a step:")
    assert f"at most {10 * updates} updates" in line_with(report, "in all:")
    assert line_with(report, "draws up to 3").endswith(f"at most {drawn * 16:,} tokens in replies")


def test_check_names_the_row_that_is_longer_than_the_window(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [{"id": f"row-{n}", "question": f"What is {n}?", "answer": n} for n in range(40)]
    rows[7]["question"] = "how long " * 5000
    path.write_text("\n".join(map(json.dumps, rows)))
    (error,) = check(recipe(data={"path": str(path)})).errors
    assert "the longest question, id 'row-7', alone has 10,000 tokens ('how long how" in error


def test_check_refuses_context_above_window() -> None:
    report = check(recipe(rollout={"max_tokens": 512}))
    # Prompt: own 512 and 4 peers x 512; reply 512: at least 3,072 of 4,096 fits; 1,024 does not.
    assert report.errors == []
    (error,) = check(recipe(rollout={"max_tokens": 1024})).errors
    assert "is above the window of 4,096 (model.context_window)" in error
    assert "lower rollout.max_tokens" in error


def test_check_takes_the_engine_window_when_it_is_smaller() -> None:
    rollout = {"max_tokens": 512, "engine": {"type": "transformers", "context_window": 2048}}
    (error,) = check(recipe(rollout=rollout)).errors
    assert "window of 2,048 (rollout.engine.context_window)" in error


def test_check_reads_window_and_tokenizer_of_a_local_model(tmp_path: Path) -> None:
    scratch = recipe().model
    scratch.load_tokenizer().save_pretrained(tmp_path)
    config = {"max_position_embeddings": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = check(recipe(model={"name": str(tmp_path)}, rollout={"max_tokens": 256}))
    (error,) = report.errors
    assert "window of 256" in error
    assert "counted with its tokenizer" in error


def test_check_refuses_model_directory_without_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (error,) = check(recipe(model={"name": str(tmp_path)})).errors
    assert "holds no tokenizer.json" in error


def test_check_refuses_model_directory_that_is_not_there(tmp_path: Path) -> None:
    (error,) = check(recipe(model={"name": str(tmp_path / "no")})).errors
    assert "there is no directory" in error


def test_check_refuses_a_mistyped_folder_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    (error,) = check(recipe(model={"name": "runs/frist"})).errors
    assert "there is no directory 'runs/frist'" in error


def test_check_says_that_window_is_unknown_for_other_hub_models() -> None:
    report = check(recipe(model={"name": "someone/some-model"}))
    assert "set model.context_window to check it" in line_with(report, "context:")
    assert report.errors == []


@pytest.mark.parametrize("content", [None, ""])
def test_check_refuses_missing_and_empty_data(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "q.jsonl"
    if content is not None:
        path.write_text(content)
    (error,) = check(recipe(data={"path": str(path)})).errors
    assert error.startswith("data.path:")
    assert ("is empty" if content == "" else "found no file") in error


def test_check_counts_the_longest_question_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [{"question": f"make {i} Q 1 2", "answer": "1"} for i in range(40)]
    rows.append({"question": "Q " * 5000, "answer": "1"})
    path.write_text("\n".join(map(json.dumps, rows)))
    (error,) = check(recipe(data={"path": str(path)})).errors
    assert "is above the window of 4,096" in error


def test_check_refuses_a_path_that_is_no_hub_id(tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("?")
    (error,) = check(recipe(data={"path": str(tmp_path / "q.txt")})).errors
    assert "expected one that ends in .jsonl, .json or .parquet" in error


def test_check_reads_the_data_of_each_phase_once(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"{i} ?"}) for i in range(40)))
    phases = {
        "small": {"data": {"batch_size": 2}},
        "other": {"data": {"type": "questions", "path": str(path)}},
        "gone": {"data": {"type": "questions", "path": "gone.jsonl"}},
    }
    report = check(recipe(phases=phases))
    assert [line for line in report.lines if line.startswith("data: signs_puzzle")] != []
    assert len([line for line in report.lines if line.startswith("data: ")]) == 2
    (error,) = report.errors
    assert "gone.jsonl" in error
    assert "2 questions x 1 debate" in line_with(report, "a step: 2")


def test_check_refuses_another_engine_and_missing_demonstrations_in_a_phase(
    tmp_path: Path,
) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"{i} ?"}) for i in range(40)))
    rollout = {"engine": {"type": "demonstrations"}, "max_tokens": 256}
    demonstrate = {"loss": {"type": "sft"}, "rollout": rollout}
    phases = {
        "good": demonstrate,
        "lacking": demonstrate | {"data": {"type": "questions", "path": str(path)}},
        "other": {"rollout": {"engine": {"max_batch": 3}}},
    }
    other, lacking = check(recipe(phases=phases)).errors
    assert lacking.startswith("phases.lacking.rollout.engine.type: found demonstrations")
    assert other.startswith("phases.other.rollout.engine: found a difference")


def test_check_does_not_look_up_hub_data() -> None:
    report = check(recipe(data={"path": "openai/gsm8k"}))
    assert "hub dataset, not checked here" in line_with(report, "data.path")


V2_3 = {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"}


def test_check_warns_of_few_judges_only_when_they_are_trained() -> None:
    (warning,) = check(recipe(debate=V2_3)).warnings
    assert "each pair has one judge a round" in warning
    off = {"baseline": "question_round", "streams": {"generator": {}, "judge": {"weight": 0}}}
    assert check(recipe(debate=V2_3, advantage=off)).warnings == []


def test_check_warns_inside_a_mixed_reward() -> None:
    mixed = {
        "type": "mixed",
        "components": {
            "peers": {"reward": {"type": "v2", "unvoted": "literal"}, "weight": 0.7},
            "truth": {"reward": {"type": "verifiable"}, "weight": 0.3},
        },
    }
    (warning,) = check(recipe(reward=mixed)).warnings
    assert warning.startswith("reward.unvoted: literal")


def test_check_warns_of_group_baselines_under_v2() -> None:
    (warning,) = check(recipe(advantage={"baseline": "debate"})).warnings
    assert warning.startswith("advantage.baseline: debate")


def test_check_warns_of_a_stream_that_nothing_learns_from() -> None:
    advantage = {"baseline": "question_round", "streams": {"judge": {"weight": 1}}}
    (warning,) = check(recipe(advantage=advantage)).warnings
    assert "no stream generator is named" in warning


@pytest.mark.parametrize(
    ("baseline", "copies", "warns"),
    [("question_round", 1, 1), ("question_round", 8, 0), ("debate", 8, 1)],
)
def test_check_warns_of_lone_direct_replies(baseline: str, copies: int, warns: int) -> None:
    report = check(
        recipe(
            debate={"type": "direct", "style": "compact"},
            reward={"type": "verifiable"},
            advantage={"baseline": baseline},
            rollout={"max_tokens": 16, "debates_per_question": copies},
        )
    )
    assert len(report.warnings) == warns


def test_check_names_phase_and_refuses_what_a_run_has_once() -> None:
    changed = {
        "one": {"debate": {"num_agents": 3}},
        "two": {"seed": 1},
        "three": {
            "loss": {"type": "sft"},
            "debate": {"num_agents": 3},
            "rollout": {"engine": {"type": "demonstrations"}, "max_tokens": 256},
        },
    }
    report = check(recipe(phases=changed))
    (warning,) = report.warnings
    assert warning.startswith("phase one: v2 with 3 agents")
    (error,) = report.errors
    assert error.startswith("phases.two.seed: found a difference")


def test_check_refuses_a_recipe_that_never_samples() -> None:
    rollout = {"max_tokens": 16, "engine": {"type": "demonstrations"}}
    (error,) = check(recipe(rollout=rollout)).errors
    assert error.startswith("rollout.engine.type: found demonstrations")


@pytest.mark.parametrize(
    ("lora", "served", "expected"),
    [
        ({"rank": 8}, 8, None),
        ({"rank": 8}, 16, None),
        (None, None, None),
        ({"rank": 8}, None, "found null; expected at least model.lora.rank, which is 8"),
        ({"rank": 8}, 4, "found 4; expected at least model.lora.rank, which is 8"),
        (None, 4, "expected null"),
    ],
)
def test_check_matches_served_adapters_with_trained_ones(
    lora: dict[str, int] | None, served: int | None, expected: str | None
) -> None:
    rollout = {"max_tokens": 16, "engine": {"type": "vllm", "max_lora_rank": served}}
    report = check(recipe(model={"name": "Qwen/Qwen3-8B", "lora": lora}, rollout=rollout))
    assert [expected in error for error in report.errors if expected] == [True] * bool(expected)
    assert bool(report.errors) == bool(expected)


def test_check_says_what_is_played_ahead() -> None:
    changes = {"rollout": {"max_tokens": 256}, "loss": {"type": "dapo"}}
    report = check(recipe(pipeline={"max_staleness": 2}, **changes))
    line = "  up to 2 steps played ahead of training, with weights at most 2 steps old"
    assert line in report.lines
    assert not any("ahead" in text for text in check(recipe(**changes)).lines)
