"""Whether a phase's loss fits the replies: sampled, demonstrated, or of an offline set."""

from collections.abc import Iterator

from debate_protocol.types import Reply, TurnRequest
from debate_train.data import DataSource
from debate_train.data.demonstrations import is_bare
from debate_train.data.splits import identity
from debate_train.offline.example_set import harm_of, look_at_demonstrations, read_debates
from debate_train.offline.offline_set import PLAYED, OfflineSettings
from debate_train.playing import check_of, start_debates
from debate_train.recipe.context import TokenCounter
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.scripted_debates import play_debate
from debate_train.recipe.step_counts import many, step_counts

NUM_DEMONSTRATED_TURNS = 128
"""About as many demonstrated turns are played by a check."""


def imitation_errors(phase: Recipe) -> Iterator[str]:
    """Yield conflicts between the phase's loss and replies."""
    is_demonstrated = not phase.rollout.engine.is_sampled
    loss = phase.loss.type
    learns_from = phase.loss.learns_from
    if phase.offline is not None:
        yield from _offline_errors(phase, phase.offline, is_demonstrated)
    elif learns_from == "pairs":
        yield (
            f"loss.type: found {loss}, which learns from preference pairs, without a set of them; "
            "expected offline: {type: guided_pairs} or answer_pairs"
        )
    elif learns_from == "demonstrations" and not is_demonstrated:
        yield (
            f"loss.type: found {loss} with replies that {phase.rollout.engine.type} samples; "
            "expected rollout.engine.type: demonstrations, or a loss such as reinforce"
        )
    if phase.offline is None and is_demonstrated and learns_from != "demonstrations":
        yield f"loss.type: found {loss} with demonstrations; expected sft"


def _offline_errors(
    phase: Recipe, offline: OfflineSettings, is_demonstrated: bool
) -> Iterator[str]:
    if offline.path is None:
        problem = offline.problem(phase.debate)
        if problem:
            yield f"offline.{problem}"
    cause = f"with offline.type {offline.type}, which"
    if phase.loss.learns_from != offline.teaches:
        expected_loss = "dpo" if offline.teaches == "pairs" else "sft"
        yield (
            f"loss.type: found {phase.loss.type} {cause} gives {offline.teaches}; expected "
            f"{expected_loss}"
        )
    if offline.held_out and offline.teaches != "pairs":
        yield f"offline.held_out: found {offline.held_out} {cause} gives no pairs; expected 0"
    if is_demonstrated and offline.teaches != "demonstrations":
        yield (
            f"rollout.engine.type: found demonstrations {cause} compares sampled replies; expected "
            "another engine"
        )


def examples_text(phase: Recipe, offline: OfflineSettings) -> str:
    """Describe the source of a phase's examples: played debates, or files.

    Raises:
        UsageError: There are no such files.
    """
    if offline.path is not None:
        debates = read_debates(offline)
        num_questions = len({identity(debate.question) for debate in debates})
        turns = [turn for debate in debates for turn in debate.turns]
        num_without_prompt = sum(not turn.prompt for turn in turns)
        return (
            f"{many(len(debates), 'debate')} of {many(num_questions, 'question')} in "
            f"{offline.path}; {many(len(turns), 'turn')}, {num_without_prompt:,} of them "
            "without the prompt"
        )
    num_questions = offline.questions or PLAYED
    counts = step_counts(phase, num_questions)
    per_question = phase.rollout.debates_per_question
    return (
        f"{many(num_questions, 'question')} x {many(per_question, 'debate')} = "
        f"{many(counts.debates, 'debate')}; {many(counts.turns, 'turn')}, at most "
        f"{counts.turns * phase.rollout.max_tokens:,} tokens in replies"
    )


def check_demonstrations(
    phase: Recipe, source: DataSource, counter: TokenCounter
) -> tuple[str | None, str | None]:
    """Play some debates of demonstrations.

    Replies are cut at `rollout.max_tokens` if `counter` counts and does not estimate.

    Returns:
        An error in the demonstrations, and a warning of turns without weight.
    """
    script = phase.rollout.engine.script(source.demonstrate)
    if script is None or not source.can_demonstrate:
        return None, None
    max_tokens = phase.rollout.max_tokens

    def reply_to(request: TurnRequest) -> Reply:
        text = script(request)
        num_tokens = counter.count(text) if counter.is_exact else 0
        if num_tokens <= max_tokens:
            return Reply(text)
        return Reply(text[: len(text) * max_tokens // num_tokens], "length")

    copies = {"debates_per_question": 1, "direct_per_question": 0}
    rollout = phase.rollout.model_copy(update=copies)
    one_copy = phase.model_copy(update={"rollout": rollout})
    num_turns = max(form.turn_count() for form in phase.forms)
    num_questions = max(len(phase.forms), NUM_DEMONSTRATED_TURNS // num_turns)
    questions = source.batch(0)[:num_questions]
    runs = start_debates(one_copy, questions, "check", check_of(source))
    debates = [play_debate(run, reply_to) for run in runs]

    turn_counts = look_at_demonstrations(debates)
    error = harm_of(turn_counts, str(phase.debate.contract_rules()))
    warning = None
    if error:
        error = f"rollout.engine.type: {error}"
    elif num_turns == 1 and all(is_bare(debate.turns[0].text) for debate in debates):
        warning = (
            "rollout.engine.type: demonstrated answers have no reasoning; expected a solution in "
            "every row (data.fields.solution), or the model's own (rollout.engine.accepted)"
        )
    elif turn_counts["failed"]:
        warning = (
            f"rollout.engine.type: of {turn_counts['turns']:,} demonstrated turns "
            f"{turn_counts['failed']:,} hold no readable answer within rollout.max_tokens: these "
            "weigh nothing"
        )
    return error, warning
