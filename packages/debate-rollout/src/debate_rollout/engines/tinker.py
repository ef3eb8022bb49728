"""The tinker engine: samples from an adapter on a server of the Tinker interface."""

import ipaddress
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from debate_rollout.engine import Capability, EngineConfigError, EngineSettings, needs_extra
from debate_rollout.engines.openai import KEY

if TYPE_CHECKING:
    from tinker import SamplingClient, ServiceClient
    from transformers import PreTrainedTokenizerFast

    from debate_rollout.engines.tinker_sampler import TinkerSampler


KEY_VARIABLE = "TINKER_API_KEY"
_NO_KEY = "tml-none"
"""Sent to servers of this machine or network: the client wants a key of this form."""
CALL_TIMEOUT_S = 1800.0
"""Most seconds of a call: servers may first compile for minutes."""
SERVED = "served"
"""The name of a `ServedAdapter` in `Weights.tensors`."""


@dataclass(slots=True)
class Usage:
    """Tokens sent to a server and sampled by it; hosted services charge for both."""

    prompt_tokens: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    """Tokens of forward and backward passes."""
    scored_tokens: int = 0
    """Tokens of forward passes alone."""


@dataclass(frozen=True, slots=True)
class ServedAdapter:
    """An adapter on a server, for `load` in the place of tensors.

    A sampling client is no snapshot. A server may hold one copy of an adapter for sampling and
    training, and sampling by an older client then loads its older weights over both.
    """

    client: "SamplingClient"
    usage: Usage


class TinkerEngine(EngineSettings):
    """Samples on the server of `trainer: {type: tinker}`, the source of its weights.

    Servers give log-probabilities of temperature 1 at any temperature: only 1 and 0 are taken.
    Greedy replies, at 0, have those of temperature 1 as in every engine.
    """

    libraries: ClassVar[tuple[str, ...]] = ("tinker",)
    install: ClassVar[str] = "debate-train[tinker]"
    only_temperature: ClassVar[float | None] = 1.0
    serves_trainer: ClassVar[str | None] = "tinker"

    type: Literal["tinker"] = "tinker"

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the opened engine."""
        return frozenset(("tokens", "logps", "seeds", "lora"))

    def open(
        self,
        model: Any,
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object] = {},
    ) -> "TinkerSampler":
        """Open the engine; the model's configuration alone is read, its weights are the server's.

        Raises:
            MissingExtraError: The client is not installed.
            EngineConfigError: The window is not known.
        """
        with needs_extra("the tinker engine", "tinker"):
            from debate_rollout.engines.tinker_sampler import TinkerSampler
        return TinkerSampler(self, model, tokenizer, template_kwargs)


def address_problem(url: str) -> str | None:
    """Explain why a server cannot be called at this address, None if it can."""
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname or not KEY.fullmatch(url):
        return "expected an address such as https://host/path"
    if "@" in address.netloc or address.query or address.fragment:
        return f"found a user, a query or a fragment; expected none: the key is in {KEY_VARIABLE}"
    if is_private(address.hostname):
        return None
    if address.scheme == "http":
        return "found http to another network, which sends the key unencrypted; expected https"
    if "TINKER" not in address.hostname.upper():
        return (
            f"found {address.hostname}, and {KEY_VARIABLE} goes to hosts with `tinker` in the name "
            "alone; expected one, or an address of the private network, which gets no key"
        )
    return None


def is_private(host: str) -> bool:
    """Say whether a host is this machine or an address of a private network."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return False


def served_models(url: str, timeout_s: float) -> list[str]:
    """Ask a server for the names of its models.

    Raises:
        EngineConfigError: The key is missing or is none.
        OSError: The server gives no answer in this time.
        ValueError: The answer is none of this interface.
    """
    address = f"{url.rstrip('/')}/api/v1/get_server_capabilities"
    request = Request(address, headers={"X-API-Key": _key_for(url)})
    with urlopen(request, timeout=timeout_s) as response:
        content = json.loads(response.read(1 << 20))
    models = content.get("supported_models") if isinstance(content, dict) else None
    if not isinstance(models, list):
        raise ValueError("found no list of models; expected a server of the Tinker interface")
    return [str(model.get("model_name")) for model in models if isinstance(model, dict)]


def connect(url: str) -> "ServiceClient":
    """Open a client of the server at `url`; nothing is sent before its first call.

    The key comes from the environment alone, and goes to hosts outside this network alone.

    Raises:
        EngineConfigError: The key is missing or is none.
    """
    with needs_extra("the tinker engine", "tinker"):
        import tinker
    # The client would say at each checkpoint that a download may take a while.
    logging.getLogger("tinker.lib.public_interfaces.rest_client").setLevel(logging.ERROR)
    # The client would send reports about the program to the server.
    os.environ["TINKER_TELEMETRY"] = "0"
    key = _key_for(url)
    # Named in both ways: the client fills a header that is not given from the environment.
    return tinker.ServiceClient(base_url=url, api_key=key, default_headers={"X-API-Key": key})


def _key_for(url: str) -> str:
    if is_private(urlsplit(url).hostname or ""):
        return _NO_KEY
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not re.fullmatch(r"tml-[!-~]+", key):
        problem = "is no key of this interface" if key else "is not set"
        raise EngineConfigError(
            f"trainer.base_url: the environment variable {KEY_VARIABLE} {problem}; expected a key "
            f"that begins with tml-, for {url}"
        )
    return key
