"""A phase that is over leaves nothing of DeepSpeed's behind: neither memory nor hooks."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import gc, torch
from deepspeed_processes import SETTINGS, batch
from debate_train.losses import Kl, PpoClip
from debate_train.models import ScratchModel
from debate_train.trainers import DeepSpeedTrainer

def others(known):
    gc.collect()
    found = [t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter)]
    places = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}
    return sum(size for place, size in places.items() if place not in known)

loaded = ScratchModel().load(0)
hooks = [dict(m._forward_hooks) | dict(m._forward_pre_hooks) for m in loaded.model.modules()]
size = sum(4 * p.numel() for p in loaded.model.parameters())
for stage in (0, 1, 2, 3):
    session = DeepSpeedTrainer(**SETTINGS, zero_stage=stage).open(loaded, PpoClip(), 4)
    session.step(batch(0))
    open_now = others({p.untyped_storage().data_ptr() for p in loaded.model.parameters()})
    session.close()
    del session
    left = others({p.untyped_storage().data_ptr() for p in loaded.model.parameters()})
    now = [dict(m._forward_hooks) | dict(m._forward_pre_hooks) for m in loaded.model.modules()]
    print(stage, open_now >= 2 * size, left < size / 2, now == hooks, flush=True)
"""


def test_closed_trainers_leave_neither_moments_nor_hooks(repository: Path) -> None:
    tests = repository / "tests"
    program = f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests / 'train')!r}]\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
    # Open, a trainer has two moments of each parameter; closed, nothing of the model's size.
    assert lines == [f"{stage} True True True" for stage in (0, 1, 2, 3)]
