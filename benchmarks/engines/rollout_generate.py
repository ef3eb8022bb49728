"""Part (d): the transformers engine beside one `model.generate` for each round.

Both play the same debates in lock-step, on the same model and device. The other side pads a round
to one batch and samples until its longest reply is done, as `generate` does; it returns ids
alone. A second line has it keep the logits that log-probabilities need. A third side is the
continuous batching of transformers, with log-probabilities, which fills places as replies end; it
knows neither stop strings nor a seed for each request.
"""

import copy
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from benchmarks.engines.rollout_debates import debates, random_model, sampled_tokens, skewed
from benchmarks.measurement import print_line
from debate_protocol.types import Reply
from debate_rollout.drivers import play
from debate_rollout.engine import Capability, Request, Weights
from debate_rollout.engines import TransformersEngine
from debate_rollout.rendering import Renderer, token_text

PACKAGES = ("debate-rollout", "transformers", "torch")


class Generate:
    """One `model.generate` a call: all prompts in one left-padded batch, one temperature."""

    capabilities: frozenset[Capability] = frozenset(("tokens",))
    context_window = None

    def __init__(self, model: Any, tokenizer: Any, with_logps: bool) -> None:
        self.renderer = Renderer(tokenizer)
        self._model, self._tokenizer, self._with_logps = model, tokenizer, with_logps
        self._end = tokenizer.eos_token_id

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Sample until the longest reply is done, then cut each to its own length."""
        device = self._model.device
        width = max(len(r.prompt_ids) for r in requests)
        pad = self._tokenizer.pad_token_id
        rows = [[pad] * (width - len(r.prompt_ids)) + list(r.prompt_ids) for r in requests]
        mask = [[0] * (width - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in requests]
        first = requests[0].sampling
        greedy = first.temperature == 0
        done = self._model.generate(
            torch.tensor(rows, device=device),
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=max(r.sampling.max_tokens for r in requests),
            do_sample=not greedy,
            temperature=None if greedy else first.temperature,
            top_k=None,
            top_p=None,
            eos_token_id=self._end,
            pad_token_id=pad,
            output_logits=self._with_logps,
            return_dict_in_generate=True,
        )
        ids_BT = done.sequences[:, width:]
        logps: list[list[float]] = [[]] * len(requests)
        if self._with_logps:
            steps = [z.float().log_softmax(-1) for z in done.logits]
            logps_BT = torch.stack(
                [z.gather(1, ids_BT[:, k : k + 1])[:, 0] for k, z in enumerate(steps)], 1
            )
            logps = logps_BT.tolist()
        return [
            self._reply(request, ids, found)
            for request, ids, found in zip(requests, ids_BT.tolist(), logps, strict=True)
        ]

    def _reply(self, request: Request, ids: list[int], logps: list[float]) -> Reply:
        ids = ids[: request.sampling.max_tokens]
        if self._end in ids:
            ids = ids[: ids.index(self._end) + 1]
        text = token_text(self._tokenizer, ids).text
        return Reply(text, "length", request.prompt_ids, tuple(ids), tuple(logps[: len(ids)]))

    def load(self, weights: Weights) -> None:
        """Not needed here."""

    def close(self) -> None:
        """Not needed here."""


class Continuous:
    """Transformers' continuous batching: each request by itself, one temperature."""

    capabilities: frozenset[Capability] = frozenset(("tokens", "logps"))
    context_window = None

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.renderer = Renderer(tokenizer)
        self._tokenizer = tokenizer
        self._model = copy.deepcopy(model)  # It replaces the attention.
        self._managers: dict[float, Any] = {}

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Hand all requests over at once, and wait for the last."""
        manager = self._manager(requests[0].sampling.temperature)
        names = {}
        for request in requests:
            most = request.sampling.max_tokens
            names[manager.add_request(list(request.prompt_ids), max_new_tokens=most)] = request
        replies: dict[Any, Reply] = {}
        while len(replies) < len(names):
            one = manager.get_result(timeout=60)
            ids, request = tuple(one.generated_tokens), names[one.request_id]
            text = token_text(self._tokenizer, ids).text
            replies[one.request_id] = Reply(
                text, "length", request.prompt_ids, ids, tuple(one.logprobs)
            )
        return [replies[name] for name in names]

    def _manager(self, temperature: float) -> Any:
        if temperature not in self._managers:
            greedy = temperature == 0
            config = GenerationConfig(
                do_sample=not greedy,
                temperature=1.0 if greedy else temperature,
                top_k=0,
                max_new_tokens=192,
                eos_token_id=self._tokenizer.eos_token_id,
                pad_token_id=self._tokenizer.pad_token_id,
            )
            room = ContinuousBatchingConfig(return_logprobs=True, num_blocks=512, page_size=32)
            found = self._model.init_continuous_batching(config, continuous_batching_config=room)
            found.start()
            self._managers[temperature] = found
        return self._managers[temperature]

    def load(self, weights: Weights) -> None:
        """Not needed here."""

    def close(self) -> None:
        """End the threads."""
        for manager in self._managers.values():
            manager.stop(block=True)


def measure(repeats: int, count: int, sizes: Mapping[str, Any]) -> None:
    """Print the lines of this part.

    Args:
        repeats: Of each measurement.
        count: Debates.
        sizes: `hidden`, `layers`, `dtype` and `device` of the model.
    """
    model, tokenizer = random_model(sizes["hidden"], sizes["layers"], sizes["dtype"])
    model = model.to(sizes["device"])
    config = TransformersEngine(max_batch=1024, device=sizes["device"], copy_model=False)
    engines: dict[str, Any] = {
        "engine": config.open(model, tokenizer),
        "generate": Generate(model, tokenizer, with_logps=False),
        "generate_with_logps": Generate(model, tokenizer, with_logps=True),
        "continuous": Continuous(model, tokenizer),
    }
    check_equal(engines)
    for name, spread in (("equal_lengths", 0.0), ("skewed_lengths", 1.0)):
        lengths = {"median": 24, "spread": spread, "longest": 192}
        settings = {"debates": count, "agents": 5, "rounds": 2, **lengths, **sizes}
        settings |= {"threads": torch.get_num_threads()}
        speeds: dict[str, list[float]] = {which: [] for which in engines}
        for repeat in range(repeats + 1):
            for which, engine in engines.items():
                runs = [skewed(run, **lengths) for run in debates(count, rounds=2, agents=5)]
                started = time.perf_counter()
                told = play(runs, engine, max_tokens=64)
                if sizes["device"] != "cpu":
                    torch.cuda.synchronize()
                taken = time.perf_counter() - started
                if repeat:
                    speeds[which].append(sampled_tokens(told) / taken)
        for which, found in speeds.items():
            line = f"rollout/generate/{name}/{which}"
            print_line(line, found, "tokens/s", "higher", settings, PACKAGES)
        for which in ("generate", "generate_with_logps", "continuous"):
            ratios = [a / b for a, b in zip(speeds["engine"], speeds[which], strict=True)]
            line = f"rollout/generate/{name}/engine_over_{which}"
            print_line(line, ratios, "ratio", "higher", settings, PACKAGES)
    engines["continuous"].close()


def check_equal(engines: Mapping[str, Any]) -> None:
    """Stop unless greedy replies of all sides begin alike; later tokens may part by rounding."""
    said = {}
    for which, engine in engines.items():
        runs = [skewed(run, 8, 0.0, 8) for run in debates(4, rounds=1, agents=2)]
        told = play(runs, engine, max_tokens=8, sampling={"temperature": 0.0})
        said[which] = [turn.reply.token_ids for x in told for turn in x.turns if turn.reply]
    if any(found != said["engine"] for found in said.values()):
        raise SystemExit(f"rollout/generate: greedy replies differ: {said}")
