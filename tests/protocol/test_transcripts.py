"""Transcript files: what is kept, what is derived, what is refused and where it stands."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_protocol.forms import Sequential
from debate_protocol.transcripts.files import (
    TornLineWarning,
    TranscriptError,
    from_json,
    json_line,
    read_transcripts,
    to_json,
    transcript_problems,
    write_transcripts,
)
from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey

MINIMAL: dict[str, Any] = {
    "question": {"text": "Why?"},
    "protocol": {"num_agents": 2},
    "turns": [
        {"agent": agent, "round": round, "text": f"<solution>{agent}{round}</solution>"}
        for round in range(2)
        for agent in range(2)
    ],
}


def changed(*path: Any, value: Any) -> dict[str, Any]:
    """MINIMAL with one value set (or, with None, taken out) at a path of keys."""
    data: dict[str, Any] = json.loads(json.dumps(MINIMAL))
    place: Any = data
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


def test_transcript_comes_back_equal_when_written_and_read(tmp_path: Path, play: Any) -> None:
    form = Sequential(num_agents=3, max_rounds=2, on_failure="continue", think="drop")
    question = Question("gsm-7", "What?", "42", {"kind": "number", "level": 3})

    def speak(request: Any) -> str:
        return "\ud800 <soluti" if request.agent == 1 else "<solution>日本 🙂\u2028</solution>"

    transcripts = [play(form, speak, question, seed).transcript for seed in range(3)]
    path = tmp_path / "debates.jsonl"
    write_transcripts(path, transcripts)
    assert read_transcripts(path) == transcripts
    assert [file.name for file in tmp_path.iterdir()] == ["debates.jsonl"]
    first = json.loads(path.read_bytes().splitlines()[0])
    assert first["schema"] == "debate-transcript/1"
    assert first["protocol"]["think"] == "drop"
    assert first["turns"][1]["failure"] == "no_solution"
    assert "reply" not in first["turns"][0]


def test_from_json_fills_in_what_is_missing_when_only_the_required_keys_are_there() -> None:
    transcript = from_json(MINIMAL, default_id="7")
    assert transcript.id == transcript.question.id == "7"
    assert transcript.protocol == Protocol(num_agents=2, max_rounds=2)
    assert transcript.question.answer is None
    # Parallel: round 1 saw round 0 of the other agent.
    assert [turn.shown for turn in transcript.turns] == [
        (), (), (TurnKey(1, 0),), (TurnKey(0, 0),),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rules", "shown_to_last"),
    [
        ({"schedule": "sequential"}, ((0, 0), (0, 1))),
        ({"history_rounds": 0}, ()),
        ({"history_rounds": 0, "schedule": "sequential"}, ()),
        ({"history_rounds": 1, "topology": "ring"}, ((0, 0),)),
    ],
)
def test_from_json_derives_what_was_shown_when_the_rules_say_so(
    rules: dict[str, Any], shown_to_last: tuple[tuple[int, int], ...]
) -> None:
    transcript = from_json(changed("protocol", value={"num_agents": 2, **rules}))
    assert transcript.turns[-1].shown == shown_to_last
    assert (1, 1) not in transcript.turns[2].shown  # not yet spoken when agent 0 was asked


def test_from_json_derives_only_turns_that_exist_when_a_debate_was_aborted() -> None:
    data = changed("turns", 1, value=None)
    assert [turn.shown for turn in from_json(data).turns] == [(), (), (TurnKey(0, 0),)]


def test_from_json_keeps_what_was_shown_when_the_file_says_it() -> None:
    data = changed("turns", 3, "shown", value=[])
    assert from_json(data).turns[3].shown == ()
    assert from_json(data).turns[2].shown == (TurnKey(1, 0),)


def test_unknown_keys_come_back_when_a_file_brings_them() -> None:
    data = json.loads(json.dumps(MINIMAL)) | {"source": {"x": [1]}, "id": "a", "meta": {"m": 1}}
    data["question"] |= {"id": "other", "subject": "algebra"}
    data["protocol"]["arena"] = "b"
    data["turns"][0]["model"] = "m1"
    again = to_json(from_json(data))
    assert again["source"] == {"x": [1]}
    assert again["question"] == {
        "text": "Why?", "answer": None, "meta": {}, "id": "other", "subject": "algebra",
    }  # fmt: skip
    assert again["protocol"]["arena"] == "b"
    assert again["turns"][0]["model"] == "m1"
    assert from_json(again) == from_json(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(codec=None, categories=None)), st.dictionaries(st.text(), JSON))
def test_any_text_and_meta_come_back_when_put_in_a_line(text: str, meta: dict[str, Any]) -> None:
    turn = Turn(0, 0, text, prompt=({"role": "user", "content": "x"},), extra={"kept": 1})
    transcript = Transcript("t", Question("t", "q", meta=meta), Protocol(1), (turn,), meta)
    line = json_line(to_json(transcript))
    assert line.count(b"\n") == 1
    again = from_json(json.loads(line))
    assert again.meta == again.question.meta == meta
    assert again.turns[0].extra == {"kept": 1}
    # JSON reads two surrogates that make a pair as the one character they stand for.
    paired = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    assert again.turns[0].text == paired


def test_read_reports_a_torn_last_line_and_reads_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    whole = json_line(MINIMAL | {"meta": {"é": "🙂"}})
    for cut in (20, len(whole) - 2, whole.index("🙂".encode()) + 2):  # the last: inside a character
        path.write_bytes(whole + b"\n" + whole + whole[:cut])
        with pytest.warns(TornLineWarning, match=r"torn\.jsonl:4: the last line is cut off"):
            read = read_transcripts(path)
        assert [transcript.id for transcript in read] == ["1", "3"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"x\.jsonl:2: not JSON"),
        ("[]", r"x\.jsonl:2: transcript: found \[\], expected an object"),
        ('{"id": NaN}', r"x\.jsonl:2: not JSON \(NaN is no JSON value\)"),
        ("[" * 200_000, r"x\.jsonl:2: not JSON"),
    ],
)
def test_read_names_file_and_line_when_a_line_is_wrong(
    tmp_path: Path, line: str, message: str
) -> None:
    path = tmp_path / "x.jsonl"
    good = json_line(MINIMAL)
    path.write_bytes(good + line.encode() + b"\n" + good)
    with pytest.raises(TranscriptError, match=message):
        read_transcripts(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (changed("question", "text", value=None), "question.text: found nothing, expected text"),
        (changed("protocol", "num_agents", value="2"), "protocol.num_agents: found '2', expected"),
        (changed("protocol", "num_agents", value=True), "found True, expected an integer"),
        (changed("turns", value=None), "turns: found nothing, expected a list"),
        (changed("turns", 2, "text", value=4), r"turns\[2\].text: found 4, expected text"),
        (changed("turns", 0, value=3), r"turns\[0\]: found 3, expected an object"),
        (
            changed("turns", 0, "shown", value=[[0]]),
            r"turns\[0\].shown: found \[0\], expected pairs",
        ),
        (changed("turns", 0, "prompt", value=["x"]), "expected messages with role and content"),
        (changed("schema", value="debate-transcript/2"), "expected 'debate-transcript/1'"),
        (changed("protocol", "schedule", value="p"), "found 'p', expected parallel or sequential"),
        (
            changed("protocol", "topology", value="star"),
            "without shown, but topology: found 'star'",
        ),
        # The file's own keys come before what follows from them.
        (
            changed("protocol", "topology", value="star") | {"meta": 3},
            "meta: found 3, expected an object",
        ),
    ],
)
def test_from_json_says_where_when_a_value_is_wrong(data: dict[str, Any], message: str) -> None:
    with pytest.raises(TranscriptError, match=message):
        from_json(data)


def test_write_leaves_the_old_file_whole_when_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("old")
    bad = Transcript("t", Question("t", "q"), Protocol(1), (), {"loss": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_transcripts(path, [from_json(MINIMAL), bad])
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (changed("turns", 1, "agent", value=0), "turn of agent 0 in round 0: found twice"),
        (changed("turns", 1, "agent", value=2), "expected agents 0 to 1"),
        (changed("protocol", "max_rounds", value=1), "expected rounds 0 to 0"),
        (changed("turns", 2, "shown", value=[[1, 5]]), "shown [1, 5] is no turn of this debate"),
        (changed("turns", 2, "shown", value=[[0, 0]]), "shown [0, 0] is its own"),
        (changed("turns", 2, "shown", value=[[1, 1]]), "shown [1, 1] was spoken later"),
        (changed("protocol", "contract", value="boxes"), "did you mean 'boxed'?"),
        (changed("protocol", "num_agents", value=0), "found 0, expected at least 1"),
    ],
)
def test_transcript_problems_are_told_when_it_contradicts_itself(
    data: dict[str, Any], problem: str
) -> None:
    assert any(problem in told for told in transcript_problems(from_json(data)))
    assert transcript_problems(from_json(MINIMAL)) == []


# Branches and continuations


def test_files_refuse_branches_that_are_malformed_or_too_deep() -> None:
    turn: dict[str, Any] = {"agent": 0, "round": 0, "text": "x"}

    def file(**more: Any) -> dict[str, Any]:
        return {
            "question": {"text": "?"},
            "protocol": {"num_agents": 1},
            "turns": [{**turn, **more}],
        }

    with pytest.raises(ValueError, match=r"turns\[0\]\.branches\[0\]\.guide: found nothing"):
        from_json(file(branches=[{"turn": turn}]))
    with pytest.raises(ValueError, match=r"turns\[0\]\.continuations\[0\]: found 7"):
        from_json(file(continuations=[7]))
    deep = turn
    for _ in range(1000):
        deep = {**turn, "continuations": [deep]}
    with pytest.raises(ValueError, match="nested too deeply"):
        from_json(file(continuations=[deep]))


def test_turns_have_no_keys_for_branches_when_there_are_none() -> None:
    transcript = from_json(
        {
            "question": {"text": "?"},
            "protocol": {"num_agents": 1},
            "turns": [{"agent": 0, "round": 0, "text": "x", "branches": [], "continuations": None}],
        }
    )
    (turn,) = transcript.turns
    assert turn == Turn(0, 0, "x")
    assert set(to_json(transcript)["turns"][0]) == {"agent", "round", "text", "shown", "prompt"}
