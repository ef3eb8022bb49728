"""Whether what a phase would imitate or prefer can be learned from."""

from collections.abc import Iterator
from dataclasses import dataclass

from debate_protocol.types import Ask, Reply
from debate_train.checks.check_context import TokenCounter
from debate_train.checks.check_data import many
from debate_train.checks.scripted_debates import hold
from debate_train.checks.step_counts import step_counts
from debate_train.data import DataSource
from debate_train.data.question_source import identity
from debate_train.offline.offline_set import PLAYED
from debate_train.offline.read_debates import read_debates
from debate_train.playing.starts import named_debates
from debate_train.recipe import Recipe
from debate_train.running.imitation import look_at_demonstrations

_TURNS = 128
"""About how many demonstrated turns are looked at."""


def imitation_errors(phase: Recipe) -> Iterator[str]:
    """Yield what is wrong with the phase's loss for the replies that it gets."""
    demonstrated = not phase.rollout.engine.is_sampled
    made_for, offline = phase.loss.learns_from, phase.offline
    if offline is not None:
        if offline.path is None and (problem := offline.problem(phase.debate)):
            yield f"offline.{problem}"
        if made_for != offline.teaches:
            wanted = "dpo" if offline.teaches == "pairs" else "sft"
            yield (
                f"loss.type: found {phase.loss.type} with offline.type {offline.type}, which gives "
                f"{offline.teaches}; expected {wanted}"
            )
        if offline.held_out and offline.teaches != "pairs":
            yield (
                f"offline.held_out: found {offline.held_out} with offline.type {offline.type}, "
                "which gives no pairs to measure a preference on; expected 0, or leave it out"
            )
        if demonstrated and offline.teaches != "demonstrations":
            yield (
                f"rollout.engine.type: found demonstrations with offline.type {offline.type}, "
                "which compares replies of the policy; expected another engine"
            )
        return
    if made_for == "pairs":
        yield (
            f"loss.type: found {phase.loss.type}, which learns from preference pairs, without a "
            "set of them; expected offline: {type: guided_pairs} or answer_pairs"
        )
    if made_for == "demonstrations" and not demonstrated:
        yield (
            f"loss.type: found {phase.loss.type} with replies that {phase.rollout.engine.type} "
            "samples, which it would imitate as they are; expected rollout.engine.type: "
            "demonstrations, or a loss for samples, such as reinforce"
        )
    if demonstrated and made_for != "demonstrations":
        yield (
            f"loss.type: found {phase.loss.type} with demonstrations, which no policy sampled; "
            "expected sft"
        )


def made_of(phase: Recipe) -> str:
    """Return what the examples of a phase are taken from: debates that are played, or of files.

    Raises:
        UsageError: There are no such files.
    """
    offline, rollout = phase.offline, phase.rollout
    assert offline is not None
    if offline.path is not None:
        read = read_debates(offline)
        asked = len({identity(debate.question) for debate in read})
        turns = [turn for debate in read for turn in debate.turns]
        return (
            f"{many(len(read), 'debate')} of {many(asked, 'question')} in {offline.path}; "
            f"{many(len(turns), 'turn')}, {sum(not turn.prompt for turn in turns):,} of them "
            "without the prompt"
        )
    questions = offline.questions or PLAYED
    debates, _, count, *_ = step_counts(phase, questions)
    return (
        f"{many(questions, 'question')} x {many(rollout.debates_per_question, 'debate')} = "
        f"{many(debates, 'debate')}; {many(count, 'turn')}, at most "
        f"{count * rollout.max_tokens:,} tokens in replies"
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """What is wrong with demonstrations that were looked at."""

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def see_demonstrations(phase: Recipe, source: DataSource, counter: TokenCounter) -> Seen:
    """Play some debates of demonstrations and look at what would be imitated.

    Replies are cut at `rollout.max_tokens` where `counter` counts and does not estimate.
    """
    engine = phase.rollout.engine
    script = engine.script(source.demonstrate)
    if script is None or not source.can_demonstrate:
        return Seen()
    most, cut = phase.rollout.max_tokens, 0

    def say(ask: Ask) -> Reply:
        nonlocal cut
        text = script(ask)
        tokens = counter.count(text) if counter.is_exact else 0
        if tokens <= most:
            return Reply(text)
        cut += 1
        return Reply(text[: len(text) * most // tokens], "length")

    copies = {"debates_per_question": 1, "direct_per_question": 0}
    once = phase.model_copy(update={"rollout": phase.rollout.model_copy(update=copies)})
    turns = max(form.turn_count() for form in phase.forms)
    questions = source.batch(0)[: max(len(phase.forms), _TURNS // turns)]
    played = [hold(run, say) for _, run in named_debates(once, questions, "check")]
    found = look_at_demonstrations(played)
    key = "rollout.engine.type: "
    if problem := found.problem(str(phase.debate.contract_rules())):
        return Seen(errors=(key + problem,))
    if found.failed or cut:
        return Seen(
            warnings=(
                f"{key}of {found.turns:,} demonstrated turns {cut:,} are longer than "
                f"rollout.max_tokens and {found.failed:,} hold no readable answer: these weigh "
                "nothing",
            )
        )
    return Seen()
