"""The README's example, run as it stands."""

import re
from pathlib import Path

import pytest


def test_readme_example_prints_what_it_says_when_run(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (repository / "packages/debate-protocol/README.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (promised,) = re.findall(r"^prints `(.*)`\.$", readme, re.MULTILINE)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out == promised + "\n"
