"""What figures need of replies, kept in turns: replies themselves are not written to files."""

from dataclasses import replace

from debate_protocol.types import TOKENS, Transcript, Turn

__all__ = ["MEAN_LOGP", "mean_logp", "with_counts"]

MEAN_LOGP = "mean_logp"
"""Key of `Turn.extra` for the mean log-probability of the sampled tokens."""


def mean_logp(turn: Turn) -> float | None:
    """Return the mean log-probability of a turn's sampled tokens, None where it is not known.

    It is natural, and under the distribution that was sampled from; its exponential is the
    geometric mean of the tokens' probabilities.
    """
    if turn.reply is not None:
        logps = turn.reply.logps
        return sum(logps) / len(logps) if logps else None
    known = turn.extra.get(MEAN_LOGP)
    return float(known) if isinstance(known, int | float) else None


def with_counts(transcript: Transcript) -> Transcript:
    """Return a transcript with the numbers of tokens and their mean log-probability in its turns.

    They stand in `Turn.extra`, as `tokens` ([prompt tokens, sampled tokens]) and `mean_logp`, of
    every turn that holds its reply. What stands beside the turns stays as it is.
    """
    turns = []
    for turn in transcript.turns:
        kept: dict[str, object] = {}
        if turn.reply is not None and turn.token_counts is not None:
            kept[TOKENS] = [*turn.token_counts]
            known = mean_logp(turn)
            kept |= {} if known is None else {MEAN_LOGP: known}
        turns.append(replace(turn, extra={**turn.extra, **kept}) if kept else turn)
    return replace(transcript, turns=tuple(turns))
