"""The running vLLM engines: stepped by this process, or with a core in its own."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from debate_protocol.types import Reply
from debate_rollout.engine import Request, Weights, WeightsError
from debate_rollout.engines.vllm import (
    OLD_WEIGHTS_SERVE,
    VllmSettings,
    refresh_error,
    serving_arguments,
)
from debate_rollout.engines.vllm.model import ServedModel, finish_of
from debate_rollout.engines.vllm.start import engine_arguments

from vllm.lora.request import LoRARequest  # isort: skip  (after vllm_start: its environment)
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from debate_rollout.engine import Finished, RolloutError, generate_by_streaming, of_adapter
from debate_rollout.engines.vllm.model import (
    write_weights,
)
from debate_rollout.engines.vllm.start import start_here, stop_here

from vllm import SamplingParams  # isort: skip  (after vllm_start has set its environment)
from vllm.sampling_params import RequestOutputKind  # isort: skip
from vllm.v1.executor.uniproc_executor import UniProcExecutor  # isort: skip
import asyncio
import os

from debate_rollout.engines.endpoints import Background
from debate_rollout.engines.vllm.start import environment_of, start_beside

from vllm.distributed.weight_transfer.base import (  # isort: skip
    WeightTransferUpdateRequest,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM


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


@dataclass(frozen=True, slots=True)
class _Open:
    """A request that vLLM works on: its name there, and the weights and adapter it began with."""

    request: Request
    inner: str
    began: int | str
    """Version of the adapter, without one vLLM's label of the weights."""
    adapter: int


class VllmSampler(ServedEngine):
    """Samples with vLLM; `collect` steps it, so it works while somebody waits."""

    def _start(self, config: VllmSettings, model: str, arguments: Mapping[str, object]) -> None:
        self._tickets = 0
        self._open: dict[str, _Open] = {}
        self._ended: deque[Finished] = deque()
        self._llm, self._state = start_here(model, arguments)
        self._engine = self._llm.llm_engine

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order.

        A prompt that leaves no room in the context window gets a reply without tokens, finish
        `context_overflow`. With top_k, top_p or min_p the log-probabilities are those of the
        filtered distribution.
        """
        return generate_by_streaming(self, requests)

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        ticket = self._tickets
        self._tickets += 1
        try:
            self._check_alive()
            if self._served.room(request) < 1:
                self._ended.append(Finished(ticket, self._served.overflow(request, self._version)))
                return ticket
            sampling = SamplingParams(
                **self._served.sampling(request), output_kind=RequestOutputKind.FINAL_ONLY
            )
            prompt = {"prompt_token_ids": list(request.prompt_ids)}
            adapter = of_adapter(self._adapters, request.ask)
            with self._state.entered():
                inner = self._engine.add_request(
                    str(ticket), prompt, sampling, lora_request=adapter
                )
        except Exception as error:
            self._ended.append(Finished(ticket, error))
        else:
            number = adapter.lora_int_id if adapter else 0
            began = self._version if adapter else self._served.label
            self._open[str(ticket)] = _Open(request, inner, began, number)
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Step vLLM until a request has ended or the time is over."""
        deadline = time.monotonic() + timeout_s
        with self._state.entered():
            while not self._ended and self._open:
                self._step()
                if time.monotonic() >= deadline:
                    break
        ended, self._ended = list(self._ended), deque()
        return ended

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        one = self._open.pop(str(ticket), None)
        if one is not None:
            with self._state.entered():
                self._engine.abort_request([one.inner], internal=True)
        self._ended = deque(done for done in self._ended if done.ticket != ticket)

    def load(self, weights: Weights) -> None:
        """Serve these weights and drop every prefix that old ones made.

        Open requests go on with new full weights, whose versions their replies mark; requests
        that began with an adapter end with it.

        Raises:
            WeightsError: When names or shapes do not fit; nothing is changed then.
        """
        self._check_alive()
        with self._state.entered(ordered=True):
            if weights.kind == "lora":
                self._load_adapter(weights)
            else:
                self._load_full(weights)
        self._version = weights.version

    def close(self) -> None:
        """Stop vLLM and remove its files."""
        if self._llm is not None:
            stop_here(self._llm)
            self._llm = self._engine = None
        self._served.close()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _step(self) -> None:
        try:
            outputs = self._engine.step()
        except Exception as error:
            self._break(error)
            return
        for output in outputs:
            one = self._open.pop(output.request_id, None) if output.finished else None
            if one is not None:
                ticket = int(output.request_id)
                self._ended.append(Finished(ticket, self._outcome(one, output.outputs[0])))

    def _outcome(self, one: _Open, output: "CompletionOutput") -> Reply | Exception:
        try:
            return self._reply_of(one.request, output, one.began)
        except Exception as error:
            return error

    def _break(self, error: Exception) -> None:
        """End every open request; nothing is served any more."""
        self._broken = f"vLLM has died: {type(error).__name__}: {error}"
        for name in self._open:
            failed = RolloutError(self._broken)
            failed.__cause__ = error
            self._ended.append(Finished(int(name), failed))
        self._open.clear()

    def _check_alive(self) -> None:
        if self._broken is not None:
            raise RolloutError(self._broken)

    def _load_full(self, weights: Weights) -> None:
        tensors = self._served.full_weights(weights)
        label = self._served.new_label(weights.version)
        core = self._engine.engine_core.engine_core
        core.pause_scheduler("keep", clear_cache=False)
        while core.batch_queue:  # steps that the old weights began: their tokens are old, too
            self._step()
        try:
            if isinstance(core.model_executor, UniProcExecutor):
                self._llm.collective_rpc(
                    "reload_weights", kwargs={"weights_iterator": iter(tensors.items())}
                )
            else:  # workers in other processes
                self._hand_over(label, tensors)
            # Open requests are computed again by the new weights from their first token.
            if not self._engine.reset_prefix_cache(reset_running_requests=bool(self._open)):
                raise RolloutError("vLLM kept its prefix cache, which old weights made")
        except WeightsError:
            raise
        except Exception as error:
            self._break(error)
            raise
        finally:
            core.resume_scheduler()
        self._engine.set_weight_version(label)
        self._served.serve(label, weights.version)

    def _hand_over(self, label: str, tensors: "Mapping[str, Tensor]") -> None:
        """Refresh workers in other processes by a file: all of them look at it, then all load."""
        path = write_weights(self._served.folder, label, tensors)
        self._llm.start_weight_update()
        try:
            for only_check in (True, False):
                update = {"path": str(path), "only_check": only_check}
                self._llm.update_weights({"update_info": update})
        except Exception as error:
            with suppress(Exception):
                self._llm.finish_weight_update()
            raise refresh_error(error, only_check) from error
        finally:
            path.unlink()
        self._llm.finish_weight_update()

    def _load_adapter(self, weights: Weights) -> None:
        adapters = self._written_adapters(weights)
        try:
            for adapter in adapters.values():
                self._engine.add_lora(adapter)
        except Exception as error:
            raise adapter_error(weights.version, error) from error
        self._serve_adapters(adapters, (one.adapter for one in self._open.values()))


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
