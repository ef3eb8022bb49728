"""The running transformers engine: left-padded batches, one cache, finished rows dropped."""

import copy
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
"""Further tokens that a full layer reserves memory for."""
NAME = "debate_shared_keys"
"""Name of `shared_key_attention` in transformers."""
DROP_SHARE = 0.125
"""Rows leave the batch and its cache once this share of it is finished."""
_UNSUPPORTED = ("position_bias", "cache", "softcap", "s_aux", "output_attentions")
"""Settings of attention that `shared_key_attention` leaves to transformers."""

# Causes of a row's end, as a tensor holds them; 0 is a row that goes on.
_END = 1
_STOP = 2
_LENGTH = 3
_FINISHES: Mapping[int, Literal["end", "stop", "length"]] = {
    _END: "end",
    _STOP: "stop",
    _LENGTH: "length",
}


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, in memory with space for further tokens.

    `keys` and `values` are views of the filled memory, each (batch, key heads, tokens, features of
    a head). transformers' `DynamicLayer` copies both for each new token instead.
    """

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Reserve nothing yet."""
        self.dtype = key_states.dtype
        self.device = key_states.device
        self.keys = self._key_memory = key_states[:, :, :0]
        self.values = self._value_memory = value_states[:, :, :0]
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append new tokens and return all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        # Appending by a copy for each token would cost the square of the length.
        num_before = self.keys.shape[2]
        num_tokens = num_before + key_states.shape[2]
        if num_tokens > self._key_memory.shape[2]:
            self._key_memory = _reserve(self.keys, key_states, num_tokens + ROOM)
            self._value_memory = _reserve(self.values, value_states, num_tokens + ROOM)
        self._key_memory[:, :, num_before:num_tokens] = key_states
        self._value_memory[:, :, num_before:num_tokens] = value_states
        self._set_views(num_tokens)
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select rows of the batch."""
        num_tokens = self.keys.shape[2]
        self._key_memory = self._key_memory[indices]
        self._value_memory = self._value_memory[indices]
        self._set_views(num_tokens)

    def _set_views(self, num_tokens: int) -> None:
        self.keys = self._key_memory[:, :, :num_tokens]
        self.values = self._value_memory[:, :, :num_tokens]


def _reserve(filled: Tensor, states: Tensor, num_tokens: int) -> Tensor:
    batch_size, num_heads, _, num_features = states.shape
    shape = (batch_size, num_heads, num_tokens, num_features)
    memory = torch.empty(shape, dtype=states.dtype, device=states.device)
    memory[:, :, : filled.shape[2]] = filled
    return memory


def growing_cache(config: "PreTrainedConfig") -> DynamicCache:
    """Build an empty cache for a model; sliding-window layers stay transformers' own."""
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
    """Compute attention of a new token on a CPU without repeating keys for grouped queries.

    All other cases go to transformers' own `sdpa`: on a CPU it repeats keys and values for each
    query head.

    Returns:
        the attention output, shape (batch, tokens, heads, features of a head), and `None`.
    """
    batch_size, num_heads, num_queries, num_features = query.shape
    num_grouped = num_heads // key.shape[1]
    has_unsupported = any(settings.get(name) is not None for name in _UNSUPPORTED)
    is_one_grouped_token = num_queries == 1 and num_grouped > 1
    on_cpu = query.device.type == "cpu"
    if not is_one_grouped_token or not on_cpu or module.training or has_unsupported:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output_and_weights: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **settings
        )
        return output_and_weights

    # The query heads of a key head take the dimension of tokens: keys are then read once, not once
    # for each query head. One new token sees all keys, so each of these queries has the same mask.
    if attention_mask is not None:
        attention_mask = attention_mask.expand(batch_size, 1, num_grouped, -1)
    output = functional.scaled_dot_product_attention(
        query.reshape(batch_size, -1, num_grouped, num_features),
        key,
        value,
        attn_mask=attention_mask,
        scale=settings.get("scaling"),
    )
    return output.reshape(batch_size, 1, num_heads, -1), None


@contextmanager
def sharing_keys(model: "PreTrainedModel") -> Iterator[None]:
    """Let a model with `sdpa` attention use `shared_key_attention` in this context."""
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


@dataclass(frozen=True, slots=True)
class Job:
    """One reply to sample; `sampling.max_tokens` fits the context window."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    stops: StopStrings


@dataclass(slots=True)
class Sampled:
    """Sampled ids with their log-probabilities and the cause of their end."""

    ids: list[int]
    logps: list[float]
    finish: Literal["end", "stop", "length"]


@dataclass(slots=True)
class _Batch:
    """Rows that are still sampled.

    Attributes:
        row_B: Index of each row's job.
        limit_B: Most tokens of its reply.
        done_B: Rows that have ended but not left the batch.
        may_stop_SV: Tokens that may complete a stop string, for each of S sets of stop strings.
        stops_J: Index of each job's set of stop strings.
        position_B: Position of the next token.
        mask_BT: Prompt and reply tokens, without padding.
        draws: How each row is sampled.
        cache: Keys and values of all tokens so far.
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

    def select(self, rows: Tensor) -> None:
        self.row_B = self.row_B[rows]
        self.limit_B = self.limit_B[rows]
        self.done_B = self.done_B[rows]
        self.position_B = self.position_B[rows]
        self.mask_BT = self.mask_BT[rows]
        self.draws = self.draws.rows(rows)
        self.cache.batch_select_indices(rows)


class Decoder:
    """Samples batches from a model.

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
        self._last_only: dict[str, object] = {}
        if "logits_to_keep" in inspect.signature(base.forward).parameters:
            # An index copies the last states. A number would give a view of all, for which torch
            # copies the head of the model once for each row: gigabytes, and most of a prefill.
            self._last_only["logits_to_keep"] = torch.tensor([-1], device=self._device)

    @torch.inference_mode()
    def sample(self, jobs: Sequence[Job]) -> list[Sampled]:
        """Sample a reply a job, all in a single batch."""
        with sharing_keys(self._model):
            return self._sample(jobs)

    def _sample(self, jobs: Sequence[Job]) -> list[Sampled]:
        longest = max(job.sampling.max_tokens for job in jobs)
        # Results of all jobs; the batch shrinks, and its `row_B` leads here.
        ids_JT = torch.zeros((len(jobs), longest), dtype=torch.long, device=self._device)
        logps_JT = torch.zeros((len(jobs), longest), device=self._device)
        length_J = torch.zeros(len(jobs), dtype=torch.long, device=self._device)
        finish_J = torch.zeros_like(length_J)
        logits_BV, batch = self._prefill(jobs, longest)
        # Sampled ids stay on the device: each step transfers only whether a row has ended.
        for step in range(longest):
            ids_B, step_logps_B = batch.draws.draw(logits_BV, step)
            ids_JT[batch.row_B, step] = ids_B
            logps_JT[batch.row_B, step] = step_logps_B

            # Later causes replace earlier ones: an end token at the limit is an end.
            finish_B = torch.where(step + 1 >= batch.limit_B, _LENGTH, 0)
            self._mark_stops(jobs, batch, ids_B, ids_JT[:, : step + 1], finish_B)
            finish_B = torch.where(torch.isin(ids_B, self._end_ids), _END, finish_B)

            ended_B = (finish_B > 0) & ~batch.done_B
            if bool(ended_B.any()):
                length_J[batch.row_B[ended_B]] = step + 1
                finish_J[batch.row_B[ended_B]] = finish_B[ended_B]
                batch.done_B = batch.done_B | ended_B
                batch_size = batch.done_B.shape[0]
                num_done = int(batch.done_B.sum())
                if num_done == batch_size:
                    break
                # Dropping copies the cache, so it waits until a share of the rows has ended.
                if num_done >= DROP_SHARE * batch_size:
                    unfinished = torch.nonzero(~batch.done_B)[:, 0]
                    batch.select(unfinished)
                    ids_B = ids_B[unfinished]
            logits_BV = self._step(batch, ids_B)
        return _gather(ids_JT, logps_JT, length_J, finish_J)

    def _mark_stops(
        self, jobs: Sequence[Job], batch: _Batch, ids_B: Tensor, ids_JT: Tensor, finish_B: Tensor
    ) -> None:
        if batch.may_stop_SV is None:
            return
        may_stop_B = batch.may_stop_SV[batch.stops_J[batch.row_B], ids_B]
        # Few tokens can complete a stop string; only their rows are compared on the CPU.
        for row in torch.nonzero(may_stop_B & ~batch.done_B)[:, 0].tolist():
            job = int(batch.row_B[row])
            stops = jobs[job].stops
            if stops.completed(ids_JT[job, -stops.tail :].tolist()):
                finish_B[row] = _STOP

    def _prefill(self, jobs: Sequence[Job], longest: int) -> tuple[Tensor, _Batch]:
        """Compute each of U different prompts once, with the next token's logits and the batch."""
        # Copies of a debate have the same prompt, which is then computed once.
        prompt_index: dict[tuple[int, ...], int] = {}
        for job in jobs:
            prompt_index.setdefault(job.prompt_ids, len(prompt_index))
        # Padded on the left, so that all replies begin in the same column.
        width = max(map(len, prompt_index))
        padded_ids = []
        mask = []
        for prompt_ids in prompt_index:
            num_padding = width - len(prompt_ids)
            padded_ids.append([self._pad_id] * num_padding + list(prompt_ids))
            mask.append([0] * num_padding + [1] * len(prompt_ids))
        ids_UT = torch.tensor(padded_ids, device=self._device)
        mask_UT = torch.tensor(mask, device=self._device)
        # Padding has no position: each prompt counts from 0, as if it were alone.
        positions_UT = (mask_UT.cumsum(-1) - 1).clamp(min=0)
        cache = growing_cache(self._model.config)
        logits_UV = self._logits(ids_UT, mask_UT, positions_UT, cache)

        prompt_of_job = [prompt_index[job.prompt_ids] for job in jobs]
        source_B = torch.tensor(prompt_of_job, device=self._device)
        if len(prompt_index) < len(jobs):
            cache.batch_select_indices(source_B)
        # A row of the vocabulary's size for each set of stop strings, not for each job.
        stop_sets = list(dict.fromkeys(job.stops for job in jobs))
        may_stop_SV = torch.stack([stops.may_complete_V for stops in stop_sets])
        stops = [stop_sets.index(job.stops) for job in jobs]
        lengths_B = torch.tensor([len(job.prompt_ids) for job in jobs], device=self._device)
        samplings = [job.sampling for job in jobs]
        limits = [sampling.max_tokens for sampling in samplings]
        return logits_UV[source_B], _Batch(
            row_B=torch.arange(len(jobs), device=self._device),
            limit_B=torch.tensor(limits, device=self._device),
            done_B=torch.zeros(len(jobs), dtype=torch.bool, device=self._device),
            may_stop_SV=may_stop_SV.to(self._device) if bool(may_stop_SV.any()) else None,
            stops_J=torch.tensor(stops, device=self._device),
            position_B=lengths_B,
            mask_BT=mask_UT[source_B],
            draws=Draws.of(samplings, longest, self._device),
            cache=cache,
        )

    def _step(self, batch: _Batch, ids_B: Tensor) -> Tensor:
        ones_B1 = torch.ones_like(batch.mask_BT[:, :1])
        batch.mask_BT = torch.cat((batch.mask_BT, ones_B1), dim=1)
        position_B1 = batch.position_B[:, None]
        batch.position_B = batch.position_B + 1
        return self._logits(ids_B[:, None], batch.mask_BT, position_B1, batch.cache)

    def _logits(self, ids_BT: Tensor, mask_BT: Tensor, positions_BT: Tensor, cache: Any) -> Tensor:
        """Compute the next token's logits; the cache grows by the keys and values of these ids."""
        logits_BTV: Tensor = self._model(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=True,
            **self._last_only,
        ).logits
        return logits_BTV[:, -1]


def _gather(ids_JT: Tensor, logps_JT: Tensor, length_J: Tensor, finish_J: Tensor) -> list[Sampled]:
    # One transfer of each tensor, rather than one of each row.
    ids = ids_JT.tolist()
    logps = logps_JT.tolist()
    finishes = finish_J.tolist()
    replies = []
    for job, length in enumerate(length_J.tolist()):
        reply_logps = logps[job][:length]
        # Checked here and not at each step, where a look at the numbers would wait for the device.
        if not all(map(math.isfinite, reply_logps)):
            raise NotFiniteError(
                "the model's log-probabilities are not finite: found NaN or infinity; expected a "
                "lower trainer.learning_rate, an undamaged model folder, or a wider dtype than "
                "float16"
            )
        replies.append(
            Sampled(ids=ids[job][:length], logps=reply_logps, finish=_FINISHES[finishes[job]])
        )
    return replies


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
        # An adapter without a name serves all requests, and needs no choice.
        peft_names = getattr(model, "peft_config", ())
        self._adapters = {name: name for name in peft_names if name != ONLY}
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        own_model = copy.deepcopy(model) if config.copy_model else model
        self._model = _move(own_model, config)
        model_window = getattr(self._model.config, "max_position_embeddings", None)
        self.context_window: int | None = config.context_window or model_window
        self._decoder = self._make_decoder()

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Sample a reply a request, in order.

        A prompt that fills the context window gets a reply without tokens, finish
        `context_overflow`; else `max_tokens` is cut to the space left. `token_ids` include the
        whole token in which a stop string ended.

        Raises:
            EngineConfigError: When a prompt has no ids.
        """
        token_limits = [room_of(request, self.context_window) for request in requests]
        adapters = [of_adapter(self._adapters, request.turn_request) for request in requests]
        replies: dict[int, Reply] = {}
        to_sample = []
        for index, request in enumerate(requests):
            if token_limits[index] < 1:
                replies[index] = overflow(request, self._version)
            else:
                to_sample.append(index)
        # Like lengths side by side: less padding, and rows that end at about the same time.
        to_sample.sort(key=lambda index: len(requests[index].prompt_ids))
        # A batch is sampled with one adapter.
        for adapter in dict.fromkeys(adapters[index] for index in to_sample):
            if adapter is not None:
                self._model.set_adapter(adapter, inference_mode=True)
            with_adapter = [index for index in to_sample if adapters[index] == adapter]
            for start in range(0, len(with_adapter), self._config.max_batch):
                chunk = with_adapter[start : start + self._config.max_batch]
                jobs = [self._job(requests[index], token_limits[index]) for index in chunk]
                for index, sampled in zip(chunk, self._decoder.sample(jobs), strict=True):
                    replies[index] = self.renderer.reply(
                        requests[index],
                        sampled.ids,
                        sampled.logps,
                        sampled.finish,
                        self._version,
                    )
        return [replies[index] for index in range(len(requests))]

    def load(self, weights: Weights) -> None:
        """Copy weights into the served model: every parameter, or adapters on its base.

        Raises:
            WeightsError: When names or shapes do not fit; no parameter is copied then.
        """
        if weights.kind == "lora":
            self._model = load_lora(self._model, weights)
            self._adapters = {name: name or ONLY for name in weights.by_adapter()}
        else:
            self._model = load_full(self._model, weights)
            self._adapters = {}
        self._version = weights.version
        # The model may be another object now, with or without peft's wrapper.
        self._decoder = self._make_decoder()

    def close(self) -> None:
        """Free the model."""
        del self._model, self._decoder
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _make_decoder(self) -> Decoder:
        self._model.eval().requires_grad_(False)
        end_ids = self.renderer.all_end_ids(self._model)
        return Decoder(self._model, end_ids, self._tokenizer.pad_token_id or 0)

    def _job(self, request: Request, max_tokens: int) -> Job:
        stop = request.sampling.stop
        if stop not in self._stops:
            # The model may have more ids than the tokenizer has tokens.
            vocabulary = self._model.config.get_text_config().vocab_size
            self._stops[stop] = StopStrings(self._tokenizer, stop, vocabulary)
        return Job(
            prompt_ids=request.prompt_ids,
            sampling=replace(request.sampling, max_tokens=max_tokens),
            stops=self._stops[stop],
        )


def _move(model: "PreTrainedModel", config: "TransformersEngine") -> "PreTrainedModel":
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if config.dtype == "auto":
        return model.to(device=device)
    return model.to(device=device, dtype=getattr(torch, config.dtype))
