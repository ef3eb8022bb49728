"""JSON is read and written to one depth, whatever the release of Python could hold."""

import json

import pytest

from debate_protocol.transcripts.files import MAX_NESTING, json_line, json_value


def test_json_is_read_and_written_to_one_depth_in_every_release_of_python() -> None:
    text = '{"a": ' * (MAX_NESTING - 1) + "[]" + "}" * (MAX_NESTING - 1)
    for one in (text, text.encode()):
        assert json_line(json_value(one)) == f"{text}\n".encode()
    for deeper in (f"[{text}]", f"[{text}]".encode()):
        with pytest.raises(RecursionError, match="nested deeper than 500"):
            json_value(deeper)
    with pytest.raises(RecursionError, match="nested deeper than 500"):
        json_line([json.loads(text)])
    wide = json.dumps([[[]]] * MAX_NESTING)  # Many brackets, three deep.
    assert json_line(json_value(wide)) == f"{wide}\n".encode()
