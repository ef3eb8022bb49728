"""Imports run down the table of rooms in ARCHITECTURE.md, and in no circle."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MAX_ARROWS_UP = 3


@cache
def trees() -> dict[str, ast.Module]:
    """Parse each source file; keyed by the module's name."""
    modules = {}
    for source in sorted(ROOT.glob("packages/*/src")):
        for file in source.rglob("*.py"):
            name = ".".join(file.relative_to(source).with_suffix("").parts)
            modules[name.removesuffix(".__init__")] = ast.parse(file.read_text("utf-8"))
    return modules


def imports_of(nodes: Iterator[ast.AST], modules: set[str]) -> Iterator[str]:
    """Yield which of our modules these nodes import."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            yield from submodules or {node.module} & modules
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & modules


def at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs when a module is imported: no bodies of functions, no type checking."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from at_import(node)


def rooms() -> list[str]:
    """List the rooms of the table in ARCHITECTURE.md, from the ground up."""
    table = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("| room |")[2]
    rows = re.findall(r"^\| (`[^|]*) \|", table.partition("\n\n")[0], re.MULTILINE)
    return re.findall(r"`([^`]+)`", "".join(rows))


def test_every_room_is_in_the_table_once() -> None:
    paths = [name.split(".") for name in trees()]
    expected = {".".join(names[:2]) for names in paths if len(names) > 1}
    assert sorted(rooms()) == sorted(expected)


def test_imports_run_down_the_table() -> None:
    floors = {room: number for number, room in enumerate(rooms())}
    arrows_up = set()
    for module, tree in trees().items():
        room = ".".join(module.split(".")[:2])
        for other in imports_of(ast.walk(tree), set(trees())):
            other_room = ".".join(other.split(".")[:2])
            if floors.get(other_room, -1) > floors.get(room, len(floors)):
                arrows_up.add(f"{room} -> {other_room}")
    assert len(arrows_up) <= MAX_ARROWS_UP, sorted(arrows_up)


def test_modules_import_no_others_in_circles() -> None:
    modules = set(trees())
    graph = {
        module: set(imports_of(at_import(tree), modules)) - {module}
        for module, tree in trees().items()
    }
    assert circle_in(graph) == []
    assert set(circle_in({"a": {"b"}, "b": {"a"}, "c": {"a"}})) == {"a", "b"}


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """List the modules of a circle of imports, the first again at the end; none where none is."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_only_what_runs_at_import_counts_for_circles() -> None:
    source = "from b import x\nif TYPE_CHECKING:\n    import c\ndef f():\n    import c\n"
    tree = ast.parse(source)
    assert list(imports_of(at_import(tree), {"a", "b", "c"})) == ["b"]
    assert list(imports_of(ast.walk(tree), {"a", "b", "c"})) == ["b", "c", "c"]
