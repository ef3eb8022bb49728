"""Models and tokenizers: loaded by name, or made from scratch for a first run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

from pydantic import Field, field_validator

from debate_protocol.plugins import Config, Variants
from debate_rollout.rendering import piece_bytes
from debate_train.interrupts import ModelError
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
from debate_train.models.scratch import ScratchModel

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

__all__ = ["MODELS", "Lora", "ModelChoice", "ModelConfig", "PretrainedModel", "ScratchModel"]

_ON_LOGITS = (
    "logits_soft_cap",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)
"""What families of models call a change of their logits after the head."""


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
    trust_remote_code: Literal[False] = False
    """Code that comes with a checkpoint is never run."""

    @field_validator("dtype")
    @classmethod
    def _resolved(cls, dtype: str) -> str:
        if dtype != "auto":
            return dtype
        import torch

        cpu = torch.cpu.get_capabilities()  # Emulated, bfloat16 is slower than float32.
        has_it = torch.cuda.is_available() or cpu.get("avx512_bf16") or cpu.get("amx_bf16")
        return "bfloat16" if has_it else "float32"

    @property
    def source(self) -> str:
        """The folder or hub id that it comes from."""
        return folder_of(self.name)

    def folder(self) -> str | None:
        """Return the folder or hub id whose weights are the policy's first, None if merged here."""
        if is_adapter(self.source):
            return None
        return self.source if Path(self.source).is_dir() or self.revision is None else None

    def load(self, seed: int, *, with_values: bool = True) -> LoadedModel:
        """Load model and tokenizer, with its LoRA adapters, whose start `seed` draws.

        Without values the model's tensors have shapes and take no memory.

        Raises:
            ModelError: The folder or hub id holds no model that can be trained, or not all of it.
        """
        tokenizer = self.load_tokenizer()
        model = self._load_model() if with_values else self._without_values()
        _refuse_other_heads(self.source, model)
        loaded = LoadedModel(
            model, tokenizer, self.template_kwargs, self.source, self.lora, again=self._load_model
        )
        return with_adapter(loaded, seed)

    def _load_model(self) -> "PreTrainedModel":
        import torch
        from transformers import AutoModelForCausalLM

        *adapters, base = bases_of(self.source)
        with reading_model(base, "model"), without_report():
            model, info = AutoModelForCausalLM.from_pretrained(
                base,
                config=self._config(),
                revision=self.revision,
                dtype=getattr(torch, self.dtype),
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # Named below, rather than in a table.
                output_loading_info=True,
                trust_remote_code=False,
            )
        refuse_unfitting(base, model, info)
        for adapter in reversed(adapters):
            model = merge_adapter(adapter, model)
        return cast("PreTrainedModel", model)

    def _without_values(self) -> "PreTrainedModel":
        import torch
        from transformers import AutoModelForCausalLM

        with reading_model(self.source, "model"), torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(
                self._config(), dtype=getattr(torch, self.dtype), trust_remote_code=False
            )
        return model

    def _config(self) -> "PreTrainedConfig":
        config = self.load_config()
        _switch_dropout_off(config)
        if getattr(config.get_text_config(), "attn_logit_softcapping", None) is not None:
            config._attn_implementation = "eager"  # transformers' other kernels leave the cap out.
        return config

    def load_config(self) -> "PreTrainedConfig":
        """Load the model's configuration alone.

        Raises:
            ModelError: There is none that can be read, or it needs code from elsewhere.
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

    @property
    def base(self) -> str:
        """The directory or hub id that holds the model's configuration: `name`, or what it adapts.

        Raises:
            ModelError: `name` is a LoRA adapter whose base is not there.
        """
        return bases_of(self.source)[-1]

    def load_tokenizer(self) -> "PreTrainedTokenizerFast":
        """Load the tokenizer alone, and try its chat template.

        Raises:
            ModelError: There is none that can be read, or its chat template cannot be used.
        """
        from transformers import AutoTokenizer

        refuse_absent(self.source)
        self.check_directory()
        with reading_model(self.source, "tokenizer"):
            tokenizer = AutoTokenizer.from_pretrained(
                self.source, revision=self.revision, trust_remote_code=False
            )
            piece_bytes(tokenizer)  # Refuses one whose tokens have no bytes.
        check_template(self.source, tokenizer, self.template_kwargs)
        return tokenizer

    def check_directory(self, *, with_tokenizer: bool = True) -> None:
        """Refuse a local directory without a configuration or a fast tokenizer.

        Raises:
            ModelError: A file is missing or damaged.
        """
        wanted = {"config.json": "a model configuration"}
        tokenizer = {"tokenizer.json": "a fast tokenizer"} if with_tokenizer else {}
        check_files(self.base, wanted)
        check_files(self.source, tokenizer)


def _switch_dropout_off(config: "PreTrainedConfig") -> None:
    """Make the policy that is trained the one that is sampled."""
    for key, value in config.get_text_config().to_dict().items():
        if ("dropout" in key or key.endswith("_pdrop")) and isinstance(value, float):
            setattr(config.get_text_config(), key, 0.0)


def _refuse_other_heads(name: str, model: "PreTrainedModel") -> None:
    """Refuse a model whose logits are more than hidden states times the head's weights."""
    config = model.config.get_text_config()
    found = [key for key in _ON_LOGITS if getattr(config, key, None) not in (None, 1)]
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        found.append("a bias")
    if found:
        raise ModelError(
            f"model.name: the logits of {name!r} pass through {', '.join(found)}, which training "
            "does not compute; expected a plain linear head, as Qwen and Llama have it"
        )


ModelConfig = PretrainedModel | ScratchModel
MODELS: Variants[ModelConfig] = Variants(None, ModelConfig, PretrainedModel, ScratchModel)
ModelChoice = Annotated[ModelConfig, MODELS]
"""The model that is trained; recipes choose by `type`."""
