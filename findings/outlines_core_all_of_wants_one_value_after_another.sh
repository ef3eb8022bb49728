#!/usr/bin/env bash
# outlines-core 0.2.14: a schema with two parts in "allOf". One would expect the values that are
# valid against both parts, or an error, as for "not". The two regular expressions are joined end to
# end instead: a model that is held to the schema must write one value after another, which is not
# JSON, and cannot write one that is valid. A vote of one number from 3 to 9 has two digits. With
# "anyOf", and with a single part, the library does what the schema says.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet outlines-core==0.2.14 jsonschema==4.26.0
"$folder/venv/bin/python" - <<'PYTHON'
import json
import string
from importlib.metadata import version

from jsonschema import validate
from outlines_core import Guide, Index, Vocabulary
from outlines_core.json_schema import build_regex_from_schema

END = 0
TOKENS = {character: index for index, character in enumerate(string.printable, start=1)}
VOCABULARY = Vocabulary(END, {character: [index] for character, index in TOKENS.items()})


def can_write(schema: dict, text: str) -> bool:
    regex = build_regex_from_schema(json.dumps(schema))
    guide = Guide(Index(regex, VOCABULARY))
    for character in text:
        if TOKENS[character] not in guide.get_tokens():
            return False
        guide.advance(TOKENS[character])
    return END in guide.get_tokens()


def asks_for(key: str) -> dict:
    return {"type": "object", "properties": {key: {"type": "integer"}}, "required": [key]}


both_keys = {"allOf": [asks_for("a"), asks_for("b")]}
vote = {"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 9}]}
reason = {"allOf": [{"type": "string", "minLength": 2}, {"type": "string", "maxLength": 9}]}
CASES = [
    (both_keys, '{"a": 1, "b": 2}', '{"a": 1}{"b": 2}'),
    (vote, "5", "55"),
    (reason, '"so"', '"so""so"'),
]
print("outlines-core", version("outlines_core"))
for schema, valid, doubled in CASES:
    validate(json.loads(valid), schema)
    seen = [text for text in (valid, doubled) if can_write(schema, text)]
    print(f"  expected {valid} and not {doubled}; seen: {', '.join(seen)}")
    assert seen == [doubled], "what was seen has changed"
assert can_write({"allOf": [asks_for("a")]}, '{"a": 1}'), "what was seen has changed"
assert can_write({"anyOf": [asks_for("a"), asks_for("b")]}, '{"b": 1}'), "this has changed"
try:
    build_regex_from_schema(json.dumps({"not": {"type": "string"}}))
except ValueError:
    print('  a schema with "not" is refused')
else:
    raise SystemExit('"not" is taken now')
PYTHON
