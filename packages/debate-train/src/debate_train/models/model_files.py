"""The files of a model: required files, chat template, adapters to merge."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debate_train.errors import ModelError, UsageError, errors_only

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


_log = logging.getLogger(__name__)

ADAPTER = "adapter_config.json"
"""Name of the file that makes a folder an adapter's."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
MAX_REASON = 300
"""Characters of a library's message in ours."""
MAX_SHOWN = 3
MAX_UNCHANGED_SHARE = 0.1
"""Weights that rounding leaves unchanged, of those that an adapter changes, without a warning."""
MAX_CHAIN = 8
"""Adapters that may be trained each on the one before."""
TEMPLATE_ROLES = (("user",), ("user", "assistant", "user"))
"""Roles of the conversations on which a chat template is tried."""
MERGED_SETTINGS = (
    "r",
    "lora_alpha",
    "use_rslora",
    "rank_pattern",
    "alpha_pattern",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
)
# Of training, or of the file itself: a trained adapter adds the same product whatever they say.
DESCRIPTIVE_SETTINGS = frozenset(
    (
        "auto_mapping",
        "base_model_name_or_path",
        "ensure_weight_tying",
        "eva_config",
        "fan_in_fan_out",
        "inference_mode",
        "lora_dropout",
        "megatron_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    )
)
# All other settings change what is added, or the base itself: olora and pissa take a part out of
# its weights, an activated adapter works behind certain tokens alone.
NEUTRAL_SETTINGS: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva", "mica"),
}


@contextmanager
def reading_model(name: str, part: str) -> Iterator[None]:
    """Turn every error of reading a model into a `ModelError` of a single line.

    Libraries answer a damaged or unfitting folder with errors of many types, some
    beyond `Exception` (a panic of the tokenizers library).
    """
    try:
        with errors_only("huggingface_hub"):
            yield
    except (UsageError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ModelError(
            f"model.name: no {part} could be loaded from {name!r} ({reason_of(error)}); expected a "
            "directory written by save_pretrained, or a hub id that can be reached from here"
        ) from error


@contextmanager
def without_report() -> Iterator[None]:
    """Keep transformers from printing bars and tables: our refusals say the same in a line."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with errors_only("transformers"):
        yield


def reason_of(error: BaseException) -> str:
    """Write the type of an error and the first two lines of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    message = " ".join(lines[:2])[:MAX_REASON]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def check_files(name: str, descriptions: Mapping[str, str]) -> None:
    """Refuse a local folder without these files, given by name with a description.

    Raises:
        ModelError: A file is missing. A hub id passes: loading it will show.
    """
    if not is_folder(name):
        return
    folder = Path(name)
    for file, description in descriptions.items():
        if not (folder / file).is_file():
            raise ModelError(
                f"model.name: {name!r} holds no {file}; expected {description} beside the weights, "
                f"as save_pretrained writes it{_hint_inside(folder)}"
            )


def _hint_inside(folder: Path) -> str:
    """Name what a folder has inside that is a policy of its own: adapters, or checkpoints."""
    adapters = ", ".join(sorted(path.parent.name for path in folder.glob(f"*/{ADAPTER}")))
    if adapters:
        return f", or one of its adapters ({adapters}), each a policy of its own"
    checkpoints = sorted(map(str, folder.glob("checkpoints/step-*")))
    if checkpoints:
        return f"; the last checkpoint of this run is {checkpoints[-1]}"
    return ""


def is_folder(name: str) -> bool:
    """Say whether a model's name names a folder here; False where no file can have it."""
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def is_meant_as_path(name: str) -> bool:
    """Say whether a name without a folder is no hub id either, such as a mistyped run."""
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        return True
    return "/" in name and is_folder(str(Path(name).parent))


def read_json(file: Path, description: str) -> dict[str, object]:
    """Read the object of a JSON file.

    Raises:
        ModelError: It is not readable, or no object.
    """
    expected = f"expected {description}, as save_pretrained writes it"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"model.name: {str(file)!r} cannot be read as JSON ({error}); {expected}"
        ) from error
    if not isinstance(content, dict):
        raise ModelError(f"model.name: {str(file)!r} holds a {type(content).__name__}; {expected}")
    return content


def refuse_foreign_code(name: str, config: "PreTrainedConfig") -> None:
    """Refuse a configuration with attention by code from a hub."""
    for part in (config, config.get_text_config()):
        kernel = getattr(part, "_attn_implementation", None)
        if isinstance(kernel, str) and "/" in kernel:
            raise ModelError(
                f"model.name: the configuration of {name!r} asks for attention by {kernel!r}, "
                "code from a hub; expected no attn_implementation in its config.json"
            )


def refuse_unfitting(name: str, model: "PreTrainedModel", info: Mapping[str, Any]) -> None:
    """Refuse weights for another model; transformers fills missing values at random.

    Args:
        name: The model's name.
        model: The model, after loading.
        info: Second value of `from_pretrained` with `output_loading_info`.

    Raises:
        ModelError: Tensors are missing (except if tied to another tensor), have another shape, are
            not finite, or belong to layers or modules outside the configuration; or the
            configuration ties the head and the files do not.
    """
    mismatched = [
        f"{key} of shape {tuple(stored)} instead of {tuple(expected)}"
        for key, stored, expected in info["mismatched_keys"]
    ]
    errors = [str(message)[:MAX_REASON] for message in info.get("error_msgs") or ()]
    unexpected = sorted(str(key) for key in info["unexpected_keys"])
    problems = {
        "its weights have other shapes than its config.json says": sorted(mismatched),
        "weights are missing": sorted(str(key) for key in info["missing_keys"]),
        "weights cannot be read": errors,
        "it holds weights of layers or modules that its config.json does not have": [
            key for key in unexpected if _is_of_model(key, model)
        ],
        "weights are not finite": not_finite(model),
        "its config.json ties the output head to the embedding, but it holds a head of its own "
        "(tie_word_embeddings: false would be right)": untied_head(model),
    }
    for problem, names in problems.items():
        if names:
            num_more = len(names) - MAX_SHOWN
            listed = ", ".join(names[:MAX_SHOWN]) + (
                f" and {num_more} more" if num_more > 0 else ""
            )
            raise ModelError(
                f"model.name: {name!r}: {problem}: {listed}; expected the "
                "weights that its config.json describes, as save_pretrained names them"
            )


def _is_of_model(key: str, model: "PreTrainedModel") -> bool:
    """Distinguish a weight of this model from a weight of another tower, such as vision.

    Weights of this model are of a further layer, or a further parameter of an existing module,
    such as a bias.
    """
    parameters = {re.sub(r"\d+", "#", name) for name in model.state_dict()}
    modules = {name.rpartition(".")[0] for name in parameters}
    # Numbers of layers and experts do not matter: a further layer is this model's, too.
    pattern = re.sub(r"\d+", "#", key)
    return pattern in parameters or pattern.rpartition(".")[0] in modules


def untied_head(model: "PreTrainedModel") -> list[str]:
    """Name the output head of a model if the configuration ties it and the files do not.

    transformers then keeps the head of the files, while a program guided by the configuration
    puts it into the embedding at the first update of the weights.
    """
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    is_tied_by_config = bool(model.config.get_text_config().tie_word_embeddings)
    if not is_tied_by_config or head is None or head.weight is embedding.weight:
        return []
    return [name for name, parameter in model.named_parameters() if parameter is head.weight]


def not_finite(model: "PreTrainedModel") -> list[str]:
    """List the parameters with NaN or infinity; parameters without values are left out."""
    import torch

    names = []
    for name, parameter in model.named_parameters():
        if parameter.is_meta or not parameter.numel():
            continue
        # NaN goes through both, and no mask of the parameter's size is made.
        lowest, highest = torch.aminmax(parameter.detach())
        if not (torch.isfinite(lowest) and torch.isfinite(highest)):
            names.append(name)
    return names


def check_template(
    name: str, tokenizer: "PreTrainedTokenizerFast", template_kwargs: Mapping[str, object]
) -> None:
    """Refuse a model's own failing chat template.

    Raises:
        ModelError: The template cannot be used.
    """
    if not tokenizer.chat_template:
        return
    for roles in TEMPLATE_ROLES:
        messages = []
        for index, role in enumerate(roles):
            messages.append({"role": role, "content": f"text {index}"})
        try:
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **template_kwargs
            )
        except Exception as error:
            raise ModelError(
                f"model.name: the chat template of {name!r} fails ({reason_of(error)}); expected "
                "one that writes messages of a user and an assistant in turn (chat_template.jinja)"
            ) from error


def is_adapter(name: str) -> bool:
    """Say whether a model's name names a folder with an adapter and no whole model."""
    if not is_folder(name):
        return False
    folder = Path(name)
    return (folder / ADAPTER).is_file() and not (folder / "config.json").is_file()


def bases_of(name: str) -> tuple[str, ...]:
    """List a model's adapters from itself down, and last the model adapted by all.

    The base of an adapter is named in `adapter_config.json`. A base may itself be a folder with an
    adapter, trained before and merged first.

    Raises:
        ModelError: An adapter names no existing base, or the bases lead in a ring.
    """
    chain = [name]
    while is_adapter(chain[-1]):
        file = Path(chain[-1]) / ADAPTER
        base = read_json(file, "the configuration of an adapter").get("base_model_name_or_path")
        if (
            not isinstance(base, str)
            or not base
            or (is_meant_as_path(base) and not is_folder(base))
        ):
            raise ModelError(
                f"model.name: {str(file)!r} names the base {base!r}, which is not there; expected "
                "the folder (from the working directory) or hub id that the adapter was trained on"
            )
        # A ring may also close by another spelling of a path, which the length catches.
        if base in chain or len(chain) > MAX_CHAIN:
            raise ModelError(
                f"model.name: the bases of {name!r} lead back to {base!r}; expected a model with "
                "weights of its own at their end"
            )
        chain.append(base)
    if is_folder(chain[-1]) and (Path(chain[-1]) / ADAPTER).is_file():
        raise ModelError(
            f"model.name: {chain[-1]!r} holds {ADAPTER} beside a model of its own; expected one of "
            "them: take the other out of the folder"
        )
    return tuple(chain)


def merge_adapter(name: str, model: "PreTrainedModel") -> "PreTrainedModel":
    """Add an adapter's product to a model's weights, in their own dtype.

    Args:
        name: The adapter's folder.
        model: The adapter's base model; changed.

    Raises:
        ModelError: The adapter is damaged, of another kind than LoRA, or of another model.
    """
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from safetensors.torch import load_file

    settings = _lora_settings(name)
    with reading_model(name, "adapter"):
        adapted: PeftModel = get_peft_model(model, LoraConfig(**settings, task_type="CAUSAL_LM"))
        state = adapted.state_dict(keep_vars=True)
        # `keep_vars` gives the parameters themselves, which are then written in place.
        parameters = get_peft_model_state_dict(adapted, state_dict=state)
        stored = load_file(Path(name) / ADAPTER_WEIGHTS)
        stored_shapes = {(key, tuple(tensor.shape)) for key, tensor in stored.items()}
        own_shapes = {(key, tuple(parameter.shape)) for key, parameter in parameters.items()}
        unfitting = sorted({key for key, _ in stored_shapes ^ own_shapes})
        if unfitting:
            raise ModelError(
                f"model.name: the adapter {name!r} is not one of its base: missing, unexpected or "
                f"of another shape: {', '.join(unfitting[:MAX_SHOWN])}; expected what peft saves "
                "of it"
            )
        with torch.no_grad():
            for key, parameter in parameters.items():
                parameter.copy_(stored[key])
        _merge_layers(name, adapted)
        merged: PreTrainedModel = adapted.unload()
        merged.requires_grad_(True)  # peft froze it
    # A later adapter names the model that it was trained on, which is this one and not its base.
    merged.config.name_or_path = name
    merged.name_or_path = name
    return merged


def _merge_layers(name: str, adapted: "PeftModel") -> None:
    """Merge layer by layer, and report the weights whose change is lost in rounding."""
    import torch
    from peft.tuners.lora.layer import LoraLayer

    num_changed = num_unchanged = 0
    dtype: torch.dtype | None = None
    for layer in adapted.modules():
        if not isinstance(layer, LoraLayer):
            continue
        (adapter,) = layer.active_adapters
        weight = layer.get_base_layer().weight
        is_changed = layer.get_delta_weight(adapter) != 0
        weight_before = weight.detach().clone()
        layer.merge()
        dtype = weight.dtype
        num_changed += int(is_changed.sum())
        num_unchanged += int((is_changed & (weight == weight_before)).sum())

    share = num_unchanged / num_changed if num_changed else 0.0
    is_lossy = share > MAX_UNCHANGED_SHARE
    _log.log(
        logging.WARNING if is_lossy else logging.INFO,
        "the adapter %r, merged in %s: %s of %s weights (%.1f %%) stay what they were, as rounding "
        "undoes their change%s",
        name,
        str(dtype).removeprefix("torch."),
        f"{num_unchanged:,}",
        f"{num_changed:,}",
        100 * share,
        "; model.dtype=float32 keeps it" if is_lossy else "",
    )


def _lora_settings(name: str) -> dict[str, object]:
    """Read an adapter's settings of the low-rank product."""
    file = Path(name) / ADAPTER
    config = read_json(file, "the configuration of an adapter")
    check_files(name, {ADAPTER_WEIGHTS: "an adapter's weights"})
    known_settings = {*MERGED_SETTINGS, *DESCRIPTIVE_SETTINGS, *NEUTRAL_SETTINGS}
    # peft writes every setting, and those that do nothing are empty.
    unmerged = [key for key in config if key not in known_settings and config[key]]
    for key, neutral_values in NEUTRAL_SETTINGS.items():
        if config.get(key) not in neutral_values:
            unmerged.append(key)
    layers = config.get("target_modules")
    if not isinstance(layers, list) and layers != "all-linear":
        unmerged.append("target_modules")
    if not isinstance(config.get("exclude_modules") or [], list):
        unmerged.append("exclude_modules")
    if unmerged:
        raise ModelError(
            f"model.name: {str(file)!r} has settings that are not merged here: "
            f"{', '.join(unmerged)}; expected a LoRA adapter on named layers, or a model that "
            "peft merged"
        )
    return {key: config[key] for key in MERGED_SETTINGS if config.get(key) is not None}
