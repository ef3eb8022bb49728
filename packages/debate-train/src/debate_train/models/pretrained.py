"""A causal language model from a directory or a hub."""

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from pydantic import Field, field_validator

from debate_protocol.plugins import Config
from debate_rollout.rendering import piece_bytes
from debate_train.errors import ModelError
from debate_train.models.gguf import folder_of, refuse_absent
from debate_train.models.loaded_model import LoadedModel, Lora, with_adapter
from debate_train.models.model_files import (
    bases_of,
    check_files,
    check_template,
    is_adapter,
    merge_adapter,
    reading_model,
    refuse_foreign_code,
    refuse_unfitting,
    without_report,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

# Keys by which families of models change their logits after the head.
LOGIT_KEYS = (
    "logits_soft_cap",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)


BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")
"""Instructions for products in bfloat16, by the names of Linux and of torch."""
PROCESSOR_FILE = Path("/proc/cpuinfo")


class PretrainedModel(Config):
    """A causal language model from a directory or a hub."""

    type: Literal["pretrained"] = "pretrained"
    name: str
    """A local directory or a hub id; a folder with a LoRA adapter is merged with its base. A GGUF
    file, or `smollm2` once it is fetched, is made a folder in the cache of models."""
    revision: str | None = None
    """Branch, tag or commit of a hub id; null takes its main branch."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Type the weights are trained in; engines serve the same. `auto` is bfloat16 on a GPU and on a
    processor that has it (AVX512-BF16, AMX), else float32."""
    lora: Lora | None = None
    """None trains every parameter."""
    template_kwargs: dict[str, bool | int | str] = Field(default_factory=dict)
    """Handed to the chat template, such as enable_thinking: false."""
    context_window: int | None = Field(None, ge=1)
    """Most tokens of prompt and reply; None takes it from the model's configuration."""

    removed_keys: ClassVar[Mapping[str, str]] = {
        "trust_remote_code": "no such key: code that comes with a checkpoint is never run"
    }

    @field_validator("dtype")
    @classmethod
    def _resolve_auto(cls, dtype: str) -> str:
        if dtype != "auto":
            return dtype
        return "bfloat16" if _multiplies_bfloat16() else "float32"

    @property
    def source(self) -> str:
        """The folder or hub id of the model."""
        return folder_of(self.name)

    @property
    def base(self) -> str:
        """The directory or hub id with the model's configuration: `name`, or the model it adapts.

        Raises:
            ModelError: `name` is a LoRA adapter without an existing base.
        """
        return bases_of(self.source)[-1]

    def folder(self) -> str | None:
        """Name the folder or hub id of the policy's first weights, None if they are merged here."""
        if is_adapter(self.source):
            return None
        # An engine that takes a hub id takes its main branch.
        is_main_branch = Path(self.source).is_dir() or self.revision is None
        return self.source if is_main_branch else None

    def load(self, seed: int, *, with_values: bool = True) -> LoadedModel:
        """Load model and tokenizer, with LoRA adapters drawn by `seed`.

        Without values the model's tensors have shapes and take no memory.

        Raises:
            ModelError: The folder or hub id has no trainable model, or not all of it.
        """
        tokenizer = self.load_tokenizer()
        model = self._load_model() if with_values else self._load_shapes()
        _refuse_other_heads(self.source, model)
        loaded = LoadedModel(
            model=model,
            tokenizer=tokenizer,
            template_kwargs=self.template_kwargs,
            path=self.source,
            lora=self.lora,
            again=self._load_model,
        )
        return with_adapter(loaded, seed)

    def _load_model(self) -> "PreTrainedModel":
        import torch
        from transformers import AutoModelForCausalLM

        *adapters, base = bases_of(self.source)
        with reading_model(base, "model"), without_report():
            model, info = AutoModelForCausalLM.from_pretrained(
                base,
                config=self._training_config(),
                revision=self.revision,
                dtype=getattr(torch, self.dtype),
                use_safetensors=True,
                # `refuse_unfitting` names them, rather than transformers in a table.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                trust_remote_code=False,
            )
        refuse_unfitting(base, model, info)
        for adapter in reversed(adapters):
            model = merge_adapter(adapter, model)
        return cast("PreTrainedModel", model)

    def _load_shapes(self) -> "PreTrainedModel":
        import torch
        from transformers import AutoModelForCausalLM

        with reading_model(self.source, "model"), torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                self._training_config(),
                dtype=getattr(torch, self.dtype),
                trust_remote_code=False,
            )
        return model

    def _training_config(self) -> "PreTrainedConfig":
        config = self.load_config()
        text_config = config.get_text_config()
        # With dropout the trained policy is not the sampled one.
        for key, value in text_config.to_dict().items():
            if ("dropout" in key or key.endswith("_pdrop")) and isinstance(value, float):
                setattr(text_config, key, 0.0)
        # transformers' other kernels leave the cap out.
        if getattr(text_config, "attn_logit_softcapping", None) is not None:
            config._attn_implementation = "eager"
        return config

    def load_config(self) -> "PreTrainedConfig":
        """Load only the model's configuration.

        Raises:
            ModelError: There is no readable configuration, or it needs code from elsewhere.
        """
        from transformers import AutoConfig

        refuse_absent(self.source)
        self.check_directory(with_tokenizer=False)
        base = self.base
        with reading_model(base, "configuration"):
            config = AutoConfig.from_pretrained(
                base, revision=self.revision, trust_remote_code=False
            )
            refuse_foreign_code(base, config)
        return config

    def load_tokenizer(self) -> "PreTrainedTokenizerFast":
        """Load only the tokenizer, and try the chat template.

        Raises:
            ModelError: There is no readable tokenizer, or the chat template cannot be used.
        """
        from transformers import AutoTokenizer

        refuse_absent(self.source)
        self.check_directory()
        with reading_model(self.source, "tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(
                self.source, revision=self.revision, trust_remote_code=False
            )
            # Refuses a tokenizer whose tokens have no bytes.
            piece_bytes(tokenizer)
        check_template(self.source, tokenizer, self.template_kwargs)
        return tokenizer

    def check_directory(self, *, with_tokenizer: bool = True) -> None:
        """Refuse a local directory without a configuration or a fast tokenizer.

        Raises:
            ModelError: A file is missing or damaged.
        """
        check_files(self.base, {"config.json": "a model configuration"})
        if with_tokenizer:
            check_files(self.source, {"tokenizer.json": "a fast tokenizer"})


def _multiplies_bfloat16() -> bool:
    """Whether a GPU or the processor does; emulated bfloat16 is slower than float32."""
    # Linux says the same of a processor as torch, which takes over a second to import.
    if PROCESSOR_FILE.is_file() and not _may_have_gpu():
        flags = set(PROCESSOR_FILE.read_text(errors="replace").split())
        return not flags.isdisjoint(BFLOAT16_FLAGS)
    import torch

    capabilities = torch.cpu.get_capabilities()
    return torch.cuda.is_available() or any(capabilities.get(flag) for flag in BFLOAT16_FLAGS)


def _may_have_gpu() -> bool:
    """Whether the driver of a GPU by NVIDIA or AMD is installed."""
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1")
        return True
    return Path("/dev/kfd").exists()


def _refuse_other_heads(name: str, model: "PreTrainedModel") -> None:
    """Refuse a model with more steps from hidden states to logits than a linear head."""
    config = model.config.get_text_config()
    changes = [key for key in LOGIT_KEYS if getattr(config, key, None) not in (None, 1)]
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        changes.append("a bias")
    if changes:
        raise ModelError(
            f"model.name: the logits of {name!r} pass through {', '.join(changes)}, which training "
            "does not compute; expected a plain linear head, as Qwen and Llama have it"
        )
