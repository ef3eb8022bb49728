"""The pictures are what make_pictures.py draws now, and pages show them."""

import importlib
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from debate_train.playing.rollouts import Rollouts

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/pictures"
NAMES = ("debate.svg", "turn.svg", "votes.svg", "prefixes.svg", "step.svg")
SVG = "{http://www.w3.org/2000/svg}"


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
def test_picture_is_an_image_that_can_be_read(name: str) -> None:
    image = ElementTree.parse(FOLDER / name).getroot()
    left, top, width, height = map(float, image.attrib["viewBox"].split())
    assert (left, top) == (0, 0) and width == 640 and height <= 480
    assert image.findtext(f"{SVG}title")
    style = image.findtext(f"{SVG}style") or ""
    assert "prefers-color-scheme: dark" in style
    sizes = [image.attrib["font-size"], *re.findall(r"font(?:-size)?: *(\d+)px", style)]
    assert min(map(int, sizes)) >= 11
    words = list(image.iter(f"{SVG}text"))
    assert words and all(0 < float(text.attrib["x"]) < width for text in words)
    assert all(11 <= float(text.attrib["y"]) <= height for text in words)
    boxes = [box.attrib for box in image.iter(f"{SVG}rect") if "x" in box.attrib]
    assert all(float(box["x"]) + float(box["width"]) <= width for box in boxes)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_shows_the_picture(name: str) -> None:
    pages = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/**/*.md")]
    shown = {
        (page.parent / target).resolve()
        for page in pages
        for target in re.findall(r"!\[[^\]]+\]\(([^)]+\.svg)\)", page.read_text("utf-8"))
        if "://" not in target
    }
    assert FOLDER / name in shown


def test_pictures_of_a_report_are_of_its_present_templates(pictures: ModuleType) -> None:
    taken = importlib.import_module("report_pictures")
    page = (ROOT / "docs/reports.md").read_text("utf-8")
    for name in taken.NAMES:
        image = (FOLDER / name).read_bytes()
        assert taken.stamp(image) == taken.templates() and f"(pictures/{name})" in page
    assert taken.stamp(b"") == ""


def test_check_names_the_picture_that_differs(
    pictures: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn = {name: pictures.PICTURES[name] for name in ("votes.svg", "step.svg")}
    monkeypatch.setattr(pictures, "PICTURES", drawn)
    monkeypatch.setattr(pictures, "HERE", tmp_path)
    shutil.copy(FOLDER / "step.svg", tmp_path)
    (tmp_path / "votes.svg").write_text("<svg/>")
    assert pictures.main(["--check"]) == 1
    assert capsys.readouterr().out.startswith("votes.svg is not what the code draws")
    assert (tmp_path / "votes.svg").read_text() == "<svg/>"
    assert pictures.main([]) == 0 and pictures.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("call", ["rollouts.fetch", "engine.take"])
def test_a_call_that_the_loop_does_not_make_is_refused(
    pictures: ModuleType, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(pictures, "STEPS", (("Play", "", {call: Rollouts.take}),))
    with pytest.raises(ValueError, match=re.escape(call)):
        pictures.step_picture()
