"""Transcript files: what is kept, what is derived, what is refused and where it stands."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_protocol.cli import main
from debate_protocol.forms import Sequential
from debate_protocol.transcripts.files import (
    SCHEMA,
    TornLineWarning,
    TranscriptError,
    from_json,
    json_line,
    read_transcripts,
    to_json,
    transcript_problems,
    write_transcripts,
)
from debate_protocol.transcripts.showing import shown_debate
from debate_protocol.types import (
    MAX_AGENTS,
    MAX_ROUNDS,
    Protocol,
    Question,
    Transcript,
    Turn,
    TurnKey,
)

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
        (changed("protocol", "num_agents", value=True), "found True, expected an integer"),
        (changed("turns", 2, "text", value=4), r"turns\[2\].text: found 4, expected text"),
        (
            changed("turns", 0, "shown", value=[[0]]),
            r"turns\[0\].shown: found \[0\], expected pairs",
        ),
        (changed("schema", value="debate-transcript/2"), "expected 'debate-transcript/1'"),
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
        (changed("protocol", "max_rounds", value=1), "expected rounds 0 to 0"),
        (changed("turns", 2, "shown", value=[[0, 0]]), "shown [0, 0] is its own"),
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


VERSIONED: dict[str, Any] = {
    "schema": SCHEMA,
    "id": "é",
    "question": {"text": "Why?", "answer": None, "meta": {}},
    "protocol": {"num_agents": 2},
    "turns": [{"agent": 0, "round": 0, "text": "<solution>é</solution>"}],
}
LINE = json.dumps(VERSIONED, ensure_ascii=False).encode()


def test_read_takes_a_file_as_editors_leave_it(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    plain = b"\n".join([LINE, LINE])
    path.write_bytes(plain)
    expected = read_transcripts(path)
    assert len(expected) == 2
    for raw in (plain + b"\n", b"\xef\xbb\xbf" + plain, b"\r\n \r\n".join([LINE, LINE]) + b"\r\n"):
        path.write_bytes(raw)
        assert read_transcripts(path) == expected


def test_read_reports_a_torn_last_line_wherever_it_was_cut_and_reads_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.jsonl"
    inside = LINE.index("é".encode()) + 1  # between the two bytes of a character
    for cut in (1, inside, len(LINE) // 2, len(LINE) - 1):
        path.write_bytes(LINE + b"\n" + LINE[:cut])
        with pytest.warns(TornLineWarning, match=r"x.jsonl:2: the last line is cut off"):
            assert len(read_transcripts(path)) == 1
    assert main(["validate", str(path)]) == 1
    told = capsys.readouterr().out.splitlines()
    assert "x.jsonl:2: the last line is cut off" in told[0]
    assert told[1] == "1 debates, 1 turns, 0 failed turns, 1 lines with problems"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("debate-transcript/2", "found 'debate-transcript/2', expected 'debate-transcript/1'; a "),
        ("debate/1", "schema: found 'debate/1', expected 'debate-transcript/1'$"),
        (1, "schema: found 1, expected text"),
    ],
)
def test_read_refuses_other_versions_and_says_what_reads_them(
    tmp_path: Path, schema: object, message: str
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINE + b"\n" + json.dumps(VERSIONED | {"schema": schema}).encode())
    with pytest.raises(TranscriptError, match=f"x.jsonl:2: .*{message}"):
        read_transcripts(path)
    assert main(["validate", str(path)]) == 1


@pytest.mark.parametrize(
    ("turns", "problem"),
    [
        ([(0, 0, []), (0, 0, [])], "turn of agent 0 in round 0: found twice"),
        ([(0, 0, []), (1, 1, [[0, 1]])], "shown [0, 1] is no turn of this debate"),
        ([(-1, 0, [])], "expected agents 0 to 1"),
    ],
)
def test_validate_tells_turns_that_contradict_each_other(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    turns: list[tuple[int, int, list[list[int]]]],
    problem: str,
) -> None:
    told = [{"agent": a, "round": r, "text": "x", "shown": shown} for a, r, shown in turns]
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(VERSIONED | {"turns": told}) + "\n")
    assert main(["validate", str(path)]) == 1
    assert f"{path}:1: " in (out := capsys.readouterr().out)
    assert problem in out


def test_read_refuses_what_python_cannot_count_or_nest(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for odd in ("[" * 100_000 + "]" * 100_000, "9" * 5000, "NaN", "-Infinity"):
        path.write_bytes(LINE[:-1] + f', "odd": {odd}}}\n'.encode() + LINE)
        with pytest.raises(TranscriptError, match=r"x.jsonl:1: not JSON"):
            read_transcripts(path)


def shown_debate_of(*texts: str, **rules: Any) -> Transcript:
    turns = tuple(Turn(agent, 0, text) for agent, text in enumerate(texts))
    return Transcript("d1", Question("d1", "Solve 2x + 3 = 11.", "4"), Protocol(2, **rules), turns)


def test_show_prints_question_turns_and_sections_when_all_is_well() -> None:
    first = shown_debate_of("<solution>4</solution><evaluation>N/A</evaluation>", "no idea")
    second = Turn(1, 1, "<solution>5\n  so</solution>", (TurnKey(0, 0),))
    text = shown_debate(
        Transcript(
            "d1", first.question, Protocol(2, 2), (*first.turns, second), {"ended": "max_rounds"}
        )
    )
    assert text == (
        "Debate d1\n2 agents, 2 rounds, parallel, three_section, topology all\n\n"
        "Solve 2x + 3 = 11.\n\nKnown answer: 4\n\n── Round 1 ──\n\n"
        "Agent 0, who saw nobody\n  solution\n    4\n  evaluation\n    N/A\n\n"
        "Agent 1, who saw nobody\n  failed: no answer can be read\n    no idea\n\n"
        "── Round 2 ──\n\nAgent 1, who saw 0 (round 1)\n  solution\n    5\n      so\n\n"
        "Ended: max_rounds\n"
    )


def test_show_disarms_everything_that_acts_on_a_terminal() -> None:
    armed = "\x1b[31m\x07\x9b2J\u202e\r"
    transcript = Transcript(
        armed,
        Question("q", armed, armed),
        Protocol(2, topology=armed, contract=armed),
        (Turn(0, 0, armed, failure=armed),),
        {"ended": armed},
    )
    shown = shown_debate(transcript)
    assert not set(shown) & set(armed[:1] + "\x07\x9b\u202e\r")
    # Name, contract, topology, question, answer, failure, text and end.
    assert shown.count("\\x1b[31m") == 8


TURN = {"agent": 0, "round": 0, "text": "<solution>42</solution>"}


def absurd_debate(turn: dict[str, Any] | None = None, **rules: Any) -> dict[str, Any]:
    return {
        "id": "d",
        "question": {"text": "?"},
        "protocol": {"num_agents": 2} | rules,
        "turns": [TURN | (turn or {})],
    }


ABSURD = {
    "protocol.num_agents": absurd_debate(num_agents=10**9),
    "protocol.max_rounds": absurd_debate(max_rounds=10**20),
    "turns[0].agent": absurd_debate({"agent": MAX_AGENTS}),
    "turns[0].round": absurd_debate({"round": 10**9}),
    "turns[0].continuations[0].round": absurd_debate({"continuations": [TURN | {"round": 10**9}]}),
}


@pytest.mark.parametrize("where", ABSURD)
@pytest.mark.parametrize("command", ["validate", "show", "export"])
def test_a_transcript_with_an_absurd_number_is_refused_in_every_command(
    command: str, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "debates.jsonl"
    file.write_text(json.dumps(ABSURD[where]))
    options = ["--to", "xml"] if command == "export" else []
    assert main([command, str(file), *options]) == (1 if command == "validate" else 2)
    out, err = capsys.readouterr()
    assert f"debates.jsonl:1: {where}: found 1" in out + err
    assert ", expected at most " in out + err


def test_a_transcript_is_read_when_it_is_as_large_as_it_may_be() -> None:
    data = absurd_debate(
        {"agent": MAX_AGENTS - 1, "round": MAX_ROUNDS - 1},
        num_agents=MAX_AGENTS,
        max_rounds=MAX_ROUNDS,
    )
    assert from_json(data).turns[0].round == MAX_ROUNDS - 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("q", 5), "question 'q': text: found 5, expected text"),
        (("q", "?", 4), "question 'q': answer: found 4, expected text, or None"),
        (("q", "?", ["4"]), "question 'q': answer: found ['4'], expected text, or None"),
        (("q", "?", "4", None), "question 'q': meta: found None, expected a mapping"),
    ],
)
def test_question_of_other_types_is_refused_where_it_is_made(
    values: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Question(*values)
