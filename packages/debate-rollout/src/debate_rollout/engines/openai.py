"""The openai engine: any endpoint that speaks OpenAI's chat completions; no secrets."""

import ipaddress
import json
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from debate_rollout.engine import Capability, EngineConfigError, EngineSettings, needs_extra

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from debate_rollout.engines.endpoints import OpenAISampler


LeftOut = Literal["max_tokens", "temperature", "seed", "stop"]

_OURS = frozenset(
    ("model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
     "min_p", "seed", "stop", "n", "stream")
)  # fmt: skip
"""Fields of a request that the debate and the recipe set elsewhere."""
_SECRET_NAME = re.compile(
    r'"[^"]*(api[_-]?key|access[_-]?(key|token)|authori[sz]ation|bearer|credential|password|secret)'
    r'[^"]*":',
    re.I,
)
_SECRET_VALUE = re.compile(r"\b(?:sk|pk|gsk|hf|xai|ghp)[-_][A-Za-z0-9_-]{12,}|\bBearer\s+\S{8,}")
KEY = re.compile(r"[!-~]+")


class OpenAIEngine(EngineSettings):
    """Chat completions over HTTP, for evaluation and transcripts.

    Replies have no token ids and no log-probabilities, so nothing can be trained on them. The
    key is read from the environment when the engine is opened and is nowhere written.
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    takes_folders: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("httpx",)
    install: ClassVar[str] = "debate-rollout[openai]"
    removed_keys: ClassVar[Mapping[str, str]] = {
        "longest_pause_s": "no such key: an endpoint that asks for more than 60 s ends the request"
    }

    type: Literal["openai"] = "openai"
    model: str | None = Field(None, min_length=1)
    """The endpoint's name of the model; None is the name that the engine is opened with."""
    base_url: str = "https://api.openai.com/v1"
    """The URL before `/chat/completions`."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Environment variable of the key, whose name fits the host; None sends no key."""
    api_key_host: str | None = None
    """The host that gets the key all the same; it must be that of `base_url`."""
    max_in_flight: int = Field(32, ge=1)
    """Most requests at the endpoint at once; more wait here."""
    timeout_s: float = Field(300.0, gt=0)
    """Most seconds of one try, from sending a request to the end of its reply."""
    retries: int = Field(5, ge=0)
    """Further tries after a failure that may pass; two at most without a reply in time."""
    backoff_s: float = Field(1.0, ge=0)
    """Pause before the second try; it doubles from try to try. Retry-After is kept to."""
    leave_out: tuple[LeftOut, ...] = ()
    """Fields that this endpoint refuses; it then samples as it does by default."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name by which the endpoint takes the most tokens of a reply."""
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request, such as `reasoning_effort: low`; no secrets."""

    @property
    def needs_model(self) -> bool:
        """Whether the recipe's model names the endpoint's, as no key of the engine does."""
        return self.model is None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the opened engine; no ids, and seeds are the endpoint's affair."""
        return frozenset(("streams",))

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, text: str) -> str:
        address = urlsplit(text)
        try:
            has_host = bool(address.hostname) and address.port != 0
        except ValueError:  # The port is no number.
            has_host = False
        if address.scheme not in ("http", "https") or not has_host or not KEY.fullmatch(text):
            raise ValueError("expected an address such as https://host/v1")
        has_more = "@" in address.netloc or address.query or address.fragment
        if has_more or _SECRET_VALUE.search(text):
            # A secret in an address must not reach the terminal by the message that refuses it.
            raise ValueError(
                "found a user, a query, a fragment or a key (not shown); the key is in api_key_env"
            )
        return text.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            raise ValueError(
                "expected the name of an environment variable in capitals (not shown: a key?)"
            )
        return name

    @model_validator(mode="after")
    def _sends_a_key_to_its_host(self) -> Self:
        refuse_other_key(self.api_key_env, self.base_url, self.api_key_host)
        return self

    def sent_key(self) -> str | None:
        """Describe the variable and its addressee, for the report of a check."""
        if self.api_key_env is None:
            return None
        return f"the value of {self.api_key_env} is sent to {self.base_url}"

    @field_validator("extra_body")
    @classmethod
    def _is_no_secret(cls, body: dict[str, object]) -> dict[str, object]:
        for name in body:
            if name in _OURS:
                raise ValueError(f"{name} is set by the recipe or the engine; leave it out here")
        try:
            text = json.dumps(body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"expected what JSON can hold; {error}") from None
        if _SECRET_NAME.search(text) or _SECRET_VALUE.search(text):
            raise ValueError(
                "found what looks like a secret (not shown); the key comes from api_key_env"
            )
        return body

    def open(
        self,
        model: object = None,
        tokenizer: "PreTrainedTokenizerFast | None" = None,
        template_kwargs: Mapping[str, object] = {},
    ) -> "OpenAISampler":
        """Open the engine; `model` may be a name, and the other arguments are not used.

        Raises:
            EngineConfigError: There is no name of a model or no key, or the key would travel
                unencrypted.
        """
        with needs_extra("the openai engine", "openai"):
            from debate_rollout.engines.endpoints import OpenAISampler
        name = self.model or (model if isinstance(model, str) else None)
        if not name:
            raise EngineConfigError(
                "engine.model: found none; expected the name that the endpoint gives the model"
            )
        key = None if self.api_key_env is None else self._read_key(self.api_key_env)
        return OpenAISampler(self.model_copy(update={"model": name}), key)

    def _read_key(self, variable: str) -> str:
        key = os.environ.get(variable, "").strip()
        if not KEY.fullmatch(key):
            problem = "holds characters that no key has" if key else "is not set"
            raise EngineConfigError(
                f"engine.api_key_env: the environment variable {variable} {problem}; set it "
                "to the endpoint's key, or write `api_key_env: null` if it needs none"
            )
        host = urlsplit(self.base_url).hostname or ""
        if self.base_url.startswith("http:") and not is_near(host):
            raise EngineConfigError(
                f"engine.base_url: {self.base_url} would get the key of {variable} "
                "unencrypted; use https, or write `api_key_env: null` if it needs no key"
            )
        return key


def refuse_other_key(name: str | None, url: str, named_host: str | None) -> None:
    """Check that a variable is named as the key of an address, or the address named for it.

    Raises:
        ValueError: A recipe could otherwise send any variable anywhere.
    """
    host = urlsplit(url).hostname or ""
    if name is None or named_host == host:
        return
    # OPENAI_API_KEY fits api.openai.com: every word before API_KEY is a part of the host.
    host_letters = host.replace(".", "").replace("-", "").upper()
    words = name.removesuffix("API_KEY").split("_")[:-1]
    is_named_after_host = words != [] and all(word in host_letters for word in words)
    fits = is_near(host) or is_named_after_host
    if fits and named_host is None and name.endswith("API_KEY"):
        return
    raise ValueError(
        f"api_key_env: found {name}, which is not named as a key of {host}; expected a name such "
        f"as OPENAI_API_KEY for api.openai.com, `api_key_host: {host}` to send it there all the "
        "same, or `api_key_env: null` for no key"
    )


def is_near(host: str) -> bool:
    """Say whether a host is this machine or another machine of the same network."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost"))
