#!/usr/bin/env bash
# skyrl 0.4.0, JAX backend: an adapter of rank r. One would expect a matrix A for each of q_proj,
# k_proj and v_proj, as peft makes. There is one for all three, and one for gate_proj and up_proj. Its
# download repeats the shared matrix under each name, so that peft loads it. An adapter whose three
# matrices differ is refused. Needs Python 3.12, about 6 GB and some minutes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3.12}" -m venv "$folder/venv"
pip="$folder/venv/bin/pip"
"$pip" install --quiet 'skyrl[jax,tinker]==0.4.0' jax==0.12.0.1 flax==0.12.12 torch==2.13.0
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import jax
import numpy as np
from flax import nnx
from jax import numpy as jnp
from skyrl.tx.layers.lora import FusedLoRALinear
from skyrl.tx.utils.models import _get_shared_lora_A

HIDDEN, RANK = 16, 4
mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
with jax.set_mesh(mesh):
    projection = FusedLoRALinear(
        HIDDEN,
        32,
        components=("q_proj", "k_proj", "v_proj"),
        group_sizes=(8, 4, 4),
        sharding=("fsdp", "tp"),
        max_lora_adapters=1,
        max_lora_rank=RANK,
        param_dtype=jnp.float32,
        rngs=nnx.Rngs(0),
    )
num_values = projection.lora_A[0].size
print(f"skyrl {version('skyrl')}: A of q, k and v of one adapter has {num_values} numbers")
print(f"  three matrices of rank {RANK} would have {3 * HIDDEN * RANK}")
assert num_values == HIDDEN * RANK, "what was seen has changed"

independent = [np.full((HIDDEN, RANK), value, np.float32) for value in (1, 2, 3)]
try:
    _get_shared_lora_A(independent)
except RuntimeError:
    print("  three different matrices are refused when an adapter is loaded")
else:
    raise SystemExit("three different matrices are taken: what was seen has changed")
PYTHON
