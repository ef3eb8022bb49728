"""The public names of each package, as `packages/NAME/public_names.txt` lists them.

`python -m tests.system.public_names` writes what has come and gone since the last release into the
lists, and with `--release` makes it part of the release. It never changes CHANGELOG.md.
"""

import ast
import importlib
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from debate_protocol.plugins import Variants

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = tuple(sorted(folder.parent.name for folder in ROOT.glob("packages/*/src")))
FILE = "public_names.txt"
_HEAD = """\
# What {package} promises: names of modules with __all__, entry point groups and commands.
# Those of a version stay as they are; a line with + or - below is a change since then, which
# CHANGELOG.md names under "## Unreleased". Written by: python -m tests.system.public_names
"""


@dataclass(frozen=True)
class PublicNames:
    """The names of a version, and those that came and went since."""

    version: str
    released: frozenset[str]
    added: frozenset[str]
    removed: frozenset[str]

    @property
    def present(self) -> frozenset[str]:
        """The names that the list says there are."""
        return (self.released | self.added) - self.removed

    def written(self, package: str) -> str:
        """Return the list as its file holds it."""
        changes = [f"+ {name}" for name in sorted(self.added)]
        changes += [f"- {name}" for name in sorted(self.removed)]
        lines = [f"version {self.version}", *sorted(self.released), *changes]
        return _HEAD.format(package=package) + "\n".join(lines) + "\n"


def read_list(package: str) -> PublicNames:
    """Return the list of a package."""
    text = (ROOT / "packages" / package / FILE).read_text(encoding="utf-8")
    return parse_list(text)


def parse_list(text: str) -> PublicNames:
    """Return a list as it is written."""
    head, *lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return PublicNames(
        head.removeprefix("version "),
        frozenset(line for line in lines if line[0] not in "+-"),
        frozenset(line[2:] for line in lines if line[0] == "+"),
        frozenset(line[2:] for line in lines if line[0] == "-"),
    )


def names_of(package: str) -> frozenset[str]:
    """Return the public names that a package has."""
    folder = ROOT / "packages" / package
    scripts = tomllib.loads((folder / "pyproject.toml").read_text())["project"].get("scripts", {})
    names = {f"command {name}" for name in scripts}
    for file in sorted(folder.glob("src/**/*.py")):
        if not _has_all(file):
            continue
        module_parts = file.relative_to(folder / "src").with_suffix("").parts
        name = ".".join(module_parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        names |= {f"{name}.{public}" for public in module.__all__}
        for value in (getattr(module, public) for public in module.__all__):
            if isinstance(value, Variants) and value.group:
                names |= {f"entry points {value.group}"}
    return frozenset(names)


def _has_all(file: Path) -> bool:
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        targets = node.targets if isinstance(node, ast.Assign) else ()
        names = [
            ast.unparse(target_name)
            for target in targets
            for target_name in getattr(target, "elts", [target])
        ]
        if "__all__" in names:
            return True
    return False


def brought_up_to_date(listed: PublicNames, present: frozenset[str]) -> PublicNames:
    """Return the list of the names that there are, with the same release."""
    return PublicNames(
        listed.version, listed.released, present - listed.released, listed.released - present
    )


def unmentioned(names: PublicNames, changelog: str) -> list[str]:
    """Return what changed since the release and the changelog's unreleased part does not name.

    A name stands there between backticks, with its module or without; the module alone speaks for
    all its names where it came or went as a whole.
    """
    after = changelog.partition("## Unreleased")[2].partition("\n## ")[0]
    mentioned = {
        word.strip("().") for code in re.findall(r"`([^`]+)`", after) for word in code.split()
    }
    last = {word.rpartition(".")[2] for word in mentioned}

    def modules(of: frozenset[str]) -> set[str]:
        return {name.rpartition(".")[0] for name in of}

    missing = []
    for name in sorted(names.added | names.removed):
        module, _, short_name = name.rpartition(".")
        others = names.released if name in names.added else names.present
        is_whole = module not in modules(others)
        plain = name.partition(" ")[2] if name.startswith("command") else name
        plain = plain.removeprefix("entry points ")
        if (
            plain not in mentioned
            and (short_name or plain) not in last
            and not (is_whole and module in mentioned)
        ):
            missing.append(name)
    return missing


def main(arguments: list[str]) -> None:
    """Write the lists of all packages."""
    for package in PACKAGES:
        path = ROOT / "packages" / package / FILE
        version = importlib.import_module(package.replace("-", "_")).__version__
        present = names_of(package)
        names = PublicNames(version, present, frozenset(), frozenset())
        if path.exists() and "--release" not in arguments:
            names = brought_up_to_date(read_list(package), present)
        path.write_text(names.written(package), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
