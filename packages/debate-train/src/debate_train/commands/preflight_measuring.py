"""Measurements of a preflight: debates on some questions, direct replies, an update."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from debate_protocol.types import DebateRun, Question, Transcript, Turn
from debate_rewards.metrics import debate_statistics
from debate_rewards.reward import Score, score_debates
from debate_rewards.what_if import RewardReplay, what_if
from debate_rollout.engine import Engine
from debate_train.advantages import Advantages
from debate_train.batches.rows import Step, build_batch
from debate_train.checkpoints.policy_files import load_policy, refuse_other_base
from debate_train.checkpoints.trainer_state import seed_all
from debate_train.commands.evaluation_files import NamedPolicy
from debate_train.data import DataSource, Split
from debate_train.errors import UsageError
from debate_train.evaluation.measuring import evaluate
from debate_train.evaluation.settings import DIRECT
from debate_train.losses import divide_gradient
from debate_train.models.loaded_model import LoadedModel, export_weights, trained_adapters
from debate_train.monitoring.figures import derived
from debate_train.monitoring.preflight_checks import Interval, intervals_of
from debate_train.monitoring.progress import Progress
from debate_train.monitoring.throughput import peak_memory_gib
from debate_train.offline.example_set import example_batch
from debate_train.offline.offline_set import PLAYED, ExampleSet, OfflineSettings, counted, summed
from debate_train.playing import play_step
from debate_train.recipe import Recipe
from debate_train.recipe.context import context_window
from debate_train.running.open_engines import open_engine
from debate_train.running.step_metrics import step_metrics


class SplitQuestions(DataSource):
    """The questions of one split as a single batch: a run without labels may have some there."""

    def __init__(self, source: DataSource, name: Split, num_questions: int) -> None:
        self._source = source
        self._questions = source.split(name, num_questions)
        if not self._questions:
            raise UsageError(f"--split: found {name}, which is empty; expected one with questions")

    def batch(self, step: int) -> list[Question]:
        """List the questions at step 0; later batches, for dynamic sampling, are empty."""
        return self._questions if step == 0 else []

    def split(self, name: Split, size: int) -> list[Question]:
        """Select questions of a split as the source does."""
        return self._source.split(name, size)


@dataclass(slots=True)
class Measured:
    """Figures of a start by name, with intervals for means over questions."""

    figures: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    questions: int = 0
    replay: RewardReplay | None = None
    """Agreement of the reward's values with the truth; None for sets of examples."""


def measure(
    phase: Recipe,
    num_questions: int,
    policy: NamedPolicy | None,
    *,
    with_update: bool,
    split: Split = "train",
) -> Measured:
    """Play, score and learn from some questions of a phase, without saving.

    Args:
        phase: Plays debates with the policy.
        num_questions: Questions to play.
        policy: The weights to measure, by default the recipe's.
        with_update: Make an update, to measure memory and time.
        split: The split of the questions.

    Raises:
        UsageError: The split is empty.
    """
    data = phase.data.model_copy(update={"batch_size": num_questions})
    small_phase = phase.model_copy(update={"data": data})
    source = small_phase.data.open(small_phase.seed)
    if split != "train":
        source = SplitQuestions(source, split, num_questions)
    loaded = small_phase.model.load(small_phase.seed)
    if policy is not None and policy.model is not None:
        refuse_other_base(Path(policy.model), loaded)
        load_policy(Path(policy.model), loaded)
    # After loading, which draws random numbers for new layers: a run seeds at the same place.
    seed_all(small_phase.seed)

    with closing(open_engine(small_phase, loaded)) as engine, Progress() as progress:
        engine.load(export_weights(loaded, 0))
        progress.start("preflight")

        def watched(debates: list[DebateRun]) -> list[DebateRun]:
            return progress.watch(debates, small_phase.debate.turn_count(), "turns")

        start_s = time.perf_counter()
        played = play_step(small_phase, source, 0, engine, watched)
        play_s = time.perf_counter() - start_s
        # Dynamic sampling and gates may have left questions out.
        measured = Measured(questions=len({transcript.question.id for transcript in played}))
        _add_direct(measured, small_phase, source, engine, progress)
        step = _score(measured, small_phase, played, loaded)
        train_s = _add_update(measured, small_phase, step, loaded) if with_update else None

    row, _ = step_metrics(replace(step, metrics=dict(step.metrics)), small_phase, play_s)
    for name, value in derived(row).items():
        # A step's time has parts that a preflight does not run; its own times follow below.
        if not name.startswith("time/"):
            measured.figures[name] = float(value)
    measured.figures["memory/peak_gib"] = peak_memory_gib()
    _add_context(measured, small_phase, played)
    measured.figures["time/play_s"] = play_s
    if train_s is not None:
        measured.figures["time/train_s"] = train_s
    phase_s = _phase_seconds(phase, measured.questions, play_s, train_s or 0.0)
    measured.figures["time/hours"] = phase_s / 3600
    return measured


def _phase_seconds(phase: Recipe, num_played: int, play_s: float, train_s: float) -> float:
    """Scale the time of some questions, and of their update, to the whole phase."""
    num_played = max(1, num_played)
    if phase.offline is None:
        num_questions = phase.steps * phase.data.batch_size
        return num_questions / num_played * (play_s + train_s)
    # Debates of a set are played once and trained on for all steps, in batches of one size.
    num_questions = phase.offline.questions or PLAYED
    return num_questions / num_played * play_s + phase.steps * train_s


def _add_direct(
    measured: Measured, phase: Recipe, source: DataSource, engine: Engine, progress: Progress
) -> None:
    """Measure single replies to the same questions, where the recipe's evaluation has them."""
    setup = phase.evaluated()
    if DIRECT not in setup.modes or phase.debate.turn_count() == 1:
        return
    direct_only = replace(setup, modes={DIRECT: setup.modes[DIRECT]}, runs=1)
    # By id: a batch may repeat a question, and an evaluation asks each once.
    questions = {question.id: question for question in source.batch(0)}
    measures = evaluate(direct_only, engine, list(questions.values()), "preflight", progress.watch)
    for name, estimate in measures.found.items():
        measured.figures[name] = estimate.mean
        measured.intervals[name] = (estimate.low, estimate.high)


def _score(
    measured: Measured, phase: Recipe, played: Sequence[Transcript], loaded: LoadedModel
) -> Step:
    """Score the debates as a step does, or take examples of them; measure their signal."""
    for name, estimate in debate_statistics(played).items():
        metric = name if name.startswith("judge/") else f"train/{name}"
        measured.intervals[metric] = (estimate.low, estimate.high)
    if phase.offline is not None:
        return _take_examples(measured, phase.offline, played)

    scores = score_debates(phase.reward, played)
    advantage = phase.advantage
    # Without a state: running means of a baseline begin as at the first step.
    advantages = advantage.compute(played, scores, {})
    trained = advantages.trained_turns(played)
    batch = build_batch(trained, advantages.turns, advantage.streams, loaded.tokenizer, phase.seed)
    batch = divide_gradient(batch, phase.loss, advantage.shares)
    weights = {name: stream.weight for name, stream in advantage.streams.items()}
    measured.figures["signal/value"] = signal(played, scores, advantages, weights)

    # Without habits, which are no part of what a run would learn from.
    (replay,) = what_if(played, {phase.reward.type: phase.reward}, with_habits=False)
    if replay.problem is None:
        measured.replay = replay
        measured.figures["signal/text"] = replay.signal
    if replay.truth is not None:
        measured.figures["signal/truth"] = replay.truth.value
        measured.intervals["signal/truth"] = (replay.truth.low, replay.truth.high)
    return Step(0, played, scores, batch, {}, {}, time.perf_counter())


def _take_examples(
    measured: Measured, offline: OfflineSettings, played: Sequence[Transcript]
) -> Step:
    """Take the examples of the debates, and measure their signal."""
    example_set = offline.take(played)
    rows = [example.to_json() for example in example_set.examples]
    counts = summed([{**counted(example_set, ExampleSet(), played), "examples": rows}])
    measured.intervals |= intervals_of(derived(counts), len(example_set.examples))
    questions = {example.meta["question"] for example in example_set.examples}
    measured.figures["signal/value"] = len(questions) / max(1, measured.questions)
    # Answers written by rule have no sampled tokens, and a row needs some.
    with_tokens = [example for example in example_set.examples if example.chosen.token_ids]
    batch = example_batch(with_tokens[: offline.batch_size], 0)
    scores = [Score(())] * len(played)
    return Step(0, played, scores, batch, counts, {}, time.perf_counter())


def signal(
    played: Sequence[Transcript],
    scores: Sequence[Score],
    advantages: Advantages,
    weights: Mapping[str, float],
) -> float:
    """Compute the share of questions with a signal beyond penalties of failed turns.

    Their turns have advantages other than 0, and different credits apart from penalties.
    """
    # A penalty lowers failed turns below the others: such a difference teaches the format alone.
    has_advantage = dict.fromkeys((transcript.question.id for transcript in played), False)
    values: dict[str, set[float]] = {question: set() for question in has_advantage}
    values_without_penalties: dict[str, set[float]] = {question: set() for question in values}
    for transcript, score, turns in zip(played, scores, advantages.turns, strict=True):
        question = transcript.question.id
        for turn_advantages in turns.values():
            if any(advantage.value for advantage in turn_advantages):
                has_advantage[question] = True
        for credit in score.credits:
            # A stream of weight 0 moves no token, however much its values differ.
            if credit.value is None or not weights.get(credit.stream):
                continue
            values[question].add(credit.value)
            if not credit.penalty:
                values_without_penalties[question].add(credit.value)
    num_informative = 0
    for question, is_trained in has_advantage.items():
        earned = values_without_penalties[question]
        # With a single value beside penalties, the penalties make the whole difference.
        has_signal = len(earned) > 1 or earned == values[question]
        if is_trained and has_signal:
            num_informative += 1
    return num_informative / max(1, len(has_advantage))


def _add_update(measured: Measured, phase: Recipe, step: Step, loaded: LoadedModel) -> float | None:
    """Make an update and time it in seconds; None if the phase has no update or memory is short."""
    has_update = phase.loss.learns_from == "samples" or phase.offline is not None
    if not has_update or not step.batch.rows:
        return None
    learner = replace(loaded, training=trained_adapters(phase.model.lora, phase.debate))
    total_memory = 0
    if torch.cuda.is_available():
        total_memory = torch.cuda.get_device_properties(0).total_memory
    try:
        with closing(phase.trainer.open(learner, phase.loss, phase.steps)) as trainer:
            start_s = time.perf_counter()
            step.metrics.update(trainer.step(step.batch))
            seconds = time.perf_counter() - start_s
    # A finding of the preflight and no failure: it is what a run would meet hours later.
    except torch.OutOfMemoryError:
        measured.figures["memory/share"] = 1.0
        return None
    if total_memory:
        measured.figures["memory/share"] = torch.cuda.max_memory_reserved() / total_memory
    return seconds


def _add_context(measured: Measured, phase: Recipe, played: Sequence[Transcript]) -> None:
    """Add the longest context, and how many turns overflowed the window."""
    turns: list[Turn] = []
    for transcript in played:
        turns += transcript.sampled_turns()
    # Prompt and reply have to fit the window together.
    lengths = [sum(turn.token_counts) for turn in turns if turn.token_counts is not None]
    window = context_window(phase.model).tokens
    if lengths:
        measured.figures["context/longest"] = float(max(lengths))
        if window is not None:
            measured.figures["context/share"] = max(lengths) / window
    if turns:
        num_overflows = sum(turn.failure == "context_overflow" for turn in turns)
        measured.figures["context/overflow"] = num_overflows / len(turns)
