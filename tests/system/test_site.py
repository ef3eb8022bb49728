"""The site: every page, no other host, search from disk, and what `make_pictures.py` draws."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from lxml import html
from tests.system.public_names import PACKAGES, ROOT

from report.report_runs import shot, watched

SITE = ROOT / "site"
SOURCE = ROOT / ".site/pages"
ASSETS = "//script/@src | //img/@src | //iframe/@src | //source/@src | //link/@href | //*/@srcset"
PUBLIC = r"docs/(reference/)?[^/]+\.md"
WIDER = """[...document.querySelectorAll("article *")].filter(one => {
    if (one.getBoundingClientRect().right <= innerWidth) return false;
    for (let at = one; at.tagName !== "ARTICLE"; at = at.parentElement)
        if (/auto|scroll/.test(getComputedStyle(at).overflowX)) return false;
    return true;
}).map(one => one.outerHTML.slice(0, 100))"""
"""What is wider than the window and in nothing that scrolls."""


def pages() -> list[str]:
    """Return the Markdown files of the copy that the site was built from."""
    return sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.md"))


def built(page: str) -> Path:
    """Return where a page is in the site."""
    return SITE / re.sub(r"(README)?\.md$", lambda end: "index.html" if end[1] else ".html", page)


@pytest.fixture(scope="module")
def site() -> dict[Path, Any]:
    """Build the site; return its pages, each with its elements."""
    completed = subprocess.run(["make", "site"], cwd=ROOT, capture_output=True, text=True)
    if completed.returncode and not (ROOT / ".venv-site/.set-up").exists():
        pytest.skip(f"zensical cannot be installed here: {completed.stderr[-300:]}")
    assert completed.returncode == 0, f"{completed.stdout[-3000:]}{completed.stderr[-3000:]}"
    files = [path for path in map(built, pages()) if path.exists()]
    return {path: html.fromstring(path.read_bytes().decode()) for path in files}


@pytest.mark.slow
def test_every_page_is_in_the_navigation_and_built(site: dict[Path, Any]) -> None:
    named = re.findall(r'"([^"]+\.md)"', (ROOT / "zensical.toml").read_text())
    assert sorted(named) == pages()
    assert set(site) == set(map(built, pages()))


@pytest.mark.slow
def test_links_and_anchors_lead_somewhere(site: dict[Path, Any]) -> None:
    ids = {page: {"", *elements.xpath("//@id")} for page, elements in site.items()}
    lost = set()
    for page, elements in site.items():
        for link in elements.xpath("//a/@href | //img/@src | //link/@href | //script/@src"):
            to = urlsplit(link)
            target = Path(os.path.normpath(page.parent / unquote(to.path))) if to.path else page
            anchor = unquote(to.fragment)
            if not to.scheme and not (target.is_file() and anchor in ids.get(target, {anchor})):
                lost.add(f"{page.relative_to(SITE)}: {link}")
    assert lost == set()


@pytest.mark.slow
def test_the_readme_opens_a_sample_report(site: dict[Path, Any]) -> None:
    report = "docs/sample/report.html"
    assert report in site[built("README.md")].xpath("//article//a/@href")
    page = (SITE / report).read_text()
    assert '<section id="play">' in page
    assert len(page) < 3e6
    recorded_run = ROOT / "docs/sample/run.tar.xz"
    assert recorded_run.stat().st_size < 700_000


@pytest.mark.slow
def test_nothing_comes_from_another_host(site: dict[Path, Any]) -> None:
    foreign_links = {link for page in site.values() for link in page.xpath(ASSETS) if "//" in link}
    styles = "".join(path.read_text() for path in SITE.rglob("*.css"))
    styles += "".join("".join(page.xpath("//style/text()")) for page in site.values())
    foreign_links |= set(re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//[^)]+", styles))
    assert foreign_links == set()


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_reference_has_the_public_names(site: dict[Path, Any], package: str) -> None:
    name = package.replace("-", "_")
    page = f"docs/reference/{name}.md"
    there = {anchor.rpartition(".")[2] for anchor in site[built(page)].xpath("//@id")}
    missing = set(getattr(importlib.import_module(name), "__all__", ())) - there
    assert not missing, f"{page}: a line `::: {name}.NAME` shows each"


@pytest.mark.slow
def test_llms_txt_and_citation_say_what_is_there() -> None:
    text = (ROOT / "llms.txt").read_text()
    named = set(re.findall(r"\]\(([^)]+)\)", text))
    assert named <= set(pages())
    assert {page for page in pages() if re.fullmatch(PUBLIC, page)} <= named
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    version = importlib.import_module("debate_train").__version__
    assert (cited["cff-version"], cited["version"]) == ("1.2.0", version)


@pytest.fixture
def page(browser: Any, site: dict[Path, Any]) -> Iterator[Any]:
    with browser.new_context(viewport={"width": 1400, "height": 900}) as context:
        yield watched(context.new_page(), SITE / "index.html", "article h1")


def problems(page: Any) -> list[str]:
    """Return what a page printed, raised or asked another host for."""
    return [problem for problem in page.problems if not problem.startswith(("file:", "data:"))]


@pytest.mark.slow
def test_search_works_from_disk(page: Any) -> None:
    page.click(".md-search__button")
    page.locator("input:focus").fill("Bradley-Terry")
    hit = page.locator("a[href*='docs/rewards.html'][href$='#bradley_terry']")
    hit.wait_for()
    shot(page, "site-search")
    assert problems(page) == []
    hit.click()
    page.locator("#bradley_terry mark", has_text="bradley").wait_for()


@pytest.mark.slow
def test_no_page_is_wider_than_a_phone(page: Any, site: dict[Path, Any]) -> None:
    page.set_viewport_size({"width": 420, "height": 900})
    for path in sorted(site)[::3]:
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 420, path
        assert page.evaluate(WIDER) == [], path
    page.goto((SITE / "index.html").as_uri())
    shot(page, "site-420")
    assert problems(page) == []


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
