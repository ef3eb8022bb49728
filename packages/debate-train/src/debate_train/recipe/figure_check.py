"""Whether figures can be measured: scripted debates through the modes of an evaluation."""

from collections.abc import Iterator, Sequence

from debate_protocol.types import Question, Transcript
from debate_train.errors import errors_only
from debate_train.evaluation.measuring import start_debates
from debate_train.evaluation.settings import Setup, full_name
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.scripted_debates import (
    MAX_TURNS,
    ScriptedAgents,
    play_debate,
    scripted_questions,
)

# With fewer, a figure of some turns alone, such as of changed answers, may be missing by chance.
MAX_QUESTIONS = 4
MAX_NAMED_FIGURES = 12


def figure_warnings(phase: Recipe, *, answers: bool = True) -> Iterator[str]:
    """Yield a sentence for each awaited figure and each mode without values.

    Args:
        phase: The phase.
        answers: Whether questions have answers.
    """
    setup = phase.evaluated()
    num_turns = sum(plays.turns for _, plays in setup.plays())
    if not phase.evaluation.questions or not num_turns or 2 * num_turns > MAX_TURNS:
        return
    num_questions = min(MAX_QUESTIONS, MAX_TURNS // num_turns)
    # Rewards warn of questions that they leave out, and these are made up.
    with errors_only("debate_rewards"):
        measured = measured_figures(
            setup, scripted_questions(num_questions, answers=answers), phase.rollout.max_tokens
        )
    cause = "" if answers else ", and no question has an answer"
    figures_by_mode = {mode: _figures_of(setup, mode) for mode in setup.modes}
    for key, figure in awaited_figures(phase):
        modes = [mode for mode, figures in figures_by_mode.items() if figure in figures]
        if modes and figure not in measured:
            yield (
                f"{key}: found {figure}, which has no value in scripted debates of "
                f"evaluation.modes.{modes[0]}{cause}; expected one of "
                f"{', '.join(sorted(measured)[:MAX_NAMED_FIGURES]) or 'no figure'}"
            )
    playing_modes = dict.fromkeys(mode for mode, _ in setup.plays())
    for mode in playing_modes:
        if measured.isdisjoint(figures_by_mode[mode]):
            yield (
                f"evaluation.modes.{mode}: scripted debates give none of its figures a value"
                f"{cause}; expected another form (evaluation.debate), or {mode}: null"
            )


def measured_figures(setup: Setup, questions: Sequence[Question], max_tokens: int) -> set[str]:
    """Play scripted debates of all modes, and find the figures with values.

    Args:
        setup: The setup of the evaluation; plays a single run.
        questions: The debated questions.
        max_tokens: Most tokens of a reply.
    """
    measured: set[str] = set()
    for mode_name, mode in setup.modes.items():
        played: list[list[Transcript]] = []
        for plays in mode.plays(setup.form):
            first, step = plays.share
            debates = start_debates(setup.seed, plays, questions[first::step], "check", 0)
            transcripts = []
            for number, debate in enumerate(debates):
                agents = ScriptedAgents(max_tokens, f"{mode_name}/{plays.mark}/{number}")
                transcripts.append(play_debate(debate, agents))
            played.append(transcripts)
        if not played:
            continue
        for figures in (mode.values(played), mode.ratios(played)):
            for figure, values in figures.items():
                if values:
                    measured.add(full_name(mode_name, figure))
    return measured


def awaited_figures(phase: Recipe) -> Iterator[tuple[str, str]]:
    """Yield each figure named by settings of a phase, after the key."""
    criterion = phase.exit_criterion
    if criterion is not None:
        yield "exit_criterion.metric", criterion.metric
        for figure in criterion.also_at_least:
            yield "exit_criterion.also_at_least", figure
    if phase.keep_if is not None:
        yield "keep_if.metric", phase.keep_if.metric
    keep_best = phase.checkpoint.keep_best
    if keep_best is not None:
        yield "checkpoint.keep_best.metric", keep_best.metric
    for figure in phase.evaluation.headline or ():
        yield "evaluation.headline", figure


def _figures_of(setup: Setup, mode_name: str) -> set[str]:
    figures = setup.modes[mode_name].figures(setup.form)
    return {full_name(mode_name, figure) for figure in figures}
