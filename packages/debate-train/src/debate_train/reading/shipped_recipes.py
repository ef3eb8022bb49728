"""Recipes by name: those below `recipes/` of the working directory, and those of the package."""

import itertools
import os
from difflib import get_close_matches
from pathlib import Path

from debate_train.errors import RecipeError

HERE = Path("recipes")
"""Where recipes are looked up by name first, below the working directory."""
SHIPPED = Path(__file__).resolve().parents[1] / "recipes"
"""The recipes that are installed with the package."""


def named_recipe(name: str) -> Path | None:
    """Return the file of a recipe by its name, such as `quickstart` or `evaluation/sdrl`."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.name:
        return None
    for folder in (HERE, SHIPPED):
        for candidate in (folder / path, folder / path.with_name(f"{path.name}.yaml")):
            if candidate.is_file():
                return candidate
    return None


def find_recipe(name: str | Path) -> Path:
    """Return the file of a recipe given by path or by name.

    Raises:
        RecipeError: There is none; names the nearest.
    """
    path = Path(name)
    if "\0" in str(name) or not is_utf8(str(name)):
        raise RecipeError(
            f"{str(name)[:200]!a}: found no name of a file; expected a recipe (.yaml)"
        )
    if path.is_file():
        return path
    named = named_recipe(str(name))
    if named is not None:
        return named
    if path.is_dir():
        raise RecipeError(f"{path}: found a directory; expected a recipe file (.yaml)")
    if os.path.lexists(path):
        raise RecipeError(f"{path}: found no file that can be read; expected a recipe file (.yaml)")
    is_path = len(path.parts) > 1 and path.parent.is_dir()
    names = {file.stem: str(file) for file in path.parent.glob("*.yaml")} if is_path else {}
    names = names or {one: one for one in recipe_names()}
    near = get_close_matches(path.stem, names, n=1)
    hint = f"; did you mean {names[near[0]]}?" if near else ""
    raise RecipeError(
        f"{path}: no such recipe; expected a YAML file or a name (debate-train recipes){hint}"
    )


def recipe_names() -> list[str]:
    """Return the names of all recipes, without `.yaml`."""
    files = [
        file.relative_to(folder).with_suffix("")
        for folder in (HERE, SHIPPED)
        for file in (*folder.glob("*.yaml"), *folder.glob("*/*.yaml"))
    ]
    return sorted({file.as_posix() for file in files}, key=lambda name: ("/" in name, name))


def headings() -> dict[str, str]:
    """Return what each recipe says in the first sentences of its opening comment, by name."""
    return {name: _heading(find_recipe(name)) for name in recipe_names()}


def is_utf8(text: str) -> bool:
    """Return whether a text can be written to a file."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def opening(path: Path) -> list[str]:
    """Return the lines of a recipe's opening comment, without their marks."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    said = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return [line[1:].removeprefix(" ").rstrip() for line in said]


def _heading(path: Path) -> str:
    """Return the first paragraph of the opening comment."""
    return " ".join(line.strip() for line in itertools.takewhile(bool, opening(path)))
