#!/usr/bin/env python3
"""Measure how the source reads: `python .ci/readability.py [FOLDER ...]` prints one table a folder.

Blank lines, comments and docstrings are no code lines. Folders below `packages` are measured by
their `src`; a tree of tests is measured where it is named itself.
"""

import ast
import collections
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# These name no value: a reader has to look up what each holds.
EMPTY_NAMES = set(
    re.split(
        r"\s+",
        """found own said given taken made wanted known held asked kept shown one here most least
        done drawn seen gone both apart beside ready place places part parts its who alone whole""",
    )
)
# A docstring full of these makes its reader look for what they stand for.
RELATIVE_WORDS = set(
    re.split(
        r"\s+",
        "that those what whose which whom who one ones none nobody nothing its too alone else",
    )
)
SKIPPED_FOLDERS = frozenset({".venv", "tests", "test", "node_modules", "site"})
LAYOUT_TOKENS = frozenset(
    {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITION = (*FUNCTION, ast.ClassDef)
COMPREHENSION = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass
class Counts:
    """What is counted over all files of one folder."""

    code_lines: int = 0
    tokens: int = 0
    comments: int = 0
    tuple_assignments: int = 0
    nested_comprehensions: int = 0
    late_constants: int = 0
    functions: int = 0
    function_lines: int = 0
    function_docstrings: int = 0
    return_docstrings: int = 0
    docstring_words: int = 0
    relative_words: int = 0
    longest_init: int = 0
    nodes: int = 0
    bound_names: collections.Counter[str] = field(default_factory=collections.Counter)
    class_names: collections.Counter[str] = field(default_factory=collections.Counter)

    def add_file(self, path: Path) -> None:
        """Count one Python file."""
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        code_lines = self._add_tokens(text, docstring_lines(tree))
        self._add_docstrings(tree)
        self.late_constants += sum(1 for _ in late_constants(tree))
        for node in ast.walk(tree):
            self._add_node(node, code_lines)
        if path.name == "__init__.py":
            self.longest_init = max(self.longest_init, len(code_lines))

    def _add_tokens(self, text: str, docstrings: set[int]) -> set[int]:
        code_lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            self.comments += token.type == tokenize.COMMENT
            if token.type in LAYOUT_TOKENS or token.start[0] in docstrings:
                continue
            self.tokens += 1
            code_lines.update(range(token.start[0], token.end[0] + 1))
        self.code_lines += len(code_lines)
        return code_lines

    def _add_docstrings(self, tree: ast.Module) -> None:
        for owner, docstring in docstrings_of(tree):
            plain_words = re.findall(r"[A-Za-z']+", re.sub(r"`[^`]*`", " X ", docstring).lower())
            self.docstring_words += len(plain_words)
            self.relative_words += sum(word in RELATIVE_WORDS for word in plain_words)
            if isinstance(owner, FUNCTION):
                self.function_docstrings += 1
                self.return_docstrings += bool(re.match(r"\s*Returns?\b", docstring))

    def _add_node(self, node: ast.AST, code_lines: set[int]) -> None:
        self.nodes += 1
        if isinstance(node, FUNCTION):
            self.functions += 1
            body_lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            self.function_lines += len(code_lines.intersection(body_lines))
            arguments = [*node.args.args, *node.args.kwonlyargs]
            self.bound_names.update(argument.arg for argument in arguments)
        elif isinstance(node, ast.ClassDef):
            self.class_names[node.name] += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.bound_names[node.id] += 1
        elif isinstance(node, ast.Assign):
            sides = (node.targets[0], node.value)
            self.tuple_assignments += all(isinstance(side, ast.Tuple) for side in sides)
        elif isinstance(node, COMPREHENSION):
            holds_another = any(
                isinstance(inner, COMPREHENSION) for inner in ast.walk(node) if inner is not node
            )
            self.nested_comprehensions += holds_another or len(node.generators) > 1

    def table(self) -> dict[str, float]:
        """Return each figure by its name."""
        empty = sum(self.bound_names[name] for name in EMPTY_NAMES)
        repeated_classes = sum(count > 1 for count in self.class_names.values())
        return {
            "tokens a code line": self.tokens / self.code_lines,
            "names that say nothing, %": 100 * empty / self.bound_names.total(),
            "tuple assignments a 1,000 lines": 1000 * self.tuple_assignments / self.code_lines,
            "nested comprehensions a 1,000 lines": 1000
            * self.nested_comprehensions
            / self.code_lines,
            "comments a 1,000 lines": 1000 * self.comments / self.code_lines,
            "late constants a 1,000 lines": 1000 * self.late_constants / self.code_lines,
            "code lines of a function": self.function_lines / max(1, self.functions),
            "docstrings that begin with Return, %": 100
            * self.return_docstrings
            / max(1, self.function_docstrings),
            "relative words a 1,000 of docstrings": 1000
            * self.relative_words
            / max(1, self.docstring_words),
            "longest __init__": self.longest_init,
            "class names used twice": repeated_classes,
            "functions": self.functions,
            "code lines": self.code_lines,
            "syntax nodes": self.nodes,
        }


def docstrings_of(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield each docstring with what it documents."""
    for owner in ast.walk(tree):
        if isinstance(owner, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(owner, clean=False)
            if docstring is not None:
                yield owner, docstring


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of lines that hold text alone: docstrings and texts below attributes."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def late_constants(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield module-level assignments below the first function or class."""
    after_definition = False
    for statement in tree.body:
        if isinstance(statement, DEFINITION):
            after_definition = True
        elif after_definition and isinstance(statement, ast.Assign | ast.AnnAssign):
            yield statement


def python_files(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder."""
    for path in sorted(folder.rglob("*.py")):
        names = path.relative_to(folder).parts
        if any(name in SKIPPED_FOLDERS or name.startswith(".") for name in names):
            continue
        if "packages" in path.parts and "src" not in path.parts:
            continue
        yield path


def measure(folder: Path) -> dict[str, float]:
    """Return the table of a folder."""
    counts = Counts()
    for path in python_files(folder):
        counts.add_file(path)
    return counts.table()


if __name__ == "__main__":
    for name in sys.argv[1:] or ["packages", "tests"]:
        print(name)
        for figure, value in measure(Path(name)).items():
            print(f"  {figure}: {value:,.1f}")
