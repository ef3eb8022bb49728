"""ACC-Debate in one file: no recipe, no run directory, no GPU.

python examples/acc_debate_loop.py

An actor answers and a critic reviews the answer, in turns. To learn what a good review is, each
debate is also steered: at every turn the speaker is asked to speak toward the right answer, and
toward a wrong one. From each of the states that these replies lead to, the debate is played on
several times, and the share of right answers says what the reply was worth. Where the steered reply
is worth more than the natural one, or the natural one more than one that was steered to a wrong
answer, the two are a preference pair, under the prompt that steers nobody. DPO learns from them.

Source: Estornell et al., "ACC-Debate" (arXiv 2411.00053), eq. 4 and Algorithm 1: here one critic,
one alternation, with the actor left as it is. The task, the model and the rates are ours: the signs
puzzle, where `make 2 Q 3 5 4` asks for the signs of `3 ? 5 ? 4` that give 2. Printed is the share
of right answers to held-out questions, round by round. It takes about a minute on one core.
"""

import random
import zlib
from collections.abc import Sequence
from statistics import fmean

from debate_protocol import ActorCritic, Question, Transcript
from debate_rewards import check_many
from debate_rollout.drivers import play
from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine, TransformersEngine
from debate_train.data import SignsPuzzle
from debate_train.losses import Dpo, Sft
from debate_train.models import ScratchModel
from debate_train.offline import EveryReply, GuidedPairs
from debate_train.offline.example_set import example_batch
from debate_train.trainers import TorchTrainer

SEED = 0
PUZZLE = SignsPuzzle(num_digits=3)
FORM = ActorCritic(contract="answer_line", style="compact", max_rounds=2)
GUIDED = FORM.model_copy(update={"guided": True, "guide_round_zero": True, "continuations": 4})
RATES, SIZES = {"sft": 3e-3, "dpo": 1e-4}, {"sft": 128, "dpo": 64}
MAX_TOKENS = 32
TEST_ROUNDS = 5


def main() -> None:
    """Imitate, then learn from guided debates; print how right each round is after each."""
    loaded = ScratchModel(initializer_range=0.04, extra_words=("Answer:", "toward")).load(SEED)
    engine = TransformersEngine().open(loaded.model, loaded.tokenizer)  # It samples from a copy.
    imitate(loaded, engine)
    report("after imitation", engine)
    teach_critic(loaded, engine)
    report("after ACC-Debate", engine)


def imitate(loaded, engine: Engine) -> None:
    """Teach both roles how to speak, steered or not, from worked debates."""
    source = PUZZLE.model_copy(update={"batch_size": 1024}).open(SEED)
    demonstrator = ScriptedEngine().open(None, loaded.tokenizer, script=source.demonstrate)
    # The demonstrator's own first answers are right or wrong by chance: wrong ones are not learned.
    form = GUIDED.model_copy(update={"continuations": 1})
    debates = hold(form, source.batch(0), demonstrator, "imitate")
    examples = EveryReply(wrong="leave_out").take(debates).examples
    learn(loaded, engine, Sft(), examples, steps=600)


def teach_critic(loaded, engine: Engine) -> None:
    """Play guided debates, take the critic's preference pairs, and learn from them by DPO."""
    source = PUZZLE.model_copy(update={"batch_size": 1000}).open(SEED + 1)
    debates = hold(GUIDED, source.batch(0), engine, "guided")
    pairs = GuidedPairs(role="critic", threshold=0.25).take(debates).examples
    chosen = fmean(bool(pair.meta["chosen_ok"]) for pair in pairs)
    right = fmean(bool(pair.meta["actor_right"]) for pair in pairs)
    print(
        f"{len(pairs)} pairs: the actor is right in {right:.2f}, "
        f"the chosen reply agrees with it in {chosen:.2f}"
    )
    learn(loaded, engine, Dpo(beta=0.1, nll_weight=1.0), pairs, steps=120)


def learn(loaded, engine: Engine, loss: Sft | Dpo, examples, *, steps: int) -> None:
    """Make optimizer steps on shuffled examples, and give the engine the new weights."""
    rate, size = RATES[loss.type], SIZES[loss.type]
    adam = TorchTrainer(learning_rate=rate, warmup_steps=steps // 10, schedule="linear")
    trainer = adam.open(loaded, loss, total_steps=steps)
    order: list[int] = []
    for step in range(steps):
        while len(order) < size:
            order += random.Random(f"{SEED}/{step}").sample(range(len(examples)), len(examples))
        taken, order = order[:size], order[size:]
        metrics = trainer.step(example_batch([examples[n] for n in taken], seed=step))
        if step % (steps // 4) == steps // 4 - 1:
            print(f"step {step + 1}: loss {metrics['loss']:.3f}")
    engine.load(trainer.weights(version=steps))
    trainer.close()


def hold(
    form: ActorCritic, questions: Sequence[Question], engine: Engine, name: str
) -> list[Transcript]:
    """Hold a debate about each question, all at once; the name seeds the sampling."""
    runs = [
        form.start(question, seed=zlib.crc32(f"{SEED}/{name}/{number}".encode()))
        for number, question in enumerate(questions)
    ]
    return play(runs, engine, max_tokens=MAX_TOKENS)


def report(when: str, engine: Engine) -> None:
    """Print the share of right answers of the actor in each round, on test questions."""
    form = FORM.model_copy(update={"max_rounds": TEST_ROUNDS})
    debates = hold(form, PUZZLE.open().split("test", 196) * 3, engine, "test")
    shares = []
    for number in range(TEST_ROUNDS):
        said = [(d, turn) for d in debates for turn in d.turns if turn.key == (0, number)]
        verdicts = check_many([(d.question, turn.text) for d, turn in said])
        shares.append(fmean(one.verdict == "right" for one in verdicts))
    rounds = " ".join(f"{share:.3f}" for share in shares)
    print(f"{when}: right {rounds}, mean {fmean(shares):.3f}")


if __name__ == "__main__":
    main()
