"""Whether figures can be measured: scripted debates through the modes of an evaluation."""

from collections.abc import Iterator, Sequence

from debate_protocol.types import Question, Transcript
from debate_train.evaluation.measuring import start_debates
from debate_train.evaluation.settings import Setup, full_name
from debate_train.recipe.context import hold
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.signal_check import (
    MOST_TURNS,
    ScriptedAgents,
    quiet_rewards,
    scripted_questions,
)

# With fewer, a figure of some turns alone, such as of changed answers, may be missing by chance.
MOST_QUESTIONS = 4


def figure_warnings(phase: Recipe, *, answers: bool = True) -> Iterator[str]:
    """Yield one sentence for each figure that the phase waits for, and each mode, without values.

    Args:
        phase: The phase.
        answers: Whether questions have answers.
    """
    setup = phase.evaluated()
    num_turns = sum(plays.turns for _, plays in setup.plays())
    if not phase.evaluation.questions or not num_turns or 2 * num_turns > MOST_TURNS:
        return
    num_questions = min(MOST_QUESTIONS, MOST_TURNS // num_turns)
    with quiet_rewards():
        measured = measured_figures(
            setup, scripted_questions(num_questions, answers=answers), phase.rollout.max_tokens
        )
    without = "" if answers else ", and no question has an answer"
    for key, figure in awaited_figures(phase):
        mode = next((name for name in setup.modes if figure in _figures_of(setup, name)), None)
        if figure not in measured and mode is not None:
            yield (
                f"{key}: found {figure}, which has no value in scripted debates of "
                f"evaluation.modes.{mode}{without}; expected one of "
                f"{', '.join(sorted(measured)[:12]) or 'no figure'}"
            )
    for mode in {name: None for name, _ in setup.plays()}:
        if not measured.intersection(_figures_of(setup, mode)):
            yield (
                f"evaluation.modes.{mode}: scripted debates give none of its figures a value"
                f"{without}; expected another form (evaluation.debate), or {mode}: null"
            )


def measured_figures(setup: Setup, questions: Sequence[Question], max_tokens: int) -> set[str]:
    """Play scripted debates of all modes, and find which figures have a value.

    Args:
        setup: Of the evaluation; one run is played.
        questions: What is debated.
        max_tokens: Most tokens of a reply.
    """
    measured: set[str] = set()
    for mode_name, mode in setup.modes.items():
        played: list[list[Transcript]] = []
        for plays in mode.plays(setup.form):
            first, step = plays.share
            debates = start_debates(setup.seed, plays, questions[first::step], "check", 0)
            played.append([])
            for number, debate in enumerate(debates):
                agents = ScriptedAgents(max_tokens, f"{mode_name}/{plays.mark}/{number}")
                played[-1].append(hold(debate, agents))
        if not played:
            continue
        values, ratios = mode.values(played), mode.ratios(played)
        for figures in (values, ratios):
            measured |= {full_name(mode_name, name) for name, found in figures.items() if found}
    return measured


def awaited_figures(phase: Recipe) -> Iterator[tuple[str, str]]:
    """Yield each figure that settings of a phase name, after its key."""
    criterion, keep, best = phase.exit_criterion, phase.keep_if, phase.checkpoint.keep_best
    if criterion is not None:
        yield "exit_criterion.metric", criterion.metric
        for figure in criterion.also_at_least:
            yield "exit_criterion.also_at_least", figure
    if keep is not None:
        yield "keep_if.metric", keep.metric
    if best is not None:
        yield "checkpoint.keep_best.metric", best.metric
    for figure in phase.evaluation.headline or ():
        yield "evaluation.headline", figure


def _figures_of(setup: Setup, mode_name: str) -> set[str]:
    figures = setup.modes[mode_name].figures(setup.form)
    return {full_name(mode_name, figure) for figure in figures}
