"""What can be wrong with a model's folder, one damage at a time.

Each is a name, whether a run may accept what it leaves, and what does it to a whole folder.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Damage = Callable[[Path], Any]
JSONS = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
CODE = "from pathlib import Path\nPath({sentinel!r}).touch()\nclass Mine: pass\n"
MAY_BE_FINE, WHOLE = "fine", "whole"


def of_files() -> Iterator[tuple[str, str, Damage]]:
    """Yield damage of whole files; only what a run does not read may be fine."""
    ways: dict[str, Callable[[Path], Any]] = {
        "missing": Path.unlink,
        "empty": lambda f: f.write_bytes(b""),
        "half": lambda f: f.write_bytes(f.read_bytes()[: f.stat().st_size // 2]),
        "short": lambda f: f.write_bytes(f.read_bytes()[:-1]),
        "zeros": lambda f: f.write_bytes(bytes(4096)),
        "noise": lambda f: f.write_bytes(bytes(range(256)) * 9),
        "list": lambda f: f.write_text("[]"),
        "null": lambda f: f.write_text("null"),
        "mapping": lambda f: f.write_text("{}"),
        "deep": lambda f: f.write_text("[" * 100_000),
        "number": lambda f: f.write_text('{"a": ' + "9" * 5000 + "}"),
        "folder": lambda f: (f.unlink(), f.mkdir()),
        "ring": lambda f: (f.unlink(), f.symlink_to(f.name)),
    }
    for name in (*JSONS, "model.safetensors"):
        optional = name in ("tokenizer_config.json", "generation_config.json")
        for way, change in ways.items():
            verdict = MAY_BE_FINE if optional or (way, name in JSONS) == ("short", True) else "bad"
            yield f"file:{name}:{way}", verdict, lambda d, n=name, c=change: c(d / n)


def with_values(file: str, **values: Any) -> Damage:
    """Return what changes values of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def of_configurations() -> Iterator[tuple[str, str, Damage]]:
    """Yield configurations that do not fit the weights, or nothing at all."""
    for key in (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
        "intermediate_size", "num_key_value_heads",
    ):  # fmt: skip
        for value in (0, -1, 7, 1 << 20, 1 << 40, "wide", None, [1], 1.5):
            fine = (key, value) == ("num_key_value_heads", None)
            verdict = MAY_BE_FINE if fine else "bad"
            yield f"config:{key}:{value}", verdict, with_values("config.json", **{key: value})
    others: tuple[tuple[str, str, Any], ...] = (
        ("bad", "model_type", "no_such_model"), ("bad", "model_type", "bert"),
        ("bad", "model_type", 3), ("bad", "quantization_config", {"quant_method": "mine"}),
        ("bad", "quantization_config", {"quant_method": "gptq", "bits": 4}),
        ("bad", "quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("bad", "quantization_config", [1]), ("bad", "text_config", "text"),
        ("bad", "rope_parameters", "x"), ("bad", "rope_parameters", {"rope_type": "no"}),
        ("bad", "hidden_act", "no_such_function"), ("bad", "rms_norm_eps", "small"),
        ("bad", "_attn_implementation", "someone/kernel"), ("bad", "attention_bias", True),
        ("bad", "max_position_embeddings", "far"), ("fine", "dtype", "int8"),
        ("fine", "architectures", ["EvilForCausalLM"]), ("fine", "architectures", 3),
        ("bad", "transformers_weights", "../../etc/passwd"), ("fine", "tie_word_embeddings", True),
        ("fine", "eos_token_id", 10**9), ("fine", "pad_token_id", -7), ("fine", "use_cache", "no"),
    )  # fmt: skip
    for number, (verdict, key, value) in enumerate(others):
        yield f"config:{key}:{number}", verdict, with_values("config.json", **{key: value})


def with_weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Damage:
    """Return what changes tensors."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return apply


def of_weights() -> Iterator[tuple[str, str, Damage]]:
    """Yield weights that are missing, of other shapes, types or names, or not finite."""
    norm, head = "model.norm.weight", "lm_head.weight"
    up = "model.layers.0.mlp.up_proj.weight"
    for name in (norm, head, up, "model.embed_tokens.weight"):
        yield f"weights:missing:{name}", "bad", with_weights(lambda t, n=name: t.pop(n))
        yield (
            f"weights:shape:{name}",
            "bad",
            with_weights(lambda t, n=name: t.update({n: t[n][:3].clone()})),
        )
        for kind in (torch.int8, torch.int64, torch.bool, torch.float8_e4m3fn):
            yield (
                f"weights:{kind}:{name}",
                "bad",
                with_weights(lambda t, n=name, k=kind: t.update({n: t[n].to(k)})),
            )
        for value in (float("nan"), float("inf")):
            yield (
                f"weights:{value}:{name}",
                "bad",
                with_weights(lambda t, n=name, v=value: t[n].view(-1)[:5].fill_(v)),
            )
    yield "weights:half:", "fine", with_weights(lambda t: t.update({head: t[head].half()}))
    yield "weights:one:", "bad", with_weights(lambda t: (t.clear(), t.update(x=torch.zeros(1))))
    yield "weights:none:", "bad", with_weights(dict.clear)
    yield "weights:extra:", "fine", with_weights(lambda t: t.update(x=torch.zeros(1)))
    yield (
        "weights:layer:",
        "bad",
        with_weights(
            lambda t: t.update({"model.layers.2.mlp.up_proj.weight": torch.zeros(16, 16)})
        ),
    )
    yield (
        "weights:prefix:",
        "bad",
        with_weights(lambda t: [t.update({f"policy.{n}": t.pop(n)}) for n in list(t)]),
    )
    for length in (0, 1, 1 << 62, 99):
        yield (
            f"weights:header:{length}",
            "bad",
            lambda d, n=length: (d / "model.safetensors").write_bytes(
                n.to_bytes(8, "little") + (d / "model.safetensors").read_bytes()[8:]
            ),
        )
    for number, shards in enumerate(({norm: "gone.safetensors"}, {norm: 3}, {}, [], "x")):
        yield (
            f"weights:index:{number}",
            "bad",
            lambda d, s=shards: (
                (d / "model.safetensors").rename(d / "a.safetensors"),
                (d / "model.safetensors.index.json").write_text(json.dumps({"weight_map": s})),
            ),
        )


def of_templates() -> Iterator[tuple[str, str, Damage]]:
    """Yield chat templates that fail, never end, or fill the memory."""
    loop = "{% for i in range(99999) %}"
    templates = (
        "{{ raise_exception('no') }}", "{% for m in messages %}", "{{ messages[9].a.b }}",
        "{{ 'x' * 10 ** 10 }}", "{{ 'x' * 10 ** 7 }}", loop * 3 + "{% endfor %}" * 3,
        "{{ 10 ** 10 ** 10 }}", "{{ messages.__class__.__mro__ }}", "{{ ''.format_map }}{{ a.b }}",
        "{% include 'x' %}", "{{ range(10 ** 12) | list }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{{ messages | tojson * 10 ** 9 }}", "{{ '%999999999d' % 1 }}", "{{ 1 / 0 }}",
        "{{ lipsum(n=10 ** 6) }}", "{{ cycler.__init__.__globals__.os.system('touch SENTINEL') }}",
    )  # fmt: skip
    for number, text in enumerate(templates):
        fine = MAY_BE_FINE if "__" in text or "map" in text or "** 10 **" in text else "bad"
        yield (
            f"template:{number}:",
            fine,
            lambda d, t=text: (d / "chat_template.jinja").write_text(
                t.replace("SENTINEL", str(d.parent / "sentinel"))
            ),
        )
    for number, held in enumerate((3, [], {"a": 1}, {"default": 3}, [{"name": "default"}])):
        yield (
            f"template:held:{number}",
            MAY_BE_FINE,
            with_values("tokenizer_config.json", chat_template=held),
        )


class _Payload:
    """A pickle that makes a file where it is opened without care."""

    def __init__(self, sentinel: Path) -> None:
        self._sentinel = sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._sentinel,)


def of_code() -> Iterator[tuple[str, str, Damage]]:
    """Yield folders with code, which is to be refused or left alone."""

    def beside(folder: Path) -> None:
        (folder / "mine.py").write_text(CODE.format(sentinel=str(folder.parent / "sentinel")))

    for kind in ("AutoConfig", "AutoModelForCausalLM", "AutoModel"):
        for model_type in ("mine", "llama"):
            verdict = "bad" if model_type == "mine" else MAY_BE_FINE
            change = with_values("config.json", model_type=model_type, auto_map={kind: "mine.Mine"})
            yield f"code:{kind}:{model_type}", verdict, lambda d, c=change: (beside(d), c(d))
    tokens = with_values(
        "tokenizer_config.json",
        tokenizer_class="Mine",
        auto_map={"AutoTokenizer": ["mine.Mine", "mine.Mine"]},
    )
    yield "code:tokenizer:", MAY_BE_FINE, lambda d: (beside(d), tokens(d))
    generate = "custom_generate/generate.py"
    yield (
        "code:generate:",
        MAY_BE_FINE,
        lambda d: (
            (d / generate).parent.mkdir(),
            (d / generate).write_text(CODE.format(sentinel=str(d.parent / "sentinel"))),
        ),
    )
    yield (
        "code:pickle:",
        "bad",
        lambda d: (
            (d / "model.safetensors").unlink(),
            torch.save({"x": _Payload(d.parent / "sentinel")}, d / "pytorch_model.bin"),
        ),
    )
    for held in ({}, {"base_model_name_or_path": "x"}, []):
        yield (
            f"code:adapter:{held}",
            "bad",
            lambda d, h=held: (d / "adapter_config.json").write_text(json.dumps(h)),
        )
        yield (
            f"code:adapter alone:{held}",
            "bad",
            lambda d, h=held: (
                (d / "config.json").unlink(),
                (d / "adapter_config.json").write_text(json.dumps(h)),
            ),
        )


def damages() -> list[tuple[str, str, Damage]]:
    """Return the name of each damage, whether a run may accept it, and what does it."""
    return [
        ("whole::", WHOLE, lambda folder: None),
        *of_files(),
        *of_configurations(),
        *of_weights(),
        *of_templates(),
        *of_code(),
    ]
