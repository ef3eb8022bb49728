"""The pictures are what make_pictures.py draws now, and pages show them."""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/pictures"
NAMES = ("debate.svg", "turn.svg", "votes.svg", "prefixes.svg", "step.svg")


@pytest.fixture(scope="module")
def pictures() -> Iterator[ModuleType]:
    """Yield the script, which imports modules that stand beside it."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("make_pictures")
    finally:
        sys.path.remove(str(FOLDER))
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "").parent == FOLDER:
                del sys.modules[name]


def test_every_picture_is_tested(pictures: ModuleType) -> None:
    assert tuple(pictures.PICTURES) == NAMES
    assert sorted(file.name for file in FOLDER.glob("*.svg")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_picture_is_what_the_code_draws(pictures: ModuleType, name: str) -> None:
    assert (FOLDER / name).read_text("utf-8") == pictures.PICTURES[name]()


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_the_picture(name: str) -> None:
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/**/*.md")]
    pictures_on_pages = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", page.read_text("utf-8"))
        if "://" not in target
    }
    assert FOLDER / name in pictures_on_pages


def test_pictures_of_a_report_are_of_its_present_templates(pictures: ModuleType) -> None:
    script = importlib.import_module("report_pictures")
    page = (ROOT / "docs/reports.md").read_text("utf-8")
    for name in script.NAMES:
        image = (FOLDER / name).read_bytes()
        assert script.stamp(image) == script.templates()
        assert f"(pictures/{name})" in page
    assert script.stamp(b"") == ""
