"""Models from a directory, from scratch and as they ship, and what training computes of them."""

import hashlib
import json

import huggingface_hub
import pytest
import torch
from pydantic import ValidationError
from transformers import (
    AutoConfig,
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
from debate_rollout.rendering import Renderer, token_text
from debate_train import train
from debate_train.batches.forward import token_logps
from debate_train.checkpoints.policy_files import weight_prints
from debate_train.errors import ModelError
from debate_train.models import PretrainedModel, pretrained
from debate_train.models.gguf import SHIPPED_MODELS, folder_of
from debate_train.models.loaded_model import Lora, trained_parameters, with_adapter
from debate_train.models.model_files import reading_model
from debate_train.models.scratch import LARGEST, SMALLEST, WORDS, word_tokenizer
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe

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


def test_name_that_is_nowhere_ends_in_one_message():
    with pytest.raises(ModelError, match=r"model\.name: no tokenizer could be loaded") as refused:
        PretrainedModel(name="nobody/no-such-model").load(0)
    assert "\n" not in str(refused.value)


def test_attempts_to_reach_a_hub_are_no_lines_of_their_own(caplog):
    # As huggingface_hub logs each of five attempts.
    hub_logger = huggingface_hub.utils.logging.get_logger("huggingface_hub.utils._http")
    with pytest.raises(ModelError, match="found no way"), reading_model("nobody/m", "model"):
        hub_logger.warning("Retrying in 1s [Retry 1/5].")
        raise OSError("found no way")
    assert caplog.messages == []
    hub_logger.warning("Retrying")
    assert caplog.messages == ["Retrying"]


def test_code_of_a_checkpoint_is_never_run():
    with pytest.raises(ValidationError):
        PretrainedModel.model_validate({"name": "a/b", "trust_remote_code": True})


@pytest.mark.parametrize(
    ("capabilities", "has_gpu", "dtype"),
    [
        ({"avx2": True}, False, "float32"),
        ({"avx2": True, "avx512_bf16": True}, False, "bfloat16"),
        ({"amx_bf16": True}, False, "bfloat16"),
        ({}, True, "bfloat16"),
    ],
)
def test_automatic_type_is_what_the_hardware_multiplies(
    capabilities, has_gpu, dtype, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    processor_file = tmp_path / "cpuinfo"
    monkeypatch.setattr(pretrained, "PROCESSOR_FILE", processor_file)
    assert PretrainedModel(name="m", dtype="auto").dtype == dtype
    processor_file.write_text(f"processor : 0\nflags : fpu {' '.join(capabilities)} sse\n")
    monkeypatch.setattr(pretrained, "_may_have_gpu", lambda: has_gpu)
    assert PretrainedModel(name="m", dtype="auto").dtype == dtype


@pytest.mark.skipif(not pretrained.PROCESSOR_FILE.is_file(), reason="needs Linux")
def test_linux_and_torch_name_the_same_instructions():
    flags = pretrained.PROCESSOR_FILE.read_text().split()
    capabilities = torch.cpu.get_capabilities()
    for flag in pretrained.BFLOAT16_FLAGS:
        assert (flag in flags) == bool(capabilities.get(flag))


def test_weights_follow_from_the_seed_alone(tiny):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    prints = [weight_prints(tiny(seed=seed)) for seed in (3, 3, 4)]
    adapter_prints = [weight_prints(tiny(seed=seed, lora_rank=2)) for seed in (3, 3, 4)]
    assert torch.equal(torch.rand(3), expected)  # No other random numbers were drawn.
    for first, again, other in (prints, adapter_prints):
        assert first == again != other


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


def test_loaded_model_has_its_adapters(base):
    loaded = PretrainedModel(name=base, dtype="float32", lora=Lora(rank=2)).load(0)
    parameters = trained_parameters(loaded)
    assert parameters and all("lora_" in name for name in parameters)
    assert with_adapter(loaded, 1) is loaded


# The tokenizer of models from scratch: one token a word

TOKENIZER = word_tokenizer()
TURN = (
    "<solution> - - + </solution>\n<evaluation> Agent 1 6 + 5 11 - 1 10 ok </evaluation>\n"
    "<comparison> Agent 2 > Agent 1\nAgent 0 = Agent 2 </comparison>"
)


def encode(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_every_word_is_one_token_and_no_other_is_known():
    numbers = [str(number) for number in range(SMALLEST, LARGEST + 1)]
    for word in (*WORDS, *numbers, "<solution>", "</consensus_reason>"):
        (token,) = encode(word)
        assert token != TOKENIZER.unk_token_id
        assert TOKENIZER.decode([token]) == f" {word}"
    assert encode("perhaps 51") == [TOKENIZER.unk_token_id] * 2
    assert len(set(TOKENIZER.get_vocab().values())) == len(TOKENIZER) == 6 + 1 + 10 + 16 + 91


def test_turn_is_decoded_as_it_was_said_but_for_a_space_before_words():
    # Solution 5, line break, evaluation 12, line break, <c> with 5 words, line break, 5, </c>: 13
    ids = encode(TURN)
    text = token_text(TOKENIZER, ids).text
    assert len(ids) == 5 + 1 + 12 + 1 + 13
    assert text.split() == TURN.split()
    assert encode(text) == ids
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize(
    ("spaced", "plain"),
    [
        ("  Agent   1  ", "Agent 1"),
        ("Agent\t1", "Agent 1"),
        ("Agent 1 \n\n  Agent 2", "Agent 1\nAgent 2"),
    ],
)
def test_white_space_is_one_space_or_one_line_break(spaced, plain):
    assert encode(spaced) == encode(plain)


def test_chat_template_marks_roles_and_can_be_extended():
    messages = [{"role": "user", "content": "Agent 0\nmake 4 Q 6 5 1 6"}]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>Agent 0\nmake 4 Q 6 5 1 6<|end|><|assistant|>"
    renderer = Renderer(TOKENIZER)
    # <|user|>, Agent, 0, line break, make, 4, Q, 6, 5, 1, 6, <|end|>, <|assistant|>
    assert len(renderer.encode(text)) == 13
    assert TOKENIZER.unk_token_id not in renderer.encode(text)
    assert renderer.end_ids == (TOKENIZER.eos_token_id,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # The longest first, whole words only, and never over a line break.
        ("Agent 1 + 5 11 + 5 12", ["Agent 1", "+ 5 11", "+ 5", "12"]),
        ("Agent 11 + 50", ["Agent", "11", "+", "50"]),
        ("Agent\n1 +  5", ["Agent", "Ċ", "1", "+ 5"]),
        ("Agent: 2.5 Agent:", ["Agent: 2.5", "<unk>"]),
        ("Agent: 2x5", ["<unk>", "<unk>"]),  # The dot is no pattern's.
    ],
)
def test_several_words_can_be_one_token(text, expected):
    tokens = word_tokenizer(["Agent 1", "+ 5", "+ 5 11", "Agent: 2.5"]).tokenize(text)
    assert [token.replace("Ġ", " ").strip() for token in tokens] == expected


def test_words_of_several_are_fewer_tokens_of_the_same_text():
    tokenizer = word_tokenizer(["Agent 1", "+ 5", "+ 5 11"])
    ids = tokenizer.encode(TURN, add_special_tokens=False)
    text = token_text(tokenizer, ids).text
    assert len(encode(TURN)) - len(ids) == 4  # "Agent 1" twice, and "+ 5 11" saves two.
    assert text == token_text(TOKENIZER, encode(TURN)).text
    assert tokenizer.encode(text, add_special_tokens=False) == ids


# The start that ships

START = SHIPPED_MODELS / "quickstart_start"
RECORD = json.loads((START / "made_by.json").read_text("utf-8"))
# Processors round differently. With seed 1 these losses are .24, .16 and .01 away.
ROUNDING = 1e-4


def test_files_of_the_start_are_those_that_its_record_names():
    files = [path for path in START.iterdir() if path.name != "made_by.json"]
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert hashes == RECORD["sha256"]
    assert sum(path.stat().st_size for path in files) < 500_000


def test_start_is_found_by_name_from_any_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_recipe("quickstart", model=Recipe).recipe.model.source == str(START)
    assert folder_of("quickstart_strat") == "quickstart_strat"
    # A folder of the working directory goes first.
    (tmp_path / "quickstart_start").mkdir()
    assert folder_of("quickstart_start") == "quickstart_start"


def test_start_has_the_tokenizer_and_shape_of_the_recipe_that_made_it(tmp_path):
    loaded = load_recipe("from_nothing", model=Recipe).recipe.model.load(0)
    loaded.tokenizer.save_pretrained(tmp_path)
    shipped_tokenizer = json.loads((START / "tokenizer.json").read_text("utf-8"))
    assert json.loads((tmp_path / "tokenizer.json").read_text("utf-8")) == shipped_tokenizer
    shipped = AutoConfig.from_pretrained(START)
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "head_dim"):
        assert getattr(shipped, key) == getattr(loaded.model.config, key)
    assert shipped.max_position_embeddings == loaded.model.config.max_position_embeddings


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


def test_both_ways_play_the_same_debates_but_the_quickstart_a_step_ahead():
    on_policy = ["pipeline.max_staleness=0", "trainer.threads=null"]
    quickstart = load_recipe("quickstart", on_policy, model=Recipe).recipe
    phases = load_recipe("from_nothing", model=Recipe).recipe.phase_recipes()
    assert list(phases) == ["warm_start", "settle", "self_play"]
    for key in set(Recipe.model_fields) - {"name", "model", "phases"}:
        assert getattr(quickstart, key) == getattr(phases["self_play"], key), key
