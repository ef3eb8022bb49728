"""The command: what it prints and how it exits."""

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
    "question": {"text": "6 * 7?", "answer": "42"},
    "protocol": {"num_agents": 2},
    "turns": [
        {"agent": 0, "round": 0, "text": "<solution>42 \x1b[31mred</solution>"},
        {"agent": 1, "round": 0, "text": "no idea"},
    ],
}


@pytest.fixture
def debates(tmp_path: Path) -> Path:
    path = tmp_path / "debates.jsonl"
    write_transcripts(path, [from_json(DEBATE), from_json(DEBATE | {"id": "d2"})])
    return path


def rows(path: Path, *lines: object) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_parse_prints_one_object_a_line_when_rows_are_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "<solution> 42 </solution><comparison>Agent 2 < Agent 1\nAgent 0 > Agent 1\nhm"
    file = rows(tmp_path / "r.jsonl", {"id": 5, "text": text, "author": 0, "num_agents": 3})
    assert main(["parse", file, "--contract", "three_section"]) == 0
    # "<solution> " is 11 characters; "<comparison>" ends at 11+2+12+12 = 37.
    assert json.loads(capsys.readouterr().out) == {
        "id": 5,
        "sections": {
            "solution": {"text": "42", "span": [11, 13], "truncated": False},
            "comparison": {"text": text[37:], "span": [37, 75], "truncated": True},
        },
        "comparisons": [{"left": 1, "op": ">", "right": 2, "span": [37, 54]}],
        "invalid_lines": 1,
        "self_dropped": 1,
        "malformed": 0,
        "consensus": None,
        "problems": [
            "evaluation: missing",
            "comparison: truncated, no closing tag",
            "comparison: 1 invalid lines",
            "comparison: 1 lines name their author",
        ],
    }


@pytest.mark.parametrize(
    ("arguments", "row", "message"),
    [
        (["--contract", "boxes"], {"text": ""}, "--contract: found 'boxes', expected one of"),
        ([], {"text": "", "author": "0"}, "r.jsonl:1: author: found '0', expected an integer"),
        ([], [1], "r.jsonl:1: row: found [1], expected an object"),
    ],
)
def test_parse_exits_2_with_one_line_when_the_input_is_bad(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    row: object,
    message: str,
) -> None:
    assert main(["parse", rows(tmp_path / "r.jsonl", row), *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_validate_counts_and_exits_0_when_all_is_well(
    debates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(debates)]) == 0
    assert capsys.readouterr().out == "2 debates, 4 turns, 2 failed turns, 0 lines with problems\n"


def test_validate_tells_every_problem_and_exits_1_when_lines_are_wrong(
    debates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with debates.open("ab") as file:
        file.write(b'{"turns": []}\n')
        file.write(json.dumps(DEBATE | {"protocol": {"num_agents": 1}}).encode() + b"\n")
        file.write(b'{"schema": "debate-tr')
    assert main(["validate", str(debates)]) == 1
    out = capsys.readouterr().out
    assert "debates.jsonl:3: question: found nothing, expected an object" in out
    assert "debates.jsonl:4: turn of agent 1 in round 0: expected agents 0 to 0" in out
    assert "debates.jsonl:5: the last line is cut off" in out
    assert out.endswith("3 debates, 6 turns, 3 failed turns, 3 lines with problems\n")


@pytest.mark.parametrize(
    ("keys", "name", "problem"),
    [
        (("protocol",), "scheduel", "protocol: scheduel is not read; did you mean 'schedule'?"),
        (("turns", 0), "prompts", "round 0: prompts is not read; did you mean 'prompt'?"),
        (("question",), "choices", "question.choices: is not read; expected question.meta.choices"),
        (("question",), "source", None),
    ],
)
def test_validate_names_a_key_that_changes_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    keys: tuple[str | int, ...],
    name: str,
    problem: str | None,
) -> None:
    debate = json.loads(json.dumps(DEBATE))
    record: Any = debate
    for key in keys:
        record = record[key]
    record[name] = "any"
    path = tmp_path / "debate.jsonl"
    path.write_text(json.dumps(debate))
    assert main(["validate", str(path)]) == (problem is not None)
    assert (problem or "0 lines with problems") in capsys.readouterr().out


def test_show_reads_the_rest_when_the_last_line_is_torn(
    debates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debates.write_bytes(debates.read_bytes()[:-9])
    assert main(["show", str(debates), "--id", "d2"]) == 2
    assert "the last line is cut off" in capsys.readouterr().err
    assert main(["show", str(debates)]) == 0


EXPORTED: dict[str, Any] = {
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
def exported_debates(tmp_path: Path) -> Path:
    path = tmp_path / "debates.jsonl"
    write_transcripts(path, [from_json(EXPORTED), from_json(EXPORTED | {"id": "d2"})])
    return path


def standard_input(monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))


def test_export_to_xml_and_back_gives_the_same_file(
    exported_debates: Path, capsysbinary: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["export", str(exported_debates), "--to", "xml"]) == 0
    document = capsysbinary.readouterr().out
    assert from_xml(document) == read_transcripts(exported_debates)
    standard_input(monkeypatch, b"\n \n" + document.partition(b"\n")[2])  # without declaration
    assert main(["export", "-", "--to", "jsonl"]) == 0
    assert capsysbinary.readouterr().out == exported_debates.read_bytes()
    standard_input(monkeypatch, exported_debates.read_bytes())
    assert main(["export", "-", "--to", "jsonl"]) == 0
    assert capsysbinary.readouterr().out == exported_debates.read_bytes()


def test_validate_and_show_read_xml_when_a_file_holds_it(
    exported_debates: Path, capsysbinary: Printed, tmp_path: Path
) -> None:
    file = tmp_path / "debates.xml"
    file.write_bytes(b"\xef\xbb\xbf" + to_xml(read_transcripts(exported_debates)))
    assert main(["validate", str(file)]) == 0
    counts = b"2 debates, 4 turns, 2 failed turns, 0 lines with problems\n"
    assert capsysbinary.readouterr().out == counts
    assert main(["show", str(file), "--id", "d2"]) == 0
    assert capsysbinary.readouterr().out.startswith(b"Debate d2\n")
    file.write_bytes(to_xml(read_transcripts(exported_debates)).decode().encode("utf-16"))
    assert main(["validate", str(file)]) == 0
    assert capsysbinary.readouterr().out == counts
    file.write_text("\n<transcripts/>")
    assert main(["show", str(file)]) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "found no transcripts"),
        ("[1]\n{}\n", ":1: transcript: found [1], expected an object"),
        ("<a/>", "found 'a', expected the root element {urn:debate-transcript:1}transcripts"),
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
    bad = EXPORTED | {"protocol": {"num_agents": 15, "topology": "\ud800", "contract": "\x1b"}}
    file.write_text(json.dumps(bad) + "\n")
    assert main(["validate", str(file)]) == 1
    assert b"topology: found '\\ud800'" in capsysbinary.readouterr().out
    file.write_text(json.dumps(EXPORTED))
    assert main(["show", str(file), "--id", "\udcff"]) == 2
    assert b"'\\udcff'" in capsysbinary.readouterr().err


@pytest.mark.parametrize("command", ["parse", "validate", "show", "export --to xml"])
def test_command_exits_2_when_the_file_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([*command.split(), str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: cannot be read (No such file or directory)" in capsys.readouterr().err
    assert main([*command.split(), str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err
