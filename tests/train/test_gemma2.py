"""Gemma 2, whose logits and attention scores are soft-capped, trained and sampled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM

from arithmetic import in_float64
from debate_protocol.types import Question, TurnRequest
from debate_rollout.engine import Request, Sampling
from debate_rollout.engines import TransformersEngine
from debate_train.batches import forward as logps
from debate_train.batches.forward import token_logps
from debate_train.batches.row_types import Batch
from debate_train.checkpoints.policy_files import save_policy
from debate_train.errors import RecipeError
from debate_train.losses import PpoClip
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers import TorchTrainer

TOKENS = [[7, 30, 31, 32, 33, 34], [7, 50, 51, 52, 53, 54]]
SAMPLED = [[0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]]
HEATS = [[1.0, 1.0, 0.5, 0.7, 1.0, 2.0]] * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny: Callable[..., LoadedModel]) -> Path:
    """A model of random weights, large enough that both caps bend what they cap."""
    torch.manual_seed(0)
    tokenizer = tiny().tokenizer
    config = Gemma2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, query_pre_attn_scalar=1,
        attn_logit_softcapping=1.0, final_logit_softcapping=2.0, sliding_window=4,
        initializer_range=0.5, max_position_embeddings=256,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=0,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("gemma2")
    save_policy(folder, LoadedModel(Gemma2ForCausalLM(config), tokenizer))
    return folder


def plain_logps(model: Any) -> torch.Tensor:
    """Log-probabilities of the actions from all logits, as transformers computes them."""
    logits = model(input_ids=torch.tensor(TOKENS)).logits[:, :-1].double()
    every = (logits / torch.tensor(HEATS)[:, 1:, None]).log_softmax(-1)
    own = every.gather(2, torch.tensor(TOKENS)[:, 1:, None])[..., 0]
    return own[torch.tensor(SAMPLED)[:, 1:] > 0]


@pytest.mark.parametrize("chunk", [1 << 21, 200])
def test_gemma2_log_probabilities_and_gradients_are_those_of_its_logits(
    folder: Path, pack_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(logps, "CHUNK_LOGITS", chunk)
    model: Any = PretrainedModel(name=str(folder), dtype="float32").load(0).model.double()
    with in_float64():
        slopes = torch.linspace(-1.0, 2.0, 7)
        found, _ = token_logps(model, pack_of(TOKENS, SAMPLED, HEATS))
        (found * slopes).sum().backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        model.config._attn_implementation = "eager"
        expected = plain_logps(model)
        (expected * slopes).sum().backward()
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        largest = max(float(p.grad.abs().max()) for p in model.parameters())
        for name, parameter in model.named_parameters():
            gap = float((gradients[name] - parameter.grad).abs().max())
            assert gap <= 1e-12 * largest, name
        # Both caps count: without either, scores are others by far.
        for layer in model.model.layers:
            layer.self_attn.attn_logit_softcapping = None
        assert float((plain_logps(model) - expected).abs().max()) > 1e-3
        for layer in model.model.layers:
            layer.self_attn.attn_logit_softcapping = model.config.attn_logit_softcapping
        model.config.final_logit_softcapping = None
        assert float((plain_logps(model) - expected).abs().max()) > 1e-3


@pytest.mark.parametrize("packing", ["prefix", "rows"])
def test_gemma2_is_refused_when_packed(folder: Path, packing: Any) -> None:
    loaded = PretrainedModel(name=str(folder), dtype="float32").load(0)
    with pytest.raises(RecipeError, match=r"'gemma2' attends with softcap.* trainer.packing=none"):
        TorchTrainer(packing=packing).open(loaded, PpoClip(), 1)


def test_gemma2_is_sampled_with_the_log_probabilities_it_is_trained_on(
    folder: Path, pack_of: Callable[..., Any], random_batch: Callable[..., Batch]
) -> None:
    loaded = PretrainedModel(name=str(folder), dtype="float32").load(0)
    trainer = TorchTrainer(packing="none", learning_rate=1e-2).open(loaded, PpoClip(), 1)
    assert trainer.step(random_batch())["optim/grad_norm"] > 0
    prompt = tuple(TOKENS[0])
    engine = TransformersEngine().open(loaded.model, loaded.tokenizer)
    turn_request = TurnRequest(Question("q", "?"), 0, 0, ())
    (reply,) = engine.generate([Request(turn_request, Sampling(max_tokens=8, seed=1), prompt)])
    row = [*prompt, *reply.token_ids]
    sampled = [0] * len(prompt) + [1] * len(reply.token_ids)
    with torch.no_grad():
        trained, _ = token_logps(loaded.model, pack_of([row], [sampled]))
    torch.testing.assert_close(torch.tensor(reply.logps), trained, rtol=0, atol=1e-4)
