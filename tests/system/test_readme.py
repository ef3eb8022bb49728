"""The README's Python runs and prints what it says; its files, targets and commands exist."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "packages/debate-train/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = [
    pytest.param(page, code, id=f"{page.parent.name}-{page.stem}-{number}")
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize(("page", "code"), SNIPPETS)
def test_snippet_prints_what_its_comments_say(
    page: Path, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(code, str(page), "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", code, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        found = page.parent / target if target else page
        assert found.exists(), f"{page.name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text("utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in headings]
            assert anchor in slugs, f"{page.name}: {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_named_source_files_exist(page: Path) -> None:
    sources = [str(path) for path in ROOT.glob("packages/*/src/**/*.py")]
    for name in re.findall(r"`(?!test_)([\w/]+\.py)`", page.read_text("utf-8")):
        assert (ROOT / name).exists() or any(s.endswith("/" + name) for s in sources), name


def test_readme_commands_and_targets_exist() -> None:
    scripts: set[str] = set()
    for project in ROOT.glob("packages/*/pyproject.toml"):
        scripts |= tomllib.loads(project.read_text())["project"].get("scripts", {}).keys()
    shown = "\n".join(re.findall(r"^```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE))
    assert set(re.findall(r"\bdebate-[a-z]+(?= [\w-])", shown)) <= scripts
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z]+)", shown):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for recipe in re.findall(r"recipes/\w+\.(?:yaml|jsonl)", shown):
        assert (ROOT / recipe).is_file(), recipe


def test_readme_and_loop_are_as_short_as_promised() -> None:
    assert len(TEXT.splitlines()) < 200
    (loop,) = re.findall(r"\[fits on one screen\]\((\S+)\)", TEXT)
    assert len((ROOT / loop).read_text().splitlines()) <= 100
