"""How long is a training step beside TRL's GRPOTrainer?

Four prompts of about 64 (a) or 512 (b) tokens, eight completions each of 58 to 64 tokens.

update: loss, gradient and optimizer step on the same completions, after gradients were compared.
merged: turns that go on from each other as one row, beside a row a turn.
debates: five agents and three rounds that all read the same, beside the same rows unshared.
whole: sampling, scoring, update and new weights; ours with an engine in this process, TRL with
    transformers' own generation.
overlapped: the same on two cores, where ours samples the next groups while it trains on these.

    OMP_NUM_THREADS=1 python -m benchmarks.training.train_step --parts update merged
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import torch

from benchmarks.measurement import print_line
from benchmarks.training.train_step_data import (
    GROUP,
    LOSS,
    PROMPTS,
    equal_turns,
    groups,
    shared_debates,
    tiny_model,
)
from benchmarks.training.train_step_trl import SETTINGS, Update
from debate_train.batches.row_types import Batch
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers import TorchTrainer
from debate_train.trainers.torch_session import KnownLogps, StepStats, accumulate

PACKAGES = ("debate-train", "trl", "torch", "transformers")
WORKLOADS = {"a": 64, "b": 512}
Step = Callable[[Batch], object]
Slopes = Mapping[str, torch.Tensor]


def main() -> None:
    """Print the lines of the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", default=["update", "merged"])
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--engine", default="transformers", choices=("transformers", "vllm"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for workload in options.workloads:
        if "update" in options.parts:
            update(workload, options.repeats)
        for part in [one for one in options.parts if one in ("whole", "overlapped")]:
            from benchmarks.training.train_step_whole import whole

            size = WORKLOADS[workload]
            whole(workload, size, options.repeats, options.engine, part == "overlapped")
    if "debates" in options.parts:
        debates(options.repeats)
    if "merged" in options.parts:
        for turns in (2, 3, 6, 9):
            merged(turns, options.repeats)


def update(workload: str, repeats: int) -> None:
    """Time both updates on the same completions."""
    batch = groups(WORKLOADS[workload], seed=0)
    gap = gradient_gap(batch)
    print(f"workload {workload}: gradients differ by {gap:.1e} of the largest", file=sys.stderr)
    if not gap < 1e-5:
        raise SystemExit("the gradients are not equal; nothing is timed")
    trials = {size: Update(size) for size in (32, 16, 8, 4)}
    found = timed({str(size): step for size, step in trials.items()}, batch, 2)
    best = min(trials, key=lambda size: min(found[str(size)]["busy"]))
    sides: dict[str, Step] = {"ours": ours(), "trl": trials[best], "unshared": ours("rows")}
    times = timed(sides, batch, repeats)
    settings = {
        "prompt_tokens": WORKLOADS[workload], "prompts": PROMPTS, "completions_a_prompt": GROUP,
        "completion_tokens": "58 to 64", "model": "4 layers of 128, 512 words, float32",
        "threads": 1, "clock": "processor time of the process",
        "trl": {**SETTINGS, "micro_batch": best, "micro_batches_tried": list(trials)},
        "gradient_gap": float(f"{gap:.1e}"),
    }  # fmt: skip
    report(f"train_step/update_{workload}", times, settings)


def report(name: str, times: Mapping[str, Mapping[str, list[float]]], settings: Any) -> None:
    """Print a line a side, and how many times longer each other side took than ours."""
    for side, found in times.items():
        own = settings | {"wall_s": float(f"{median(found['wall']):.3g}")}
        print_line(f"{name}_{side}", found["busy"], "s", "lower", own, PACKAGES)
    for side in times.keys() - {"ours"}:
        pairs = zip(times[side]["busy"], times["ours"]["busy"], strict=True)
        print_line(
            f"{name}_{side}_over_ours", [a / b for a, b in pairs], "ratio", "higher", settings,
            PACKAGES,
        )  # fmt: skip


def ours(packing: Any = "prefix") -> Step:
    """Return our update of the same model, with its defaults."""
    config = TorchTrainer(learning_rate=1e-5, packing=packing)
    return config.open(LoadedModel(tiny_model(), None), LOSS, 10**6).step  # type: ignore[arg-type]


def gradient_gap(batch: Batch) -> float:
    """Return the largest difference between both gradients over the largest slope."""
    theirs = Update(8)
    theirs.gradients(batch)
    return relative_gap(slopes_of(theirs.model), own_slopes(batch, "prefix"))


def own_slopes(batch: Batch, packing: Any) -> Slopes:
    """Return our gradient."""
    model = tiny_model()
    # The sampler's log-probabilities are the policy's: one pass that keeps what it measures.
    packs = TorchTrainer(packing=packing).packs(with_own_logps(model, batch), LOSS)[0]
    known = [KnownLogps()] * len(packs)
    accumulate(model, packs, LOSS, known, lambda share: share.backward(), StepStats())
    return slopes_of(model)


def slopes_of(model: torch.nn.Module) -> Slopes:
    """Return the gradients of a model by the names of its parameters."""
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def relative_gap(these: Slopes, those: Slopes) -> float:
    """Return the largest difference over the largest of these slopes."""
    largest = max(float(slope.abs().max()) for slope in these.values())
    return max(float((those[n] - slope).abs().max()) for n, slope in these.items()) / largest


def with_own_logps(model: Any, batch: Batch) -> Batch:
    """Return the batch as if this model had sampled it."""
    rows = []
    for row in batch.rows:
        tokens = torch.from_numpy(row.tokens).long()[None]
        with torch.no_grad():
            logps = model(input_ids=tokens).logits[0, :-1].log_softmax(-1)
        taken = logps.gather(1, tokens[0, 1:, None])[:, 0].numpy()
        rows.append(replace(row, sampler_logps=taken[row.sampled_positions - 1]))
    return replace(batch, rows=tuple(rows))


def timed(
    sides: Mapping[str, Step], batch: Batch, repeats: int
) -> dict[str, dict[str, list[float]]]:
    """Return wall and processor time of each side, taken in turns after one warm-up."""
    times: dict[str, dict[str, list[float]]] = {side: {"wall": [], "busy": []} for side in sides}
    for repeat in range(repeats + 1):
        for side, step in sides.items():
            began = time.perf_counter(), time.process_time()
            step(batch)
            if repeat:
                times[side]["wall"].append(time.perf_counter() - began[0])
                times[side]["busy"].append(time.process_time() - began[1])
    return times


def debates(repeats: int) -> None:
    """Time the rows of two debates with their common prefixes computed once, and without."""
    sizes = {"count": 2, "agents": 5, "rounds": 3, "said": 61}
    batch = shared_debates(**sizes, seed=0)
    gap = relative_gap(own_slopes(batch, "prefix"), own_slopes(batch, "rows"))
    if not gap < 1e-5:
        raise SystemExit("the gradients are not equal; nothing is timed")
    sides: dict[str, Step] = {"ours": ours(), "unshared": ours("rows")}
    settings = {**sizes, "threads": 1, "clock": "processor time of the process"}
    settings |= {"gradient_gap": float(f"{gap:.1e}")}
    report("train_step/debates", timed(sides, batch, repeats), settings)


def merged(turns: int, repeats: int) -> None:
    """Time rows of merged turns beside a row a turn, nothing shared, and with shared prefixes."""
    data = equal_turns(turns, agents=6, told=24, said=61, seed=turns)
    update_of = {"ours": ours("rows"), "split": ours("rows"), "split_shared": ours("prefix")}
    sides: dict[str, Step] = {
        side: (lambda _, step=step, side=side: step(data.merged if side == "ours" else data.split))
        for side, step in update_of.items()
    }
    times = timed(sides, data.merged, repeats)
    count = {n: sum(len(row) for row in b.rows) for n, b in (("m", data.merged), ("s", data.split))}
    settings = {
        "turns": turns, "agents": 6, "told_tokens": 24, "said_tokens": 61, "threads": 1,
        "token_ratio": count["s"] / count["m"], "clock": "processor time of the process",
        "ours": "merged rows, packing: rows", "split_shared": "a row a turn, packing: prefix",
    }  # fmt: skip
    report(f"train_step/turns_{turns}", times, settings)


if __name__ == "__main__":
    main()
