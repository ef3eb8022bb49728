"""Model folders that are damaged, do not fit or bring code: refused in one line, nothing run."""

import json
import os
import pty
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from debate_train.errors import ModelError
from debate_train.models import PretrainedModel
from debate_train.models.model_files import check_template
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe.model_shape import shape_of

Damage = Callable[[Path], None]
TWO_LAYERS: dict[str, Any] = {
    "vocab_size": 124,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "whole"
    LlamaForCausalLM(LlamaConfig(**TWO_LAYERS)).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def model_at(folder: Path, **settings: Any) -> PretrainedModel:
    return PretrainedModel(name=str(folder), dtype="float32", **settings)


def weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def config(**values: Any) -> Damage:
    def damage(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return damage


def cut(name: str) -> Damage:
    def damage(folder: Path) -> None:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])

    return damage


def _prefix(tensors: dict[str, torch.Tensor]) -> None:
    for name in list(tensors):
        tensors[f"policy.{name}"] = tensors.pop(name)


def _replace(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: tensor})


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (weights(lambda t: t.pop(NORM) is None), "weights are missing: model.norm.weight;"),
        (weights(_prefix), "weights are missing: lm_head.weight, model.embed_tokens.weight, "),
        (weights(_replace(NORM, torch.ones(8))), r"model.norm.weight of shape \(8,\) instead of"),
        (config(num_hidden_layers=1), "of layers or modules that its .* model.layers.1."),
        (
            weights(_replace("model.layers.0.self_attn.q_proj.bias", torch.ones(16))),
            "of layers or modules that its .* model.layers.0.self_attn.q_proj.bias",
        ),
        (weights(_replace(NORM, torch.full((16,), torch.nan))), "not finite: model.norm.weight"),
        (config(tie_word_embeddings=True), "holds a head of its own .*: lm_head.weight"),
        (config(num_hidden_layers=3), "weights are missing: model.layers.2."),
        (
            config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
            r"no model could be loaded .* \(ImportError: .*bitsandbytes",
        ),
        (config(_attn_implementation="someone/kernel"), "code from a hub"),
        (config(model_type="no_such_model"), "no configuration could be loaded"),
        (cut("model.safetensors"), "no model could be loaded"),
        (cut("tokenizer.json"), "no tokenizer could be loaded"),
    ],
)
def test_folder_is_refused_when_it_does_not_fit(damage: Damage, message: str, folder: Path) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=message) as caught:
        model_at(folder).load(0)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_tied_head_is_not_missed_when_files_hold_it_once(tmp_path: Path) -> None:
    LlamaForCausalLM(LlamaConfig(**TWO_LAYERS, tie_word_embeddings=True)).save_pretrained(tmp_path)
    word_tokenizer().save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    model_at(tmp_path).load(0)


def test_pickled_weights_are_not_opened(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no model could be loaded"):
        model_at(folder).load(0)


CODE = """
from pathlib import Path
from transformers import PretrainedConfig
Path(__file__).with_name("ran").touch()
class Mine(PretrainedConfig):
    model_type = "mine"
"""


@pytest.fixture
def typed_yes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let standard input and output be a terminal on which somebody has typed y."""
    own, other = pty.openpty()
    os.write(own, b"y\n" * 20)
    with (
        os.fdopen(os.dup(other), encoding="utf-8") as read,
        os.fdopen(os.dup(other), "w", encoding="utf-8") as write,
    ):
        monkeypatch.setattr(sys, "stdin", read)
        monkeypatch.setattr(sys, "stdout", write)
        yield
    os.close(own)
    os.close(other)


@pytest.mark.usefixtures("typed_yes")
@pytest.mark.parametrize("act", ["load", "plan", "tokenizer", "model"])
def test_code_of_a_folder_is_not_run_when_a_terminal_says_yes(act: str, folder: Path) -> None:
    assert sys.stdin.isatty()
    file = "tokenizer_config.json" if act == "tokenizer" else "config.json"
    parts = {
        "tokenizer": {"auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}},
        "model": {"auto_map": {"AutoModelForCausalLM": "mine.Mine"}},
    }
    held = json.loads((folder / file).read_text())
    if act != "model":
        held |= {"model_type": "mine", "tokenizer_class": "Mine"}
    held |= parts.get(act, {"auto_map": {"AutoConfig": "mine.Mine"}})
    (folder / file).write_text(json.dumps(held))
    (folder / "mine.py").write_text(CODE)
    model = model_at(folder)
    if act == "model":  # A known type needs no code of the folder's.
        model.load(0)
    else:
        what = "tokenizer" if act == "tokenizer" else "configuration"
        with pytest.raises(ModelError, match=f"no {what} could be loaded"):
            shape_of(model) if act == "plan" else model.load(0)
    assert not list(folder.glob("ran"))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no') }}", r"fails \(TemplateError: no\)"),
        ("{% for m in messages %}", r"fails \(TemplateSyntaxError: "),
        ("{{ messages[9].content.x.y }}", r"fails \(UndefinedError: "),
    ],
)
def test_chat_template_is_refused_when_it_fails(template: str, message: str) -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match=message):
        check_template("somewhere", tokenizer, {})


def test_chat_template_is_taken_with_its_settings() -> None:
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{% if not fine %}{{ raise_exception('no') }}{% endif %}"
    check_template("somewhere", tokenizer, {"fine": True})
    with pytest.raises(ModelError, match="no"):
        check_template("somewhere", tokenizer, {})
