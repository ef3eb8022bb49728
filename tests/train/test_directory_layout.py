"""An output directory that cannot be used is refused before anything is loaded."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from debate_train.commands.cli import main
from debate_train.running import run as runs

NO_FOLDER_CAN_BE_MADE_IN = Path("/proc/self")
Place = Callable[[Path], Path]


def a_file(folder: Path) -> Path:
    (folder / "mine").write_text("mine")
    return folder / "mine"


def read_only(folder: Path) -> Path:
    inner = folder / "inner"
    inner.mkdir()
    inner.chmod(0o500)
    return inner


def used(folder: Path) -> Path:
    (folder / "recipe.yaml").mkdir()
    return folder


as_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
no_proc = pytest.mark.skipif(not NO_FOLDER_CAN_BE_MADE_IN.is_dir(), reason="needs /proc")
NEW = [
    pytest.param(a_file, "File exists", id="file"),
    pytest.param(lambda f: a_file(f) / "a/run", "Not a directory", id="below a file"),
    pytest.param(used, "it holds recipe.yaml", id="used"),
    pytest.param(read_only, "Permission denied", marks=as_root, id="read-only"),
    pytest.param(lambda f: read_only(f) / "a/run", "Permission denied", marks=as_root, id="parent"),
    pytest.param(lambda _: NO_FOLDER_CAN_BE_MADE_IN / "a/run", "cannot write to", marks=no_proc),
    pytest.param(lambda f: f / ("long" * 99), "File name too long", id="long"),
]
RESUMED = [
    pytest.param(lambda f: f / "absent", "found no such folder", id="absent"),
    pytest.param(a_file, "found no such folder", id="file"),
    pytest.param(used, "found no recipe.yaml", id="damaged"),
]


@pytest.mark.parametrize(
    ("place", "problem", "more"),
    [
        *(pytest.param(*case.values, [], marks=case.marks, id=case.id) for case in NEW),
        *(pytest.param(*case.values, ["--resume"], marks=case.marks) for case in RESUMED),
    ],
)
def test_output_that_cannot_be_used_is_refused_before_the_model_is_loaded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: Place,
    problem: str,
    more: list[str],
) -> None:
    for owner, name in ((runs, "_load_model"), (runs, "open_engine")):
        monkeypatch.setattr(owner, name, lambda *_: pytest.fail("something was loaded"))
    output = place(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    recipe = ["model={type: scratch}", "data={type: signs_puzzle}", "--output", str(output)]
    assert main(["quickstart", *recipe, *more]) == 2
    printed = capsys.readouterr().err
    assert problem in printed and str(output) in printed and "Traceback" not in printed
    assert sorted(tmp_path.rglob("*")) == before
