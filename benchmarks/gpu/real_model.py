"""SmolLM2 on a machine with a GPU and without a network: taken along in parts, trained, timed.

    python3 -m benchmarks.gpu.real_model pack PARTS            # where there is a package index
    python3 -m benchmarks.gpu.real_model run PARTS RESULTS     # on the machine, within half an hour

`pack` downloads the GGUF file as `debate-train fetch` does, and cuts it into parts of at most
60 MiB. `run` joins and checks them, makes the model's folder, and plays the arms of
`benchmarks/studies/smollm2_gpu.yaml` for three seeds side by side, each a process on the same GPU,
with vLLM where it is installed; then `benchmarks.gpu.update` (a row of 16k tokens with the
optimizer in the shape of Qwen3-0.6B, debates of five agents and three rounds, with and without
Liger). RESULTS gets finished runs (`smollm2.jsonl`), tables (`smollm2.md`) and `update.jsonl`; what
fails is a line of `failed.txt`, and the rest goes on. `--cpu-smoke` does all of it in miniature.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(path) for path in sorted(ROOT.glob("packages/*/src"))]
PART = 60 << 20
STUDY = ROOT / "benchmarks" / "studies" / "smollm2_gpu.yaml"
COMMON = ["data.seed={seed}", "tracking.wandb=false", "recording.debates=4"]
VLLM = "rollout.engine={type: vllm, max_lora_rank: 32, gpu_memory_utilization: 0.05}"
ARMS = ["grpo", "votes", "sdrl"]
"""Those of the miniature."""
TINY = ["steps=2", "data.batch_size=2"]
SMOKE = [
    *(*TINY, "rollout.max_tokens=16", "rollout.oversample=1"),
    *("evaluation.questions=1", "evaluation.direct_samples=4", "rollout.engine={max_batch: 16}"),
    "phases.warm_start={steps: 2, data: {batch_size: 2}, exit_criterion: null}",
    "phases.warm_start.rollout.max_tokens=160",
]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 where something failed."""
    parser = argparse.ArgumentParser(description="SmolLM2 on a GPU, without a network.")
    parser.add_argument("what", choices=("pack", "run"))
    parser.add_argument("parts", type=Path)
    parser.add_argument("results", type=Path, nargs="?", default=Path("runs/real_model"))
    parser.add_argument("--minutes", type=float, default=27.0, help="of all parts together")
    parser.add_argument("--jobs", type=int, default=9, help="runs side by side")
    parser.add_argument("--cpu-smoke", action="store_true", help="in miniature, on a CPU")
    options = parser.parse_args(arguments)
    if options.what == "pack":
        return pack(options.parts)
    return run(options)


def pack(folder: Path) -> int:
    """Write the parts of the model's file."""
    from debate_train.models.gguf import PACKAGED, downloaded

    folder.mkdir(parents=True, exist_ok=True)
    with downloaded(PACKAGED["smollm2"]) as (_, file), file.open("rb") as whole:
        for number, part in enumerate(iter(lambda: whole.read(PART), b"")):
            (folder / f"smollm2.{number}").write_bytes(part)
            print(folder / f"smollm2.{number}", len(part))
    return 0


def run(options: argparse.Namespace) -> int:
    """Prepare the model, run the study and the timings."""
    ends = time.monotonic() + 60 * options.minutes
    options.results.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    join(options.parts)
    smoke = options.cpu_smoke
    settings = SMOKE if smoke else [VLLM] if find_spec("vllm") else []
    study = options.results / "smollm2.yaml"
    own = {"extends": str(STUDY), "name": "smollm2_gpu", "settings": [*COMMON, *settings]}
    if smoke:  # The arms' own sizes would win.
        arms = yaml.safe_load(STUDY.read_text())["arms"]
        own["arms"] = {name: {"settings": [*arms[name]["settings"], *TINY]} for name in ARMS}
    study.write_text(yaml.safe_dump(own | {"results": "smollm2.jsonl", "page": "smollm2.md"}))
    jobs = ["--jobs", "1" if smoke else str(options.jobs)]
    runs = ["--output", str(options.results / "runs")]
    few = ["--seeds", "0", "--arms", *ARMS] if smoke else []
    timed = ["--cpu-smoke", "--workloads", "grpo"] if smoke else ["--sizes", "0.6B"]
    commands = {
        "study": ["-m", "debate_studies.command", str(study), *jobs, *runs, *few],
        "update": ["-m", "benchmarks.gpu.update", *timed],
    }
    for name, command in commands.items():
        log = options.results / f"{name}.{'jsonl' if name == 'update' else 'log'}"
        with log.open("w") as out:
            left = max(1.0, ends - time.monotonic())
            try:
                code = subprocess.run(
                    [sys.executable, *command], stdout=out, cwd=ROOT, env=environment(),
                    timeout=left, check=False,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = f"none after {left:.0f} s"
        if code:
            failed.append(f"{name}: exit code {code}, see {log}")
    (options.results / "failed.txt").write_text("\n".join(failed))
    print(*failed or [f"all done: {options.results}"], sep="\n")
    return int(bool(failed))


def environment() -> dict[str, str]:
    """Return the variables of the processes, which find our packages without an installation."""
    paths = [str(ROOT), *map(str, sorted(ROOT.glob("packages/*/src")))]
    own = {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    return {**os.environ, **own, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def join(parts: Path) -> None:
    """Make the model's folder of the parts, unless it is there."""
    from debate_train.models.gguf import PACKAGED, cache, convert, sha256_of

    model = PACKAGED["smollm2"]
    if (cache() / "smollm2").is_dir():
        return
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / model.file
        with file.open("wb") as whole:
            for part in sorted(parts.glob("smollm2.*")):
                whole.write(part.read_bytes())
        if sha256_of(file) != model.sha256:
            raise SystemExit(f"{parts}: the parts are not {model.file}")
        convert(file, cache() / "smollm2")


if __name__ == "__main__":
    sys.exit(main())
