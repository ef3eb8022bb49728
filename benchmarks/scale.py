"""What a long debate costs beside the model: tokens that are computed, and rank 0's seconds.

    python -m benchmarks.scale context
    python -m benchmarks.scale rank0 --questions 16 64

`context` counts, for each conversation and for N agents and R rounds, the tokens of a debate that
an update computes (packed as the recipe says), those that an engine computes whose prefix cache
never forgets, and the blocks of 16 tokens that such a cache holds at the end. `rank0` measures
selfplay_v2.yaml's step without a model: five agents, three rounds, scripted turns of about
`--tokens` tokens. Prints the seconds of each part of the step and the peak of memory. Texts are
GSM8K's worked answers; the tokenizer is SmolLM2's (`debate-train fetch smollm2`).
"""

import argparse
import json
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measurement import print_line
from debate_protocol.types import Question, Reply, Transcript
from debate_rewards.reward import score_debates
from debate_rollout.engine import Request, Weights
from debate_rollout.rendering import Renderer
from debate_train.batches.rows import Step, build_batch
from debate_train.playing import metrics_of
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.running.step_metrics import step_metrics

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("debate-protocol", "debate-rewards", "debate-rollout", "debate-train")
BLOCK = 16
AGENTS, ROUNDS = 5, 3


class Texts:
    """Replies of about this many tokens, drawn from worked answers by a request's seed."""

    def __init__(self, tokenizer: Any, tokens: int) -> None:
        path = ROOT / "recipes" / "data" / "gsm8k_50.jsonl"
        self._lines = [
            line
            for row in path.read_text().splitlines()
            for line in json.loads(row)["answer"].splitlines()
        ]
        self._ids = {line: tokenizer.encode(f"{line}\n") for line in self._lines}
        self._encode, self._tokens = tokenizer.encode, tokens

    def reply(self, seed: int) -> list[int]:
        """Return the token ids of a reply: three sections, the first two long."""
        rng, ids = random.Random(seed), list[int]()
        for name in ("solution", "evaluation"):
            ids += self._encode(f"<{name}>\n")
            end = len(ids) + (self._tokens - 60) // 2
            while len(ids) < end:
                ids += self._ids[rng.choice(self._lines)]
            ids += self._encode(f"\\boxed{{{rng.randrange(4)}}}\n</{name}>\n")
        pairs = [sorted(rng.sample(range(AGENTS), 2)) for _ in range(3)]
        votes = "\n".join(f"Agent {a} {rng.choice('><=')} Agent {b}" for a, b in pairs)
        return [*ids, *self._encode(f"<comparison>\n{votes}\n</comparison>")]


class Scripted:
    """An engine that says these texts, at once."""

    capabilities: frozenset[str] = frozenset()
    context_window = None

    def __init__(self, renderer: Renderer, texts: Texts) -> None:
        self.renderer, self._texts = renderer, texts

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return a reply to each request."""
        said = [(request, self._texts.reply(request.sampling.seed or 0)) for request in requests]
        return [self.renderer.reply(one, ids, [-0.5] * len(ids), "stop", 0) for one, ids in said]

    def load(self, weights: Weights) -> None:
        """Take no weights."""

    def close(self) -> None:
        """Hold nothing."""


def recipe_of(**debate: object) -> Recipe:
    """Return the recipe that is measured, on SmolLM2."""
    changes = [f"debate.{key}={value}" for key, value in debate.items()]
    own = ["model={type: pretrained, name: smollm2}", "rollout.engine={type: transformers}"]
    path = ROOT / "recipes" / "selfplay_v2.yaml"
    return load_recipe(path, [*own, "trainer.type=torch", *changes], model=Recipe).recipe


def held(recipe: Recipe, engine: Scripted, questions: int) -> list[Transcript]:
    """Return a step's debates."""
    lines = (ROOT / "recipes" / "data" / "gsm8k_50.jsonl").read_text().splitlines()
    asked = [json.loads(line)["question"] for line in lines]
    runs = [
        recipe.debate.start(
            Question(f"q{n}", asked[n % len(asked)], answer=str(n % 4), meta={"kind": "math"}),
            seed=n,
            debate_id=str(n),
        )
        for n in range(questions)
    ]
    return recipe.rollout.play(runs, engine)


def rows_of(recipe: Recipe, transcripts: Sequence[Transcript], tokenizer: Any) -> Step:
    """Return what a step learns from."""
    scores = score_debates(recipe.reward, transcripts)
    found = recipe.advantage.compute(transcripts, scores, {})
    taught = found.trained_turns(transcripts)
    batch = build_batch(taught, found.turns, recipe.advantage.streams, tokenizer, 0)
    return Step(0, transcripts, scores, batch, {}, began=time.perf_counter())


def context(tokenizer: Any, tokens: int) -> None:
    """Print what debates compute, for each conversation, number of agents and of rounds."""
    for agents in (3, 5, 7):
        for rounds in (2, 3, 4):
            for name in ("append", "rebuild", "shared"):
                recipe = recipe_of(num_agents=agents, max_rounds=rounds, conversation=name)
                engine = Scripted(Renderer(tokenizer), Texts(tokenizer, tokens))
                (debate,) = held(recipe, engine, 1)
                step = rows_of(recipe, [debate], tokenizer)
                packs = recipe.trainer.plan(step.batch, recipe.loss)[0]
                prefilled, blocks = cached(debate)
                found = {
                    "update": sum(one.tokens_BT.numel() for part in packs for one in part),
                    "prefill": prefilled,
                    "cache_blocks": blocks,
                }
                settings = {"agents": agents, "rounds": rounds, "turn_tokens": tokens}
                for part, value in found.items():
                    print_line(f"scale/{part}/{name}", [value], "1", "lower", settings, PACKAGES)


def cached(debate: Transcript) -> tuple[int, int]:
    """Return prompt tokens that no block of the cache holds, and the blocks at the end."""
    blocks, computed = set[tuple[int, ...]](), 0
    for number in range(debate.protocol.max_rounds):
        spoken = [turn.reply for turn in debate.turns if turn.round == number and turn.reply]
        for reply in spoken:
            ids = reply.prompt_ids
            starts = range(BLOCK, len(ids) + 1, BLOCK)
            known = [end for end in starts if ids[:end] in blocks]
            computed += len(ids) - max(known, default=0)
            blocks.update(ids[:end] for end in starts)
        for reply in spoken:
            said = (*reply.prompt_ids, *reply.token_ids)
            blocks.update(said[:end] for end in range(BLOCK, len(said) + 1, BLOCK))
    return computed, len(blocks)


def rank0(tokenizer: Any, tokens: int, questions: int, conversation: str) -> None:
    """Print the seconds of each part of a step of `questions` questions."""
    recipe, seconds = recipe_of(conversation=conversation), dict[str, float]()
    engine = Scripted(Renderer(tokenizer), Texts(tokenizer, tokens))

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        seconds[part] = time.perf_counter() - began

    said: Callable[[int], list[int]] = engine._texts.reply
    with timed("play"):
        transcripts = held(recipe, engine, questions)
    turns = [turn for one in transcripts for turn in one.turns if turn.reply]
    with timed("texts"):
        for seed, _ in enumerate(turns):
            said(seed)
    seconds["play"] -= seconds.pop("texts")
    with timed("score_and_rows"):
        step = rows_of(recipe, transcripts, tokenizer)
    with timed("plan"):
        recipe.trainer.plan(step.batch, recipe.loss)
    with timed("metrics"):
        step.metrics.update(metrics_of(transcripts))
        _, problem = step_metrics(step, recipe, 1.0)
        assert problem is None, problem
    settings = {
        "questions": questions,
        "conversation": conversation,
        "turn_tokens": sum(len(t.reply.token_ids) for t in turns if t.reply) // len(turns),
    }
    seconds["all"] = sum(seconds.values())
    for part, value in seconds.items():
        print_line(f"scale/rank0/{part}", [value], "s", "lower", settings, PACKAGES)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print_line("scale/rank0/peak", [peak], "GiB", "lower", settings, PACKAGES)


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("context", "rank0"))
    parser.add_argument("--tokens", type=int, default=1_891, help="tokens of a turn")
    parser.add_argument("--questions", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--conversation", default="append")
    asked = parser.parse_args()
    tokenizer = recipe_of().model.load_tokenizer()
    if asked.what == "context":
        context(tokenizer, asked.tokens)
    for questions in asked.questions if asked.what == "rank0" else ():
        rank0(tokenizer, asked.tokens, questions, asked.conversation)


if __name__ == "__main__":
    main()
