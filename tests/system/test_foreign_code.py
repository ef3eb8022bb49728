"""No call that loads a model, its configuration or tokenizer may run or offer to run their code."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(__file__).parents[2] / "packages"
LOADERS = ("from_pretrained", "from_config")


def loading_calls() -> Iterator[tuple[str, ast.Call]]:
    for file in sorted(PACKAGES.rglob("src/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", None) in LOADERS:
                yield f"{file.name}:{node.lineno}", node


def refuses_code(call: ast.Call) -> bool:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    found = given.get("trust_remote_code")
    return isinstance(found, ast.Constant) and found.value is False


def test_every_call_that_loads_refuses_code_of_a_checkpoint() -> None:
    calls = dict(loading_calls())
    assert len(calls) >= 8
    assert [where for where, call in calls.items() if not refuses_code(call)] == []
