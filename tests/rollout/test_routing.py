"""One engine of several policies: asks go to the policy that they name, and nobody else learns."""

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from debate_protocol.forms import Simultaneous
from debate_protocol.types import Question, TurnRequest
from debate_rollout.drivers import play
from debate_rollout.engine import Request, Sampling, Weights
from debate_rollout.engines import ScriptedEngine
from debate_rollout.routing import RoutedEngine

ROLES = {"learner": {"count": 2}, "rival": {"policy": "frozen"}}


def scripted(name: str, **settings: Any) -> Any:
    """An engine that says its name and whom it was asked as."""
    config = ScriptedEngine(**settings)
    return config.open(
        script=lambda turn_request: (
            f"<solution>{name} {turn_request.agent}.{turn_request.round}</solution>"
        )
    )


def request(policy: str) -> Request:
    turn_request = TurnRequest(
        Question("q", "?"), 0, 0, ({"role": "user", "content": "?"},), policy=policy
    )
    return Request(turn_request, Sampling(max_tokens=4))


def held(engine: RoutedEngine) -> list[tuple[str, int]]:
    form = Simultaneous(max_rounds=2, style="compact", personas="none", roles=ROLES)
    runs = [form.start(Question(str(i), "?"), seed=i) for i in range(3)]
    debates = play(runs, engine, max_tokens=10)
    turns = chain.from_iterable(debate.turns for debate in debates)
    return [(turn.text.removeprefix("<solution>").split()[0], turn.agent) for turn in turns]


EXPECTED = [("trained", 0), ("trained", 1), ("frozen", 2)] * 6
DELAY = {"median_s": 0.001}


@pytest.mark.parametrize(
    ("ours", "theirs", "streams"),
    [({}, {}, False), ({"delay": DELAY}, {}, False), ({"delay": DELAY}, {"delay": DELAY}, True)],
)
def test_each_role_is_spoken_by_its_policy(
    ours: dict[str, Any], theirs: dict[str, Any], streams: bool
) -> None:
    engine = RoutedEngine(scripted("trained", **ours), {"frozen": scripted("frozen", **theirs)})
    assert ("streams" in engine.capabilities) == streams
    assert held(engine) == EXPECTED
    engine.close()


def test_new_weights_are_for_the_trained_policy_alone() -> None:
    engine = RoutedEngine(scripted("trained"), {"frozen": scripted("frozen")})
    engine.load(Weights(7, {}))
    replies = engine.generate([request("frozen"), request("trained"), request("frozen")])
    assert [reply.weight_version for reply in replies] == [0, 7, 0]
    assert [reply.text.split()[0] for reply in replies] == [
        "<solution>frozen", "<solution>trained", "<solution>frozen",
    ]  # fmt: skip


def test_cancelled_request_of_another_policy_is_never_collected() -> None:
    names = ("trained", "frozen")
    trained, frozen = (scripted(name, delay=DELAY) for name in names)
    engine = RoutedEngine(trained, {"frozen": frozen})
    tickets = {name: engine.submit(request(name)) for name in names}
    engine.cancel(tickets["frozen"])
    (finished,) = engine.collect(10.0)
    assert finished.ticket == tickets["trained"]
    assert engine.collect(10.0) == []  # nothing is open: it does not wait


def test_prompts_are_made_with_the_tokenizer_of_the_policy(byte_bpe: Any) -> None:
    with_tokens = ScriptedEngine(replies=("x",)).open(None, byte_bpe)
    engine = RoutedEngine(with_tokens, {"frozen": scripted("frozen")})
    turn_request = request("trained").turn_request
    assert engine.renderer.render(turn_request) == with_tokens.renderer.render(turn_request)
    assert engine.renderer.render(replace(turn_request, policy="frozen")).prompt_ids == ()
