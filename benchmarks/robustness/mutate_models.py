"""Damage a model's folder and look how debate-train takes it: with --check, and in a run of a step.

Every folder is a tiny Llama with one thing changed: a file missing, cut or replaced, a value of a
configuration, tensors, a chat template, an adapter, or code beside it. A run of one that cannot be
trained must be refused with exit code 2; code in a folder must never run; nothing may show a
traceback or take more than 20 seconds.

    python -m benchmarks.robustness.mutate_models --log runs/mutate_models.jsonl

A second call with the same log goes on.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.robustness.model_damage import WHOLE, Damage, damages
from benchmarks.robustness.mutations import Log, Outcome, quiet_environment, tried
from debate_train.commands.cli import main as command
from debate_train.models.scratch import word_tokenizer

RECIPE = """\
name: t
steps: 1
model: {type: pretrained, name: MODEL, dtype: float32, context_window: 512}
data: {type: signs_puzzle, batch_size: 1}
debate: {num_agents: 3, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 4}
advantage: {baseline: none}
evaluation: {questions: 0}
"""


def model_folder(folder: Path) -> Path:
    """Write the folder that is damaged."""
    torch.manual_seed(0)
    shape = {"vocab_size": 124, "hidden_size": 16, "intermediate_size": 16}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    ids = {"bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    LlamaForCausalLM(LlamaConfig(**shape, **layers, **ids)).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def attempt(whole: Path, name: str, verdict: str, damage: Damage, run: bool) -> Outcome:
    """Damage a copy of the folder; check a recipe that names it, or run it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(shutil.copytree(whole, Path(place) / "model"))
        damage(folder)
        recipe = Path(place) / "r.yaml"
        recipe.write_text(RECIPE.replace("MODEL", str(folder)))
        rest = ["--output", str(Path(place) / "run")] if run else ["--check"]
        outcome = tried(name, lambda: command([str(recipe), *rest]))
        if (Path(place) / "sentinel").exists():
            return Outcome(name, "executed", outcome.seconds, outcome.said)
        if run and outcome.ended == "accepted" and verdict == "bad":
            return Outcome(name, "wrongly accepted", outcome.seconds, outcome.said)
        if outcome.ended == "refused" and verdict == WHOLE:
            return Outcome(name, "wrongly refused", outcome.seconds, outcome.said)
        if run and outcome.ended == "refused" and (Path(place) / "run").exists():
            return Outcome(name, "left a folder", outcome.seconds, outcome.said)
        return outcome


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Try all or some damages; return the counts."""
    parser = argparse.ArgumentParser(description="Damage model folders; see the file's head.")
    parser.add_argument("--every", type=int, default=1, help="make every n-th trial only")
    parser.add_argument("--log", type=Path, help="outcomes, one a line; those in it are kept")
    arguments = parser.parse_args(argv)
    log = Log(arguments.log)
    with quiet_environment(), tempfile.TemporaryDirectory() as place:
        whole = model_folder(Path(place) / "whole")
        trials = [
            (f"{kind}:{name}", lambda n=f"{kind}:{name}", v=verdict, d=damage, r=kind == "run":
             attempt(whole, n, v, d, r))
            for name, verdict, damage in damages()
            for kind in ("check", "run")
        ]  # fmt: skip
        log.run(trials[:: arguments.every])
    return log.counts() | {"folders": len(damages())}


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"benchmark": "mutate_models"} | main()) + "\n")
