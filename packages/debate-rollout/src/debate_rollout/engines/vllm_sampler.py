"""The running vLLM engine."""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from debate_protocol.types import Finish, Reply
from debate_rollout.engine import Request, Weights
from debate_rollout.engines.drawing import seed_bits
from debate_rollout.engines.hf_weights import check_complete, check_fits
from debate_rollout.engines.vllm_start import start
from debate_rollout.errors import EngineConfigError, RolloutError, WeightsError
from debate_rollout.rendering import Renderer
from debate_rollout.token_text import token_text

from vllm import SamplingParams  # isort: skip  (after vllm_start has set its environment)
from vllm.lora.request import LoRARequest  # isort: skip

if TYPE_CHECKING:
    from debate_rollout.engines.vllm_engine import VllmEngine

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class VllmSampler:
    """Samples with vLLM; weights are refreshed in place, adapters through a directory."""

    def __init__(
        self,
        config: "VllmEngine",
        model: Any,
        tokenizer: Any,
        template_kwargs: Mapping[str, Any],
    ) -> None:
        self.renderer = Renderer(tokenizer, template_kwargs)
        self.capabilities = config.capabilities
        self._tokenizer = tokenizer
        self._version = 0
        self._adapter: LoRARequest | None = None
        self._adapters = 0
        self._serves_adapters = config.max_lora_rank is not None
        self._folder = Path(tempfile.mkdtemp(prefix="debate-rollout-"))
        path = self._on_disk(model)
        shape = AutoConfig.from_pretrained(path)
        with torch.device("meta"):
            blank = AutoModelForCausalLM.from_config(shape)
        self._expected = blank.state_dict(keep_vars=True)
        self._tied = bool(shape.get_text_config().tie_word_embeddings)
        self.context_window: int | None = (
            config.context_window or shape.get_text_config().max_position_embeddings
        )
        self._end_ids = _end_ids(self.renderer, blank)
        self._llm = start(path, _dtype(config, shape), self._options(config))

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order.

        A prompt that leaves no room in the context window gets a reply without tokens, finish
        `context_overflow`. With top_k, top_p or min_p the log-probabilities are those of the
        filtered distribution.
        """
        fits = [self._room(request) >= 1 for request in requests]
        chosen = [request for request, fit in zip(requests, fits, strict=True) if fit]
        outputs = iter(
            self._llm.generate(
                [{"prompt_token_ids": list(request.prompt_ids)} for request in chosen],
                [self._params(request) for request in chosen],
                lora_request=self._adapter,
                use_tqdm=False,
            )
            if chosen
            else ()
        )
        return [
            self._reply(request, next(outputs).outputs[0]) if fit else self._overflow(request)
            for request, fit in zip(requests, fits, strict=True)
        ]

    def load(self, weights: Weights) -> None:
        """Serve these weights and drop every cached prefix.

        Raises:
            WeightsError: When names or shapes do not fit; nothing is changed then.
        """
        if weights.kind == "lora":
            self._load_adapter(weights)
        else:
            self._load_full(weights)
        if not self._llm.reset_prefix_cache():
            raise RolloutError("vLLM kept its prefix cache, which old weights made")
        self._version = weights.version

    def close(self) -> None:
        """Stop vLLM and remove its files."""
        engine = getattr(self._llm, "llm_engine", None)
        core = getattr(engine, "engine_core", None)
        if core is not None:
            core.shutdown()
        del self._llm
        shutil.rmtree(self._folder, ignore_errors=True)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _on_disk(self, model: Any) -> str:
        if isinstance(model, str | Path):
            return str(model)
        path = self._folder / "model"
        model.save_pretrained(path)
        self._tokenizer.save_pretrained(path)
        return str(path)

    def _options(self, config: "VllmEngine") -> dict[str, Any]:
        cache = config.kv_cache_mib
        options: dict[str, Any] = {
            "max_model_len": self.context_window,
            "max_num_seqs": config.max_batch,
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "kv_cache_memory_bytes": None if cache is None else cache << 20,
            "block_size": config.block_size,
            "enforce_eager": config.enforce_eager,
        }
        if self._serves_adapters:
            options |= {"enable_lora": True, "max_lora_rank": config.max_lora_rank, "max_loras": 1}
        return options

    def _room(self, request: Request) -> int:
        wanted = request.sampling.max_tokens
        if self.context_window is None:
            return wanted
        return min(wanted, self.context_window - len(request.prompt_ids))

    def _params(self, request: Request) -> SamplingParams:
        sampling = request.sampling
        return SamplingParams(
            max_tokens=self._room(request),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            stop=list(sampling.stop),
            stop_token_ids=self._end_ids,
            seed=seed_bits(sampling.seed),
            logprobs=0,
        )

    def _reply(self, request: Request, output: Any) -> Reply:
        ids = tuple(output.token_ids)
        return Reply(
            text=token_text(self._tokenizer, ids).text,
            finish=_finish(output),
            prompt_ids=request.prompt_ids,
            token_ids=ids,
            logps=tuple(
                place[token].logprob for place, token in zip(output.logprobs, ids, strict=True)
            ),
            temperature=request.sampling.temperature,
            weight_version=self._version,
        )

    def _overflow(self, request: Request) -> Reply:
        return Reply(
            text="",
            finish="context_overflow",
            temperature=request.sampling.temperature,
            weight_version=self._version,
        )

    def _load_full(self, weights: Weights) -> None:
        if self._serves_adapters:
            raise WeightsError(
                "engine.max_lora_rank: set, so the base stays as it is; found weights of kind "
                "'full', expected 'lora'; leave max_lora_rank out to serve all parameters"
            )
        # A bad name would kill the engine, a missing tied head would leave its old copy in use.
        check_fits(self._expected, weights.tensors)
        check_complete(self._expected, weights)
        tensors = dict(weights.tensors)
        if self._tied and EMBEDDING in tensors:
            tensors.setdefault(HEAD, tensors[EMBEDDING])
        self._llm.collective_rpc(
            "reload_weights", kwargs={"weights_iterator": iter(tensors.items())}
        )

    def _load_adapter(self, weights: Weights) -> None:
        if not self._serves_adapters or weights.adapter is None:
            raise EngineConfigError(
                "engine.max_lora_rank: found None, or weights without `adapter`; "
                "expected both to serve an adapter"
            )
        self._adapters += 1  # vLLM keeps an adapter under its number: never one number twice
        folder = self._folder / f"adapter-{self._adapters}"
        folder.mkdir()
        tensors = {k: v.detach().cpu().contiguous() for k, v in weights.tensors.items()}
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(weights.adapter, default=_as_json))
        self._adapter = LoRARequest(f"version-{self._adapters}", self._adapters, str(folder))
        shutil.rmtree(self._folder / f"adapter-{self._adapters - 1}", ignore_errors=True)


def _finish(output: Any) -> Finish:
    if output.finish_reason == "length":
        return "length"
    if output.finish_reason != "stop":
        raise RolloutError(f"vLLM ended a reply by {output.finish_reason!r}; expected stop, length")
    return "stop" if isinstance(output.stop_reason, str) else "end"


def _dtype(config: "VllmEngine", shape: Any) -> str:
    if config.dtype != "auto":
        return config.dtype
    kept = getattr(shape, "dtype", None)
    return "float32" if kept is None else str(kept).removeprefix("torch.")


def _end_ids(renderer: Renderer, model: Any) -> list[int]:
    declared = getattr(model.generation_config, "eos_token_id", None)
    ends = {*renderer.end_ids, *(declared if isinstance(declared, list) else [declared])}
    return sorted(i for i in ends if i is not None)


def _as_json(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
