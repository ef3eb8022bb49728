"""What the source is made of, counted: each number has a bound that no commit raises.

`pytest -s tests/system/test_house_counts.py` prints them all.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from pydantic import BaseModel

from debate_protocol.forms import FORMS
from debate_protocol.plugins import Variants
from debate_rewards import REWARDS
from debate_rollout.drivers import DRIVERS
from debate_train.advantages import ADVANTAGES
from debate_train.data import DATA
from debate_train.data.demonstrations import ENGINES
from debate_train.evaluation import MODES
from debate_train.losses import LOSSES
from debate_train.models import MODELS
from debate_train.monitoring import DETECTORS
from debate_train.trainers import TRAINERS
from debate_train.trainers.trainer import OPTIMIZERS

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = {
    "imports of own modules inside functions": 30,
    "imports that run back up": 3,
    "groups of modules that import each other while they are imported": 0,
    "type tests on variants outside their files": 0,
    "uses of Any": 207,
}


def over(name: str, found: int, lines: Iterable[str] = ()) -> list[str]:
    """Print a count; return what was counted where it is above its bound, else nothing."""
    print(f"{name}: {found:,}, at most {BOUNDS[name]:,}")
    return [f"{name}: {found:,}", *lines] if found > BOUNDS[name] else []


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
    unions += [ADVANTAGES, MODES, DETECTORS, OPTIMIZERS]
    models = {model for union in unions for model in union.own.values()}
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


def rooms() -> list[str]:
    """Return the rooms of the table in ARCHITECTURE.md, from the ground up."""
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("| room |")[2]
    rows = [row for row in table.partition("\n\n")[0].split("\n") if row.startswith("| `")]
    return [room for row in rows for room in re.findall(r"`([^`]+)`", row.split("|")[1])]


def room_of(module: str) -> str:
    """Return the folder or file of a package that a module lies in."""
    return ".".join(module.split(".")[:2])


def own_imports(tree: ast.AST, known: set[str]) -> Iterator[tuple[str, int, bool]]:
    """Yield our modules that a file imports anywhere, the line, and whether a function does it."""
    inside = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names: set[str] = set()
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            names = (whole & known) or ({node.module} & known)
        elif isinstance(node, ast.Import):
            names = {alias.name for alias in node.names} & known
        for name in names:
            yield name, node.lineno, node in inside


def test_no_module_asks_which_variant_it_has() -> None:
    known = variants()
    assert {"V2", "Dpo", "TransformersEngine", "SpeakingSettings", "TrainerSettings"} <= set(known)
    found = [
        line
        for module, text in sources().items()
        for line in type_tests(module, ast.parse(text), known)
    ]
    assert not over("type tests on variants outside their files", len(found), found)


def test_modules_import_no_others_in_circles() -> None:
    names = set(sources())
    arrows = {m: imported(m, ast.parse(text), names) for m, text in sources().items()}
    found = circles(arrows)
    name = "groups of modules that import each other while they are imported"
    assert not over(name, len(found), map(str, found))


def test_values_have_types() -> None:
    nodes = (node for text in sources().values() for node in ast.walk(ast.parse(text)))
    uses = sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
    assert not over("uses of Any", uses)


def test_imports_stand_at_the_top_and_run_down() -> None:
    floor = {room: number for number, room in enumerate(rooms())}
    late, up = [], set()
    for module, text in sources().items():
        for name, line, is_inside in own_imports(ast.parse(text), set(sources())):
            if is_inside:
                late.append(f"{module}:{line}: {name}")
            one, other = room_of(module), room_of(name)
            if "." in one and "." in other and floor[one] < floor[other]:
                up.add(f"{one} -> {other}")
    assert not over("imports of own modules inside functions", len(late), late)
    assert not over("imports that run back up", len(up), sorted(up))


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
