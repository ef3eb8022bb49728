"""Models from a directory, from scratch and as they ship, and what training computes of them."""

import json

import pytest
import torch
from pydantic import ValidationError
from transformers import (
    FalconH1Config,
    FalconH1ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from arithmetic import in_float64
from debate_rollout.rendering import token_text
from debate_train import train
from debate_train.batches.forward import token_logps
from debate_train.checkpoints.policy_files import weight_prints
from debate_train.errors import ModelError
from debate_train.models import PretrainedModel
from debate_train.models.gguf import SHIPPED_MODELS
from debate_train.models.loaded_model import trained_parameters
from debate_train.models.scratch import word_tokenizer

pytestmark = pytest.mark.numeric

SHAPE = {
    "vocab_size": 124,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT2 = {"vocab_size": 124, "n_embd": 16, "n_layer": 1, "n_head": 2, "eos_token_id": 2}
FALCON = {"head_dim": 8, "mamba_d_ssm": 16, "mamba_n_heads": 2, "lm_head_multiplier": 0.5}
TOKENS = torch.tensor([[5, 9, 13, 40, 7]])
SAMPLED = [[False, True, True, True, True]]


def save_model(folder, model):
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return PretrainedModel(name=str(folder), dtype="float32")


@pytest.mark.parametrize(
    "model",
    [LlamaForCausalLM(LlamaConfig(**SHAPE)), GPT2LMHeadModel(GPT2Config(**GPT2))],
    ids=["llama", "gpt2"],
)
def test_model_of_a_directory_is_scored_as_its_own_logits_say(tmp_path, model, pack_of):
    loaded = save_model(tmp_path, model).load(0)
    loaded.model.double().eval()
    with torch.no_grad(), in_float64():
        logps, _ = token_logps(loaded.model, pack_of(TOKENS, SAMPLED))
        all_logps = loaded.model(input_ids=TOKENS).logits[0, :-1].log_softmax(-1)
    expected = all_logps.gather(1, TOKENS[0, 1:, None])[:, 0]
    torch.testing.assert_close(logps, expected, rtol=0, atol=1e-13)


def test_dropout_of_a_model_is_switched_off(tmp_path, pack_of):
    config = GPT2Config(**GPT2)
    assert config.resid_pdrop == config.attn_pdrop == config.embd_pdrop == 0.1
    model = save_model(tmp_path, GPT2LMHeadModel(config)).load(0).model
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    assert {layer.p for layer in layers} == {0.0}
    pack = pack_of(TOKENS, SAMPLED)
    in_training, _ = token_logps(model.train(), pack)
    in_evaluation, _ = token_logps(model.eval(), pack)
    torch.testing.assert_close(in_training, in_evaluation, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=8.0)), "logits_scaling"),
        (FalconH1ForCausalLM(FalconH1Config(**SHAPE, **FALCON)), "lm_head_multiplier"),
        (PhiForCausalLM(PhiConfig(**SHAPE)), "a bias"),
    ],
    ids=["scaled", "multiplied", "biased"],
)
def test_model_whose_logits_are_more_than_a_linear_head_is_refused(tmp_path, model, reason):
    with pytest.raises(ModelError, match=f"pass through {reason}"):
        save_model(tmp_path, model).load(0)


def test_code_of_a_checkpoint_is_never_run():
    with pytest.raises(ValidationError):
        PretrainedModel.model_validate({"name": "a/b", "trust_remote_code": True})


def test_weight_prints_tell_the_smallest_change_from_what_is_frozen(tiny):
    before = weight_prints(tiny())
    loaded = tiny()
    with torch.no_grad():  # The last of a tensor's values, by the least that float32 holds.
        last = next(iter(loaded.model.parameters())).flatten()[-1:]
        last.copy_(torch.nextafter(last, last + 1))
    assert list(before) == ["start"]
    assert weight_prints(loaded) != before
    loaded = tiny(lora_rank=2)
    before = weight_prints(loaded)
    with torch.no_grad():
        for parameter in trained_parameters(loaded).values():
            parameter.add_(1)
    after = weight_prints(loaded)
    assert after["frozen"] == before["frozen"]
    assert after["start"] != before["start"]


# The tokenizer of models from scratch: one token a word

TOKENIZER = word_tokenizer()
TURN = (
    "<solution> - - + </solution>\n<evaluation> Agent 1 6 + 5 11 - 1 10 ok </evaluation>\n"
    "<comparison> Agent 2 > Agent 1\nAgent 0 = Agent 2 </comparison>"
)


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_turn_is_decoded_as_it_was_said_but_for_a_space_before_words():
    # Solution 5, line break, evaluation 12, line break, <c> with 5 words, line break, 5, </c>: 13
    ids = encode(TURN)
    text = token_text(TOKENIZER, ids).text
    assert len(ids) == 5 + 1 + 12 + 1 + 13
    assert text.split() == TURN.split()
    assert encode(text) == ids
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The longest first, whole words only, and never over a line break.
        ("Agent 1 + 5 11 + 5 12", ["Agent 1", "+ 5 11", "+ 5", "12"]),
        ("Agent\n1 +  5", ["Agent", "Ċ", "1", "+ 5"]),
        ("Agent: 2x5", ["<unk>", "<unk>"]),  # The dot is no pattern's.
    ],
)
def test_several_words_can_be_one_token(text, expected):
    tokens = word_tokenizer(["Agent 1", "+ 5", "+ 5 11", "Agent: 2.5"]).tokenize(text)
    assert [token.replace("Ġ", " ").strip() for token in tokens] == expected


# The start that ships

START = SHIPPED_MODELS / "quickstart_start"
RECORD = json.loads((START / "made_by.json").read_text("utf-8"))
# Processors round differently. With seed 1 these losses are .24, .16 and .01 away.
ROUNDING = 1e-4


def test_first_steps_of_the_start_come_again(tmp_path):
    losses = RECORD["first_losses"]
    changes = [
        f"phases.warm_start.steps={len(losses)}",
        "phases.warm_start.exit_criterion=null",
        "phases.settle={steps: 0, exit_criterion: null}",
        "phases.self_play.steps=0",
        "evaluation.questions=0",
        "tracking.wandb=false",
    ]
    run = train("from_nothing", changes, output=tmp_path / "run")
    assert [row["loss"] for row in run.metrics] == pytest.approx(losses, rel=ROUNDING)
