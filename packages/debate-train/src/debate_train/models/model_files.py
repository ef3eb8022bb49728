"""The files of a model: what a folder must hold, and errors of reading it as one message."""

import json
import logging
import math
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from debate_train.interrupts import ModelError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

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
