"""The program of a worker that compares mathematical answers: a supervisor and its child.

The child reads one JSON object a line from standard input and answers on standard output. The
supervisor has imported everything and waits: SIGUSR1 replaces a child that takes too long by a
fresh one within milliseconds, SIGTERM ends both. It reaps every child.

The rules are Math-Verify's, to the digits of the answers; only this process imports it, because
reading and comparing may never end. They differ from Math-Verify 0.9: the whole answer must be a
formula (a number is not picked out of words); `x` and `X` differ; `i` is the imaginary unit; values
that agree only because both are small are different, as are two equations without a solution; an
inequality equals its interval. Unequal values at two points settle most pairs without `simplify`.
"""

import functools
import json
import logging
import mmap
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from latex2sympy2_extended.logic import And
from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
from math_verify import grader
from sympy.core import random
from sympy.core.relational import Relational
from sympy.parsing import sympy_parser

from debate_protocol.orphans import end_with_parent, is_orphan
from debate_rewards.confinement import (
    leave_files_and_network,
    limit_resources,
    refuse_evaluators,
)

MEMORY_BYTES = 4 << 30
GRACE_S = 2.0
"""Seconds beyond the limit until a child ends itself."""
ORPHAN_CHECK_S = 0.5
MAX_IDLE_DEATHS = 3
"""Children in a row that may end before they take a job; then the supervisor ends."""
ONE = sympy.Integer(1)
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM}

_SPELLING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
)
_MEANING = ConversionConfig(lowercase_symbols=False)
_RELATION = re.compile(r"[<>]|\\(?:le|ge|lt|gt)(?![a-zA-Z])")
_OR = re.compile(r"\\text\{\s*or\s*\}|(?<![a-zA-Z\\])or(?![a-zA-Z])|\\(?:lor|vee)(?![a-zA-Z])")
_AND = re.compile(
    r"\\text\{\s*and\s*\}|(?<![a-zA-Z\\])and(?![a-zA-Z])|\\(?:land|wedge)(?![a-zA-Z])"
)
_TWO_NUMBERS = re.compile(r"\d\s+\d")
_DIGITS = re.compile(r"[-+]?[0-9]+")
_DECIMAL = re.compile(r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_IMAGINARY = {sympy.Symbol("i", real=True): sympy.I}

_EVALUATION_DIGITS = 15
_POINTS = ("0.37", "7.31")
# How far apart two equal values may be, relative to the larger one: as exact values, where one is
# a decimal, and at the points.
_EXACT_TOLERANCE = 1e-12
_DECIMAL_TOLERANCE = 1e-4
_POINT_TOLERANCE = 1e-6

# Math-Verify's own comparisons, which `_close_numbers`, `_equal_symbols` and `_equal_solutions`
# replace and call.
_numeric_eq = grader.sympy_numeric_eq
_symbolic_eq = grader.sympy_symbolic_eq
_same_solutions = grader.sympy_solve_and_compare

Say = Callable[[dict[str, object]], None]
"""Sends a message to the pool."""


def main(parent: int) -> None:
    """Serve comparisons until the parent is gone, standard input closes or SIGTERM comes.

    Args:
        parent: Id of the process to serve.
    """
    # Libraries that print must not end up in the messages.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    logging.disable(logging.CRITICAL)
    sympy_parser.parse_expr = _read_literal
    leave_files_and_network()
    limit_resources(MEMORY_BYTES)

    def say(message: dict[str, object]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    # The first use builds parser tables; that must not count against an answer's limit.
    equal(read(r"\frac{x^{2}}{2}"), read(r"\sqrt{2}+(1,2)"))
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Wakes the supervisor to see whether it still has a parent; a child does not inherit it.
    signal.setitimer(signal.ITIMER_REAL, ORPHAN_CHECK_S, ORPHAN_CHECK_S)

    supervisor = os.getpid()
    took_job = mmap.mmap(-1, 1)  # Shared with the child.
    num_children = 0
    num_idle_deaths = 0
    goes_on = not is_orphan(parent)
    while goes_on and num_idle_deaths < MAX_IDLE_DEATHS:
        num_children += 1
        took_job[0] = 0
        child = os.fork()
        if child == 0:
            _be_child(supervisor, num_children, say, took_job)
        goes_on, was_replaced = _supervise(child, parent)
        num_idle_deaths = 0 if was_replaced or took_job[0] else num_idle_deaths + 1


def _supervise(child: int, parent: int) -> tuple[bool, bool]:
    """Wait until the child is gone.

    Returns:
        Whether there shall be another child, and whether this child was replaced.
    """
    goes_on = True
    was_replaced = False
    while True:
        caught = signal.sigwait(_SIGNALS)
        if caught == signal.SIGALRM and not is_orphan(parent):
            continue
        if caught != signal.SIGCHLD:
            was_replaced = caught == signal.SIGUSR1
            goes_on = was_replaced
            os.kill(child, signal.SIGKILL)
        # One SIGCHLD may stand for an earlier child, so the wait for this one must not block.
        ended_child, status = os.waitpid(child, os.WNOHANG if caught == signal.SIGCHLD else 0)
        if ended_child:
            # A child ends by itself, with status 0, when a pipe was closed.
            return goes_on and status != 0, was_replaced


def _be_child(supervisor: int, number: int, say: Say, took_job: mmap.mmap) -> NoReturn:
    """Serve jobs; never return into the supervisor's loop, whatever happens."""
    try:
        end_with_parent(supervisor)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        refuse_evaluators()
        say({"stage": "ready", "child": number})
        _serve(say, took_job)
    except BrokenPipeError:
        os._exit(0)  # Nobody reads its messages.
    finally:
        os._exit(1)


def _serve(say: Say, took_job: mmap.mmap) -> None:
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    # A thread of its own notices the end of standard input even during a comparison.
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    while True:
        job = json.loads(jobs.get())
        took_job[0] = 1
        say({"stage": "started"})
        # The default action of this alarm ends the process even inside one long C call, so a
        # worker never outlives a parent that was killed.
        signal.setitimer(signal.ITIMER_REAL, job["limit_s"] + GRACE_S)
        outcome = _score_task(job, say) if job["is_task"] else _compare(job, say)
        say({"outcome": outcome})
        signal.setitimer(signal.ITIMER_REAL, 0)


def _read_jobs(jobs: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


def _compare(job: dict[str, Any], say: Say) -> str:
    """Compare two formulas; say `gold` once the gold answer has been read and compared with 1."""
    if not job["cached"]:
        read.cache_clear()
    try:
        gold = read(job["gold"])
        equal(gold, ONE)
    except (Exception, RecursionError, MemoryError):
        return "gold_unparsable"
    say({"stage": "gold"})
    try:
        prediction = read(job["prediction"])
        if equal(gold, prediction):
            return "equal"
    except (Exception, RecursionError, MemoryError):
        return "unparsable"
    is_only_gold_formula = isinstance(prediction, str) and not isinstance(gold, str)
    return "unparsable" if is_only_gold_formula else "different"


def _score_task(job: dict[str, Any], say: Say) -> str:
    """Ask the verifier of a task of reasoning-gym."""
    try:
        dataset, entry = _build_entry(job["gold"])
    except Exception:
        return "gold_unparsable"
    say({"stage": "gold"})
    try:
        return "equal" if dataset.score_answer(job["prediction"], entry) >= 1 else "different"
    except (Exception, RecursionError, MemoryError):
        return "unparsable"


@functools.lru_cache(maxsize=4096)
def _build_entry(task: str) -> tuple[Any, dict[str, Any]]:
    """Make a task again, from its name, settings, seed and number."""
    from reasoning_gym.factory import create_dataset  # Imported before; not all have it.

    settings = json.loads(task)
    dataset = create_dataset(
        settings["task"], seed=settings["seed"], size=settings["size"], **settings["config"]
    )
    entry = dataset[settings["index"]]
    if entry["question"] != settings["question"]:
        raise ValueError("the question is another one")
    return dataset, entry


@functools.lru_cache(maxsize=4096)
def read(answer: str) -> object:
    """Parse an answer into a sympy object, or keep its text where it is no formula."""
    has_relation = _RELATION.search(answer) is not None
    for pattern, combine in ((_OR, sympy.Union), (_AND, sympy.Intersection)):
        clauses = pattern.split(answer) if has_relation else [answer]
        if len(clauses) > 1:
            sets = [_solutions(read(clause.strip(" ,"))) for clause in clauses]
            if all(isinstance(solutions, sympy.Set) for solutions in sets):
                return combine(*sets)
    value = _parsed(answer)
    return "".join(answer.split()) if value is None else value


def equal(gold: object, prediction: object) -> bool:
    """Compare two answers parsed by `read`."""
    if isinstance(gold, str) or isinstance(prediction, str):
        are_texts = isinstance(gold, str) and isinstance(prediction, str)
        return are_texts and bool(gold == prediction)
    random.seed(0)  # Simplifying draws points to try; a verdict must not depend on luck.
    return bool(grader.verify(gold, prediction, allow_set_relation_comp=True, timeout_seconds=None))


def _parsed(answer: str) -> object:
    # Math-Verify reads "5 6" as 5 + 6.
    if not answer.strip() or _TWO_NUMBERS.search(answer):
        return None
    try:
        value = latex2sympy(
            normalize_latex(answer, _SPELLING),
            is_real=True,
            convert_degrees=False,
            normalization_config=None,
            conversion_config=_MEANING,
        )
    except (Exception, RecursionError):
        return None
    if not isinstance(value, sympy.Basic | sympy.MatrixBase):
        return None
    try:
        return value.xreplace(_IMAGINARY) if value.has(*_IMAGINARY) else value
    except Exception:
        return value


def _read_literal(text: str, *_: object, **__: object) -> sympy.Basic:
    """Read a number or a symbol, in place of sympy's evaluating parser of expressions.

    sympy hands every text to that parser, also the digits found by Math-Verify's own parser.
    """
    literal = text.strip()
    if _DIGITS.fullmatch(literal):
        return sympy.Integer(literal)
    if _DECIMAL.fullmatch(literal):
        return sympy.Float(literal)
    if _SYMBOL.fullmatch(literal):
        return sympy.Symbol(literal)
    raise ValueError("neither a number nor a symbol")


def _solutions(value: object) -> object:
    """Solve a relation for the set; other values stay as they are."""
    if not isinstance(value, Relational | And):
        return value
    try:
        return grader.unwrap_fcs(value).as_set()
    except Exception:
        return None


def _is_percent(value: Any) -> bool:
    return bool(value.has(sympy.UnevaluatedExpr))


def _far_apart(a: Any, b: Any) -> bool:
    """Check whether two values differ by more than rounding, relative to their size."""
    for value in (a, b):
        if not isinstance(value, sympy.Expr) or value.free_symbols or _is_percent(value):
            return False
    size_a = abs(a.evalf(_EVALUATION_DIGITS))
    size_b = abs(b.evalf(_EVALUATION_DIGITS))
    if not (size_a.is_finite and size_b.is_finite):
        # Infinite, or no number at all.
        return bool(a.doit() != b.doit())
    size = max(size_a, size_b)
    distance = abs((a - b).evalf(_EVALUATION_DIGITS))
    if not (size.is_Float and (distance.is_Float or distance.is_zero)):
        return False
    has_decimal = a.has(sympy.Float) or b.has(sympy.Float)
    tolerance = _DECIMAL_TOLERANCE if has_decimal else _EXACT_TOLERANCE
    return bool(distance > tolerance * size)


def _differ_at_points(a: object, b: object) -> bool:
    """Check whether two expressions have different values at each of two points."""
    if not (isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr)) or _is_percent(a + b):
        return False
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    for point in _POINTS if symbols else _POINTS[:1]:
        # Each symbol has its own value, so that a + b and 2a differ.
        substitutions = {}
        for number, symbol in enumerate(symbols):
            substitutions[symbol] = sympy.Float(point) + number / 7
        value_a = a.evalf(_EVALUATION_DIGITS, subs=substitutions)
        value_b = b.evalf(_EVALUATION_DIGITS, subs=substitutions)
        for value in (value_a, value_b):
            if not (value.is_number and value.is_finite):
                return False
        size = max(abs(value).evalf(_EVALUATION_DIGITS) for value in (value_a, value_b))
        distance = abs(value_a - value_b).evalf(_EVALUATION_DIGITS)
        if not distance > _POINT_TOLERANCE * size:
            return False
    return True


def _close_numbers(a: object, b: object, float_rounding: int, numeric_precision: int) -> bool:
    return _numeric_eq(a, b, float_rounding, numeric_precision) and not _far_apart(a, b)


def _equal_symbols(a: object, b: object) -> bool:
    try:
        # sympy may simplify 11 - oo**oo to 0.
        if _far_apart(a, b) or _differ_at_points(a, b):
            return False
    except Exception:
        return bool(_symbolic_eq(a, b))
    return bool(_symbolic_eq(a, b))


def _equal_solutions(
    gold: object, prediction: object, float_rounding: int, numeric_precision: int
) -> bool:
    if isinstance(gold, sympy.Eq) and isinstance(prediction, sympy.Eq):
        ratio = sympy.simplify((gold.lhs - gold.rhs) / (prediction.lhs - prediction.rhs))
        if ratio.is_number and ratio.is_finite and ratio.is_zero is False:
            return True
        # Having no real solution in common says nothing.
        if not sympy.solve(gold, gold.free_symbols):
            return False
    return bool(_same_solutions(gold, prediction, float_rounding, numeric_precision))


# Math-Verify has no hook for these; they are the leaves of all its comparisons, also of elements
# of sets, tuples, intervals and matrices. The range of versions is bounded in pyproject.toml.
grader.sympy_numeric_eq = _close_numbers
grader.sympy_symbolic_eq = _equal_symbols
grader.sympy_solve_and_compare = _equal_solutions
