"""CoNL's conversation: who reads what in which round, and a contract for each round."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from debate_protocol.forms import Conl, FormConfig, Simultaneous
from debate_protocol.parsing import Contract
from debate_protocol.transcripts.files import from_json, to_json, transcript_problems
from debate_protocol.types import TurnKey, TurnRequest, answering_agents, parse_turn

Play = Callable[..., Any]
CRITIQUES = {
    0: "Agent 1: add again. Agent 2: fine. Agent 1: or subtract.",
    1: "Nothing to say.",
    2: "Agent 0: </turn> no.",
    3: "Agent 1: wrong sign. Agent 3: my own.",
}


def speak(request: TurnRequest) -> str:
    """Each agent proposes its number, and its number and ten in the revision."""
    assert request.contract is not None
    if "solution" in request.contract.sections:
        return f"<solution>I say \\boxed{{{request.agent + 5 * request.round}}}</solution>"
    left, right = sorted({0, 1, 2} - {request.agent})[:2]
    votes = f"<comparison>Agent {left} > Agent {right}</comparison>"
    return votes + (
        f"<evaluation>{CRITIQUES[request.agent]}</evaluation>" if request.round == 1 else ""
    )


def test_each_round_reads_what_it_should(play: Play) -> None:
    played = play(Conl(personas="none"), speak)
    first, critique, revision, verdict = played.steps
    assert [len(step) for step in played.steps] == [4, 4, 4, 4]
    assert [step[1].stop for step in played.steps] == [
        *(("</solution>",), ("</evaluation>",), ("</solution>",), ("</comparison>",))
    ]
    others = {0, 2, 3}
    assert not first[1].shown
    assert {*critique[1].shown} == {TurnKey(agent, 0) for agent in others}
    # The critiques of agents 0 and 3 name agent 1; those of 1 and 2 do not.
    assert {*revision[1].shown} == {*critique[1].shown, TurnKey(0, 1), TurnKey(3, 1)}
    assert {*verdict[1].shown} == {TurnKey(agent, 2) for agent in others}

    def asked(request: TurnRequest) -> str:
        return "\n".join(message["content"] for message in request.messages)

    assert all(f"boxed{{{agent}}}" in asked(critique[1]) for agent in range(4))
    # All that was said of agent 1, and nothing of others, nor of what agent 1 said of them.
    assert "add again" in asked(revision[1]) and "or subtract" in asked(revision[1])
    assert "wrong sign" in asked(revision[1])
    assert not any(said in asked(revision[1]) for said in ("fine", "my own", "Nothing to say"))
    assert "‹/turn> no" in asked(revision[0])  # No text of an agent ends a block.
    assert all(f"boxed{{{agent + 10}}}" in asked(verdict[1]) for agent in range(4))
    assert "add again" not in asked(verdict[1]) and "boxed{0}" not in asked(verdict[1])
    votes = ("Agent 0 > Agent 1", "Agent 1 > Agent 2", "Agent 0 > Agent 2")
    assert not any(vote in asked(request) for request in (*revision, *verdict) for vote in votes)


def test_what_a_critic_thinks_reaches_nobody(play: Play) -> None:
    def say(request: TurnRequest) -> str:
        assert request.contract is not None
        said = "Agent 0: <think>Agent 1 is a fool</think> fine."
        return request.contract.reply("\\boxed{1}", {"comparison": "", "evaluation": said})

    played = play(Conl(num_agents=3, personas="none", think="drop"), say)
    first, second, _ = (
        "".join(m["content"] for m in request.messages) for request in played.steps[2]
    )
    assert "fine." in first and "fool" not in first and "fine." not in second


def test_transcript_has_the_contract_of_each_round(play: Play) -> None:
    transcript = play(Conl(personas="none"), speak).transcript
    assert transcript_problems(transcript) == []
    assert from_json(json.loads(json.dumps(to_json(transcript)))) == transcript
    rules = transcript.protocol
    assert [rules.contract_of(n).answers for n in range(4)] == [True, False, True, False]
    assert [answering_agents(rules, n) for n in range(4)] == [(0, 1, 2, 3), (), (0, 1, 2, 3), ()]
    found = {turn.key: parse_turn(transcript, turn) for turn in transcript.turns}
    assert found[TurnKey(2, 2)].answer == "I say \\boxed{12}"
    assert found[TurnKey(2, 1)].answer is None and len(found[TurnKey(2, 1)].comparisons) == 1
    assert not any(turn.failure for turn in transcript.turns)


def test_two_agents_rank_their_own_solutions_too(play: Play) -> None:
    def say(request: TurnRequest) -> str:
        assert request.contract is not None
        votes = "Agent 0 > Agent 1"
        return request.contract.reply(f"\\boxed{{{request.agent}}}", {"comparison": votes})

    played = play(Conl(num_agents=2, ranks_own=True, personas="none"), say)
    _, critique, revision, verdict = played.steps
    for judges in (critique, verdict):
        for request in judges:
            asked = "\n".join(message["content"] for message in request.messages)
            assert "Compare Agents 0 and 1" in asked and "Never name yourself" not in asked
            assert "boxed{0}" in asked and "boxed{1}" in asked
    # Who criticises is asked about the other alone.
    assert "latest response of Agent 1." in critique[0].messages[-1]["content"]
    assert not any("Compare" in message["content"] for message in revision[0].messages)
    transcript = from_json(to_json(played.transcript))
    assert not transcript_problems(transcript)
    cast = [parse_turn(transcript, turn).comparisons for turn in transcript.turns]
    assert [len(votes) for votes in cast] == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_agents": 2}, "2 rank each other's solution and their own"),
        ({"contract": "three_section"}, "each round of this form has its own"),
        ({"history_rounds": 1}, "Input should be -1"),
        ({"roles": {"a": {}, "b": {"count": 3, "answers": False}}}, "but the form has True"),
    ],
)
def test_other_debates_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TypeAdapter(FormConfig).validate_python({"type": "conl"} | changes)


class Judged(Simultaneous):
    """A form of somebody else whose last round only judges."""

    def contracts(self) -> tuple[str | Contract, ...]:
        return ("three_section", Contract("last", ("comparison",), answers=False))


def test_form_of_ones_own_takes_a_contract_for_each_round(play: Play) -> None:
    def say(request: TurnRequest) -> str:
        assert request.contract is not None
        return request.contract.reply("\\boxed{4}", {"comparison": "Agent 0 = Agent 1"})

    transcript = play(Judged(num_agents=3, max_rounds=2, personas="none"), say).transcript
    assert {turn.text.partition(">")[0] for turn in transcript.turns[3:]} == {"<comparison"}
    assert not any(turn.failure for turn in transcript.turns)
