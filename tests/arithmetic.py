"""References for numeric tests: everything in float64, and bounds of float32 taken from it.

An equality that holds in exact arithmetic is tested under `in_float64`, tightly. What must stay
in float32 is compared with the same in float64, and may be as far from it as a plain float32
pass is, times a factor: that gap follows the processor, the libraries and the sizes at hand.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

FACTOR = 8.0
"""How many times the gap of a plain float32 pass another order of the same sums may have.

Rounding errors of sums in another order are alike in size and differ by chance; the norm of a
thousand of them differs by percents, the largest of a few by small factors.
"""
UNIT = 2.0**-24
"""Half the distance from 1 to the next float32: the largest relative error of one rounding."""


@contextmanager
def in_float64() -> Iterator[None]:
    """Compute everything in float64; models made before need `.double()`.

    Norms, rotary angles and softmax of transformers cast to float32 whatever the model's type is,
    so the name itself means float64 here: a mode of torch would not reach what is recomputed in a
    backward pass.
    """
    read, default, narrow = torch.from_numpy, torch.get_default_dtype(), torch.float32
    load = AutoModelForCausalLM.from_pretrained

    def from_numpy(array: Any) -> Tensor:
        found = read(array)
        return found.double() if found.is_floating_point() else found

    def from_pretrained(*given: Any, **named: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:  # Files say float32 and mean it.
            patch.setattr(torch, "float32", narrow)
            loaded = load(*given, **named)
        if isinstance(loaded, tuple):  # With what was said of loading it.
            return loaded[0].double(), *loaded[1:]
        return loaded.double()

    torch.set_default_dtype(torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
        patch.setattr(Tensor, "float", Tensor.double)
        patch.setattr(torch, "from_numpy", from_numpy)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def distance(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """Return the Euclidean distance of all numbers of two sets of tensors, by that of `exact`."""
    assert set(found) == set(exact)
    gap = sum(float((found[n].double() - exact[n].double()).square().sum()) for n in exact)
    size = sum(float(tensor.double().square().sum()) for tensor in exact.values())
    return float((gap / size) ** 0.5) if gap else 0.0


def assert_rounded(
    found: Mapping[str, Tensor],
    plain: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    factor: float = FACTOR,
) -> None:
    """Check that float32 tensors are as near to float64 ones as plain float32 ones are.

    Args:
        found: what is tested, in float32.
        plain: the same in float32 by the plain way.
        exact: the same by the plain way in float64.
        factor: how many times the plain gap is allowed; the gap counts as one rounding at least.
    """
    bound = factor * max(distance(plain, exact), UNIT)
    assert distance(found, exact) <= bound, (distance(found, exact), bound)


def largest_gap(found: Iterable[float], exact: Iterable[float]) -> float:
    """Return the largest difference of two series of numbers."""
    return max(abs(a - b) for a, b in zip(found, exact, strict=True))


Trained = tuple[list[dict[str, float]], dict[str, Tensor]]
"""The metrics of each step, and the weights after the last."""


def rounding(found: Trained, plain: Trained, exact: Trained, poison: int = -1) -> dict[str, float]:
    """How far float32 training is from float64, in multiples of what one torch process is.

    That gap counts as one rounding of a number of size 1 at least: metrics are means of such.
    """
    bad = {poison}

    def series(trained: Trained, key: str) -> list[float]:
        return [step[key] for n, step in enumerate(trained[0]) if n not in bad]

    times = {}
    for key in ("loss", "optim/grad_norm", "optim/kl_reference"):
        if key in plain[0][0]:
            wanted = series(exact, key)
            least = UNIT * max(1.0, *(abs(value) for value in wanted))
            gap = max(least, largest_gap(series(plain, key), wanted))
            times[key] = largest_gap(series(found, key), wanted) / gap
    gap = max(UNIT, distance(plain[1], exact[1]))
    return times | {"weights": distance(found[1], exact[1]) / gap}
