"""Tasks of reasoning-gym: every one of them, their splits, and their own verifiers."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("reasoning_gym")
from reasoning_gym.factory import DATASETS

from debate_protocol.types import Question
from debate_rewards import puzzle_answers
from debate_rewards.answer_checking import answer_classes, check, check_many
from debate_rewards.puzzle_answers import CHECKED, EXACT, REFUSED, VERIFIED
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


EVALUATORS = {"eval", "exec", "compile", "parse_expr", "sympify", "lambdify", "literal_eval"}


def make_puzzle(task, gold):
    return Question("q", "?", gold, {"kind": "text", "reasoning_gym": {"task": task}})


def verdict_of(question, answer, **limits):
    return check(question, rf"\boxed{{{answer}}}", **limits).verdict


def test_every_task_of_the_library_is_judged_in_one_way_or_refused():
    tasks = [*EXACT, *CHECKED, *VERIFIED, *REFUSED]
    assert len(tasks) == len(set(tasks))
    assert set(tasks) == set(DATASETS)


def called_names(task):
    """List what a task's verifier calls, with what these call of its module and class."""
    dataset = object.__new__(DATASETS[task][0])
    names = set()
    waiting = [dataset.score_answer]
    while waiting:
        function = waiting.pop()
        module = inspect.getmodule(function)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            if name is None or name in names:
                continue
            names.add(name)
            inner = getattr(dataset, name, None) or getattr(module, name, None)
            if inspect.isfunction(inner) or inspect.ismethod(inner):
                waiting.append(inner)
    return names


@pytest.mark.parametrize("task", sorted(VERIFIED))
def test_no_offered_verifier_evaluates_text(task):
    assert not called_names(task) & EVALUATORS


WRONG = [
    ("coin_flip", "0.3125", "0"),
    ("coin_flip", "0.3125", "0.3126"),
    ("coin_flip", "1", "1.004"),
    ("gsm_symbolic", "44", "-44"),
    ("gsm_symbolic", "44", "44 or 7"),
    ("puzzle24", "1*3*5 + 9", "4*6*1*1"),
    ("puzzle24", "1*3*5 + 9", "9+15"),
    ("countdown", "94*4 - 61 - 6", "309"),
    ("number_sorting", "['1.5', '2.5']", "['2.4', '3.4']"),
    ("decimal_arithmetic", "6.32098837209", "6.32098837208"),
    ("pool_matrix", "5 8\n6 2", "5.02 8\n6 2"),
    ("game_of_life", "[[0,1],[1,0]]", "[[0,1],[1,0],[0,0]]"),
    ("word_sorting", "any, best", "any, best, cat"),
    ("letter_jumble", "and may", "and may not"),
    ("spell_backward", "noremopyh", "noremopyh or so"),
    ("time_intervals", "5 days", "5 years"),
    ("time_intervals", "10:21:28.080", "10:21:28.80"),
    ("fraction_simplification", r"$\dfrac{79}{173}$", r"\dfrac{158}{346}"),
    ("fraction_simplification", r"$\dfrac{79}{173}$", r"\dfrac{79}{173} or 1/2"),
    ("kakurasu", "1 0\n0 1", "1 2\n0 1"),
    ("advanced_geometry", "(4.051, -5.487)", "(4.051, -5.487) or 7"),
    ("figlet_font", "STANDARDIZED", "STANDARDIZER"),
    ("palindrome_generation", "oucuo", "ucocu"),
    ("n_queens", "_ Q\nQ _", "Q _\n_ Q"),
    # A sentence that states another answer, none, or several.
    ("chain_sum", "214", "57 + 87 + 70"),
    ("chain_sum", "214", "The answer is not 214"),
    ("spell_backward", "talps", 'splat backward is not "talps".'),
    ("calendar_arithmetic", "Friday", "It was either a Thursday or a Friday."),
    ("fraction_simplification", "2/3", "It is not 2/3"),
    ("time_intervals", "06:09", "6 hours"),
    # Its value is the gold's, if something evaluates it.
    ("string_insertion", "2", "1 + 1"),
    ("spiral_matrix", "2", "[1 + 1]"),
]
RIGHT = [
    ("calendar_arithmetic", "Yes", "yes."),
    ("chain_sum", "-14282", "-14,282.0"),
    ("gsm_symbolic", "28080", "28,080"),
    ("prime_factorization", "2 × 433", "433 x 2."),
    ("word_sorting", "Hart, find", "hart,find."),
    ("time_intervals", "10:21:28.840", "10:21:28.84"),
    ("power_function", "9.360000138304076e-18", "9.36e-18"),
    ("polynomial_equations", "0.0, 0.5909", "0.590909, 0"),
    ("sudoku", "1 2\n2 1", "1 2 \n2 1 "),
    ("dice", "1/2", "0.5"),
    ("puzzle24", "1*3*5 + 9", "9 + 5*(3*1)"),
    ("countdown", "94*4 - 61 - 6", "4*94-(61+6) = 309"),
    ("kakurasu", "1 0\n0 1", "1 0 \n0 1."),
    ("palindrome_generation", "oucuo", "uocou"),
    ("knights_knaves", "Ann is a knight, and Bob is a knave.", "Bob is a knave, Ann is a knight"),
    ("group_anagrams", '[["ai", "ia"], ["on", "no"]]', '[["no","on"],["ia","ai"]]'),
    ("bitwise_arithmetic", "0x3eb2", "0x3EB2."),
    ("complex_arithmetic", "-15.0 + 3.0i", "-15+3i"),
    ("complex_arithmetic", "-15.0 + 3.0i", "The sum is -15 + 3i."),
    ("polynomial_equations", "1.0, 2.0", "x = 1 or x = 2"),
    ("calendar_arithmetic", "Friday", "It was a Friday."),
    ("letter_counting", "3", "three"),
    ("syllogism", "Yes", "Yes, it follows."),
    ("time_intervals", "06:09", "6 hours and 9 minutes"),
]


@pytest.mark.parametrize(("task", "gold", "answer"), WRONG)
def test_wrong_answers_are_wrong(task, gold, answer):
    assert verdict_of(make_puzzle(task, gold), gold) == "right"
    assert verdict_of(make_puzzle(task, gold), answer) == "wrong"


@pytest.mark.parametrize(("task", "gold", "answer"), RIGHT)
def test_other_forms_of_right_answers_are_right(task, gold, answer):
    assert verdict_of(make_puzzle(task, gold), answer) == "right"
    if task in EXACT:
        boxes = [rf"\boxed{{{gold}}}", rf"\boxed{{{answer}}}"]
        assert answer_classes(make_puzzle(task, gold), boxes) == [0, 0]


def test_a_task_of_a_file_never_reaches_the_librarys_verifier(monkeypatch):
    (question,) = ReasoningGym(tasks={"sokoban": {}}, batch_size=1).open(0).batch(0)
    assert check(question, rf"\boxed{{{question.answer}}}.").verdict == "right"
    # Another setting was not opened here; another process has not opened the task.
    task = question.meta["reasoning_gym"]
    other = replace(question, meta={**question.meta, "reasoning_gym": {**task, "seed": 5}})
    assert verdict_of(other, "LRUD") == "unverifiable"
    monkeypatch.setattr(puzzle_answers, "_opened_tasks", set())
    assert verdict_of(question, "LRUD") == "unverifiable"
    assert verdict_of(make_puzzle("unheard_of", "1"), "1") == "unverifiable"
