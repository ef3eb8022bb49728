"""Transcripts as files of inspect, verifiers and TRL."""

import functools
import json
import threading
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from debate_protocol import from_json, read_transcripts, to_json
from debate_protocol.cli import main
from debate_protocol.transcripts.files import json_line
from debate_protocol.transcripts.log_files import rollout_rows, to_inspect, to_verifiers
from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey

DEBATES = Path(__file__).resolve().parents[2] / "examples/data/debates.jsonl"
TURNS = (
    Turn(0, 0, "four \ud800", prompt=({"role": "user", "content": "2 + 2, agent 0?"},)),
    Turn(1, 0, "five", failure="empty", extra={"tokens": [7, 3]}),
    Turn(0, 1, "four again", shown=(TurnKey(0, 0), TurnKey(1, 0))),
)
META = {"reward": 0.5, "note": "text", "nan": float("nan"), "flag": True}
DEBATE = Transcript("d", Question("q", "2 + 2?", "4"), Protocol(2, max_rounds=2), TURNS, META)


def exported(capsysbinary: pytest.CaptureFixture[bytes], program: str) -> list[dict[str, Any]]:
    assert main(["export", str(DEBATES), "--to", program]) == 0
    return [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]


def test_log_has_a_sample_for_each_debate_with_its_turns_in_order() -> None:
    log = to_inspect([DEBATE, DEBATE], "mine", "2026-01-01T00:00:00+00:00")
    first, second = log["samples"]
    assert [(one["id"], one["epoch"]) for one in (first, second)] == [("q", 1), ("q", 2)]
    said = [message["content"] for message in first["messages"]]
    assert said[0] == "2 + 2?" and said[1].startswith("Agent 0, round 0\n\nfour")
    assert said[2] == "Agent 1, round 0 (failed: empty)\n\nfive"
    assert (first["target"], first["output"]["completion"]) == ("4", "four again")
    assert first["scores"] == {"reward": {"value": 0.5}}
    assert first["metadata"]["shown"]["agent 0, round 1"] == [[0, 0], [1, 0]]
    assert log["eval"]["config"] == {"epochs": 2}


@pytest.fixture
def logs(capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Path:
    """A folder of one log, whose name begins as inspect wants it."""
    debates = [replace(one, meta={"won": n}) for n, one in enumerate(read_transcripts(DEBATES))]
    (tmp_path / "debates.jsonl").write_bytes(b"".join(json_line(to_json(one)) for one in debates))
    main(["export", str(tmp_path / "debates.jsonl"), "--to", "inspect"])
    (tmp_path / "logs").mkdir()
    log = tmp_path / "logs" / "2026-01-01T00-00-00_debates.json"
    log.write_bytes(capsysbinary.readouterr().out)
    return log.parent


@pytest.mark.tools
@pytest.mark.parametrize("header_only", [True, False])
def test_inspect_reads_the_log_and_what_debates_hold(logs: Path, header_only: bool) -> None:
    from inspect_ai import log

    (path,) = logs.iterdir()
    read = log.read_eval_log(str(path), header_only=header_only)
    means = {score.name: score.metrics["mean"].value for score in read.results.scores}
    assert means == {"won": (0 + 1 + 2 + 3) / 4}
    assert read.status == "success"
    if not header_only:
        assert read.samples[0].messages[1].text.startswith("Agent 0, round 0")
        assert read.samples[1].scores["won"].value == 1


@pytest.mark.tools
def test_inspect_computes_the_means_of_the_log_again(tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log, recompute_metrics

    other = replace(DEBATE, question=Question("r", "3 + 3?", "6"), meta={"won": 1.0})
    debates = [replace(DEBATE, meta={"won": won}) for won in (0.0, 0.0, 0.0)]
    path = tmp_path / "2026-01-01T00-00-00_debates.json"
    log_file = to_inspect([*debates, other], "n", "2026-01-01T00:00:00+00:00")
    path.write_bytes(json.dumps(log_file, ensure_ascii=False).encode("utf-8", "replace"))
    log = read_eval_log(str(path))
    before = {name: m.value for name, m in log.results.scores[0].metrics.items()}
    recompute_metrics(log)
    after = {name: m.value for name, m in log.results.scores[0].metrics.items()}
    assert before == pytest.approx(after)


def shows(page: Any, url: str, text: str) -> bool:
    """Whether a page shows a text; on a busy machine the viewer may stay at "Loading log…"."""
    for seconds in range(2, 20):
        if text in page.inner_text("body").lower():
            return True
        page.goto("about:blank")
        page.goto(url)
        page.wait_for_timeout(1_000 * seconds)
    return False


@pytest.mark.tools
def test_inspect_view_shows_the_debates(logs: Path, browser: Any) -> None:
    from inspect_ai.log import bundle_log_dir

    shown = logs.parent / "shown"
    bundle_log_dir(str(logs), str(shown))
    serve = functools.partial(SimpleHTTPRequestHandler, directory=str(shown))
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = browser.new_page()
        for text in ("4 samples", "won", "a rope of 15 m"):
            assert shows(page, f"http://127.0.0.1:{server.server_port}/", text), text
        page.get_by_text("A rope of 15 m").first.click()
        assert shows(page, page.url, "15 minus 3 is")
        page.close()
        server.shutdown()


@pytest.mark.tools
def test_verifiers_opens_the_traces(
    capsysbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    from verifiers.v1.trace import WireTrace
    from verifiers.v1.utils.trace_store import TRACES_FILE, read_episodes

    main(["export", str(DEBATES), "--to", "verifiers"])
    (tmp_path / TRACES_FILE).write_bytes(capsysbinary.readouterr().out)
    episodes = read_episodes(tmp_path, WireTrace)
    assert [len(episode.traces) for episode in episodes] == [3, 3, 3, 3]
    first = episodes[0].by_agent["agent 0"][0]
    assert first.num_turns == 2
    assert [message.content for message in first.assistant_messages] == [
        turn.text for turn in read_transcripts(DEBATES)[0].turns if turn.agent == 0
    ]


def test_episode_has_a_trace_for_each_agent_whose_branches_are_its_prompts() -> None:
    asked, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "1"}
    prompts = [(asked,), (asked, said, {"role": "user", "content": "b"}), (asked,)]
    turns = tuple(
        Turn(0, round, text, prompt=prompt, extra={"tokens": [3, 1]})
        for round, (text, prompt) in enumerate(zip("121", prompts, strict=True))
    )
    debate = Transcript("d", DEBATE.question, Protocol(2, max_rounds=3), turns, META)
    episode = to_verifiers(debate)
    (trace,) = episode["traces"]  # Agent 1 said nothing.
    # The second turn goes on from the first; the third is another reply to the first prompt.
    assert [node["parent"] for node in trace["nodes"]] == [None, 0, 1, 2, 0]
    assert [node["sampled"] for node in trace["nodes"]] == [False, True, False, True, True]
    assert [call["node"] for call in trace["calls"]] == [1, 3, 4]
    assert trace["calls"][0]["usage"] == {"prompt_tokens": 3, "completion_tokens": 1}
    assert (trace["rewards"], trace["metrics"]) == ({"reward": {"score": 0.5}}, {})
    assert from_json(trace["info"]["debate"]).turns == debate.turns


def test_rows_of_trl_are_one_for_each_turn(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    rows = exported(capsysbinary, "trl")
    assert len(rows) == 24 and all("step" in row for row in rows)
    first, second, third = rollout_rows([DEBATE])
    assert first["prompt"] == [{"role": "user", "content": "2 + 2, agent 0?"}]
    assert third["prompt"] == [{"role": "user", "content": "2 + 2?"}]
    assert second["completion"] == [{"role": "assistant", "content": "five"}]
    assert (first["reward"], "note" in first, "nan" in first) == (0.5, False, False)
