"""What a run hands to its engine, and what it refuses before a model is loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debate_rollout import engine as engines
from debate_rollout.engines import TransformersEngine, VllmEngine, VllmServerEngine
from debate_train.commands.cli import main
from debate_train.models.loaded_model import LoadedModel
from debate_train.monitoring.tracking import Tracker, Tracking
from debate_train.recipe import Recipe
from debate_train.recipe.policies import missing_libraries
from debate_train.running import run as runs
from debate_train.running.open_engines import open_engine
from debate_train.running.run_context import RunContext

Opened = list[tuple[Any, Any]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Note with which model and type each engine is opened, and open none."""
    found: Opened = []

    def note(config: Any, model: Any, *_: object) -> None:
        found.append((model, getattr(config, "dtype", None)))

    for engine in (TransformersEngine, VllmEngine, VllmServerEngine):
        monkeypatch.setattr(engine, "open", note)
    return found


def recipe(model: dict[str, Any], engine: dict[str, Any]) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "t",
            "steps": 1,
            "model": model,
            "data": {"type": "signs_puzzle"},
            "debate": {"num_agents": 5, "max_rounds": 1, "style": "compact", "personas": "none"},
            "rollout": {"max_tokens": 16, "engine": engine},
            "advantage": {"baseline": "question_round"},
        }
    )


def test_vllm_reads_a_model_where_it_is_and_is_handed_one_that_was_made(
    opened: Opened, tiny: Callable[..., LoadedModel], tmp_path: Path
) -> None:
    loaded = tiny()
    here = {"name": str(tmp_path), "type": "pretrained", "dtype": "bfloat16", "revision": "main"}
    for engine in ("vllm", "vllm_server", "transformers"):
        open_engine(recipe(here, {"type": engine}), loaded)
    # A folder is read where it is, in the trainer's type; other engines copy what is in memory.
    assert opened[:2] == [(str(tmp_path), "bfloat16")] * 2
    assert opened[2][0] is loaded.model

    # An adapter alone is no model that vLLM can read: what it was merged into is handed over.
    opened.clear()
    (tmp_path / "adapter_config.json").write_text("{}")
    open_engine(recipe(here, {"type": "vllm"}), loaded)
    assert opened[0][0] is loaded.model

    opened.clear()
    for model in ({"type": "scratch"}, here | {"name": "some/hub-id"}):
        open_engine(recipe(model, {"type": "vllm"}), loaded)
    assert [model for model, _ in opened] == [loaded.model] * 2
    named = {"name": "some/hub-id", "type": "pretrained", "dtype": "float32"}
    open_engine(recipe(named, {"type": "vllm", "dtype": "float16"}), loaded)
    assert opened[2] == ("some/hub-id", "float16")


def test_a_missing_library_is_a_warning_of_check_and_ends_a_run_before_its_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "vllm" else name)

    def loads(*_: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("debate_train.running.run._load_model", loads)
    missing = "rollout.engine.type: found vllm, which needs vllm, not installed here; expected `pip"
    command = ["quickstart", "rollout.engine={type: vllm}", "pipeline.max_staleness=0"]
    assert main([*command, "--check"]) == 0
    found = capsys.readouterr()
    assert f"warning: {missing}" in found.out + found.err
    assert main([*command, f"--output={tmp_path / 'run'}"]) == 2
    assert f"debate-train: {missing}" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_nothing_is_missing_for_a_server_that_runs_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engines, "find_spec", lambda name: None if name == "vllm" else name)
    scratch = {"type": "scratch"}
    running = recipe(scratch, {"type": "vllm_server", "url": "http://host:8000"})
    assert missing_libraries(running) == []
    (started,) = missing_libraries(recipe(scratch, {"type": "vllm_server"}))
    assert "'vllm==0.32.*'" in started
    assert missing_libraries(recipe(scratch, {"type": "transformers"})) == []


@pytest.mark.parametrize(("owner", "name"), [(Tracker, "close"), (Tracking, "open")])
def test_engine_is_closed_whatever_becomes_of_the_tracker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, owner: type, name: str
) -> None:
    class Opened:
        def close(self) -> None:
            closed.append(self)

    def run_phases(run: RunContext) -> int:
        run.begin()
        return 0

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    closed: list[Opened] = []
    monkeypatch.setattr(runs, "open_engine", lambda *_: Opened())
    monkeypatch.setattr(runs, "run_phases", run_phases)
    monkeypatch.setattr(owner, name, fail)
    assert main(["quickstart", "tracking.wandb=false", f"--output={tmp_path / 'run'}"]) == 1
    assert len(closed) == 1
