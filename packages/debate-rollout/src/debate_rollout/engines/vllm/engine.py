"""The vLLM engine: paged attention, prefix caching and continuous batching."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import model_validator

from debate_rollout.engine_settings import Place
from debate_rollout.engines.vllm.settings import VllmSettings
from debate_rollout.errors import missing_extra

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engine import StreamingEngine


class VllmEngine(VllmSettings):
    """vLLM on the devices of this machine, inside this process or beside it."""

    type: Literal["vllm"] = "vllm"
    process: Literal["shared", "own"] = "shared"
    """`shared` steps vLLM inside this process while replies are awaited: quick to start, weights
    are handed over in memory. `own` gives it a process (vLLM's AsyncLLM): sampling goes on while
    this one renders, parses and trains, data parallel engines are possible, and weights pass
    through a file."""

    @property
    def in_trainer(self) -> bool:
        """Whether it computes in the process that trains."""
        return self.process == "shared"

    @property
    def one_in_process(self) -> bool:
        """A second vLLM that this process steps would end with the first."""
        return self.process == "shared"

    def problems(self, place: Place) -> list[str]:
        """Return what keeps it from serving a trainer."""
        found = super().problems(place)
        if self.process == "shared" and place.processes > 1:
            found.append(
                f"process: found shared in {place.processes} processes, whose group vLLM would "
                "take for its own; expected own, or type: vllm_server"
            )
        return found

    def warnings(self, place: Place) -> list[str]:
        """Return what would be better otherwise."""
        if self.process == "shared":
            return []
        return self.idle_gpus(place.processes, f"{place.processes} processes")

    @model_validator(mode="after")
    def _keeps_torch_as_it_is(self) -> "VllmEngine":
        if self.batch_invariant and self.process == "shared":
            raise ValueError(
                "batch_invariant: found true with process: shared, where vLLM would replace "
                "torch's operations under the trainer, too; expected process: own"
            )
        return self

    def open(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object] = {},
    ) -> "StreamingEngine":
        """Return the running engine.

        Args:
            model: A local directory, a hub id, or a causal language model, which is written to a
                temporary directory first.
            tokenizer: Its tokenizer.
            template_kwargs: Handed to the chat template, such as `{"enable_thinking": False}`.

        Raises:
            MissingExtraError: When vLLM is not installed.
            EngineConfigError: When `vllm_args` cannot be used.
        """
        try:
            from debate_rollout.engines.vllm.beside import VllmAsync
            from debate_rollout.engines.vllm.sampler import VllmSampler
        except ImportError as error:
            raise missing_extra("the vllm engine", "vllm", error) from error
        sampler = VllmSampler if self.process == "shared" else VllmAsync
        return sampler(self, model, tokenizer, template_kwargs)
