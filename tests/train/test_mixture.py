"""Several sources at once, answers that may not be used, and rows that stand on both sides."""

import json
from collections import Counter
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from debate_protocol.forms import Simultaneous
from debate_protocol.types import Question
from debate_train.data import Mixture, Questions, SignsPuzzle
from debate_train.errors import DataError


def rows_of(path: Path, name: str, count: int, **more: object) -> str:
    rows = [{"question": f"{name} {n}?", "answer": str(n), **more} for n in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def mixture(tmp_path: Path, **weights: float) -> Mixture:
    sources = {
        name: {
            "weight": weight,
            "data": {"path": rows_of(tmp_path / f"{name}.jsonl", name, 200), "holdout": 0.2},
        }
        for name, weight in weights.items()
    }
    return Mixture.model_validate({"type": "mixture", "batch_size": 10, "sources": sources})


def test_steps_hold_each_source_by_its_weight(tmp_path: Path) -> None:
    source = mixture(tmp_path, a=5, b=3, c=2).open()
    for step in range(4):
        names = Counter(question.meta["data"] for question in source.batch(step))
        assert names == {"a": 5, "b": 3, "c": 2}
    uneven = mixture(tmp_path, a=2, b=1).open()
    drawn = [question.meta["data"] for step in range(30) for question in uneven.batch(step)]
    assert Counter(drawn) == {"a": 200, "b": 100}
    # Nowhere is a source more than one question away from its share.
    for count in range(1, 301):
        assert abs(drawn[:count].count("a") - count * 2 / 3) <= 1


def test_a_step_follows_from_its_number_alone(tmp_path: Path) -> None:
    first, second = (mixture(tmp_path, a=1, b=1.7).open(3) for _ in range(2))
    for step in (7, 2, 9):
        first.batch(step)
    assert first.batch(5) == second.batch(5)
    # An epoch of each source holds every question of it once.
    seen = Counter(q.id for step in range(20) for q in second.batch(step))
    assert max(seen.values()) <= 2
    assert all(q_id.startswith(("a/", "b/")) for q_id in seen)


def test_evaluations_take_their_questions_by_the_weights(tmp_path: Path) -> None:
    config = mixture(tmp_path, a=3, b=1)
    source = config.open()
    chosen = source.split("test", 20)
    assert Counter(q.meta["data"] for q in chosen) == {"a": 15, "b": 5}
    assert chosen == source.split("test", 20)
    trained = {q.text for step in range(40) for q in source.batch(step)}
    assert not trained & {q.text for q in source.split("test", 999)}
    assert config.summary(source).startswith("data: a mixture of a: ")
    assert config.may_have_answers(source)
    assert config.dataset == "a+b"


def test_demonstrations_come_from_the_source_of_the_question() -> None:
    puzzle = {"type": "signs_puzzle"}
    config = Mixture.model_validate(
        {
            "type": "mixture",
            "batch_size": 4,
            "sources": {
                "small": {"data": {**puzzle, "num_digits": 3}},
                "large": {"data": {**puzzle, "num_digits": 4}},
            },
        }
    )
    source = config.open()
    assert source.can_demonstrate
    form = Simultaneous(num_agents=2, max_rounds=1, style="compact", personas="none")
    for question in source.batch(0):
        request = next(form.start(question, seed=0))[0]  # type: ignore[index]
        signs = 3 if question.meta["data"] == "large" else 2
        said = source.demonstrate(request, errors=False)
        assert sum(said.split("</solution>")[0].count(sign) for sign in "+-") == signs


def test_hub_source_in_a_mixture_is_not_read_by_a_check(tmp_path: Path) -> None:
    path = rows_of(tmp_path / "a.jsonl", "a", 20)
    config = Mixture.model_validate(
        OmegaConf.to_container(
            OmegaConf.create(
                f"{{type: mixture, sources: {{here: {{data: {{path: {path}}}}}, "
                "there: {data: {type: benchmark, name: gsm8k}}}}"
            )
        )
    )
    place = "data.sources.there.data.path"
    assert config.unread() == f"{place}: openai/gsm8k (hub dataset, not checked here)"


@pytest.mark.parametrize(("share", "count"), [(0.1, 16), (0.0, 0), (0.5, 80)])
def test_share_of_training_questions_keeps_its_answers(
    tmp_path: Path, share: float, count: int
) -> None:
    path = rows_of(tmp_path / "a.jsonl", "a", 160)
    held = rows_of(tmp_path / "b.jsonl", "b", 10)
    whole, part = (
        Questions(path=path, test_path=held, labelled=labelled, holdout=0.001).open()
        for labelled in (1.0, share)
    )
    before, after = (one.split("train", 999) for one in (whole, part))
    assert [q.text for q in before] == [q.text for q in after]
    labelled = [question for question in after if question.answer is not None]
    assert len(labelled) == round(share * len(before)) == pytest.approx(count, abs=1)
    assert all(question in before for question in labelled)
    assert all(q.answer is not None for name in ("dev", "test") for q in part.split(name, 99))


def test_prompts_do_not_say_which_questions_have_answers(tmp_path: Path) -> None:
    for kind in ("math", "text", "number", None):
        more = {} if kind is None else {"kind": kind}
        path = rows_of(tmp_path / "a.jsonl", "a", 40, **more)
        whole, part = (Questions(path=path, labelled=share).open() for share in (1.0, 0.0))
        form = Simultaneous(num_agents=2, max_rounds=1)

        def prompts(questions: list[Question], form: Simultaneous = form) -> list[object]:
            return [next(form.start(q, seed=0))[0].messages for q in questions]  # type: ignore[index]

        unlabelled = part.batch(0)
        assert {q.answer for q in unlabelled} == {None}
        assert prompts(unlabelled) == prompts(whole.batch(0))


def test_a_column_says_which_answers_may_be_used(tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "answer": n, "gold": n % 3 == 0} for n in range(30)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = Questions.model_validate({"path": str(path), "fields": {"labelled": "gold"}})
    train = config.open().split("train", 99)
    assert {q.answer is not None for q in train if int(q.text[1:]) % 3 == 0} == {True}
    assert {q.answer is not None for q in train if int(q.text[1:]) % 3} == {False}
    path.write_text(json.dumps({**rows[0], "gold": "yes"}) + "\n")
    with pytest.raises(DataError, match="gold: found 'yes'; expected true or false"):
        config.open()


def test_test_questions_in_other_spelling_are_not_trained_on(tmp_path: Path) -> None:
    path = rows_of(tmp_path / "a.jsonl", "What is", 20)
    held = tmp_path / "b.jsonl"
    texts = ["WHAT is  3", "what is 4 ?", "What is 55?"]
    held.write_text("".join(json.dumps({"question": t, "answer": "1"}) + "\n" for t in texts))
    source = Questions(path=path, test_path=str(held)).open()
    left = {q.text for name in ("train", "dev") for q in source.split(name, 99)}  # type: ignore[arg-type]
    assert left == {f"What is {n}?" for n in range(20) if n not in (3, 4)}
    assert "data: 2 training questions are held-out questions, too, and are not trained on" in (
        source.notes
    )


def test_signs_of_a_puzzle_make_other_questions() -> None:
    # Brackets and signs are no punctuation: expressions of one puzzle differ in nothing else.
    from debate_train.data.splits import normalized

    assert len({normalized(t) for t in ("( [ {", "( [ <", "1 + 2", "1 - 2", "1.5", "15")}) == 6
    assert normalized("Is it “so”?") == normalized("is  it 'So'.") == "is it so"
    assert SignsPuzzle().open().batch(0)
