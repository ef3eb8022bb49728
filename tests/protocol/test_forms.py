"""Forms: who speaks when and sees what, history, failures, endings, gates, personas, refusals."""

import re
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from debate_protocol.forms import (
    ActorCritic,
    Direct,
    FormConfig,
    SelfDebate,
    Sequential,
    Simultaneous,
    turn_seed,
)
from debate_protocol.types import Gate, Question, Reply, Transcript, TurnKey, TurnRequest

Play = Callable[..., Any]
Say = Callable[..., str]


def in_common(texts: list[str]) -> str:
    """What all texts begin with."""
    columns = zip(*texts, strict=False)
    return "".join(x[0] for x in takewhile(lambda column: len({*column}) == 1, columns))


def test_simultaneous_asks_all_at_once_and_shows_earlier_rounds_when_played(play: Play) -> None:
    played = play(Simultaneous(num_agents=3, max_rounds=3))
    assert [[(a.agent, a.round) for a in step] for step in played.steps] == [
        [(0, r), (1, r), (2, r)] for r in range(3)
    ]
    assert played.request_turn(1, 0).shown == ()
    assert played.request_turn(1, 2).shown == (
        TurnKey(0, 0), TurnKey(2, 0), TurnKey(0, 1), TurnKey(2, 1),
    )  # fmt: skip
    news = played.news(1, 2)
    assert [name for name in ("s01", "s21", "e01") if name in news] == ["s01", "s21", "e01"]
    assert [name for name in ("s00", "s20", "s11", "c01", "c21") if name in news] == []
    assert len(played.transcript.turns) == 9
    assert played.transcript.meta["ended"] == "max_rounds"


def test_sequential_asks_one_at_a_time_and_shows_the_round_so_far_when_played(play: Play) -> None:
    played = play(Sequential(num_agents=3, max_rounds=2))
    assert [len(step) for step in played.steps] == [1] * 6
    assert played.request_turn(0, 0).shown == ()
    assert played.request_turn(2, 0).shown == (TurnKey(0, 0), TurnKey(1, 0))
    assert played.request_turn(1, 1).shown == (TurnKey(0, 0), TurnKey(2, 0), TurnKey(0, 1))
    # Appended news: what was said since agent 1 last spoke.
    assert "s20" in played.news(1, 1) and "s01" in played.news(1, 1)
    assert "s00" not in played.news(1, 1)
    assert played.transcript.protocol.schedule == "sequential"


@pytest.mark.parametrize(
    ("history", "shown"),
    [(-1, [(0, 0), (0, 1)]), (0, []), (1, [(0, 1)]), (2, [(0, 0), (0, 1)])],
)
def test_history_limits_what_is_shown_when_rebuilt(
    play: Play, history: int, shown: list[tuple[int, int]]
) -> None:
    form = Simultaneous(num_agents=2, max_rounds=3, history_rounds=history, conversation="rebuild")
    played = play(form)
    assert played.request_turn(1, 2).shown == tuple(shown)
    prompt = played.news(1, 2)
    assert [f"s{a}{r}" for a, r in [(0, 0), (0, 1)] if f"s{a}{r}" in prompt] == [
        f"s{a}{r}" for a, r in shown
    ]
    assert "s10" in prompt and "s11" in prompt  # its own turns are always there


@pytest.mark.parametrize("form", [Simultaneous, Sequential])
def test_append_extends_each_prompt_strictly_when_rounds_go_on(
    play: Play, form: type[Simultaneous] | type[Sequential]
) -> None:
    played = play(form(num_agents=3, max_rounds=3, conversation="append"))
    for agent in range(3):
        for round in (1, 2):
            before, now = played.request_turn(agent, round - 1), played.request_turn(agent, round)
            assert now.previous is not None
            said = {"role": "assistant", "content": now.previous.text}
            assert now.messages[:-1] == (*before.messages, said)
            assert now.messages[-1]["role"] == "user"
            assert f"s{agent}{round - 1}" in now.previous.text
        assert played.request_turn(agent, 0).previous is None


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("history", [-1, 1])
def test_shared_debate_stands_in_front_of_what_one_agent_is_told(
    play: Play, style: str, history: int
) -> None:
    settings = {"history_rounds": history, "own_rounds": history, "style": style}
    form = Simultaneous(num_agents=5, max_rounds=3, conversation="shared", **settings)
    played = play(form)
    read: dict[int, str] = {}
    for number in range(3):
        told = [
            "".join(m["content"] for m in played.request_turn(a, number).messages) for a in range(5)
        ]
        read[number] = in_common(told)
        rounds = range(number) if history < 0 else range(max(0, number - 1), number)
        said = [f"s{agent}{earlier}" for earlier in rounds for agent in range(5)]
        assert [one for one in said if one in read[number]] == said
        # Nobody reads a comparison again, and what is left is short and names the reader.
        assert not re.search(r"c\d\d", told[0])
        for agent, text in enumerate(told):
            assert f"Agent {agent}" in "Agent " + text[len(read[number]) :]
            assert not re.search(r"[se]\d\d", text[len(read[number]) :])
    if history < 0:
        assert read[2].startswith(read[1].rsplit("\n", 1)[0])


@pytest.mark.parametrize(
    ("form", "ended", "turns"),
    [
        (Simultaneous(num_agents=3, max_rounds=2), "max_rounds", 6),
        (Simultaneous(num_agents=3, max_rounds=2, on_failure="abort"), "aborted", 3),
        (Sequential(num_agents=3, max_rounds=2), "aborted", 2),
        (Sequential(num_agents=3, max_rounds=2, on_failure="continue"), "max_rounds", 6),
    ],
)
def test_debate_goes_on_or_ends_when_a_turn_fails(
    play: Play, say: Say, form: Simultaneous | Sequential, ended: str, turns: int
) -> None:
    def speak(request: TurnRequest) -> str:
        return (
            "I cannot."
            if (request.agent, request.round) == (1, 0)
            else say(f"s{request.agent}{request.round}")
        )

    played = play(form, speak)
    assert played.transcript.meta["ended"] == ended
    assert len(played.transcript.turns) == turns
    failures = {turn.key: turn.failure for turn in played.transcript.turns if turn.failure}
    assert failures == {TurnKey(1, 0): "no_solution"}
    if ended == "max_rounds":
        # Agent 2 hears of it in its next turn: in round 0 if agents speak one by one, else in 1.
        told = played.news(2, 0) + played.news(2, 1)
        assert told.count("no valid response") == 1 and "I cannot" not in told
        assert TurnKey(1, 0) in played.request_turn(2, 1).shown


def test_overflow_is_a_failed_turn_without_tokens_when_the_prompt_has_no_room(
    play: Play, say: Say
) -> None:
    def speak(request: TurnRequest) -> str | Reply:
        if (request.agent, request.round) != (0, 0):
            return say(f"s{request.agent}{request.round}")
        return Reply("", finish="context_overflow", prompt_ids=(1, 2), token_ids=(3,), logps=(0.1,))

    played = play(Simultaneous(num_agents=2, max_rounds=2), speak)
    turn = played.transcript.turns[0]
    assert (turn.failure, turn.text) == ("context_overflow", "")
    assert turn.reply is not None and turn.reply.token_ids == () and turn.reply.logps == ()
    # Two user messages in a row would break templates: the news join the unanswered one.
    request = played.request_turn(0, 1)
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert "6 times 7" in request.messages[1]["content"] and "s10" in request.messages[1]["content"]
    assert request.previous is None


@pytest.mark.parametrize(
    ("no_in_round", "ended", "turns"), [(None, "consensus", 3), (0, "consensus", 6)]
)
def test_debate_ends_at_consensus_when_all_of_a_round_say_yes(
    play: Play, no_in_round: int | None, ended: str, turns: int
) -> None:
    def speak(request: TurnRequest) -> str:
        word = "NO" if request.round == no_in_round and request.agent == 2 else "YES"
        return f"<solution>1</solution><consensus>{word}</consensus>"

    form = Sequential(num_agents=3, max_rounds=3, contract="five_section")
    transcript = play(form, speak).transcript
    assert transcript.meta["ended"] == ended
    assert len(transcript.turns) == turns


def test_turn_seed_is_the_same_everywhere_and_differs_when_the_turn_does(play: Play) -> None:
    # printf 0:0:0 | b2sum -l 32 gives d03a6fd3; without its highest bit that is 503a6fd3.
    assert turn_seed(0, 0, 0) == 0x503A6FD3
    seeds = {turn_seed(s, a, r) for s in range(5) for a in range(5) for r in range(5)}
    assert len(seeds) == 125
    requests = [
        a for step in play(Simultaneous(num_agents=3, max_rounds=2), seed=7).steps for a in step
    ]
    assert [request.seed for request in requests] == [
        turn_seed(7, request.agent, request.round) for request in requests
    ]


def test_personas_give_temperatures_when_default_none_or_listed(play: Play) -> None:
    def temperatures(**settings: Any) -> list[float]:
        form = Simultaneous(num_agents=6, max_rounds=1, **settings)
        return [request.temperature for request in play(form).steps[0]]

    assert temperatures() == [0.6, 1.0, 0.9, 1.0, 0.8, 0.6]
    assert temperatures(personas="none") == [1.0] * 6
    assert temperatures(personas="none", temperature=0.7) == [0.7] * 6
    listed = [{"name": "A", "temperature": 0.1}, {"name": "B", "style": "Be brief."}]
    assert temperatures(personas=listed) == [0.1, 1.0, 0.1, 1.0, 0.1, 1.0]


@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("contract", ["three_section", "five_section", "boxed"])
def test_direct_asks_what_agent_0_is_asked_first_when_debating(
    play: Play, style: str, contract: str
) -> None:
    settings: dict[str, Any] = {"style": style, "contract": contract}
    direct = play(Direct(**settings))
    debate = play(Simultaneous(num_agents=3, max_rounds=1, **settings))
    assert direct.request_turn(0, 0) == debate.request_turn(0, 0)
    assert direct.transcript.protocol.num_agents == 1
    assert len(direct.transcript.turns) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "simultaneous", "num_agents": 1}, "a debate needs at least 2 agents"),
        ({"type": "simultaneous", "history_rounds": 2}, "use conversation: rebuild"),
        ({"type": "simultaneous", "own_rounds": 1}, "own_rounds -1, found 1"),
        ({"type": "simultaneous", "contract": "tree_section"}, "did you mean 'three_section'"),
        ({"type": "simultaneous", "personas": []}, "at least 1 item"),
        ({"type": "direkt"}, "'simultaneous', 'sequential', 'direct'"),
    ],
)
def test_form_is_refused_when_its_settings_make_no_sense(
    config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(FormConfig).validate_python(config)


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
