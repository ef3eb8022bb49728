"""The running tinker engine: batches of one shape, replies cut here, one sampling client."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import tinker
from tinker import types

from debate_protocol.types import Finish, Reply
from debate_rollout.engine import (
    Capability,
    EndpointError,
    EngineConfigError,
    NotFiniteError,
    Request,
    Sampling,
    Weights,
    WeightsError,
    overflow,
    room_of,
)
from debate_rollout.engines.tinker import CALL_TIMEOUT_S, SERVED, ServedAdapter
from debate_rollout.rendering import Renderer, piece_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from debate_rollout.engines.tinker import TinkerEngine


def seed_31_bits(seed: int) -> int:
    """Hash a seed to 31 bits: servers read 32 bits with a sign, and refuse or cut others.

    Each request asks for one sample. Sample i of a request has the seed plus i, so seeds of
    requests for several samples would overlap.
    """
    digest = hashlib.blake2b(str(seed).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1


def length_step(length: int) -> int:
    """Round a length up as compiling servers do: 32, 48, 64, 96, 128, 192 and so on."""
    step = 32
    while step < length:
        middle = step * 3 // 2
        if length <= middle:
            return middle
        step *= 2
    return step


class TinkerSampler:
    """An open `TinkerEngine`."""

    def __init__(
        self,
        config: "TinkerEngine",
        model: Any,
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object],
    ) -> None:
        self._config = config
        self._renderer = Renderer(tokenizer, template_kwargs)
        self._pieces = piece_bytes(tokenizer)
        self._end_ids = self._renderer.all_end_ids(model)
        text_config = model.config.get_text_config()
        self._window: int | None = getattr(text_config, "max_position_embeddings", None)
        if self._window is None:
            raise EngineConfigError(
                "rollout.engine: found no max_position_embeddings in the model's configuration; "
                "expected one, as servers do not check their window"
            )
        self._served: ServedAdapter | None = None
        self._version = 0

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Capabilities of the opened engine."""
        return self._config.capabilities

    @property
    def renderer(self) -> Renderer:
        """The renderer of this engine's prompts."""
        return self._renderer

    @property
    def context_window(self) -> int | None:
        """Most tokens of prompt and reply together."""
        return self._window

    def load(self, weights: Weights) -> None:
        """Sample from a served adapter from now on; the client of the older weights is dropped.

        Raises:
            WeightsError: The weights are tensors instead of a served adapter.
        """
        served = weights.tensors.get(SERVED)
        if not isinstance(served, ServedAdapter):
            raise WeightsError(
                "the tinker engine: found tensors; expected the adapter of a trainer of type tinker"
            )
        self._served = served
        self._version = weights.version

    def close(self) -> None:
        """Drop the client."""
        self._served = None

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Sample one reply a request, in order."""
        replies: dict[int, Reply] = {}
        groups: dict[tuple[int, int], list[int]] = {}
        for index, request in enumerate(requests):
            _refuse_sampling(request.sampling)
            room = room_of(request, self._window)
            if room < 1:
                replies[index] = overflow(request, self._version)
                continue
            key = (room, length_step(len(request.prompt_ids)))
            groups.setdefault(key, []).append(index)
        # The requests of a group have one shape, however the server divides them into batches. So
        # it compiles for few shapes, and rounding does not depend on timing.
        for (room, _), indices in groups.items():
            group = [requests[index] for index in indices]
            for index, reply in zip(indices, self._sample(group, room), strict=True):
                replies[index] = reply
        return [replies[index] for index in range(len(requests))]

    def _sample(self, requests: Sequence[Request], max_tokens: int) -> Iterator[Reply]:
        served = self._served
        if served is None:
            raise EngineConfigError(
                "the tinker engine has no weights yet; expected those of a trainer of type tinker"
            )
        futures: list[Future[types.SampleResponse]] = []
        for request in requests:
            sampling = request.sampling
            parameters = types.SamplingParams(
                max_tokens=max_tokens,
                seed=seed_31_bits(sampling.seed),
                # Text ends nothing on the server before the reply is complete, and an end token
                # ends only where it is named.
                stop=self._end_ids,
                temperature=sampling.temperature,
                top_k=sampling.top_k or -1,
                top_p=sampling.top_p,
            )
            prompt = types.ModelInput.from_ints(list(request.prompt_ids))
            futures.append(served.client.sample(prompt, 1, parameters))
        for request, future in zip(requests, futures, strict=True):
            try:
                response = future.result(timeout=CALL_TIMEOUT_S)
            except (tinker.TinkerError, TimeoutError, ValueError) as error:
                raise EndpointError(f"the server gave no reply: {error}") from error
            reply = self._reply(request, response.sequences[0])
            served.usage.prompt_tokens += len(request.prompt_ids)
            served.usage.sampled_tokens += len(reply.token_ids)
            yield reply

    def _reply(self, request: Request, sequence: types.SampledSequence) -> Reply:
        logps = sequence.logprobs or []
        if len(logps) != len(sequence.tokens) or not all(map(math.isfinite, logps)):
            raise NotFiniteError(
                f"the server's reply of {len(sequence.tokens)} tokens: found {len(logps)} "
                "log-probabilities, or some not finite; expected a finite one for each token"
            )
        length, finish = self._end_of(sequence.tokens, request.sampling.stop)
        return self._renderer.reply(
            request, sequence.tokens[:length], logps[:length], finish, self._version
        )

    def _end_of(self, ids: Sequence[int], stops: Sequence[str]) -> tuple[int, Finish]:
        """Find the length of a reply and the cause of the end."""
        encoded_stops = [stop.encode() for stop in stops if stop]
        longest = max(map(len, encoded_stops), default=0)
        text = b""
        for index, token in enumerate(ids):
            if token in self._end_ids:
                return index + 1, "end"
            piece = self._pieces[token]
            # A stop that ended before this token would have ended the reply there.
            text = text[-longest:] + piece if longest else b""
            if any(stop in text for stop in encoded_stops):
                return index + 1, "stop"
        return len(ids), "length"


def _refuse_sampling(sampling: Sampling) -> None:
    """Refuse settings unknown to the server, and temperatures without log-probabilities.

    Raises:
        EngineConfigError: The reply would not be sampled as asked.
    """
    if sampling.min_p > 0:
        raise EngineConfigError(
            f"min_p: found {sampling.min_p:g}, which the Tinker interface does not have; expected 0"
        )
    if sampling.temperature not in (0.0, 1.0):
        raise EngineConfigError(
            f"temperature: found {sampling.temperature:g}; expected 1, or 0 for greedy replies: "
            "the server's log-probabilities are those of temperature 1 at any temperature"
        )
