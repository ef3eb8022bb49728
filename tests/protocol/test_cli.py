"""The command: what it prints and how it exits."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.cli import main
from debate_protocol.transcripts.files import from_json, write_transcripts

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


def test_parse_reads_standard_input_when_the_file_is_a_dash(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = json.dumps({"text": r"so \boxed{7}"}).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert main(["parse", "-", "--contract", "boxed"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == "7"


@pytest.mark.parametrize(
    ("arguments", "row", "message"),
    [
        (["--contract", "boxes"], {"text": ""}, "--contract: found 'boxes', expected one of"),
        ([], {"id": 1}, "r.jsonl:1: text: found nothing, expected text"),
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


@pytest.mark.parametrize("command", ["parse", "validate", "show", "export --to xml"])
def test_command_exits_2_when_the_file_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([*command.split(), str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: cannot be read (No such file or directory)" in capsys.readouterr().err
    assert main([*command.split(), str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


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


def test_validate_exits_2_when_there_is_nothing(tmp_path: Path) -> None:
    assert main(["validate", rows(tmp_path / "empty.jsonl")]) == 2


def test_show_exits_2_and_names_debates_when_the_id_is_unknown(
    debates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(debates), "--id", "d3"]) == 2
    assert "found no debate with id 'd3'; it holds 'd1', 'd2'" in capsys.readouterr().err


def test_show_reads_the_rest_when_the_last_line_is_torn(
    debates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    debates.write_bytes(debates.read_bytes()[:-9])
    assert main(["show", str(debates), "--id", "d2"]) == 2
    assert "the last line is cut off" in capsys.readouterr().err
    assert main(["show", str(debates)]) == 0


def test_command_is_quiet_when_its_reader_stops(tmp_path: Path) -> None:
    file = rows(tmp_path / "r.jsonl", *({"text": "x" * 1000} for _ in range(500)))
    command = f"{sys.executable} -m debate_protocol.cli parse {file} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert json.loads(done.stdout)["problems"][0] == "solution: missing"


@pytest.mark.parametrize("module", ["debate_protocol.cli"])
def test_import_brings_nothing_heavy_when_only_this_is_imported(module: str) -> None:
    code = f"import {module}, sys; print({{'lxml', 'pydantic'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
