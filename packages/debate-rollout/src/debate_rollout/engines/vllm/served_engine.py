"""What both running vLLM engines share: the served model, its adapters, its output as replies."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from debate_protocol.types import Reply
from debate_rollout.engine import Request, Weights
from debate_rollout.engines.vllm.hand_over import OLD_WEIGHTS_SERVE
from debate_rollout.engines.vllm.model import ServedModel, finish_of
from debate_rollout.engines.vllm.settings import VllmSettings, serving_arguments
from debate_rollout.engines.vllm.start import engine_arguments
from debate_rollout.errors import WeightsError

from vllm.lora.request import LoRARequest  # isort: skip  (after vllm_start: its environment)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from vllm.outputs import CompletionOutput


class ServedEngine(ABC):
    """A vLLM engine of this process or of one beside; it is started when it is made."""

    def __init__(
        self,
        config: VllmSettings,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object],
    ) -> None:
        self.capabilities = config.capabilities
        self._served = ServedModel(config, model, tokenizer, template_kwargs)
        self.renderer = self._served.renderer
        self.context_window = self._served.window
        self._version = 0
        self._adapters: dict[str, LoRARequest] = {}
        self._broken: str | None = None
        ours = serving_arguments(config, self._served.dtype, self.context_window)
        try:
            arguments = engine_arguments(ours, config.vllm_args)
            self._start(config, self._served.on_disk(model), arguments)
        except BaseException:
            self._served.close()
            raise

    @abstractmethod
    def _start(self, config: VllmSettings, model: str, arguments: Mapping[str, object]) -> None:
        """Start vLLM with a model on disk; what a failed start holds is freed here."""

    def _written_adapters(self, weights: Weights) -> dict[str, LoRARequest]:
        """Write adapters where vLLM reads them and return what names them in requests."""
        return {
            name: LoRARequest(f"version-{number}", number, str(folder))
            for name, (number, folder) in self._served.write_adapters(weights).items()
        }

    def _serve_adapters(self, adapters: dict[str, LoRARequest], in_use: Iterable[int]) -> None:
        """Let requests name new adapters; of older ones keep those that open requests use."""
        self._adapters = adapters
        self._served.drop_adapters({*(one.lora_int_id for one in adapters.values()), *in_use})

    def _reply_of(self, request: Request, output: "CompletionOutput", began: int | str) -> Reply:
        """Return vLLM's output as a reply.

        Args:
            request: What was asked.
            output: All of what was sampled.
            began: Version of the adapter, which stays with its request; where there is none, the
                label of the weights when the request began.
        """
        ids = output.token_ids
        labels = [(span.version, span.start, span.end) for span in output.weight_versions or ()]
        spans = (
            self._served.spans(labels, began) if isinstance(began, str) else [(began, 0, len(ids))]
        )
        logps = [place[token].logprob for place, token in zip(output.logprobs, ids, strict=True)]
        finish = finish_of(output.finish_reason, output.stop_reason)
        return self._served.reply(request, ids, logps, finish, spans)


def adapter_error(version: int, error: Exception) -> WeightsError:
    """Return what it is to the caller that vLLM has refused an adapter."""
    return WeightsError(
        f"weights version {version}: vLLM cannot serve this adapter ({error}); {OLD_WEIGHTS_SERVE}"
    )
