"""Self-Debate Reinforcement Learning (SDRL) in one file: no recipe, no run directory, no GPU.

python examples/sdrl_loop.py

One model answers a question eight times. Two of these first answers are put into a second prompt,
which shows both and asks which is right, and the model answers that prompt eight times, too. Right
answers of both kinds become more likely and wrong ones less, each compared with the answers to the
same prompt: so the model learns to answer, and to answer after others have spoken.

Source: Liu et al., "Self-Debate Reinforcement Learning" (arXiv 2601.22297), Algorithm 1: pairs of
the two most common answers (SDRL-freq, section 5.2), DAPO's loss (eq. 7), advantages that compare
within a prompt (eq. 6), second turns without an advantage left out. The task, the model and the
learning rates are ours: the signs puzzle, where `make 2 Q 3 5 4` asks for the signs of
`3 ? 5 ? 4` that give 2. Printed is the share of right first and second answers to held-out
questions. It takes about a minute on one core of a CPU.
"""

import zlib
from collections.abc import Sequence
from statistics import fmean

from debate_protocol import Question, SelfDebate, Transcript
from debate_rewards import Informative, InOrder, Verifiable
from debate_rollout.drivers import play
from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine, TransformersEngine
from debate_train.advantages import Grouped, Stream
from debate_train.batches.rows import build_batch
from debate_train.data import SignsPuzzle
from debate_train.losses import Dapo, Sft
from debate_train.models import ScratchModel
from debate_train.trainers import TorchTrainer

SEED = 0
PUZZLE = SignsPuzzle(num_digits=3, largest_digit=6)
# A reply compares what it was shown before it answers: the answer follows from the comparison.
FORM = SelfDebate(
    first_turns=8,
    second_turns=8,
    pairing="freq",
    contract={"name": "critique", "sections": ["comparison", "solution"]},
    style="compact",
)
MAX_TOKENS = 72


def main() -> None:
    """Imitate, then debate and learn; print what the model knew after each."""
    loaded = ScratchModel(initializer_range=0.04).load(SEED)
    engine = TransformersEngine().open(loaded.model, loaded.tokenizer)  # It samples from a copy.
    imitate(loaded, engine)
    report("after imitation", engine)
    reinforce(loaded, engine)
    report("after self-debate", engine)


def imitate(loaded, engine: Engine, steps: int = 150) -> None:
    """Teach the form of both kinds of turn, and a little of how to add, from worked debates."""
    source = PUZZLE.model_copy(update={"batch_size": 8}).open(SEED)
    demonstrator = ScriptedEngine().open(None, loaded.tokenizer, script=source.demonstrate)
    reward = Verifiable(values="zero_one")  # A wrong turn weighs nothing.
    weights = Grouped(
        baseline="none", streams={"generator": Stream(sections={"solution": 3, "comparison": 1})}
    )
    adam = TorchTrainer(learning_rate=5e-3, warmup_steps=10, schedule="linear")
    trainer = adam.open(loaded, Sft(), total_steps=steps)
    for step in range(steps):
        debates = hold(source.batch(step), demonstrator, f"imitate/{step}", first=2, second=3)
        credits = weights(debates, reward(debates))
        trainer.step(build_batch(debates, credits, weights.streams, loaded.tokenizer))
    engine.load(trainer.weights(version=0))
    trainer.close()


def reinforce(loaded, engine: Engine, steps: int = 60) -> None:
    """Self-debate: play, score, compare within each prompt, update, refresh."""
    source = PUZZLE.model_copy(update={"batch_size": 12}).open(SEED + 1)
    reward = Verifiable()  # 1 for a right answer, -1 for a wrong one or none.
    advantages = Grouped(
        baseline="prompt",
        scale="std",
        leave_out_zeros=(1,),
        streams={"generator": Stream(sections=["comparison", "solution"])},
    )
    # Questions whose first answers are all right, or all wrong, teach nothing and do not go on.
    informative = InOrder(rules=(Informative(),))
    adam = TorchTrainer(learning_rate=5e-4, warmup_steps=2)
    trainer = adam.open(loaded, Dapo(), total_steps=steps)
    for step in range(steps):
        debates = hold(source.batch(step), engine, f"train/{step}", select=informative)
        if not debates:
            continue
        scores = reward(debates)
        credits = advantages(debates, scores)
        batch = build_batch(debates, credits, advantages.streams, loaded.tokenizer)
        metrics = trainer.step(batch)
        engine.load(trainer.weights(version=step + 1))
        if step % 10 == 9:
            first, second = accuracies(debates)
            print(
                f"step {step + 1}: {len(debates)} questions, loss {metrics['loss']:.3f}, "
                f"right first {first:.3f}, second {second:.3f}"
            )
    trainer.close()


def hold(
    questions: Sequence[Question], engine: Engine, name: str, *, first=8, second=8, select=None
) -> list[Transcript]:
    """Hold a self-debate about each question, all at once; the name seeds the sampling."""
    form = FORM.model_copy(update={"first_turns": first, "second_turns": second})
    runs = [
        form.start(question, seed=zlib.crc32(f"{SEED}/{name}/{number}".encode()))
        for number, question in enumerate(questions)
    ]
    return play(runs, engine, max_tokens=MAX_TOKENS, select=select)


def accuracies(debates: Sequence[Transcript]) -> list[float]:
    """Return the share of right answers among first turns, and among second turns."""
    right: tuple[list[bool], list[bool]] = ([], [])
    for score in Verifiable()(debates):
        for credit in score.credits:
            right[credit.round].append(credit.value == 1)
    return [fmean(found) if found else 0.0 for found in right]


def report(when: str, engine: Engine) -> None:
    """Print the share of right answers to test questions."""
    debates = hold(PUZZLE.open().split("test", 80), engine, "test", first=4, second=4)
    first, second = accuracies(debates)
    print(f"{when}: right first answers {first:.3f}, right second answers {second:.3f}")


if __name__ == "__main__":
    main()
