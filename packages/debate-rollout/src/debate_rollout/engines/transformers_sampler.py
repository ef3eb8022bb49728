"""The running transformers engine."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from debate_protocol.types import Reply
from debate_rollout.engine import EngineConfigError, Request, Weights, of_adapter
from debate_rollout.engines.transformers_decoding import Decoder, Job, Sampled, StopStrings
from debate_rollout.engines.weights import ONLY, load_full, load_lora
from debate_rollout.rendering import Renderer
from debate_rollout.token_text import token_text

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.transformers import TransformersSettings


class TransformersSampler:
    """Samples from its own copy of a causal model."""

    def __init__(
        self,
        config: "TransformersSettings",
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object],
    ) -> None:
        self.renderer = Renderer(tokenizer, template_kwargs)
        self.capabilities = config.capabilities
        self._config = config
        self._tokenizer = tokenizer
        self._version = 0
        adapters = getattr(model, "peft_config", ())
        self._adapters = {name: name for name in adapters if name != ONLY}
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._model = _prepared(copy.deepcopy(model) if config.copy_model else model, config)
        self.context_window: int | None = config.context_window or getattr(
            self._model.config, "max_position_embeddings", None
        )
        self._decoder = self._make_decoder()

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order.

        A prompt that leaves no room in the context window gets a reply without tokens, finish
        `context_overflow`; else `max_tokens` is cut to the room there is. `token_ids` keep the
        whole token in which a stop string ended.

        Raises:
            EngineConfigError: When a prompt has no ids.
        """
        replies: list[Reply | None] = [None] * len(requests)
        jobs: list[tuple[int, Job]] = []
        for at, request in enumerate(requests):
            if not request.prompt_ids:
                raise EngineConfigError("a request's prompt_ids: found none; expected at least one")
            room = self._room(request)
            if room < 1:
                replies[at] = self._reply(request, Sampled([], [], "length"), overflow=True)
            else:
                jobs.append((at, self._job(request, room)))
        # Like lengths side by side: less padding, and rows that end at about the same time.
        jobs.sort(key=lambda placed: len(placed[1].prompt_ids))
        # A batch is sampled with one adapter.
        by_adapter: dict[str | None, list[tuple[int, Job]]] = {}
        for at, job in jobs:
            name = of_adapter(self._adapters, requests[at].ask)
            by_adapter.setdefault(name, []).append((at, job))
        for name, own in by_adapter.items():
            if name is not None:
                self._model.set_adapter(name, inference_mode=True)
            for start in range(0, len(own), self._config.max_batch):
                chunk = own[start : start + self._config.max_batch]
                found = self._decoder.sample([job for _, job in chunk])
                for (at, _), sampled in zip(chunk, found, strict=True):
                    replies[at] = self._reply(requests[at], sampled)
        return [reply for reply in replies if reply is not None]

    def load(self, weights: Weights) -> None:
        """Copy weights into the served model: every parameter, or adapters on its base.

        Raises:
            WeightsError: When names or shapes do not fit; no parameter is copied then.
        """
        put = load_lora if weights.kind == "lora" else load_full
        self._model = put(self._model, weights)
        self._version = weights.version
        is_lora = weights.kind == "lora"
        self._adapters = {name: name or ONLY for name in weights.by_adapter()} if is_lora else {}
        self._decoder = self._make_decoder()

    def close(self) -> None:
        """Free the model."""
        del self._model, self._decoder
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _make_decoder(self) -> Decoder:
        ends: set[int | None] = set(self.renderer.end_ids)
        declared = getattr(self._model.generation_config, "eos_token_id", None)
        ends.update(declared if isinstance(declared, list) else [declared])
        self._model.eval().requires_grad_(False)
        return Decoder(
            self._model, [i for i in ends if i is not None], self._tokenizer.pad_token_id or 0
        )

    def _room(self, request: Request) -> int:
        wanted = request.sampling.max_tokens
        if self.context_window is None:
            return wanted
        return min(wanted, self.context_window - len(request.prompt_ids))

    def _job(self, request: Request, room: int) -> Job:
        stop = request.sampling.stop
        if stop not in self._stops:
            size = self._model.config.get_text_config().vocab_size
            self._stops[stop] = StopStrings(self._tokenizer, stop, size)
        return Job(
            request.prompt_ids, replace(request.sampling, max_tokens=room), self._stops[stop]
        )

    def _reply(self, request: Request, sampled: Sampled, overflow: bool = False) -> Reply:
        said = token_text(self._tokenizer, sampled.ids)
        return Reply(
            text=said.text,
            starts=said.starts,
            finish="context_overflow" if overflow else sampled.finish,
            prompt_ids=() if overflow else request.prompt_ids,
            token_ids=tuple(sampled.ids),
            logps=tuple(sampled.logps),
            temperature=request.sampling.temperature,
            weight_version=self._version,
        )


def _prepared(model: "PreTrainedModel", config: "TransformersSettings") -> "PreTrainedModel":
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
    return model.to(device=device, dtype=dtype) if dtype else model.to(device=device)
