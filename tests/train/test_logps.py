"""Log-probabilities and their gradient against the full softmax; temperatures."""

import copy
import dataclasses
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import varlen
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from arithmetic import UNIT, in_float64
from debate_protocol.types import Question, TurnRequest
from debate_rollout.engine import Request, Sampling
from debate_rollout.engines import TransformersEngine
from debate_train.batches import forward as fused_head
from debate_train.batches import forward as logps
from debate_train.batches.forward import TokenLogps, packed_attention, token_logps, varlen_attention
from debate_train.batches.packs import Pack
from debate_train.batches.prefix_forest import PrefixForest, make_layout
from debate_train.batches.row_types import Batch
from debate_train.checkpoints.policy_files import save_policy
from debate_train.losses import Dapo, Grpo, ImportanceSampling, Kl, Loss, PpoClip, Reinforce
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import LoadedModel, Lora, with_adapter
from debate_train.trainers import TorchTrainer
from debate_train.trainers.torch_session import trainable
from train.made_rows import row_of

MakeModel = Callable[..., LoadedModel]
PackOf = Callable[..., Pack]
GradientOf = Callable[..., tuple[dict[str, float], dict[str, Tensor]]]


def untied(make: MakeModel, lora_rank: int = 0) -> LoadedModel:
    """The tiny model with a head of its own."""
    from debate_train.models.loaded_model import with_adapter

    loaded = dataclasses.replace(make(), lora=make(lora_rank=1).lora if lora_rank else None)
    head = torch.nn.Linear(16, len(loaded.tokenizer), bias=False)
    torch.nn.init.normal_(head.weight, std=0.3)
    loaded.model.set_output_embeddings(head)
    assert loaded.model.lm_head.weight is not loaded.model.get_input_embeddings().weight
    return with_adapter(loaded, 0)


def with_weights(make: MakeModel, kind: str) -> LoadedModel:
    loaded = {
        "tied": lambda: make(),
        "untied": lambda: untied(make),
        "tied lora": lambda: make(lora_rank=2),
        "untied lora": lambda: untied(make, lora_rank=2),
    }[kind]()
    with torch.no_grad():  # LoRA's B starts at 0: move it, so that adapters matter.
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    return loaded


def full_softmax(model: Any, tokens: Tensor, wanted: Tensor, temperatures: Tensor) -> Any:
    """(logps, entropies) the plain way: all logits of all positions."""
    logits = model(input_ids=tokens).logits[:, :-1].float()
    every = (logits / temperatures[:, 1:, None]).log_softmax(-1)
    found = every.gather(-1, tokens[:, 1:, None])[..., 0]
    return found[wanted[:, 1:]], (-(every.exp() * every).sum(-1))[wanted[:, 1:]]


@pytest.mark.usefixtures("float64")
@pytest.mark.numeric
@pytest.mark.parametrize("kind", ["tied", "untied", "tied lora", "untied lora"])
@pytest.mark.parametrize("chunk", [1 << 22, 400])
def test_token_logps_are_those_of_the_full_softmax(
    tiny: MakeModel, pack_of: PackOf, kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logps, "CHUNK_LOGITS", chunk)  # 400 over 124 words: 3 tokens a chunk
    loaded = with_weights(tiny, kind)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(6, 120, (3, 12), generator=generator)
    wanted = torch.rand(3, 12, generator=generator) < 0.6
    wanted[:, 0] = False
    temperatures = 0.5 + torch.rand(3, 12, generator=generator)
    slopes = torch.randn(int(wanted.sum()), generator=generator)

    pack = pack_of(tokens, wanted, temperatures)

    def gradients(find: Callable[..., Any], *of: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        loaded.model.zero_grad()
        found, entropies = find(loaded.model, *of)
        (found * slopes).sum().backward()
        own = trainable(loaded.model)
        return found, entropies, {n: p.grad.clone() for n, p in own.items() if p.grad is not None}

    found, entropies, gradient = gradients(token_logps, pack)
    expected, expected_entropies, expected_gradient = gradients(
        full_softmax, tokens, wanted, temperatures
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(entropies, expected_entropies, rtol=0, atol=1e-13)
    assert set(gradient) == set(expected_gradient) == set(trainable(loaded.model))
    assert all("lora_" in name for name in gradient) == ("lora" in kind)
    assert all(float(g.abs().max()) > 1e-4 for g in gradient.values())
    largest = max(float(g.abs().max()) for g in expected_gradient.values())
    for name, slope in expected_gradient.items():
        torch.testing.assert_close(gradient[name], slope, rtol=0, atol=1e-13 * max(1.0, largest))


@pytest.mark.usefixtures("float64")
@pytest.mark.numeric
def test_token_logps_do_not_see_the_padding(tiny: MakeModel, pack_of: PackOf) -> None:
    loaded = tiny()
    tokens = torch.randint(6, 120, (2, 8), generator=torch.Generator().manual_seed(1)).tolist()
    wanted = [[False] * 3 + [True] * 5] * 2
    alone, _ = token_logps(loaded.model, pack_of(tokens[:1], wanted[:1]))
    longer = [tokens[0], tokens[1] * 2], [wanted[0] + [False] * 8, wanted[1] * 2]
    beside, _ = token_logps(loaded.model, pack_of(*longer))
    torch.testing.assert_close(beside[:5], alone, rtol=0, atol=1e-13)


PROMPT = (9, 40, 77)
TEMPERATURE = 0.6


def enumerated(loaded: LoadedModel, trained_at: float) -> Batch:
    """One row for each token x of the vocabulary after a prompt, worth its chance at TEMPERATURE.

    The sum over rows is the expectation of a constant advantage of 1.
    """
    size = len(loaded.tokenizer)
    with torch.no_grad():
        logits = loaded.model(input_ids=torch.tensor([PROMPT])).logits[0, -1]
    chances = (logits / TEMPERATURE).softmax(-1).numpy()
    sampler = (logits / trained_at).log_softmax(-1).numpy()
    rows = []
    for token in range(size):
        rows.append(
            row_of(
                [*PROMPT, token],
                [0, 0, 0, 1],
                advantages=chances[token],
                sampler_logps=sampler[token],
                temperatures=trained_at,
                debate=token,
            )
        )
    return Batch(tuple(rows), ("generator",), size, size)


@pytest.mark.usefixtures("float64")
@pytest.mark.numeric
@pytest.mark.parametrize(
    "loss",
    [
        ImportanceSampling(),
        PpoClip(aggregation="token_sum"),
        Dapo(aggregation="token_sum"),
        Grpo(aggregation="token_sum", kl=Kl()),
        Reinforce(aggregation="token_sum"),
    ],
    ids=lambda loss: str(loss.type),
)
def test_constant_advantage_moves_nothing_when_ratio_has_the_samplers_temperature(
    tiny: MakeModel, gradient_of: GradientOf, loss: Loss
) -> None:
    loaded = tiny()
    metrics, gradient = gradient_of(loaded, enumerated(loaded, TEMPERATURE), loss)
    # Both at temperature 1, as if untempered, though the samples are tempered: it moves.
    _, moved = gradient_of(loaded, enumerated(loaded, 1.0), loss)
    right, wrong = (sum(float((g**2).sum()) for g in x.values()) ** 0.5 for x in (gradient, moved))
    assert wrong > 0.1
    # What rows hold is float32: chances and log-probabilities of up to 2**4, rounded once.
    assert right < 2**4 * UNIT * wrong
    if loss.type != "reinforce":
        assert metrics["loss"] == pytest.approx(-1.0, abs=2**4 * UNIT)
    assert metrics["optim/ratio_min"] == pytest.approx(1.0, abs=2**4 * UNIT)
    assert metrics["optim/ratio_max"] == pytest.approx(1.0, abs=2**4 * UNIT)


@pytest.mark.usefixtures("float64")
@pytest.mark.numeric
@pytest.mark.parametrize("is_trained", [True, False])
def test_head_that_is_not_trained_takes_no_memory_for_its_gradient(is_trained: bool) -> None:
    made = []

    class Made(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), more: Any = None) -> Any:
            found = func(*args, **(more or {}))
            made.append(getattr(found, "shape", None))
            return found

    weight = torch.randn(50, 4).requires_grad_(is_trained)
    hidden = torch.randn(3, 4, requires_grad=True)
    found, _ = logps.hidden_logps(hidden, weight, torch.tensor([1, 2, 3]), torch.ones(3))
    with Made():
        found.sum().backward()  # type: ignore[no-untyped-call]
    assert hidden.grad is not None
    assert (weight.grad is not None) == is_trained
    assert (weight.shape in made) == is_trained


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


Found = tuple[Tensor, Tensor, Tensor, Tensor]


def fused_on_cpu(*given: Tensor | float | None) -> tuple[Tensor, Tensor]:
    """The head of GPUs, not compiled."""
    with patch.object(fused_head, "fuses", lambda _: True):
        found: tuple[Tensor, Tensor] = TokenLogps.apply(*given)
    return found


def both(way: Callable[..., tuple[Tensor, Tensor]], cap: float | None, dtype: torch.dtype) -> Found:
    """Log-probabilities, entropies, and the gradients of hidden states and weight."""
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:  # The same numbers in every type.
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    hidden, weight, slopes = drawn(11, 6), drawn(40, 6), drawn(11)
    targets = torch.randint(40, (11,), generator=generator)
    heat = 0.5 + drawn(11).abs()
    hidden.requires_grad_()
    weight.requires_grad_()
    found, entropies = way(hidden, weight, targets, heat, cap)
    (found * slopes).sum().backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return found.detach(), entropies, hidden.grad, weight.grad


@pytest.mark.numeric
@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("chunk", [1 << 20, 120])
def test_fused_head_is_the_plain_one(
    cap: float | None, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fused_head, "GPU_CHUNK_LOGITS", chunk
    )  # 120 over 40 words: 3 tokens a chunk
    plain = both(logps.hidden_logps, cap, torch.float64)
    fused = both(fused_on_cpu, cap, torch.float64)
    for one, other in zip(fused, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


def test_head_runs_step_by_step_where_no_compiler_works(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import TorchDynamoException

    def broken(*given: object) -> None:
        raise TorchDynamoException("no C compiler")

    monkeypatch.setattr(fused_head, "compiles", lambda logits: True)
    monkeypatch.setitem(fused_head._kernels, fused_head.chunk_logps, broken)
    given = (torch.randn(2, 5), torch.tensor([0, 4]), torch.ones(2), None)
    with pytest.warns(UserWarning, match="not compiled and slower: no C"):
        found = fused_head._call_compiled(fused_head.chunk_logps, *given)
    assert all(
        torch.equal(a, b) for a, b in zip(found, fused_head.chunk_logps(*given), strict=True)
    )
    assert fused_head._kernels[fused_head.chunk_logps] is fused_head.chunk_logps  # For good.


@pytest.mark.gpu
@pytest.mark.parametrize("cap", [None, 3.0])
def test_compiled_head_is_the_plain_one_on_a_gpu(
    cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = both(logps.hidden_logps, cap, torch.float64)

    def on_gpu(*given: Tensor | float | None) -> tuple[Tensor, Tensor]:
        here = [x.cuda() if isinstance(x, Tensor) else x for x in given]
        found: tuple[Tensor, Tensor] = TokenLogps.apply(*here)
        return found[0].cpu(), found[1].cpu()

    for one, other in zip(both(on_gpu, cap, torch.float32), exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)


RANK = 4


def adapted(names: tuple[str, ...] = (), *, bias: bool = False, scale: float = 0.02) -> Any:
    """Return a bfloat16 model whose adapters are not zero."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 50}
    config = LlamaConfig(num_attention_heads=4, attention_bias=bias, **sizes)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    lora = Lora(rank=RANK, alpha=3 * RANK, adapters=names)
    model = with_adapter(LoadedModel(model, None, lora=lora), seed=0).model  # type: ignore[arg-type]
    for name, parameter in model.named_parameters():
        if "lora_B" in name or name.endswith("bias"):
            nn.init.normal_(parameter, std=scale)
    return model


def as_peft(model: nn.Module) -> nn.Module:
    """Return a copy with peft's own layers."""
    plain = copy.deepcopy(model)
    for layer in plain.modules():
        if type(layer).__name__ == "_Fused":
            layer.__class__ = type(layer).__mro__[1]
    return plain


def measured(model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits of two sequences and the gradients of a function of them."""
    tokens = torch.arange(24).view(2, 12)
    logits = model(input_ids=tokens).logits.float()
    logits.logsumexp(-1).sum().backward()
    named = model.named_parameters()
    return logits.detach(), {name: p.grad for name, p in named if p.grad is not None}


def error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.numeric
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_near_to_float32_as_those_of_peft_are(bias: bool) -> None:
    model = adapted(bias=bias)
    plain, exact = as_peft(model), as_peft(model).float()
    assert sum(type(layer).__name__ == "_Fused" for layer in model.modules()) == 14
    (logits, grads), (of_peft, peft_grads), (right, right_grads) = map(
        measured, (model, plain, exact)
    )
    # Adapters are rounded to 16 bits, too; here they are as large as the model.
    assert error(logits, right) < 1.5 * error(of_peft, right) < 0.02
    assert grads.keys() == right_grads.keys() and len(grads) == 28
    assert {grad.dtype for grad in grads.values()} == {torch.float32}
    for part in ("lora_A", "lora_B"):
        found, by_peft, expected = (
            torch.cat([grad.flatten() for name, grad in sorted(own.items()) if part in name])
            for own in (grads, peft_grads, right_grads)
        )
        assert error(found, expected) < 1.5 * error(by_peft, expected) < 0.02
    with model.disable_adapter(), torch.no_grad():  # Adapters are no small part of it.
        assert error(model(input_ids=torch.arange(24).view(2, 12)).logits.float(), right) > 0.1


@pytest.mark.numeric
def test_the_adapter_that_is_set_speaks() -> None:
    model = adapted(("actor", "critic"))
    said = {}
    for name in ("actor", "critic", "actor"):
        model.set_adapter(name)
        found = measured(model)[0]
        assert error(found, measured(as_peft(model))[0]) < 0.03
        assert torch.equal(said.setdefault(name, found), found)
    assert error(said["critic"], said["actor"]) > 0.1


FORWARD = varlen._varlen_attn
BACKWARD = varlen._varlen_attn_backward


def named_arguments(operator, positional, named):
    bound = signature(operator._init_fn).bind(*positional, **named)
    bound.apply_defaults()
    return bound.arguments


def check_arguments(x):
    """Check what the CUDA kernel asks for and does not check itself."""
    for tensor in (x["query"], x["key"], x["value"]):
        assert tensor.is_contiguous() and tensor.shape[2] % 8 == 0
    for starts, longest in ((x["cu_seq_q"], x["max_q"]), (x["cu_seq_k"], x["max_k"])):
        assert starts.dtype == torch.int32 and starts.is_contiguous()
        assert longest == int(starts.diff().max())
    assert x["window_size"][1] == 0


def masked_scores(x):
    """Yield of each run: where its queries and keys stand, and the scores of its heads."""
    query = x["query"]
    key = x["key"]
    scale = query.shape[2] ** -0.5 if x["scale"] is None else x["scale"]
    num_groups = query.shape[1] // key.shape[1]
    query_starts = x["cu_seq_q"].tolist()
    key_starts = x["cu_seq_k"].tolist()
    for run in range(len(query_starts) - 1):
        queries = slice(query_starts[run], query_starts[run + 1])
        keys = slice(key_starts[run], key_starts[run + 1])
        repeated_keys = key[keys].repeat_interleave(num_groups, 1)
        scores = torch.einsum("qhd,khd->hqk", query[queries], repeated_keys) * scale
        num_queries, num_keys = scores.shape[1:]
        is_seen = torch.ones(num_queries, num_keys, dtype=torch.bool).tril(num_keys - num_queries)
        window = x["window_size"][0]
        if window >= 0:
            is_seen = is_seen.triu(num_keys - num_queries - window)
        yield queries, keys, num_groups, scale, scores.masked_fill(~is_seen, float("-inf"))


@FORWARD.register_kernel("cpu")
def attend(*positional, **named):
    x = named_arguments(FORWARD, positional, named)
    check_arguments(x)
    query = x["query"]
    value = x["value"]
    assert x["enable_gqa"] == (query.shape[1] != value.shape[1])
    assert x["is_causal"] == (list(x["window_size"]) == [-1, 0])
    output = torch.empty_like(query)
    lse = query.new_empty(query.shape[1], query.shape[0])
    for queries, keys, num_groups, _, scores in masked_scores(x):
        lse[:, queries] = scores.logsumexp(-1)
        values = value[keys].repeat_interleave(num_groups, 1)
        output[queries] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return output, lse, torch.zeros(2, dtype=torch.uint64)


@BACKWARD.register_kernel("cpu")
def attend_backward(*positional, **named):
    """Compute d scores = P (d P - sum(d out · out)); Dao 2023, section 3.1.2."""
    x = named_arguments(BACKWARD, positional, named)
    query, key, value, grad = (x[name] for name in ("query", "key", "value", "grad_out"))
    d_query = torch.zeros_like(query)
    d_key = torch.zeros_like(key)
    d_value = torch.zeros_like(value)

    def add_to_keys(total, keys, weights, of_queries, num_groups):
        by_head = torch.einsum("hqk,qhd->khd", weights, of_queries)
        total[keys] = by_head.unflatten(1, (-1, num_groups)).sum(2)

    for queries, keys, num_groups, scale, scores in masked_scores(x):
        probabilities = (scores - x["lse"][:, queries, None]).exp()
        repeated_keys = key[keys].repeat_interleave(num_groups, 1)
        values = value[keys].repeat_interleave(num_groups, 1)
        d_probabilities = torch.einsum("qhd,khd->hqk", grad[queries], values)
        grad_dot_output = (grad[queries] * x["out"][queries]).sum(-1).T[:, :, None]
        d_scores = scale * probabilities * (d_probabilities - grad_dot_output)
        d_query[queries] = torch.einsum("hqk,khd->qhd", d_scores, repeated_keys)
        add_to_keys(d_key, keys, d_scores, query[queries], num_groups)
        add_to_keys(d_value, keys, probabilities, grad[queries], num_groups)
    return d_query, d_key, d_value


def attend_packed(query, key, value, layout, scale, window):
    output, _ = packed_attention(
        None, query, key, value, None, pack_layout=layout, scaling=scale, sliding_window=window
    )
    return output


@pytest.mark.numeric
@pytest.mark.parametrize(("num_shared", "kv_heads"), [(0, 4), (10, 4), (10, 2)])
@pytest.mark.parametrize(("scale", "window"), [(None, None), (0.5, None), (None, 7)])
def test_values_and_gradients_of_a_forest_are_those_of_plain_attention(
    num_shared, kv_heads, scale, window
):
    # Four sequences; neighbors share this many tokens, the last pair twice as many.
    forest = PrefixForest()
    for length, num_common in ((30, 0), (25, num_shared), (41, num_shared), (38, 2 * num_shared)):
        forest.add(length, num_common)
    layout = make_layout(forest)
    assert (max(layout.parents) >= 0) == (num_shared > 0)
    assert_like_plain_attention(layout, kv_heads, scale, window)


@pytest.mark.numeric
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize(
    ("depths", "parents"),
    [
        # A trunk of 20 tokens, which two sequences leave at its end, one after 12, one at once.
        ([20, 20, 12, 0], (-1, 0, 1, 1, 0, -1)),
        # Two sequences that share no token with it.
        ([0, 0], (-1, -1, -1)),
    ],
)
def test_values_and_gradients_behind_a_trunk_are_those_of_plain_attention(
    kv_heads, window, depths, parents
):
    forest = PrefixForest()
    forest.grow_trunk(20, depths)
    for depth in depths:
        forest.follow_trunk(depth)
        forest.add(depth + 9, depth)
    layout = make_layout(forest, trunk_tokens=20)
    assert layout.parents == parents
    assert_like_plain_attention(layout, kv_heads, scale=None, window=window)


def assert_like_plain_attention(layout, kv_heads, scale, window):
    """Compare values and gradients of queries, keys and values with those of masked attention."""
    rng = np.random.default_rng(0)
    num_keys = layout.starts[-1]
    num_queries = num_keys - layout.trunk_tokens
    shapes = [(4, num_queries), (kv_heads, num_keys), (kv_heads, num_keys)]
    draws = [torch.from_numpy(rng.normal(size=(1, *shape, 8))) for shape in shapes]
    loss_weights = torch.from_numpy(rng.normal(size=(1, num_queries, 4, 8)))
    results = []
    for attention in (varlen_attention, attend_packed):
        inputs = [tensor.clone().requires_grad_() for tensor in draws]
        output = attention(*inputs, layout, scale, window)
        (output * loss_weights).sum().backward()
        results.append([output.detach(), *(tensor.grad for tensor in inputs)])
    for by_varlen, expected in zip(*results, strict=True):
        torch.testing.assert_close(by_varlen, expected, rtol=0, atol=1e-12)
