"""How the pairs of a set split into right and wrong: what is chosen, and what it is said about.

A critic that is always chosen when it says no learns to say no, whatever it is asked about.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from debate_protocol.parsing.replies import parse_turn, turn_failed
from debate_protocol.roles import gives_answers
from debate_protocol.types import Transcript, Turn
from debate_rewards.answers.checking import check_many, same_answer
from debate_train.offline.example import Example

_LEAST = 0.2
"""Share of the pairs that each side should have at least."""
_SHARES = {
    "chosen_right": "offline/chosen_right_share",
    "rejected_right": "offline/rejected_right_share",
    "chosen_ok": "offline/chosen_ok_share",
    "actor_right": "offline/actor_right_share",
}
"""What `meta` of a pair says, and the metric of the pairs of which it is true."""
_SIDES = (
    ("offline/chosen_ok_share", "chosen replies that agree with the actor"),
    ("offline/actor_right_share", "answers under review that are right"),
)


@dataclass(frozen=True, slots=True)
class Pair:
    """A pair as an example, and the turns that it is made of.

    `reviewed` is the actor's last turn before them, which a critic's pair is about.
    """

    transcript: Transcript
    chosen: Turn
    rejected: Turn
    example: Example
    reviewed: Turn | None = None

    def answers(self) -> tuple[str | None, str | None, str | None]:
        """Return the answers of the chosen and the rejected reply, and that under review.

        A critic that names no answer stands for the actor's, if the other reply names one; where
        neither does, as in prose, it is not known what they stand for.
        """
        reviewed = None if self.reviewed is None else _answer(self.transcript, self.reviewed)
        own = [_answer(self.transcript, turn) for turn in (self.chosen, self.rejected)]
        if any(own) and not gives_answers(self.transcript.protocol, self.chosen.agent):
            own = [answer or reviewed for answer in own]
        return own[0], own[1], reviewed


def composed(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield the pairs; `meta` says which of their answers are right, None where it is not known."""
    answers = [pair.answers() for pair in pairs]
    asked = zip(pairs, answers, strict=True)
    verdicts = iter(check_many([(p.transcript.question, a) for p, own in asked for a in own]))
    for pair, own in zip(pairs, answers, strict=True):
        question = pair.transcript.question
        judged = [(answer, next(verdicts).verdict) for answer in own]
        right = [
            None if answer is None or verdict == "unverifiable" else verdict == "right"
            for answer, verdict in judged
        ]
        is_critic = not gives_answers(pair.transcript.protocol, pair.chosen.agent)
        agrees = None
        if is_critic and own[0] is not None and own[2] is not None:
            agrees = same_answer(question, own[0], own[2])
        said = dict(zip(_SHARES, (right[0], right[1], agrees, right[2]), strict=True))
        yield replace(pair, example=replace(pair.example, meta={**pair.example.meta, **said}))


def composition(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return how pairs split, and by how much their values differ, of examples as they are kept."""
    metas = [row["meta"] for row in rows if "rejected" in row]
    found = {}
    for key, name in _SHARES.items():
        known = [meta[key] for meta in metas if meta.get(key) is not None]
        if known:
            found[name] = fmean(known)
    for name, wanted in (
        ("", (True, False, None)),
        ("_actor_right", (True,)),
        ("_actor_wrong", (False,)),
    ):
        gains = [m["gain"] for m in metas if "gain" in m and m.get("actor_right") in wanted]
        if gains:
            found[f"offline/margin{name}"] = fmean(gains)
    return found


def one_sided(metrics: Mapping[str, float]) -> list[str]:
    """Return in words of what a set has too few pairs, or too many, to teach when to say which."""
    return [
        f"{share:.0%} of the pairs have {what}; expected {_LEAST:.0%} to {1 - _LEAST:.0%}, or the "
        "role learns to say the same of all answers"
        for name, what in _SIDES
        if (share := metrics.get(name)) is not None and not _LEAST <= share <= 1 - _LEAST
    ]


def _answer(transcript: Transcript, turn: Turn) -> str | None:
    owes = gives_answers(transcript.protocol, turn.agent)
    failed = owes and turn_failed(transcript, turn)
    return None if failed else parse_turn(transcript, turn).answer
