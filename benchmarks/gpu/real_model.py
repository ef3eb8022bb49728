"""SmolLM2 on a machine with a GPU and without a network: taken along in parts, trained, compared.

    python3 -m benchmarks.gpu.real_model pack PARTS         # where there is a package index
    python3 -m benchmarks.gpu.real_model run PARTS RUNS     # on the machine
    python3 -m benchmarks.gpu.real_model time --jobs 10     # needs no parts

`pack` downloads the GGUF file as `debate-train fetch` does, and cuts it into parts. `run` joins and
checks them, makes the model's folder, and has `debate-study` play
`benchmarks/studies/smollm2_gpu.yaml`, its runs side by side, each a process on the same GPU, below
RUNS. Missing packages are taken along, too. `time` says how long one token of 256 replies takes in
the transformers engine, of a model of this shape with LoRA, in one process and in several at once.
`--cpu-smoke` does it in miniature.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(path) for path in sorted(ROOT.glob("packages/*/src"))]
STUDY = ROOT / "benchmarks" / "studies" / "smollm2_gpu.yaml"
TINY = ["steps=2", "data.batch_size=2"]
SMOKE = [
    *("model.dtype=auto", *TINY),
    *("rollout.max_tokens=16", "rollout.oversample=1", "rollout.engine.max_batch=16"),
    *("evaluation.questions=1", "evaluation.direct_samples=4"),
    "phases.warm_start={steps: 2, data: {batch_size: 2}, exit_criterion: null}",
    "phases.warm_start.rollout.max_tokens=160",
]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the study's exit code."""
    parser = argparse.ArgumentParser(description="SmolLM2 on a GPU, without a network.")
    parser.add_argument("what", choices=("pack", "run", "time"))
    parser.add_argument("parts", type=Path, nargs="?", default=Path("parts"))
    parser.add_argument("runs", type=Path, nargs="?", default=Path("runs/real_model"))
    parser.add_argument("--mib", type=int, default=60, help="of a part, at most")
    parser.add_argument("--jobs", type=int, default=10, help="runs side by side")
    parser.add_argument("--cpu-smoke", action="store_true", help="in miniature, on a CPU")
    options = parser.parse_args(arguments)
    if options.what == "pack":
        return pack(options.parts, options.mib << 20)
    if options.what == "time":
        return timed([1, options.jobs], options.cpu_smoke)
    join(options.parts)
    return run(options.runs.resolve(), options.jobs, options.cpu_smoke)


def pack(folder: Path, size: int) -> int:
    """Write the parts of the model's file."""
    from debate_train.models.gguf import PACKAGED, downloaded

    folder.mkdir(parents=True, exist_ok=True)
    with downloaded(PACKAGED["smollm2"]) as (_, file), file.open("rb") as whole:
        for number, part in enumerate(iter(lambda: whole.read(size), b"")):
            (folder / f"smollm2.{number}").write_bytes(part)
            print(folder / f"smollm2.{number}", len(part))
    return 0


def run(runs: Path, jobs: int, smoke: bool) -> int:
    """Run what is missing of the study; return its exit code."""
    study = STUDY
    if smoke:
        runs.mkdir(parents=True, exist_ok=True)
        own = yaml.safe_load(STUDY.read_text())
        for arm in filter(None, own["arms"].values()):  # Their own sizes would win.
            arm |= {"settings": [*arm["settings"], *TINY], "seeds": [0]}
        own |= {"extends": str(STUDY), "settings": [*own["settings"], *SMOKE]}
        study, jobs = runs / "smollm2.yaml", 1
        study.write_text(yaml.safe_dump(own | {"results": "smollm2.jsonl", "page": "smollm2.md"}))
    paths = [str(ROOT), *map(str, sorted(ROOT.glob("packages/*/src")))]
    given = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    given["PYTHONPATH"] = os.pathsep.join([*paths, given.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "debate_studies.command", str(study), "--jobs", str(jobs)]
    return subprocess.run([*command, "--output", str(runs)], env=given, check=False).returncode


def timed(counts: list[int], smoke: bool) -> int:
    """Print the milliseconds a token while several processes run at once; return 0."""
    context = multiprocessing.get_context("spawn")
    os.environ["OMP_NUM_THREADS"] = "1"
    for count in counts:
        barrier, found = context.Barrier(count), context.Queue()
        own = [context.Process(target=decode, args=(barrier, found, smoke)) for _ in range(count)]
        for one in own:
            one.start()
        spent = sorted(found.get(timeout=600) for _ in own)
        print(f"{count} processes, ms a token: {', '.join(f'{one:.1f}' for one in spent)}")
    return 0


def decode(barrier: Any, found: Any, smoke: bool) -> None:
    """Put the milliseconds a token of this process, once all are ready."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    from debate_rollout.engine import Sampling
    from debate_rollout.engines.transformers_sampler import Decoder, Job
    from debate_train.models.fused_lora import fuse

    class NoStops:
        may_complete_V = torch.zeros(49152, dtype=torch.bool)

    shape = {"num_hidden_layers": 2 if smoke else 30, "num_attention_heads": 9}
    shape |= {"hidden_size": 576, "intermediate_size": 1536, "num_key_value_heads": 3}
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=49152, tie_word_embeddings=True, **shape))
    model = model.to(*(("cpu",) if smoke else ("cuda", torch.bfloat16)))
    model = get_peft_model(model, LoraConfig(r=32, lora_alpha=64, target_modules="all-linear"))
    fuse(model)
    decoder, stops = Decoder(model.eval().requires_grad_(False), [], 0), NoStops()

    def seconds(tokens: int) -> float:
        prompts = [(5 + row, *[7] * 140) for row in range(4 if smoke else 256)]
        jobs = [Job(p, Sampling(max_tokens=tokens, seed=p[0]), stops) for p in prompts]  # type: ignore[arg-type]
        begin = time.perf_counter()
        decoder.sample(jobs)
        return time.perf_counter() - begin

    seconds(4)
    barrier.wait()
    few = seconds(2)
    found.put((seconds(62) - few) / 60 * 1000)


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
