"""What a run hands to its engine, and what it refuses before a model is loaded."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debate_rollout import engine as engines
from debate_rollout.engines import TransformersEngine, VllmEngine, VllmServerEngine
from debate_train.commands.cli import main
from debate_train.models.loaded_model import LoadedModel
from debate_train.recipe import Recipe
from debate_train.running import run as runs
from debate_train.running.open_engines import open_engine
from train.small_recipes import FILE, recipe_of

SCRATCH = "model.type=scratch"


def recipe(model: str, engine: str) -> Recipe:
    return recipe_of(FILE, f"{model} rollout.engine.type={engine}")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """The model and type with which each engine was opened; none is."""
    opened: list[tuple[Any, Any]] = []

    def note(config: Any, model: Any, *_: object) -> None:
        opened.append((model, getattr(config, "dtype", None)))

    for engine in (TransformersEngine, VllmEngine, VllmServerEngine):
        monkeypatch.setattr(engine, "open", note)
    return opened


def test_vllm_reads_a_model_from_its_folder_and_is_handed_one_from_memory(
    opened: list[tuple[Any, Any]], tiny: Callable[..., LoadedModel], tmp_path: Path
) -> None:
    loaded = tiny()
    folder = f"model.type=pretrained model.name={tmp_path} model.dtype=bfloat16 model.revision=main"
    hub = "model.type=pretrained model.name=some/hub-id"
    # A folder is read where it is, in the trainer's type; other engines copy what is in memory.
    open_engine(recipe(folder, "vllm"), loaded)
    open_engine(recipe(folder, "vllm_server"), loaded)
    assert opened == [(str(tmp_path), "bfloat16")] * 2
    open_engine(recipe(folder, "transformers"), loaded)
    assert opened[-1][0] is loaded.model
    # Nor can vLLM read a scratch model, or a revision of the hub's.
    open_engine(recipe(SCRATCH, "vllm"), loaded)
    assert opened[-1][0] is loaded.model
    open_engine(recipe(f"{hub} model.revision=main", "vllm"), loaded)
    assert opened[-1][0] is loaded.model
    open_engine(recipe(f"{hub} model.dtype=float32 rollout.engine.dtype=float16", "vllm"), loaded)
    assert opened[-1] == ("some/hub-id", "float16")
    # An adapter alone is no model that vLLM can read: what it was merged into is handed over.
    (tmp_path / "adapter_config.json").write_text("{}")
    open_engine(recipe(folder, "vllm"), loaded)
    assert opened[-1][0] is loaded.model


@pytest.fixture
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "vllm" else name)


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_load_model", "open_engine"):
        monkeypatch.setattr(runs, name, lambda *_: pytest.fail("something was loaded"))


@pytest.mark.usefixtures("no_vllm", "nothing_loads")
def test_a_missing_library_is_a_warning_of_check_and_ends_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = "rollout.engine.type: found vllm, which needs vllm, not installed here; expected `pip"
    command = ["quickstart", "rollout.engine={type: vllm}", "pipeline.max_staleness=0"]
    assert main([*command, "--check"]) == 0
    captured = capsys.readouterr()
    assert f"warning: {missing}" in captured.out + captured.err
    assert main([*command, f"--output={tmp_path / 'run'}"]) == 2
    assert f"debate-train: {missing}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def write_file(folder: Path) -> Path:
    (folder / "mine").write_text("mine")
    return folder / "mine"


def make_read_only(folder: Path) -> Path:
    inner = folder / "inner"
    inner.mkdir()
    inner.chmod(0o500)
    return inner


def make_used(folder: Path) -> Path:
    (folder / "recipe.yaml").mkdir()
    return folder


not_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize(
    ("make_output", "message", "options"),
    [
        pytest.param(write_file, "File exists", [], id="file"),
        pytest.param(
            lambda f: make_read_only(f) / "a/run",
            "Permission denied",
            [],
            marks=not_root,
            id="below a read-only one",
        ),
        pytest.param(write_file, "found no such folder", ["--resume"], id="resume a file"),
        pytest.param(make_used, "found no recipe.yaml", ["--resume"], id="resume damaged"),
    ],
)
def test_output_that_cannot_be_used_is_refused_before_the_model_is_loaded(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make_output: Callable[[Path], Path],
    message: str,
    options: list[str],
) -> None:
    output = make_output(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    changes = ["model={type: scratch}", "data={type: signs_puzzle}"]
    assert main(["quickstart", *changes, "--output", str(output), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(output) in error
    assert "Traceback" not in error
    assert sorted(tmp_path.rglob("*")) == before
