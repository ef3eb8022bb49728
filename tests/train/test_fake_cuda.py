"""The CUDA paths of training on a machine without a GPU: fake tensors, autograd's own engine.

A fake tensor has a device, a type and a shape, and no values: whatever would wait for a value
raises. A C++ guard, preloaded, stands in for the device, so that passes backward run.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent
COMPILER = shutil.which("g++") or shutil.which("clang++")
pytestmark = [
    pytest.mark.fake_cuda,
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch built without CUDA"),
    pytest.mark.skipif(sys.platform != "linux", reason="preloads a library"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """What `fake_cuda.py` prints, in a process with the guard."""
    library = tmp_path_factory.mktemp("guard") / "libguard.so"
    root = Path(torch.__file__).parent
    include = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    built: list[Any] = [COMPILER, "-std=c++20", "-fPIC", "-shared", *include]
    built += [HERE / "cuda_guard.cpp", "-o", library, f"-L{root / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run(built, check=True)
    guarded = {"LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(root / "lib")}
    done = subprocess.run(
        [sys.executable, HERE / "fake_cuda.py"],
        env={**os.environ, **guarded, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counts: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return counts


def test_training_on_cuda_runs_packed_kernels_and_waits_for_nothing(
    found: dict[str, dict[str, int]],
) -> None:
    cases = {name: counts for name, counts in found.items() if "waits" in counts}
    assert len(cases) == 2 * 2 * 3 + 6
    for name, counts in cases.items():
        # Two layers of a pack and an empty pack; layers computed again attend once more. Padded
        # packs attend as the model itself does.
        calls = 0 if name.endswith("none") else 4
        again = 2 if "recompute True" in name else 1
        expected = {"scored": calls, "forward": calls * again, "backward": calls, "waits": 0}
        assert counts == expected, name


def test_reference_acts_on_cuda_without_a_second_copy_of_the_model_there(
    found: dict[str, dict[str, int]],
) -> None:
    cases = {name: counts for name, counts in found.items() if name.startswith("reference")}
    assert len(cases) == 4
    for name, counts in cases.items():
        switched_off = name.startswith("reference base rank 2")
        trained = counts["trained"]
        assert trained == (2 * 7 * 2 if "rank 2" in name else 2 * 11 + 2), name
        assert counts["kept"] == (0 if switched_off else trained), name
        assert counts["extra"] == 0, name
        # Each swap of a parameter copies it to the host once, beside the first copy: there and
        # back again, once alone and once for both updates; once more where values are written.
        swaps = 0 if switched_off else 1 + 2 * (3 if name.startswith("reference base") else 2)
        assert counts["copies"] == swaps * trained, name
        # Two layers of two packs: as the old policy, as the reference, and in two updates.
        assert (counts["forward"], counts["backward"]) == (4 * 4, 4 * 2), name


def test_optimizer_step_takes_the_memory_of_its_moments_alone(
    found: dict[str, dict[str, int]],
) -> None:
    size, peak = found["optimizer"]["size"], found["optimizer"]["peak"]
    # Two moments; parameter and gradient, where the step returns them. Unfused: two more at least.
    assert 2 * size <= peak <= 4.01 * size


def test_plan_says_what_activations_take_when_a_pack_is_trained(
    found: dict[str, dict[str, int]],
) -> None:
    cases = {name: sizes for name, sizes in found.items() if name.startswith("memory")}
    assert len(cases) == 6 + 2
    for name, sizes in cases.items():
        # The column `activations` of --plan beside the most bytes alive in a forward and backward
        # pass, without weights and their gradients.
        assert 0.9 * sizes["peak"] < sizes["planned"] < 1.1 * sizes["peak"], (name, sizes)
