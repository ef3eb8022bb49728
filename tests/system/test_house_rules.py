"""The house rules for Python code, each a function from one file to its violations.

A rule that cannot fail holds nothing: the second half shows every rule failing on a bad snippet.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]

EMPTY_NAMES = {"utils", "util", "common", "helpers", "helper", "base", "manager", "misc"}

MAY_IMPORT = {
    "debate_protocol": {"lxml", "pydantic"},
    "debate_rewards": {
        "debate_protocol", "pydantic", "math_verify", "latex2sympy2_extended", "reasoning_gym",
        "sympy",
    },
    "debate_rollout": {"debate_protocol", "pydantic"},
    "debate_report": {
        "debate_protocol", "debate_rewards", "jinja2", "markupsafe", "pyarrow", "tokenizers",
        "yaml", "zstandard",
    },
    "debate_train": {
        "debate_protocol", "debate_report", "debate_rewards", "debate_rollout", "bitsandbytes",
        "datasets", "deepspeed", "filelock", "gguf", "liger_kernel", "numpy", "omegaconf",
        "reasoning_gym", "regex", "peft", "pydantic", "rich", "safetensors", "scipy",
        "tokenizers", "tensorboard", "torch", "transformers", "wandb", "yaml",
    },
    "debate_studies": {
        "debate_protocol", "debate_report", "debate_rewards", "debate_train", "numpy", "pydantic",
        "scipy", "yaml",
    },
}  # fmt: skip
ENGINE_IMPORTS = {
    "httpx", "numpy", "peft", "safetensors", "tokenizers", "torch", "transformers", "vllm",
}  # fmt: skip
ENGINE_MODULES = re.compile(r"debate_rollout/(engines/.+|engines|rendering|token_text)\.py$")

Found = Iterator[tuple[int, str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def package_of(path: str) -> str | None:
    """The import name of the package that a source file belongs to, None for tests and scripts."""
    parts = PurePosixPath(path).parts
    return parts[3] if len(parts) > 4 and parts[0] == "packages" and parts[2] == "src" else None


def file_name(path: str, source: str) -> Found:
    """A file is named after its concept."""
    for part in PurePosixPath(path).with_suffix("").parts:
        for word in EMPTY_NAMES.intersection(part.lower().split("_")):
            yield 1, f"'{word}' in the name says nothing: name the file after its concept"


def imported(tree: ast.AST) -> Found:
    """Every absolute import, nested ones and literal `import_module` calls too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            called = called.id if isinstance(called, ast.Name) else called
            if called in ("import_module", "__import__"):
                yield node.lineno, str(node.args[0].value)


def import_direction(path: str, source: str) -> Found:
    """Packages import only what the architecture lets them."""
    package = package_of(path)
    if package is None:
        return
    allowed = MAY_IMPORT[package] | {package, "pydantic_core"} | sys.stdlib_module_names
    if ENGINE_MODULES.search(path):
        allowed = allowed | ENGINE_IMPORTS
    for line, module in imported(ast.parse(source)):
        if not module.startswith(".") and module.partition(".")[0] not in allowed:
            yield line, f"{package} may not import {module} here"


def unfinished(path: str, source: str) -> Found:
    """Nothing is left for later: no marker comment, no stub."""
    if package_of(path) is None:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and re.search(r"\b(TODO|FIXME|XXX)\b", token.string):
            yield token.start[0], f"unfinished: {token.string}"
        elif token.type == tokenize.NAME and token.string == "NotImplementedError":
            yield token.start[0], "NotImplementedError: finish it or leave it out"


def is_stub(node: Function) -> bool:
    """Whether the body is `...` with at most a docstring before it."""
    last = node.body[-1]
    is_dots = isinstance(last, ast.Expr) and getattr(last.value, "value", None) is Ellipsis
    return is_dots and len(node.body) <= 2


def stubs(path: str, source: str) -> Found:
    """An empty body stands only in a Protocol or an overload."""
    tree = ast.parse(source)
    for owner in ast.walk(tree):
        bases = [ast.unparse(base) for base in getattr(owner, "bases", ())]
        if any(base.partition("[")[0].endswith("Protocol") for base in bases):
            continue
        for node in ast.iter_child_nodes(owner):
            if (
                isinstance(node, Function)
                and is_stub(node)
                and "overload" not in map(ast.unparse, node.decorator_list)
            ):
                yield node.lineno, f"{node.name} has an empty body"


def docstrings(path: str, source: str) -> Found:
    """Every public module, class and function of a package says what it is for."""
    if package_of(path) is None:
        return
    tree = ast.parse(source)
    if tree.body and ast.get_docstring(tree) is None:
        yield 1, "the module has no docstring"
    open_scopes: list[ast.Module | ast.ClassDef] = [tree]
    while open_scopes:
        for node in open_scopes.pop().body:
            if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
                continue
            decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
            is_repeated = any(d == "overload" or d.endswith(".setter") for d in decorators)
            if ast.get_docstring(node) is None and not is_repeated:
                yield node.lineno, f"{node.name} has no docstring"
            if isinstance(node, ast.ClassDef):
                open_scopes.append(node)


Rule = Callable[[str, str], Found]
RULES: tuple[Rule, ...] = (
    file_name,
    import_direction,
    unfinished,
    stubs,
    docstrings,
)


def python_files() -> list[str]:
    """Paths from the root of all Python files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    return [path for path in listed if path and (ROOT / path).is_file()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_code_keeps_the_house_rule(rule: Rule) -> None:
    paths = python_files()
    assert len(paths) > 4
    found = [
        f"{path}:{line}: {message}"
        for path in paths
        for line, message in rule(path, (ROOT / path).read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


SOURCE = "packages/debate-{0}/src/debate_{0}/{1}.py"
PROTOCOL, REWARDS, ROLLOUT = (SOURCE.format(p, "x") for p in ("protocol", "rewards", "rollout"))
ENGINE = SOURCE.format("rollout", "engines/x")
LATE_IMPORT = "def f() -> None:\n    import debate_rollout.engine\n"
BAD: list[tuple[Rule, str, str, int]] = [
    (file_name, "tests/train/utils.py", "", 1),
    (file_name, "packages/debate-train/src/debate_train/base_trainer.py", "", 1),
    (file_name, "tests/helpers/x.py", "", 1),
    (import_direction, PROTOCOL, "import torch\n", 1),
    (import_direction, PROTOCOL, "from debate_rewards import credits\n", 1),
    (import_direction, REWARDS, LATE_IMPORT, 2),
    (import_direction, ROLLOUT, "from debate_rewards.reward import Credit\n", 1),
    (import_direction, ROLLOUT, "import torch\n", 1),
    (import_direction, ENGINE, "import debate_train\n", 1),
    (import_direction, REWARDS, "import importlib\nimportlib.import_module('torch.nn')\n", 2),
    (unfinished, PROTOCOL, "x = 1\ny = 2  # TO" + "DO later\n", 2),
    (unfinished, PROTOCOL, "def f():\n    raise NotImplemented" + "Error\n", 2),
    (stubs, "tests/x.py", 'class A:\n    def f(self):\n        """Do it."""\n        ...\n', 2),
    (docstrings, PROTOCOL, "x = 1\n", 1),
    (docstrings, PROTOCOL, '"""M."""\n\n\ndef f():\n    return 1\n', 4),
    (docstrings, PROTOCOL, '"""M."""\nclass A:\n    """A."""\n    def f(self):\n        pass\n', 4),
]
GOOD: list[tuple[Rule, str, str]] = [
    (file_name, "packages/debate-train/src/debate_train/database.py", ""),
    (import_direction, ENGINE, "import torch\nfrom . import scripted\n"),
    (import_direction, "tests/x.py", "import torch\n"),
    (stubs, PROTOCOL, "class A(Protocol[T]):\n    def f(self) -> int: ...\n"),
    (docstrings, PROTOCOL, '"""M."""\n\n\ndef _f():\n    return 1\n'),
]


@pytest.mark.parametrize(("rule", "path", "source", "line"), BAD)
def test_rule_fails_when_code_breaks_it(rule: Rule, path: str, source: str, line: int) -> None:
    assert [where for where, _ in rule(path, source)] == [line]


@pytest.mark.parametrize(("rule", "path", "source"), GOOD)
def test_rule_passes_when_code_keeps_it(rule: Rule, path: str, source: str) -> None:
    assert list(rule(path, source)) == []
