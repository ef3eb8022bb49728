"""Gates of debates: where they stand, what they hold, what their answers do."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from debate_protocol.forms import ActorCritic, Direct, SelfDebate, Sequential, Simultaneous

Play = Callable[..., Any]


@pytest.mark.parametrize("form", [Simultaneous, Sequential])
def test_debates_yield_a_gate_after_the_rounds_that_are_named(play: Play, form: Any) -> None:
    played = play(form(num_agents=2, max_rounds=3, gate_after=(0, 2)))
    assert [(g.name, len(g.turns)) for g in played.gates] == [("round_0", 2), ("round_2", 6)]
    assert len(played.transcript.turns) == 6
    assert play(form(num_agents=2, max_rounds=3)).gates == []


@pytest.mark.parametrize("form", [Simultaneous, Sequential])
def test_debates_end_with_the_turns_they_have_when_a_gate_keeps(play: Play, form: Any) -> None:
    kept = play(form(num_agents=2, max_rounds=3, gate_after=(1,)), decide=lambda gate: "keep")
    assert (kept.transcript.meta["ended"], len(kept.transcript.turns)) == ("gate", 4)
    assert kept.transcript == kept.gates[0].transcript


def test_a_single_answer_may_have_a_gate(play: Play) -> None:
    played = play(Direct(gate_after=(0,)))
    assert [g.name for g in played.gates] == ["round_0"]
    assert played.transcript.meta["ended"] == "max_rounds"


def test_gates_after_rounds_that_never_come_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"gate_after: found 3.*expected 0 to 2"):
        Simultaneous(max_rounds=3, gate_after=(0, 3))


@pytest.mark.parametrize(
    "form",
    [
        Simultaneous(num_agents=3, max_rounds=2),
        Sequential(num_agents=2, max_rounds=3),
        Direct(),
        SelfDebate(first_turns=3, second_turns=2, contract="boxed"),
        ActorCritic(max_rounds=3),
        ActorCritic(max_rounds=3, continuations=2),
        ActorCritic(max_rounds=4, guided=True, continuations=2),
        ActorCritic(max_rounds=3, guided=True, guide_round_zero=True, continuations=1),
        ActorCritic(max_rounds=1, guided=True, continuations=1),
        ActorCritic(max_rounds=1, guided=True, guide_round_zero=True, continuations=1),
    ],
    ids=repr,
)
def test_turn_count_is_what_is_asked_for(play: Play, form: Any) -> None:
    def speak(request: Any) -> str:
        return f"<solution>x</solution> \\boxed{{{request.agent}}}"

    assert sum(len(step) for step in play(form, speak).steps) == form.turn_count()
