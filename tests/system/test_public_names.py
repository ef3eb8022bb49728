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
CHANGED = parse_list(
    "version 1\npack.mod.Old\npack.whole.A\npack.whole.B\n"
    "+ pack.mod.New\n+ command pack-run\n- pack.whole.A\n- pack.whole.B\n"
)


@pytest.mark.parametrize("package", PACKAGES)
def test_list_and_changelog_have_the_names_of_the_package(package: str) -> None:
    listed = read_list(package)
    assert listed == brought_up_to_date(listed, present(package)), (
        "the public names changed: run python -m tests.system.public_names, and name what came "
        "and went under ## Unreleased of the package's CHANGELOG.md"
    )
    version = importlib.import_module(package.replace("-", "_")).__version__
    assert listed.version == version, (
        "a release begins a new list: python -m tests.system.public_names --release"
    )
    changelog = (ROOT / "packages" / package / "CHANGELOG.md").read_text("utf-8")
    assert unmentioned(listed, changelog) == []


def imports_of(path: Path) -> Iterator[str]:
    """Yield the names that a file, or the Python of a page, imports from our packages."""
    text = path.read_text("utf-8")
    sources = [text] if path.suffix == ".py" else re.findall(r"```python\n(.*?)```", text, re.S)
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("debate_"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_documents_and_examples_use_public_names_alone() -> None:
    public = frozenset().union(*map(present, PACKAGES))
    for path in DOCUMENTS:
        private = {name for name in imports_of(path) if name not in public}
        assert private == set(), path


@pytest.mark.parametrize(
    ("entry", "missing"),
    [
        ("`New()` and `pack-run`; `pack.whole` went.", []),
        ("`pack.mod` and `pack-runs`; `A` and B went.",
         ["command pack-run", "pack.mod.New", "pack.whole.B"]),
    ],
)  # fmt: skip
def test_names_that_a_changelog_leaves_out_are_found(entry: str, missing: list[str]) -> None:
    text = f"# Changelog\n\n## Unreleased\n\n- {entry}\n\n## 1\n\n- `New` `B` `pack-run`\n"
    assert unmentioned(CHANGED, text) == missing
    assert parse_list(CHANGED.written("pack")) == CHANGED
