"""The transformers engine: any Hugging Face causal model, on a CPU or one GPU."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from debate_rollout.engines.transformers.settings import TransformersSettings
from debate_rollout.errors import missing_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.transformers.sampler import TransformersSampler


class TransformersEngine(TransformersSettings):
    """Batched generation with a key-value cache; the default without vLLM."""

    def open(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object] = {},
    ) -> "TransformersSampler":
        """Return the running engine.

        Args:
            model: A causal language model with its weights.
            tokenizer: Its tokenizer.
            template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.

        Raises:
            MissingExtraError: When torch and transformers are not installed.
        """
        try:
            from debate_rollout.engines.transformers.sampler import TransformersSampler
        except ImportError as error:
            raise missing_extra("the transformers engine", "transformers", error) from error
        return TransformersSampler(self, model, tokenizer, template_kwargs)
