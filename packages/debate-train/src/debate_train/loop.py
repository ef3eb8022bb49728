"""The training loop: five calls from questions to an optimizer step."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerFast

from debate_protocol.types import Transcript
from debate_rollout.engine import Engine
from debate_train.data import DataSource
from debate_train.imitation import Imitation
from debate_train.playing.rollouts import Rollouts, Source
from debate_train.playing.starts import start_debates
from debate_train.playing.watching import Watch, unwatched
from debate_train.recipe import Recipe
from debate_train.rows import build_batch
from debate_train.step import Keeper, Step
from debate_train.timing import timed
from debate_train.trainers import Trainer


@dataclass(frozen=True, slots=True)
class Work:
    """What a phase works with. `sampler` is `engine` unless replies are demonstrated."""

    recipe: Recipe
    source: DataSource
    sampler: Engine
    engine: Engine
    trainer: Trainer
    tokenizer: PreTrainedTokenizerFast


def train(work: Work, rollouts: Rollouts, steps: range, keep: Keeper) -> None:
    """Play, score and learn for these steps, and keep each."""
    recipe, advantage = work.recipe, work.recipe.advantage
    imitation = Imitation(recipe)
    with rollouts.over(steps):
        for step in steps:
            transcripts = rollouts.take(step)
            with timed(rollouts.times, "score"):
                scores = recipe.reward(transcripts)
            with timed(rollouts.times, "rows"):
                compared = advantage.compare(transcripts, scores, keep.baselines)
                seed = zlib.crc32(f"{recipe.seed}/minibatches/{step}".encode())
                batch = build_batch(
                    transcripts, compared.turns, advantage.streams, work.tokenizer, seed
                )
                batch, counts = imitation.fit(transcripts, batch)
            done = Step(
                step,
                transcripts,
                scores,
                batch,
                {**counts, **compared.metrics()},
                compared.baselines,
            )
            keep.sample(done)
            with keep.learning():
                done.metrics.update(work.trainer.step(batch) | rollouts.times)
                rollouts.complete(step)
                keep.trained(done)
            with timed(done.metrics, "weights"):
                rollouts.refresh(version=step + 1)
            keep.record(done)
            keep.after(done)


def rollouts_of(work: Work, watch: Watch = unwatched) -> Rollouts:
    """Return where the debates of steps come from: played when wanted, or ahead of training."""
    recipe, depth = work.recipe, work.recipe.pipeline.depth

    def play_step(step: int, engine: Engine) -> Sequence[Transcript]:
        debates = start_debates(recipe, work.source.batch(step), f"train/{step}")
        return recipe.rollout.play(watch(debates, recipe.debate.turn_count(), "turns"), engine)

    return Rollouts(Source(play_step, work.sampler, work.engine, work.trainer.weights), depth)
