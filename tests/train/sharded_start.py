"""Share a model out to the processes of a launch, and print what the peak of memory grew by.

Run by `test_deepspeed.py`. The argument is a folder with a model; each rank prints bytes as JSON.
"""

import json
import re
import sys
from pathlib import Path

import deepspeed  # noqa: F401  (counted before, not as part of the model)

from debate_train.models import PretrainedModel
from debate_train.trainers import DeepSpeedTrainer
from debate_train.trainers.deepspeed_worker import shard, without_values
from debate_train.trainers.processes import end_at_once, join


def peak() -> int:
    """Return the most bytes this process ever held; `ru_maxrss` would count its parent's."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) * 1024


def main() -> int:
    processes = join()
    leads = processes.place.rank == 0
    config = DeepSpeedTrainer(zero_stage=3).deepspeed_config()
    source = PretrainedModel(name=sys.argv[1], dtype="float32")
    source.load(0, with_values=False)  # what code and tokenizer take
    before = peak()
    model = source.load(0, with_values=leads).model
    size = sum(p.numel() * 4 for p in model.parameters())
    loaded = peak()
    shard(without_values(model) if leads else model, config, processes, model if leads else None)
    print(json.dumps({"size": size, "load": loaded - before, "shard": peak() - loaded}))
    return 0


if __name__ == "__main__":
    code = main()
    end_at_once(code)
    sys.exit(code)
