"""What a preflight measures: debates on some training questions, direct replies, one update."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from debate_protocol.types import DebateRun, Transcript
from debate_rewards.metrics import debate_statistics
from debate_rewards.reward import Score, score_debates
from debate_rollout.engine import Engine
from debate_train.advantages import Advantages
from debate_train.batches.rows import Step, build_batch
from debate_train.checkpoints.policy_files import load_policy, refuse_other_base
from debate_train.checkpoints.trainer_state import seed_all
from debate_train.commands.evaluation_files import NamedPolicy
from debate_train.data import DataSource
from debate_train.evaluation.measuring import evaluate
from debate_train.evaluation.settings import DIRECT
from debate_train.losses import divide_gradient
from debate_train.models.loaded_model import LoadedModel, export_weights, trained_adapters
from debate_train.monitoring.detectors import derived
from debate_train.monitoring.health import Interval, intervals_of
from debate_train.monitoring.progress import Progress
from debate_train.monitoring.throughput import peak_memory_gib
from debate_train.offline.example_set import example_batch
from debate_train.offline.offline_set import PLAYED, ExampleSet, OfflineSettings, counted, summed
from debate_train.playing import play_step
from debate_train.recipe import Recipe
from debate_train.recipe.context import context_window
from debate_train.running.open_engines import open_engine, refuse_unusable_engine
from debate_train.running.step_metrics import step_metrics


@dataclass(slots=True)
class Measured:
    """Figures of a start by name, with the intervals of those that are means over questions."""

    figures: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, Interval] = field(default_factory=dict)
    questions: int = 0


def measure(
    phase: Recipe, count: int, policy: NamedPolicy | None, *, with_update: bool
) -> Measured:
    """Play, score and learn from some training questions of a phase; nothing is kept.

    Args:
        phase: Plays debates with the policy.
        count: Questions.
        policy: Whose weights are measured, None for the recipe's own.
        with_update: Make one update, which shows what memory and time it takes.
    """
    refuse_unusable_engine(phase)
    asked = phase.model_copy(update={"data": phase.data.model_copy(update={"batch_size": count})})
    source = asked.data.open(asked.seed)
    loaded = asked.model.load(asked.seed)
    if policy is not None and policy.model is not None:
        refuse_other_base(Path(policy.model), loaded)
        load_policy(Path(policy.model), loaded)
    seed_all(asked.seed)
    with closing(open_engine(asked, loaded)) as engine, Progress() as progress:
        engine.load(export_weights(loaded, 0))
        progress.start("preflight")
        began = time.perf_counter()

        def watched(debates: list[DebateRun]) -> list[DebateRun]:
            return progress.watch(debates, asked.debate.turn_count(), "turns")

        played = play_step(asked, source, 0, engine, watched)
        play_s = time.perf_counter() - began
        found = Measured(questions=len({one.question.id for one in played}))
        _add_direct(found, asked, source, engine, progress)
        step = _scored(found, asked, played, loaded)
        train_s = _add_update(found, asked, step, loaded) if with_update else None
    row, _ = step_metrics(replace(step, metrics=dict(step.metrics)), asked, play_s)
    found.figures |= {k: float(v) for k, v in derived(row).items() if not k.startswith("time/")}
    found.figures["memory/peak_gib"] = peak_memory_gib()
    _add_context(found, asked, played)
    found.figures["time/play_s"] = play_s
    if train_s is not None:
        found.figures["time/train_s"] = train_s
    found.figures["time/hours"] = _seconds(phase, found.questions, play_s, train_s or 0.0) / 3600
    return found


def _seconds(phase: Recipe, played: int, play_s: float, train_s: float) -> float:
    """Return the time of a phase, scaled from that of some questions and of one update of these."""
    questions = phase.steps * phase.data.batch_size
    if phase.offline is None:
        return questions / max(1, played) * (play_s + train_s)
    return (phase.offline.questions or PLAYED) / max(1, played) * play_s + phase.steps * train_s


def _add_direct(
    found: Measured, phase: Recipe, source: DataSource, engine: Engine, progress: Progress
) -> None:
    """Measure single replies to the same questions, where the recipe's evaluation has them."""
    setup = phase.evaluated()
    if DIRECT in setup.modes and phase.debate.turn_count() > 1:
        alone = replace(setup, modes={DIRECT: setup.modes[DIRECT]}, runs=1)
        unique = list({one.id: one for one in source.batch(0)}.values())
        for name, one in evaluate(alone, engine, unique, "preflight", progress.watch).found.items():
            found.figures[name], found.intervals[name] = one.mean, (one.low, one.high)


def _scored(
    found: Measured, phase: Recipe, played: Sequence[Transcript], loaded: LoadedModel
) -> Step:
    """Score the debates as a step does, or take examples of them; measure what they can teach."""
    for name, one in debate_statistics(played).items():
        full = name if name.startswith("judge/") else f"train/{name}"
        found.intervals[full] = (one.low, one.high)
    if phase.offline is not None:
        return _taken(found, phase.offline, played)
    scores = score_debates(phase.reward, played)
    advantage = phase.advantage
    compared = advantage.compute(played, scores, {})
    taught = compared.trained_turns(played)
    batch = build_batch(taught, compared.turns, advantage.streams, loaded.tokenizer, phase.seed)
    batch = divide_gradient(batch, phase.loss, advantage.shares)
    weights = {name: stream.weight for name, stream in advantage.streams.items()}
    found.figures["signal/value"] = signal(played, scores, compared, weights)
    return Step(0, played, scores, batch, {}, {}, time.perf_counter())


def _taken(found: Measured, offline: OfflineSettings, played: Sequence[Transcript]) -> Step:
    """Take the examples of the debates, and measure what these would teach."""
    taken = offline.take(played)
    rows = [example.to_json() for example in taken.examples]
    counts = summed([{**counted(taken, ExampleSet(), played), "examples": rows}])
    found.intervals |= intervals_of(derived(counts), len(taken.examples))
    asked = {example.meta["question"] for example in taken.examples}
    found.figures["signal/value"] = len(asked) / max(1, found.questions)
    first = [one for one in taken.examples if one.chosen.token_ids][: offline.batch_size]
    scores = [Score(())] * len(played)
    return Step(0, played, scores, example_batch(first, 0), counts, {}, time.perf_counter())


def signal(
    played: Sequence[Transcript],
    scores: Sequence[Score],
    compared: Advantages,
    weights: Mapping[str, float],
) -> float:
    """Return the share of questions that teach more than that some turns failed.

    Turns of these have advantages other than 0, and not because of penalties alone.
    """
    moved = dict.fromkeys((one.question.id for one in played), False)
    values: dict[str, set[float]] = {question: set() for question in moved}
    earned: dict[str, set[float]] = {question: set() for question in moved}
    for transcript, score, turns in zip(played, scores, compared.turns, strict=True):
        question = transcript.question.id
        moved[question] |= any(one.value for own in turns.values() for one in own)
        for one in score.credits:
            if one.value is not None and weights.get(one.stream):
                values[question].add(one.value)
                earned[question] |= set() if one.penalty else {one.value}
    taught = [len(earned[q]) > 1 or earned[q] == values[q] for q, moves in moved.items() if moves]
    return sum(taught) / max(1, len(moved))


def _add_update(found: Measured, phase: Recipe, step: Step, loaded: LoadedModel) -> float | None:
    """Make one update; return its seconds, None without one. What does not fit is a figure, too."""
    if (phase.loss.learns_from != "samples" and phase.offline is None) or not step.batch.rows:
        return None
    learner = replace(loaded, training=trained_adapters(phase.model.lora, phase.debate))
    whole = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
    try:
        with closing(phase.trainer.open(learner, phase.loss, phase.steps)) as trainer:
            began = time.perf_counter()
            step.metrics.update(trainer.step(step.batch))
            seconds = time.perf_counter() - began
    except torch.OutOfMemoryError:
        found.figures["memory/share"] = 1.0
        return None
    if whole:
        found.figures["memory/share"] = torch.cuda.max_memory_reserved() / whole
    return seconds


def _add_context(found: Measured, phase: Recipe, played: Sequence[Transcript]) -> None:
    """Add the longest context, and how many turns found no room."""
    turns = [turn for one in played for turn in one.sampled_turns()]
    lengths = [sum(turn.token_counts) for turn in turns if turn.token_counts is not None]
    window = context_window(phase.model).tokens
    if lengths:
        found.figures["context/longest"] = float(max(lengths))
        if window is not None:
            found.figures["context/share"] = max(lengths) / window
    if turns:
        over = sum(turn.failure == "context_overflow" for turn in turns)
        found.figures["context/overflow"] = over / len(turns)
