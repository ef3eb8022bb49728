"""How many debates, turns and samples some questions make at most under a recipe."""

from typing import NamedTuple

from debate_protocol.forms import DebateForm
from debate_protocol.types import Gate, Question
from debate_rewards.gate_rules import GateRule, divided
from debate_train.checks.check_context import held
from debate_train.evaluation import direct_form
from debate_train.recipe import Recipe


class Part(NamedTuple):
    """The turns of debates up to a gate, or from one to the next."""

    debates: int
    """That come so far."""
    turns: int
    """Of each."""
    trained: int
    """Those of the turns that are trained on."""


class StepCounts(NamedTuple):
    """What some questions make; `direct` replies are among the turns and samples."""

    debates: int
    direct: int
    turns: int
    samples: int
    drawn_turns: int
    """The turns with those of all questions that over-sampling may draw."""
    parts: tuple[Part, ...]
    """Of the debates of the first form."""


def step_counts(recipe: Recipe, questions: int) -> StepCounts:
    """Return what so many questions make at most, debated in the forms of the recipe in turn.

    A rule of `rollout.select` that lets some debates go on alone is counted as it decides.
    """
    rollout, forms = recipe.rollout, recipe.forms
    shares = [
        len(range(n, questions, len(forms))) * rollout.debates_per_question
        for n in range(len(forms))
    ]
    direct = questions * rollout.direct_per_question
    played = [_parts(*pair, rollout.select) for pair in zip(forms, shares, strict=True)]
    turns = direct + sum(part.debates * part.turns for parts in played for part in parts)
    first = direct + sum(parts[0].debates * parts[0].turns for parts in played)
    drawn = turns + (rollout.oversample - 1) * first
    if rollout.oversample > 1 and rollout.select and divided(rollout.select)[1] is None:
        drawn += turns - first  # Those of the last batch that are too many go on, too.
    samples = sum(map(_samples, forms, played))
    return StepCounts(
        debates=sum(shares),
        direct=direct,
        turns=turns,
        samples=samples + direct * direct_form(recipe.debate).sequence_count(),
        drawn_turns=drawn,
        parts=played[0],
    )


def _parts(form: DebateForm, debates: int, rule: GateRule | None) -> tuple[Part, ...]:
    """Return the parts of so many debates; without a rule nothing divides them."""
    if rule is None:
        return (Part(debates, form.turn_count(), form.turn_count()),)
    trained, found = form.trained_agents(), [Part(debates, 0, 0)]
    for step in held(form, Question("count", "?")):
        if isinstance(step, Gate):
            found.append(Part(rule.most_going_on(found[-1].debates, step.name), 0, 0))
        else:
            part = found[-1]
            ours = sum(ask.agent in trained for ask in step)
            found[-1] = Part(part.debates, part.turns + len(step), part.trained + ours)
    # A question without an answer has no turns beside its debate: they come last.
    said = sum(part.turns for part in found[:-1])
    found[-1] = found[-1]._replace(turns=form.turn_count() - said)
    return tuple(part for part in found if part.turns)


def _samples(form: DebateForm, parts: tuple[Part, ...]) -> int:
    """Return the sequences that are trained on, at most one for each turn of a debate."""
    total, trained, most = 0, 0, form.sequence_count()
    ends = [*(part.debates for part in parts[1:]), 0]
    for part, going_on in zip(parts, ends, strict=True):
        trained += part.trained
        total += (part.debates - going_on) * min(most, trained)
    return total
