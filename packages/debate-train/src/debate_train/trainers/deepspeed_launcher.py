"""DeepSpeed's launcher with the device set: on a CPU it would warn that it found nothing else.

`python -m debate_train.trainers.deepspeed_launcher MODULE ARGUMENTS` runs one of its modules.
"""

import os
import runpy
import sys


def main() -> None:
    """Run one of DeepSpeed's launching modules; its children inherit the setting."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
