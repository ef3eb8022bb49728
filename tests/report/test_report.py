"""The page of a run: well formed, whole, the same for the same files, and there for any run."""

import json
import math
from html.parser import HTMLParser

import pytest

from debate_report import write_report
from debate_train.checkpoints.run_directory import RunDirectory
from report.report_runs import fill

ROWS = [  # measure, before, after
    ("direct accuracy", 0.41, 0.63),
    ("valid format", 0.95, 0.93),
]


def interval(mean, half_width):
    return {"mean": mean, "low": mean - half_width, "high": mean + half_width}


def write_metrics(run):
    """Log 60 steps of self-play; odd names and numbers are among them."""
    for step in range(1, 61):
        progress = step / 60
        row = {
            "loss": 0.02 * (-1) ** step,
            "reward/total": progress - 0.5,
            "judge/accuracy": 0.8 + 0.1 * progress,
            "optim/entropy": 0.6 - 0.3 * progress,
            "optim/kl_reference": 0.02 * progress,
            "time/rollout_s": 1.8,
            "time/update_s": 1.1,
            "<i>odd</i>": math.nan,
        }
        if step % 10 == 0:
            row["eval/direct/accuracy"] = 0.42 + 0.2 * progress
        run.metrics.log("self_play", step, row)


def write_results(run):
    table = [
        {"measure": measure, "before": interval(before, 0.04), "after": interval(after, 0.03)}
        for measure, before, after in ROWS
    ]
    before = {"pass@3": interval(0.7, 0.05) | {"count": 256}}
    run.write_results({"table": table, "before": before, "seconds": {"self-play": 170.0}})


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = fill(tmp_path_factory.mktemp("runs") / "demo")
    (run.path / "recipe.yaml").write_text("name: tiny # <b>not bold</b>\n")
    run.metrics_path.unlink()
    write_metrics(run)
    write_results(run)
    run.describe({})
    return write_report(run.path).read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Collect what a page holds; fail on a tag that does not close."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.open_tags = []
        self.tags = []
        self.attributes = []
        self.texts = []
        self.feed(page)
        assert self.open_tags == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self.open_tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open_tags.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open_tags.pop()

    def handle_data(self, data):
        self.texts.append(data)

    def values(self, attribute):
        return [value for _, name, value in self.attributes if name == attribute]


def test_page_is_well_formed_and_loads_nothing(page):
    elements = Elements(page)
    assert not {"img", "link", "iframe", "object", "i"} & set(elements.tags)
    attribute_names = {name for _, name, _ in elements.attributes}
    assert not {name for name in attribute_names if name.startswith("on") or name == "src"}
    links = elements.values("href")
    assert links
    assert all(link.startswith("#") for link in links)
    for loading in ("url(", "@import", "http://"):
        assert loading not in page
    policies = [value for value in elements.values("content") if value.startswith("default-src")]
    assert policies[0].startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policies[0]


def test_results_curves_recipe_and_machine_are_on_the_page(page):
    text = " ".join(Elements(page).texts)
    for expected in (
        "direct accuracy",
        "+22.0",  # .63 - .41
        "−2.0",  # .93 - .95, with a real minus
        "[37.0, 45.0]",  # .41 ± .04
        "pass@3",
        "Judge accuracy",
        "KL to the reference",
        "Time a step",
        "name: tiny # <b>not bold</b>",
        "torch_threads",
    ):
        assert expected in text, expected


def test_same_files_give_the_same_page(tmp_path):
    run = fill(tmp_path / "demo")
    pages = {write_report(run.path).read_bytes() for _ in range(2)}
    assert len(pages) == 1
    assert not list(run.path.glob(".report*"))


def test_unfinished_run_has_a_page_too(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    assert "No steps measured yet" in write_report(run.path).read_text()
    run.metrics.log("warm_start", 1, {"loss": 1.0, "text": "x", "flag": True})
    with run.metrics_path.open("a") as file:
        file.write('{"phase": "warm')
    (run.transcripts_path / "torn.jsonl").write_text('{"question": ')
    (run.path / "results.json").write_text("{")
    page = write_report(run.path).read_text()
    Elements(page)
    assert "No results yet" in page
    assert "<svg" not in page


def test_results_without_intervals_or_with_other_units_are_shown(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    after = {"mean": 95.5, "low": None, "high": None}
    rows = [
        {"measure": "length", "before": 120.0, "after": after},
        {"measure": "half a row", "before": None, "after": {"mean": 1.0}},
    ]
    (run.path / "results.json").write_text(json.dumps({"table": rows}))
    text = " ".join(Elements(write_report(run.path).read_text()).texts)
    assert "length" in text
    assert "−24.500" in text
    assert "half a row" not in text
