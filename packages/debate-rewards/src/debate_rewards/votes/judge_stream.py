"""The judge stream: what each turn earns for its comparisons, from the values of its votes."""

from collections.abc import Mapping, Sequence

from debate_protocol.parsing.tags import Range
from debate_protocol.types import TurnKey
from debate_rewards.credits import Credit
from debate_rewards.reading import ReadDebate
from debate_rewards.rewards.spans import JudgeCredit, span_credits
from debate_rewards.votes.ballots import Ballot

JUDGE = "judge"
"""The stream's name."""


def judge_credits(
    debate: ReadDebate,
    cast: Mapping[TurnKey, Ballot],
    values: Sequence[float | None],
    *,
    judge_credit: JudgeCredit,
    format_penalty: float | None,
    centred: bool = False,
) -> list[Credit]:
    """Return each valid turn's judge value, followed by those of its lines and parts.

    A turn's value is the mean over its valued votes, or the format penalty where comparisons were
    owed and none counted. A failed turn has none.

    Args:
        debate: The debate.
        cast: The ballot of each of its turns.
        values: The value of each vote, in the order of the ballots.
        judge_credit: Where values go in a turn's text.
        format_penalty: None for no penalty. Where lines have values of their own, those that do
            not count are worth it, too, and the end of a section that leaves out owed pairs.
        centred: Whether a habit already earns 0, so that no baseline is taken off by default.
    """
    credits: list[Credit] = []
    start = 0
    for key, ballot in cast.items():
        end = start + len(ballot.votes)
        own, start = values[start:end], end
        turn = debate.judges[key]
        if turn.failed:
            continue
        valued = [value for value in own if value is not None]
        penalty = ballot.missing and format_penalty is not None
        value = format_penalty if penalty else sum(valued) / len(valued) if valued else None
        whole = Credit(
            *key, JUDGE, value, penalty=penalty, expected=ballot.owed > 0, centred=centred
        )
        credits.append(whole)
        if judge_credit != "block" and not penalty:
            lines = list(zip(ballot.votes, own, strict=True))
            without_vote: list[tuple[Range, float | None]] = [
                *((span, None) for span in ballot.failed),
                *((span, format_penalty) for span in ballot.uncounted),
            ]
            if 0 < len({vote.pair for vote in ballot.votes}) < ballot.owed:
                # Ending here is what left pairs out; the mean of those made would pay for it.
                section = turn.parsed.sections["comparison"]
                without_vote.append(((section.span[1], section.outer[1]), format_penalty))
            credits += span_credits(turn, whole, lines, judge_credit, without_vote)
    return credits
