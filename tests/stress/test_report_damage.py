"""The report of runs whose files are damaged, absurd or huge: it is written, and says so."""

import json
import re

import pytest

from debate_protocol.transcripts.files import json_line, to_json
from debate_protocol.types import Protocol, Question, Transcript, Turn
from debate_report import write_report

pytestmark = pytest.mark.slow

HUGE = "9" * 5000


def debate(name="d", **changes):
    turns = (Turn(0, 0, "<solution>4</solution>"), Turn(1, 0, "<solution>5</solution>"))
    question = Question(name, "2 + 2?", "4", {"kind": "number"})
    return Transcript(name, question, Protocol(2), changes.pop("turns", turns), **changes)


def listed(page):
    """How many debates the page has."""
    index = page.partition('id="debate-index">')[2].partition("<")[0]
    return len(json.loads(index)["debates"])


@pytest.fixture
def run(tmp_path):
    """Write a run directory from texts of its files, and return its report."""

    def written(**files):
        (tmp_path / "recipe.yaml").write_text("steps: 1\n")
        for name, text in files.items():
            path = tmp_path / re.sub("_(jsonl?)$", r".\1", name.replace("__", "/"))
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return write_report(tmp_path).read_text()

    return written


def rows(*values, name="loss"):
    return "".join(
        json.dumps({"phase": "rl", "step": step, name: value}) + "\n"
        for step, value in enumerate(values, 1)
    )


def test_a_line_that_cannot_be_read_hides_itself_alone(run):
    good = json_line(to_json(debate("good")))
    other = json_line(to_json(debate("other")))
    page = run(transcripts__rl_000001_jsonl=good + b'{"id": \n' + other)
    assert listed(page) == 2
    assert "1 line of transcripts could not be read, the first: rl_000001.jsonl:2: not JSON" in page


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"[]\n[]\n", "transcript: found []"),
        (json_line(to_json(debate()) | {"turns": 3}), "turns: found 3"),
        (
            json_line(to_json(debate()) | {"protocol": {"num_agents": 2, "contract": "own"}}),
            "contract &#39;own&#39; is not known here",
        ),
        (json_line(to_json(debate(turns=(Turn(7, 0, "x"),)))), "expected agents 0 to 1"),
    ],
)
def test_unreadable_transcripts_are_not_taken_for_none(run, line, problem):
    page = run(transcripts__rl_1_jsonl=line)
    assert "No transcripts yet" not in page
    assert "of transcripts could not be read" in page
    assert problem in page


def test_a_debate_whose_answers_cannot_be_judged_says_why(run):
    odd = debate()
    odd = to_json(odd) | {"question": {"text": "?", "answer": "4", "meta": {"kind": "word"}}}
    page = run(transcripts__rl_1_jsonl=json_line(odd) + json_line(to_json(debate("fine"))))
    assert "could not be read, the first: " in page
    assert "meta.kind: found &#39;word&#39;" in page
    assert listed(page) == 1


@pytest.mark.parametrize(
    "metrics",
    [
        rows(1e308, -1e308, 1e308),
        rows(1.0, 2.0).replace("1.0", HUGE),
        rows(5e-324, 0.0, -5e-324),
        '{"step": "two", "loss": 1, "time_s": NaN}\n{"phase": [], "loss": 2, "time_s": 1e308}\n',
        '[]\n"x"\nnull\n{"loss": {"a": 1}}\n' + "[" * 100_000,
    ],
)
def test_a_curve_leaves_out_numbers_that_cannot_be_drawn(run, metrics):
    page = run(**{"metrics.jsonl": metrics})
    assert "cannot be shown" not in page
    assert not re.search(r"\b(nan|inf)\b", page.partition("<body")[2])
    assert len(page) < 100_000


@pytest.mark.parametrize(
    "results",
    [
        '{"table": [1, null, [], {"measure": 3}]}',
        '{"table": [{"measure": "m", "before": NaN, "after": 1}]}',
        '{"table": [{"measure": "m", "before": {"mean": true}, "after": {"mean": [1]}}]}',
        '{"table": [], "exit_criteria": {"a": ' + HUGE + "}}",
        '{"seconds": ' + json.dumps({str(k): "x" * 9999 for k in range(2000)}) + "}",
        "{",
    ],
)
def test_misshapen_results_cost_their_table_alone(run, results):
    page = run(results_json=results, **{"metrics.jsonl": rows(0.5, 0.6)})
    assert "<strong>Loss</strong>" in page
    assert len(page) < 1_000_000


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"metrics_jsonl": "{}\n{\n\n[]\n{}\n"},
            "2 of 4 lines of metrics.jsonl could not be read.",
        ),
        ({"results_json": "{"}, "results.json could not be read."),
        ({"environment_json": "", "metrics_jsonl": "{}\n"}, "environment.json could not be read."),
        ({"metrics_jsonl": '{}\n{"cut off": '}, None),
    ],
)
def test_damaged_file_is_not_taken_for_none(run, files, message):
    page = run(**files)
    if message is None:
        assert "could not be read" not in page
    else:
        assert message in page


def test_hundreds_of_phases_are_bounded(run):
    rows_of_phase = rows(*(step / 9 for step in range(40)))
    many = "".join(rows_of_phase.replace('"rl"', f'"phase {k}"') for k in range(300))
    page = run(**{"metrics.jsonl": many})
    assert "1 phase 0" in page
    assert "20 phase 299" in page
    assert "… 280 more phases in metrics.jsonl" in page
    assert len(page) < 1_500_000
