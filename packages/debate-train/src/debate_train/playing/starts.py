"""The debates of a step: which questions, how many copies, and their seeds."""

import zlib
from collections.abc import Sequence
from functools import partial

from debate_protocol.types import DebateRun, Question
from debate_rewards.answers.checking import same_answer
from debate_train.evaluation.mode import direct_form
from debate_train.recipe import Recipe


def start_debates(recipe: Recipe, questions: Sequence[Question], name: str) -> list[DebateRun]:
    """Return the debates of these questions, each with a seed from the recipe's and its name."""
    return [run for _, run in named_debates(recipe, questions, name)]


def named_debates(
    recipe: Recipe, questions: Sequence[Question], name: str, first: int = 0
) -> list[tuple[str, DebateRun]]:
    """Return the id and the debate of each copy of these questions, seeded by its id.

    Questions are numbered from `first`.
    """
    runs = []
    single, forms = direct_form(recipe.debate), [recipe.debate, *recipe.rollout.other_forms]
    copies = recipe.rollout.debates_per_question + recipe.rollout.direct_per_question
    for number, question in enumerate(questions, first):
        same = partial(same_answer, question)
        for copy in range(copies):
            identity = f"{name}/{number}/{copy}"
            seed = zlib.crc32(f"{recipe.seed}/{identity}".encode())
            form = (
                forms[number % len(forms)] if copy < recipe.rollout.debates_per_question else single
            )
            run = form.start(question, seed=seed, debate_id=identity, same_answer=same)
            runs.append((identity, run))
    return runs
