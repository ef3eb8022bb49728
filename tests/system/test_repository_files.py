"""Files that are no Python: words, hosts, versions, ranges, licences, the image and make."""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from debate_protocol.plugins import install_command

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
BOUNDS = ("<", "==", "~=")

# Brackets keep these patterns from finding themselves.
MACHINE_TIES = re.compile(
    r"pyp[i]\.org|pythonhoste[d]\.org|npmj[s]\.(org|com)|de[b]\.debian\.org"
    r"|/(wor[k]|opt/(wheels|pypi[a-z-]*)|roo[t])/|/(hom[e]|User[s])/[A-Za-z]\w*/|\.\./share[d]\b"
)
"""Hosts of package registries, and paths of one machine or person."""
CONFLICT_MARK = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
PRIVATE_WORDS = re.compile(
    r"(?<![a-z])(told|tells?|telling|afresh|anew|aside|desks?|gone on (from|with))(?![a-z])",
    re.IGNORECASE,
)
"""Words of this project's own; the field says show, report, again, resumed."""
PROSE = re.compile(
    r"(packages/[^/]+/(src/.+\.py|README\.md)|(docs|recipes|benchmarks)/.+\.(md|yaml)|[^/]+\.md)"
)
# No registry has our packages: anybody could register these names.
REGISTRABLE = re.compile(r"pip install\b[^\n`#]*?[ '\"](debat[e]-\w+)|`(debat[e]-\w+\[\w+\])`")
INSTALLING = {".md", ".py", ".yaml", ".ipynb", ".txt", ".toml", ""}


def texts() -> Iterator[tuple[str, str]]:
    """Yield each text file that git tracks or would track, with its path from the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path != Path(__file__):
            try:
                yield name, path.read_text("utf-8")
            except UnicodeDecodeError:
                continue


def matches(pattern: re.Pattern[str], files: Iterator[tuple[str, str]]) -> list[str]:
    """List where a pattern matches, with the line and what was found."""
    hits = []
    for name, text in files:
        for match in pattern.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            hits.append(f"{name}:{line}: {match.group()!r}")
    return hits


def read_project(package: Path) -> dict[str, Any]:
    return tomllib.loads((package / "pyproject.toml").read_text("utf-8"))["project"]


def version_of(package: Path) -> str:
    (init,) = package.glob("src/*/__init__.py")
    (version,) = re.findall(r'^__version__ = "([^"]+)"$', init.read_text("utf-8"), re.MULTILINE)
    return str(version)


def range_faults(project: dict[str, Any], versions: dict[str, str]) -> Iterator[str]:
    """Yield requirements without an upper bound, or that exclude a sibling as it is."""
    extras = project.get("optional-dependencies", {}).values()
    for text in [*project["dependencies"], *chain.from_iterable(extras)]:
        requirement = Requirement(text)
        if not any(bound.operator in BOUNDS for bound in requirement.specifier):
            if "[" not in text or not text.startswith("debate-"):
                yield f"{text}: expected an upper bound"
        elif requirement.name in versions:
            version = versions[requirement.name]
            if not requirement.specifier.contains(version, prereleases=True):
                yield f"{text} excludes the sibling's own version {version}"


def test_no_file_names_a_registry_a_machine_or_has_marks_of_a_merge() -> None:
    assert matches(MACHINE_TIES, texts()) == []
    assert matches(CONFLICT_MARK, texts()) == []


def test_messages_and_documents_use_the_words_of_the_field() -> None:
    prose = {name: text for name, text in texts() if PROSE.fullmatch(name)}
    assert {"README.md", "docs/tokens.md", "recipes/quickstart.yaml"} <= prose.keys()
    assert matches(PRIVATE_WORDS, iter(prose.items())) == []


def test_nothing_is_installed_by_a_name_that_anybody_can_register() -> None:
    files = (file for file in texts() if Path(file[0]).suffix in INSTALLING)
    assert matches(REGISTRABLE, files) == []


@pytest.mark.parametrize(
    ("pattern", "text", "lines"),
    [
        (MACHINE_TIES, "https://pypi" + ".org/simple", [1]),
        (MACHINE_TIES, "a\n/wo" + "rk/main", [2]),
        (MACHINE_TIES, "/ho" + "me/ann/x", [1]),
        (MACHINE_TIES, "runs/quickstart /tmp/x /path/to/model ./worker/", []),
        (PRIVATE_WORDS, "Told twice.\nwrite_aside(path)\nforetold, besides.", [1, 2]),
        (REGISTRABLE, "pip install 'debate-train[hub]'", [1]),
        (REGISTRABLE, "(`debate-train[gym]`)", [1]),
        (REGISTRABLE, "pip install packages/debate-protocol 'packages/debate-rewards[math]'", []),
    ],
)
def test_patterns_find_what_is_forbidden(
    pattern: re.Pattern[str], text: str, lines: list[int]
) -> None:
    lines_found = matches(pattern, iter([("file", text)]))
    assert [int(match.split(":")[1]) for match in lines_found] == lines


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_package_is_whole_and_its_ranges_hold_today(package: Path) -> None:
    project = read_project(package)
    assert "version" in project["dynamic"]
    assert project["license-files"] == ["LICENSE"]
    assert (package / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    readme = (package / "README.md").read_text("utf-8")
    assert readme.startswith(f"# {package.name}")
    assert "](.." not in readme  # It is shown elsewhere, too.
    assert (package / "CHANGELOG.md").read_text("utf-8").startswith("# Changelog")
    assert len(list(package.glob("src/*/py.typed"))) == 1
    versions = {sibling.name: version_of(sibling) for sibling in PACKAGES}
    assert list(range_faults(project, versions)) == []


@pytest.mark.parametrize(
    ("requirement", "num_faults"),
    [
        ("debate-protocol>=0.1,<0.2", 0),
        ("debate-protocol", 1),
        ("debate-protocol>=0.2,<0.3", 1),
        ("pydantic>=2", 1),
    ],
)
def test_range_faults_are_found(requirement: str, num_faults: int) -> None:
    project = {"dependencies": [], "optional-dependencies": {"x": [requirement]}}
    assert len(list(range_faults(project, {"debate-protocol": "0.1.4"}))) == num_faults


def test_extra_of_ours_is_installed_by_the_libraries_that_it_stands_for() -> None:
    command = install_command("debate-report[parquet]")
    assert command.startswith("pip install 'pyarrow")
    assert "debate" not in command
    assert "'vllm==0.32.*'" in install_command("debate-rollout[vllm]")
    assert install_command("somebody") == "pip install 'somebody'"


def test_readme_names_both_commands_and_ci_runs_the_tests() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in ("quickstart", "test"):
        assert re.search(rf"^make {target}\b", readme, re.MULTILINE), target
        assert re.search(rf"^{target}: setup\b", makefile, re.MULTILINE), target
    assert re.search(r"for target in test\b.*\n.*make \"\$target\"", (ROOT / ".ci/run").read_text())


def test_image_is_made_by_commands_that_are_tested() -> None:
    text = re.sub(r"\s*\\\n\s*", " ", (ROOT / "Dockerfile").read_text("utf-8"))
    steps = re.findall(r"^(RUN|COPY|CMD) +(.*)$", text, re.MULTILINE)
    assert [kind for kind, _ in steps] == ["RUN", "COPY", "RUN", "CMD"]
    assert steps[2][1].startswith("make setup && ")
    assert json.loads(steps[3][1]) == ["debate-train", "recipes"]


@pytest.mark.parametrize(
    ("variables", "wheel", "backend"),
    [
        ({"GPU_DEVICES": "none"}, False, "cpu"),
        ({"GPU_DEVICES": "."}, False, ""),
        ({"GPU_DEVICES": "none", "UV_TORCH_BACKEND": "auto"}, False, "auto"),
        ({"GPU_DEVICES": "none", "VLLM": "vllm"}, False, ""),
        ({"GPU_DEVICES": "none", "PIP_FIND_LINKS": "."}, True, ""),
    ],
    ids=["no GPU", "GPU", "named backend", "vLLM of CUDA", "own wheel"],
)
def test_torch_comes_without_cuda_when_there_is_no_gpu(
    tmp_path: Path, variables: dict[str, str], wheel: bool, backend: str
) -> None:
    if wheel:
        (tmp_path / "torch-2.13.0-cp311-cp311-linux_x86_64.whl").touch()
    inherited = {k: v for k, v in os.environ.items() if not re.match("UV_|PIP_|MAKE|MFL", k)}
    show = 'show: ; @echo "backend=$$UV_TORCH_BACKEND"'
    paths = {name: str(tmp_path / value) for name, value in variables.items() if value == "."}
    settings = [f"{name}={value}" for name, value in (variables | paths).items()]
    printed = subprocess.run(
        ["make", "--no-print-directory", "--eval", show, "show", *settings],
        cwd=ROOT,
        env=inherited,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.strip() == f"backend={backend}"
