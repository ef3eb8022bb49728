"""What notebooks show of transcripts, evaluations and runs: small, escaped, in need of nothing."""

import json
from pathlib import Path

import yaml

from debate_protocol import Question, Simultaneous, Transcript, Turn
from debate_rollout.engines import ScriptedEngine
from debate_train import train
from debate_train.evaluation import MODES
from debate_train.evaluation.measuring import evaluate
from debate_train.evaluation.settings import Setup
from train.small_runs import RECIPE

FORM = Simultaneous(num_agents=2, max_rounds=1)


def test_transcript_is_shown_as_its_text_in_which_nothing_acts() -> None:
    turns = (Turn(0, 0, "<solution>a <b>c</b> & \x1b[2Jd</solution>"),)
    shown = Transcript("<d>", Question("q", "<script>x</script>"), FORM.protocol(), turns)
    html = shown._repr_html_()
    assert html.startswith("<pre")
    assert "<b>Debate &lt;d&gt;</b>" in html
    assert "&lt;script&gt;x&lt;/script&gt;" in html
    assert "a &lt;b&gt;c&lt;/b&gt; &amp; \\x1b[2Jd" in html
    assert "\x1b" not in html


def test_evaluation_is_a_short_line_and_a_table_of_its_measures() -> None:
    engine = ScriptedEngine(replies=("<solution>7</solution>",)).open()
    setup = Setup(FORM, {"direct": MODES.make("direct", {"samples": 1})})
    found = evaluate(setup, engine, [Question("q", "3 + 4?", "7")], "seed")
    row = '<th scope="row">eval/direct/accuracy</th><td>1.000</td>'
    assert row in found._repr_html_()
    assert len(repr(found)) < 200 * len(found.found)


def test_run_is_shown_with_its_results_and_curves(tmp_path: Path) -> None:
    trained = train(yaml.safe_load(RECIPE), ["steps=2"], output=tmp_path / "run")
    html = trained._repr_html_()
    assert "signs_puzzle" in html
    assert "direct accuracy" in html
    assert "data:image/svg+xml;base64," in html
    assert "<script" not in html
    assert len(html) < 50_000
    table = [{"measure": "<img src=x>", "name": "n", "before": 0.1, "after": 0.2}]
    (tmp_path / "run/results.json").write_text(json.dumps({"table": table}))
    assert "&lt;img src=x&gt;" in trained._repr_html_()
