"""Topologies: who sees whom, in every schedule, for forms and for readers of files."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_protocol.forms import Sequential, Simultaneous, neighbours
from debate_protocol.transcripts.files import (
    TranscriptError,
    from_json,
    to_json,
    transcript_problems,
)
from debate_protocol.types import Gate, Protocol, Question, Reply, Transcript, TurnKey, TurnRequest

Play = Callable[..., Any]


def graph(topology: str, agents: int, **rules: Any) -> list[tuple[int, ...]]:
    found = Protocol(agents, topology=topology, **rules)
    return [neighbours(found, agent) for agent in range(agents)]


@pytest.mark.parametrize(
    ("agents", "degree", "seen_by_0", "seen_by_last"),
    [
        (2, 1, (1,), (0,)),
        (5, 2, (1, 4), (0, 3)),
        (6, 2, (1, 5), (0, 4)),
        (6, 3, (1, 3, 5), (0, 2, 4)),  # both sides and the opposite, 0 + 3 and 5 + 3 - 6
        (7, 4, (1, 2, 5, 6), (0, 1, 4, 5)),
        (6, 5, (1, 2, 3, 4, 5), (0, 1, 2, 3, 4)),
    ],
)
def test_sparse_is_the_circulant_graph_when_worked_by_hand(
    agents: int, degree: int, seen_by_0: tuple[int, ...], seen_by_last: tuple[int, ...]
) -> None:
    found = graph("sparse", agents, degree=degree)
    assert (found[0], found[-1]) == (seen_by_0, seen_by_last)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topology": "sparse"}, "found none; topology sparse expects .* even number up to 4"),
        ({"topology": "sparse", "degree": 3, "num_agents": 3}, "an even number up to 2"),
        ({"topology": "sparse", "degree": 0}, "found 0"),
        ({"topology": "all", "center": 0}, "only central has a center"),
        ({"topology": "central", "center": -1}, "expected an agent, 0 to 4"),
    ],
)
def test_topology_is_refused_when_it_does_not_fit_the_agents(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Simultaneous(**settings)


# Which others an agent has been shown decides what it is asked for (round-0 rule): none, a
# solution; one, its evaluation; two or more, comparisons.
def asked(request: TurnRequest) -> str:
    task = request.messages[-1]["content"].rsplit("\n\n", 1)[-1]
    if "Compare" in task:
        return "compare"
    return "evaluate" if "Evaluate" in task else "propose"


@pytest.mark.parametrize(
    ("form", "rounds"),
    [
        # Nobody sees anybody in round 0; then the center, agent 0, sees two others.
        (Simultaneous(num_agents=3, max_rounds=2, topology="central"),
         ["propose propose propose", "compare evaluate evaluate"]),
        # The center speaks first and is seen at once; it sees the round from the next on.
        (Sequential(num_agents=3, max_rounds=2, topology="central"),
         ["propose evaluate evaluate", "compare evaluate evaluate"]),
        # The center speaks last and brings the round together; the others see it a round later.
        (Sequential(num_agents=3, max_rounds=2, topology="central", center=2),
         ["propose propose compare", "evaluate evaluate compare"]),
        (Simultaneous(num_agents=5, max_rounds=2, topology="ring"),
         [" ".join(["propose"] * 5), " ".join(["compare"] * 5)]),
        (Sequential(num_agents=5, max_rounds=2, topology="ring"),
         ["propose evaluate evaluate evaluate compare", " ".join(["compare"] * 5)]),
        (Simultaneous(num_agents=4, max_rounds=2, topology="sparse", degree=1),
         [" ".join(["propose"] * 4), " ".join(["evaluate"] * 4)]),
        (Sequential(num_agents=4, max_rounds=1), ["propose evaluate compare compare"]),
        (Simultaneous(num_agents=4, max_rounds=2, history_rounds=0, conversation="rebuild"),
         [" ".join(["propose"] * 4)] * 2),
    ],
)  # fmt: skip
def test_task_follows_the_number_of_agents_shown_when_topology_and_schedule_vary(
    play: Play, form: Simultaneous | Sequential, rounds: list[str]
) -> None:
    played = play(form)
    for number, expected in enumerate(rounds):
        found = [asked(played.request_turn(agent, number)) for agent in range(form.num_agents)]
        assert " ".join(found) == expected


def test_central_agent_alone_is_told_to_bring_responses_together_when_it_has_some(
    play: Play,
) -> None:
    played = play(Sequential(num_agents=3, max_rounds=2, topology="central", center=1))
    told = [
        (request.agent, request.round)
        for step in played.steps
        for request in step
        if "read only your responses" in request.messages[-1]["content"]
    ]
    assert told == [(1, 0), (1, 1)]
    # Agent 2 follows the center in its round; agent 0 never sees agent 2.
    assert played.request_turn(2, 0).shown == (TurnKey(1, 0),)
    assert played.request_turn(0, 1).shown == (TurnKey(1, 0),)
    assert played.transcript.protocol.center == 1


@st.composite
def forms(draw: st.DrawFn) -> Simultaneous | Sequential:
    agents = draw(st.integers(2, 6))
    topology = draw(st.sampled_from(["all", "ring", "sparse", "central"]))
    history = draw(st.sampled_from([-1, 0, 1, 2]))
    append = history in (-1, 1) and draw(st.booleans())
    fits = [k for k in range(1, agents) if k % 2 == 0 or agents % 2 == 0]
    chosen: dict[str, Any] = {
        "num_agents": agents,
        "max_rounds": draw(st.integers(1, 4)),
        "topology": topology,
        "degree": draw(st.sampled_from(fits)) if topology == "sparse" else None,
        "center": draw(st.none() | st.integers(0, agents - 1)) if topology == "central" else None,
        "history_rounds": history,
        "conversation": "append" if append else "rebuild",
        "on_failure": draw(st.sampled_from(["abort", "continue"])),
    }
    return draw(st.sampled_from([Simultaneous, Sequential]))(**chosen)


@settings(max_examples=150, deadline=None)
@given(forms(), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=3), st.data())
def test_shown_is_the_same_for_form_and_reader_when_a_file_leaves_it_out(
    form: Simultaneous | Sequential, failing: set[tuple[int, int]], data: st.DataObject
) -> None:
    finish = data.draw(st.sampled_from(["stop", "context_overflow"]))
    run = form.start(Question("q", "?"), seed=0)
    requests = next(run)
    while True:
        assert not isinstance(requests, Gate)
        replies = [
            Reply("junk", finish=finish)
            if (request.agent, request.round) in failing
            else Reply("<solution>1</solution>")
            for request in requests
        ]
        try:
            requests = run.send(replies)
        except StopIteration as end:
            transcript: Transcript = end.value
            break
    told = to_json(transcript)
    for turn in told["turns"]:
        del turn["shown"]
    assert from_json(told) == transcript
    assert from_json(to_json(transcript)) == transcript
    assert transcript_problems(transcript) == []
    for turn in transcript.turns:
        # What is listed as shown was in the context, and nothing else was.
        blocks = {
            TurnKey(agent, number)
            for agent in range(form.num_agents)
            for number in range(form.max_rounds)
            for message in turn.prompt or ()
            if f'<turn agent="{agent}" round="{number + 1}">' in message["content"]
        }
        assert {key for key in blocks if key.agent != turn.agent} == set(turn.shown)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ({"num_agents": 3, "topology": "sparse"}, "without shown, but degree: found none"),
        ({"num_agents": 3, "topology": "sparce"}, "did you mean 'sparse'"),
        ({"num_agents": 3, "topology": "central", "center": "1"}, "protocol.center: found '1'"),
    ],
)
def test_from_json_says_what_is_wrong_when_shown_cannot_be_derived(
    protocol: dict[str, Any], message: str
) -> None:
    turns = [{"agent": 0, "round": 0, "text": ""}]
    with pytest.raises(TranscriptError, match=message):
        from_json({"question": {"text": "?"}, "protocol": protocol, "turns": turns})
