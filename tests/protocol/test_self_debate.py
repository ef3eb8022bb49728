"""The self-debate: its prompts, its pair, its gate."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from debate_protocol.forms import Direct, FormConfig, SelfDebate
from debate_protocol.forms.self_debate import draw_pair
from debate_protocol.transcripts.files import from_json, to_json, transcript_problems
from debate_protocol.types import Reply, TurnRequest

Play = Callable[..., Any]


def same(left: str, right: str) -> bool:
    return left == right


def by_agent(*answers: str | None) -> Callable[[TurnRequest], str]:
    """First turns give these answers, with reasoning that names them; second turns say 42."""

    def speak(request: TurnRequest) -> str:
        if request.round:
            return "Checked: \\boxed{42}"
        answer = answers[request.agent]
        return (
            f"r{request.agent} no idea"
            if answer is None
            else f"r{request.agent} \\boxed{{{answer}}}"
        )

    return speak


def test_self_debate_samples_two_prompts_when_played(play: Play) -> None:
    form = SelfDebate(first_turns=3, second_turns=2)
    played = play(form, by_agent("41", "42", "41"))
    first, second = played.steps
    assert [(a.agent, a.round) for a in first] == [(0, 0), (1, 0), (2, 0)]
    assert [(a.agent, a.round) for a in second] == [(3, 1), (4, 1)]
    (alone,) = play(Direct(contract="boxed", personas="none"), by_agent("42")).steps[0]
    assert [a.messages for a in first] == [alone.messages] * 3
    assert second[0].messages == second[1].messages
    assert len({a.seed for a in first + second}) == 5
    assert all(a.previous is None for a in second)
    transcript = played.transcript
    assert transcript.meta["ended"] == "max_rounds"
    assert transcript.protocol.num_agents == 5
    assert transcript_problems(transcript) == []
    assert from_json(to_json(transcript)) == transcript


@pytest.mark.parametrize("style", ["full", "compact"])
def test_second_prompt_shows_both_responses_in_full_and_in_the_order_of_shown(
    play: Play, style: Any
) -> None:
    played = play(
        SelfDebate(first_turns=4, second_turns=1, style=style), by_agent("7", "7", "7", "42")
    )
    (request,) = played.steps[1]
    prompt = request.messages[-1]["content"]
    pair = [key.agent for key in request.shown]
    assert 3 in pair and len(set(pair)) == 2 and {key.round for key in request.shown} == {0}
    assert prompt.index(f"r{pair[0]}") < prompt.index(f"r{pair[1]}")
    assert [agent for agent in range(4) if f"r{agent}" in prompt] == sorted(pair)
    assert "\\boxed{42}" in prompt


def test_second_prompt_may_be_a_conversation_with_the_author_of_the_first_response(
    play: Play,
) -> None:
    form = SelfDebate(first_turns=3, second_turns=2, debate_prompt="conversation")
    played = play(form, by_agent("7", "8", "7"))
    first, second = played.steps[0][0].messages, played.steps[1]
    assert second[0].messages == second[1].messages
    *before, own, last = second[0].messages
    said = [turn.text for turn in played.transcript.turns[:3]]
    assert tuple(before) == first
    assert (own["role"], last["role"]) == ("assistant", "user")
    mine, other = (said[key.agent] for key in second[0].shown)
    assert own["content"] == mine
    assert f"<turn>\n{other}\n</turn>" in last["content"]
    assert mine not in last["content"]
    assert transcript_problems(played.transcript) == []


def test_freq_draws_one_of_each_of_the_two_most_common_answers() -> None:
    answers = dict(enumerate(["a", "b", "a", "c", "b", "a", None, None, None, None]))
    orders: Counter[str | None] = Counter()
    for seed in range(400):
        pair = draw_pair(answers, "freq", same, random.Random(seed))
        assert pair is not None
        first, second = pair
        assert {answers[first], answers[second]} == {"a", "b"}
        orders[answers[first]] += 1
    # Binomial(400, 1/2): mean 200, standard deviation 10; five of them are 50.
    assert abs(orders["a"] - 200) < 50


@pytest.mark.parametrize(
    "answers", [["a", "a", "a"], ["a", None, "a"], [None, None, None]], ids=str
)
def test_freq_draws_any_two_when_there_is_one_answer_at_most(answers: list[str | None]) -> None:
    pairs = {
        draw_pair(dict(enumerate(answers)), "freq", same, random.Random(seed)) for seed in range(99)
    }
    assert pairs == {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=9), st.integers(0, 99))
def test_draw_pair_never_shows_a_turn_twice(answers: list[str | None], seed: int) -> None:
    for pairing in ("rand", "freq"):
        pair = draw_pair(dict(enumerate(answers)), pairing, same, random.Random(seed))  # type: ignore[arg-type]
        assert (pair is None) == (len(answers) < 2)
        assert pair is None or len(set(pair)) == 2


def test_long_first_answers_are_not_paired_when_pairs_have_a_longest(play: Play) -> None:
    # Answer 7 is the most common of all, but two of its replies are longer than 3 tokens.
    answers, lengths = ("7", "7", "7", "42", "42", "8"), (9, 4, 3, 3, 2, 0)

    def speak(request: TurnRequest) -> Reply:
        if request.round:
            return Reply("\\boxed{42}")
        text, length = f"\\boxed{{{answers[request.agent]}}}", lengths[request.agent]
        # The last is of an endpoint that counts nothing: it has no length to be too long by.
        return Reply(text, token_ids=tuple(range(length)))

    settings: Any = {"first_turns": 6, "second_turns": 1, "pairing": "rand"}
    form = SelfDebate(**settings, pair_max_tokens=3)
    shown: set[int] = set()
    for seed in range(40):
        shown |= {key.agent for key in play(form, speak, seed=seed).steps[1][0].shown}
    assert shown == {2, 3, 4, 5}
    assert form.protocol().extra["pair_max_tokens"] == 3
    assert "pair_max_tokens" not in SelfDebate(**settings).protocol().extra
    nothing = play(SelfDebate(**settings | {"first_turns": 3}, pair_max_tokens=3), speak)
    assert nothing.transcript.meta["ended"] == "no_pair"


def test_self_debate_asks_at_its_gate_and_keeps_first_turns(play: Play) -> None:
    form = SelfDebate(first_turns=2, second_turns=2)
    kept = play(form, by_agent("1", "2"), decide=lambda gate: "keep")
    (gate,) = kept.gates
    assert (gate.name, len(gate.turns), gate.question.id) == ("round_0", 2, "q")
    assert (kept.transcript.meta["ended"], len(kept.transcript.turns)) == ("gate", 2)
    assert [g.name for g in play(form, by_agent("1", "2")).gates] == ["round_0"]
    without = SelfDebate(first_turns=2, second_turns=2, gate_after=())
    assert play(without, by_agent("1", "2")).gates == []
    twice = SelfDebate(first_turns=2, second_turns=2, gate_after=(0, 1))
    assert [len(g.turns) for g in play(twice, by_agent("1", "2")).gates] == [2, 4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"first_turns": 1}, "greater than or equal to 2"),
        ({"personas": "default"}, "none"),
        ({"debate_prompt": "conversation", "style": "compact"}, "debate_prompt: found convers"),
    ],
)
def test_self_debate_refuses_what_does_not_fit(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(FormConfig).validate_python({"type": "self_debate", **settings})


def test_a_pair_of_sections_is_shown_as_peers_are_in_a_debate(play: Play) -> None:
    def speak(request: TurnRequest) -> str:
        if request.agent == 2:
            return "nothing"
        return (
            f"<solution>s{request.agent}</solution>\n<evaluation>e{request.agent}</evaluation>\n"
            f"<comparison>Agent 0 > Agent 1 c{request.agent}</comparison>"
        )

    settings: Any = {"contract": "three_section", "style": "compact"}
    form = SelfDebate(first_turns=3, second_turns=1, pairing="rand", **settings)
    prompts = set()
    for seed in range(12):
        played = play(form, speak, seed=seed)
        (request,) = played.steps[1]
        shown = [key.agent for key in request.shown]
        texts = [
            "no valid response" if agent == 2 else f"s{agent}\nevaluation : e{agent}"
            for agent in shown
        ]
        lines = [f"Agent {place} : {text}" for place, text in enumerate(texts)]
        assert request.messages[-1]["content"].splitlines()[2:] == "\n".join(lines).splitlines()
        prompts.add(2 in shown)
    assert prompts == {True, False}
