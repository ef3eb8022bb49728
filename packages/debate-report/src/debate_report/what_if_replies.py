"""Replies of other programs' files as debates of a single round, and their recorded rewards."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey
from debate_report.page_replies import PageReplies, PageReply
from debate_rewards.answer_rewards import Majority
from debate_rewards.reward import Credit, Reward, Score, build_score

FILE_REWARD = "the file's reward"
TRUTH = "right or wrong"
MAJORITY = "the group's majority"
MOST_SCORES = 12

Values = Mapping[TurnKey, float | None]
# From the replies of a group to those that a lazy policy would give.
LazyPolicy = Callable[[Sequence[PageReply]], Sequence[PageReply]]


@dataclass(frozen=True, slots=True)
class RecordedReward:
    """Values of replies by another program, by debate and turn."""

    values_by_debate: Mapping[str, Values]

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score debates by the recorded values."""
        return [self._score(transcript) for transcript in transcripts]

    def _score(self, transcript: Transcript) -> Score:
        values = self.values_by_debate[transcript.id]
        credits = []
        for turn in transcript.turns:
            credits.append(Credit(turn.agent, turn.round, "generator", values.get(turn.key)))
        return build_score(transcript, credits, {})


@dataclass(frozen=True, slots=True)
class ComparedReplies:
    """Groups of several replies, each a debate of one round whose agents are its replies.

    Attributes:
        debates: The groups as debates.
        groups: The replies of each debate, by agent.
        verdicts: Which replies are right: ours where the answer can be read, as the file's own may
            be the reward that is judged.
        num_by_file: Replies whose verdict is the file's.
    """

    debates: Sequence[Transcript]
    groups: Sequence[Sequence[PageReply]]
    verdicts: Sequence[Mapping[TurnKey, bool]]
    num_by_file: int

    def rewards(self) -> dict[str, Reward]:
        """Build the rewards for these replies, the file's own reward first.

        Scores that equal the reward, or are the same for all replies, add nothing.
        """
        replies = [reply for group in self.groups for reply in group]
        # In the order of the file, so that the same file gives the same page.
        names = dict.fromkeys(name for reply in replies for name in reply.scores)
        candidates: dict[str, Callable[[PageReply], float | None]] = {
            FILE_REWARD: lambda reply: reply.reward
        }
        for name in names:
            candidates[f"score {name}"] = lambda reply, name=name: reply.scores.get(name)  # type: ignore[misc]
        candidates[TRUTH] = _truth
        rewards: dict[str, Reward] = {}
        columns: list[list[float | None]] = []
        for name, value_of in candidates.items():
            column = list(map(value_of, replies))
            is_new = name == TRUTH or column not in columns
            known_values = {value for value in column if value is not None}
            if is_new and len(known_values) > 1 and len(rewards) < MOST_SCORES:
                rewards[name] = self._recorded(value_of)
                columns.append(column)
        # TTRL and others pay what most replies to a question say.
        if len({reply.answer for reply in replies}) > 1:
            rewards[MAJORITY] = Majority()
        return rewards

    def _recorded(self, value_of: Callable[[PageReply], float | None]) -> RecordedReward:
        values = {}
        for debate, group in zip(self.debates, self.groups, strict=True):
            values[debate.id] = {
                TurnKey(agent, 0): value_of(reply) for agent, reply in enumerate(group)
            }
        return RecordedReward(values)


def compared_replies(page: PageReplies, contract: str) -> ComparedReplies:
    """Take the groups of several replies of a page as debates.

    Args:
        page: The replies.
        contract: How they mark their answers.
    """
    debates = []
    groups = []
    verdicts = []
    num_by_file = 0
    for number, group in enumerate(page.groups().values()):
        if len(group) < 2:
            continue
        turns = [
            Turn(agent, 0, reply.text, failure=reply.failure or None)
            for agent, reply in enumerate(group)
        ]
        # Without a gold answer: verdicts are known already, and checking takes most of the time.
        first = group[0]
        # Questions of several steps stay apart: their replies are of different policies.
        question = Question(f"group {number}", first.question)
        protocol = Protocol(len(turns), contract=contract)
        debates.append(Transcript(f"group {number}", question, protocol, tuple(turns)))
        groups.append(group)
        known_verdicts = {}
        for agent, reply in enumerate(group):
            value = _truth(reply)
            if value is not None:
                known_verdicts[TurnKey(agent, 0)] = value > 0
            num_by_file += reply.our_verdict is None and value is not None
        verdicts.append(known_verdicts)
    return ComparedReplies(debates, groups, verdicts, num_by_file)


def _truth(reply: PageReply) -> float | None:
    is_right = reply.file_verdict if reply.our_verdict is None else reply.our_verdict
    return None if is_right is None else float(is_right)


def _longest(group: Sequence[PageReply]) -> Sequence[PageReply]:
    return [max(group, key=lambda reply: len(reply.text))]


def _shortest(group: Sequence[PageReply]) -> Sequence[PageReply]:
    return [min(group, key=lambda reply: len(reply.text))]


def _crowd(group: Sequence[PageReply]) -> Sequence[PageReply]:
    """Select the replies with the most frequent answer of their group."""
    answers = Counter(reply.answer for reply in group if reply.answer is not None)
    if not answers:
        return []
    ((answer, _),) = answers.most_common(1)
    return [reply for reply in group if reply.answer == answer]


def _without_answer(group: Sequence[PageReply]) -> Sequence[PageReply]:
    return [reply for reply in group if reply.answer is None and not reply.failure]


def _cut(group: Sequence[PageReply]) -> Sequence[PageReply]:
    return [reply for reply in group if reply.is_cut]


LAZY_POLICIES: Mapping[str, LazyPolicy] = {
    "as recorded": lambda group: group,
    "the longest": _longest,
    "the shortest": _shortest,
    "the most frequent answer": _crowd,
    "without a readable answer": _without_answer,
    "cut at the limit": _cut,
}


def lazy_values(
    compared: ComparedReplies, rewards: Mapping[str, Reward]
) -> dict[str, dict[str, float | None]]:
    """Compute the values of replies chosen without solving, by reward and lazy policy.

    A value is the mean over the groups with such a reply; `None` without such a group.
    """
    values: dict[str, dict[str, float | None]] = {}
    for reward_name, reward in rewards.items():
        earned_by_policy: dict[str, list[float]] = {name: [] for name in LAZY_POLICIES}
        for score, group in zip(reward(compared.debates), compared.groups, strict=True):
            value_by_number = {
                group[credit.agent].number: credit.value
                for credit in score.credits
                if credit.value is not None and credit.span is None
            }
            for policy_name, policy in LAZY_POLICIES.items():
                earned = [
                    value_by_number[reply.number]
                    for reply in policy(group)
                    if reply.number in value_by_number
                ]
                # A group without such a reply says nothing of the policy, not 0.
                if earned:
                    earned_by_policy[policy_name].append(fmean(earned))
        values[reward_name] = {
            name: fmean(earned) if earned else None for name, earned in earned_by_policy.items()
        }
    return values
