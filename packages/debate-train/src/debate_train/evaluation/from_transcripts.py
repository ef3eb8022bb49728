"""Every figure that finished transcripts allow, and what the others would need."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from debate_protocol.parsing import get_contract
from debate_protocol.transcripts.files import mean_logp
from debate_protocol.types import Transcript
from debate_train.evaluation.mode import Curves, debate_curves, most_replies, reply_curves

if TYPE_CHECKING:
    from debate_rewards.estimates import Estimate

__all__ = ["TranscriptFigures", "figures_of_transcripts"]

ByQuestion = dict[str, dict[str, float]]
"""Figure → question id → value."""


@dataclass(frozen=True, slots=True)
class TranscriptFigures:
    """What transcripts show.

    Attributes:
        found: Each figure with its interval over questions. Those of single replies begin with
            `replies/`, those of debates have the names of `debate_rewards.metrics`.
        values: Of those that are means over questions, the value of each question.
        curves: Accuracy beside sampled tokens; names begin with `replies/` or `debate/`.
        left_out: Each figure that the transcripts do not allow, with the reason.
        replies: Transcripts of a single turn.
        debates: The others.
    """

    found: "Mapping[str, Estimate]"
    values: Mapping[str, Mapping[str, float]]
    curves: Curves
    left_out: Mapping[str, str]
    replies: int
    debates: int


def figures_of_transcripts(transcripts: Sequence[Transcript], seed: int = 0) -> TranscriptFigures:
    """Return every figure that transcripts allow.

    A transcript of one turn is a single reply; several of one question (by its id) are samples of
    it, and K is the least number of replies that a question has, at most `MOST_REPLIES`. A number
    `reward` in `meta` is averaged, too. A debate that cannot be measured counts in `unmeasured`
    alone.

    Args:
        transcripts: Finished debates and replies, of one policy.
        seed: Draws among equals in decisions, and resamples.
    """
    from debate_rewards.metrics import debate_statistics, question_values

    replies = [one for one in transcripts if len(one.turns) == 1]
    debates = [one for one in transcripts if len(one.turns) != 1]
    lines = dict(debate_curves(_readable(debates)))
    read = _readable(replies)
    of_replies = reply_curves(read, most_replies(read)) if read else {}
    lines |= {f"replies/{name}": points for name, points in of_replies.items()}
    own = _reply_values(replies, of_replies, seed) | _rewards(transcripts)
    found = {**debate_statistics(debates, seed), **_lengths(replies, seed), **_means(own, seed)}
    left_out = {
        figure: reason
        for figure, reason in _missing(replies, debates)
        if not any(name == figure or name.startswith(f"{figure}/") for name in found)
    }
    values = {**question_values(debates, seed), **own}
    return TranscriptFigures(found, values, lines, left_out, len(replies), len(debates))


def _readable(transcripts: Sequence[Transcript]) -> list[Transcript]:
    """Return the transcripts that can be measured; `debate_metrics` counts the others."""
    from debate_rewards.metrics import question_values

    broken = question_values(transcripts).get("unmeasured", {})
    if not any(broken.values()):
        return list(transcripts)
    one_by_one = [question_values([one]).get("unmeasured", {}) for one in transcripts]
    return [one for one, its in zip(transcripts, one_by_one, strict=True) if not any(its.values())]


def _reply_values(replies: Sequence[Transcript], curves: Curves, seed: int) -> ByQuestion:
    from debate_rewards.metrics import question_values

    if not replies:
        return {}
    known = question_values(replies, seed)
    names = {"correct": "accuracy", "format": "format", "tokens/answer": "tokens/answer"}
    names |= {"unverifiable": "unverifiable", "unmeasured": "unmeasured"}
    found = {f"replies/{ours}": known[theirs] for theirs, ours in names.items() if theirs in known}
    for name, points in curves.items():
        for point in points:
            found[f"replies/{name.removesuffix('k')}{point.x}"] = dict(point.values)
    return {name: own for name, own in found.items() if own}


def _rewards(transcripts: Sequence[Transcript]) -> ByQuestion:
    """Return the mean reward of each question, where files say one."""
    given: dict[str, list[float]] = {}
    for one in transcripts:
        reward = one.meta.get("reward")
        if isinstance(reward, int | float):
            given.setdefault(one.question.id, []).append(reward)
    return {"reward": {q: fmean(own) for q, own in given.items()}} if given else {}


def _means(values: ByQuestion, seed: int) -> "dict[str, Estimate]":
    from debate_rewards.estimates import Estimate, bootstrap_interval, range_of

    found = {}
    for name, own in values.items():
        within = (0.0, 1.0) if "@" in name else range_of(name)
        ends = bootstrap_interval(list(own.values()), seed, within=within)
        found[name] = Estimate(*ends, len(own))
    return found


def _lengths(replies: Sequence[Transcript], seed: int) -> "dict[str, Estimate]":
    """Return the lengths of right and wrong replies, which are ratios over all questions."""
    from debate_rewards.metrics import debate_statistics

    names = [f"{side}/{unit}" for side in ("right", "wrong") for unit in ("tokens", "characters")]
    known = debate_statistics(replies, seed)
    rounds = {name: f"{name}/round_0" for name in names}
    return {f"replies/{name}": known[its] for name, its in rounds.items() if its in known}


def _missing(
    replies: Sequence[Transcript], debates: Sequence[Transcript]
) -> Iterator[tuple[str, str]]:
    """Yield each figure with what it needs, which is the reason where it is not found."""
    truth = "no question with a usable right answer (question.answer)"
    counts = 'turns without "tokens": [prompt tokens, sampled tokens]'
    if not replies:
        none = "no transcript of a single turn"
        yield from ((f"replies/{name}", none) for name in ("accuracy", "maj@1", "pass@1", "cons@1"))
    else:
        yield from ((f"replies/{name}", truth) for name in ("accuracy", "maj@1", "pass@1"))
        yield "replies/maj@2", "a question with a single reply, or " + truth
        yield "replies/tokens/answer", counts
    if not debates:
        yield "maj", "no transcript of several turns; so are all other figures of debates"
        return
    several = any(turn.round for one in debates for turn in one.turns)
    later = truth if several else "no debate of several rounds"
    yield from ((name, truth) for name in ("accuracy", "maj/first", "correct", "decision"))
    yield from ((name, later) for name in ("maj/delta", "drift", "flips"))
    yield "improvement", f"{later}, or no right answer in a first round" if several else later
    yield from ((name, truth) for name in ("right/characters", "wrong/characters"))
    yield from ((name, counts) for name in ("tokens/answer", "agreement/tokens_saved"))
    yield from ((name, f"{counts}, or no such reply") for name in ("right/tokens", "wrong/tokens"))
    twice = "no question with two debates of several agents, or " + truth
    yield "rho", f"{twice}, or answers that never vary"
    yield "n_eff", f"{twice}, or agents less alike than independent ones"
    central = any(one.protocol.topology == "central" for one in debates)
    for name in ("central", "decision/central"):
        yield name, truth if central else "no debate of topology central"
    known = any(mean_logp(turn) is not None for one in debates for turn in one.turns)
    needed = truth if known else 'turns without "mean_logp", the mean log-probability'
    yield "decision/confidence", needed
    yield from _missing_votes(debates, truth)


def _missing_votes(debates: Sequence[Transcript], truth: str) -> Iterator[tuple[str, str]]:
    compares = any(
        "comparison" in get_contract(one.protocol.contract).sections for one in _readable(debates)
    )
    votes = "no votes" if compares else "a contract without comparisons"
    yield "judge/equal_share", votes
    yield "comparisons_made", "nobody is shown two answers to compare" if compares else votes
    yield "judge/accuracy", f"{votes} on a right and a wrong turn, or {truth}"
    unlike = f"nobody is shown a right and a wrong turn to compare, or {truth}"
    yield "judge/owed_accuracy", unlike if compares else votes
    yield "winner_truth_correlation", f"{votes} that vary, or {truth}"
    yield "decision/bradley_terry", truth if compares else votes
    yield "judge/both_orders", "needs new replies: an evaluation with the mode swapped_judging"
