"""The examples of the README and of docs/protocol.md, run as they stand."""

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


def test_examples_of_the_protocol_page_print_what_they_say_when_run(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (repository / "docs/protocol.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    examples = [block for block in blocks if block.splitlines()[-1].startswith("# ")]
    assert len(examples) >= 2
    for example in examples:
        promised = re.search(r"(?:^# .*\n)+\Z", example, re.MULTILINE)
        assert promised is not None
        exec(compile(example, "docs/protocol.md", "exec"), {})
        assert capsys.readouterr().out == promised.group().replace("# ", "")
