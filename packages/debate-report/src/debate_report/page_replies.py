"""Replies of other programs' files, each with what its file and our checker say of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from debate_protocol.types import Transcript
from debate_report.debates import CHECKED_HERE, Recorded
from debate_report.imports.rollout import DESCRIBING_KEYS, VERDICTS
from debate_report.json_values import finite

RIGHTNESS = {verdict: is_right for is_right, verdict in VERDICTS.items()}

GroupKey = tuple[int | None, str]
"""Step, and the file's name of the group or the question."""


@dataclass(frozen=True, slots=True)
class PageReply:
    """One reply; what is not known is `None`.

    Attributes:
        number: Its place in the page's list of replies.
        question: Text of the question.
        group: The replies with which a trainer compares it.
        text: The reply.
        answer: The answer that we read in it.
        gold: The right answer of the file.
        reward: What the trainer used.
        scores: All other numbers of the file: parts of the reward, and metrics.
        file_verdict: The file's own verdict.
        verdict_by: The score of the file that gives its verdict.
        our_verdict: Ours, where the reply's answer and the gold answer can be read.
        advantage: What the trainer made of the reward.
        num_tokens: Sampled tokens.
        version: Version of the weights that sampled it.
        logprob_gap: Mean distance of the trainer's and the sampler's log-probabilities of a token.
        is_cut: Whether it ended at its token limit.
        failure: Why sampling failed; empty where it did not.
        caveats: What a reader of its file's figures has to know, in sentences.
    """

    number: int
    question: str
    group: GroupKey
    text: str
    answer: str | None
    gold: str | None
    reward: float | None
    scores: Mapping[str, float]
    file_verdict: bool | None
    verdict_by: str
    our_verdict: bool | None
    advantage: float | None
    num_tokens: int | None
    version: int | None
    logprob_gap: float | None
    is_cut: bool
    failure: str
    caveats: Sequence[str]

    @property
    def step(self) -> int | None:
        """Training step."""
        return self.group[0]

    @property
    def is_right(self) -> bool | None:
        """The file's verdict, else ours."""
        return self.our_verdict if self.file_verdict is None else self.file_verdict


@dataclass(frozen=True, slots=True)
class PageReplies:
    """All replies of a page, and how their lengths are counted."""

    replies: Sequence[PageReply]
    unit: Literal["tokens", "characters"]

    def length(self, reply: PageReply) -> int:
        """Count a reply's tokens, or its characters where the file does not count tokens."""
        if self.unit == "tokens":
            return reply.num_tokens or 0
        return len(reply.text)

    def groups(self) -> dict[GroupKey, list[PageReply]]:
        """Collect the replies of each group, in the order of the file."""
        groups: dict[GroupKey, list[PageReply]] = {}
        for reply in self.replies:
            groups.setdefault(reply.group, []).append(reply)
        return groups

    def steps(self) -> dict[int | None, list[PageReply]]:
        """Collect the replies of each step in order; replies without a step come last."""
        steps: dict[int | None, list[PageReply]] = {}
        for reply in self.replies:
            steps.setdefault(reply.step, []).append(reply)
        return dict(sorted(steps.items(), key=lambda item: (item[0] is None, item[0] or 0)))


def page_replies_of(recorded: Sequence[Recorded]) -> PageReplies:
    """Select the single replies of other programs' files; debates of several agents are none."""
    replies = []
    for number, debate in enumerate(recorded):
        if debate.imported and debate.transcript.protocol.num_agents == 1:
            replies.append(_page_reply(number, debate))
    sampled = [reply for reply in replies if not reply.failure]
    has_tokens = bool(sampled) and all(reply.num_tokens is not None for reply in sampled)
    return PageReplies(replies, "tokens" if has_tokens else "characters")


def _page_reply(number: int, debate: Recorded) -> PageReply:
    transcript = debate.transcript
    meta = transcript.meta
    turn = transcript.turns[-1] if transcript.turns else None
    answer, our_verdict = debate.decisions.get(CHECKED_HERE, (None, None))
    step = _whole(meta.get("step"))
    failure = "no reply" if turn is None else turn.failure or ""
    return PageReply(
        number=number,
        question=transcript.question.text,
        group=(step, str(meta.get("group") or transcript.question.id)),
        text="" if turn is None else turn.text,
        answer=answer,
        gold=transcript.question.answer,
        reward=finite(meta.get("reward")),
        scores=_scores(meta),
        file_verdict=RIGHTNESS.get(str(meta.get("verdict"))),
        verdict_by=str(meta.get("verdict_by", "")),
        our_verdict=RIGHTNESS.get(str(our_verdict)),
        advantage=finite(meta.get("advantage")),
        num_tokens=_num_tokens(transcript),
        version=_whole(meta.get("version")),
        logprob_gap=finite(meta.get("logprob_gap")),
        is_cut=meta.get("finish") == "length",
        failure=failure,
        caveats=_texts(meta.get("caveats")),
    )


def _scores(meta: Mapping[str, object]) -> dict[str, float]:
    scores = {}
    for name, value in meta.items():
        score = None if name in DESCRIBING_KEYS else finite(value)
        if score is not None:
            scores[name] = score
    return scores


def _num_tokens(transcript: Transcript) -> int | None:
    """Add up the sampled tokens of all turns; `None` where one is not counted."""
    counts = [turn.token_counts for turn in transcript.turns]
    if not counts or None in counts:
        return None
    return sum(count[1] for count in counts if count is not None)


def _texts(values: object) -> list[str]:
    return [str(value) for value in values] if isinstance(values, list) else []


def _whole(value: object) -> int | None:
    number = finite(value)
    return None if number is None else int(number)
