import json
import math
import random
from html.parser import HTMLParser

import pytest

from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey
from debate_report import report_main, write_report
from debate_train.checkpoints.run_directory import RunDirectory

HOSTILE = (
    "<script>alert('hacked')</script><img src=x onerror=alert(1)> </p></div></main>"
    " \u202egnitirwer\u202c \x00\x1b[31m \ud800 &lt; 🦉👩‍👩‍👧‍👦 漢字かな "
)
RECIPE = "steps: 60\nmodel:\n  name: tiny # <b>not bold</b>\n"


def turn(agent, number, answer, comparison, text=""):
    shown = tuple(TurnKey(other, number - 1) for other in range(3) if other != agent and number)
    return Turn(
        agent,
        number,
        f"<solution>{text}{answer}</solution>\n<evaluation>Both follow the rule "
        f"until the last step.</evaluation>\n<comparison>{comparison}</comparison>",
        shown,
        failure=None,
    )


def debate(name, answers, text=""):
    """A debate of three agents; `answers` holds a list of answers per round."""
    votes = ("Agent 1 > Agent 2", "Agent 0 > Agent 2", "Agent 0 = Agent 1\nnot a vote")
    turns = [
        turn(agent, number, answer, votes[agent] if number else "N/A", text)
        for number, said in enumerate(answers)
        for agent, answer in enumerate(said)
    ]
    question = Question(f"q-{name}", f"What is 7 + {name}?{text}", "12", {"kind": "number"})
    protocol = Protocol(3, len(answers), contract="three_section")
    return Transcript(str(name), question, protocol, tuple(turns))


def fill(run):
    """A run of two phases with everything a report can show, and hostile texts in it."""
    noise = random.Random(0)
    for step in range(1, 121):
        run.metrics.log("warm_start", step, {"loss": 2 / step + 0.1, "optim/grad_norm": 1 / step})
    for step in range(1, 61):
        way = step / 60
        row = {
            "loss": noise.gauss(0, 0.02),
            "reward/total": way + noise.gauss(0, 0.2) - 0.5,
            "reward/gen/mean": way + noise.gauss(0, 0.2) - 0.4,
            "reward/judge/mean": noise.gauss(0, 0.1),
            "judge/accuracy": 0.8 + 0.1 * way + noise.gauss(0, 0.03),
            "judge/equal_share": 0.2 * way,
            "v2/comparisons_made": 0.97,
            "train/format": 0.99,
            "train/correct": 0.4 + 0.3 * way + noise.gauss(0, 0.05),
            "optim/entropy": 0.6 - 0.3 * way,
            "optim/kl_sample_train_v1": 1e-5 * noise.random(),
            "optim/kl_reference": 0.02 * way,
            "optim/grad_norm": noise.random(),
            "optim/learning_rate": 2e-4 * (1 - way),
            "tokens_per_s": 14_000 + 900 * noise.random(),
            "time/rollout_s": 1.8,
            "time/update_s": 1.1,
            "<i>odd</i>": math.nan,
        }
        if step % 10 == 0:
            row["eval/direct/accuracy"] = 0.42 + 0.2 * way
            row["eval/majority/accuracy"] = 0.5 + 0.2 * way
            row["eval/peer_vote/accuracy"] = 0.6 + 0.15 * way
        run.metrics.log("self_play", step, row)
    run.write_results(
        {
            "table": [
                {
                    "measure": name,
                    "before": {"mean": start, "low": start - 0.04, "high": start + 0.04},
                    "after": {"mean": end, "low": end - 0.03, "high": end + 0.03},
                }
                for name, start, end in (
                    ("direct accuracy", 0.41, 0.63),
                    ("majority vote", 0.52, 0.70),
                    ("peer-vote decision", 0.61, 0.74),
                    ("judge accuracy", 0.86, 0.9),
                    ("valid format", 0.95, 0.93),
                )
            ],
            "questions": 256,
            "before": {"pass@3": {"mean": 0.7, "low": 0.65, "high": 0.75, "count": 256}},
            "seconds": {"warm start": 61.2, "self-play": 170.0},
        }
    )
    run.write_transcripts("self_play", 1, [debate(5, [["12", "13", "11"], ["12", "12", "11"]])])
    same = [["12", "12", "12"]] * 2
    hostile = debate(4, [["11", HOSTILE, "x" * 20_000]], HOSTILE)
    failed = Turn(1, 0, HOSTILE, failure=f"no_solution{HOSTILE}")
    broken = Transcript("f", hostile.question, hostile.protocol, (failed, *hostile.turns[2:]))
    run.write_transcripts("self_play", 60, [debate(6, same), broken, hostile])


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    run = RunDirectory.create(tmp_path_factory.mktemp("runs") / "demo", RECIPE)
    run.describe({})
    fill(run)
    return write_report(run.path).read_text(encoding="utf-8")


class Checker(HTMLParser):
    """Fails on a tag that does not close, and keeps what a page holds."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.texts = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)


def checked(page):
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return checker


def test_page_is_well_formed_and_loads_nothing(page):
    found = checked(page)
    assert not {"img", "link", "iframe", "object", "i"} & set(found.tags)
    names = {name for _, name, _ in found.attributes}
    assert not {name for name in names if name.startswith("on")} and "src" not in names
    links = [value for _, name, value in found.attributes if name == "href"]
    assert links and all(link.startswith("#") for link in links)
    assert "url(" not in page and "@import" not in page and "http://" not in page
    policy = [value for _, name, value in found.attributes if name == "content"]
    allowed = next(value for value in policy if value.startswith("default-src"))
    assert allowed.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in allowed


def test_every_part_is_there(page):
    found = checked(page)
    text = " ".join(found.texts)
    for part in (
        "demo",
        "direct accuracy",
        "+22.0",  # .63 - .41
        "−2.0",  # .93 - .95, with a real minus
        "[37.0, 45.0]",  # .41 ± .04
        "pass@3",
        "0.65",
        "Judge accuracy",
        "KL to the reference",
        "Time a step",
        "name: tiny # <b>not bold</b>",
        "torch_threads",
    ):
        assert part in text, part


def test_each_chart_says_in_words_what_it_shows(page):
    labels = [value for tag, name, value in checked(page).attributes if name == "aria-label"]
    assert (
        "Entropy: entropy from 0.595 at self_play, step 1 to 0.300 at self_play, step 60" in labels
    )
    assert (
        "Held-out accuracy: one reply from 45.3 % at self_play, step 10 to 62.0 % at self_play, "
        "step 60" in ("".join(label for label in labels if label.startswith("Held-out accuracy")))
    )


def test_same_files_give_the_same_page(tmp_path):
    run = RunDirectory.create(tmp_path / "demo", RECIPE)
    fill(run)
    pages = {write_report(run.path).read_bytes() for _ in range(2)}
    assert len(pages) == 1
    assert not list(run.path.glob(".report*"))


def test_unfinished_run_has_a_page_too(tmp_path):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    assert "No steps measured yet" in write_report(run.path).read_text()
    run.metrics.log("warm_start", 1, {"loss": 1.0, "text": "x", "flag": True})
    with run.metrics_path.open("a") as file:
        file.write('{"phase": "warm')
    (run.transcripts_path / "torn.jsonl").write_text('{"question": ')
    (run.path / "results.json").write_text("{")
    page = write_report(run.path).read_text()
    checked(page)
    assert "No results yet" in page and "<svg" not in page


def test_command_prints_where_the_report_lies(tmp_path, capsys):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    assert report_main([str(run.path)]) == 0
    assert capsys.readouterr().out.strip() == str(run.path / "report.html")
    elsewhere = tmp_path / "other.html"
    assert report_main([str(run.path), "--output", str(elsewhere)]) == 0
    assert elsewhere.read_text() == (run.path / "report.html").read_text()
    assert capsys.readouterr().out.strip() == str(elsewhere)
    assert report_main([str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err
    (run.path / "report.html").unlink()
    (run.path / "report.html").mkdir()
    assert report_main([str(run.path)]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_results_without_intervals_or_with_other_units_are_shown(tmp_path):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    rows = [
        {"measure": "length", "before": 120.0, "after": {"mean": 95.5, "low": None, "high": None}},
        {"measure": "half a row", "before": None, "after": {"mean": 1.0}},
    ]
    (run.path / "results.json").write_text(json.dumps({"table": rows}))
    text = " ".join(checked(write_report(run.path).read_text()).texts)
    assert "length" in text and "−24.500" in text and "half a row" not in text
