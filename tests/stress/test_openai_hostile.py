"""Endpoints that answer with anything: replies fail, and no exception leaves the engine."""

from collections.abc import Iterator

import pytest
from tests.rollout.chat_server import Answer, Endpoint, said, serving

from debate_rollout.engine import EndpointError, Request, Sampling
from debate_rollout.engines.endpoints import OpenAISampler
from debate_rollout.engines.openai import OpenAIEngine
from debate_rollout.testing import turn_request

pytestmark = pytest.mark.slow

KEY = "sk-test-4Xq9Lw2Zr7Tn5Vb8Mc3Kd6Hj"
REQUEST = Request(turn_request("2 + 3?"), Sampling(max_tokens=8))


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint(lambda number, request: said("5"))


@pytest.fixture
def engine(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAISampler]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(endpoint) as url:
        opened = OpenAIEngine(base_url=url, model="m", retries=0).open()
        yield opened
        opened.close()


@pytest.mark.parametrize("echo", [KEY, KEY.upper()])
def test_key_is_blanked_in_replies_and_errors_when_an_endpoint_echoes_it(
    echo: str, endpoint: Endpoint, engine: OpenAISampler
) -> None:
    endpoint.behave = lambda number, request: said(f"<solution>{echo}</solution>")
    (reply,) = engine.generate([REQUEST])
    assert reply.text == "<solution>[key]</solution>"
    for answer in (Answer(400, {"error": f"bad key {echo}"}), Answer(500, f"bad key {echo}")):
        endpoint.behave = lambda number, request, answer=answer: answer
        with pytest.raises(EndpointError, match=r"bad key \[key\]") as caught:
            engine.generate([REQUEST])
        assert echo not in str(caught.value)
