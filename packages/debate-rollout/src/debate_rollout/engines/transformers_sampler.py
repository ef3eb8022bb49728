"""The running transformers engine: left-padded batches, one cache, finished rows dropped."""

import copy
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from debate_protocol.types import Reply
from debate_rollout.engine import (
    NotFiniteError,
    Request,
    Sampling,
    Weights,
    of_adapter,
    overflow,
    room_of,
)
from debate_rollout.engines.sampling import Draws, StopStrings
from debate_rollout.engines.weights import ONLY, load_full, load_lora
from debate_rollout.rendering import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

    from debate_rollout.engines.transformers import TransformersEngine


ROOM = 128
"""For how many more tokens a layer reserves memory when it has run out."""

NAME = "debate_shared_keys"
"""The name under which transformers finds `shared_key_attention`."""

_ELSEWHERE = ("position_bias", "cache", "softcap", "s_aux", "output_attentions")


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, in memory with room behind them.

    `keys` and `values` are views of what is filled, each (batch, key heads, tokens, features of a
    head), as those of transformers' `DynamicLayer`, which copies all of them for each new token.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Reserve nothing yet."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = self._key_memory = key_states[:, :, :0]
        self.values = self._value_memory = value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append new tokens; return the keys and values of all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        # One token a step into memory with room: appending by copy costs the square of the length.
        before, after = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        if after > self._key_memory.shape[2]:
            self._key_memory = _roomier(self.keys, key_states, after + ROOM)
            self._value_memory = _roomier(self.values, value_states, after + ROOM)
        self._key_memory[:, :, before:after] = key_states
        self._value_memory[:, :, before:after] = value_states
        self._show(after)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        tokens = self.keys.shape[2]
        self._key_memory = self._key_memory[indices]
        self._value_memory = self._value_memory[indices]
        self._show(tokens)

    def _show(self, tokens: int) -> None:
        self.keys = self._key_memory[:, :, :tokens]
        self.values = self._value_memory[:, :, :tokens]


def _roomier(filled: Tensor, like: Tensor, size: int) -> Tensor:
    memory = torch.empty(
        (*like.shape[:2], size, like.shape[3]), dtype=like.dtype, device=like.device
    )
    memory[:, :, : filled.shape[2]] = filled
    return memory


def growing_cache(config: "PreTrainedConfig") -> DynamicCache:
    """Return an empty cache for a model; layers that keep a window of tokens are as they were."""
    cache = DynamicCache(config=config)
    cache.layers = [
        GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers
    ]
    return cache


def shared_key_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, Tensor | None]:
    """Return the attention output, shape (batch, tokens, heads, features of a head).

    Query heads that share a key head stand where queries of several tokens would: one new token
    sees all keys, so that each of those queries has the same mask. transformers' own `sdpa`, which
    computes all other cases, repeats keys and values for each of them on a CPU.
    """
    batch, heads, queries, features = query.shape
    groups = heads // key.shape[1]
    others = any(settings.get(name) is not None for name in _ELSEWHERE)
    if queries != 1 or groups == 1 or query.device.type != "cpu" or module.training or others:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **settings
        )
        return found
    if attention_mask is not None:
        attention_mask = attention_mask.expand(batch, 1, groups, -1)
    output = functional.scaled_dot_product_attention(
        query.reshape(batch, -1, groups, features),
        key,
        value,
        attn_mask=attention_mask,
        scale=settings.get("scaling"),
    )
    return output.reshape(batch, 1, heads, -1), None


@contextmanager
def sharing_keys(model: "PreTrainedModel") -> Iterator[None]:
    """Let a model attend so, if it attends by `sdpa`."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    if model.config._attn_implementation != "sdpa":
        yield
        return
    AttentionInterface.register(NAME, shared_key_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = "sdpa"


DROP_SHARE = 0.125
"""Rows leave the batch and its cache once this share of it is finished."""


@dataclass(frozen=True, slots=True)
class Job:
    """One reply to sample; `sampling.max_tokens` fits the context window."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stops: StopStrings


@dataclass(slots=True)
class Sampled:
    """Sampled ids with their log-probabilities, and why they ended."""

    ids: list[int]
    logps: list[float]
    finish: Literal["end", "stop", "length"]


@dataclass(slots=True)
class _Batch:
    """The rows still being sampled. `row_B` is their place in the jobs.

    `may_stop_SV` says which tokens may complete a stop string, for each different set of these;
    `stops_J` is which set each of the jobs has.
    """

    row_B: Tensor
    limit_B: Tensor
    done_B: Tensor
    may_stop_SV: Tensor | None
    stops_J: Tensor
    position_B: Tensor
    mask_BT: Tensor
    draws: Draws
    cache: Any

    def keep(self, kept: Tensor) -> None:
        self.row_B = self.row_B[kept]
        self.limit_B = self.limit_B[kept]
        self.done_B = self.done_B[kept]
        self.position_B = self.position_B[kept]
        self.mask_BT = self.mask_BT[kept]
        self.draws = self.draws.rows(kept)
        self.cache.batch_select_indices(kept)


class Decoder:
    """Samples batches from one model.

    Args:
        model: A causal language model in evaluation mode.
        end_ids: Ids that end a reply.
        pad_id: Fills the left of short prompts; masked.
    """

    def __init__(self, model: "PreTrainedModel", end_ids: Sequence[int], pad_id: int) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._end_ids = torch.tensor(end_ids, dtype=torch.long, device=self._device)
        self._pad_id = pad_id
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        # An index copies the last states. A number would give a view of all, for which torch copies
        # the head of the model once for each row: gigabytes, and most of the time of a prefill.
        self._last_only: Mapping[str, object] = (
            {"logits_to_keep": torch.tensor([-1], device=self._device)}
            if "logits_to_keep" in inspect.signature(base.forward).parameters
            else {}
        )

    @torch.inference_mode()
    def sample(self, jobs: Sequence[Job]) -> list[Sampled]:
        """Return one sampled reply a job; all of them run side by side."""
        with sharing_keys(self._model):
            return self._sample(jobs)

    def _sample(self, jobs: Sequence[Job]) -> list[Sampled]:
        longest = max(job.sampling.max_tokens for job in jobs)
        out_BT = torch.zeros((len(jobs), longest), dtype=torch.long, device=self._device)
        logps_BT = torch.zeros((len(jobs), longest), device=self._device)
        length_B = torch.zeros(len(jobs), dtype=torch.long, device=self._device)
        reason_B = torch.zeros_like(length_B)
        logits_BV, batch = self._prefill(jobs, longest)
        # Sampled ids stay on the device; only whether a row has ended is asked for at each step.
        for step in range(longest):
            ids_B, step_logps_B = batch.draws.draw(logits_BV, step)
            out_BT[batch.row_B, step] = ids_B
            logps_BT[batch.row_B, step] = step_logps_B
            why_B = torch.where(step + 1 >= batch.limit_B, 3, 0)
            self._mark_stops(jobs, batch, ids_B, out_BT[:, : step + 1], why_B)
            why_B = torch.where(torch.isin(ids_B, self._end_ids), 1, why_B)
            ended_B = (why_B > 0) & ~batch.done_B
            if bool(ended_B.any()):
                length_B[batch.row_B[ended_B]] = step + 1
                reason_B[batch.row_B[ended_B]] = why_B[ended_B]
                batch.done_B = batch.done_B | ended_B
                finished = int(batch.done_B.sum())
                if finished == batch.done_B.shape[0]:
                    break
                # Dropping copies the cache, so it waits until a share of the rows has ended.
                if finished >= DROP_SHARE * batch.done_B.shape[0]:
                    kept = torch.nonzero(~batch.done_B)[:, 0]
                    batch.keep(kept)
                    ids_B = ids_B[kept]
            logits_BV = self._step(batch, ids_B)
        return _gather(out_BT, logps_BT, length_B, reason_B)

    def _mark_stops(
        self, jobs: Sequence[Job], batch: _Batch, ids_B: Tensor, out_BT: Tensor, why_B: Tensor
    ) -> None:
        if batch.may_stop_SV is None:
            return
        may_B = batch.may_stop_SV[batch.stops_J[batch.row_B], ids_B]
        for at in torch.nonzero(may_B & ~batch.done_B)[:, 0].tolist():
            row = int(batch.row_B[at])
            stops = jobs[row].stops
            if stops.completed(out_BT[row, -stops.tail :].tolist()):
                why_B[at] = 2

    def _prefill(self, jobs: Sequence[Job], longest: int) -> tuple[Tensor, _Batch]:
        """Run every different prompt once; return the next token's logits and the batch."""
        # Copies of a debate ask with the same prompt, which is then computed once.
        places: dict[tuple[int, ...], int] = {}
        source = [places.setdefault(job.prompt_ids, len(places)) for job in jobs]
        width = max(map(len, places))
        ids = [[self._pad_id] * (width - len(p)) + list(p) for p in places]
        mask = [[0] * (width - len(p)) + [1] * len(p) for p in places]
        mask_UT = torch.tensor(mask, device=self._device)
        cache = growing_cache(self._model.config)
        positions_UT = (mask_UT.cumsum(-1) - 1).clamp(min=0)
        logits_UV = self._logits(
            torch.tensor(ids, device=self._device), mask_UT, positions_UT, cache
        )
        source_B = torch.tensor(source, device=self._device)
        if len(places) < len(jobs):
            cache.batch_select_indices(source_B)
        different = list(dict.fromkeys(job.stops for job in jobs))
        may_stop_SV = torch.stack([stops.may_complete_V for stops in different])
        stops = [different.index(job.stops) for job in jobs]
        lengths_B = torch.tensor([len(job.prompt_ids) for job in jobs], device=self._device)
        samplings = [job.sampling for job in jobs]
        limits = torch.tensor([s.max_tokens for s in samplings], device=self._device)
        return logits_UV[source_B], _Batch(
            row_B=torch.arange(len(jobs), device=self._device),
            limit_B=limits,
            done_B=torch.zeros(len(jobs), dtype=torch.bool, device=self._device),
            may_stop_SV=may_stop_SV.to(self._device) if bool(may_stop_SV.any()) else None,
            stops_J=torch.tensor(stops, device=self._device),
            position_B=lengths_B,
            mask_BT=mask_UT[source_B],
            draws=Draws.of(samplings, longest, self._device),
            cache=cache,
        )

    def _step(self, batch: _Batch, ids_B: Tensor) -> Tensor:
        one_B1 = torch.ones_like(batch.mask_BT[:, :1])
        batch.mask_BT = torch.cat((batch.mask_BT, one_B1), dim=1)
        position_B1 = batch.position_B[:, None]
        batch.position_B = batch.position_B + 1
        return self._logits(ids_B[:, None], batch.mask_BT, position_B1, batch.cache)

    def _logits(self, ids_BT: Tensor, mask_BT: Tensor, positions_BT: Tensor, cache: Any) -> Tensor:
        """Return the next token's logits after these ids, whose keys and values the cache gets."""
        logits_BTV: Tensor = self._model(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=True,
            **self._last_only,
        ).logits
        return logits_BTV[:, -1]


_FINISH: dict[int, Literal["end", "stop", "length"]] = {1: "end", 2: "stop", 3: "length"}


def _gather(out_BT: Tensor, logps_BT: Tensor, length_B: Tensor, reason_B: Tensor) -> list[Sampled]:
    rows = zip(
        out_BT.tolist(), logps_BT.tolist(), length_B.tolist(), reason_B.tolist(), strict=True
    )
    found = [Sampled(ids[:n], logps[:n], _FINISH[why]) for ids, logps, n, why in rows]
    if not all(map(math.isfinite, chain.from_iterable(one.logps for one in found))):
        raise NotFiniteError(
            "the model's log-probabilities are not finite: found NaN or infinity; expected a lower "
            "trainer.learning_rate, an undamaged model folder, or a wider dtype than float16"
        )
    return found


class TransformersSampler:
    """Samples from its own copy of a causal model."""

    def __init__(
        self,
        config: "TransformersEngine",
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
        rooms = [room_of(request, self.context_window) for request in requests]
        adapters = [of_adapter(self._adapters, request.turn_request) for request in requests]
        full = [at for at, room in enumerate(rooms) if room < 1]
        replies = {at: overflow(requests[at], self._version) for at in full}
        asked = [at for at in range(len(requests)) if at not in replies]
        # Like lengths side by side: less padding, and rows that end at about the same time.
        asked.sort(key=lambda at: len(requests[at].prompt_ids))
        # A batch is sampled with one adapter.
        for name in dict.fromkeys(adapters[at] for at in asked):
            own = [at for at in asked if adapters[at] == name]
            if name is not None:
                self._model.set_adapter(name, inference_mode=True)
            for start in range(0, len(own), self._config.max_batch):
                chunk = own[start : start + self._config.max_batch]
                found = self._decoder.sample([self._job(requests[at], rooms[at]) for at in chunk])
                for at, one in zip(chunk, found, strict=True):
                    replies[at] = self.renderer.reply(
                        requests[at], one.ids, one.logps, one.finish, self._version
                    )
        return [replies[at] for at in range(len(requests))]

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
        self._model.eval().requires_grad_(False)
        ends = self.renderer.all_end_ids(self._model)
        return Decoder(self._model, ends, self._tokenizer.pad_token_id or 0)

    def _job(self, request: Request, room: int) -> Job:
        stop = request.sampling.stop
        if stop not in self._stops:
            size = self._model.config.get_text_config().vocab_size
            self._stops[stop] = StopStrings(self._tokenizer, stop, size)
        return Job(
            request.prompt_ids, replace(request.sampling, max_tokens=room), self._stops[stop]
        )


def _prepared(model: "PreTrainedModel", config: "TransformersEngine") -> "PreTrainedModel":
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = None if config.dtype == "auto" else getattr(torch, config.dtype)
    return model.to(device=device, dtype=dtype) if dtype else model.to(device=device)
