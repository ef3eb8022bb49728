"""A model in memory: made from scratch or loaded, its trained part, its chat template."""

import importlib
import math
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from debate_protocol.plugins import Config
from debate_rollout.engine import Weights
from debate_train.interrupts import ModelError
from debate_train.models.adapters import ONLY, freeze_others
from debate_train.models.model_files import reading_model, reason_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


AdapterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$", max_length=64)]


class Lora(Config):
    """Low-rank adapters (Hu et al. 2021) on every linear layer, through peft."""

    rank: int = Field(32, ge=1)
    """Rank r of the adapters' matrices."""
    alpha: float = Field(64.0, gt=0)
    """Adapters are scaled by alpha / rank."""
    dropout: Literal[0] = 0
    """Fixed at 0: with dropout the trained policy is not the sampled one."""
    adapters: tuple[AdapterName, ...] = ()
    """Names of several adapters on the one model, alike but for their values: roles of the debate
    name theirs (`debate.roles.NAME.adapter`; the first speaks for those that name none). Empty is
    one adapter for all."""

    @field_validator("adapters")
    @classmethod
    def _each_has_its_name(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"found {name!r} {names.count(name)} times; expected each once")
            if name == "default":
                raise ValueError(f"found {name!r}, which an adapter without a name is called")
        return names


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with its tokenizer and where an engine in another process finds both."""

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerFast"
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    path: str | None = None
    lora: Lora | None = None
    training: tuple[str, ...] = ()
    """Of adapters with names those that are trained now; empty for all."""
    again: "Callable[[], PreTrainedModel] | None" = None
    """Loads the model once more, as it was before any training."""


def with_adapter(loaded: LoadedModel, seed: int) -> LoadedModel:
    """Return the model ready to train: with its LoRA adapters where some are asked for.

    Raises:
        ModelError: An adapter has the name of a part of the model, which peft would confuse.
    """
    if loaded.lora is None or hasattr(loaded.model, "peft_config"):
        return loaded
    import dataclasses

    import torch
    from peft import get_peft_model

    first, *others = loaded.lora.adapters or (ONLY,)
    parts = {part for name, _ in loaded.model.named_modules() for part in name.split(".")}
    for name in (first, *others):
        if name in parts:
            raise ModelError(
                f"model.lora.adapters: found {name!r}, which names a part of the model, too; "
                "expected another name"
            )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = get_peft_model(loaded.model, lora_config(loaded.lora), adapter_name=first)
        for name in others:
            model.add_adapter(name, lora_config(loaded.lora))
    made = dataclasses.replace(loaded, model=model)
    freeze_others(made)
    return made


def lora_config(lora: Lora):  # type: ignore[no-untyped-def]
    """Return peft's configuration of an adapter on every linear layer."""
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


def export_weights(loaded: LoadedModel, version: int) -> Weights:
    """Return all weights, or only those of adapters when these are trained."""
    if loaded.lora is None:
        return Weights(version, loaded.model.state_dict())
    from peft import get_peft_model_state_dict

    config, names = lora_config(loaded.lora).to_dict(), loaded.lora.adapters
    if not names:
        return Weights(version, get_peft_model_state_dict(loaded.model), "lora", config)
    tensors = {
        f"{name}/{key}": tensor
        for name in names
        for key, tensor in get_peft_model_state_dict(loaded.model, adapter_name=name).items()
    }
    return Weights(version, tensors, "lora", config, names)


class ScratchModel(Config):
    """A small Qwen3-shaped model with random weights and a word-level tokenizer."""

    type: Literal["scratch"] = "scratch"
    hidden_size: int = Field(64, ge=8)
    """Width of the residual stream."""
    layers: int = Field(2, ge=1)
    """Transformer layers."""
    heads: int = Field(4, ge=1)
    """Attention heads of a layer."""
    kv_heads: int = Field(2, ge=1)
    """Heads of keys and values, which divide the attention heads."""
    head_dim: int = Field(16, ge=2)
    """Width of a head."""
    ffn_size: int = Field(192, ge=8)
    """Width inside of the feed-forward layers."""
    context_window: int = Field(512, ge=16)
    """Most tokens of a sequence."""
    initializer_range: float = Field(0.1, gt=0)
    """Standard deviation of the random weights; 0.02, usual at larger sizes, learns slower here."""
    extra_words: tuple[str, ...] = ()
    """Words that the tokenizer knows beside its own, each one token; several words with a space
    between them are one token, too."""
    dtype: Literal["float32"] = "float32"
    """Type of the weights."""
    lora: None = None
    """All weights are trained."""

    @property
    def source(self) -> None:
        """It is made here."""
        return None

    @property
    def template_kwargs(self) -> Mapping[str, bool | int | str]:
        """Its chat template takes none."""
        return {}

    def folder(self) -> None:
        """Its weights are on no disk."""
        return None

    def with_lora(self, lora: Lora) -> None:
        """It is small: every parameter is trained."""
        return None

    def load(self, seed: int, *, with_values: bool = True) -> LoadedModel:
        """Build the model; equal seeds give equal weights. It is small: it always has values."""
        from transformers import Qwen3Config, Qwen3ForCausalLM

        tokenizer = self.load_tokenizer()
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=self.ffn_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.context_window,
            initializer_range=self.initializer_range,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )

        def made() -> Qwen3ForCausalLM:
            import torch

            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                return Qwen3ForCausalLM(config)

        return LoadedModel(made(), tokenizer, again=made)

    def load_tokenizer(self) -> "PreTrainedTokenizerFast":
        """Build the word-level tokenizer."""
        from debate_train.models.word_tokenizer import word_tokenizer

        return word_tokenizer(self.extra_words)


LIMIT_S = 5.0
"""Seconds of a processor that a template may take for a dialogue of four messages.

Real ones take milliseconds. What other processes take of a busy machine does not count.
"""
WAIT_S = 120.0
"""Seconds after which nobody waits for a template any more, whatever it got of a processor."""
_JINJA = "transformers.utils.chat_template_utils"
_MEMORY = 1 << 30
_LARGEST_PROMPT = 1 << 20
_LARGEST_TEMPLATE = 1 << 20
_FINE = b"\0"
"""What the process that renders says where nothing went wrong: one that dies says nothing."""
_ROLES = (("user",), ("user", "assistant", "user"))


def check_template(
    name: str, tokenizer: "PreTrainedTokenizerFast", template_kwargs: Mapping[str, object]
) -> None:
    """Refuse a chat template that fails, or that takes too much time or memory.

    Args:
        name: The model's name.
        tokenizer: Its tokenizer; one without a template is prompted plainly.
        template_kwargs: Handed to the template.

    Raises:
        ModelError: The template cannot be used.
    """
    template = tokenizer.chat_template
    if not template:
        return
    if not isinstance(template, str):
        template = template.get("default") if isinstance(template, dict) else None
    if not isinstance(template, str) or len(template) > _LARGEST_TEMPLATE:
        raise _refused(name, f"is no text of at most {_LARGEST_TEMPLATE:,} characters")

    def try_it() -> str:
        with reading_model(name, "chat template"):
            return "".join(_rendered(tokenizer, roles, template_kwargs) for roles in _ROLES)

    failure = _bounded(try_it)
    if failure is not None:
        raise _refused(name, failure)


def _rendered(
    tokenizer: "PreTrainedTokenizerFast",
    roles: tuple[str, ...],
    template_kwargs: Mapping[str, object],
) -> str:
    messages = [{"role": role, "content": f"text {at}"} for at, role in enumerate(roles)]
    return str(
        tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **template_kwargs
        )
    )


def _refused(name: str, failure: str) -> ModelError:
    return ModelError(
        f"model.name: the chat template of {name!r} {failure}; expected one that writes messages "
        "of a user and an assistant in turn (chat_template.jinja or tokenizer_config.json)"
    )


def _bounded(render: Callable[[], str]) -> str | None:
    """Return what went wrong, None if nothing; the process that renders is ended at the limit."""
    if not hasattr(os, "fork") or sys.platform == "darwin":  # pragma: no cover
        return _outcome(render)
    importlib.import_module(_JINJA)  # Here, and not on the template's time.
    read, write = os.pipe()
    with warnings.catch_warnings():
        # Other threads may hold locks in the child, which takes none: it only renders text.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            os.close(read)
            _limit_memory()
            _limit_time()
            os.write(write, (_outcome(render) or "").encode("utf-8", "replace")[:1000] or _FINE)
        finally:
            os._exit(0)
    os.close(write)
    said, status = None, 0
    try:
        said = _heard(read)
    finally:
        os.close(read)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if said == _FINE:
        return None
    if said is None:
        return f"is not through with a few words after {WAIT_S:g} seconds"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGXCPU):
        return f"takes more than {LIMIT_S:g} seconds of a processor for a few words"
    return said.decode("utf-8", "replace") or "ends the process that tries it"


def _heard(read: int) -> bytes | None:
    """Return all that the other process says, None if it does not come to an end."""
    deadline, said = time.monotonic() + WAIT_S, b""
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(read, 4096)
        if not part:
            return said
        said += part


def _outcome(render: Callable[[], str]) -> str | None:
    try:
        length = len(render())
    except ModelError as error:
        cause = error.__cause__ or error
        return f"fails ({reason_of(cause)})"
    if length > _LARGEST_PROMPT:
        return f"makes {length:,} characters of a few words"
    return None


def _limit_time() -> None:  # pragma: no cover
    """Have the system end this process when it has used its seconds of a processor."""
    import resource

    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = math.ceil(LIMIT_S) + 1  # Counts whole seconds only, but a template cannot undo it.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard < 0 else min(seconds, hard), hard))


def _limit_memory() -> None:  # pragma: no cover
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = held + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))
