"""The openai engine: any endpoint that speaks OpenAI's chat completions."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from debate_rollout.engines.openai.settings import KEY, OpenAISettings, is_near
from debate_rollout.errors import EngineConfigError, missing_extra

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from debate_rollout.engines.openai.sampler import OpenAISampler


class OpenAIEngine(OpenAISettings):
    """Chat completions over HTTP, for evaluation and transcripts.

    Replies have no token ids and no log-probabilities, so nothing can be trained on them. The
    key is read from the environment when the engine is opened and is nowhere written.
    """

    def open(
        self,
        model: object = None,
        tokenizer: "PreTrainedTokenizerFast | None" = None,
        template_kwargs: Mapping[str, object] = {},
    ) -> "OpenAISampler":
        """Return the running engine; the endpoint is not asked anything yet.

        Args:
            model: A name, used where `model` is None; a model itself is not used.
            tokenizer: Not used, the endpoint has its own; every engine is opened alike.
            template_kwargs: Not used.

        Raises:
            MissingExtraError: When httpx is not installed.
            EngineConfigError: When there is no name of a model or no key, or when the key would
                travel unencrypted.
        """
        try:
            from debate_rollout.engines.openai.sampler import OpenAISampler
        except ImportError as error:
            raise missing_extra("the openai engine", "openai", error) from error
        name = self.model or (model if isinstance(model, str) else None)
        if not name:
            raise EngineConfigError(
                "engine.model: found none; expected the name that the endpoint gives the model"
            )
        return OpenAISampler(self.model_copy(update={"model": name}), self._key())

    def _key(self) -> str | None:
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not KEY.fullmatch(key):
            found = "holds characters that no key has" if key else "is not set"
            raise EngineConfigError(
                f"engine.api_key_env: the environment variable {self.api_key_env} {found}; set it "
                "to the endpoint's key, or write `api_key_env: null` if it needs none"
            )
        host = urlsplit(self.base_url).hostname or ""
        if self.base_url.startswith("http:") and not is_near(host):
            raise EngineConfigError(
                f"engine.base_url: {self.base_url} would get the key of {self.api_key_env} "
                "unencrypted; use https, or write `api_key_env: null` if it needs no key"
            )
        return key
