"""The running vLLM engine whose core has a process of its own."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from debate_protocol.types import Reply
from debate_rollout.engine import Finished, Request, Weights, generate_by_streaming, of_adapter
from debate_rollout.engines.background import Background
from debate_rollout.engines.vllm.hand_over import (
    OLD_WEIGHTS_SERVE,
    refresh_error,
    write_weights,
)
from debate_rollout.engines.vllm.model import ServedModel, finish_of
from debate_rollout.engines.vllm.settings import VllmSettings, serving_arguments
from debate_rollout.engines.vllm.start import engine_arguments, environment_of, start_beside
from debate_rollout.errors import RolloutError, WeightsError

from vllm import SamplingParams  # isort: skip  (after vllm_start has set its environment)
from vllm.distributed.weight_transfer.base import (  # isort: skip
    WeightTransferUpdateRequest,
)
from vllm.lora.request import LoRARequest  # isort: skip
from vllm.sampling_params import RequestOutputKind  # isort: skip

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from vllm.v1.engine.async_llm import AsyncLLM

START_S, REFRESH_S = 1800.0, 1800.0


class VllmAsync:
    """Samples with vLLM's AsyncLLM; it works on while nobody waits."""

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
        self._names = 0
        self._adapters: dict[str, LoRARequest] = {}
        self._adapters_in_use: dict[str, int] = {}
        self._broken: str | None = None
        ours = serving_arguments(config, self._served.dtype, self.context_window)
        self._background = Background("vllm")

        async def start() -> "AsyncLLM":
            arguments = engine_arguments(ours, config.vllm_args)
            return start_beside(self._served.on_disk(model), arguments, environment_of(config))

        try:
            self._engine = self._background.run(start(), START_S, "starting vLLM")
        except BaseException:
            self._background.close()
            self._served.close()
            raise
        # Calls that wait for an answer of vLLM's core never end by themselves when it dies.
        self._background.watch(self._died)

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order; see `VllmSampler.generate`."""
        return generate_by_streaming(self, requests)

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        self._names += 1
        return self._background.submit(self._reply(request, f"{os.getpid()}-{self._names}"))

    def collect(self, timeout_s: float) -> list[Finished]:
        """Wait until a request has ended or the time is over."""
        return self._background.collect(timeout_s)

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        self._background.cancel(ticket)

    def load(self, weights: Weights) -> None:
        """Serve these weights and drop every prefix that old ones made; see `VllmSampler.load`.

        Raises:
            WeightsError: When names or shapes do not fit; nothing is changed then.
        """
        if self._broken is not None:
            raise RolloutError(self._broken)
        refresh = self._load_adapter if weights.kind == "lora" else self._load_full
        self._background.run(refresh(weights), REFRESH_S, "refreshing weights")
        self._version = weights.version

    def close(self) -> None:
        """Stop vLLM and remove its files."""

        async def stop() -> None:
            if self._engine is not None:
                self._engine.shutdown()

        self._background.close(stop)
        self._engine = None
        self._served.close()

    async def _reply(self, request: Request, name: str) -> Reply:
        if self._broken is not None:
            raise RolloutError(self._broken)
        if self._served.room(request) < 1:
            return self._served.overflow(request, self._version)
        version, adapter = self._version, of_adapter(self._adapters, request.ask)
        sampling = SamplingParams(
            **self._served.sampling(request), output_kind=RequestOutputKind.FINAL_ONLY
        )
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        if adapter is not None:
            self._adapters_in_use[name] = adapter.lora_int_id
        try:
            async for output in self._engine.generate(prompt, sampling, name, lora_request=adapter):
                last = output.outputs[0]
        finally:
            self._adapters_in_use.pop(name, None)
        ids = last.token_ids
        labels = [(span.version, span.start, span.end) for span in last.weight_versions or ()]
        spans = [(version, 0, len(ids))] if adapter else self._served.spans(labels)
        logps = [place[token].logprob for place, token in zip(last.logprobs, ids, strict=True)]
        finish = finish_of(last.finish_reason, last.stop_reason)
        return self._served.reply(request, ids, logps, finish, spans)

    def _died(self) -> Exception | None:
        engine = self._engine
        if engine is None or not engine.errored:
            return None
        return RolloutError(f"vLLM has died: {engine.dead_error}")

    async def _load_full(self, weights: Weights) -> None:
        tensors = self._served.full_weights(weights)
        label, folder = str(weights.version), self._served.folder
        path = await asyncio.to_thread(write_weights, folder, weights.version, tensors)
        await self._engine.pause_generation(mode="keep")
        try:
            await self._hand_over(str(path), label)
            self._served.versions[label] = weights.version
            # Open requests are computed again by the new weights from their first token.
            if not await self._engine.reset_prefix_cache(reset_running_requests=True):
                raise RolloutError("vLLM kept its prefix cache, which old weights made")
        except WeightsError:
            raise
        except Exception as error:
            self._broken = str(error)
            raise
        finally:
            await self._engine.resume_generation()
            path.unlink()

    async def _hand_over(self, path: str, label: str) -> None:
        await self._engine.start_weight_update()
        try:
            for only_check in (True, False):
                await self._engine.update_weights(
                    WeightTransferUpdateRequest({"path": path, "only_check": only_check})
                )
        except Exception as error:
            with suppress(Exception):
                await self._engine.finish_weight_update()
            raise refresh_error(error, only_check) from error
        await self._engine.finish_weight_update(weight_version=label)

    async def _load_adapter(self, weights: Weights) -> None:
        written = self._served.write_adapters(weights)
        adapters = {
            name: LoRARequest(f"version-{number}", number, str(folder))
            for name, (number, folder) in written.items()
        }
        try:
            for adapter in adapters.values():
                await self._engine.add_lora(adapter)
        except Exception as error:
            raise WeightsError(
                f"weights version {weights.version}: vLLM cannot serve this adapter ({error}); "
                f"{OLD_WEIGHTS_SERVE}"
            ) from error
        self._adapters = adapters
        served = (one.lora_int_id for one in adapters.values())
        self._served.drop_adapters({*served, *self._adapters_in_use.values()})
