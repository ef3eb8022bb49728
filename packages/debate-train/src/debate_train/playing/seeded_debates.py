"""The debates of questions, each seeded by the recipe's seed and the debate's own name."""

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from debate_protocol.forms import CheckProposal, DebateForm, Proposal, ProposalProblem
from debate_protocol.types import DebateRun, Question
from debate_rewards.answer_checking import same_answer
from debate_train.data import DataSettings, DataSource
from debate_train.playing.settings import Rollout, direct_form
from debate_train.playing.shared_turns import SharedTurns


class StepRecipe(Protocol):
    """The parts of a recipe that decide which debates a step plays."""

    @property
    def debate(self) -> DebateForm:
        """The form of the debates."""

    @property
    def rollout(self) -> Rollout:
        """Settings of sampling."""

    @property
    def data(self) -> DataSettings:
        """The source of questions."""

    @property
    def seed(self) -> int:
        """The seed of all debates."""


def check_of(source: DataSource) -> CheckProposal:
    """Build the checker of agents' questions, by their source of data."""

    def check_proposal(text: str) -> Proposal | ProposalProblem:
        question = source.check_proposal(text)
        if not isinstance(question, Question):
            return question
        # Answers are compared by the kind of the new question, not of the given one.
        return Proposal(question, partial(same_answer, question))

    return check_proposal


def start_debates(
    recipe: StepRecipe,
    questions: Sequence[Question],
    name: str,
    check_proposal: CheckProposal | None = None,
) -> list[DebateRun]:
    """Start the debates of questions, each with a seed from the recipe's and its name."""
    named_runs = named_debates(recipe, questions, name, check_proposal=check_proposal)
    return [run for _, run in named_runs]


def named_debates(
    recipe: StepRecipe,
    questions: Sequence[Question],
    name: str,
    first: int = 0,
    check_proposal: CheckProposal | None = None,
) -> list[tuple[str, DebateRun]]:
    """Start the debates of each question, seeded by their ids.

    Args:
        recipe: gives forms, the number of debates for each question, and the seed.
        questions: one group of debates each.
        name: begins the ids, such as `train/3`.
        first: number of the first question.
        check_proposal: checks the questions of agents.

    Returns:
        The id and the run of each debate, by question; single replies after a question's debates.
    """
    forms = [recipe.debate, *recipe.rollout.other_forms]
    # One memory for all debates: those with equal seeds and prompts share first turns.
    shared_turns = SharedTurns() if any(form.shares_turns for form in forms) else None
    num_debates = recipe.rollout.debates_per_question
    num_singles = recipe.rollout.direct_per_question
    single_form = direct_form(recipe.debate) if num_singles else recipe.debate
    runs = []
    for number, question in enumerate(questions, first):
        for copy in range(num_debates + num_singles):
            debate_id = f"{name}/{number}/{copy}"
            form = forms[number % len(forms)] if copy < num_debates else single_form
            run = form.start(
                question,
                seed=zlib.crc32(f"{recipe.seed}/{debate_id}".encode()),
                debate_id=debate_id,
                same_answer=partial(same_answer, question),
                shared_seed=zlib.crc32(f"{recipe.seed}/{name}/{number}".encode()),
                check_proposal=check_proposal,
            )
            if shared_turns is not None and form.shares_turns:
                run = shared_turns.over(run)
            runs.append((debate_id, run))
    return runs
