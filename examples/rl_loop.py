"""Reinforcement learning through debate in one file: no recipe, no run directory, no GPU.

python examples/rl_loop.py

The task is the signs puzzle: `make 2 Q 3 5 4` asks for the signs of `3 ? 5 ? 4` that give 2. A
two-layer model with random weights first imitates worked debates, from which it learns how to
speak and a little of how to add. Then two copies of it debate, and right answers become more
likely, wrong ones less, compared with the others to the same question. Printed is the share of
right answers to held-out questions. It takes under a minute on one core of a CPU.
"""

import zlib
from collections.abc import Sequence
from statistics import fmean

from debate_protocol import Question, Simultaneous, Transcript
from debate_rewards import Verifiable
from debate_rollout.drivers import play
from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine, TransformersEngine
from debate_train.advantages import AdvantageConfig, Grouped, Stream
from debate_train.batches.rows import build_batch
from debate_train.data import SignsPuzzle
from debate_train.losses import PpoClip, Sft
from debate_train.models import ScratchModel
from debate_train.trainers import TorchTrainer, Trainer

SEED = 0
# Two agents and two rounds: in the second, each has read what the other said in the first.
FORM = Simultaneous(num_agents=2, max_rounds=2, style="compact", personas="none")
PUZZLE = SignsPuzzle(num_digits=3, largest_digit=6)
# 1 for a turn whose answer is right, 0 for one whose is wrong, -1 for one that cannot be read.
REWARD = Verifiable(values="zero_one")
# The reward of a turn holds for all its tokens, three times as much for those of its answer.
STREAMS = {"generator": Stream(sections={"solution": 3, "evaluation": 1, "comparison": 1})}


def main() -> None:
    """Imitate, then debate and learn; print what the model knew after each."""
    # Or PretrainedModel(name="smollm2", lora=Lora(rank=16)): only its adapters are trained then.
    loaded = ScratchModel(initializer_range=0.04).load(SEED)
    engine = TransformersEngine().open(loaded.model, loaded.tokenizer)  # It samples from a copy.

    source = PUZZLE.model_copy(update={"batch_size": 32}).open(SEED)
    demonstrator = ScriptedEngine().open(None, loaded.tokenizer, script=source.demonstrate)
    adam = TorchTrainer(learning_rate=5e-3, warmup_steps=10, schedule="linear")
    trainer = adam.open(loaded, Sft(), total_steps=60)
    imitated = Grouped(baseline="none", streams=STREAMS)  # The reward is the token's weight.
    batches = [source.batch(step) for step in range(60)]
    train(batches, demonstrator, trainer, imitated, loaded.tokenizer)

    engine.load(trainer.weights(version=0))
    print(f"after imitation: {share_right(engine):.3f} right")

    source = PUZZLE.model_copy(update={"batch_size": 8}).open(SEED + 1)
    adam = TorchTrainer(learning_rate=1e-3, warmup_steps=2)
    trainer = adam.open(loaded, PpoClip(), total_steps=30)
    # A turn's advantage: its reward less the mean over the same question and round.
    compared = Grouped(baseline="question_round", streams=STREAMS)
    batches = [[q for q in source.batch(step) for _ in range(4)] for step in range(30)]
    train(batches, engine, trainer, compared, loaded.tokenizer)
    print(f"after reinforcement learning: {share_right(engine):.3f} right")


def train(
    batches: Sequence[Sequence[Question]],
    engine: Engine,
    trainer: Trainer,
    advantages: AdvantageConfig,
    tokenizer,
) -> None:
    """Make an optimizer step for each batch of questions, on the debates about them."""
    for step, questions in enumerate(batches):
        transcripts = debate(questions, engine, f"train/{step}")  # Play.
        scores = REWARD(transcripts)  # Score: of each turn a credit,
        credits = advantages(transcripts, scores)  # less a baseline.
        batch = build_batch(transcripts, credits, advantages.streams, tokenizer)  # For each token.
        metrics = trainer.step(batch)  # Update.
        engine.load(trainer.weights(version=step + 1))  # Refresh.
        if step % 10 == 9:  # Log.
            reward = fmean(value for score in scores for value in score.agents if value is not None)
            print(f"step {step + 1}: loss {metrics['loss']:.3f}, reward {reward:.3f}")
    trainer.close()


def debate(questions: Sequence[Question], engine: Engine, name: str) -> list[Transcript]:
    """Hold a debate about each of these questions, all at once; the name seeds the sampling."""
    seeds = [zlib.crc32(f"{SEED}/{name}/{number}".encode()) for number in range(len(questions))]
    runs = [FORM.start(q, seed=seed) for q, seed in zip(questions, seeds, strict=True)]
    return play(runs, engine, max_tokens=40)


def share_right(engine: Engine) -> float:
    """Return the share of turns whose answer is right, in two debates of each test question."""
    transcripts = debate(PUZZLE.open().split("test", 100) * 2, engine, "test")
    return fmean(score.metrics["verifiable/right"] for score in REWARD(transcripts))


if __name__ == "__main__":
    main()
