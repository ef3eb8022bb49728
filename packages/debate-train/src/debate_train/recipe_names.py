"""Recipes by name: where they are looked for, and what each says of itself."""

import itertools
from pathlib import Path

HERE = Path("recipes")
"""Where recipes are looked up by name first, below the working directory."""
SHIPPED = Path(__file__).resolve().parent / "recipes"
"""The recipes that are installed with the package."""


def named_recipe(name: str) -> Path | None:
    """Find the file of a recipe by its name, such as `quickstart` or `evaluation/sdrl`."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.name:
        return None
    for folder in (HERE, SHIPPED):
        for candidate in (folder / path, folder / path.with_name(f"{path.name}.yaml")):
            if candidate.is_file():
                return candidate
    return None


def recipe_names() -> list[str]:
    """List the names of all recipes, without `.yaml`."""
    files = [
        file.relative_to(folder).with_suffix("")
        for folder in (HERE, SHIPPED)
        for file in (*folder.glob("*.yaml"), *folder.glob("*/*.yaml"))
    ]
    return sorted({file.as_posix() for file in files}, key=lambda name: ("/" in name, name))


def headings() -> dict[str, str]:
    """Read the first paragraph of each recipe's opening comment, by name."""
    first_paragraphs = {}
    for name in recipe_names():
        file = named_recipe(name)
        if file is not None:
            lines = itertools.takewhile(bool, opening(file))
            first_paragraphs[name] = " ".join(line.strip() for line in lines)
    return first_paragraphs


def opening(path: Path) -> list[str]:
    """Read the lines of a recipe's opening comment, without their marks."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return [line[1:].removeprefix(" ").rstrip() for line in comment]
