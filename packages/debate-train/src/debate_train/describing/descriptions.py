"""What keys of a recipe mean, read from the source of their models when it is asked for.

A field's description is the text below it, or its entry under `Args:` or `Attributes:` of its
class. Reading them while modules are imported would slow every command down.
"""

import ast
import inspect
import re
import textwrap
from functools import cache

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
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    except (OSError, TypeError, SyntaxError, ValueError):  # Made where there is no source.
        return {}
    assert isinstance(tree, ast.ClassDef)
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
