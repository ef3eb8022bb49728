"""House rules for the packages' Python, which ruff cannot hold."""

import ast
import re
import sys
from collections.abc import Iterator
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
