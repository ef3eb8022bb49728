"""What the source is made of, counted: each number has a bound that may only fall.

`pytest -s tests/system/test_house_counts.py` prints them.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from debate_protocol.forms import FORMS
from debate_protocol.plugins import Variants
from debate_rewards import REWARDS
from debate_rollout.drivers import DRIVERS
from debate_train.advantages import ADVANTAGES
from debate_train.data import DATA
from debate_train.data.signs_puzzle import ENGINES
from debate_train.evaluation import MODES
from debate_train.losses import LOSSES
from debate_train.models import MODELS
from debate_train.monitoring import DETECTORS
from debate_train.trainers import TRAINERS
from debate_train.trainers.trainer import OptimizerConfig

ROOT = Path(__file__).resolve().parents[2]
MOST_TYPE_TESTS = 0
MOST_CIRCLES = 0
"""Groups of modules that import each other while they are imported."""
MOST_ANY = 207
"""Uses of `Any`."""


@cache
def sources() -> dict[str, str]:
    """Return the text of each source file by its module's name."""
    found = {}
    for file in sorted(ROOT.glob("packages/*/src/**/*.py")):
        parts = file.relative_to(file.parents[len(file.parts) - len(ROOT.parts) - 4]).parts
        name = ".".join(parts).removesuffix(".py").removesuffix(".__init__")
        found[name] = file.read_text(encoding="utf-8")
    return found


def variants() -> dict[str, str]:
    """Return the names of our variants and of their base classes, each with its module."""
    unions: list[Variants] = [FORMS, REWARDS, DRIVERS, DATA, ENGINES, LOSSES, MODELS, TRAINERS]
    unions += [ADVANTAGES, MODES, DETECTORS]
    models = {model for union in unions for model in union.own.values()}
    models |= set(get_args(get_args(OptimizerConfig)[0]))
    known = {
        parent
        for model in models
        for parent in model.__mro__
        if parent.__module__.startswith("debate_") and issubclass(parent, BaseModel)
    }
    return {model.__name__: model.__module__ for model in known if model.__name__ != "Config"}


def type_tests(module: str, tree: ast.AST, known: dict[str, str]) -> Iterator[str]:
    """Yield each place where a module asks which variant it has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
            if any(known.get(name, module) != module for name in names):
                yield f"{module}:{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Compare):
            left = ast.unparse(node.left)
            if left.endswith(".type") and "device" not in left:
                yield f"{module}:{node.lineno}: {ast.unparse(node)}"


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported: no bodies of functions, no type checking."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from at_import(node)


def imported(module: str, tree: ast.AST, known: set[str]) -> set[str]:
    """Return our modules that a module imports while it is imported."""
    found = set()
    for node in at_import(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            below = {f"{node.module}.{alias.name}" for alias in node.names} & known
            found |= below or ({node.module} & known)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    return found - {module}


def circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that reach each other."""

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            for other in arrows[waiting.pop()] - found:
                found.add(other)
                waiting.append(other)
        return found

    reach = {module: reached(module) for module in arrows}
    groups = {
        frozenset(other for other in reach[module] if module in reach[other])
        for module in arrows
        if module in reach[module]
    }
    return [set(group) for group in sorted(groups, key=sorted)]


def code_lines(text: str) -> int:
    """Return the lines without blanks, comments and docstrings."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                documented |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    layout = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


def test_no_module_asks_which_variant_it_has() -> None:
    known = variants()
    assert {"V2", "Dpo", "TransformersEngine", "SpeakingSettings", "TrainerSettings"} <= set(known)
    found = [
        line
        for module, text in sources().items()
        for line in type_tests(module, ast.parse(text), known)
    ]
    print(f"type tests on variants outside their files: {len(found)}")
    assert len(found) <= MOST_TYPE_TESTS, "\n" + "\n".join(found)


def test_modules_import_no_others_in_circles() -> None:
    names = set(sources())
    arrows = {m: imported(m, ast.parse(text), names) for m, text in sources().items()}
    found = circles(arrows)
    print(f"import circles: {len(found)}")
    assert len(found) <= MOST_CIRCLES, "\n" + "\n".join(map(str, found))


def test_uses_of_any_stay_within_bounds() -> None:
    lines = sum(map(code_lines, sources().values()))
    anys = sum(
        isinstance(node, ast.Name) and node.id == "Any"
        for text in sources().values()
        for node in ast.walk(ast.parse(text))
    )
    print(f"files: {len(sources())}")
    print(f"code lines: {lines:,}; Any: {anys}")
    assert anys <= MOST_ANY


def test_the_counts_see_what_they_count() -> None:
    known = {"V2": "rewards.v2"}
    bad = "if isinstance(reward, V2 | int) and reward.type == 'v2': pass"
    assert len(list(type_tests("checks", ast.parse(bad), known))) == 2
    assert len(list(type_tests("rewards.v2", ast.parse(bad), known))) == 1
    names = {"a", "b", "c"}
    late = "from b import x\nif TYPE_CHECKING:\n    import c\ndef f():\n    import c\n"
    now = imported("a", ast.parse(late), names)
    assert now == {"b"}
    assert circles({"a": now, "b": {"a"}, "c": {"a"}}) == [{"a", "b"}]
    assert code_lines('"""M."""\n\n# c\nx = (1,\n  2)\n') == 2
