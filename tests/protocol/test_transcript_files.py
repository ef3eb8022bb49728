"""Files of transcripts as they come: cut off, of later versions, with turns told twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.cli import main
from debate_protocol.transcripts.files import (
    SCHEMA,
    TornLineWarning,
    TranscriptError,
    json_line,
    read_transcripts,
    to_json,
    write_transcripts,
)
from debate_protocol.types import Protocol, Question, Transcript, Turn

DEBATE: dict[str, Any] = {
    "schema": SCHEMA,
    "id": "é",
    "question": {"text": "Why?", "answer": None, "meta": {}},
    "protocol": {"num_agents": 2},
    "turns": [{"agent": 0, "round": 0, "text": "<solution>é</solution>"}],
}
LINE = json.dumps(DEBATE, ensure_ascii=False).encode()


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


def test_read_refuses_a_line_that_is_cut_off_before_the_last(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINE[:-5] + b"\n" + LINE)
    with pytest.raises(TranscriptError, match=r"x.jsonl:1: not JSON"):
        read_transcripts(path)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("debate-transcript/2", "found 'debate-transcript/2', expected 'debate-transcript/1'; a "),
        ("debate-transcript/10", "a newer debate-protocol reads it"),
        ("debate/1", "schema: found 'debate/1', expected 'debate-transcript/1'$"),
        (1, "schema: found 1, expected text"),
    ],
)
def test_read_refuses_other_versions_and_says_what_reads_them(
    tmp_path: Path, schema: object, message: str
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(LINE + b"\n" + json.dumps(DEBATE | {"schema": schema}).encode())
    with pytest.raises(TranscriptError, match=f"x.jsonl:2: .*{message}"):
        read_transcripts(path)
    assert main(["validate", str(path)]) == 1


def test_a_file_of_the_present_version_is_marked_and_one_without_a_mark_is_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "x.jsonl"
    unmarked = {key: value for key, value in DEBATE.items() if key != "schema"}
    path.write_text(json.dumps(unmarked))
    (read,) = read_transcripts(path)
    assert next(iter(to_json(read).items())) == ("schema", "debate-transcript/1")


@pytest.mark.parametrize(
    ("turns", "problem"),
    [
        ([(0, 0, []), (0, 0, [])], "turn of agent 0 in round 0: found twice"),
        ([(0, 0, []), (1, 1, [[0, 0], [0, 0]])], "a turn stands twice in shown"),
        ([(0, 0, []), (1, 1, [[0, 1]])], "shown [0, 1] is no turn of this debate"),
        ([(5, 0, [])], "expected agents 0 to 1"),
        ([(-1, 0, [])], "expected agents 0 to 1"),
        ([(0, -1, [])], "expected rounds 0 to"),
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
    path.write_text(json.dumps(DEBATE | {"turns": told}) + "\n")
    assert main(["validate", str(path)]) == 1
    assert f"{path}:1: " in (out := capsys.readouterr().out)
    assert problem in out


def test_read_refuses_what_python_cannot_count_or_nest(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    for odd in ("[" * 100_000 + "]" * 100_000, "9" * 5000, "NaN", "-Infinity"):
        path.write_bytes(LINE[:-1] + f', "odd": {odd}}}\n'.encode() + LINE)
        with pytest.raises(TranscriptError, match=r"x.jsonl:1: not JSON"):
            read_transcripts(path)


def test_json_line_is_valid_utf8_on_one_line_whatever_the_text() -> None:
    turn = Turn(0, 0, "\ud800\n\r\u2028\x85\x00🙂")
    line = json_line(to_json(Transcript("t", Question("t", "q"), Protocol(1), (turn,))))
    assert line.decode("utf-8").count("\n") == 1
    assert json.loads(line)["turns"][0]["text"] == turn.text


def test_writing_many_leaves_one_file_of_whole_lines(tmp_path: Path) -> None:
    debate = Transcript("t", Question("t", "q"), Protocol(1), (Turn(0, 0, "x"),))
    write_transcripts(tmp_path / "x.jsonl", [debate] * 3)
    assert [file.name for file in tmp_path.iterdir()] == ["x.jsonl"]
    assert (tmp_path / "x.jsonl").read_bytes().count(b"\n") == 3
