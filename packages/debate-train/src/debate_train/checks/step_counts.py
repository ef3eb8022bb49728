"""How many debates, turns and samples some questions make under a recipe."""

from typing import NamedTuple

from debate_train.evaluation import direct_form
from debate_train.recipe import Recipe


class StepCounts(NamedTuple):
    """What some questions make; `direct` replies are among the turns and samples."""

    debates: int
    direct: int
    turns: int
    samples: int


def step_counts(recipe: Recipe, questions: int) -> StepCounts:
    """Return what so many questions make, debated in the forms of the recipe in turn."""
    copies, forms = recipe.rollout.debates_per_question, recipe.forms
    shares = [len(range(n, questions, len(forms))) * copies for n in range(len(forms))]
    direct = questions * recipe.rollout.direct_per_question
    turns = sum(n * form.turn_count() for n, form in zip(shares, forms, strict=True))
    samples = sum(n * form.sequence_count() for n, form in zip(shares, forms, strict=True))
    return StepCounts(
        debates=sum(shares),
        direct=direct,
        turns=turns + direct,
        samples=samples + direct * direct_form(recipe.debate).sequence_count(),
    )
