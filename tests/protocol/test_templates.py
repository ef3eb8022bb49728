"""Prompt templates of the user's own: what is filled in, left out and refused."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from debate_protocol.forms import Direct, FormConfig, SelfDebate, Sequential, Simultaneous
from debate_protocol.prompts import PLACEHOLDERS, PromptTemplates
from debate_protocol.types import Question, Reply, TurnRequest

Play = Callable[..., Any]
Say = Callable[..., str]

OWN = yaml.safe_load("""
type: simultaneous
num_agents: 3
max_rounds: 2
style:
  system: |
    A panel of experts. $rules
  opening: |
    $question

    What the others said:
    $debate

    Expert $agent, round $round. $persona

    $task The answer costs $$5.
  news: |
    News of round $round:
    $debate
""")


def test_templates_are_filled_and_empty_paragraphs_left_out_when_played(
    play: Play, say: Say
) -> None:
    form = TypeAdapter(FormConfig).validate_python({**OWN, "contract": "boxed", "personas": "none"})
    played = play(form, lambda request: rf"Six sevens: \boxed{{4{request.agent}}}")
    assert played.request_turn(1, 1).messages == (
        {
            "role": "system",
            "content": "A panel of experts. Answer the question. Reason step by step. "
            "Put only the final answer inside \\boxed{…} at the end.",
        },
        {
            "role": "user",
            "content": "Question:\nWhat is 6 times 7?\n\nExpert 1, round 1.\n\n"
            "Give your answer. The answer costs $5.",
        },
        {"role": "assistant", "content": r"Six sevens: \boxed{41}"},
        {
            "role": "user",
            "content": 'News of round 2:\n<turn agent="0" round="1">\nResponse:\n'
            'Six sevens: \\boxed{40}\n</turn>\n\n<turn agent="2" round="1">\nResponse:\n'
            "Six sevens: \\boxed{42}\n</turn>",
        },
    )


def test_templates_tell_the_debate_afresh_when_rebuilt_and_are_recorded(play: Play) -> None:
    form = TypeAdapter(FormConfig).validate_python({**OWN, "conversation": "rebuild"})
    played = play(form)
    prompt = played.news(0, 1)
    assert "What the others said:\n<turn agent=" in prompt
    assert "Expert 0, round 2. You are the Methodical Analyst. Work" in prompt
    assert "Compare Agents 1 and 2" in prompt
    assert played.transcript.protocol.extra["style"] == OWN["style"]
    assert TypeAdapter(FormConfig).validate_python(form.model_dump(mode="json")) == form


def test_templates_left_out_stand_as_they_are_by_default_when_one_is_given(play: Play) -> None:
    played = play(Sequential(num_agents=2, max_rounds=2, style=PromptTemplates(system="")))
    assert [message["role"] for message in played.request_turn(1, 0).messages] == ["user"]
    told = played.news(1, 0)
    assert told.startswith("Question:\nWhat is 6 times 7?\n\nThe debate so far:\n<turn agent=")
    assert told.endswith("Evaluate the latest response of Agent 0. Write N/A in comparison.")
    assert played.news(0, 1).startswith("Round 2. Responses of other agents:\n<turn agent=")


def test_templates_serve_forms_with_one_prompt_when_asked_to(play: Play) -> None:
    style = PromptTemplates(opening="Solve.\n\n$question\n\n$debate\n\n$answer_form")
    asked = play(Direct(contract="boxed", style=style), lambda request: r"\boxed{1}").request_turn(
        0, 0
    )
    assert asked.messages[1]["content"].endswith("Put only the final answer inside \\boxed{…} at "
                                                 "the end.")  # fmt: skip
    form = SelfDebate(first_turns=2, second_turns=1, style=style, gate_after=())
    second = play(form, lambda request: rf"\boxed{{{request.agent}}}").request_turn(2, 1)
    assert second.messages[1]["content"].count("<turn agent=") == 2


@pytest.mark.parametrize(
    ("style", "message"),
    [
        (
            {"opening": "$qestion $debate"},
            r"found \$qestion, expected .* mean '\$question'",
        ),
        ({"opening": "$Question $debate"}, r"did you mean '\$question'"),
        ({"system": "It costs $5"}, r"found a \$ without a name"),
        ({"news": "$debate $x"}, r"found \$x, expected one of \$agent, .* write \$\$ for a dollar"),
        ({"opening": "Solve. $debate"}, r"opening: expected \$question"),
        ({"opening": "$question"}, r"opening: expected \$debate"),
        ({"news": "$task"}, r"news: expected \$debate"),
        ({"user": "$question"}, "Extra inputs are not permitted"),
        ("ful", "'full' or 'compact'"),
        (3, "'full' or 'compact'"),
    ],
)
def test_templates_are_refused_when_a_place_is_unknown_or_missing(style: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Simultaneous(style=style)


TEXT = st.text(st.sampled_from(list("ab $\n{}")), max_size=12) | st.sampled_from(
    ["$task", "${task}", "$$", "$debate\n\n$question", "\n\n"]
)
PARAGRAPH = st.lists(
    st.sampled_from([f"${name} " for name in PLACEHOLDERS] + ["x ", "$$ ", "\n"]), max_size=6
).map("".join)


@settings(max_examples=100, deadline=None)
@given(PARAGRAPH, PARAGRAPH, PARAGRAPH, TEXT, TEXT)
def test_templates_keep_the_prefix_and_insert_texts_as_they_are(
    system: str, opening: str, news: str, question: str, solution: str
) -> None:
    style = PromptTemplates(
        system=system, opening=f"{opening}\n\n$question\n\n$debate", news=f"{news}\n\n$debate"
    )
    form = Sequential(num_agents=2, max_rounds=2, style=style, on_failure="continue")
    run = form.start(Question("q", question), seed=0)
    requests: list[TurnRequest] = []
    waits = next(run)
    try:
        while isinstance(waits, list):
            requests += waits
            said = [f"<solution>x{solution}x</solution>" for _ in waits]
            waits = run.send([Reply(text) for text in said])
    except StopIteration:
        pass
    first, second = requests[0], requests[2]
    # The prompt of round 1 begins with that of round 0 and the reply to it, message by message.
    assert second.previous is not None
    assert second.messages[:-2] == first.messages
    assert second.messages[-2]["content"] == second.previous.text
    assert f"Question:\n{question.strip()}" in first.messages[-1]["content"].strip() + "\n"
    assert f"Solution:\nx{solution}x" in second.messages[-1]["content"]
