"""The package's README says what happens."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "packages/debate-rollout/README.md"


def test_readme_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for code in blocks:
        exec(compile(code, str(README), "exec"), {})
        expected = re.findall(r"^# (.*)$", code, re.MULTILINE)
        assert expected and capsys.readouterr().out.splitlines() == expected
