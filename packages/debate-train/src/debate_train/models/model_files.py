"""The files of a model: what a folder must hold, its chat template, adapters to merge."""

import importlib
import json
import logging
import math
import os
import re
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from debate_train.interrupts import ModelError, UsageError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast


ADAPTER = "adapter_config.json"
"""What a folder with an adapter holds."""
_FLOATS = ("F64", "F32", "F16", "BF16")
_MOST_LAYERS, _MOST_WIDTH = 4096, 1 << 24
_LARGEST_HEADER = 100 << 20
"""What the library that reads these files allows."""
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
    """Keep transformers from printing a table of what does not fit: it is refused in one line."""
    logger = logging.getLogger("transformers.modeling_utils")
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
    """Refuse a local folder that lacks a file of `wanted`, or holds weights that cannot be read.

    Args:
        name: A folder; anything else, such as a hub id, is left to those who load it.
        wanted: What each file is, by its name.

    Raises:
        ModelError: A file is missing, `config.json` is no mapping or describes a model that no
            machine holds, or weights are damaged.
    """
    folder = Path(name)
    if not is_folder(name):
        return
    for file, what in wanted.items():
        if not (folder / file).is_file():
            within = sorted(one.parent.name for one in folder.glob(f"*/{ADAPTER}"))
            other = (
                f", or one of its adapters ({', '.join(within)}), each a policy of its own: a run "
                f"starts from one policy, as {str(folder / within[0])!r}"
                if within
                else ""
            )
            raise ModelError(
                f"model.name: {name!r} holds no {file}; expected {what} beside the "
                f"weights (write one with save_pretrained){other}"
            )
    if "config.json" not in wanted:
        return
    config = read_json(folder / "config.json", "a model configuration")
    _check_config(folder / "config.json", config)
    quantised = config.get("quantization_config") is not None
    for weights in sorted(folder.glob("model*.safetensors")):
        _check_weights(weights, quantised)


def is_folder(name: str) -> bool:
    """Return whether a model's name is that of a folder here; False where no file can have it."""
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


def _check_config(file: Path, config: Mapping[str, Any]) -> None:
    """Refuse sizes that would keep a machine busy before any weight is missed."""
    parts = [config]
    for key in ("text_config", "quantization_config", "rope_parameters"):
        part = config.get(key)
        if part is not None and not isinstance(part, dict):
            raise ModelError(
                f"model.name: {str(file)!r}: {key}: found a {type(part).__name__}; expected a "
                "mapping, as save_pretrained writes it"
            )
    parts += [config["text_config"]] if config.get("text_config") else []
    for part in parts:
        for key, value in part.items():
            if not isinstance(value, int) or isinstance(value, bool):
                continue
            counts = re.search(r"layer|expert|head(s|$)", key) is not None
            most = _MOST_LAYERS if counts else _MOST_WIDTH
            sized = counts or re.search(r"size|dim|width|ffn|n_embd|n_inner", key) is not None
            if key in ("num_hidden_layers", "n_layer") and value < 1:
                raise ModelError(
                    f"model.name: {str(file)!r}: {key}: found {value}; expected 1 or more"
                )
            if sized and abs(value) > most:
                raise ModelError(
                    f"model.name: {str(file)!r}: {key}: found {value}; expected at most {most:,}"
                )


def _check_weights(file: Path, quantised: bool) -> None:
    """Refuse a file of weights that is cut short, or whose tensors are no numbers to train."""
    header = _header(file)
    whole = [
        f"{name} ({tensor.kind})"
        for name, tensor in header.items()
        if tensor.kind not in _FLOATS and not quantised
    ]
    if whole:
        raise ModelError(
            f"model.name: {str(file)!r} holds weights of a type that is not trained: "
            f"{some(whole)}; expected {', '.join(_FLOATS)}, or a quantization_config in its "
            "config.json that says what they stand for"
        )


class _Stored(NamedTuple):
    """A tensor in a file: its type as safetensors names it, and how many numbers it has."""

    kind: str
    numbers: int


def _header(file: Path) -> dict[str, _Stored]:
    """Return what a file of weights says it holds."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            start = opened.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 0 < length <= min(_LARGEST_HEADER, size - 8):
                raise ValueError("it has no header")
            header = json.loads(opened.read(length))
        found = {k: v for k, v in header.items() if k != "__metadata__"}
        end = max((int(entry["data_offsets"][1]) for entry in found.values()), default=0)
        if size < 8 + length + end:
            raise ValueError(f"it ends {8 + length + end - size:,} bytes too early")
        return {
            name: _Stored(str(entry["dtype"]), math.prod(map(int, entry["shape"])))
            for name, entry in found.items()
        }
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(
            f"model.name: the weights {str(file)!r} cannot be read ({reason_of(error)}); expected "
            "a whole safetensors file: copy or download it again"
        ) from error


def refuse_foreign_code(name: str, config: "PreTrainedConfig") -> None:
    """Refuse a configuration that is loaded with kernels from a hub or an unknown quantisation.

    Raises:
        ModelError: It names one of them.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    for part in {id(c): c for c in (config, config.get_text_config())}.values():
        kernel = getattr(part, "_attn_implementation", None)
        if isinstance(kernel, str) and "/" in kernel:
            raise ModelError(
                f"model.name: the configuration of {name!r} asks for attention by {kernel!r}, "
                "which is code from a hub; expected attention of transformers: take "
                "attn_implementation out of its config.json"
            )
        quantised = getattr(part, "quantization_config", None)
        if quantised is None:
            continue
        as_mapping = quantised if isinstance(quantised, dict) else quantised.to_dict()
        method = as_mapping.get("quant_method")
        if method in (None, "bitsandbytes") and {"load_in_4bit", "load_in_8bit"} & set(as_mapping):
            continue
        if str(getattr(method, "value", method)) not in AUTO_QUANTIZER_MAPPING:
            raise ModelError(
                f"model.name: the configuration of {name!r} has quant_method {method!r}, which "
                f"transformers does not know; expected one of {', '.join(AUTO_QUANTIZER_MAPPING)}, "
                "or weights that are not quantised"
            )


def refuse_overgrown(name: str, parameters: int) -> None:
    """Refuse a configuration of many more parameters than a folder's files hold.

    They would be missed after memory for all of them was taken. Tied ones are in files once.

    Raises:
        ModelError: More than half of them are not there.
    """
    files = sorted(Path(name).glob("model*.safetensors")) if is_folder(name) else []
    headers = [_header(file) for file in files]
    held = sum(tensor.numbers for header in headers for tensor in header.values())
    floats = all(tensor.kind in _FLOATS for header in headers for tensor in header.values())
    if files and floats and parameters > 2 * held:
        raise _unfitting(
            name, f"its config.json describes {parameters:,} parameters, its weights hold {held:,}"
        )


def refuse_unfitting(name: str, model: "PreTrainedModel", info: Mapping[str, Any]) -> None:
    """Refuse weights that do not fill the model; transformers fills what is missing at random.

    Args:
        name: The model's name.
        model: The model, after loading.
        info: What `from_pretrained` says of loading it (`output_loading_info`).

    Raises:
        ModelError: Tensors are missing (one that is tied to another that is there is not), have
            another shape, or belong to layers that the model does not have.
    """
    shapes = [(str(key), tuple(a), tuple(b)) for key, a, b in info["mismatched_keys"]]
    if shapes:
        found = some([f"{key} of shape {a} instead of {b}" for key, a, b in sorted(shapes)])
        raise _unfitting(name, f"its weights have other shapes than its config.json says: {found}")
    missing = sorted(map(str, info["missing_keys"]))
    surplus = sorted(map(str, info["unexpected_keys"]))
    if missing:
        other = f" (it holds {some(surplus)}, which the model does not have)" if surplus else ""
        raise _unfitting(name, f"weights are missing: {some(missing)}{other}")
    if info.get("error_msgs"):
        raise _unfitting(name, str(info["error_msgs"][0])[:_REASON])
    known = {re.sub(r"\d+", "#", key) for key in model.state_dict()}
    layers = [key for key in surplus if re.sub(r"\d+", "#", key) in known]
    if layers:
        raise _unfitting(name, f"it holds layers beyond those of its config.json: {some(layers)}")


def _unfitting(name: str, found: str) -> ModelError:
    return ModelError(
        f"model.name: {name!r}: {found}; expected the weights of the model that its config.json "
        "describes, under the names that save_pretrained gives them"
    )


def some(names: list[str]) -> str:
    """Return the first three of some names, and how many there are."""
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


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


_WEIGHTS = "adapter_model.safetensors"
_LONGEST_CHAIN = 8
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "use_dora": (False, None),
}


def is_adapter(name: str) -> bool:
    """Return whether a model's name is that of a folder with an adapter and no model of its own."""
    folder = Path(name)
    return is_folder(name) and (folder / ADAPTER).is_file() and not _is_whole(folder)


def _is_whole(folder: Path) -> bool:
    return (folder / "config.json").is_file()


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
        if not isinstance(base, str) or not base:
            raise ModelError(
                f"model.name: {str(file)!r} names no base; expected the model that the adapter was "
                "trained on as base_model_name_or_path"
            )
        if base in found or len(found) > _LONGEST_CHAIN:
            raise ModelError(
                f"model.name: the bases of {name!r} lead back to {base!r}; expected a model with "
                "weights of its own at their end"
            )
        is_path = base.startswith((".", "/", "~")) or base.count("/") > 1
        if is_path and not is_folder(base):
            raise ModelError(
                f"model.name: {str(file)!r} names the base {base!r}, which is not there; expected "
                "the folder or hub id of the model that the adapter was trained on "
                "(base_model_name_or_path; a relative path starts at the working directory)"
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
    from safetensors import safe_open

    settings = _settings(name)
    with reading_model(name, "adapter"):
        adapted: PeftModel = get_peft_model(model, LoraConfig(**settings, task_type="CAUSAL_LM"))
        own = get_peft_model_state_dict(adapted, state_dict=adapted.state_dict(keep_vars=True))
        with safe_open(Path(name) / _WEIGHTS, framework="pt") as stored:
            other = sorted(set(stored.keys()) ^ set(own))
            if other:
                raise ModelError(
                    f"model.name: the adapter {name!r} is not one of its base: missing or "
                    f"unexpected {', '.join(other[:3])}; expected what peft saves of it"
                )
            with torch.no_grad():
                for key, parameter in own.items():
                    held = stored.get_tensor(key)
                    if held.shape != parameter.shape or not held.is_floating_point():
                        raise ModelError(
                            f"model.name: the adapter {name!r} is not one of its base: {key} has "
                            f"shape {tuple(held.shape)} instead of {tuple(parameter.shape)}"
                        )
                    parameter.copy_(held)
        merged: PreTrainedModel = adapted.merge_and_unload().requires_grad_(True)  # peft froze it
    # A later adapter names what it was trained on, which is this one and not its base.
    merged.name_or_path = merged.config.name_or_path = name
    return merged


def _settings(name: str) -> dict[str, object]:
    """Return the settings of an adapter that decide what it adds.

    Raises:
        ModelError: They are not those of plain LoRA.
    """
    file = Path(name) / ADAPTER
    held = read_json(file, "the configuration of an adapter")
    layers = held.get("target_modules")
    names = isinstance(layers, list) and all(isinstance(one, str) for one in layers)
    odd = [key for key, plain in _NEUTRAL.items() if held.get(key) not in plain]
    odd += ["peft_type"] if held.get("peft_type") != "LORA" else []
    odd += ["target_modules"] if not names and layers != "all-linear" else []
    if not (Path(name) / _WEIGHTS).is_file():
        raise ModelError(f"model.name: {name!r} holds no {_WEIGHTS}; expected an adapter's weights")
    if odd:
        raise ModelError(
            f"model.name: {str(file)!r} has settings that are not merged here: {', '.join(odd)}; "
            "expected a LoRA adapter on named layers: merge it with peft (merge_and_unload) and "
            "save_pretrained, and give that folder"
        )
    taken = ("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern")
    return {key: held[key] for key in taken if held.get(key) is not None} | {
        "target_modules": layers
    }
