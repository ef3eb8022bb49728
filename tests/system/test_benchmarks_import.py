"""Scripts of `benchmarks/` still find what they use of the packages; few of them run in tests."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_every_script_can_be_imported() -> None:
    files = sorted((ROOT / "benchmarks").glob("*/*.py"))
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    assert "benchmarks.gpu.update" in names
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
