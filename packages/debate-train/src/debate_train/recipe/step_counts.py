"""Numbers of debates, turns and samples in a step of a recipe."""

from typing import NamedTuple

from debate_protocol.forms import DebateForm
from debate_protocol.types import Gate, Question, Reply, TurnRequest
from debate_rewards.decisions import GateRule, divided, most_going_on
from debate_train.playing import direct_form
from debate_train.recipe.context import REPLY_MARK
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.scripted_debates import play_debate


class Segment(NamedTuple):
    """The turns of debates up to a gate, or between two gates.

    Attributes:
        debates: Debates with these turns.
        turns: Turns of each.
        trained: Trained turns of each.
    """

    debates: int
    turns: int
    trained: int


class StepCounts(NamedTuple):
    """Numbers for the questions of a step; `direct` replies are among the turns and samples.

    Attributes:
        drawn_turns: The turns of all questions drawn at most by over-sampling.
        segments: Turns between gates, of debates in the first form.
    """

    debates: int
    direct: int
    turns: int
    samples: int
    drawn_turns: int
    segments: tuple[Segment, ...]


def step_counts(recipe: Recipe, questions: int) -> StepCounts:
    """Bound the counts of some questions, debated in the forms of the recipe in turn.

    A rule of `rollout.select` is counted as it decides.
    """
    rollout = recipe.rollout
    num_forms = len(recipe.forms)
    num_direct = questions * rollout.direct_per_question
    num_debates = 0
    num_samples = num_direct * direct_form(recipe.debate).sequence_count()
    num_turns = num_direct
    num_turns_before_gates = num_direct
    segments_by_form = []
    for number, form in enumerate(recipe.forms):
        num_questions = len(range(number, questions, num_forms))
        num_form_debates = num_questions * rollout.debates_per_question
        segments = _count_segments(form, num_form_debates, rollout.select)
        segments_by_form.append(segments)
        num_debates += num_form_debates
        num_samples += _count_samples(form, segments)
        num_turns += sum(segment.debates * segment.turns for segment in segments)
        num_turns_before_gates += segments[0].debates * segments[0].turns

    # Batches that are drawn and dropped are played up to the first gate.
    num_drawn_turns = num_turns + (rollout.oversample - 1) * num_turns_before_gates
    if rollout.oversample > 1 and rollout.select and divided(rollout.select)[1] is None:
        # Debates of the last batch beyond the batch size go on, too.
        num_drawn_turns += num_turns - num_turns_before_gates
    return StepCounts(
        debates=num_debates,
        direct=num_direct,
        turns=num_turns,
        samples=num_samples,
        drawn_turns=num_drawn_turns,
        segments=segments_by_form[0],
    )


def _count_segments(
    form: DebateForm, num_debates: int, rule: GateRule | None
) -> tuple[Segment, ...]:
    """Count the turns between gates; debates without a rule are undivided."""
    if rule is None:
        return (Segment(num_debates, form.turn_count(), form.turn_count()),)
    trained_agents = form.trained_agents()
    segments = [Segment(num_debates, 0, 0)]

    def count_turn(request: TurnRequest) -> Reply:
        segment = segments[-1]
        is_trained = request.agent in trained_agents
        segments[-1] = Segment(segment.debates, segment.turns + 1, segment.trained + is_trained)
        contract = request.contract or form.contract_rules()
        return Reply(contract.reply(f"{REPLY_MARK} {request.agent}"))

    def begin_segment(gate: Gate) -> None:
        num_going_on = most_going_on(rule, segments[-1].debates, gate.name)
        segments.append(Segment(num_going_on, 0, 0))

    play_debate(form.start(Question("count", "?"), seed=0), count_turn, begin_segment)
    # Without an answer the question has no turns beside its debate, which come last.
    num_earlier_turns = sum(segment.turns for segment in segments[:-1])
    segments[-1] = segments[-1]._replace(turns=form.turn_count() - num_earlier_turns)
    return tuple(segment for segment in segments if segment.turns)


def _count_samples(form: DebateForm, segments: tuple[Segment, ...]) -> int:
    """Count the trained sequences, at most a sequence for each turn of a debate."""
    num_samples = 0
    num_trained_turns = 0
    going_on = [segment.debates for segment in segments[1:]] + [0]
    for segment, num_going_on in zip(segments, going_on, strict=True):
        num_trained_turns += segment.trained
        num_ended = segment.debates - num_going_on
        num_samples += num_ended * min(form.sequence_count(), num_trained_turns)
    return num_samples


def many(count: int, noun: str) -> str:
    """Write a count with a noun, in the plural where needed."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {plural}"
