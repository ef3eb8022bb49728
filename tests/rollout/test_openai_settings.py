"""Settings of the openai engine: what is refused, and that no key is ever shown."""

import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.rollout.chat_server import Endpoint, said, serving

from debate_rollout.engine import (
    EndpointError,
    EngineConfigError,
    MissingExtraError,
    Request,
    Sampling,
)
from debate_rollout.engines.openai import OpenAIEngine
from debate_rollout.testing import turn_request

KEY = "sk-" + "0123456789abcdef" * 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"api_key_env": KEY}, "expected the name of an environment variable"),
        ({"api_key_env": "gsk_0123abc"}, "expected the name of an environment variable"),
        ({"api_key_env": "AWS_SECRET_ACCESS_KEY"}, "not named as a key of api.openai.com"),
        (
            {"api_key_env": "AWS_SECRET_ACCESS_KEY", "base_url": "http://10.0.0.3/v1"},
            "AWS_SECRET_ACCESS_KEY, which is not named as a key of 10.0.0.3",
        ),
        ({"base_url": "https://evil.example/v1"}, "`api_key_host: evil.example` to send it"),
        ({"api_key_host": "other.example"}, "found OPENAI_API_KEY, which is not named as a key of"),
        ({"base_url": "api.host/v1"}, "expected an address such as"),
        ({"base_url": "file:///etc/passwd"}, "expected an address such as"),
        ({"base_url": "https://host:x/v1"}, "expected an address such as"),
        ({"base_url": "https://host/v1\r\nX: 1"}, "expected an address such as"),
        ({"base_url": f"https://me:{KEY}@host/v1"}, "found a user, a query"),
        ({"base_url": f"https://host/v1?code={KEY}"}, "found a user, a query"),
        ({"base_url": f"https://host/{KEY}/v1"}, "found a user, a query"),
        ({"extra_body": {"api_key": "abc"}}, "looks like a secret"),
        ({"extra_body": {"a": {"Authorization": "x"}}}, "looks like a secret"),
        ({"extra_body": {"a": [{"b": f"Bearer {KEY}"}]}}, "looks like a secret"),
        ({"extra_body": {KEY: 1}}, "looks like a secret"),
        ({"extra_body": {"temperature": 0}}, "temperature is set by the recipe"),
        ({"extra_body": {"stream": True}}, "stream is set by the recipe or the engine"),
        ({"extra_body": {"a": {1, 2}}}, "expected what JSON can hold"),
        ({"extra_body": {"a": float("nan")}}, "expected what JSON can hold"),
        ({"api_key": KEY}, "Extra inputs"),
    ],
)
def test_settings_that_hold_a_secret_or_cannot_work_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        OpenAIEngine(model="m", **settings)
    assert KEY not in str(caught.value) and "gsk_" not in str(caught.value)


def test_settings_may_hold_what_only_looks_a_little_like_a_secret() -> None:
    body = {
        "stop_token_ids": [1],
        "author": "a",
        "chat_template_kwargs": {"enable_thinking": False},
    }
    config = OpenAIEngine(model="m", base_url="https://host/v1/", extra_body=body)
    assert config.sent_key() == "the value of OPENAI_API_KEY is sent to https://host/v1"
    assert (config.extra_body, config.base_url) == (body, "https://host/v1")


@pytest.mark.parametrize(
    ("name", "url", "settings"),
    [
        ("TOGETHER_API_KEY", "https://api.together.xyz/v1", {}),
        ("XAI_API_KEY", "https://api.x.ai/v1", {}),
        ("AZURE_OPENAI_API_KEY", "https://me.openai.azure.com/openai/v1", {}),
        ("ANY_API_KEY", "http://node7:8000/v1", {}),
        ("HF_TOKEN", "https://router.huggingface.co/v1",
         {"api_key_host": "router.huggingface.co"}),
    ],
)  # fmt: skip
def test_key_is_sent_where_its_name_or_the_recipe_says(
    name: str, url: str, settings: dict[str, Any]
) -> None:
    config = OpenAIEngine(model="m", base_url=url, api_key_env=name, **settings)
    assert config.sent_key() == f"the value of {name} is sent to {url}"


def test_open_reads_the_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = OpenAIEngine(model="m", api_key_env="OPENAI_API_KEY")
    with pytest.raises(EngineConfigError, match="variable OPENAI_API_KEY is not set"):
        config.open()
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")  # as read from a file
    config.open().close()
    assert KEY not in repr(config) + config.model_dump_json()
    for wrong in (f"{KEY} {KEY}", f"{KEY}\r\nX-More: 1", f"“{KEY}”"):
        monkeypatch.setenv("OPENAI_API_KEY", wrong)
        with pytest.raises(EngineConfigError, match="holds characters that no key has") as caught:
            config.open()
        assert KEY not in str(caught.value)


def test_open_sends_no_key_unencrypted_over_the_internet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for host in ("example.org", "93.184.216.34", "[2606:2800:21f::1]", "localhost.example.org"):
        with pytest.raises(EngineConfigError, match="unencrypted"):
            OpenAIEngine(
                model="m", base_url=f"http://{host}/v1", api_key_host=host.strip("[]")
            ).open()
    OpenAIEngine(model="m", base_url="http://example.org/v1", api_key_env=None).open().close()
    for host in ("localhost:8000", "node7", "10.0.0.3", "[::1]:8000", "llm.svc.cluster.local"):
        OpenAIEngine(model="m", base_url=f"http://{host}/v1").open().close()


def test_open_takes_the_name_of_the_model_where_the_config_has_none() -> None:
    config = OpenAIEngine(api_key_env=None)
    engine = config.open("a-model")
    assert "'a-model'" in repr(engine)
    engine.close()
    with pytest.raises(EngineConfigError, match=r"engine\.model: found none"):
        config.open(object())


def test_open_says_what_to_install_when_httpx_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "debate_rollout.engines.endpoints", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'httpx"):
        OpenAIEngine(model="m", api_key_env=None).open()


def test_certificates_are_verified(tmp_path: Path) -> None:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made += ["-keyout", f"{tmp_path}/key", "-out", f"{tmp_path}/cert"]
    try:
        subprocess.run(made, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs openssl to make a certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    def wrap(plain: socket.socket) -> ssl.SSLSocket:
        return context.wrap_socket(plain, server_side=True)

    endpoint = Endpoint(lambda *_: said("5"))
    with serving(endpoint, wrap) as url:
        engine = OpenAIEngine(model="m", base_url=url, api_key_env=None, retries=0).open()
        with pytest.raises(EndpointError, match="CERTIFICATE_VERIFY_FAILED"):
            engine.generate([Request(turn_request(), Sampling(max_tokens=3))])
        engine.close()
    assert endpoint.seen == []
