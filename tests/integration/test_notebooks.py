"""The notebooks of `examples/notebooks` run, and show what they were committed with."""

from pathlib import Path

import pytest

from debate_train.errors import ModelError
from integration.notebooks import FOLDER, cells, run

NAMES = sorted(file.name for file in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_small_executed_and_says_nothing_of_a_machine(name: str) -> None:
    text = (FOLDER / name).read_text("utf-8")
    assert len(text) < 50_000
    assert not any(text_of_machine in text for text_of_machine in ("/tmp/", "Traceback"))
    counts = [cell["execution_count"] for cell in cells(name) if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


def test_first_debate_runs_and_shows_what_it_was_committed_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = [cell for cell in cells("first_debate.ipynb") if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(code, run("first_debate.ipynb"), strict=True)):
        kinds = [[output["output_type"], *output.get("data", {})] for output in outputs]
        assert kinds == [
            [output["output_type"], *output.get("data", {})] for output in cell["outputs"]
        ]
        if number < 3:  # What is trained depends on the machine's arithmetic.
            assert outputs == cell["outputs"]


def test_smollm2_says_in_a_line_what_to_do_where_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ModelError, match="expected `debate-train fetch smollm2` before") as raised:
        run("smollm2.ipynb")
    assert "\n" not in str(raised.value)
