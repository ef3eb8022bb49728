"""What keys of a recipe mean, read from the source of their models when it is asked for.

A field's description is the text below it, or its entry under `Args:` or `Attributes:` of its
class. Reading them while modules are imported would slow every command down.
"""

import ast
import inspect
import re
from functools import cache
from pathlib import Path

from pydantic import BaseModel

_SECTION = re.compile(r"(Args|Attributes):$")
_ENTRY = re.compile(r" {4}(\w+): (.*)")


def description(model: type[BaseModel], field: str) -> str:
    """Return what a field means, in one paragraph; its nearest class that says so counts.

    Returns:
        The text, empty where no class has one.
    """
    given = model.model_fields[field].description
    said = [_described(parent).get(field, "") for parent in model.__mro__ if _is_ours(parent)]
    text = next(filter(None, [given or "", *said]), "")
    return re.sub(r"\bNone\b", "null", text)  # As YAML calls it.


def summary(model: type[BaseModel]) -> str:
    """Return the first line of what a model's docstring says."""
    own = model.__doc__ if model.__doc__ != BaseModel.__doc__ else None
    return (own or "").strip().partition("\n")[0]


def _is_ours(parent: type) -> bool:
    return issubclass(parent, BaseModel) and parent is not BaseModel


@cache
def _described(model: type[BaseModel]) -> dict[str, str]:
    """Return what the body and docstring of one class say of its fields."""
    try:
        file = inspect.getsourcefile(model)
    except TypeError:  # Made where there is no source.
        return {}
    tree = _classes(file).get(model.__qualname__) if file is not None else None
    if tree is None:
        return {}
    found = _listed(inspect.cleandoc(model.__doc__ or ""))
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(str(text))):
                found[name] = " ".join(text.split())
    return found


def _listed(docstring: str) -> dict[str, str]:
    """Return the entries below `Args:` or `Attributes:`."""
    found: dict[str, str] = {}
    inside, name = False, ""
    for line in docstring.splitlines():
        if _SECTION.match(line):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        elif inside and (entry := _ENTRY.match(line)):
            name = entry[1]
            found[name] = entry[2].strip()
        elif inside and name and line.strip():
            found[name] += f" {line.strip()}"
    return found


@cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    """Return the classes of a file by their qualified names; parsing is what takes time."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    found: dict[str, ast.ClassDef] = {}

    def walk(node: ast.AST, above: str) -> None:
        for below in ast.iter_child_nodes(node):
            if isinstance(below, ast.ClassDef):
                found[above + below.name] = below
                walk(below, f"{above}{below.name}.")
            elif isinstance(below, ast.FunctionDef | ast.AsyncFunctionDef):
                walk(below, f"{above}{below.name}.<locals>.")
            else:
                walk(below, above)

    walk(tree, "")
    return found
