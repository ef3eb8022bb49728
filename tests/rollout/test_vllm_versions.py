"""Replies of vLLM servers are by the weights that were asked for, whoever is behind the URL."""

import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from tests.rollout.vllm_stand_in import Router, StandIn, serving

from debate_rollout.engine import (
    EndpointError,
    Request,
    Sampling,
    Weights,
)
from debate_rollout.engines import VllmServerEngine
from debate_rollout.engines.vllm import VllmEngine
from debate_rollout.engines.vllm.model import OtherWeightsError, ServedModel
from debate_rollout.testing import turn_request

REQUESTS = [Request(turn_request(), Sampling(max_tokens=1, seed=k), (1, 2)) for k in range(40)]


def open_engine(opened: ExitStack, narrow: Any, tokenizer: Any, url: str, **settings: Any) -> Any:
    engine = VllmServerEngine(url=url, reconnect_timeout_s=20.0, **settings).open(narrow, tokenizer)
    opened.callback(engine.close)
    return engine


def behind_a_router(opened: ExitStack) -> tuple[list[StandIn], list[str], str]:
    servers = [StandIn(), StandIn()]
    urls = [opened.enter_context(serving(one)) for one in servers]
    return servers, urls, opened.enter_context(serving(Router(urls)))


def versions(engine: Any) -> dict[int, int]:
    return dict(Counter(reply.weight_version for reply in engine.generate(REQUESTS)))


def test_no_reply_is_by_other_weights_when_servers_stand_behind_a_router(
    opened: ExitStack, narrow: Any, byte_bpe: Any, caplog: pytest.LogCaptureFixture
) -> None:
    servers, urls, router = behind_a_router(opened)
    engine = open_engine(opened, narrow, byte_bpe, router, load_urls=urls)
    assert versions(engine) == {0: 40}
    for version in (1, 2, 3):
        engine.load(Weights(version, narrow.state_dict()))
        assert versions(engine) == {version: 40}
    assert caplog.messages == []
    servers[1].start_again()
    with pytest.raises(OtherWeightsError, match="served weights 'default', expected '3-"):
        versions(engine)


def test_server_that_does_not_answer_for_a_while_is_waited_for(
    opened: ExitStack, narrow: Any, byte_bpe: Any
) -> None:
    server, first = StandIn(), ExitStack()
    url = first.enter_context(serving(server))
    engine = open_engine(opened, narrow, byte_bpe, url)
    engine.load(Weights(7, narrow.state_dict()))
    assert versions(engine) == {7: 40}
    first.close()

    def come_back() -> None:
        time.sleep(0.5)
        opened.enter_context(serving(server, int(url.rpartition(":")[2])))

    back = threading.Thread(target=come_back)
    back.start()
    assert versions(engine) == {7: 40}
    back.join()


def test_server_that_goes_away_for_good_is_waited_for_as_long_as_was_said(
    opened: ExitStack, narrow: Any, byte_bpe: Any
) -> None:
    with serving(StandIn()) as url:
        config = VllmServerEngine(url=url, reconnect_timeout_s=0.2)
        engine = config.open(narrow, byte_bpe)
        opened.callback(engine.close)
    with pytest.raises(EndpointError, match=r"waited 0\.2 s for it \(reconnect_timeout_s\)"):
        engine.generate(REQUESTS)


def test_server_that_another_run_refreshes_is_given_up_by_name(
    opened: ExitStack, narrow: Any, byte_bpe: Any
) -> None:
    server = StandIn()
    url = opened.enter_context(serving(server))
    engine = open_engine(opened, narrow, byte_bpe, url)
    engine.load(Weights(1, narrow.state_dict()))
    usual = server.answer

    def taken_over(path: str, sent: Any) -> Any:
        if path == "/inference/v1/generate":
            server.label = "1-of-another-run"
        return usual(path, sent)

    server.answer = taken_over  # type: ignore[method-assign]
    with pytest.raises(OtherWeightsError) as failed:
        engine.generate(REQUESTS[:1])
    assert "served weights '1-of-another-run', expected '1-" in str(failed.value)


def test_labels_of_old_weights_are_forgotten_and_refused(narrow: Any, byte_bpe: Any) -> None:
    served = ServedModel(VllmEngine(), narrow, byte_bpe, {})
    try:
        labels = [served.new_label(version) for version in range(200)]
        for version, label in enumerate(labels):
            served.serve(label, version)
        assert len(served.versions) == 64 and served.label == labels[-1]
        assert served.spans([(labels[-1], 0, 3)], labels[-1], 3) == [(199, 0, 3)]
        mixed = [(labels[-2], 0, 1), (labels[-1], 1, 3)]
        assert served.spans(mixed, labels[-2], 3) == [(198, 0, 1), (199, 1, 3)]
        with pytest.raises(OtherWeightsError, match=f"'{labels[-2]}', expected '{labels[-1]}'"):
            served.spans(mixed, labels[-1], 3)
    finally:
        served.close()
