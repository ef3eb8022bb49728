"""Rollouts that other programs wrote are read as what they are."""

import base64
import itertools
import json
import re
import zlib
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from debate_protocol import read_transcripts
from debate_protocol.cli import main
from debate_protocol.command_line import UsageError
from debate_protocol.transcripts.files import transcript_problems
from debate_report import report_main
from debate_report.browsing import blocks_of, read_all
from debate_report.debates import Debates
from debate_report.imports.values import golds, template_messages
from debate_report.rollout_files import debates_in, import_rollouts
from debate_report.run_files import read_source
from debate_train.commands.cli import main as train

FILES = Path(__file__).parent / "rollout_files"
# File; replies, questions, mean reward, replies that the file calls right and wrong, step.
REAL_FILES = [
    ("verl-0.9.1-validation-0.jsonl", 4, 2, 0.6875, 3, 1, 0),
    # Penalized replies have scores between: the file says neither right nor wrong.
    ("verl-0.9.1-rollouts-1.jsonl", 8, 2, 0.50625, 4, 3, 1),
    ("ms-swift-4.6.0.jsonl", 8, 2, None, 4, 4, 1),
    ("skyrl-0.3.0/global_step_5_evals/sums.jsonl", 4, 2, 0.5, 2, 2, 5),
    ("train_data_step1.jsonl", 4, 2, 0.75, 3, 1, 1),
    ("val_data_step0.jsonl", 2, 2, 0.5, 1, 1, 0),
    ("art-0.5.18/0001.parquet", 5, 2, 0.4, 2, 3, 1),
    ("prime-rl-559b447-traces.jsonl", 4, 2, 0.875, 2, 2, 7),
    ("verifiers-0.4.0-traces.jsonl", 6, 3, 0.5, 3, 3, None),
    ("samples_sums_two_2026-11-28T12-00-00.000000.jsonl", 3, 3, 1 / 3, 1, 2, None),
    ("samples_sums_mc_2026-11-28T12-00-00.000000.jsonl", 3, 3, 2 / 3, 2, 1, None),
    ("lighteval-0.13.0.parquet", 8, 2, None, 0, 0, None),
    ("inspect-0.3.285-sums.eval", 8, 4, 0.75, 6, 2, None),
    ("inspect-0.3.285-errors.eval", 4, 4, 1.0, 3, 0, None),
    ("inspect-0.3.285-rewards.eval", 4, 4, 0.5, 3, 1, None),
    ("inspect-0.3.285-cut.json", 2, 2, 0.5, 1, 1, None),
    # The failed fifth has no reward, though the file says 0: (1 + 0 + 0 + 1.25) / 4.
    ("tinker-cookbook-0.6.1-evaluation.jsonl", 5, 3, 0.5625, 2, 2, None),
]
DEBATES = Path(__file__).resolve().parents[2] / "examples/data/debates.jsonl"


@pytest.mark.parametrize(
    ("name", "num_replies", "num_questions", "mean_reward", "num_right", "num_wrong", "step"),
    REAL_FILES,
)
def test_file_of_a_released_package_is_read_as_it_is(
    name: str,
    num_replies: int,
    num_questions: int,
    mean_reward: float | None,
    num_right: int,
    num_wrong: int,
    step: int | None,
) -> None:
    debates = import_rollouts(FILES / name)
    rewards = [debate.meta["reward"] for debate in debates if "reward" in debate.meta]
    verdicts = [debate.meta.get("verdict") for debate in debates]
    assert len(debates) == num_replies
    assert len({debate.question.id for debate in debates}) == num_questions
    assert (fmean(rewards) if rewards else None) == pytest.approx(mean_reward)
    assert (verdicts.count("right"), verdicts.count("wrong")) == (num_right, num_wrong)
    assert debates[0].meta.get("step") == step
    # No role word or marker of a template is part of a question or a reply.
    for debate in debates:
        assert "<|im_" not in debate.question.text
        assert not debate.question.text.startswith(("system", "user"))
        assert all("<|im_" not in turn.text for turn in debate.turns)


@pytest.mark.parametrize(
    ("name", "described"),
    [
        ("verifiers-0.4.0-validate.jsonl", "a report of vf-validate"),
        ("skyrl-0.3.0/global_step_5_evals/aggregated_results.jsonl", "eval/all/avg_score"),
    ],
)
def test_file_without_replies_is_named_with_what_is_read(name: str, described: str) -> None:
    with pytest.raises(UsageError) as refusal:
        import_rollouts(FILES / name)
    for expected in (described, "(verl)", "(inspect)", "(TRL, or plain rows)"):
        assert expected in str(refusal.value)


@pytest.fixture
def byte_tokenizer(tmp_path: Path) -> Path:
    """The tokenizer of the token export: bytes, then the markers of ChatML."""
    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_token_export_of_prime_rl_has_text_by_its_tokenizer(byte_tokenizer: Path) -> None:
    path = FILES / "prime-rl-559b447-token-export.jsonl"
    right, wrong = import_rollouts(path, tokenizer=byte_tokenizer)
    assert [debate.turns[0].text for debate in (right, wrong)] == ["\\boxed{4}", "\\boxed{5}"]
    assert right.question.id == wrong.question.id
    assert right.question.text == "2+2?"
    # The end marker was sampled, and has no text.
    assert right.meta["tokens"] == [*"\\boxed{4}", ""]
    assert right.meta["advantages"] == [0.5] * 10
    assert right.turns[0].token_counts == (0, 10)
    assert (right.meta["step"], wrong.meta["advantage"]) == (3, -0.5)
    assert right.meta["logprob_gap"] == pytest.approx(0.0395, abs=0.02)
    assert "caveats" not in right.meta


def test_sampled_tokens_of_several_turns_are_one_reply_with_zeros_between(
    byte_tokenizer: Path, tmp_path: Path
) -> None:
    # The prompt, a turn of two tokens, one of the environment, and a turn of one: 4 from A (32).
    row = {
        "token_ids": [30, 32, 33, 34, 35],
        "loss_mask": [False, True, True, False, True],
        "advantages": [0.0, 1.0, -1.0, 0.0, 0.5],
        "rewards": [None, 0.25, 0.25, None, 0.25],
        "export_sequence_idx": 0,
        "step": 8,
        "export_step": 2,
    }
    (debate,) = import_rollouts(written(tmp_path / "rank_0.jsonl", row), tokenizer=byte_tokenizer)
    assert debate.turns[0].text == "ABCD"
    assert debate.meta["advantages"] == [1.0, -1.0, 0.0, 0.5]
    assert (debate.meta["replies"], debate.meta["reward"], debate.meta["step"]) == (2, 0.25, 2)
    assert debate.turns[0].token_counts == (0, 3)


def test_groups_of_atropos_have_the_text_of_their_messages() -> None:
    # atroposlib 0.4.0: the first group has its text in one message of the user, with markers.
    debates = import_rollouts(FILES / "atroposlib-0.4.0.jsonl")
    assert [debate.turns[0].text for debate in debates] == [
        "The answer is \\boxed{4}.",
        "The answer is \\boxed{5}.",
        "é is \\boxed{7}",
        "\\boxed{8}",
    ]
    assert [debate.question.text for debate in debates] == ["2+2?", "2+2?", "3+4?", "3+4?"]
    assert [debate.meta["reward"] for debate in debates] == [1.0, -1.0, 1.0, 0.0]
    assert [debate.meta["verdict"] for debate in debates] == ["right", "wrong", "right", "wrong"]
    assert "equal scores are not in the file" in str(debates[0].meta["caveats"])


@pytest.mark.parametrize(
    ("prompt", "messages"),
    [
        (
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\n2+2?<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
            [("system", "Be brief."), ("user", "2+2?")],
        ),
        (
            "<bos><start_of_turn>user\n2+2?<end_of_turn>\n<start_of_turn>model\n5<end_of_turn>\n"
            "<start_of_turn>user\nNo.<end_of_turn>\n<start_of_turn>model\n",
            [("user", "2+2?"), ("assistant", "5"), ("user", "No.")],
        ),
    ],
)
def test_templates_of_llama_and_gemma_are_read(
    prompt: str, messages: list[tuple[str, str]]
) -> None:
    read = [(message["role"], message["content"]) for message in template_messages(prompt)]
    assert read == messages


def prime_rl_rollouts(folder: Path, *, steps: tuple[int, ...], kinds: tuple[str, ...]) -> Path:
    """Lay out a file as prime-rl (559b447) does: `step_N/PART/traces.jsonl`."""
    rows = (FILES / "prime-rl-559b447-traces.jsonl").read_text().splitlines()
    for step, kind in itertools.product(steps, kinds):
        stamped = [json.loads(row) for row in rows]
        for episode in stamped:
            episode["run"]["work"]["step"] = step
        (folder / f"step_{step}" / kind).mkdir(parents=True)
        written(folder / f"step_{step}" / kind / "traces.jsonl", *stamped)
    return folder


def test_folders_that_hold_replies_twice_are_named_and_a_pattern_reads_one_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = ("train/all", "train/effective", "eval/all")
    rollouts = prime_rl_rollouts(tmp_path / "rollouts", steps=(2, 10), kinds=kinds)
    assert report_main([str(rollouts)]) == 2
    refusal = capsys.readouterr().err
    for kind in kinds:
        assert f"step_*/{kind}" in refusal
    pattern = str(rollouts / "step_*" / "train" / "all")
    effective = str(rollouts / "step_*" / "train" / "effective" / "*.jsonl")
    assert f"'{rollouts / 'step_*' / kinds[2]}'" in refusal
    num_of_one_step = len(import_rollouts(FILES / "prime-rl-559b447-traces.jsonl"))
    for quoted in (pattern, effective):
        steps = [reply.meta["step"] for reply in read_source(Path(quoted)).imported]
        assert steps == [2] * num_of_one_step + [10] * num_of_one_step
        assert report_main([quoted]) == 0
        assert capsys.readouterr().out == f"{rollouts / 'report.html'}\n"


def problems_shown(path: Path) -> list[list[str]]:
    """Return the problems that the page has beside the last turn of each reply."""
    blocks = blocks_of(read_all(read_source(path)))
    packed = (zlib.decompress(base64.b64decode(block)) for block in blocks.texts)
    debates = list(itertools.chain.from_iterable(map(json.loads, packed)))
    return [debate["turns"][-1]["problems"] for debate in debates]


def test_page_says_why_replies_failed_and_which_were_cut(tmp_path: Path) -> None:
    episodes = (FILES / "verifiers-0.4.0-traces.jsonl").read_text().splitlines()
    failed = json.loads(episodes[0]) | {"ok": False, "errors": [{"message": "no answer of it"}]}
    before_any_reply = failed | {"traces": []}
    path = written(tmp_path / "traces.jsonl", failed, before_any_reply)
    assert ["no answer of it" in problems for problems in problems_shown(path)] == [True, True]
    in_inspect = problems_shown(FILES / "inspect-0.3.285-errors.eval")
    assert sum("the tool did not answer" in "".join(problems) for problems in in_inspect) == 1
    cut = problems_shown(FILES / "inspect-0.3.285-cut.json")
    assert sum("token limit" in "".join(problems) for problems in cut) == 1


def written(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_plain_rows_are_read_and_unknown_numbers_are_not_zero(tmp_path: Path) -> None:
    path = written(
        tmp_path / "plain.jsonl",
        {"question": "1 + 1?", "response": "\\boxed{2}", "reward": 1, "answer": "2"},
        '{"question": "1 + 1?", "response": "3", "reward": NaN, "loss": -Infinity}',
        '{"question": "1 + 1?", "response": "4", "reward": ' + "9" * 400 + "}",
    )
    right, unknown, endless = import_rollouts(path)
    assert (right.meta["reward"], right.meta["verdict"]) == (1.0, "right")
    assert unknown.meta == endless.meta == {}


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("<think>1</think><answer>2</answer>", "right"),
        ("<think>2</think>\n<Answer> 3", "wrong"),
        ("<answer>is</answer> \\boxed{2}", "right"),
        ("It is 3.\nAnswer: 2", "right"),
        ("It is 3. #### 2\n", "right"),
        ("#### 2\n#### 3", "wrong"),
        ("#### 2\nIt is 2", None),
        ("2", None),
    ],
)
def test_reply_without_a_box_is_read_by_its_own_mark(
    tmp_path: Path, reply: str, verdict: str | None
) -> None:
    row = {"prompt": "1 + 1?", "completion": reply, "answer": "2"}
    debates = Debates()
    debates.add_imported(import_rollouts(written(tmp_path / "plain.jsonl", row)))
    (recorded,) = debates.found
    verdicts = [verdict for _, verdict in dict(recorded.decisions).values()]
    assert verdicts == ([] if verdict is None else [verdict])


def test_plain_rows_lose_what_a_template_wrote_and_their_answer_is_no_score(tmp_path: Path) -> None:
    row = {
        "prompt": "<|im_start|>user\n1 + 1?<|im_end|>\n<|im_start|>assistant\n",
        "completion": "2</s><|im_end|>",
        "answer": 2,
    }
    (debate,) = import_rollouts(written(tmp_path / "plain.jsonl", row))
    assert debate.question.text == "1 + 1?"
    assert (debate.question.answer, debate.turns[0].text, debate.meta) == ("2", "2", {})


@pytest.mark.parametrize(
    ("row", "kind", "message"),
    [
        ({"reward": "1.0"}, None, "row 1: reward: found '1.0'; expected a number"),
        ({"reward": {"right": 1.0}}, None, "row 1: reward: found {'right': 1.0}; expected"),
        ({"score": [1.0]}, None, "row 1: score: found [1.0]; expected a number"),
        ({}, "maths", "kind: found 'maths'; expected one of math, choice"),
    ],
)
def test_value_that_would_be_lost_is_refused(
    tmp_path: Path, row: dict[str, Any], kind: str | None, message: str
) -> None:
    path = written(tmp_path / "plain.jsonl", {"prompt": "1 + 1?", "completion": "2"} | row)
    with pytest.raises(UsageError, match=re.escape(message)):
        import_rollouts(path, kind=kind)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["Lima"], ["Lima"]),
        (["7", "8"], ["7", "8"]),
        ({"ground_truth": 4, "style": "rule"}, ["4"]),
        (float("nan"), []),
        (True, []),
    ],
)
def test_right_answers_are_texts_however_they_are_held(value: object, expected: list[str]) -> None:
    assert golds(value) == expected


def test_verdict_of_the_file_goes_before_ours(tmp_path: Path) -> None:
    row = {"question": "1 + 1?", "answer": "2", "reward": 1.0}
    path = written(
        tmp_path / "rows.jsonl",
        row | {"response": "two, without a box"},
        row | {"response": "\\boxed{3}"},
        {**row, "response": "two", "reward": 0.5},
    )
    debates = Debates()
    debates.add_imported(import_rollouts(path))
    decisions = [dict(recorded.decisions) for recorded in debates.found]
    assert decisions[0] == {"the file's reward": ("", "right")}
    # A reply that earned all and is wrong by our check shows both.
    assert decisions[1] == {"the file's reward": ("3", "right"), "checked here": ("3", "wrong")}
    assert decisions[2] == {}  # not read, and so not wrong


def node(parent: int | None, role: str, content: Any, *, sampled: bool = False) -> dict[str, Any]:
    return {"parent": parent, "message": {"role": role, "content": content}, "sampled": sampled}


def trace(start: float, answer: str, reward: float) -> dict[str, Any]:
    """A trace of verifiers: two replies, the second to what came after the first."""
    return {
        "nodes": [
            node(None, "system", "be brief"),
            node(0, "user", [{"type": "text", "text": "2 + 2 = ?"}]),
            node(1, "assistant", answer, sampled=True),
            node(2, "tool", "checked"),
            node(3, "assistant", f"\\boxed{{{answer}}}", sampled=True),
        ],
        "rewards": {"right": {"score": reward, "weight": 2.0}, "unscored": None},
        "metrics": {"turns": 2.0, "missing": None},
        "timing": {"start": start},
    }


def episode(*traces: dict[str, Any], **data: Any) -> dict[str, Any]:
    task = {"type": "Any", "key": "k", "data": {"idx": 3, "prompt": "2 + 2 = ?", **data}}
    return {"id": "e", "task": task, "ok": True, "traces": list(traces)}


def test_exported_traces_of_verifiers_are_imported_as_the_debates_they_were(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    main(["export", str(DEBATES), "--to", "verifiers"])
    path = tmp_path / "traces.jsonl"
    path.write_bytes(capsysbinary.readouterr().out)
    assert debates_in(path, "debates", answer=None) == read_transcripts(DEBATES)
    assert train(["import", str(path)]) == 0
    (tmp_path / "debates.jsonl").write_bytes(capsysbinary.readouterr().out)
    assert read_transcripts(tmp_path / "debates.jsonl") == read_transcripts(DEBATES)


def test_episode_is_a_debate_whose_agents_are_its_traces(tmp_path: Path) -> None:
    path = written(tmp_path / "traces.jsonl", episode(trace(9, "5", 0), trace(1, "4", 1), answer=4))
    (debate,) = import_rollouts(path, kind="number")
    assert (debate.id, debate.question.answer) == ("e", "4")
    assert debate.question.id.startswith("3-")
    assert debate.question.text == "2 + 2 = ?"
    assert [(turn.agent, turn.round, turn.text) for turn in debate.turns] == [
        (0, 0, "4"),  # It began first, though its trace was complete last.
        (1, 0, "5"),
        (0, 1, "\\boxed{4}"),
        (1, 1, "\\boxed{5}"),
    ]
    last = debate.turns[-1].prompt
    assert [message["content"] for message in last] == ["be brief", "2 + 2 = ?", "5", "checked"]
    assert [message["role"] for message in last] == ["system", "user", "assistant", "user"]
    # Agent 0 earned 2 * 1, agent 1 2 * 0.
    assert debate.meta == {"right": 0.5, "turns": 2.0, "reward": 1.0, "group": "k"}
    assert transcript_problems(debate) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"traces": [1]}, "row 1: traces: found int; expected an object"),
        (episode({"nodes": 1}), "row 1: trace 0: nodes: found int; expected a list"),
        (episode({"nodes": [], "info": {"debate": {}}}), "row 1: info.debate: "),
    ],
)
def test_file_that_holds_no_episodes_is_refused(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        import_rollouts(written(tmp_path / "traces.jsonl", row))
    with pytest.raises(UsageError, match="found no field 'gold'; expected one of idx, prompt"):
        import_rollouts(written(tmp_path / "gold.jsonl", episode()), answer="gold")


def test_summaries_of_tinker_show_their_numbers() -> None:
    path = FILES / "tinker-cookbook-0.6.1.jsonl"
    with pytest.raises(UsageError, match="numbers without text"):
        import_rollouts(path)
    debates = import_rollouts(path, allow_no_text=True)
    # The total, not the group's part of it, which is 1.0 of the first.
    assert [debate.meta["reward"] for debate in debates] == [1.75, -1.0, 1.0, 0.0]
    assert len({debate.meta["group"] for debate in debates}) == 2
    assert [debate.meta["verdict"] for debate in debates] == ["right", "wrong", "right", "wrong"]
    assert debates[0].turns[0].token_counts == (0, 12)  # 5 and 7 of two steps
    assert debates[0].turns[0].text == "\\boxed{4}"


def test_damaged_file_of_a_folder_is_named_and_an_aggregate_is_not(tmp_path: Path) -> None:
    good = (FILES / "verl-0.9.1-rollouts-1.jsonl").read_text()
    (tmp_path / "1.jsonl").write_text(good)
    (tmp_path / "results.json").write_text('{"results": {}, "configs": {}, "n-shot": {}}')
    assert read_all(read_source(tmp_path)).unreadable == 0
    (tmp_path / "2.jsonl").write_text('{"input": broken\n' + good)
    debates = read_all(read_source(tmp_path))
    assert (len(debates.found), debates.unreadable) == (8, 1)
    assert "2.jsonl" in debates.problem
