"""The openai engine against an endpoint that means harm."""

import gzip
import json
from collections.abc import Iterator

import pytest
from tests.rollout.chat_server import Answer, Endpoint, said, serving

from debate_rollout.engine import EndpointError, Request, Sampling
from debate_rollout.engines.endpoints import OpenAISampler
from debate_rollout.engines.openai import OpenAIEngine
from debate_rollout.testing import ask

KEY = "sk-test-4Xq9Lw2Zr7Tn5Vb8Mc3Kd6Hj"
REQUEST = Request(ask("2 + 3?"), Sampling(max_tokens=8))


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint(lambda number, seen: said("5"))


@pytest.fixture
def engine(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAISampler]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serving(endpoint) as url:
        opened = OpenAIEngine(base_url=url, model="m", retries=0).open()
        yield opened
        opened.close()


def zipped(times: int, encoding: str) -> Answer:
    body = json.dumps(said("x" * (1 << 22)).body).encode()
    for _ in range(times):
        body = gzip.compress(body)
    return Answer(200, body, {"Content-Encoding": encoding})


@pytest.mark.parametrize("encoding", ["gzip", "gzip, gzip", "deflate", "br", "zstd", "GZIP"])
def test_compressed_replies_are_neither_asked_for_nor_unpacked(
    encoding: str, endpoint: Endpoint, engine: OpenAISampler
) -> None:
    endpoint.behave = lambda number, seen: zipped(encoding.lower().count("gzip"), encoding)
    with pytest.raises(EndpointError, match="a compressed response, which was not asked for"):
        engine.generate([REQUEST])
    assert endpoint.seen[0].headers["Accept-Encoding"] == "identity"
    endpoint.behave = lambda number, seen: Answer(401, b"\x1f\x8b", {"Content-Encoding": encoding})
    with pytest.raises(EndpointError, match="the key in OPENAI_API_KEY was refused"):
        engine.generate([REQUEST])
    endpoint.behave = lambda number, seen: Answer(
        200, json.dumps(said("5").body), {"Content-Encoding": "identity"}
    )
    assert engine.generate([REQUEST])[0].text == "5"


def test_response_is_cut_off_when_it_is_longer_than_any_reply_could_be(
    endpoint: Endpoint, engine: OpenAISampler
) -> None:
    endpoint.behave = lambda number, seen: said("x" * ((1 << 20) + 4096))
    with pytest.raises(EndpointError, match="a response of more than 1 MiB"):
        engine.generate([REQUEST])
    long = Request(REQUEST.ask, Sampling(max_tokens=1000))
    assert len(engine.generate([long])[0].text) == (1 << 20) + 4096


@pytest.mark.parametrize("echo", [KEY, KEY.upper(), KEY[5:20]])
def test_key_is_blanked_in_replies_and_errors_when_an_endpoint_echoes_it(
    echo: str, endpoint: Endpoint, engine: OpenAISampler
) -> None:
    endpoint.behave = lambda number, seen: said(f"<solution>{echo}</solution>")
    (reply,) = engine.generate([REQUEST])
    assert reply.text == "<solution>[key]</solution>"
    for answer in (Answer(400, {"error": f"bad key {echo}"}), Answer(500, f"bad key {echo}")):
        endpoint.behave = lambda number, seen, answer=answer: answer
        with pytest.raises(EndpointError, match=r"bad key \[key\]") as caught:
            engine.generate([REQUEST])
        assert echo not in str(caught.value)
