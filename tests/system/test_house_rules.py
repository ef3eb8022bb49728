"""House rules for the packages' Python, which ruff cannot hold."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from debate_protocol.plugins import Config

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
NAMES_WITHOUT_CONCEPT = re.compile(
    r"(?<![a-z])(utils?|common|helpers?|base|manager|misc)(?![a-z])", re.IGNORECASE
)
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
        "tinker", "tokenizers", "tensorboard", "torch", "transformers", "wandb", "yaml",
    },
    "debate_studies": {
        "debate_protocol", "debate_report", "debate_rewards", "debate_train", "numpy", "pydantic",
        "scipy", "yaml",
    },
}  # fmt: skip
ENGINE_IMPORTS = {
    "httpx", "numpy", "peft", "safetensors", "tinker", "tokenizers", "torch", "transformers",
    "vllm",
}  # fmt: skip
ENGINE_MODULES = re.compile(r"debate_rollout/(engines/.+|rendering)\.py$")


def imported_modules(tree: ast.AST) -> Iterator[str]:
    """Yield what a file imports, in functions and by `import_module`, too."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom(level=0, module=str(module)):
                yield module
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                arguments = [ast.unparse(argument) for argument in node.args]
                if name in ("import_module", "__import__") and arguments[0].startswith("'"):
                    yield ast.literal_eval(node.args[0])


def forbidden_imports(path: str, source: str) -> list[str]:
    """List the imports that the package of this file may not have."""
    package = path.split("/src/")[1].split("/")[0]
    allowed = MAY_IMPORT[package] | {package, "pydantic_core"} | sys.stdlib_module_names
    if ENGINE_MODULES.search(path):
        allowed |= ENGINE_IMPORTS
    modules = imported_modules(ast.parse(source))
    return [m for m in modules if not m.startswith(".") and m.partition(".")[0] not in allowed]


def code_runners(source: str) -> list[str]:
    """List the calls that load a model and do not refuse to run its code."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    loading = [ast.unparse(call) for call in calls if is_loader(call)]
    return [call for call in loading if "trust_remote_code=False" not in call]


def is_loader(call: ast.Call) -> bool:
    return getattr(call.func, "attr", None) in ("from_pretrained", "from_config")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: "/".join(path.parts[-2:]))
def test_module_keeps_the_house_rules(path: Path) -> None:
    source = path.read_text("utf-8")
    assert forbidden_imports(path.as_posix(), source) == []
    assert code_runners(source) == []
    assert not NAMES_WITHOUT_CONCEPT.search(path.stem.replace("_", " "))
    bases = re.findall(r"^class (\w+)\(BaseModel\)", source, re.MULTILINE)
    assert bases == (["Config"] if path.name == "plugins.py" else [])


def test_settings_are_frozen_finite_and_of_known_names() -> None:
    strict = {"extra": "forbid", "frozen": True, "allow_inf_nan": False}
    assert Config.model_config == strict | {"ser_json_inf_nan": "constants"}


@pytest.mark.parametrize(
    ("module", "source", "forbidden"),
    [
        ("debate_protocol/x", "import torch", ["torch"]),
        ("debate_protocol/x", "from debate_rewards import credits", ["debate_rewards"]),
        (
            "debate_rewards/x",
            "def f():\n    import debate_rollout.engine",
            ["debate_rollout.engine"],
        ),
        ("debate_rewards/x", "importlib.import_module('torch.nn')", ["torch.nn"]),
        ("debate_rollout/x", "import torch", ["torch"]),
        ("debate_rollout/engines/x", "import torch\nfrom . import scripted", []),
        ("debate_rollout/engines/x", "import debate_train", ["debate_train"]),
    ],
)
def test_forbidden_imports_are_found(module: str, source: str, forbidden: list[str]) -> None:
    assert forbidden_imports(f"packages/p/src/{module}.py", source) == forbidden


def test_calls_that_may_run_code_of_a_checkpoint_are_found() -> None:
    refusing = "AutoModel.from_pretrained(path, trust_remote_code=False)"
    running = "AutoModel.from_pretrained(path)"
    assert code_runners(f"{refusing}\n{running}") == [running]


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
    table = (ROOT / "ARCHITECTURE.md").read_text("utf-8").partition("| module |")[2]
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
