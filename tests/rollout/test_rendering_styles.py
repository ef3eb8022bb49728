"""Appended debates extend their tokens, in every prompt style, topology and kind of contract."""

from typing import Any

import pytest

from debate_protocol.forms import Sequential, Simultaneous
from debate_protocol.types import Gate, Question, Reply, TurnRequest
from debate_rollout.rendering import Renderer

TEMPLATES = {"system": "Be brief.", "opening": "$question\n\n$debate", "news": "$debate"}


def sampled(renderer: Renderer, request: TurnRequest, prompt_ids: tuple[int, ...]) -> Reply:
    """A reply of one token a byte, or one whose prompt found no room."""
    if (request.agent, request.round) == (1, 1):
        return Reply("", finish="context_overflow", prompt_ids=prompt_ids)
    text = f"<solution>{request.agent} < {request.round}\n\\boxed{{1}}</solution>"
    pieces = [renderer.tokenizer.tokenize(byte)[0] for byte in text]
    ids = renderer.tokenizer.convert_tokens_to_ids(pieces)
    return Reply(text, prompt_ids=prompt_ids, token_ids=tuple(ids))


@pytest.mark.parametrize("style", ["full", "compact", TEMPLATES])
@pytest.mark.parametrize(
    ("form", "topology"),
    [
        (Simultaneous, {}),
        (Sequential, {"topology": "central", "center": 1, "on_failure": "continue"}),
        (Simultaneous, {"topology": "sparse", "degree": 2, "contract": "boxed"}),
        (Simultaneous, {"contract": {"name": "own", "sections": ["solution"]}}),
    ],
)
def test_render_extends_every_later_turn_when_a_debate_is_appended(
    byte_bpe: Any, style: Any, form: Any, topology: dict[str, Any]
) -> None:
    renderer = Renderer(byte_bpe)
    debate = form(num_agents=3, max_rounds=4, style=style, **topology)
    run = debate.start(Question("q", "What is 6 times 7?"), seed=0)
    waits = next(run)
    extended = 0
    while True:
        assert not isinstance(waits, Gate)
        replies = []
        for request in waits:
            rendered = renderer.render(request)
            if request.previous is not None:
                before = request.previous.prompt_ids + request.previous.token_ids
                assert rendered.extended
                assert rendered.prompt_ids[: len(before)] == before
                extended += 1
            replies.append(sampled(renderer, request, rendered.prompt_ids))
        try:
            waits = run.send(replies)
        except StopIteration:
            break
    # All turns but the first of each agent; also the one after a prompt that found no room.
    assert extended == 3 * 3
