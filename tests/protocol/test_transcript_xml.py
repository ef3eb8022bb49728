"""Transcripts as XML: what comes back, what the schema holds, what a hostile file cannot do."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from debate_protocol.parsing import Contract
from debate_protocol.transcripts.files import TranscriptError
from debate_protocol.transcripts.xml import from_xml, read_xml, to_xml, xml_schema
from debate_protocol.types import (
    MAX_ROUNDS,
    AgentRole,
    Branch,
    Message,
    Protocol,
    Question,
    Transcript,
    Turn,
    TurnKey,
)

NS = "{urn:debate-transcript:1}"
AWKWARD = [
    "", " ", "\n\t \n", " a\r\nb\r", "\x00", "\x1b[0m", "\ud800", "\udc00\ud83d\ude42", "\ufffe",
    "\uffff", "\x85\u2028", "\ufeff", "<a>&amp;]]>", "<![CDATA[x]]>", "日本 🙂", "e\u0301",
]  # fmt: skip
TEXT = st.sampled_from(AWKWARD) | st.text(st.characters(codec=None, categories=None), max_size=12)
# More agents and rounds than that are refused.
NUMBER = st.integers(-2, 9) | st.integers(max_value=MAX_ROUNDS - 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def unknown(*known: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(TEXT.filter(lambda key: key not in known), JSON, max_size=2)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from(["system", "user", "assistant"]))
    return {"role": role, "content": draw(TEXT)} | draw(unknown("role", "content"))  # type: ignore[return-value]


KEYS = st.builds(TurnKey, NUMBER, NUMBER)
TURN_KEYS = ("agent", "round", "text", "shown", "prompt", "failure", "branches", "continuations")
PLAIN_TURNS = st.builds(
    Turn,
    NUMBER,
    NUMBER,
    TEXT,
    shown=st.lists(KEYS, max_size=3).map(tuple),
    prompt=st.none() | st.lists(messages(), max_size=2).map(tuple),
    failure=st.none() | TEXT,
    extra=unknown(*TURN_KEYS),
)
TURNS = st.builds(
    Turn,
    NUMBER,
    NUMBER,
    TEXT,
    branches=st.lists(st.builds(Branch, TEXT, PLAIN_TURNS), max_size=2).map(tuple),
    continuations=st.lists(PLAIN_TURNS, max_size=2).map(tuple),
)
RULE_KEYS = (
    "num_agents", "max_rounds", "schedule", "contract", "topology", "history_rounds", "degree",
    "center", "roles",
)  # fmt: skip
SEES = st.none() | st.just("drawn") | st.dictionaries(TEXT, NUMBER, max_size=2)
ROUNDS = st.none() | st.lists(st.integers(0, 999), max_size=2).map(tuple)
ROLES = st.builds(AgentRole, TEXT, NUMBER, st.booleans(), ROUNDS, SEES)
OWN = Contract("own", ("plan", "verdict"), "</verdict>", instructions={"plan": "Plan."})
RULES = st.builds(
    Protocol,
    NUMBER,
    max_rounds=NUMBER,
    schedule=st.sampled_from(["parallel", "sequential"]),
    contract=st.sampled_from(["three_section", "boxed", OWN]),
    topology=TEXT,
    history_rounds=NUMBER,
    degree=st.none() | NUMBER,
    center=st.none() | NUMBER,
    roles=st.lists(ROLES, max_size=2).map(tuple),
    extra=unknown(*RULE_KEYS),
)
TRANSCRIPTS = st.builds(
    Transcript,
    TEXT,
    st.builds(Question, TEXT, TEXT, st.none() | TEXT, st.dictionaries(TEXT, JSON, max_size=2)),
    RULES,
    st.lists(PLAIN_TURNS | TURNS, max_size=3).map(tuple),
    st.dictionaries(TEXT, JSON, max_size=2),
    st.tuples(
        unknown("schema", "id", "question", "protocol", "turns", "meta"),
        unknown("id", "text", "answer", "meta").map(lambda own: {"question": own} if own else {}),
    ).map(lambda both: both[0] | both[1]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TRANSCRIPTS, max_size=2))
def test_xml_gives_back_equal_transcripts_and_keeps_the_schema_whatever_they_hold(
    transcripts: list[Transcript],
) -> None:
    document = to_xml(transcripts)
    assert xml_schema().validate(etree.fromstring(document))
    assert from_xml(document) == transcripts


@pytest.mark.parametrize("text", AWKWARD)
def test_xml_keeps_a_text_exactly_and_says_so_where_it_is_encoded(text: str) -> None:
    debate = Transcript(text, Question(text, text, text), Protocol(1), (Turn(0, 0, text),))
    document = to_xml([debate])
    assert from_xml(document) == [debate]
    held = etree.fromstring(document).find(f"{NS}transcript/{NS}turn/{NS}text")
    assert held is not None
    # Control characters, surrogates, U+FFFE and U+FFFF have no place in XML.
    impossible = any(ord(c) < 32 and c not in "\t\n\r" for c in text) or any(
        0xD800 <= ord(c) <= 0xDFFF or ord(c) in (0xFFFE, 0xFFFF) for c in text
    )
    assert held.get("encoding") == ("base64" if impossible else None)


MINIMAL = f"""<transcripts xmlns="urn:debate-transcript:1" schema="debate-transcript/1">
  <transcript>
    <question><text>Why?</text></question>
    <protocol num_agents="2"/>
    <turn agent="0" round="0"><text>a<!-- not said --><![CDATA[<b>]]></text></turn>
    <turn agent="1" round="0"><text encoding="base64"> 4pyT{chr(10)} </text></turn>
    <turn agent="0" round="1"><text>c</text></turn>
  </transcript>
</transcripts>"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('num_agents="2"', "", "x.xml:4: .*'num_agents' is required but missing"),
        ("/1", "/2", "x.xml:1: .*does not match the fixed value constraint 'debate-transcript/1'"),
        ("<turn agent", "<round/><turn agent", "x.xml:5: .*'round': This element is not expected"),
        ("</protocol>", "", "x.xml:9: Opening and ending tag mismatch"),
        (
            'num_agents="2"/>',
            'num_agents="2"><extra>NaN</extra></protocol>',
            "NaN is no JSON value",
        ),
        ('num_agents="2"/>', 'num_agents="2" schedule="p"/>', "x.xml:2: protocol.schedule: found"),
    ],
)
def test_from_xml_says_where_when_a_document_is_wrong(old: str, new: str, message: str) -> None:
    document = (
        MINIMAL.replace('num_agents="2"/>', 'num_agents="2"></protocol>')
        if "</" in old
        else MINIMAL
    )
    assert old in document
    with pytest.raises(TranscriptError, match=message):
        from_xml(document.replace(old, new, 1).encode(), "x.xml")


@pytest.mark.parametrize("document", [b"", b"\x00", b"\xff\xfe", MINIMAL[:99].encode()])
def test_from_xml_says_one_thing_when_a_document_is_no_xml(document: bytes) -> None:
    told = [str(read) for _, read in read_xml(document, "x.xml")]
    assert len(told) == 1
    assert re.match(r"x\.xml:[123]: \S", told[0])
    assert "<string>" not in told[0]


LAUGHS = "".join(
    f'<!ENTITY l{n} "{f"&l{n - 1};" * 10 if n else "lol"}">' for n in range(12)
)  # fmt: skip


@pytest.mark.parametrize(
    "declared",
    [
        '<!ENTITY x SYSTEM "file://SECRET">',
        '<!ENTITY x SYSTEM "http://127.0.0.1:9/x">',
        '<!ENTITY % p SYSTEM "file://SECRET"> %p; <!ENTITY x "">',
        f'{LAUGHS}<!ENTITY x "&l11;">',
        f'<!ENTITY x "{"a" * 100_000}">',
        '<!ENTITY x "x"><!ATTLIST turn agent CDATA "0">',
    ],
)
@pytest.mark.parametrize("place", ["text", "attribute"])
def test_from_xml_refuses_declared_entities_at_once_and_reads_no_other_file(
    tmp_path: Path, declared: str, place: str
) -> None:
    (tmp_path / "secret").write_text("s3cret")
    declared = declared.replace("SECRET", str(tmp_path / "secret"))
    used = "&x;" * (1 if "SYSTEM" in declared else 1000)
    document = MINIMAL.replace("Why?", used) if place == "text" else MINIMAL.replace(
        'num_agents="2"', f'num_agents="2" schedule="{used}"'
    )  # fmt: skip
    with pytest.raises(TranscriptError) as caught:
        from_xml(f"<!DOCTYPE transcripts [{declared}]>{document}".encode())
    assert "s3cret" not in str(caught.value)


def test_from_xml_refuses_a_tree_that_is_too_deep_or_a_text_that_is_too_long() -> None:
    deep = "<turn>" * 300 + "</turn>" * 300
    with pytest.raises(TranscriptError, match="depth"):
        from_xml(MINIMAL.replace("Why?", deep).encode())
    with pytest.raises(TranscriptError, match=r"too long|limit"):
        from_xml(MINIMAL.replace("Why?", "y" * 10_000_001).encode())


def test_nested_turns_come_back_to_the_deepest_that_files_may_hold() -> None:
    turn = Turn(0, 0, "leaf")
    for depth in range(63):
        turn = (
            Turn(0, 0, "t", branches=(Branch("g", turn),))
            if depth % 2
            else Turn(0, 0, "t", continuations=(turn,))
        )
    debate = Transcript("d", Question("d", "q"), Protocol(1), (turn,))
    assert from_xml(to_xml([debate])) == [debate]
