"""Faults visible in replies alone: a broken verifier, dead groups, repeats, loops."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from debate_report.number_texts import write_value
from debate_report.page_replies import PageReplies, PageReply

# Replies to one question that are equal by chance are shorter.
SHORTEST_REPEAT = 100
SHORTEST_LOOP = 200
LOOP_CHARS = 32
LOOP_TIMES = 4
# Kernels of sampler and trainer differ by about a tenth of this in bfloat16.
LARGEST_GAP = 0.1


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a file, with the replies as evidence.

    Attributes:
        title: The fault.
        text: How much of it there is.
        replies: Replies with the fault, the clearest first.
        is_severe: Whether training on these replies is likely to go wrong.
    """

    title: str
    text: str
    replies: Sequence[PageReply]
    is_severe: bool


def faults_of(page: PageReplies) -> list[Fault]:
    """List the faults of all replies, severe faults first."""
    faults: list[Fault] = []
    for check in CHECKS:
        faults += check(page)
    return sorted(faults, key=lambda fault: not fault.is_severe)


def dead_groups(page: PageReplies) -> list[list[PageReply]]:
    """List the groups of several replies with equal values: no reply is better."""
    dead = []
    for replies in page.groups().values():
        rewards = [reply.reward for reply in replies if reply.reward is not None]
        if len(rewards) > 1 and len(set(rewards)) == 1:
            dead.append(replies)
    return dead


def middle_reward(replies: Sequence[PageReply]) -> float | None:
    """Compute the middle between the lowest and the highest reward; `None` where all are equal."""
    rewards = [reply.reward for reply in replies if reply.reward is not None]
    if not rewards or min(rewards) == max(rewards):
        return None
    return (min(rewards) + max(rewards)) / 2


def is_paid(reply: PageReply, middle: float | None) -> bool | None:
    """Whether a reply earned more than the middle; the file's verdict where unknown."""
    if reply.reward is None or middle is None:
        return reply.file_verdict
    return reply.reward > middle


def _verifier(page: PageReplies) -> Iterator[Fault]:
    """Find replies with a reward, or a verdict of the file, against our own verdict."""
    middle = middle_reward(page.replies)
    checked = [reply for reply in page.replies if reply.our_verdict is not None]
    wrong_and_paid = []
    right_and_unpaid = []
    for reply in checked:
        opinions = (is_paid(reply, middle), reply.file_verdict)
        if not reply.our_verdict and True in opinions:
            wrong_and_paid.append(reply)
        if reply.our_verdict and False in opinions:
            right_and_unpaid.append(reply)
    for title, replies in (
        ("Paid although wrong", wrong_and_paid),
        ("Not paid although right", right_and_unpaid),
    ):
        if replies:
            yield Fault(
                title,
                f"{_part(replies, checked)} that we can check. Either the verifier is broken, or "
                "we read another answer than it does.",
                replies,
                is_severe=True,
            )


def _dead_groups(page: PageReplies) -> Iterator[Fault]:
    dead = dead_groups(page)
    num_compared = sum(len(replies) > 1 for replies in page.groups().values())
    if not dead:
        return
    replies: list[PageReply] = []
    num_right = 0
    num_wrong = 0
    for group in dead:
        replies += group
        verdicts = {reply.is_right for reply in group}
        num_right += verdicts == {True}
        num_wrong += verdicts == {False}
    length = sum(map(page.length, replies))
    share = length / max(1, sum(map(page.length, page.replies)))
    yield Fault(
        "Dead groups",
        f"{len(dead):,} of {num_compared:,} groups: all replies earn the same ({num_right:,} all "
        f"right, {num_wrong:,} all wrong). Their {length:,} {page.unit} "
        f"({write_value(share, 'share')}) have no advantage over each other.",
        [group[0] for group in dead],
        is_severe=2 * len(dead) > num_compared,
    )


def _stale(page: PageReplies) -> Iterator[Fault]:
    """Find replies of older weights than the newest weights of their step."""
    lags: dict[int, int] = {}
    for step_replies in page.steps().values():
        versions = [reply.version for reply in step_replies if reply.version is not None]
        for reply in step_replies:
            if reply.version is not None and reply.version < max(versions):
                lags[reply.number] = max(versions) - reply.version
    stale = [reply for reply in page.replies if reply.number in lags]
    if stale:
        stale.sort(key=lambda reply: -lags[reply.number])
        yield Fault(
            "Stale weights",
            f"{_part(stale, page.replies)} come from older weights than the newest of their step, "
            f"by up to {max(lags.values()):,}.",
            stale,
            is_severe=False,
        )


def _logprobs(page: PageReplies) -> Iterator[Fault]:
    known = [(reply.logprob_gap, reply) for reply in page.replies if reply.logprob_gap is not None]
    far = [(gap, reply) for gap, reply in known if gap > LARGEST_GAP]
    if far:
        far.sort(key=lambda pair: -pair[0])
        yield Fault(
            "Mismatched log-probabilities",
            f"{_part(far, known)}: sampler and trainer differ by more than {LARGEST_GAP} a token, "
            f"at most by {far[0][0]:.3g}. Temperature, template, weights or kernels are not the "
            "same.",
            [reply for _, reply in far],
            is_severe=True,
        )


def _repeats(page: PageReplies) -> Iterator[Fault]:
    repeats = []
    for replies in page.groups().values():
        texts: set[str] = set()
        for reply in replies:
            if len(reply.text) >= SHORTEST_REPEAT and reply.text in texts:
                repeats.append(reply)
            texts.add(reply.text)
    if repeats:
        yield Fault(
            "Repeated replies",
            f"{_part(repeats, page.replies)} equal another reply of their group word for word. "
            "Seeds repeat, a log was written twice, or the policy has no entropy left.",
            repeats,
            is_severe=True,
        )


def _by_reply(
    title: str, text: str, has_fault: Callable[[PageReply], bool]
) -> Callable[[PageReplies], Iterator[Fault]]:
    """Build the check of a fault visible in each reply alone."""

    def check(page: PageReplies) -> Iterator[Fault]:
        replies = [reply for reply in page.replies if has_fault(reply)]
        if replies:
            yield Fault(title, f"{_part(replies, page.replies)}{text}", replies, is_severe=False)

    return check


def ends_in_a_loop(text: str) -> bool:
    """Whether a long text repeats the last characters."""
    return len(text) >= SHORTEST_LOOP and text.count(text[-LOOP_CHARS:]) >= LOOP_TIMES


def _part(some: Sequence[object], of_all: Sequence[object]) -> str:
    share = write_value(len(some) / len(of_all), "share")
    return f"{len(some):,} of {len(of_all):,} replies ({share})"


CHECKS: tuple[Callable[[PageReplies], Iterator[Fault]], ...] = (
    _verifier,
    _logprobs,
    _repeats,
    _dead_groups,
    _stale,
    _by_reply("Failed replies", " were not sampled.", lambda reply: bool(reply.failure)),
    _by_reply("Truncated replies", " were cut at their token limit.", lambda reply: reply.is_cut),
    _by_reply(
        "Empty replies", " have no text.", lambda reply: not (reply.failure or reply.text.strip())
    ),
    _by_reply("Loops", " end in a loop.", lambda reply: ends_in_a_loop(reply.text)),
)
