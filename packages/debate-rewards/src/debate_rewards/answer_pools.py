"""Votes pooled by answer: a vote on a turn values every turn with the same final answer.

For a turn t of agent i, over the votes of a debate that i did not cast:

    for(t), against(t) = votes for and against all turns whose answer equals that of t

Judges that err now and then see the same answer several times, so their mean errs less; and an
answer that is only repeated, as in the last round, has the value of the turns that were judged.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from debate_protocol.types import TurnKey
from debate_rewards.answer_checking import answer_classes
from debate_rewards.reward import ReadDebate, RewardContext, RewardNote
from debate_rewards.strengths import log_strengths, wins_of
from debate_rewards.votes import Duplicates, Share, Ties, Vote, VoteReward, points

# The number of an answer class, or the turn itself where its answer cannot be read.
PooledAnswer = int | TurnKey

_NO_VOTES = Share(0.0, 0.0)


class PooledReward(VoteReward):
    """A reward for which a vote may value all turns with the judged answer."""

    duplicates: Duplicates = "one"
    """Whether a voter's repeated verdict on a pair counts as `one` or each time (`count`)."""
    ties: Ties = "half"
    """What `=` is worth: `half` a win for each side, or nothing (`ignore`)."""
    pool: Literal["agent", "answer"] = "agent"
    """Whether a vote values the `agent` that it names, or each turn with the same `answer`; nobody
    is valued by votes of their own."""

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Warn where judges check one turn of each answer, and the others are not pooled."""
        if context.rules.extra.get("distinct") is True and self.pool == "agent":
            text = (
                "reward.pool: found agent beside debate.distinct, where judges check one turn of "
                "each answer; expected answer, so that equal answers have its value"
            )
            yield RewardNote(kind="doubt", text=text)


def classes_of_turns(debate: ReadDebate, *, across_rounds: bool) -> dict[TurnKey, int | None]:
    """Number the answer classes of the turns of each round, or of all rounds together.

    `None` for a turn that failed or whose answer cannot be read.
    """
    groups: dict[int, list[TurnKey]] = {}
    for key in debate.turns:
        groups.setdefault(0 if across_rounds else key.round, []).append(key)
    class_of: dict[TurnKey, int | None] = {}
    for keys in groups.values():
        answers = []
        for key in keys:
            turn = debate.turns[key]
            answers.append(None if turn.failed else turn.parsed.answer)
        numbers = answer_classes(debate.transcript.question, answers)
        class_of.update(zip(keys, numbers, strict=True))
    return class_of


def pooled_answers(debate: ReadDebate) -> dict[TurnKey, PooledAnswer]:
    """Find the answer that each valid turn shares its votes by."""
    answers: dict[TurnKey, PooledAnswer] = {}
    for key, number in classes_of_turns(debate, across_rounds=True).items():
        if not debate.turns[key].failed:
            # An answer that cannot be read equals no other, so the turn stands for itself.
            answers[key] = key if number is None else number
    return answers


def pooled_shares(
    votes: Sequence[Vote], ties: Ties, answers: Mapping[TurnKey, PooledAnswer]
) -> dict[TurnKey, Share]:
    """Count the votes for and against the answer of each turn, without those of its author.

    A vote on two turns with one answer is half for it and half against it, as a tie is.

    Args:
        votes: Counted votes of one debate.
        ties: What `=` is worth.
        answers: The answer of each valid turn.
    """
    # Votes by author are subtracted from the sums: reading all votes again for each of N agents
    # takes N⁴ steps.
    sums: dict[PooledAnswer, Share] = {}
    sums_by_judge: dict[tuple[int, PooledAnswer], Share] = {}
    for vote in votes:
        verdict_points = points(vote.verdict, ties)
        if verdict_points is None:
            continue
        sides = ((vote.left, verdict_points), (vote.right, _reversed(verdict_points)))
        for turn, share in sides:
            # A judge that ranks its own turn too has no say in what that turn is worth.
            if turn.agent == vote.judge.agent:
                continue
            answer = answers[turn]
            judge_key = (vote.judge.agent, answer)
            sums[answer] = _add(sums.get(answer, _NO_VOTES), share)
            sums_by_judge[judge_key] = _add(sums_by_judge.get(judge_key, _NO_VOTES), share)

    shares = {}
    for key, answer in answers.items():
        total = sums.get(answer, _NO_VOTES)
        own = sums_by_judge.get((key.agent, answer), _NO_VOTES)
        others = Share(total.up - own.up, total.down - own.down)
        if others.up + others.down:
            shares[key] = others
    return shares


def pooled_log_strengths(
    votes: Sequence[Vote], ties: Ties, answers: Mapping[TurnKey, PooledAnswer], prior: float
) -> dict[TurnKey, float]:
    """Fit the log strength of each turn's answer to the votes of all but its author.

    Strengths depend on all votes, so each agent's turns have a fit of their own, without any vote
    of that agent. A vote on two turns with one answer says nothing about strengths.

    Args:
        votes: Counted votes of one debate.
        ties: What `=` is worth.
        answers: The answer of each valid turn.
        prior: Wins, and losses, of each answer against a fictitious one of log strength 0.
    """
    shares = pooled_shares(votes, ties, answers)
    log_strength_of: dict[TurnKey, float] = {}
    for agent in {key.agent for key in shares}:
        others_votes = [vote for vote in votes if vote.judge.agent != agent and not vote.is_own]
        wins = wins_of(others_votes, ties, answers.__getitem__)
        wins_between = {pair: count for pair, count in wins.items() if pair[0] != pair[1]}
        strengths = log_strengths(wins_between, prior)
        for key in shares:
            if key.agent == agent:
                # An answer that was compared with itself alone stays where the prior puts it.
                log_strength_of[key] = strengths.get(answers[key], 0.0)
    return log_strength_of


def _reversed(share: Share) -> Share:
    return Share(share.down, share.up)


def _add(first: Share, second: Share) -> Share:
    return Share(first.up + second.up, first.down + second.down)
