"""Rules of debates beyond who speaks when: history, failures, endings, gates, personas."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from debate_protocol.forms import ActorCritic, Direct, SelfDebate, Sequential, Simultaneous
from debate_protocol.types import Gate, Question, Reply, Transcript, TurnKey, TurnRequest

Play = Callable[..., Any]
Say = Callable[..., str]


def test_appended_news_hold_the_last_round_and_shown_all_when_history_is_one(play: Play) -> None:
    played = play(Simultaneous(num_agents=2, max_rounds=3, history_rounds=1))
    request = played.request_turn(0, 2)
    assert "s11" in request.messages[-1]["content"] and "s10" not in request.messages[-1]["content"]
    # What was told earlier still stands in the dialogue, so it is shown.
    assert "s10" in request.messages[-3]["content"]
    assert request.shown == (TurnKey(1, 0), TurnKey(1, 1))


@pytest.mark.parametrize(
    ("own_rounds", "own"), [(-1, {0, 1, 2}), (0, set()), (1, {2}), (2, {1, 2}), (9, {0, 1, 2})]
)
def test_rebuilt_prompt_holds_as_many_own_turns_as_the_form_says(
    play: Play, own_rounds: int, own: set[int]
) -> None:
    # SDRL, eq. 2: in round t agent i reads what N(i), itself included, said in round t - 1 alone.
    form = Simultaneous(
        num_agents=3, max_rounds=4, history_rounds=1, own_rounds=own_rounds, conversation="rebuild"
    )
    told = play(form).news(1, 3)
    assert {round for round in range(4) if f"s1{round}" in told} == own
    others = {(agent, round) for agent in (0, 2) for round in range(4)}
    assert {(a, r) for a, r in others if f"s{a}{r}" in told} == {(0, 2), (2, 2)}
    assert form.protocol().extra.get("own_rounds", -1) == own_rounds


@pytest.mark.parametrize("conversation", ["append", "rebuild"])
def test_fields_of_turns_are_cut_each_and_questions_never_when_there_is_a_limit(
    play: Play, say: Say, conversation: Any
) -> None:
    form = Simultaneous(
        num_agents=2,
        max_rounds=2,
        max_chars_per_field=4,
        conversation=conversation,
        blind_review=False,
    )
    question = Question("q", "a long question", meta={"passage": "a long passage"})
    played = play(form, lambda request: say("solved", "judged", "1234"), question)
    asked = "".join(message["content"] for message in played.request_turn(0, 1).messages)
    assert "a long question" in asked and "a long passage" in asked
    told = played.news(0, 1).split('<turn agent="1"')[1]
    assert "Solution:\nsolv [… 2 characters cut]\n\nEvaluation:\njudg [… 2" in told
    assert "Comparison:\n1234\n</turn>" in told
    # One's own turn is cut like the others' when it is told, and whole in one's own dialogue.
    assert ("solved" in asked) == (conversation == "append")


@pytest.mark.parametrize(("form", "turns"), [(Simultaneous, 3), (Sequential, 2)])
def test_debate_aborts_when_a_prompt_finds_no_room(
    play: Play, say: Say, form: Any, turns: int
) -> None:
    def speak(request: TurnRequest) -> str | Reply:
        return Reply("", finish="context_overflow") if request.agent == 1 else say("1")

    played = play(form(num_agents=3, max_rounds=2, on_failure="abort"), speak)
    assert played.transcript.meta["ended"] == "aborted"
    assert len(played.transcript.turns) == turns
    assert played.transcript.turns[1].failure == "context_overflow"


@pytest.mark.parametrize("style", ["full", "compact"])
def test_agent_without_room_is_not_blamed_and_goes_on_when_failures_are_let_pass(
    play: Play, say: Say, style: Any
) -> None:
    def speak(request: TurnRequest) -> str | Reply:
        if (request.agent, request.round) == (1, 1):
            return Reply("cut", finish="context_overflow")
        return say(f"s{request.agent}{request.round}")

    played = play(Simultaneous(num_agents=2, max_rounds=3, style=style), speak)
    after = played.request_turn(1, 2)
    assert "could be read" not in after.messages[-1]["content"]
    assert [message["role"] for message in after.messages].count("assistant") == 1
    # Both rounds that it has not answered are in the last message.
    assert after.messages[:-1] == played.request_turn(1, 1).messages[:-1]
    assert after.previous is played.request_turn(1, 1).previous is not None
    assert "s00" in after.messages[-1]["content"] and "s01" in after.messages[-1]["content"]
    assert after.shown == (TurnKey(0, 0), TurnKey(0, 1))
    assert "no valid response" in played.news(0, 2) and "cut" not in played.news(0, 2)
    if style == "compact":
        assert after.messages[-1]["content"] == "Agent 0 : s00\nAgent 0 : s01"


@pytest.mark.parametrize(
    ("answers", "ended"),
    [
        # The reasoning differs, what is boxed does not.
        (["Six sevens: \\boxed{42}", "So \\boxed{ 42}", "\\boxed{42}"], "agreed"),
        (["Six sevens: \\boxed{42}", "So \\boxed{43}", "\\boxed{42}"], "max_rounds"),
        (["42", "42 ", "42"], "agreed"),
        (["42", "", "42"], "max_rounds"),  # a failed turn agrees with nobody
    ],
)
def test_debate_ends_when_all_final_answers_agree(
    play: Play, say: Say, answers: list[str], ended: str
) -> None:
    form = Simultaneous(num_agents=3, max_rounds=2, stop_when_agreed=True)
    played = play(form, lambda request: say(answers[request.agent]))
    assert played.transcript.meta["ended"] == ended


def run_out(run: Any, sends: list[Any]) -> tuple[list[Any], Transcript | None]:
    """What a form yields when these are sent one by one, and its transcript if it ends."""
    yields = [next(run)]
    for sent in sends:
        try:
            yields.append(run.send(sent))
        except StopIteration as end:
            return yields, end.value
    return yields, None


def test_gate_leaves_nothing_open_when_its_debate_is_dropped() -> None:
    run = Simultaneous(num_agents=2, gate_after=[0]).start(Question("q", "?"), seed=0)
    yields, transcript = run_out(run, [[Reply("<solution>1</solution>")] * 2])
    assert isinstance(yields[-1], Gate) and transcript is None
    run.close()
    with pytest.raises(StopIteration):
        next(run)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.7}, "found 0.7, but personas bring their own; expected personas: none"),
        ({"personas": [{"name": ""}]}, "at least 1 character"),
        ({"personas": [{"name": "A", "temprature": 1}]}, "Extra inputs are not permitted"),
        ({"personas": None}, "'default' or 'none'"),
        ({"personas": []}, "at least 1 item"),
    ],
)
def test_setting_is_refused_when_it_would_not_be_used(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        Simultaneous(**settings)


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
