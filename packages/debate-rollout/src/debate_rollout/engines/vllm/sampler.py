"""vLLM inside this process: started without disturbing the rest of it, and stepped by `collect`."""

import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

# Before vllm is imported: it reads these once.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
# What it logs goes where a program sends it, as debate-train to a file of the run.
os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
if torch.cuda.is_available():
    # A forked core would inherit locks that other threads of this process hold.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
else:
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    # The sampler is compiled even in eager mode; without a C++ compiler that fails.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from debate_protocol.types import Reply
from debate_rollout.engine import (
    EngineConfigError,
    Finished,
    Request,
    RolloutError,
    Weights,
    WeightsError,
    generate_by_streaming,
    of_adapter,
    overflow,
)
from debate_rollout.engines.vllm.model import (
    ServedModel,
    ThreadState,
    finish_of,
    free_cache,
    undisturbed,
    write_weights,
)
from debate_rollout.engines.vllm.refresh_errors import OLD_WEIGHTS_SERVE, refresh_error
from debate_rollout.engines.vllm.settings import (
    BATCH_INVARIANT,
    VllmEngine,
    on_cpu,
    serving_arguments,
)
from debate_rollout.pacing import CacheRoom

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from vllm.outputs import CompletionOutput


logging.getLogger("vllm").addHandler(logging.NullHandler())
logging.getLogger("vllm").setLevel(logging.INFO)


def engine_arguments(ours: Mapping[str, object], given: Mapping[str, object]) -> dict[str, object]:
    """Return our arguments, as this machine needs them, with the recipe's `vllm_args` added."""
    return {**given, **(ours if torch.cuda.is_available() else on_cpu(ours))}


_running_here = False
"""vLLM keeps one state for a process: closing one of two engines would end the other."""


def _start(model: str, arguments: Mapping[str, object]) -> tuple[LLM, ThreadState]:
    """Return a running `vllm.LLM` whose core is stepped by this process, and what it runs in.

    Every call of it belongs inside `ThreadState.entered`.

    Raises:
        EngineConfigError: When a vLLM runs here, or it would replace torch's own operations.
    """
    global _running_here
    if _running_here:
        raise EngineConfigError(
            "engine: found a second vLLM, but one process runs one at a time; expected the first "
            "to be closed, or type: vllm_server"
        )
    if os.environ.get(BATCH_INVARIANT, "0") not in ("", "0"):
        raise EngineConfigError(
            f"environment: found {BATCH_INVARIANT}, by which vLLM would replace torch's operations "
            "under the trainer, too; expected type: vllm_server with batch_invariant: true"
        )
    with undisturbed(), _core_in_this_process():
        llm = LLM(model, **arguments)
        state = ThreadState.now()
    _running_here = True
    return llm, state


@contextmanager
def _core_in_this_process() -> Iterator[None]:
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@dataclass(frozen=True, slots=True)
class _Open:
    """A request that vLLM works on: its name there, and the weights and adapter it began with."""

    request: Request
    inner: str
    began: int | str
    """Version of the adapter; without one, vLLM's label of the weights."""
    adapter: int


class VllmSampler:
    """Samples with vLLM; `collect` steps it, so it works while somebody waits."""

    def __init__(
        self,
        config: VllmEngine,
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
        self._sleeps = False
        self._tickets = 0
        self._open: dict[str, _Open] = {}
        self._ended: deque[Finished] = deque()
        ours = serving_arguments(config, self._served.dtype, self.context_window)
        try:
            arguments = engine_arguments(ours, config.vllm_args)
            self._llm, self._state = _start(self._served.on_disk(model), arguments)
        except BaseException:
            self._served.close()
            raise
        self._engine = self._llm.llm_engine
        cache = self._engine.vllm_config.cache_config.kv_cache_size_tokens
        self.room = CacheRoom(cache) if cache else None

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Sample a reply a request, in order.

        A prompt without room in the context window gets a reply without tokens, finish
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
                self._ended.append(Finished(ticket, overflow(request, self._version)))
                return ticket
            sampling = SamplingParams(
                **self._served.sampling(request), output_kind=RequestOutputKind.FINAL_ONLY
            )
            prompt = {"prompt_token_ids": list(request.prompt_ids)}
            adapter = of_adapter(self._adapters, request.turn_request)
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
        """Serve these weights and drop every prefix of old weights.

        Open requests go on with new full weights, and replies mark the versions; requests
        that began with an adapter end with it.

        Raises:
            WeightsError: When names or shapes do not fit; nothing is changed then.
        """
        self._check_alive()
        with self._state.entered(ordered=True):
            if self._sleeps:
                free_cache()
                self._llm.wake_up()
                self._sleeps = False
            if weights.kind == "lora":
                self._load_adapters(weights)
            else:
                self._load_full(weights)
        self._version = weights.version

    def sleep(self) -> None:
        """Free the device's memory until the next `load`."""
        self._check_alive()
        with self._state.entered(ordered=True):
            self._llm.sleep(level=1)
        self._sleeps = True

    def close(self) -> None:
        """Stop vLLM and remove its files."""
        global _running_here
        if self._llm is not None:
            _running_here = False
            self._engine.engine_core.shutdown()
            self._llm = self._engine = None
        self._served.close()
        free_cache()

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

    def _outcome(self, open_request: _Open, output: "CompletionOutput") -> Reply | Exception:
        ids = output.token_ids
        labels = [(span.version, span.start, span.end) for span in output.weight_versions or ()]
        try:
            spans = self._served.spans(labels, open_request.began, len(ids))
            logps = [at[token].logprob for at, token in zip(output.logprobs, ids, strict=True)]
            finish = finish_of(output.finish_reason, output.stop_reason)
            return self._served.reply(open_request.request, ids, logps, finish, spans)
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
        while core.batch_queue:  # Steps that the old weights began: their tokens are old, too.
            self._step()
        try:
            # Names and shapes were checked: a wrong one would kill vLLM at the next request.
            if isinstance(core.model_executor, UniProcExecutor):
                self._llm.collective_rpc(
                    "reload_weights", kwargs={"weights_iterator": iter(tensors.items())}
                )
            else:  # Workers in other processes.
                self._load_file(label, tensors)
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

    def _load_file(self, label: str, tensors: "Mapping[str, Tensor]") -> None:
        """Refresh workers in other processes by a file: all of them check it, then all load."""
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

    def _load_adapters(self, weights: Weights) -> None:
        adapters = {
            name: LoRARequest(f"version-{number}", number, str(folder))
            for name, (number, folder) in self._served.write_adapters(weights).items()
        }
        try:
            for adapter in adapters.values():
                self._engine.add_lora(adapter)
        except Exception as error:
            raise WeightsError(
                f"weights version {weights.version}: vLLM cannot serve this adapter ({error}); "
                f"{OLD_WEIGHTS_SERVE}"
            ) from error
        self._adapters = adapters
        # Open requests end with the adapter that they began with: its files stay until then.
        used = {one.adapter for one in self._open.values()}
        self._served.drop_adapters(used | {one.lora_int_id for one in adapters.values()})
