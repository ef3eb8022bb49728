"""Sets of examples that read debates of files, as we and others write them."""

import json
from dataclasses import replace

import pytest

from debate_protocol.transcripts.files import read_transcripts, write_transcripts
from debate_train.commands.cli import main
from debate_train.data import SignsPuzzle
from train.offline_runs import lines
from train.small_runs import RECIPE as SMALL


def read_run(folder, offline, *arguments):
    """Run a recipe that imitates replies of a file's debates."""
    recipe = SMALL.replace("reward: {type: v2}", "").replace("loss: {type: ppo_clip}", "")
    recipe = recipe.replace("steps: 3", "steps: 1").replace("max_tokens: 4", "max_tokens: 48")
    recipe = recipe.replace("num_agents: 2, max_rounds: 1", "num_agents: 3, max_rounds: 2")
    recipe = recipe.replace("evaluation: {questions: 1", "evaluation: {questions: 0")
    recipe = recipe.replace("recording: {debates: 0}", "recording: {debates: 99}")
    recipe += f"reward: {{type: v2}}\nloss: {{type: sft}}\noffline: {json.dumps(offline)}\n"
    path = folder.with_suffix(".yaml")
    path.write_text(recipe)
    return main([str(path), *arguments, "--output", str(folder)])


def read_examples(folder):
    rows = lines(folder / "offline/train-000000.jsonl")
    return [{key: value for key, value in row.items() if key != "made_from"} for row in rows]


def read_counts(folder):
    metrics = json.loads((folder / "offline/train-000000.json").read_text())["metrics"]
    return {name.removeprefix("offline/"): value for name, value in metrics.items()}


EVERY_REPLY = {"type": "every_reply", "batch_size": 4}


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Imitate every reply of debates that are demonstrated."""
    folder = tmp_path_factory.mktemp("played") / "run"
    demonstrated = "phases={train: {rollout: {engine: {type: demonstrations}}}}"
    batch = "data.batch_size=4"
    assert read_run(folder, EVERY_REPLY | {"questions": 4}, demonstrated, batch) == 0
    return folder


@pytest.fixture(scope="module")
def debates(played):
    return list(read_transcripts(played / "offline/train-000000.debates.jsonl"))


def test_examples_of_a_file_are_those_of_the_debates_that_were_played(played, debates, tmp_path):
    # The same prompts and replies as ids, made again from text; a folder as debate-rollout leaves.
    write_transcripts(tmp_path / "transcripts.jsonl", debates)
    folder = tmp_path / "run"
    assert read_run(folder, EVERY_REPLY | {"path": str(tmp_path)}) == 0
    assert read_examples(folder) == read_examples(played)
    # The samples of a run are transcripts of any folder, too; `questions` takes the first ones.
    samples = tmp_path / "other/transcripts"
    samples.mkdir(parents=True)
    write_transcripts(samples / "train-000001.jsonl", debates)
    folder = tmp_path / "few"
    assert read_run(folder, EVERY_REPLY | {"path": str(samples.parent), "questions": 3}) == 0
    assert read_examples(folder) == read_examples(played)[: 3 * 6]


def test_what_cannot_be_learned_from_is_left_out_and_counted(debates, tmp_path):
    puzzle = SignsPuzzle(batch_size=4, num_digits=3, largest_digit=4)
    (test_question,) = puzzle.open().split("test", 1)
    first, second, third, *_ = debates
    without_prompts = tuple(replace(turn, prompt=None) for turn in second.turns)
    long_prompt = {"role": "user", "content": "Agent " * 600}  # The window is 512 tokens.
    long_turn = replace(first.turns[-1], prompt=(long_prompt,))
    shouted_question = replace(test_question, text=test_question.text.upper())
    path = tmp_path / "debates.jsonl"
    write_transcripts(
        path,
        [
            replace(first, turns=(*first.turns[:-1], long_turn)),
            replace(second, turns=without_prompts),
            replace(third, id="test", question=shouted_question),
            replace(third, id="twice", turns=(*third.turns, third.turns[0])),
        ],
    )
    folder = tmp_path / "run"
    assert read_run(folder, EVERY_REPLY | {"path": str(path)}) == 0
    counts = read_counts(folder)
    del counts["sampled_tokens"]
    assert counts == {
        "debates": 2,
        "held_out": 0,
        "kept/natural": 5,
        "left_out/dev_or_test": 1,
        "left_out/no_tokens": 7,
        "left_out/unreadable": 1,
    }


def test_rollouts_of_others_are_learned_from(tmp_path, capsys):
    prompt = [{"role": "user", "content": "make 6 Q 2 4"}]
    # Two replies to each of two questions; one of the four is wrong.
    replies = [(0, "+"), (0, "-"), (1, "+"), (1, "+")]
    rows = []
    for example_id, text in replies:
        completion = [{"role": "assistant", "content": f"\\boxed{{{text}}}"}]
        row = {"example_id": example_id, "prompt": prompt, "completion": completion, "answer": "+"}
        rows.append(json.dumps(row) + "\n")
    path = tmp_path / "results.jsonl"
    path.write_text("".join(rows))
    offline = {
        "type": "chosen_replies",
        "path": str(path),
        "imported": {"kind": "text"},
        "replies_per_question": 1,
        "batch_size": 2,
    }
    folder = tmp_path / "run"
    assert read_run(folder, offline, "--check") == 0
    printed = capsys.readouterr().out
    assert "4 debates of 1 question in" in printed
    assert "4 turns, 0 of them without the prompt" in printed
    assert read_run(folder, offline) == 0
    examples = read_examples(folder)
    assert [example["prompt"] for example in examples] == [prompt, prompt]
    questions = [example["meta"]["question"].partition("-")[0] for example in examples]
    assert questions == ["0", "1"]
    counts = read_counts(folder)
    assert counts["left_out/other_answer"] == counts["left_out/more_than_wanted"] == 1


@pytest.mark.parametrize(
    ("offline", "expected"),
    [
        # The majority of the first prompt is +, though - is right; the second has one reply.
        ({"type": "chosen_replies", "by": "majority"}, ["+", "+", "+ +"]),
        ({"type": "answer_pairs", "by": "majority"}, [("+", "-")]),
        ({"type": "answer_pairs", "by": "answer"}, [("-", "+"), ("-", "+")]),
    ],
)
def test_lone_replies_to_one_prompt_are_compared(offline, expected, tmp_path):
    replies = [("first", "+"), ("first", "-"), ("second", "+ +"), ("first", "+")]
    rows = [
        {"prompt": prompt, "completion": f"Answer: {answer}", "answer": "-"}
        for prompt, answer in replies
    ]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    loss = ["loss={type: dpo}"] if offline["type"] == "answer_pairs" else []
    settings = {"path": str(path), "imported": {"kind": "text"}, "batch_size": 1}
    assert read_run(tmp_path / "run", offline | settings, *loss) == 0
    answers = []
    for example in read_examples(tmp_path / "run"):
        assert example["sampled"]["agent"] == 0
        if offline["type"] == "answer_pairs":
            texts = [example[side][0]["content"] for side in ("chosen", "rejected")]
            answers.append(tuple(text.removeprefix("Answer: ") for text in texts))
        else:
            answers.append(example["completion"][0]["content"].removeprefix("Answer: "))
    assert sorted(answers) == expected


def test_replies_without_a_mark_are_refused_with_the_setting_that_reads_them(tmp_path, capsys):
    row = {"prompt": "make 6 Q 2 4", "completion": "It is +", "answer": "+"}
    path = tmp_path / "rollouts.jsonl"
    path.write_text(json.dumps(row))
    assert read_run(tmp_path / "run", {"type": "chosen_replies", "path": str(path)}) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert "(offline/left_out/no_readable_reply: 1); expected replies whose answers" in message
    assert "offline.imported.contract" in message


def test_replies_of_others_end_unless_they_were_cut(tmp_path):
    row = {"prompt": "make 6 Q 2 4", "completion": "\\boxed{+}", "answer": "+"}
    rows = [row | {"finish_reason": reason} for reason in ("stop", "length")]
    path = tmp_path / "rollouts.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    offline = {"type": "chosen_replies", "path": str(path), "imported": {"kind": "text"}}
    folder = tmp_path / "run"
    assert read_run(folder, offline | {"round": "every", "batch_size": 2}) == 0
    ended, cut = (example["sampled"]["completion"] for example in read_examples(folder))
    assert ended[:-1] == cut
