"""The command `export` and its way back, and the other commands on XML."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.cli import main
from debate_protocol.transcripts.files import from_json, read_transcripts, write_transcripts
from debate_protocol.transcripts.xml import from_xml, to_xml

DEBATE: dict[str, Any] = {
    "id": "d1",
    "question": {"text": "6 * 7?\r\n", "answer": "42", "topic": "sums"},
    "protocol": {"num_agents": 2, "arena": [1]},
    "turns": [
        {"agent": 0, "round": 0, "text": "<solution>42 \x1b[31m\ud800</solution> ", "seed": 1},
        {"agent": 1, "round": 0, "text": "no idea", "prompt": [{"role": "user", "content": "q"}]},
    ],
    "source": {"file": "a\x00b"},
}
Printed = pytest.CaptureFixture[bytes]


@pytest.fixture
def debates(tmp_path: Path) -> Path:
    path = tmp_path / "debates.jsonl"
    write_transcripts(path, [from_json(DEBATE), from_json(DEBATE | {"id": "d2"})])
    return path


def standard_input(monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))


def test_export_to_xml_and_back_gives_the_same_file(
    debates: Path, capsysbinary: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["export", str(debates), "--to", "xml"]) == 0
    document = capsysbinary.readouterr().out
    assert from_xml(document) == read_transcripts(debates)
    standard_input(monkeypatch, b"\n \n" + document.partition(b"\n")[2])  # without declaration
    assert main(["export", "-", "--to", "jsonl"]) == 0
    assert capsysbinary.readouterr().out == debates.read_bytes()
    standard_input(monkeypatch, debates.read_bytes())
    assert main(["export", "-", "--to", "jsonl"]) == 0
    assert capsysbinary.readouterr().out == debates.read_bytes()


def test_validate_and_show_read_xml_when_a_file_holds_it(
    debates: Path, capsysbinary: Printed, tmp_path: Path
) -> None:
    file = tmp_path / "debates.xml"
    file.write_bytes(b"\xef\xbb\xbf" + to_xml(read_transcripts(debates)))
    assert main(["validate", str(file)]) == 0
    counts = b"2 debates, 4 turns, 2 failed turns, 0 lines with problems\n"
    assert capsysbinary.readouterr().out == counts
    assert main(["show", str(file), "--id", "d2"]) == 0
    assert capsysbinary.readouterr().out.startswith(b"Debate d2\n")
    file.write_bytes(to_xml(read_transcripts(debates)).decode().encode("utf-16"))
    assert main(["validate", str(file)]) == 0
    assert capsysbinary.readouterr().out == counts
    file.write_text("\n<transcripts/>")
    assert main(["show", str(file)]) == 2


def test_validate_tells_every_problem_and_exits_1_when_xml_is_wrong(
    debates: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    document = to_xml(read_transcripts(debates))
    file = tmp_path / "debates.xml"
    file.write_bytes(document.replace(b' round="0"', b' round="7"', 1))
    assert main(["validate", str(file)]) == 1
    out = capsys.readouterr().out
    assert "debates.xml:3: turn of agent 0 in round 7: expected rounds 0 to 0" in out
    file.write_bytes(document.replace(b' round="0"', b"").replace(b"two", b""))
    assert main(["validate", str(file)]) == 1
    out = capsys.readouterr().out
    assert out.count("attribute 'round' is required but missing") == 4
    assert out.endswith("0 debates, 0 turns, 0 failed turns, 4 lines with problems\n")
    file.write_bytes(document[:-40])
    assert main(["validate", str(file)]) == 1
    assert "Premature end of data" in capsys.readouterr().out


def test_export_tells_of_a_torn_last_line_and_writes_the_rest(
    debates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debates.write_bytes(debates.read_bytes()[:-9])
    assert main(["export", str(debates), "--to", "xml"]) == 0
    printed = capsys.readouterr()
    assert "debates.jsonl:2: the last line is cut off" in printed.err
    assert [one.id for one in from_xml(printed.out.encode())] == ["d1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found no transcripts"),
        ("\n\n", "found no transcripts"),
        ("[1]\n{}\n", ":1: transcript: found [1], expected an object"),
        ('{"schema": "debate-transcript/2"}', "expected 'debate-transcript/1'; a newer"),
        ("<a/>", "found 'a', expected the root element {urn:debate-transcript:1}transcripts"),
        ("<a", ":1: "),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "declares a document type (DOCTYPE)"),
    ],
)
def test_export_exits_2_with_one_line_when_the_file_is_bad(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    file = tmp_path / "x"
    file.write_text(content)
    assert main(["export", str(file), "--to", "xml"]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_commands_say_odd_names_and_values_without_a_traceback(
    tmp_path: Path, capsysbinary: Printed
) -> None:
    file = tmp_path / "od\udcff\u202e.jsonl"  # bytes that are no UTF-8
    bad = DEBATE | {"protocol": {"num_agents": 15, "topology": "\ud800", "contract": "\x1b"}}
    file.write_text(json.dumps(bad) + "\n")
    assert main(["validate", str(file)]) == 1
    assert b"topology: found '\\ud800'" in capsysbinary.readouterr().out
    file.write_text(json.dumps(DEBATE))
    assert main(["show", str(file), "--id", "\udcff"]) == 2
    assert b"'\\udcff'" in capsysbinary.readouterr().err
