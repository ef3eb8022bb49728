"""Transcripts as XML: the keys of the JSON Lines, under a schema that ships as `transcript.xsd`.

Reading expands no entities, opens no network connection or other file, and keeps the XML
library's limits on depth and length. Importing this module brings lxml.
"""

import base64
import functools
from collections.abc import Iterable, Iterator
from importlib import resources
from typing import Any

from lxml import etree

from debate_protocol.transcripts.files import (
    SCHEMA,
    TranscriptError,
    from_json,
    json_text,
    json_value,
    to_json,
)
from debate_protocol.transcripts.showing import escaped_xml
from debate_protocol.types import Transcript

NAMESPACE = "urn:debate-transcript:1"

_ROOT = f"{{{NAMESPACE}}}transcripts"
_RULES = ("num_agents", "max_rounds", "schedule", "history_rounds", "degree", "center")
_NOT_NUMBERS = ("schedule", "role")
_MAX_PROBLEMS = 20
_Fields = dict[str, Any]


def to_xml(transcripts: Iterable[Transcript]) -> bytes:
    """Write the transcripts as a document; `from_xml` reads equal ones back.

    A text with a character unknown to XML is written in base64, marked by an attribute.

    Raises:
        ValueError: A value has no place in JSON, such as NaN.
    """
    root = etree.Element(_ROOT, {"schema": SCHEMA}, nsmap={None: NAMESPACE})
    for transcript in transcripts:
        _write_transcript(etree.SubElement(root, _tag("transcript")), to_json(transcript))
    etree.indent(root)
    document: bytes = etree.tostring(root, encoding="UTF-8", xml_declaration=True)
    return escaped_xml(document) + b"\n"


def from_xml(document: bytes, name: str = "XML") -> list[Transcript]:
    """Read the transcripts of a document.

    Args:
        document: The document, in any encoding that XML knows.
        name: What messages call it.

    Raises:
        TranscriptError: It is not well-formed, does not keep the schema, declares a document
            type, or holds what no transcript can; the message says in which line.
    """
    transcripts = []
    for _, read in read_xml(document, name):
        if isinstance(read, TranscriptError):
            raise read
        transcripts.append(read)
    return transcripts


def read_xml(document: bytes, name: str) -> Iterator[tuple[int, Transcript | TranscriptError]]:
    """Yield line number and transcript or what is wrong; nothing is read against the schema."""
    try:
        root = _parsed(document)
    except etree.XMLSyntaxError as problem:
        line = problem.lineno or 1
        yield line, TranscriptError.at(f"{name}:{line}", _plain(problem.msg))
        return
    if root.getroottree().docinfo.internalDTD is not None:
        what = "declares a document type (DOCTYPE); expected none, take the declaration out"
        yield 1, TranscriptError.at(name, what)
        return
    if root.tag != _ROOT:
        yield 1, TranscriptError(name, root.tag, f"the root element {_ROOT}")
        return
    schema = xml_schema()
    if not schema.validate(root):
        for error in list(schema.error_log)[:_MAX_PROBLEMS]:
            yield error.line, TranscriptError.at(f"{name}:{error.line}", _plain(error.message))
        return
    for number, element in enumerate(root, 1):
        line = element.sourceline or 0
        try:
            yield line, from_json({"turns": []} | _fields(element), default_id=str(number))
        except (ValueError, RecursionError) as problem:
            yield line, TranscriptError.at(f"{name}:{line}", str(problem))


@functools.cache
def xml_schema() -> etree.XMLSchema:
    """Load the schema of all documents."""
    shipped = resources.files("debate_protocol").joinpath("transcript.xsd").read_bytes()
    return etree.XMLSchema(_parsed(shipped))


def _parsed(document: bytes) -> etree._Element:
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        attribute_defaults=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    return etree.fromstring(document, parser)


def _write_transcript(parent: etree._Element, data: _Fields) -> None:
    # Keys with a place in the schema are popped, so that what is left is `extra`.
    question = data.pop("question")
    rules = data.pop("protocol")
    turns = data.pop("turns")
    data.pop("schema")
    _add_texts(parent, data, "id")
    element = etree.SubElement(parent, _tag("question"))
    _add_texts(element, question, "id", "text", "answer")
    _add_json(element, question, "meta")
    _add_json(element, {"extra": question}, "extra")
    element = etree.SubElement(parent, _tag("protocol"))
    for key in [key for key in _RULES if key in rules]:
        element.set(key, str(rules.pop(key)))
    _add_texts(element, rules, "contract", "topology")
    _add_json(element, {"extra": rules}, "extra")
    for turn in turns:
        _write_turn(etree.SubElement(parent, _tag("turn")), turn)
    _add_json(parent, data, "meta")
    _add_json(parent, {"extra": data}, "extra")


def _write_turn(parent: etree._Element, turn: _Fields) -> None:
    for key in ("agent", "round"):
        parent.set(key, str(turn.pop(key)))
    shown = etree.SubElement(parent, _tag("shown"))
    for agent, round in turn.pop("shown"):
        etree.SubElement(shown, _tag("seen"), agent=str(agent), round=str(round))
    # No element where the prompt is not known: an empty one is a prompt without messages.
    prompt = turn.pop("prompt")
    if prompt is not None:
        prompt_element = etree.SubElement(parent, _tag("prompt"))
        for message in prompt:
            role = message.pop("role")
            message_element = etree.SubElement(prompt_element, _tag("message"), role=role)
            _add_texts(message_element, message, "content")
            _add_json(message_element, {"extra": message}, "extra")
    _add_texts(parent, turn, "text", "failure")
    if "branches" in turn:
        branches_element = etree.SubElement(parent, _tag("branches"))
        for branch in turn.pop("branches"):
            branch_element = etree.SubElement(branches_element, _tag("branch"))
            _add_texts(branch_element, branch, "guide")
            _write_turn(etree.SubElement(branch_element, _tag("turn")), branch["turn"])
    if "continuations" in turn:
        continuations_element = etree.SubElement(parent, _tag("continuations"))
        for continuation in turn.pop("continuations"):
            _write_turn(etree.SubElement(continuations_element, _tag("turn")), continuation)
    _add_json(parent, {"extra": turn}, "extra")


def _add_texts(parent: etree._Element, data: _Fields, *keys: str) -> None:
    """Move texts from the data into elements; other values stay for `extra`."""
    for key in keys:
        if isinstance(data.get(key), str):
            _set_text(etree.SubElement(parent, _tag(key)), data.pop(key))
        elif data.get(key) is None:
            data.pop(key, None)


def _add_json(parent: etree._Element, data: _Fields, key: str) -> None:
    value = data.pop(key)
    if value:
        _set_text(etree.SubElement(parent, _tag(key)), json_text(value))


def _set_text(element: etree._Element, text: str) -> None:
    # XML has no control characters and no lone surrogates, not even escaped; replies may.
    try:
        element.text = text
    except ValueError:
        element.set("encoding", "base64")
        element.text = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


def _fields(element: etree._Element) -> _Fields:
    """Convert the content of a valid element to JSON."""
    fields: _Fields = {
        key: value if key in _NOT_NUMBERS else int(value) for key, value in element.attrib.items()
    }
    for child in element:
        key = _local(child)
        # A key of the schema wins: an edited file may have it in `extra`, too.
        if key == "extra":
            fields = _json(child) | fields
        elif key == "turn" and _local(element) == "transcript":
            fields.setdefault("turns", []).append(_fields(child))
        else:
            fields[key] = _value(key, child)
    return fields


def _value(key: str, element: etree._Element) -> object:
    if key == "meta":
        return _json(element)
    if key == "shown":
        return [[int(seen.attrib["agent"]), int(seen.attrib["round"])] for seen in element]
    if key in ("prompt", "branches", "continuations"):
        return [_fields(child) for child in element]
    return _fields(element) if key in ("question", "protocol", "turn") else _text(element)


def _json(element: etree._Element) -> _Fields:
    value = json_value(_text(element))
    if not isinstance(value, dict):
        raise TranscriptError(_local(element), value, "an object")
    return value


def _text(element: etree._Element) -> str:
    text: str = element.text or ""
    if element.get("encoding") != "base64":
        return text
    raw = base64.b64decode("".join(text.split()), validate=True)
    return raw.decode("utf-8", "surrogatepass")


def _tag(name: str) -> str:
    return f"{{{NAMESPACE}}}{name}"


def _local(element: etree._Element) -> str:
    name: str = etree.QName(element).localname
    return name


def _plain(problem: object) -> str:
    return str(problem).replace(f"{{{NAMESPACE}}}", "")
