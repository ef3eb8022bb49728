"""The command `debate`: each program of the packages as a subcommand of it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from debate_protocol import cli
from debate_protocol.subcommands import SUBCOMMANDS, main

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def argv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `sys.argv` back, which a subcommand replaces."""
    monkeypatch.setattr(sys, "argv", sys.argv)


def test_each_program_of_the_packages_is_a_subcommand() -> None:
    programs = {}
    for file in ROOT.glob("packages/*/pyproject.toml"):
        programs |= tomllib.loads(file.read_text())["project"].get("scripts", {})
    assert programs.pop("debate") == "debate_protocol.subcommands:main"
    assert programs == {
        f"debate-{name}": f"{command.module}:{command.function}"
        for name, command in SUBCOMMANDS.items()
    }


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"]])
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from debate_protocol.subcommands import main; code = main(sys.argv[1:])\n"
        "heavy = {'debate_train.recipe', 'debate_train.__main__', 'torch', 'pydantic', 'yaml'}\n"
        "sys.exit(code or ', '.join(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    if arguments == ["--version"]:
        assert "debate-train 0.1.0" in lines
    else:
        assert {f"{name:10}{command.summary}" for name, command in SUBCOMMANDS.items()} <= {*lines}


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_help_of_a_subcommand_imports_no_trainer(name: str) -> None:
    code = (
        "import sys; from debate_protocol.subcommands import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code\n"
        "heavy = {'debate_train.recipe', 'numpy', 'omegaconf', 'torch', 'transformers'}\n"
        "sys.exit(code or ', '.join(heavy & sys.modules.keys()) or 0)"
    )
    command = [sys.executable, "-c", code, name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: debate {name} ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tran"], "debate: found 'tran'; expected one of train, eval, "),
        (["tran"], "; did you mean 'train'?\n"),
        (["train"], "debate: train: needs the package debate-train, which is not installed"),
        (["train"], "pip install packages/debate-train\n"),
        (["protocol", "show", "no.jsonl"], "debate protocol: no.jsonl: cannot be read"),
    ],
)
def test_message_names_what_was_typed_and_what_to_do(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "debate_train", None)  # As where it is not installed.
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_usage_is_of_the_name_that_was_typed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["protocol", "show", "--help"])
    assert capsys.readouterr().out.startswith("usage: debate protocol show ")
    with pytest.raises(SystemExit):
        cli.main(["show", "--help"])
    assert capsys.readouterr().out.startswith("usage: debate-protocol show ")
