#!/usr/bin/env bash
# torch 2.13.0, optim.Muon on a float32 matrix of 256 by 256, whose gradient has the rank of the
# number of tokens that it comes from. Its source says that the update has the gradient's own
# singular vectors, with values from 0.5 to 1.5, so one would expect no other direction in it, but
# for rounding. For one token, some 70 % of the update's squared norm is in other directions, for
# 16 more than 10 %. The iteration runs in bfloat16, and multiplies small singular values by 3.4 in
# each of five steps, those of its own rounding errors, too. In float32 it keeps the rank.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import torch
from torch import nn, optim

SIZE = 256
COEFFICIENTS = (3.4445, -4.775, 2.0315)


def muon_update(gradient: torch.Tensor) -> torch.Tensor:
    matrix = nn.Parameter(torch.zeros(SIZE, SIZE))
    optimizer = optim.Muon([matrix], lr=1.0, weight_decay=0.0, ns_coefficients=COEFFICIENTS)
    matrix.grad = gradient
    optimizer.step()
    return -matrix.detach()


def float32_update(gradient: torch.Tensor) -> torch.Tensor:
    first, second, third = COEFFICIENTS
    update = gradient / gradient.norm()
    for _ in range(5):
        gram = update @ update.T
        update = first * update + (second * gram + third * gram @ gram) @ update
    return update


def share_outside(update: torch.Tensor, gradient: torch.Tensor, rank: int) -> float:
    """Compute the share of an update's squared norm outside the gradient's singular vectors."""
    left, _, right = torch.linalg.svd(gradient.double())
    left, right = left[:, :rank], right[:rank]
    inside = left.T @ update.double() @ right.T
    return 1 - (inside.norm() / update.double().norm()).square().item()


torch.manual_seed(0)
print(f"torch {torch.__version__}: share of the update outside the gradient's directions")
for num_tokens in (1, 4, 16):
    gradient = torch.randn(SIZE, num_tokens) @ torch.randn(num_tokens, SIZE)
    seen = share_outside(muon_update(gradient), gradient, num_tokens)
    in_float32 = share_outside(float32_update(gradient), gradient, num_tokens)
    print(f"  {num_tokens} token(s): expected 0.00, seen {seen:.2f}, float32 {in_float32:.2f}")
    assert in_float32 < 0.001, "float32 keeps the rank no more"
    assert seen > {1: 0.5, 4: 0.2, 16: 0.05}[num_tokens], "what was seen has changed"
PYTHON
