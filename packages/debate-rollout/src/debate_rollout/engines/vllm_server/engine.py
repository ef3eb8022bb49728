"""The vllm_server engine: a vLLM server beside the trainer, started by the run or running."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from debate_rollout.engines.vllm_server.settings import VllmServerSettings
from debate_rollout.errors import missing_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.vllm_server.server import VllmServer


class VllmServerEngine(VllmServerSettings):
    """An OpenAI-compatible vLLM server, with token ids in and out."""

    def open(
        self,
        model: "PreTrainedModel | str",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object] = {},
    ) -> "VllmServer":
        """Start the server, or connect to it, and return the engine.

        Args:
            model: What the server serves: a local directory, a hub id, or a causal language model
                (written to a temporary directory for a server that is started).
            tokenizer: Its tokenizer.
            template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.

        Raises:
            MissingExtraError: When httpx is not installed, or vLLM for a server to start.
            EngineConfigError: When the server does not run as training needs it.
            EndpointError: When it does not start or answer.
        """
        try:
            from debate_rollout.engines.vllm_server.server import VllmServer
        except ImportError as error:
            raise missing_extra("the vllm_server engine", "vllm", error) from error
        return VllmServer(self, model, tokenizer, template_kwargs)
