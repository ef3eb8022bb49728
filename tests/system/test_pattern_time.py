"""Regular expressions that read replies and files take linear time in hostile text.

The expressions are collected from the modules, so a new one is tried without being named here.
Those that read answers are tried together, by the function that cuts what they are given.
"""

import ast
import importlib
import inspect
import pkgutil
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType

import pytest

from debate_protocol.types import Question
from debate_rewards.answers.questions import read_answer

PACKAGES = ("debate_protocol", "debate_rewards", "debate_report", "debate_train.data")
# These start processes when they are imported or need what a test may lack.
NOT_IMPORTED = re.compile(r"__main__|worker")
# Their texts have at most 4,096 characters, and mostly single spaces.
READERS_OF_ANSWERS = "debate_rewards.answers."

# What degenerate policies repeat, one unit each.
UNITS = (
    "\n", " ", "\t", "\n ", "a\n", "<quote>", "<solution>", "<", "9", "1,", "\\", "$", "=", "1+1=",
    "(", "[", "{", "[A", "a", "a ", "a-", "A. ", "Agent 0: ", "\\boxed{", "*", "\"'", ".",
)  # fmt: skip
# No expression begins with it, so the repeated text before it leads nowhere.
END = "\x00"
SHORT = 2_000
FACTOR = 4
# Both lengths are cut, so that the same part of the code reads them.
SHORT_ANSWER = 8_000
# Four times the text takes 4 times as long where time is linear, 16 times where it is quadratic.
MAX_GROWTH = 9
# Below this a clock says little.
MIN_S = 0.02

READERS = {"search", "finditer", "findall", "sub", "subn", "match", "fullmatch"}
ANCHORED = {"match", "fullmatch"}


@dataclass(frozen=True)
class Expression:
    """A compiled expression, where it is, and whether it is only tried at the start of a text."""

    name: str
    pattern: re.Pattern[str]
    is_anchored: bool

    def read(self, text: str) -> None:
        """Look for the expression as the packages do."""
        if self.is_anchored:
            self.pattern.match(text)
            self.pattern.fullmatch(text)
            return
        for _ in self.pattern.finditer(text):
            pass


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        root = importlib.import_module(package)
        yield root
        for module in pkgutil.walk_packages(root.__path__, f"{package}."):
            is_cut = module.name.startswith(READERS_OF_ANSWERS)
            if not is_cut and not NOT_IMPORTED.search(module.name):
                yield importlib.import_module(module.name)


def patterns_in(value: object) -> Iterator[re.Pattern[str]]:
    """Yield the expressions of a global, those inside tuples and mappings included."""
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from patterns_in(key)
            yield from patterns_in(item)
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from patterns_in(item)


def anchored_uses(source: str) -> dict[str, bool]:
    """Return for each name that reads text whether all its reads begin at the text's start."""
    uses: dict[str, bool] = {}
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        reader = call.func
        if isinstance(reader.value, ast.Name) and reader.attr in READERS:
            # A second argument is a position, from which a loop may try again and again.
            is_anchored = reader.attr in ANCHORED and len(call.args) == 1
            uses[reader.value.id] = uses.get(reader.value.id, True) and is_anchored
    return uses


def expressions() -> list[Expression]:
    by_pattern: dict[re.Pattern[str], Expression] = {}
    for module in modules():
        uses = anchored_uses(inspect.getsource(module))
        # Those of tuples and mappings are read under the name of a local variable.
        of_locals = [uses[name] for name in uses if name not in vars(module)]
        are_locals_anchored = bool(of_locals) and all(of_locals)
        for name, value in vars(module).items():
            for pattern in patterns_in(value):
                is_single = isinstance(value, re.Pattern)
                is_anchored = uses.get(name, False) if is_single else are_locals_anchored
                known = by_pattern.get(pattern)
                if known is None or (known.is_anchored and name in uses):
                    by_pattern[pattern] = Expression(
                        name=f"{module.__name__}.{name}",
                        pattern=pattern,
                        is_anchored=is_anchored and (known is None or known.is_anchored),
                    )
    return list(by_pattern.values())


def seconds(read: Callable[[str], None], unit: str, characters: int) -> float:
    text = unit * (characters // len(unit)) + END
    start = time.process_time()
    read(text)
    return time.process_time() - start


def slow_unit(read: Callable[[str], None], short: int = SHORT) -> str | None:
    """Return the first unit on which reading takes more than linear time."""
    long = FACTOR * short
    for unit in UNITS:
        of_long = seconds(read, unit, long)
        if of_long <= MIN_S:
            continue
        # Another process can only make a measurement longer: the shortest counts.
        of_long = min(of_long, seconds(read, unit, long))
        of_short = min(seconds(read, unit, short) for _ in range(2))
        if of_long > MIN_S and of_long > MAX_GROWTH * of_short:
            return unit
    return None


def test_expressions_of_the_packages_take_linear_time() -> None:
    collected = expressions()
    assert any(expression.name.endswith("judged._LABEL") for expression in collected)
    slow = {}
    for expression in collected:
        unit = slow_unit(expression.read)
        if unit is not None:
            slow[expression.name] = unit
    assert not slow


@pytest.mark.parametrize(
    "pattern",
    [
        re.compile(r"^\W*+x", re.MULTILINE),
        re.compile(r"<quote>(.*?)</quote>", re.DOTALL),
        re.compile(r"([^\n:.?!]+=)\s*$"),
        re.compile(r"\s*\nOptions:"),
    ],
)
def test_quadratic_expressions_are_found(pattern: re.Pattern[str]) -> None:
    assert slow_unit(Expression("quadratic", pattern, is_anchored=False).read) is not None


@pytest.mark.parametrize(
    ("kind", "gold"),
    [("number", "4"), ("math", "x + 1"), ("choice", "A"), ("text", "red"), ("yes_no", "yes")],
)
def test_answers_are_read_in_linear_time(kind: str, gold: str) -> None:
    question = Question("q", "2 + 2?", gold, {"kind": kind})

    def read(text: str) -> None:
        read_answer(question, text.removesuffix(END))

    assert slow_unit(read, SHORT_ANSWER) is None


def test_reads_from_a_position_are_not_anchored() -> None:
    uses = anchored_uses("A.match(text)\nB.match(text, at)\nC.fullmatch(text)\nC.search(text)")
    assert uses == {"A": True, "B": False, "C": False}
