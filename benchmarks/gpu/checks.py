"""Is packed attention right? Against plain attention with a mask, and rows computed one by one."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.models import (
    CHECKED,
    Spans,
    cast,
    debate_rows,
    grpo_rows,
    make_batch,
    make_model,
    make_packs,
    update,
)
from benchmarks.measurement import print_line
from debate_train.batches.forward import packed_attention
from debate_train.batches.packs import Pack

PACKAGES = ("torch", "transformers", "numpy")
ROWS = [*grpo_rows(2, 5, 40, 24), *debate_rows(2, 3, 2, 40, 16), Spans(99, (1,), (1,))]
"""Groups that share a prompt, agents that share an opening, and a row of two tokens."""


def check_attention_fp32(device: str) -> bool:
    """Compare the loop over runs with attention under a mask, in float32."""
    return _check_attention(device, torch.float32, limit=1e-4)


def check_attention_bf16(device: str) -> bool:
    """Compare PyTorch's varlen attention with attention under a mask, in bfloat16.

    Each tensor may err three times as much as it does under a mask in the same type: gradients
    of keys that several runs see are added up in bfloat16.
    """
    return _check_attention(device, torch.bfloat16, limit=None)


def _check_attention(device: str, dtype: torch.dtype, limit: float | None) -> bool:
    passed = True
    for name, rows, share in (("forest", ROWS, "prefix"), ("rows", ROWS, "rows")):
        (pack,) = make_packs(make_batch(rows, 30), 1 << 20, share)
        here = pack.to(torch.device(device))
        generator = torch.Generator().manual_seed(0)
        size = pack.tokens_BT.shape[1]
        shapes = {"query": 8, "key": 4, "value": 4}
        given = {
            key: torch.randn(1, heads, size, 64, generator=generator).to(device, dtype)
            for key, heads in shapes.items()
        }
        slope = torch.randn(1, size, 8, 64, generator=generator).to(device)
        found = _with_gradients(given, slope, partial(_packed, pack=here))
        mask = _mask(here).to(device)
        exact = {key: tensor.float() for key, tensor in given.items()}
        expected = _with_gradients(exact, slope, partial(_masked, mask=mask))
        rounded = _with_gradients(given, slope, partial(_masked, mask=mask))
        errors = {key: _distance(found[key], expected[key]) for key in expected}
        usual = {key: _distance(rounded[key], expected[key]) for key in expected}
        worst = max(errors.values())
        limits = {key: 3 * usual[key] if limit is None else limit for key in errors}
        passes = all(errors[key] <= limits[key] for key in errors)
        settings = {
            "tokens": size, "runs": len(pack.layout.parents) if pack.layout else 0,
            "device": device, "errors": _short(errors), "same_type_under_a_mask": _short(usual),
            "limits": _short(limits), "passes": passes, "of": "largest value of each tensor",
        }  # fmt: skip
        kind = str(dtype).removeprefix("torch.")
        print_line(
            f"gpu/check/attention/{name}/{kind}", [worst], "ratio", "lower", settings, PACKAGES
        )
        passed = passed and passes
    return passed


def _packed(x: Mapping[str, Tensor], pack: Pack) -> Tensor:
    module: Any = None
    return packed_attention(
        module, x["query"], x["key"], x["value"], None, pack_layout=pack.layout, scaling=0.125
    )[0]


def _masked(x: Mapping[str, Tensor], mask: Tensor) -> Tensor:
    """Attend the plain way; written without anything that is checked."""
    groups = x["query"].shape[1] // x["key"].shape[1]
    keys, values = (x[name].repeat_interleave(groups, 1) for name in ("key", "value"))
    scores = (x["query"] @ keys.transpose(2, 3)).float() * 0.125
    weights = functional.softmax(scores.masked_fill(~mask, float("-inf")), -1)
    return (weights.to(values.dtype) @ values).transpose(1, 2)


def _mask(pack: Pack) -> Tensor:
    """Return which token sees which, shape (T, T): its row's, up to itself."""
    assert pack.layout is not None
    size = pack.tokens_BT.shape[1]
    sees = torch.zeros(size, size, dtype=torch.bool)
    for node in range(len(pack.layout.parents)):
        *before, own = pack.layout.path(node)
        for run in before:
            sees[own, run] = True
        length = own.stop - own.start
        sees[own, own] = torch.ones(length, length, dtype=torch.bool).tril()
    return sees


def _with_gradients(
    given: Mapping[str, Tensor], slope: Tensor, attend: Callable[[Mapping[str, Tensor]], Tensor]
) -> dict[str, Tensor]:
    inputs = {name: tensor.detach().clone().requires_grad_() for name, tensor in given.items()}
    output = attend(inputs)
    (output.float() * slope).sum().backward()  # type: ignore[no-untyped-call]
    gradients = {f"gradient_{name}": tensor.grad for name, tensor in inputs.items()}
    return {"output": output.detach()} | {n: g for n, g in gradients.items() if g is not None}


def check_model_fp32(device: str) -> bool:
    """Compare log-probabilities and gradients in float32 with rows computed alone on the CPU."""
    alone = _truth(torch.float32)
    passed = True
    for share in ("prefix", "rows", "none"):
        found = _gradients(device, torch.float32, share)
        passed &= _report("fp32", share, found, alone, {"logps": 1e-3, "gradient": 1e-3})
    return passed


def check_model_bf16(device: str) -> bool:
    """Compare bfloat16 with the truth in float32: packed rows may err as padded ones do."""
    alone = _truth(torch.bfloat16)
    padded = _gradients(device, torch.bfloat16, "none")
    usual = _errors(padded, alone)
    limits = {name: 1.5 * error + 1e-3 for name, error in usual.items()}
    _report("bf16", "none", padded, alone, dict.fromkeys(usual, 1.0))
    passed = True
    for share in ("prefix", "rows"):
        found = _gradients(device, torch.bfloat16, share)
        passed &= _report("bf16", share, found, alone, limits)
    return passed


def check_checkpointing(device: str) -> bool:
    """Compare gradients with those of layers that are computed again."""
    passed = True
    for dtype, limit in ((torch.float32, 1e-4), (torch.bfloat16, 0.02)):
        plain = _gradients(device, dtype, "prefix")
        again = _gradients(device, dtype, "prefix", checkpointing=True)
        name = "checkpointing_" + str(dtype).removeprefix("torch.")
        passed &= _report(name, "prefix", again, plain, {"logps": limit, "gradient": limit})
    return passed


Found = tuple[Tensor, list[Tensor]]
"""Log-probabilities in order of rows, and gradients."""


def _truth(dtype: torch.dtype) -> Found:
    """Return what each row gives alone, on the CPU in float32, with weights rounded to a type."""
    model = make_model(CHECKED, "cpu", torch.float32, spread=0.05)
    return _run(cast(cast(model, dtype), torch.float32), "cpu", "none", tokens=1)


def _gradients(device: str, dtype: torch.dtype, share: str, checkpointing: bool = False) -> Found:
    model = make_model(CHECKED, device, dtype, spread=0.05)
    if checkpointing:
        turn_on_checkpointing(model)
    return _run(model, device, share, tokens=1500)


def turn_on_checkpointing(model: Any) -> None:
    """Let layers be computed again in the backward pass."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _run(model: Any, device: str, share: str, tokens: int) -> Found:
    packs = make_packs(make_batch(ROWS, CHECKED.vocab_size), tokens, share)
    _, found = update(model, packs, device)
    rows = torch.cat([pack.rows_A for pack in packs])
    order = torch.argsort(rows, stable=True)
    gradients = [p.grad.float().cpu() for p in model.parameters() if p.grad is not None]
    return torch.cat(found).cpu()[order], gradients


def _errors(found: Found, expected: Found) -> dict[str, float]:
    """Return the mean error of a log-probability, and the relative one of the gradient."""
    apart = sum(float((a - b).square().sum()) for a, b in zip(found[1], expected[1], strict=True))
    size = sum(float(b.square().sum()) for b in expected[1])
    return {
        "logps": float((found[0] - expected[0]).abs().mean()),
        "gradient": (apart / size) ** 0.5,
    }


def _report(
    name: str, share: str, found: Found, expected: Found, limits: Mapping[str, float]
) -> bool:
    errors = _errors(found, expected)
    finite = all(bool(torch.isfinite(gradient).all()) for gradient in found[1])
    passes = finite and all(errors[key] <= limits[key] for key in errors)
    settings = {
        "errors": _short(errors), "limits": _short(limits), "passes": passes,
        "actions": len(found[0]), "rows": len(ROWS), "finite": finite,
        "of": "logps: mean absolute; gradient: norm of the difference over the norm",
    }  # fmt: skip
    line = f"gpu/check/model/{name}/{share}"
    print_line(line, [errors["gradient"]], "ratio", "lower", settings, PACKAGES)
    return passes


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected.float()).abs().max() / expected.float().abs().max())


def _short(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in values.items()}


CHECKS: Mapping[str, Callable[[str], bool]] = {
    "attention_fp32": check_attention_fp32,
    "attention_bf16": check_attention_bf16,
    "model_fp32": check_model_fp32,
    "model_bf16": check_model_bf16,
    "checkpointing": check_checkpointing,
}
