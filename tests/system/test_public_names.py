"""Each package lists its public names; the list and the changelog change with them."""

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.system.public_names import (
    PACKAGES,
    ROOT,
    brought_up_to_date,
    names_of,
    parse_list,
    read_list,
    unmentioned,
)

present = cache(names_of)
DOCUMENTS = (
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("packages/*/README.md"),
    *ROOT.glob("examples/**/*.py"),
)


@pytest.mark.parametrize("package", PACKAGES)
def test_list_has_the_names_of_the_package(package: str) -> None:
    listed = read_list(package)
    wanted = brought_up_to_date(listed, present(package))
    assert listed == wanted, (
        "the public names changed: run python -m tests.system.public_names, and name what came "
        "and went under ## Unreleased of the package's CHANGELOG.md"
    )
    version = importlib.import_module(package.replace("-", "_")).__version__
    assert listed.version == version, (
        "a release begins a new list: python -m tests.system.public_names --release"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_changelog_names_what_came_and_went(package: str) -> None:
    changelog = (ROOT / "packages" / package / "CHANGELOG.md").read_text(encoding="utf-8")
    assert unmentioned(read_list(package), changelog) == []


def test_documents_and_examples_use_public_names_alone() -> None:
    known = frozenset().union(*map(present, PACKAGES))
    private = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in DOCUMENTS
        for name in _imports(path)
        if name not in known
    }
    assert private == set()


def _imports(path: Path) -> Iterator[str]:
    """Yield the names that a file, or the Python of a page, imports from our packages."""
    text = path.read_text(encoding="utf-8")
    sources = [text] if path.suffix == ".py" else re.findall(r"```python\n(.*?)```", text, re.S)
    for node in (node for source in sources for node in ast.walk(ast.parse(source))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("debate_"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


LIST = parse_list(
    "# about it\nversion 1\npack.Old\npack.gone.A\npack.gone.B\nentry points pack.x\n"
    "+ pack.New\n+ pack.mod.C\n+ pack.mod.D\n+ command pack-run\n- pack.gone.A\n- pack.gone.B\n"
)


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ("`New`, `pack.mod` and `pack-run`; `pack.gone` went.", []),
        ("`pack.New`, `C()`, `D`, `pack-run`. `A` and `B` went.", []),
        ("`New`, `pack.mod`, `pack-run`. A and `B` went.", ["pack.gone.A"]),
        ("`NewOne`, `pack.mod`, `pack-run`, `pack.gone`", ["pack.New"]),
        ("`New`, `pack.mod`, `pack-runs`, `pack.gone`", ["command pack-run"]),
        ("`New`, `C`, `pack-run`, `A`", ["pack.gone.B", "pack.mod.D"]),
    ],
)
def test_names_that_a_changelog_leaves_out_are_found(said: str, missing: list[str]) -> None:
    text = f"# Changelog\n\n## Unreleased\n\n- {said}\n\n## 1\n\n- `New` `B` `D` `pack-run`\n"
    assert unmentioned(LIST, text) == missing


def test_a_module_that_stays_does_not_speak_for_its_names() -> None:
    names = parse_list("version 1\npack.mod.A\n+ pack.mod.B\n")
    assert unmentioned(names, "## Unreleased\n- `pack.mod` is faster.\n") == ["pack.mod.B"]
    assert brought_up_to_date(names, frozenset({"pack.mod.B"})).removed == {"pack.mod.A"}
    assert parse_list(names.written("pack")) == names
