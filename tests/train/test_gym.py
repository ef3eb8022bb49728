"""Tasks of reasoning-gym: every one of them, their splits, and their own verifiers."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("reasoning_gym")
from reasoning_gym.factory import DATASETS

from debate_rewards.answer_checking import check, check_many
from debate_rewards.puzzle_answers import REFUSED
from debate_train.data import ReasoningGym
from debate_train.errors import DataError

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def source(tasks: dict[str, Any], batch_size: int = 8, seed: int = 0, **settings: Any) -> Any:
    return ReasoningGym(tasks=tasks, batch_size=batch_size, **settings).open(seed)


ELSEWHERE = """\
import json
from debate_train.data import ReasoningGym
from debate_rewards.puzzle_answers import REFUSED
from reasoning_gym.factory import DATASETS
names = sorted(set(DATASETS) - set(REFUSED))
made = {name: ReasoningGym(tasks={name: {}}, batch_size=3).open(0).batch(0) for name in names}
texts = {name: [question.text for question in own] for name, own in made.items()}
print("", json.dumps(texts), sep="\\n")
"""


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, list[str]]:
    """The questions of each task in another process, with other hashes of texts."""
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE]
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DATASETS))
def test_every_task_accepts_its_own_answer_and_no_other(
    name: str, elsewhere: dict[str, list[str]]
) -> None:
    if name in REFUSED:
        with pytest.raises(DataError, match=f"{name}: {REFUSED[name]}"):
            source({name: {}})
        return
    questions = source({name: {}}, batch_size=3).batch(0)
    assert [question.text for question in questions] == elsewhere[name]
    for one in questions:
        assert [check(one, w).verdict for w in one.meta.get("wrong_answers", [])] in ([], ["wrong"])
    # A slow machine is no wrong answer.
    own = check_many([(one, rf"\boxed{{{one.answer}}}") for one in questions], limit_s=120)
    assert [one.verdict for one in own] == ["right"] * len(questions), own
    other = check_many([(one, r"\boxed{no idea 1234567}") for one in questions], limit_s=120)
    assert [one.verdict for one in other] == ["wrong"] * len(questions), other


def test_splits_never_meet_and_follow_from_the_seed_alone() -> None:
    one = source({"chain_sum": SUMS, "gcd": {"weight": 3, "max_value": 20}})
    train = {q.text for step in range(40) for q in one.batch(step)}
    dev, test = ({q.text for q in one.split(name, 100)} for name in ("dev", "test"))
    assert len(train) > 100 and len(dev) > 10 and len(test) > 10
    assert not train & dev and not train & test and not dev & test
    again = source({"chain_sum": SUMS, "gcd": {"weight": 3, "max_value": 20}})
    assert [again.batch(step) for step in (3, 1)] == [one.batch(step) for step in (3, 1)]
    assert again.split("test", 9) == one.split("test", 9)
    other = source({"chain_sum": SUMS, "gcd": {"weight": 3, "max_value": 20}}, seed=1)
    assert other.batch(0) != one.batch(0) and other.split("test", 9) == one.split("test", 9)
    # Three quarters of the questions are of the task with three times the weight.
    many = Counter(q.meta["subject"] for step in range(40) for q in one.batch(step))
    assert 0.65 < many["gcd"] / many.total() < 0.85


def test_levels_are_those_of_the_librarys_curriculum() -> None:
    # Level n of chain_sum has at most n + 2 terms of at most n + 1 digits.
    for level, terms, digits in ((0, 2, 1), (2, 4, 3)):
        hard = source({"chain_sum": {"level": level}}, batch_size=64).batch(0)
        numbers = [re.findall(r"\d+", question.text) for question in hard]
        assert max(map(len, numbers)) == terms and min(map(len, numbers)) == 2
        assert max(len(one) for own in numbers for one in own) == digits
    own = source({"chain_sum": {"level": 2, "max_terms": 3}}, batch_size=64).batch(0)
    assert max(len(re.findall(r"\d+", question.text)) for question in own) == 3
    (question, *_) = own
    assert check(question, question.answer).verdict == "right"


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ({"chain_sums": {}}, "data.tasks.chain_sums: found no such task; did you mean 'chain_sum'"),
        ({"gsm_symbolic": {"level": 1}}, "data.tasks.gsm_symbolic: refused .*: it has no levels"),
        ({"chain_sum": {"level": 99}}, "tasks.chain_sum.level: found 99; expected at most 10,"),
        ({"gcd": {"seed": 9}}, "data.tasks.gcd.seed: found a setting that the data gives"),
    ],
)
def test_what_the_library_does_not_have_is_refused(tasks: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        source(tasks)
