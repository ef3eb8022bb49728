"""The output head of GPUs, run on a CPU: what `logps.py` computes, in one pass over the logits."""

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from debate_train.batches import forward as fused_head
from debate_train.batches import forward as logps
from debate_train.batches.forward import TokenLogps

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


def test_weight_that_is_not_trained_gets_no_gradient() -> None:
    hidden = torch.randn(3, 4, requires_grad=True)
    weight = torch.randn(5, 4)
    found, _ = fused_on_cpu(hidden, weight, torch.tensor([0, 1, 2]), torch.ones(3), None)
    found.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


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
