"""The debate-train command: arguments, messages and exit codes."""

import argparse
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from debate_protocol import cli as protocol
from debate_protocol.command_line import heed_options, is_quiet
from debate_report import report_command as report
from debate_rewards import cli as rewards
from debate_studies.options import study_parser, theory_parser
from debate_train.commands import cli
from debate_train.commands.cli import main
from debate_train.commands.options import (
    PARSERS,
    TRAIN_PARTS,
    compare_parser,
    part_parser,
)
from debate_train.errors import DataError
from debate_train.monitoring.progress import Progress
from debate_train.recipe import Recipe
from debate_train.recipe.describe import description, summary
from debate_train.recipe.files import load_recipe
from debate_train.recipe.schema import Schema, annotation_of, schema_of
from debate_train.recipe_names import SHIPPED
from debate_train.running import run as run_module
from train.small_recipes import FILE


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "r.yaml"
    path.write_text(FILE)
    return str(path)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Recipe, str, Path | None, bool]]:
    """Runs are noted, not made."""
    noted: list[tuple[Recipe, str, Path | None, bool]] = []

    def run(
        recipe: Recipe,
        text: str,
        output: Path | None = None,
        resume: bool = False,
        echo_s: float = 0.0,
        changed: bool = False,
    ) -> int:
        noted.append((recipe, text, output, resume))
        return 0

    monkeypatch.setattr(run_module, "run", run)
    return noted


Calls = list[tuple[Recipe, str, Path | None, bool]]


def test_main_hands_over_recipe_text_output_and_resume(recipe: str, calls: Calls) -> None:
    folder = Path(recipe).parent / "run"
    folder.mkdir()
    (folder / "recipe.yaml").touch()
    argv = [recipe, "steps=7", "--resume", "seed=3", "--output", str(folder), "--local_rank=0"]
    assert main(argv) == 0
    ((found, text, output, resume),) = calls
    assert (found.steps, found.seed, output, resume) == (7, 3, folder, True)
    assert Recipe.model_validate(yaml.safe_load(text)) == found


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("reward.type=elo", "reward.type: found 'elo'"),
        ("steps=2", "trainer.type: found torch in 2 processes"),
    ],
)
def test_wrong_recipe_starts_no_processes(
    recipe: str,
    setting: str,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def launch(*_: object) -> int:
        raise AssertionError

    monkeypatch.setattr(cli, "launch", launch)
    assert main([recipe, setting, "--nproc", "2"]) == 2
    assert message in capsys.readouterr().err


def test_a_run_begins_with_three_lines_and_its_warnings(
    recipe: str, calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert main([recipe, "debate.num_agents=3", "--output", str(folder)]) == 0
    printed = capsys.readouterr()
    # 3 steps x 2 questions x 3 agents x 2 rounds x 16 tokens
    assert printed.out.splitlines() == [
        f"recipe: {recipe}: 3 steps (reward v2); 3 agents, 2 rounds",
        "time: shown after the first steps; at most 576 tokens of replies",
        f"output: {folder}; at any time: debate report {folder}",
    ]
    assert printed.err.startswith("warning: v2 with 3 agents")
    assert printed.err.count("warning: v2 with 3 agents") == 1
    assert printed.err.endswith("loading libraries and model …\n")
    assert len(calls) == 1
    assert main([recipe, "--quiet", "--output", str(folder)]) == 0
    assert capsys.readouterr().out == ""


def test_a_run_says_how_long_an_earlier_one_took(
    recipe: str, calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    earlier, damaged = tmp_path / "earlier", tmp_path / "z"
    results = {earlier: '{"seconds": {"train": 70, "evaluation": 5.5}}', damaged: "["}
    for folder, text in results.items():
        folder.mkdir()
        assert main([recipe, "--output", str(folder / "x")]) == 0
        (folder / "recipe.yaml").write_text(calls[-1][1])
        (folder / "results.json").write_text(text)
    capsys.readouterr()
    assert main([recipe, "--output", str(tmp_path / "run")]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith(f"time: about 1:16 min, as {earlier} took; at most")
    assert main([recipe, "seed=3", "--output", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("time: shown after")


def test_a_used_folder_and_one_without_a_run_are_refused_before_anything_is_loaded(
    recipe: str, calls: Calls, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").touch()
    for options, problem in (
        (["--output", str(tmp_path / "used")], "it holds notes.txt; expected a new or empty"),
        (["--resume", "--output", str(tmp_path / "new")], "found no such folder"),
        (["rollout.engine.device=cuda:7"], "rollout.engine.device: found 'cuda:7'"),
        (["model.name=nowhere/at/all"], "model"),
    ):
        assert main([recipe, *options]) == 2
        printed = capsys.readouterr()
        assert problem in printed.err and printed.out == ""
        assert "loading" not in printed.err
    assert main(["--resume", str(tmp_path / "new")]) == 2
    assert "found no such folder" in capsys.readouterr().err
    assert calls == []


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("stepz=1", "command line: stepz: unknown key; did you mean 'steps'?"),
        ("reward.type=v3", "reward.type: found 'v3'; expected one of v2, win_rate"),
        ("rollout.top_p=0.9", "top_p < 1, top_k and min_p cut the distribution"),
        (
            "reward=win_rate",
            "reward: found 'win_rate'; expected reward.type=win_rate",
        ),
        ("nonsense", "expected key=value"),
        (
            "seed=99999999999999999999",
            "seed: found 99999999999999999999; expected less than 9223",
        ),
        ("model.type=pretrained", "model.name: missing"),
    ],
)
def test_main_returns_2_with_one_message_when_recipe_is_wrong(
    recipe: str, calls: Calls, capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    assert main([recipe, override]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("debate-train: ")
    assert "Traceback" not in error
    assert len(error.splitlines()) <= 8
    assert calls == []


@pytest.mark.parametrize(
    ("raised", "code", "shown"),
    [
        (DataError("data.path: gone"), 2, "debate-train: data.path: gone"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("out of memory"), 1, "RuntimeError: out of memory"),
    ],
)
def test_main_tells_users_mistakes_from_failures(
    recipe: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    raised: BaseException,
    code: int,
    shown: str,
) -> None:
    def run(*arguments: object, **settings: object) -> int:
        raise raised

    monkeypatch.setattr(run_module, "run", run)
    assert main([recipe]) == code
    error = capsys.readouterr().err
    assert shown in error
    assert ("Traceback" in error) == (code == 1)


@pytest.mark.parametrize("key", ["trainer.device", "rollout.engine.device"])
def test_main_refuses_a_device_that_is_not_there_before_it_loads_a_model(
    key: str,
    recipe: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(run_module, "_load_model", lambda recipe: pytest.fail("it was loaded"))
    run = tmp_path / "run"
    argv = [recipe, "rollout.engine.type=transformers", f"{key}=cuda:99", "--output", str(run)]
    assert main(argv) == 2
    assert f"{key}: found 'cuda:99', which cannot be used here" in capsys.readouterr().err
    assert not run.exists()


def test_main_shows_no_value_of_the_environment(
    recipe: str,
    calls: Calls,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("DEBATE_SECRET", "hush-hush")
    assert main([recipe, "tracking.entity=${oc.env:DEBATE_SECRET}"]) == 0
    ((found, text, _, _),) = calls
    assert found.tracking.entity == "hush-hush"
    assert "hush-hush" not in text
    assert main([recipe, "model={type: pretrained, name: '/${oc.env:DEBATE_SECRET}'}"]) == 2
    printed = capsys.readouterr()
    assert "hush-hush" not in printed.out + printed.err


def heavy_imports_after(code: str) -> str:
    report = (
        "\nimport sys\n"
        "heavy = {'torch', 'transformers', 'deepspeed', 'peft', 'vllm', 'wandb', 'datasets'}\n"
        "heavy |= {'rich', 'jinja2', 'filelock', 'asyncio', 'reasoning_gym'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", code + report]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


def test_check_imports_nothing_heavy(recipe: str) -> None:
    # As on a machine without a GPU: only torch says whether a driver has one.
    code = (
        "from debate_train.commands.cli import main\n"
        "from debate_train.models import pretrained\n"
        "pretrained._may_have_gpu = lambda: not pretrained.PROCESSOR_FILE.is_file()\n"
        f"main([{recipe!r}, 'model={{type: pretrained, name: a/b, dtype: auto}}', '--check'])\n"
    )
    assert heavy_imports_after(code) == "[]"


BUILDERS = (
    *PARSERS.values(),
    *(compare_parser, study_parser, theory_parser),
    *(module.command_parser for module in (report, protocol, rewards)),
)
DEBATES = Path(__file__).resolve().parents[2] / "examples/data/debates.jsonl"


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
    heed_options(argparse.Namespace(quiet=False, verbose=0))


def parsers() -> Iterator[argparse.ArgumentParser]:
    """Those of every command and of every part of one."""
    for build in BUILDERS:
        parser = build()
        yield parser
        for action in parser._actions:
            if isinstance(action.choices, dict):
                yield from action.choices.values()
    yield from map(part_parser, TRAIN_PARTS)


@pytest.mark.parametrize("parser", parsers(), ids=lambda parser: parser.prog)
def test_every_command_and_part_has_the_options(
    parser: argparse.ArgumentParser, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.count(".") == 2
    assert {"-q", "-v"} <= set(parser._option_string_actions)


def test_quiet_command_prints_no_counts_and_no_progress(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert protocol.main(["validate", "-q", str(DEBATES)]) == 0
    assert protocol.main(["-q", "validate", str(DEBATES)]) == 0
    assert cli.main(["quickstart", "--check", "-q"]) == 0
    assert is_quiet()
    with Progress(live=False) as progress:
        progress.start("quiet", 1)
        progress.step(1, {"loss": 1.0})
        progress.note("noted")
    assert capsys.readouterr() == ("", "")
    assert protocol.main(["validate", str(DEBATES)]) == 0
    assert capsys.readouterr().out.startswith("4 debates")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_recipes_lists_every_recipe_with_its_heading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = printed(capsys, "recipes").splitlines()
    headings = dict(line.split(maxsplit=1) for line in lines)
    paths = (path.relative_to(SHIPPED) for path in SHIPPED.glob("**/*.yaml"))
    assert set(headings) == {path.with_suffix("").as_posix() for path in paths}
    heading = "SDRL-freq on the signs puzzle: one tiny model"
    assert headings["sdrl_freq_puzzle"].startswith(heading)
    matches = printed(capsys, "recipes", "Maca")
    assert matches.split()[0] == "papers/baseline_maca_llama3_8b_boolq"
    assert main(["recipes", "quikstart"]) == 2
    assert "found none with 'quikstart'" in capsys.readouterr().err


def test_print_writes_the_complete_recipe_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "papers/quickstart_mixed"
    text = printed(capsys, name, "seed=7", "--print", "--nproc", "2")
    self_play = yaml.safe_load(text)["phases"]["self_play"]
    assert self_play["reward"]["components"]["truth"]["weight"] == 0.3
    Path("again.yaml").write_text(text)
    again = load_recipe("again.yaml", model=Recipe)
    assert again.phases == load_recipe(name, ["seed=7"], model=Recipe).phases


def models_of(schema: Schema, models: dict[type[BaseModel], None]) -> dict[type[BaseModel], None]:
    """Collect every model of ours that a recipe may hold."""
    for model in schema.models:
        if model not in models and model.__module__.startswith("debate_"):
            models[model] = None
            for field in model.model_fields.values():
                models_of(schema_of(annotation_of(field)), models)
    if schema.values is not None:
        models_of(schema.values, models)
    return models


def test_every_field_of_a_recipe_has_a_description() -> None:
    models = models_of(Schema((Recipe,)), {})
    assert len(models) > 100
    assert [model.__name__ for model in models if not summary(model)] == []
    undescribed = [
        f"{model.__name__}.{name}"
        for model in models
        for name in model.model_fields
        if name != "type" and not description(model, name).endswith(".")
    ]
    assert undescribed == []


def test_explain_shows_what_a_key_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--explain", "rollout.max_tokens").splitlines() == [
        "rollout.max_tokens",
        "  Most tokens of one reply.",
        "  type: int",
        "  range: >= 1",
        "  default: 1024",
    ]
    components = printed(capsys, "--explain", "reward.components")
    assert components.startswith("reward.components  (type: mixed)\n  Names to rewards")
    assert "    weight  How much it counts" in components


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trainer.lerning_rate"], "did you mean 'learning_rate'?"),
        # A word of the field for a key.
        (["lr"], "did you mean 'trainer.learning_rate'"),
        (["epochs"], "did you mean 'trainer.epochs'"),
        (["reward.components", "quickstart"], "expected it with type mixed"),
    ],
)
def test_explain_of_no_key_names_the_nearest(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key, *recipe = arguments
    assert main([*recipe, "--explain", key]) == 2
    assert message in capsys.readouterr().err


def test_import_ends_well_when_its_reader_has_seen_enough(tmp_path: Path) -> None:
    row = json.dumps({"prompt": "1 + 1?", "completion": "\\boxed{2}" * 100})
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{row}\n" * 500)
    command = [sys.executable, "-m", "debate_train", "import", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert b"debate-transcript/1" in process.stdout.readline()
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (0, b"")
