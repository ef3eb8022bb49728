"""Whole training runs on one GPU: does every trainer learn the same, and in the memory planned?

    python3 -m benchmarks.gpu.training --output runs/gpu_training

Each case is `debate-train` in a process of its own, from one model with random weights (the shape
of Qwen3-0.6B, its vocabulary included): two supervised steps, then two steps of self-play with the
transformers engine and a reference policy. The cases are PyTorch's trainer and DeepSpeed's ZeRO
stages 0 to 3, offloading, gradient checkpointing, LoRA, and Liger Kernel where it is installed;
one is stopped after its third step and resumed. In the supervised steps every case must show the
losses and gradient norms of the first of its kind (all parameters, LoRA, float32). Needs a CUDA
device and the four packages; `--cpu-smoke` runs two cases of a tiny model in float32 on the CPU.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECIPE = """\
name: gpu_training
steps: 2
model: {{type: pretrained, name: {model}, dtype: bfloat16, context_window: 512}}
data: {{type: signs_puzzle, largest_digit: 6, batch_size: {questions}}}
debate: {{type: simultaneous, num_agents: 3, max_rounds: 2, style: compact, personas: none}}
rollout: {{engine: {{type: transformers, max_batch: 256}}, max_tokens: 48}}
reward: {{type: v2}}
advantage: {{baseline: none}}
loss: {{type: ppo_clip, kl: {{weight: 0.1}}}}
trainer: {{type: torch, learning_rate: 1.0e-5, tokens_per_micro_batch: 8192}}
evaluation: {{questions: 0}}
recording: {{debates: 0}}
tracking: {{wandb: false}}
phases:
  imitation:
    steps: 2
    rollout: {{engine: {{type: demonstrations}}}}
    loss: {{type: sft, kl: {{weight: 0}}}}
    reward: {{type: verifiable, values: zero_one}}
  self_play: {{steps: 2}}
"""
_LORA = "model.lora={rank: 16}"


def _zero(stage: int) -> tuple[str, ...]:
    found = ("trainer.type=deepspeed", f"trainer.zero_stage={stage}")
    return (*found, "trainer.bf16=true") if stage else found


_LIGER = "trainer.use_liger_kernel=true"
_WIDE = "model.dtype=float32"
CASES: Mapping[str, tuple[str, ...]] = {
    "torch": (),
    "torch, checkpointing": ("trainer.gradient_checkpointing=true",),
    "torch, liger": (_LIGER,),
    "zero 1": _zero(1),
    "zero 2": _zero(2),
    "zero 3": _zero(3),
    "zero 3, liger": (*_zero(3), _LIGER),
    "zero 3, offloaded": (
        *_zero(3),
        *("trainer.offload_optimizer=true", "trainer.offload_params=true"),
    ),
    "torch, lora": (_LORA,),
    "zero 2, lora": (*_zero(2), _LORA),
    "zero 3, lora": (*_zero(3), _LORA),
    "torch, float32": (_WIDE,),
    "zero 0, float32": (_WIDE, *_zero(0)),
}
RESUMED = "zero 2"
"""The case that is also stopped after its third step and resumed."""
SMOKE = ("torch, float32", "zero 0, float32")
FIGURES = ("loss", "optim/grad_norm")
LIMIT = 0.01
"""Relative, of loss and gradient norm in the supervised steps, whose rows are the same for all:
PyTorch gives a norm of bfloat16 in bfloat16, whose steps are 0.4 to 0.8 %. In self-play a model
that differs by a rounding soon samples something else."""
SUPERVISED = 2


def make_model(folder: Path, tiny: bool) -> None:
    """Write a model with random weights, and the word tokenizer filled up to its vocabulary."""
    import torch
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    from debate_train.models.scratch import CHAT_TEMPLATE, word_tokenizer

    size = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
            "vocab_size": 151936}  # fmt: skip
    if tiny:
        size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
                "vocab_size": 256}  # fmt: skip
    plain = word_tokenizer()
    written = json.loads(plain.backend_tokenizer.to_str())
    known = written["model"]["vocab"]
    known |= {f"Ġw{n}": n for n in range(len(known), size["vocab_size"])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(written)),
        unk_token=plain.unk_token,
        pad_token=plain.pad_token,
        eos_token=plain.eos_token,
        chat_template=CHAT_TEMPLATE,
    )
    config = Qwen3Config(
        **size,
        max_position_embeddings=4096,
        initializer_range=0.02,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    with torch.device("cpu" if tiny else "cuda"):
        model = Qwen3ForCausalLM(config)
    model.to("cpu", torch.float32 if tiny else torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def debate_train(
    folder: Path, *arguments: str, interrupted: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command on the recipe of a folder.

    Args:
        folder: holds the recipe.
        arguments: further ones.
        interrupted: a metrics file; an interrupt is sent when it has lines of three steps.
    """
    command = [sys.executable, "-m", "debate_train", str(folder / "recipe.yaml"), *arguments]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with ThreadPoolExecutor(1) as reader:
        output = reader.submit(process.stdout.read)
        while interrupted is not None and process.poll() is None:
            if interrupted.exists() and interrupted.read_text().count('"loss"') >= 3:
                process.send_signal(signal.SIGINT)
                break
            time.sleep(0.02)
        code = process.wait(900)
    return subprocess.CompletedProcess(command, code, output.result())


def run_case(root: Path, name: str, resumed: bool = False) -> dict[str, Any]:
    """Train one case; return its figures, with the memory that `--plan` says."""
    output = root / (re.sub(r"\W+", "-", name) + ("-resumed" if resumed else ""))
    own = CASES[name]
    started = time.perf_counter()
    metrics = output / "metrics.jsonl"
    parts = [((), metrics), (("--resume",), None)] if resumed else [((), None)]
    for number, (part, interrupted) in enumerate(parts, 1):
        done = debate_train(root, *own, *part, "--output", str(output), interrupted=interrupted)
        with (root / f"{output.name}.log").open("a", encoding="utf-8") as file:
            file.write(done.stdout)
        if done.returncode and number == len(parts):
            return {"case": name, "resumed": resumed, "error": done.stdout.strip()[-1500:]}
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [row for row in rows if "loss" in row]
    shutil.rmtree(output / "checkpoints")  # 8 GB each at full size.
    found = {key: [round(row[key], 6) for row in steps] for key in FIGURES}
    return {
        "case": name,
        "resumed": resumed,
        **found,
        "peak_gib": max(row["memory/peak_gib"] for row in steps),
        "train_s": [round(row["time/train_s"], 3) for row in steps],
        "weights_s": [round(row.get("time/weights_s", 0.0), 3) for row in steps],
        "step_s": [round(row["time/step_s"], 3) for row in steps],
        "planned": planned(root, own),
        "wall_s": round(time.perf_counter() - started, 1),
    }


def planned(root: Path, own: Sequence[str]) -> list[str]:
    """List the lines of `--plan` for the recipe's stage, one a phase."""
    done = debate_train(root, *own, "--plan", "--gpus", "1", "--gpu-memory", "80")
    rows = re.findall(r"^ *[0-3]\*? .* (?:fits|too much).*$", done.stdout, re.MULTILINE)
    starred = [row for row in rows if "*" in row]
    return [re.sub(" +", " ", row.strip()) for row in starred or rows] or [done.stdout[-300:]]


def differences(found: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, float]:
    """Return the largest relative difference of each figure in the supervised steps."""
    return {
        key: max(abs(found[key][step] / first[key][step] - 1) for step in range(SUPERVISED))
        for key in FIGURES
    }


def compare(lines: Sequence[dict[str, Any]]) -> bool:
    """Add to each line how far it is from the first of its kind; return whether all are near."""
    good = True
    firsts: dict[str, dict[str, Any]] = {}
    for line in lines:
        if "error" in line:
            good = False
            continue
        kind = re.sub("^.*(lora|float32)$|.*", r"\1", line["case"])
        first = firsts.setdefault(kind, line)
        if len(line["loss"]) != len(first["loss"]):
            line["error"] = f"{len(line['loss'])} steps"
            good = False
            continue
        line["differs"] = differences(line, first)
        line["passes"] = all(gap <= LIMIT for gap in line["differs"].values())
        good = good and line["passes"]
    return good


def main() -> int:
    """Run the cases; return 1 when one failed or learns something else."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_training"))
    parser.add_argument("--jobs", type=int, default=1, help="cases at once; times mean little then")
    parser.add_argument("--cases", nargs="+", choices=list(CASES))
    parser.add_argument("--cpu-smoke", action="store_true", help="two cases, tiny model")
    chosen = parser.parse_args()
    root: Path = chosen.output
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "model").is_dir():
        make_model(root / "model", chosen.cpu_smoke)
    questions = 2 if chosen.cpu_smoke else 32
    text = RECIPE.format(model=root.resolve() / "model", questions=questions)
    (root / "recipe.yaml").write_text(text, encoding="utf-8")
    every = [name for name in CASES if find_spec("liger_kernel") or "liger" not in name]
    names = chosen.cases or (SMOKE if chosen.cpu_smoke else tuple(every))
    wanted = [(name, False) for name in names] + [(RESUMED, True)] * (RESUMED in names)
    lines = []
    with ThreadPoolExecutor(chosen.jobs) as pool:
        for line in pool.map(lambda one: run_case(root, *one), wanted):
            print(json.dumps(line), file=sys.stderr, flush=True)  # Something, should it be ended.
            lines.append(line)
    good = compare(lines)
    for line in lines:
        print(json.dumps(line), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
