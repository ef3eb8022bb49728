"""Estimated shares of the gradient by stream, before a model has played."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from debate_protocol.types import Reply, Transcript, TurnRequest
from debate_rewards.reward import score_debates
from debate_rewards.what_if import ANSWER_STREAMS
from debate_rollout.rendering import TokenText
from debate_train.advantages import Advantage
from debate_train.batches.rows import stream_credit, turn_tokens
from debate_train.data import DataSource
from debate_train.errors import errors_only
from debate_train.playing import check_of, start_debates
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.scripted_debates import (
    play_debate,
    scripted_step,
    small_recipe,
)

MAX_QUESTIONS = 8
NUM_SCRIPTED_STEPS = 3


class ValuedStream(NamedTuple):
    """A stream, and the component of a mixed reward behind it ('' for a single reward)."""

    stream: str
    component: str


def credit_mass(recipe: Recipe, transcripts: Sequence[Transcript]) -> dict[ValuedStream, float]:
    """Sum λ·|advantage| over the characters of debates, by stream and component.

    Each character is a token here: the proportions equal `optim/gradient_share/` where tokens have
    about the same length everywhere.
    """
    mass: dict[ValuedStream, float] = {}
    streams = recipe.advantage.streams
    advantages = recipe.advantage(transcripts, score_debates(recipe.reward, transcripts))
    for transcript, turn_advantages in zip(transcripts, advantages, strict=True):
        for turn in transcript.turns:
            # Apart by component: on one token two components may cancel, and neither is small.
            by_component: dict[str, list[Advantage]] = {}
            for advantage in turn_advantages.get(turn.key, []):
                by_component.setdefault(advantage.component, []).append(advantage)
            for component, component_advantages in by_component.items():
                if all(advantage.value == 0 for advantage in component_advantages):
                    continue
                # Each character is a token, so that every span covers some.
                text = TokenText(turn.text, tuple(range(len(turn.text))))
                tokens = turn_tokens(transcript, turn, text)
                values, _ = stream_credit(tokens, component_advantages, streams)
                for (name, stream), stream_values in zip(streams.items(), values, strict=True):
                    valued = ValuedStream(name, component)
                    turn_mass = abs(stream.weight) * float(np.abs(stream_values).sum())
                    mass[valued] = mass.get(valued, 0.0) + turn_mass
    return mass


def stream_share_lines(
    phase: Recipe, source: DataSource | None, *, answers: bool
) -> tuple[list[str], list[str]]:
    """Estimate the streams' shares of the gradient.

    Demonstrated debates have the right lengths of sections, so they are played if they give every
    stream a value; otherwise scripted agents debate.

    Args:
        phase: A phase of learning from rewards.
        source: The phase's data, if available.
        answers: Whether questions have answers.

    Returns:
        A line for the plan, and a warning where the largest stream is above the detector's bound.
        Both are empty for a single trained stream, for shares set by the recipe, and for unplayable
        debates.
    """
    trained = {name for name, stream in phase.advantage.streams.items() if stream.weight != 0}
    valued = trained.intersection(phase.reward.streams)
    small = small_recipe(phase)
    if len(valued) < 2 or phase.advantage.shares or small is None:
        return [], []
    for kind, transcripts in _playable_debates(small, source, answers):
        # Rewards warn of questions that they leave out, and these are made up.
        with errors_only("debate_rewards"):
            mass = credit_mass(small, transcripts)
        by_stream = dict.fromkeys(sorted(valued), 0.0)
        for stream, _ in mass:
            by_stream[stream] = sum(mass[key] for key in mass if key.stream == stream)
        # Debates without values on a stream say nothing about its share.
        if all(by_stream.values()):
            return _describe(phase, kind, by_stream)
    return [], []


def valued_answers_line(phase: Recipe, source: DataSource | None, *, answers: bool) -> str | None:
    """Say in which rounds answers have no value: their tokens are sampled and teach nothing.

    Args:
        phase: A phase of learning from rewards.
        source: The phase's data, if available.
        answers: Whether questions have answers.

    Returns:
        None where all answers have a value, and for debates that cannot be played.
    """
    small = small_recipe(phase)
    if small is None:
        return None
    kind, transcripts = next(_playable_debates(small, source, answers))
    with errors_only("debate_rewards"):
        scores = score_debates(small.reward, transcripts)
    num_answers: Counter[int] = Counter()
    num_valued: Counter[int] = Counter()
    for score in scores:
        for credit in score.credits:
            # A penalty is the value of a failed turn, which has no answer.
            is_answer = credit.stream in ANSWER_STREAMS and credit.span is None
            if is_answer and not credit.penalty:
                num_answers[credit.round] += 1
                num_valued[credit.round] += credit.value is not None
    if num_valued == num_answers:
        return None
    shares = []
    for round, total in sorted(num_answers.items()):
        shares.append(f"{num_valued[round] / total:.2f} in round {round + 1}")
    return f"  answers with a value in {kind} debates: {', '.join(shares)}"


def _playable_debates(
    small: Recipe, source: DataSource | None, answers: bool
) -> Iterator[tuple[str, list[Transcript]]]:
    if source is not None and source.can_demonstrate:

        def demonstrate(request: TurnRequest) -> Reply:
            # With errors: where all answers are right, no advantage differs from 0.
            return Reply(source.demonstrate(request, errors=True))

        questions = source.batch(0)[:MAX_QUESTIONS]
        runs = start_debates(small, questions, "check", check_of(source))
        yield "demonstrated", [play_debate(run, demonstrate) for run in runs]
    scripted: list[Transcript] = []
    for number in range(NUM_SCRIPTED_STEPS):
        scripted += scripted_step(small, number, answers=answers)
    yield "scripted", scripted


def _describe(phase: Recipe, kind: str, by_stream: dict[str, float]) -> tuple[list[str], list[str]]:
    total = sum(by_stream.values())
    shares = {name: mass / total for name, mass in by_stream.items()}
    listed = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    line = f"  streams' shares of the gradient in {kind} debates: {listed}"
    largest = max(shares, key=lambda name: shares[name])
    # Where a recipe turns the detector off, the imbalance is on purpose.
    detector = phase.health.chosen().get("largest_stream")
    bound = None if detector is None else detector.above
    if bound is None or shares[largest] <= bound:
        return [line], []
    return [line], [
        f"advantage.streams: in {kind} debates, stream {largest} takes {shares[largest]:.2f} of "
        f"the gradient; expected at most {bound:g}, by advantage.streams.{largest}.share or weight"
    ]
