"""Several sources of questions: shares, stages, answers that may not be used, test questions."""

import json
from collections import Counter
from itertools import chain

import pytest

from debate_train.commands.cli import main
from debate_train.data import Mixture, Questions
from train.small_runs import RECIPE


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_numbered(path, name, count, **more):
    rows = [{"question": f"{name} {n}?", "answer": str(n), **more} for n in range(count)]
    return write_rows(path, rows)


def make_mixture(folder, **weights):
    sources = {}
    for name, weight in weights.items():
        path = write_numbered(folder / f"{name}.jsonl", name, 200)
        sources[name] = {"weight": weight, "data": {"path": path, "holdout": 0.2}}
    return Mixture.model_validate({"type": "mixture", "batch_size": 10, "sources": sources})


def batches(source, num_steps):
    return list(chain.from_iterable(source.batch(step) for step in range(num_steps)))


def source_names(questions):
    return [question.meta["data"] for question in questions]


def test_steps_hold_each_source_by_its_weight(tmp_path):
    source = make_mixture(tmp_path, a=5, b=3, c=2).open()
    for step in range(4):
        assert Counter(source_names(source.batch(step))) == {"a": 5, "b": 3, "c": 2}
    uneven = make_mixture(tmp_path, a=2, b=1).open()
    names = source_names(batches(uneven, 30))
    # Nowhere is a source more than one question away from its share.
    for count in range(1, 301):
        assert abs(names[:count].count("a") - count * 2 / 3) <= 1


def test_a_step_follows_from_its_number(tmp_path):
    mixture = make_mixture(tmp_path, a=1, b=1.7)
    first = mixture.open(3)
    second = mixture.open(3)
    for step in (7, 2, 9):
        first.batch(step)
    assert first.batch(5) == second.batch(5)
    # An epoch of each source holds every question of it once.
    counts = Counter(question.id for question in batches(second, 20))
    assert max(counts.values()) <= 2


# Answers that may not be used


@pytest.mark.parametrize(("share", "count"), [(0.1, 16), (0.0, 0), (0.5, 80)])
def test_share_of_training_questions_keeps_its_answers(tmp_path, share, count):
    settings = {
        "path": write_numbered(tmp_path / "a.jsonl", "a", 160),
        "test_path": write_numbered(tmp_path / "b.jsonl", "b", 10),
        "holdout": 0.001,
    }
    before = Questions(labelled=1.0, **settings).open().split("train", 999)
    source = Questions(labelled=share, **settings).open()
    after = source.split("train", 999)
    assert [question.text for question in before] == [question.text for question in after]
    labelled = [question for question in after if question.answer is not None]
    assert len(labelled) == round(share * len(before)) == pytest.approx(count, abs=1)
    assert all(question in before for question in labelled)
    measured = source.split("dev", 99) + source.split("test", 99)
    assert all(question.answer is not None for question in measured)


# Questions that are held out


def test_test_questions_in_other_spelling_are_not_trained_on(tmp_path):
    path = write_numbered(tmp_path / "a.jsonl", "What is", 20)
    texts = ["WHAT is  3", "what is 4 ?", "What is 55?"]
    test_rows = [{"question": text, "answer": "1"} for text in texts]
    test_path = write_rows(tmp_path / "b.jsonl", test_rows)
    source = Questions(path=path, test_path=test_path).open()
    questions = source.split("train", 99) + source.split("dev", 99)
    expected = {f"What is {n}?" for n in range(20) if n not in (3, 4)}
    assert {question.text for question in questions} == expected
    note = "data: 2 training questions are held-out questions, too, and are not trained on"
    assert note in source.notes


def test_questions_of_dev_in_other_spelling_are_not_trained_on(tmp_path):
    rows = [{"question": f"What is {n}?"} for n in range(60)]
    rows += [{"question": f"what is  {n}"} for n in range(60)]
    source = Questions(path=write_rows(tmp_path / "a.jsonl", rows), holdout=0.2).open()

    def numbers(split):
        return {question.text.strip("?").split()[-1] for question in source.split(split, 999)}

    assert len(numbers("dev")) > 5
    assert not numbers("train") & (numbers("dev") | numbers("test"))


def test_no_source_of_a_mixture_trains_on_what_another_holds_out(tmp_path):
    all_path = write_numbered(tmp_path / "all.jsonl", "What is", 100)
    few_path = write_numbered(tmp_path / "few.jsonl", "Say", 10)
    test_path = write_numbered(tmp_path / "test.jsonl", "what is", 40)
    sources = {
        "all": {"data": {"path": all_path}},
        "few": {"data": {"path": few_path, "test_path": test_path}},
    }
    source = Mixture.model_validate({"sources": sources}).open()
    trained = {question.text.casefold() for question in source.split("train", 999)}
    trained |= {question.text.casefold() for question in batches(source, 2)}
    measured = {f"what is {n}?" for n in range(40)}
    assert len(trained) > 30
    assert not trained & measured
    (note,) = [note for note in source.notes if "other data" in note]
    assert note.startswith("all: data: ")


STAGES = """\
data: {type: questions, path: FOLDER/hard.jsonl, batch_size: 2}
evaluation: {questions: 2, direct_samples: 1, every: 1, target: true}
phases:
  easy: {data: {path: FOLDER/easy.jsonl}}
  hard: {}
"""


def test_stage_trains_on_nothing_that_another_is_measured_on(tmp_path, capsys):
    """Two files share 20 questions, spelled differently, so that splits by text differ."""
    texts = [f"How much is {n} and {n + 1}?" for n in range(40)]
    easy = [{"question": text.upper(), "answer": "1"} for text in texts[:30]]
    hard = [{"question": text, "answer": "1"} for text in texts[10:]]
    sources = {}
    for name, rows in (("easy", easy), ("hard", hard)):
        path = write_rows(tmp_path / f"{name}.jsonl", rows)
        sources[name] = Questions(path=path).open()

    def split(name, *names):
        questions = chain.from_iterable(sources[name].split(part, 99) for part in names)
        return {question.text.casefold() for question in questions}

    lines = []
    for name, other in (("easy", "hard"), ("hard", "easy")):
        count = len(split(name, "train") & split(other, "dev", "test"))
        assert count > 0
        lines.append(
            f"data: {count} training questions of {name} are held out in other data, and are "
            "not trained on"
        )
    replaced = ("steps", "data", "reward", "evaluation")
    kept_lines = [line for line in RECIPE.splitlines() if not line.startswith(replaced)]
    recipe = tmp_path / "r.yaml"
    text = "\n".join([*kept_lines, "steps: 1", "reward: {type: verifiable}", STAGES])
    recipe.write_text(text.replace("FOLDER", str(tmp_path)))
    assert main([str(recipe), "--check"]) == 0
    checked = capsys.readouterr().out
    assert all(line in checked for line in lines)
    assert main([str(recipe), "--output", str(tmp_path / "run")]) == 0
    # One split for all stages: in the last stage it is the stage's.
    metrics = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in metrics]
    easy_row, hard_row = (row for row in rows if "target/format" in row)
    assert (easy_row["phase"], hard_row["phase"]) == ("easy", "hard")
    for name, value in hard_row.items():
        if name.startswith("eval/"):
            assert hard_row[name.replace("eval/", "target/")] == value
