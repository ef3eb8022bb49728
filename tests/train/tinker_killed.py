"""Kill a run of quickstart_tinker on a real server, resume it, and compare it with an unbroken one.

PYTHONPATH=tests .venv/bin/python -m train.tinker_killed http://127.0.0.1:8765 FOLDER
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEPS = 4
KILLED_AFTER = 2
"""Steps with a checkpoint before the kill."""
_UNEQUAL = ("time", "memory", "tokens_per_s", "tinker/")
"""Seconds and bytes, and tokens counted since the process began."""


def command(url: str, folder: Path, *more: str) -> list[str]:
    """Write the command of a short run."""
    changes = [f"steps={STEPS}", "data.batch_size=4", "evaluation.questions=4"]
    changes += ["checkpoint.every=1", f"trainer.base_url={url}", "trainer.learning_rate=1e-2"]
    changes += sys.argv[3:]
    program = [sys.executable, "-m", "debate_train", "quickstart_tinker", *changes]
    return [*program, "--output", str(folder), *more]


def comparable(folder: Path) -> list[dict[str, Any]]:
    """Read the metrics of a run's steps, without seconds and bytes."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in row.items() if not name.startswith(_UNEQUAL)}
        for row in rows
    ]


def main() -> None:
    """Run both and print whether they are equal."""
    url = sys.argv[1]
    folder = Path(sys.argv[2])
    began = time.monotonic()
    subprocess.run(command(url, folder / "unbroken"), check=True)
    killed = folder / "killed"
    with subprocess.Popen(command(url, killed)) as process:
        wanted = killed / "checkpoints" / f"step-{KILLED_AFTER:06d}"
        while not wanted.is_dir():
            assert process.poll() is None, "the run ended before it was killed"
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    subprocess.run(command(url, killed, "--resume"), check=True)

    name = f"checkpoints/step-{STEPS:06d}/adapter_model.safetensors"
    unbroken_adapter = (folder / "unbroken" / name).read_bytes()
    same_adapter = unbroken_adapter == (killed / name).read_bytes()
    same_metrics = comparable(folder / "unbroken") == comparable(killed)
    minutes = (time.monotonic() - began) / 60
    print(f"adapter bit-equal: {same_adapter}; metrics equal: {same_metrics}; {minutes:.1f} min")
    sys.exit(0 if same_adapter and same_metrics else 1)


if __name__ == "__main__":
    main()
