"""Answers to tasks of reasoning-gym: one key a task, checks of ours, and no evaluator."""

import ast
import inspect
import textwrap
from dataclasses import replace

import pytest

pytest.importorskip("reasoning_gym")

from reasoning_gym.factory import DATASETS

from debate_protocol.types import Question
from debate_rewards import puzzle_answers
from debate_rewards.answer_checking import answer_classes, check
from debate_rewards.puzzle_answers import CHECKED, EXACT, JUDGED, REFUSED, VERIFIED
from debate_train.data import ReasoningGym

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


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(JUDGED))
def test_golds_are_right_with_a_full_stop_too(task):
    for question in ReasoningGym(tasks={task: {}}, batch_size=5).open(0).batch(0):
        assert verdict_of(question, question.answer, limit_s=120) == "right"
        assert verdict_of(question, f"{question.answer}.", limit_s=120) == "right"
