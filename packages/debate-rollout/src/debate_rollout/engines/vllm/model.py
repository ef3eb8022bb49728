"""The served model on this side of vLLM: requests, replies and fitting weights."""

import json
import os
import random
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig

from debate_protocol.types import Finish, Reply
from debate_rollout.engine import (
    EngineConfigError,
    Request,
    RolloutError,
    Weights,
    WeightsError,
    room_of,
)
from debate_rollout.engines.sampling import seed_bits
from debate_rollout.engines.vllm.settings import VllmSettings, refuse_raised_temperature
from debate_rollout.engines.weights import (
    base_tensors,
    blank_model,
    check_complete,
    check_fits,
    save_model,
    with_tied,
)
from debate_rollout.rendering import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True, slots=True)
class ThreadState:
    """Threads of torch's CPU operations, and the CUDA stream (`None` without CUDA), of a thread."""

    threads: int
    stream: Any

    @classmethod
    def now(cls) -> "ThreadState":
        """Return the state of the thread that calls."""
        stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
        return cls(torch.get_num_threads(), stream)

    def restore(self) -> None:
        """Put the calling thread into this state."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        if self.stream is not None:
            torch.cuda.set_stream(self.stream)

    @contextmanager
    def entered(self, ordered: bool = False) -> Iterator[None]:
        """Put the calling thread into this state for a while.

        With `ordered`, work begins on this stream when that of the stream left is done, and the
        other way round: for tensors that both use.
        """
        before = ThreadState.now()
        if ordered and self.stream is not None:
            self.stream.wait_stream(before.stream)
        self.restore()
        try:
            yield
        finally:
            if ordered and self.stream is not None:
                before.stream.wait_stream(self.stream)
            before.restore()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put back what vLLM's start replaces: random states, threads, stream, matmul precision."""
    set_num_threads, state = torch.set_num_threads, ThreadState.now()
    precision = torch.get_float32_matmul_precision()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads  # vLLM on a CPU replaces the function
        state.restore()
        torch.set_float32_matmul_precision(precision)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def free_cache() -> None:
    """Give memory that torch keeps for tensors to come back to the device."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def write_weights(folder: Path, label: str, tensors: Mapping[str, Tensor]) -> Path:
    """Write tensors to a safetensors file and return its path."""
    path = folder / f"weights-{label}.safetensors"
    partial = path.with_suffix(".partial")
    # Copies: safetensors refuses tensors that share memory, as tied ones do.
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, partial)
    os.replace(partial, path)
    return path


Span = tuple[int, int, int]
"""Weight version, and the start and end of its tokens in a reply."""

_MOST_LABELS = 64
"""Loads that a request may stay open over."""


UNLOADED = "default"
"""vLLM's label of the weights that a server started with."""


class OtherWeightsError(RolloutError):
    """A reply by other weights than requested."""

    def __init__(self, message: str, label: str) -> None:
        super().__init__(message)
        self.label = label


class ServedModel:
    """A model on disk for vLLM, and the shapes its weights must have."""

    def __init__(
        self,
        settings: VllmSettings,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerFast",
        template_kwargs: Mapping[str, object],
        folder: str | None = None,
    ) -> None:
        if folder is not None and not Path(folder).is_dir():
            raise EngineConfigError(
                f"engine.shared_folder: found no directory {folder!r}; expected a shared one"
            )
        self.renderer = Renderer(tokenizer, template_kwargs)
        self.folder = Path(tempfile.mkdtemp(prefix="debate-rollout-", dir=folder))
        self.versions = {UNLOADED: 0}
        """Versions by vLLM's labels, in the order in which they were loaded."""
        self._run = secrets.token_hex(4)
        self._loads = 0
        named = isinstance(model, str | Path)
        shape = (
            AutoConfig.from_pretrained(model, trust_remote_code=False) if named else model.config
        )
        self._blank = blank_model(shape)
        self._settings = settings
        self._shapes = self._blank.state_dict(keep_vars=True)
        self._adapters = 0
        self._adapter_shapes: tuple[str, Mapping[str, Tensor]] = ("", {})
        self.window: int | None = (
            settings.context_window or shape.get_text_config().max_position_embeddings
        )
        kept = getattr(shape if named else model, "dtype", None)
        self.dtype = settings.dtype if settings.dtype != "auto" else _dtype_name(kept)
        self.end_ids = self.renderer.all_end_ids(self._blank)

    def close(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def room(self, request: Request) -> int:
        """Return how many tokens the reply may have; below 1 when the prompt fills the window."""
        return room_of(request, self.window)

    def sampling(self, request: Request) -> dict[str, object]:
        """Name the request's sampling as vLLM does, neutral values included.

        Raises:
            EngineConfigError: The temperature is one that vLLM would raise.
        """
        sampling = request.sampling
        refuse_raised_temperature(sampling.temperature)
        return {
            "max_tokens": self.room(request),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop": list(sampling.stop),
            "stop_token_ids": self.end_ids,
            "seed": seed_bits(sampling.seed),
            "logprobs": 0,
        }

    def reply(
        self,
        request: Request,
        ids: Sequence[int],
        logps: Sequence[float],
        finish: Finish,
        spans: Sequence[Span],
    ) -> Reply:
        """Return the reply; `spans` name the weight versions, at least one."""
        if len(logps) != len(ids):
            raise RolloutError(
                f"vLLM gave {len(logps)} log-probabilities to {len(ids)} tokens; expected one each"
            )
        reply = self.renderer.reply(request, ids, logps, finish, spans[-1][0])
        return replace(reply, version_spans=tuple(spans)) if len(spans) > 1 else reply

    @property
    def label(self) -> str:
        """vLLM's label of the weights for requests that begin now."""
        return next(reversed(self.versions))

    def new_label(self, version: int) -> str:
        """Make a unique label for weights, also among other runs."""
        self._loads += 1
        return f"{version}-{self._run}-{self._loads}"

    def serve(self, label: str, version: int) -> None:
        """Expect this label of requests that begin from now on."""
        self.versions[label] = version
        while len(self.versions) > _MOST_LABELS:
            del self.versions[next(iter(self.versions))]

    def spans(
        self, found: Sequence[tuple[str, int, int]], began: int | str, length: int
    ) -> list[Span]:
        """Return vLLM's spans with our versions in place of its labels.

        Args:
            found: vLLM's spans.
            began: The label of the weights when the request began; the version of its adapter,
                which stays with it, where it has one.
            length: Tokens of the reply.

        Raises:
            OtherWeightsError: When a label is of other weights than those that were loaded last
                when the request began, or since.
        """
        if isinstance(began, int):
            return [(began, 0, length)]
        labels = list(self.versions)
        wanted = labels[labels.index(began) :] if began in labels else labels
        for label, _, _ in found:
            if label not in wanted:
                raise OtherWeightsError(
                    f"vLLM served weights {label!r}, expected {' or '.join(map(repr, wanted))}: "
                    "does another run refresh it, or has it started again? Go on with --resume",
                    label,
                )
        return [(self.versions[label], start, end) for label, start, end in found]

    def full_weights(self, weights: Weights) -> dict[str, Tensor]:
        """Return all tensors as vLLM must get them.

        Raises:
            WeightsError: When a name or shape does not fit, or one is missing.
        """
        if self._settings.max_lora_rank is not None:
            raise WeightsError(
                "engine.max_lora_rank: set, so the base stays as it is; found weights of kind "
                "'full', expected 'lora'; leave max_lora_rank out to serve all parameters"
            )
        # A bad name would kill vLLM at the next request, a missing tied head leave its old copy.
        check_fits(self._shapes, weights.tensors)
        check_complete(self._shapes, weights)
        return with_tied(self._shapes, weights.tensors, self._blank.config.model_type)

    def write_adapters(self, weights: Weights) -> dict[str, tuple[int, Path]]:
        """Write adapters where vLLM reads them; return the number and directory of each by name.

        vLLM keeps an adapter under its number, so no number is given twice.

        Raises:
            WeightsError: When an adapter does not fit the served model; none is written then.
            EngineConfigError: When this engine serves no adapters.
        """
        parts = weights.by_adapter()
        for part in parts.values():
            self._check_adapter(part)
        return {name: self._write_adapter(part) for name, part in parts.items()}

    def _check_adapter(self, weights: Weights) -> None:
        rank = self._settings.max_lora_rank
        if rank is None or weights.adapter is None:
            raise EngineConfigError(
                "engine.max_lora_rank: found None, or weights without `adapter`; expected both"
            )
        if cast(int, weights.adapter.get("r", rank)) > rank:
            raise WeightsError(
                f"engine.max_lora_rank: an adapter has rank {weights.adapter['r']}, above {rank}"
            )
        shapes = self._shapes_of(weights.adapter)
        check_fits(shapes, weights.tensors)
        check_complete(shapes, weights)

    def _write_adapter(self, weights: Weights) -> tuple[int, Path]:
        self._adapters += 1
        folder = self.folder / f"adapter-{self._adapters}"
        folder.mkdir()
        tensors = {k: v.detach().cpu().contiguous() for k, v in weights.tensors.items()}
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(weights.adapter, default=_as_json))
        return self._adapters, folder

    def drop_adapters(self, used: set[int]) -> None:
        """Remove the files of all adapters but those in use."""
        for folder in self.folder.glob("adapter-*"):
            if int(folder.name.removeprefix("adapter-")) not in used:
                shutil.rmtree(folder, ignore_errors=True)

    def _shapes_of(self, adapter: Mapping[str, object]) -> Mapping[str, Tensor]:
        """Return the tensors that an adapter of this configuration has, without values."""
        from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

        key = json.dumps(adapter, default=_as_json, sort_keys=True)
        if self._adapter_shapes[0] != key:
            settings = {k: v for k, v in adapter.items() if k != "peft_type"}
            with torch.device("meta"):
                model = get_peft_model(blank_model(self._blank.config), LoraConfig(**settings))
            self._adapter_shapes = (key, get_peft_model_state_dict(model))
        return self._adapter_shapes[1]

    def on_disk(self, model: "PreTrainedModel") -> str:
        """Return where vLLM finds the model and its tokenizer; a loaded model is written."""
        if isinstance(model, str | Path):
            return str(model)
        path = self.folder / "model"
        # What peft would save is the adapter alone; vLLM needs the base under its own names.
        has_adapter = hasattr(model, "peft_config")
        base = model.get_base_model() if has_adapter else model
        save_model(base, path, state_dict=base_tensors(model) if has_adapter else None)
        self.renderer.tokenizer.save_pretrained(path)
        return str(path)


def finish_of(reason: str | None, stop: object) -> Finish:
    """Return how a reply ended, from vLLM's `finish_reason` and `stop_reason`.

    Raises:
        RolloutError: When vLLM gave the reply up.
    """
    if reason == "length":
        return "length"
    if reason != "stop":
        raise RolloutError(f"vLLM ended a reply by {reason!r}; expected stop or length")
    return "stop" if isinstance(stop, str) else "end"


def _dtype_name(dtype: object) -> str:
    return "float32" if dtype is None else str(dtype).removeprefix("torch.")


def _as_json(value: object) -> object:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)
