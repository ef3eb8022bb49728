"""Kill evaluations at many moments, resume them, and print how they ended, as JSON.

Run by `test_kill.py` in its own process, which forks as `killed_runs.py` does.
"""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from debate_train.commands.evaluate import main
from debate_train.models import ScratchModel
from stress.killed_runs import Moment, different, kept, launch, prepared

NUM_MOMENTS = 12
SIZES = {"hidden_size": 8, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 8, "ffn_size": 8}
RECIPE = f"""\
name: tiny
steps: 1
model: {{type: scratch, {", ".join(f"{name}: {size}" for name, size in SIZES.items())}}}
data: {{type: signs_puzzle, batch_size: 2, num_digits: 3, largest_digit: 4}}
debate: {{type: simultaneous, num_agents: 3, max_rounds: 2, style: compact, personas: none}}
rollout: {{max_tokens: 6}}
reward: {{type: win_rate}}
loss: {{type: sft}}
trainer: {{type: torch}}
evaluation:
  questions: 3
  direct_samples: 2
  runs: 2
  modes: {{longer: {{type: debate, max_rounds: 3}}}}
"""


def begun(folder: Path) -> Path:
    prepared(folder)
    (folder / "recipe.yaml").write_text(RECIPE)
    return folder


def written(folder: Path) -> dict[str, Any]:
    """Read all files of an evaluation but its lock."""
    files = kept(folder / "run")
    return {name: content for name, content in files.items() if name != ".lock"}


def go(root: Path) -> dict[str, Any]:
    """Kill an evaluation of two policies before every twelfth of its file operations."""
    torch.set_num_threads(1)  # The threads of OpenMP do not outlive a fork.
    other = ScratchModel.model_validate(SIZES).load(1)
    other.model.save_pretrained(root / "other")
    other.tokenizer.save_pretrained(root / "other")
    policies = ["--policy", "recipe", "--policy", f"other={root / 'other'}"]
    whole = begun(root / "whole")
    with contextlib.redirect_stdout(sys.stderr):  # Imports here what no child then has to.
        warm = begun(root / "warm")
        assert main([str(warm / "recipe.yaml"), *policies, "--output", str(warm / "run")]) == 0
    assert launch(whole, policies, Moment(), main) == 0, (whole / "log.txt").read_text()
    expected = written(whole)
    num_operations = int((whole / "operations.txt").read_text())
    chains = []
    for number in range(NUM_MOMENTS):
        folder = begun(root / "killed")
        moment = Moment(operation=1 + number * num_operations // NUM_MOMENTS)
        first_code = launch(folder, policies, moment, main)
        resume = ["--resume"] if (folder / "run").is_dir() else []
        last_code = launch(folder, [*policies, *resume], Moment(), main)
        chains.append(
            {
                "codes": [first_code, last_code],
                "resumed": bool(resume),
                "differences": different(written(folder), expected),
                "log": (folder / "log.txt").read_text()[-1500:],
            }
        )
    return {"files": sorted(expected), "chains": chains}


if __name__ == "__main__":
    print("\n" + json.dumps(go(Path(sys.argv[1]))))
