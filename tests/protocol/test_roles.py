"""Roles: who owes an answer and who sees whom, as data that forms write and files keep."""

from typing import Any, ClassVar, Literal

import pytest

from debate_protocol.forms import (
    ActorCritic,
    DebateForm,
    DebateSettings,
    Direct,
    SelfDebate,
    Sequential,
    Simultaneous,
)
from debate_protocol.forms.rounds import DebateState
from debate_protocol.forms.settings import DebateStart
from debate_protocol.transcripts.files import (
    TranscriptError,
    from_json,
    to_json,
    transcript_problems,
)
from debate_protocol.transcripts.xml import from_xml, to_xml
from debate_protocol.types import (
    AgentRole,
    DebateRun,
    Schedule,
    TurnKey,
    TurnRequest,
    answering_agents,
    gives_answers,
)

from .conftest import Play


class Hearing(DebateSettings):
    """Two agents answer without seeing each other, a referee comments, both answer again."""

    type: Literal["hearing"] = "hearing"
    num_agents: int = 3
    max_rounds: int = 2

    schedule: ClassVar[Schedule] = "sequential"

    def own_roles(self) -> tuple[AgentRole, ...]:
        return (
            AgentRole("party", 2, sees={"referee": -1}),
            AgentRole("referee", answers=False, sees={"party": 1}),
        )

    def debate(self, begin: DebateStart) -> DebateRun:
        state = DebateState(self, begin)
        for round, agents in ((0, (0, 1)), (0, (2,)), (1, (0, 1))):
            requests = [state.request_turn(agent, round) for agent in agents]
            if not state.record(requests, (yield requests)):
                return state.transcript("aborted")
        return state.transcript("max_rounds")


def comment(request: TurnRequest) -> str:
    """The referee speaks freely, the others answer."""
    return (
        "0 is right"
        if request.agent == 2
        else f"<solution>{request.agent}{request.round}</solution>"
    )


@pytest.mark.parametrize(
    ("form", "roles"),
    [
        (Simultaneous(num_agents=4), [("debater", 4, True)]),
        (Sequential(num_agents=2), [("debater", 2, True)]),
        (Direct(), [("debater", 1, True)]),
        (ActorCritic(), [("actor", 1, True), ("critic", 1, False)]),
        (SelfDebate(first_turns=3, second_turns=2), [("first", 3, True), ("second", 2, True)]),
    ],
)
def test_forms_write_their_roles(form: DebateForm, roles: list[tuple[str, int, bool]]) -> None:
    rules = form.protocol()
    assert [(role.name, role.count, role.answers) for role in rules.roles] == roles
    assert sum(role.count for role in rules.roles) == form.num_agents


def test_form_of_its_own_visibility_and_a_role_without_answer_is_played(play: Play) -> None:
    played = play(Hearing(), comment)
    shown = {turn.key: turn.shown for turn in played.transcript.turns}
    first, second, referee = TurnKey(0, 0), TurnKey(1, 0), TurnKey(2, 0)
    assert shown[first] == shown[second] == ()  # parties do not see each other
    assert shown[referee] == (first, second)
    assert shown[TurnKey(0, 1)] == shown[TurnKey(1, 1)] == (referee,)
    assert [turn.failure for turn in played.transcript.turns] == [None] * 5
    assert "0 is right" in played.news(1, 1)  # a comment without sections is shown as it is
    assert "Give no solution of your own" in played.news(2, 0)
    rules = played.transcript.protocol
    assert [gives_answers(rules, agent) for agent in range(3)] == [True, True, False]
    assert answering_agents(rules, 1) == (0, 1)


@pytest.mark.parametrize("model", [Simultaneous, Sequential])
@pytest.mark.parametrize("conversation", ["append", "rebuild"])
def test_roles_of_a_recipe_speak_in_their_rounds(
    play: Play, model: type[DebateSettings], conversation: str
) -> None:
    """Two parties speak in rounds 0 and 2, a judge of both in round 1 alone."""
    roles = {"party": {"count": 2, "rounds": [0, 2]}, "judge": {"rounds": [1], "answers": False}}
    form = model.model_validate(
        {"roles": roles, "max_rounds": 3, "conversation": conversation, "num_agents": 3}
    )
    played = play(form)
    keys = [turn.key for turn in played.transcript.turns]
    assert keys == [(0, 0), (1, 0), (2, 1), (0, 2), (1, 2)]
    assert (form.turn_count(), form.sequence_count()) == (5, 3 if conversation == "append" else 5)
    shown = {turn.key: turn.shown for turn in played.transcript.turns}
    assert shown[TurnKey(2, 1)] == ((0, 0), (1, 0)) and (2, 1) in shown[TurnKey(0, 2)]
    assert transcript_problems(played.transcript) == []
    assert from_json(to_json(played.transcript)) == played.transcript
    assert answering_agents(form.protocol(), 1) == ()


@pytest.mark.parametrize("written", ["json", "xml"])
def test_roles_are_read_as_they_were_written(play: Play, written: str) -> None:
    transcript = play(Hearing(), comment).transcript
    kept = {"name": "late", "count": 1, "rounds": [1], "sees": "drawn", "of": {"more": [1]}}
    data = to_json(transcript)
    data["protocol"]["roles"].append(kept)
    again = from_json(data)
    if written == "xml":
        (again,) = from_xml(to_xml([again]))
    assert again.protocol.roles[:2] == transcript.protocol.roles
    late = AgentRole("late", rounds=(1,), sees="drawn", extra={"of": {"more": [1]}})
    assert again.protocol.roles[2] == late
    assert to_json(again)["protocol"]["roles"] == data["protocol"]["roles"]


@pytest.mark.parametrize("written", ["json", "xml"])
def test_asks_and_transcripts_name_the_adapter_of_a_role(play: Play, written: str) -> None:
    roles = {"actor": {"adapter": "first"}, "critic": {"adapter": "second"}}
    form = ActorCritic.model_validate({"roles": roles, "max_rounds": 2, "contract": "boxed"})
    asked: dict[int, set[str | None]] = {}

    def speak(request: TurnRequest) -> str:
        asked.setdefault(request.agent, set()).add(request.adapter)
        return "\\boxed{a}"

    transcript = play(form, speak).transcript
    assert asked == {0: {"first"}, 1: {"second"}}
    (again,) = (
        from_xml(to_xml([transcript])) if written == "xml" else (from_json(to_json(transcript)),)
    )
    assert [role.adapter for role in again.protocol.roles] == ["first", "second"]
    assert [role.trains for role in again.protocol.roles] == [True, True]


@pytest.mark.parametrize(
    "form",
    [Hearing(), Sequential(num_agents=3), ActorCritic(max_rounds=3, contract="boxed")],
)
def test_shown_is_derived_from_roles_when_a_file_leaves_it_out(
    play: Play, form: DebateForm
) -> None:
    def speak(request: TurnRequest) -> str:
        return comment(request) if form.type == "hearing" else "<solution>a</solution> \\boxed{a}"

    transcript = play(form, speak).transcript
    data = to_json(transcript)
    for turn in data["turns"]:
        del turn["shown"]
    assert from_json(data).turns == transcript.turns


@pytest.mark.parametrize(
    ("roles", "problem"),
    [
        ([{"name": "a"}, {"name": "a"}], "found 'a' 2 times"),
        ([{"name": "a", "count": 0}, {"name": "b", "count": 2}], "'a' with 0 agents"),
    ],
)
def test_contradicting_roles_are_reported(roles: list[dict[str, Any]], problem: str) -> None:
    protocol = {"num_agents": 2, "roles": roles}
    read = from_json({"question": {"text": "?"}, "protocol": protocol, "turns": []})
    (found,) = transcript_problems(read)
    assert problem in found


@pytest.mark.parametrize(
    ("role", "problem"),
    [
        ("actor", "roles[0]: found 'actor', expected an object"),
        ({"name": "a", "answers": 1}, "roles[0].answers: found 1, expected true or false"),
        ({"name": "a", "sees": {"a": "1"}}, "roles[0].sees: found {'a': '1'}, expected drawn"),
    ],
)
def test_roles_of_another_shape_are_refused(role: Any, problem: str) -> None:
    protocol = {"num_agents": 2, "roles": [role]}
    with pytest.raises(TranscriptError) as refused:
        from_json({"question": {"text": "?"}, "protocol": protocol, "turns": []})
    assert problem in str(refused.value)


@pytest.mark.parametrize("rounds", [[0], [0, 1, 2]])
def test_rounds_in_which_nobody_speaks_are_refused(rounds: list[int]) -> None:
    with pytest.raises(ValueError, match="rounds from 0, and a speaker in each"):
        Simultaneous.model_validate(
            {"max_rounds": 2, "roles": {"a": {"count": 2, "rounds": rounds}}}
        )


def test_adapter_of_a_frozen_policy_is_refused() -> None:
    frozen = {"critic": {"adapter": "second", "policy": "start"}}
    with pytest.raises(ValueError, match="found 'second', but policy 'start' speaks for it"):
        ActorCritic.model_validate({"roles": frozen, "contract": "boxed"})
