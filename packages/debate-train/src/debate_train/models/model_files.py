"""The files of a model: what a folder must hold, its chat template, adapters to merge."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debate_train.interrupts import ModelError, UsageError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


ADAPTER = "adapter_config.json"
"""What a folder with an adapter holds."""
_REASON = 300
_SHOWN = 3


@contextmanager
def reading_model(name: str, what: str) -> Iterator[None]:
    """Turn whatever is raised while a model is read into a `ModelError` of one line.

    Libraries answer a damaged or unfitting folder with errors of many types, some of which are
    no `Exception` (a panic of the tokenizers library).
    """
    try:
        yield
    except (UsageError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise ModelError(
            f"model.name: no {what} could be loaded from {name!r} ({reason_of(error)}); expected a "
            "directory written by save_pretrained, or a hub id that can be reached from here"
        ) from error


@contextmanager
def without_report() -> Iterator[None]:
    """Keep transformers from printing bars, and a table of what does not fit: one line says it."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def reason_of(error: BaseException) -> str:
    """Return the type of an error and the first two lines of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(lines[:2])[:_REASON]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def check_files(name: str, wanted: Mapping[str, str]) -> None:
    """Refuse a local folder that lacks one of the files, given by name with what each is.

    Raises:
        ModelError: A file is missing; a hub id is left to those who load it.
    """
    for file, what in wanted.items():
        if is_folder(name) and not (Path(name) / file).is_file():
            within = ", ".join(sorted(one.parent.name for one in Path(name).glob(f"*/{ADAPTER}")))
            other = f", or one of its adapters ({within}), each a policy of its own"
            raise ModelError(
                f"model.name: {name!r} holds no {file}; expected {what} beside the weights, as "
                f"save_pretrained writes it{other if within else ''}"
            )


def is_folder(name: str) -> bool:
    """Return whether a model's name names a folder here; False where no file can have it."""
    try:
        return Path(name).is_dir()
    except (OSError, ValueError):
        return False


def is_meant_as_path(name: str) -> bool:
    """Return whether a name that is no folder here is no hub id either, such as a mistyped run."""
    is_path = name.startswith(("/", ".", "~")) or name.count("/") > 1
    return is_path or ("/" in name and is_folder(str(Path(name).parent)))


def read_json(file: Path, what: str) -> dict[str, object]:
    """Return the mapping that a JSON file holds.

    Raises:
        ModelError: It is not readable, or no mapping.
    """
    expected = f"expected {what}, as save_pretrained writes it"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"model.name: {str(file)!r} cannot be read as JSON ({error}); {expected}"
        ) from error
    if not isinstance(found, dict):
        raise ModelError(f"model.name: {str(file)!r} holds a {type(found).__name__}; {expected}")
    return found


def refuse_foreign_code(name: str, config: "PreTrainedConfig") -> None:
    """Refuse a configuration that asks for attention by code from a hub."""
    for part in (config, config.get_text_config()):
        kernel = getattr(part, "_attn_implementation", None)
        if isinstance(kernel, str) and "/" in kernel:
            raise ModelError(
                f"model.name: the configuration of {name!r} asks for attention by {kernel!r}, "
                "code from a hub; expected no attn_implementation in its config.json"
            )


def refuse_unfitting(name: str, model: "PreTrainedModel", info: Mapping[str, Any]) -> None:
    """Refuse weights that do not fill the model; transformers fills what is missing at random.

    Args:
        name: The model's name.
        model: The model, after loading.
        info: What `from_pretrained` says of loading it (`output_loading_info`).

    Raises:
        ModelError: Tensors are missing (one that is tied to another that is there is not), have
            another shape, are not finite, or belong to layers or modules that the configuration
            does not have; or the configuration ties a head that is not tied in the files.
    """
    surplus = sorted(map(str, info["unexpected_keys"]))
    problems = {
        "its weights have other shapes than its config.json says": sorted(
            f"{key} of shape {tuple(a)} instead of {tuple(b)}"
            for key, a, b in info["mismatched_keys"]
        ),
        "weights are missing": sorted(map(str, info["missing_keys"])),
        "weights cannot be read": [
            str(message)[:_REASON] for message in info.get("error_msgs") or ()
        ],
        "it holds weights of layers or modules that its config.json does not have": [
            key for key in surplus if _is_of_model(key, model)
        ],
        "weights are not finite": not_finite(model),
        "its config.json ties the output head to the embedding, but it holds a head of its own "
        "(tie_word_embeddings: false would be right)": untied_head(model),
    }
    for problem, names in problems.items():
        if names:
            rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise ModelError(
                f"model.name: {name!r}: {problem}: {', '.join(names[:_SHOWN])}{rest}; expected the "
                "weights that its config.json describes, as save_pretrained names them"
            )


def _is_of_model(key: str, model: "PreTrainedModel") -> bool:
    """Distinguish a weight that the model ought to use from one of another tower, such as vision.

    It is one of a further layer, or a further parameter of a module that the model has, such as
    a bias.
    """
    parameters = {re.sub(r"\d+", "#", name) for name in model.state_dict()}
    modules = {name.rpartition(".")[0] for name in parameters}
    pattern = re.sub(r"\d+", "#", key)
    return pattern in parameters or pattern.rpartition(".")[0] in modules


def untied_head(model: "PreTrainedModel") -> list[str]:
    """Name the output head of a model that is tied by its configuration but not in its files.

    transformers then keeps the head of the files, while a program that goes by the configuration
    puts it into the embedding at the first update of the weights.
    """
    head = model.get_output_embeddings()
    embedding = model.get_input_embeddings()
    is_tied_by_config = bool(model.config.get_text_config().tie_word_embeddings)
    if not is_tied_by_config or head is None or head.weight is embedding.weight:
        return []
    return [name for name, parameter in model.named_parameters() if parameter is head.weight]


def not_finite(model: "PreTrainedModel") -> list[str]:
    """List the parameters that hold NaN or infinity; those without values are left out."""
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


_ROLES = (("user",), ("user", "assistant", "user"))


def check_template(
    name: str, tokenizer: "PreTrainedTokenizerFast", template_kwargs: Mapping[str, object]
) -> None:
    """Refuse a model's own chat template that fails.

    Raises:
        ModelError: The template cannot be used.
    """
    for roles in _ROLES if tokenizer.chat_template else ():
        messages = [{"role": role, "content": f"text {at}"} for at, role in enumerate(roles)]
        try:
            tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **template_kwargs
            )
        except Exception as error:
            raise ModelError(
                f"model.name: the chat template of {name!r} fails ({reason_of(error)}); expected "
                "one that writes messages of a user and an assistant in turn (chat_template.jinja)"
            ) from error


_WEIGHTS = "adapter_model.safetensors"
_LONGEST_CHAIN = 8
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "use_dora": (False, None),
}
"""What settings of an adapter must say, as what else they may say is not merged here."""


def is_adapter(name: str) -> bool:
    """Return whether a model's name names a folder with an adapter and no model of its own."""
    folder = Path(name)
    is_whole = is_folder(name) and (folder / "config.json").is_file()
    return is_folder(name) and (folder / ADAPTER).is_file() and not is_whole


def bases_of(name: str) -> tuple[str, ...]:
    """Return a model's adapters from itself down, and last the model that they all adapt.

    The base of an adapter is what its `adapter_config.json` names. A base that is itself a folder
    with an adapter was trained on from, and is merged first.

    Raises:
        ModelError: An adapter names no base, its base is not there, or they lead in a ring.
    """
    found = [name]
    while is_adapter(found[-1]):
        file = Path(found[-1]) / ADAPTER
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
        if base in found or len(found) > _LONGEST_CHAIN:
            raise ModelError(
                f"model.name: the bases of {name!r} lead back to {base!r}; expected a model with "
                "weights of its own at their end"
            )
        found.append(base)
    if is_folder(found[-1]) and (Path(found[-1]) / ADAPTER).is_file():
        raise ModelError(
            f"model.name: {found[-1]!r} holds {ADAPTER} beside a model of its own; expected one of "
            "them: take the other out of the folder"
        )
    return tuple(found)


def merge_adapter(name: str, model: "PreTrainedModel") -> "PreTrainedModel":
    """Return a model with an adapter's product added to its weights, in their own dtype.

    Args:
        name: The adapter's folder.
        model: What it was trained on; changed.

    Raises:
        ModelError: The adapter is damaged, of another kind than LoRA, or of another model.
    """
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    from safetensors.torch import load_file

    settings = _lora_settings(name)
    with reading_model(name, "adapter"):
        adapted: PeftModel = get_peft_model(model, LoraConfig(**settings, task_type="CAUSAL_LM"))
        own = get_peft_model_state_dict(adapted, state_dict=adapted.state_dict(keep_vars=True))
        held = load_file(Path(name) / _WEIGHTS)
        shapes = [{key: tuple(one.shape) for key, one in each.items()} for each in (held, own)]
        if other := sorted({key for key, _ in shapes[0].items() ^ shapes[1].items()}):
            raise ModelError(
                f"model.name: the adapter {name!r} is not one of its base: missing, unexpected or "
                f"of another shape: {', '.join(other[:_SHOWN])}; expected what peft saves of it"
            )
        with torch.no_grad():
            for key, parameter in own.items():
                parameter.copy_(held[key])
        merged: PreTrainedModel = adapted.merge_and_unload().requires_grad_(True)  # peft froze it
    # A later adapter names what it was trained on, which is this one and not its base.
    merged.name_or_path = merged.config.name_or_path = name
    return merged


def _lora_settings(name: str) -> dict[str, object]:
    """Return the settings of an adapter that decide what it adds."""
    file = Path(name) / ADAPTER
    held = read_json(file, "the configuration of an adapter")
    check_files(name, {_WEIGHTS: "an adapter's weights"})
    layers = held.get("target_modules")
    odd = [key for key, plain in _NEUTRAL.items() if held.get(key) not in plain]
    odd += ["target_modules"] if not isinstance(layers, list) and layers != "all-linear" else []
    if odd:
        raise ModelError(
            f"model.name: {str(file)!r} has settings that are not merged here: {', '.join(odd)}; "
            "expected a LoRA adapter on named layers, or a model that peft merged"
        )
    taken = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules")
    return {key: held[key] for key in taken if held.get(key) is not None}
