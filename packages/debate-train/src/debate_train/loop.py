"""The training loop: five calls from questions to an optimizer step."""

import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from transformers import PreTrainedTokenizerFast

from debate_protocol.types import Transcript
from debate_rewards.credits import Score
from debate_rollout.engine import Engine
from debate_train.data import DataSource
from debate_train.imitation import Imitation
from debate_train.playing.rollouts import Rollouts, Source
from debate_train.playing.starts import start_debates
from debate_train.playing.watching import Watch, unwatched
from debate_train.recipe import Recipe
from debate_train.row_types import Batch
from debate_train.rows import build_batch
from debate_train.timing import timed
from debate_train.trainers import Trainer


@dataclass(frozen=True, slots=True)
class Step:
    """What one step left behind. `number` counts from 0 over the whole run."""

    number: int
    transcripts: Sequence[Transcript]
    scores: Sequence[Score]
    batch: Batch
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True)
class Work:
    """What a phase works with. `sampler` is `engine` unless replies are demonstrated."""

    recipe: Recipe
    source: DataSource
    sampler: Engine
    engine: Engine
    trainer: Trainer
    tokenizer: PreTrainedTokenizerFast


class Keeper(Protocol):
    """What is done with each step."""

    def learning(self) -> AbstractContextManager[None]:
        """Keep from the trainer what would leave a step half made."""
        ...

    def sample(self, step: Step) -> None:
        """Write what is kept of the debates of a step that is about to be trained."""
        ...

    def trained(self, step: Step) -> None:
        """Count a step whose update is made, whatever becomes of it afterwards."""
        ...

    def record(self, step: Step) -> None:
        """Write the metrics of a step that has been trained."""
        ...

    def after(self, step: Step) -> None:
        """Look, save or stop where it is time to; the engine serves the step's weights."""
        ...


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
                credits = advantage(transcripts, scores)
                seed = zlib.crc32(f"{recipe.seed}/minibatches/{step}".encode())
                batch = build_batch(transcripts, credits, advantage.streams, work.tokenizer, seed)
                batch, counts = imitation.fit(transcripts, batch)
            done = Step(step, transcripts, scores, batch, dict(counts))
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
