"""Runs the cells of a notebook in order, as Jupyter does, and keeps what they show.

`python -m tests.integration.notebooks [NAME ...]` writes the outputs into `examples/notebooks`,
without times and paths.
"""

import ast
import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "examples/notebooks"
_OWN_TO_A_RUN = (
    (r"\n<div><dt>(time|device|started)</dt>.*?</div>", ""),
    (r"-\d{8}-\d{6}[\w-]*", ""),
    (r"(?m)^time: .*\n", ""),
    (r"/[\w./-]+/(?=debate-train/)", "~/.cache/huggingface/"),
)


def cells(name: str) -> list[dict[str, Any]]:
    """Return the cells of a notebook of ours."""
    notebook: list[dict[str, Any]] = json.loads((FOLDER / name).read_text("utf-8"))["cells"]
    return notebook


def run(name: str) -> list[list[dict[str, Any]]]:
    """Return the outputs of each cell that holds code, run in the working directory."""
    names: dict[str, Any] = {"__name__": "__main__"}
    sources = ["".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code"]
    return [_outputs(source, names, number) for number, source in enumerate(sources, 1)]


def _outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    printed = io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(tree, name := f"<cell {number}>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), name, "eval"), names) if last else None
    outputs: list[dict[str, Any]] = []
    if text := _plain(printed.getvalue()):
        outputs.append({"name": "stdout", "output_type": "stream", "text": text.splitlines(True)})
    if value is not None:
        is_rich = hasattr(value, "_repr_html_")
        text = str(value._repr_html_()) if is_rich else repr(value)
        kind = "text/html" if is_rich else "text/plain"
        data = {kind: _plain(text).splitlines(True)}
        result = {"data": data, "execution_count": number, "metadata": {}}
        outputs.append({"output_type": "execute_result", **result})
    return outputs


def _plain(text: str) -> str:
    for pattern, instead in _OWN_TO_A_RUN:
        text = re.sub(pattern, instead, text)
    return text


def write(name: str) -> None:
    """Run a notebook, and keep what its cells show."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        outputs = run(name)
    notebook = json.loads((FOLDER / name).read_text("utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, cell_outputs) in enumerate(zip(code, outputs, strict=True), 1):
        cell |= {"execution_count": number, "outputs": cell_outputs}
    text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True)
    (FOLDER / name).write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    for notebook in sys.argv[1:] or [file.name for file in sorted(FOLDER.glob("*.ipynb"))]:
        write(notebook)
