"""Every example runs and prints what it is for."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from debate_protocol.cli import main as protocol_command
from debate_rewards.cli import main as rewards_command
from integration.notebooks import FOLDER, cells
from integration.notebooks import run as run_notebook

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

Run = Callable[..., list[str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example as a script and return the lines it prints."""

    def lines(name: str, *arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return lines


def test_parse_reply_prints_sections_votes_and_problems(run: Run) -> None:
    solution, evaluation, comparison, vote, answer, problems = run("parse_reply.py")
    # 49 characters stand before the solution's text: 39 of thinking and break, 10 of the tag.
    assert solution == "solution [49:90]"
    assert evaluation == "evaluation [114:159]"
    assert comparison.endswith("truncated")
    assert vote == "agent 0 > agent 2"  # the line in which agent 1 names itself is dropped
    assert answer == "answer: 12 * 7 = 84, and the tax is 4: \\boxed{88}"
    assert "1 invalid lines" in problems
    assert "1 lines name their author" in problems


def test_score_transcript_values_what_was_voted_on(run: Run) -> None:
    printed = run("score_transcript.py")
    # Agent 2's one counted vote is 0 over 1. Its own first turn failed, which is -1, and the
    # line of agent 0 about that turn is dropped. Nobody can vote on the last round.
    assert printed[:4] == [
        "rope: agent 0 round 0 generator +1.00",
        "rope: agent 1 round 0 generator -1.00",
        "rope: agent 2 round 0 generator -1.00",
        "rope: agent 0 round 1 generator no signal",
    ]
    assert "rope: win rates with failures (1.0, 0.0, -1.0)" in printed
    assert "rope: decided by peers right" in printed
    # 5 of 6 turns can be read; all three last answers are 5.
    assert printed[-1] == "{'format_all': 0.833, 'avg@k': 1.0, 'failed_turns': 1.0}"


def test_trl_reward_prints_one_value_a_completion(run: Run) -> None:
    # 1.5, a quoted 3/2 before the own 2, 1 1/2 in a chat message, and no answer.
    assert run("trl_reward.py") == ["[1.0, 0.0, 1.0, 0.0]", "[0.0, 0.0, 0.0, 0.0]"]


def test_trl_rollout_trains_a_policy_on_turns_of_its_debates(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="the group trl is not installed")
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    model = str(tmp_path / "model")
    output = str(tmp_path / "output")
    run("tiny_model.py", model)
    assert (
        run("trl_rollout.py", model, output)[-1] == "reward 0.0"
    )  # Random weights agree on nothing.

    example = runpy.run_path(str(EXAMPLES / "trl_rollout.py"), run_name="example")
    config = GRPOConfig(
        output, per_device_train_batch_size=2, num_generations=2, max_completion_length=8,
        max_steps=1, learning_rate=1e-3, use_cpu=True, bf16=False, report_to=[],
        save_strategy="no", logging_steps=1,
    )  # fmt: skip

    def first(completions: list[str], agreement: list[float], **columns: object) -> list[float]:
        assert agreement == [0.0, 0.0]
        return [1.0, 0.0]

    questions = Dataset.from_dict({"prompt": ["1 + 1 = ?"]})
    trainer = GRPOTrainer(model, [first], config, questions, rollout_func=example["debates"])
    trainer.train()
    (step, *_) = trainer.state.log_history
    assert step["grad_norm"] > 0
    assert step["rewards/first/mean"] == 0.5
    before = AutoModelForCausalLM.from_pretrained(model).state_dict()
    after = trainer.model.state_dict()
    assert any(not torch.equal(before[name], after[name].cpu()) for name in before)


@pytest.mark.tools
def test_verifiers_plays_and_pays_our_debates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from debate_report.rollout_files import import_rollouts
    from rollout.chat_server import Answer, Endpoint, Seen, said, serving

    turn = "<solution>{}</solution><evaluation>ok</evaluation><comparison>{}</comparison>"

    def debater(number: int, sent: Seen) -> Answer:
        last = sent.body["messages"][-1]["content"]
        if last.startswith("Round 2"):  # Whoever may judge agent 0 prefers it.
            return said(turn.format(42, "Agent 0 > Agent 1\nAgent 0 > Agent 2"))
        return said(turn.format(42 if "Agent 0" in last else 32, "N/A"))

    # As the file says it, and how many and where to.
    command_line = (EXAMPLES / "verifiers_debate.py").read_text().splitlines()[2]
    assert command_line.startswith("PYTHONPATH=examples vf-eval ")
    monkeypatch.setenv("HOME", str(tmp_path))
    endpoint = Endpoint(debater)
    with serving(endpoint) as url:
        more = f" -n 1 -o {tmp_path} --run.dir run --no-rich"
        command = command_line.replace("MODEL", "any").replace("URL", url) + more
        subprocess.run(command, shell=True, cwd=EXAMPLES.parent, check=True)
    assert len(endpoint.seen) == 6  # Three agents, two rounds, one question.
    (episode,) = map(json.loads, (tmp_path / "run/traces.jsonl").read_text().splitlines())
    assert episode["ok"]
    for trace in episode["traces"]:
        roles = [node["message"]["role"] for node in trace["nodes"]]
        assert roles == ["system", "user", "assistant", "user", "assistant"]
    agents = {trace["info"]["agent"]: trace["rewards"] for trace in episode["traces"]}
    # Agent 1 votes 0 > 2 and agent 2 votes 0 > 1; nobody judges itself.
    assert {agent: paid["peers"]["score"] for agent, paid in agents.items()} == {0: 1, 1: -1, 2: -1}
    (debate,) = import_rollouts(tmp_path / "run/traces.jsonl")
    assert (debate.protocol.contract, debate.meta["peers"]) == ("three_section", -1 / 3)
    for trace in episode["traces"]:
        del trace["info"]["debate"]  # As of an environment that is not ours.
    (tmp_path / "plain.jsonl").write_text(json.dumps(episode))
    (plain,) = import_rollouts(tmp_path / "plain.jsonl")
    assert [(turn.key, turn.text) for turn in plain.turns] == [
        (turn.key, turn.text) for turn in debate.turns
    ]
    assert plain.turns[3].prompt == debate.turns[3].prompt
    assert plain.question.text == debate.question.text


def test_verl_reward_prints_scores_and_what_they_rest_on(run: Run) -> None:
    assert run("verl_reward.py") == [
        "{'score': 1.0, 'unverifiable': 0.0, 'timeout': 0.0}",
        "{'score': 0.0, 'unverifiable': 0.0, 'timeout': 0.0}",
        "{'score': 1.0, 'unverifiable': 0.0, 'timeout': 0.0}",
        "{'score': 0.0, 'unverifiable': 1.0, 'timeout': 0.0}",
    ]


def test_one_debate_prints_two_rounds(run: Run) -> None:
    printed = run("one_debate.py")
    assert printed[0] == "Debate sum"
    assert [line for line in printed if line.startswith("──")] == [
        "── Round 1 ──",
        "── Round 2 ──",
    ]
    assert "    17 + 25 = 32" in printed
    assert "    Agent 2 > Agent 1" in printed
    assert printed[-1] == "Ended: max_rounds"


@pytest.mark.slow
def test_rl_loop_learns(run: Run) -> None:
    printed = run("rl_loop.py")
    before, after = (float(line.split()[-2]) for line in printed if line.startswith("after"))
    # Guessing is right one time in four. With the sign of the advantage turned round hardly any
    # answer is right in the end.
    assert before > 0.25
    assert after - before > 0.05


@pytest.mark.slow
def test_sdrl_loop_learns_to_answer_and_to_answer_after_others(run: Run) -> None:
    before, after = (line.split() for line in run("sdrl_loop.py") if line.startswith("after"))
    # Guessing is right one time in four.
    for column in (5, 9):
        assert float(after[column].strip(",")) - float(before[column].strip(",")) > 0.03


@pytest.mark.slow
def test_acc_debate_loop_learns_from_its_critic(run: Run) -> None:
    printed = run("acc_debate_loop.py")
    before, after = (float(line.split()[-1]) for line in printed if line.startswith("after"))
    assert after - before > 0.02


def test_train_from_python_learns_what_its_function_values(run: Run, tmp_path: Path) -> None:
    *steps, last = run("train_from_python.py", str(tmp_path / "run"))
    values = [float(line.split()[-1]) for line in steps if line.startswith("step ")]
    assert len(values) == 12
    # Of random words 1 in some twenty is a plus; a reward of the opposite sign leaves none.
    assert values[-1] > values[0] + 0.1
    assert last.startswith("12 rows of metrics; weights: ")


def test_tiny_model_loads_and_its_template_knows_thinking(run: Run, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (printed,) = run("tiny_model.py", str(tmp_path))
    assert printed.startswith(f"{tmp_path}: ")
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.max_position_embeddings >= 16384
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "漢字 🙂 <solution>½</solution>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    messages = [{"role": "user", "content": "1 + 1?"}]
    thinking, quick = (
        tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=on
        )
        for on in (True, False)
    )
    assert thinking == "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n"
    assert quick == thinking + "<think>\n\n</think>\n\n"


def commands(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    name, *rest = arguments
    main = {"debate-protocol": protocol_command, "debate-rewards": rewards_command}[name]
    assert main(rest) == 0
    return capsys.readouterr().out


def test_commands_read_the_example_files(capsys: pytest.CaptureFixture[str]) -> None:
    debates = str(EXAMPLES / "data/debates.jsonl")
    assert commands(capsys, "debate-protocol", "validate", debates).startswith(
        "4 debates, 24 turns, 1 failed turns, 0 lines"
    )
    printed = commands(capsys, "debate-protocol", "show", debates)
    assert "A rope of 15 m" in printed
    assert "failed: no answer can be read" in printed

    replies = str(EXAMPLES / "data/replies.jsonl")
    parsed = commands(capsys, "debate-protocol", "parse", replies, "--contract", "three_section")
    complete, cut_off, no_tags = map(json.loads, parsed.splitlines())
    assert complete["comparisons"] == [{"left": 2, "op": ">", "right": 0, "span": [81, 98]}]
    assert cut_off["sections"]["solution"]["truncated"]
    assert cut_off["invalid_lines"] == 1
    assert no_tags["sections"] == {}

    scored = commands(
        capsys, *("debate-rewards", "score", debates, "--reward", "v2", "--set", "unvoted=zero")
    )
    rope, half, prime, harbour = (json.loads(line)["agents"] for line in scored.splitlines())
    # First turns: one vote for agent 0 against agent 1, agent 2 failed. Second turns: 0 each.
    assert rope == [0.5, -0.5, -0.5]
    # 0 and 1 beat 2 and tie with each other: 2 * 1.5 / 2 - 1; 2 loses both.
    assert half == [0.25, 0.25, -0.5]
    assert prime == [0, 0, 0]  # 1 > 2 > 0 > 1
    assert harbour == [0, -0.5, 0.5]

    stats = json.loads(commands(capsys, "debate-rewards", "stats", debates))["metrics"]
    # Of three debates with an answer: 1, 2 and 2 of 3 right first; then 3, 3 and 1.
    assert stats["accuracy/round_0"] == pytest.approx(5 / 9)
    assert stats["accuracy/round_1"] == pytest.approx(7 / 9)
    # Agents 1 and 2 of rope and agent 2 of half turn right, agent 0 of prime wrong.
    assert stats["flips/wrong_to_right"] == pytest.approx(3 / 9)
    assert stats["flips/right_to_wrong"] == pytest.approx(1 / 9)


NAMES = sorted(file.name for file in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_small_executed_and_says_nothing_of_a_machine(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    assert len(text) < 50_000
    assert not any(text_of_machine in text for text_of_machine in ("/tmp/", "Traceback"))
    counts = [cell["execution_count"] for cell in cells(name) if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_first_debate_runs_and_shows_what_it_was_committed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = [cell for cell in cells("first_debate.ipynb") if cell["cell_type"] == "code"]
    outputs_of_cells = run_notebook("first_debate.ipynb")
    for number, (cell, outputs) in enumerate(zip(code, outputs_of_cells, strict=True)):
        kinds = [[output["output_type"], *output.get("data", {})] for output in outputs]
        assert kinds == [
            [output["output_type"], *output.get("data", {})] for output in cell["outputs"]
        ]
        if number < 3:  # What is trained depends on the machine's arithmetic.
            assert outputs == cell["outputs"]
