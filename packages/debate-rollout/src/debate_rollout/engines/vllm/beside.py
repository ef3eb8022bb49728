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
    refresh_error,
    write_weights,
)
from debate_rollout.engines.vllm.served_engine import ServedEngine, adapter_error
from debate_rollout.engines.vllm.settings import VllmSettings
from debate_rollout.engines.vllm.start import environment_of, start_beside
from debate_rollout.errors import RolloutError, WeightsError

from vllm import SamplingParams  # isort: skip  (after vllm_start has set its environment)
from vllm.distributed.weight_transfer.base import (  # isort: skip
    WeightTransferUpdateRequest,
)
from vllm.sampling_params import RequestOutputKind  # isort: skip

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

START_S, REFRESH_S = 1800.0, 1800.0


class VllmAsync(ServedEngine):
    """Samples with vLLM's AsyncLLM; it works on while nobody waits."""

    def _start(self, config: VllmSettings, model: str, arguments: Mapping[str, object]) -> None:
        self._names = 0
        self._adapters_in_use: dict[str, int] = {}
        self._background = Background("vllm")

        async def start() -> "AsyncLLM":
            return start_beside(model, arguments, environment_of(config))

        try:
            self._engine = self._background.run(start(), START_S, "starting vLLM")
        except BaseException:
            self._background.close()
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
        adapter = of_adapter(self._adapters, request.ask)
        began = self._version if adapter else self._served.label
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
        return self._reply_of(request, last, began)

    def _died(self) -> Exception | None:
        engine = self._engine
        if engine is None or not engine.errored:
            return None
        return RolloutError(f"vLLM has died: {engine.dead_error}")

    async def _load_full(self, weights: Weights) -> None:
        tensors = self._served.full_weights(weights)
        label, folder = self._served.new_label(weights.version), self._served.folder
        path = await asyncio.to_thread(write_weights, folder, label, tensors)
        await self._engine.pause_generation(mode="keep")
        try:
            await self._hand_over(str(path), label)
            self._served.serve(label, weights.version)
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
        adapters = self._written_adapters(weights)
        try:
            for adapter in adapters.values():
                await self._engine.add_lora(adapter)
        except Exception as error:
            raise adapter_error(weights.version, error) from error
        self._serve_adapters(adapters, self._adapters_in_use.values())
