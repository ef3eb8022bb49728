"""Contracts of the user's own: in settings, in prompts, in parsing and in files."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from debate_protocol.forms import FormConfig, Simultaneous
from debate_protocol.parsing import Contract
from debate_protocol.transcripts.files import (
    TranscriptError,
    from_json,
    read_transcripts,
    to_json,
    transcript_problems,
    write_transcripts,
)
from debate_protocol.transcripts.showing import shown_debate
from debate_protocol.types import Question, Transcript, TurnRequest, parse_turn

Play = Callable[..., Any]

POEM = yaml.safe_load("""
type: simultaneous
num_agents: 3
max_rounds: 2
personas: none
contract:
  name: poem
  sections: [plan, poem, critique, comparison]
  instructions:
    plan: what the poem is to do, in one sentence.
    critique: the weakest line of each other poem.
""")


def poem_form(**contract: Any) -> Simultaneous:
    """The form above, with changes to its contract."""
    chosen = {**POEM["contract"], **contract}
    form = TypeAdapter(FormConfig).validate_python({**POEM, "contract": chosen})
    assert isinstance(form, Simultaneous)
    return form


def poet(request: TurnRequest) -> str:
    others = [agent for agent in range(3) if agent != request.agent]
    vote = f"Agent {others[0]} > Agent {others[1]}" if request.round else "N/A"
    return (
        f"<plan>p{request.agent}</plan><poem>r{request.agent}{request.round}</poem>"
        f"<critique>c{request.agent}</critique><comparison>{vote}</comparison>"
    )


def test_own_contract_speaks_in_prompts_and_is_read_when_a_recipe_brings_it(play: Play) -> None:
    played = play(poem_form(), poet, Question("q", "Write a poem."))
    first = played.request_turn(0, 0)
    assert first.stop == ("</comparison>",)
    assert first.contract == Contract(
        "poem",
        ("plan", "poem", "critique", "comparison"),
        "</comparison>",
        instructions=POEM["contract"]["instructions"],
    )
    system = first.messages[0]["content"]
    assert "<plan>…</plan>\n<poem>…</poem>\n<critique>…</critique>\n<comparison>" in system
    assert "- plan: what the poem is to do, in one sentence.\n" in system
    assert "- poem: as its name says.\n" in system
    assert "- critique: the weakest line of each other poem.\n" in system
    assert first.messages[1]["content"].endswith(
        "There is no response of another agent to consider. Give your plan. "
        "Write your poem. Write your critique. Write N/A in comparison."
    )
    news = played.news(0, 1)
    assert "Plan:\np1\n\nPoem:\nr10\n\nCritique:\nc1\n</turn>" in news
    assert "Compare Agents 1 and 2" in news and "Evaluate" not in news
    parsed = parse_turn(played.transcript, played.transcript.turns[3])
    assert (parsed.answer, parsed.sections["poem"].text) == ("p0", "r01")
    assert [(v.left, v.op, v.right) for v in parsed.comparisons] == [(1, ">", 2)]


def test_own_contract_comes_back_from_a_file_and_is_read_there_when_written(
    play: Play, tmp_path: Path
) -> None:
    transcript = play(poem_form(), poet).transcript
    told = to_json(transcript)["protocol"]["contract"]
    assert told == {**POEM["contract"], "stop": "</comparison>", "kind": "xml"}
    path = tmp_path / "poems.jsonl"
    write_transcripts(path, [transcript])
    (read,) = read_transcripts(path)
    assert read == transcript and transcript_problems(read) == []
    assert parse_turn(read, read.turns[3]).answer == "p0"
    shown = shown_debate(read)
    assert "poem" in shown.splitlines()[1] and "critique" in shown and "c2" in shown


def test_stop_string_is_the_last_closing_tag_or_what_was_written_or_none() -> None:
    assert poem_form().stop_strings() == ("</comparison>",)
    assert poem_form(stop="</poem>").stop_strings() == ("</poem>",)
    assert poem_form(stop=None).stop_strings() == ()
    # In Python, too.
    sections = ("poem", "comparison")
    assert Contract("poem", sections).stop == "</comparison>"
    assert Contract("poem", sections, None).stop is None
    assert Contract("free", kind="boxed").stop is None
    # What a dump says in full reads back as the same form, a null stop included.
    for form in (poem_form(), poem_form(stop=None)):
        assert Simultaneous.model_validate(form.model_dump(mode="json")) == form


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "three_section"}, "'three_section' is built in; choose another name"),
        ({"sections": []}, "an xml contract needs sections"),
        ({"sections": ["Poem"], "instructions": {}}, "expected a lower-case name"),
        ({"kind": "boxed"}, "the other kinds have none"),
        ({"stop": ""}, "stop is empty; write null for none"),
        ({"section": []}, "Extra inputs are not permitted"),
    ],
)
def test_own_contract_is_refused_when_it_makes_no_sense(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        poem_form(**change)


def in_file(contract: Any) -> Transcript:
    """A transcript as read with this contract."""
    turn = {"agent": 0, "round": 0, "text": "<poem>x</poem>"}
    protocol = {"num_agents": 1, "contract": contract}
    return from_json({"question": {"text": "?"}, "protocol": protocol, "turns": [turn]})


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        (3, "protocol.contract: found 3, expected a name or an object with name and sections"),
        ({"name": "a", "sections": [1]}, "protocol.contract.sections: found 1, expected text"),
        ({"name": "a", "sections": ["a"], "kind": "json"}, "protocol.contract: .* kind 'json'"),
        ({"name": "a", "sections": ["a"], "instructions": {"a": 1}}, "instructions: found 1"),
    ],
)
def test_file_is_refused_when_its_contract_describes_none(contract: Any, message: str) -> None:
    with pytest.raises(TranscriptError, match=message):
        in_file(contract)


def test_yaml_of_the_documents_makes_forms_when_read(repository: Path) -> None:
    found = []
    for name in ("docs/protocol.md", "packages/debate-protocol/README.md"):
        text = (repository / name).read_text(encoding="utf-8")
        found += re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    forms = [Simultaneous.model_validate(yaml.safe_load(block)) for block in found]
    assert [form.contract_rules().name for form in forms] == ["poem", "three_section", "poem"]
