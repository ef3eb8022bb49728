"""Replies of other programs' files as debates of a single round, and their recorded rewards."""

from collections import Counter
from collections.abc import Mapping, Sequence
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
# Ways to choose replies of a group without solving, in the order of `lazy_choices`.
LAZY_POLICIES = (
    "as recorded",
    "the longest",
    "the shortest",
    "the most frequent answer",
    "without a readable answer",
    "cut at the limit",
)


@dataclass(frozen=True, slots=True)
class RecordedReward:
    """Values of replies by another program, by debate and turn."""

    values_by_debate: Mapping[str, Values]

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score debates by the recorded values."""
        scores = []
        for transcript in transcripts:
            values = self.values_by_debate[transcript.id]
            credits = []
            for turn in transcript.turns:
                credits.append(Credit(turn.agent, turn.round, "generator", values.get(turn.key)))
            scores.append(build_score(transcript, credits, {}))
        return scores


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
        candidates: dict[str, list[float | None]] = {}
        candidates[FILE_REWARD] = [reply.reward for reply in replies]
        # In the order of the file, so that the same file gives the same page.
        names = dict.fromkeys(name for reply in replies for name in reply.scores)
        for name in names:
            candidates[f"score {name}"] = [reply.scores.get(name) for reply in replies]
        candidates[TRUTH] = [_truth(reply) for reply in replies]

        rewards: dict[str, Reward] = {}
        columns: list[list[float | None]] = []
        for name, column in candidates.items():
            # The truth is listed even where a score equals it: the score is judged by it.
            is_new = name == TRUTH or column not in columns
            known_values = {value for value in column if value is not None}
            if not is_new or len(known_values) <= 1 or len(rewards) >= MOST_SCORES:
                continue
            values_by_debate = {}
            rest = iter(column)
            for debate, group in zip(self.debates, self.groups, strict=True):
                keys = [TurnKey(agent, 0) for agent in range(len(group))]
                values_by_debate[debate.id] = {key: next(rest) for key in keys}
            rewards[name] = RecordedReward(values_by_debate)
            columns.append(column)
        # TTRL and others pay what most replies to a question say.
        if len({reply.answer for reply in replies}) > 1:
            rewards[MAJORITY] = Majority()
        return rewards


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
        turns = []
        known_verdicts = {}
        for agent, reply in enumerate(group):
            turns.append(Turn(agent, 0, reply.text, failure=reply.failure or None))
            value = _truth(reply)
            if value is not None:
                known_verdicts[TurnKey(agent, 0)] = value > 0
                num_by_file += reply.our_verdict is None
        # Without a gold answer: verdicts are known already, and checking takes most of the time.
        # Questions of several steps stay apart: their replies are of different policies.
        question = Question(f"group {number}", group[0].question)
        protocol = Protocol(len(turns), contract=contract)
        debates.append(Transcript(f"group {number}", question, protocol, tuple(turns)))
        groups.append(group)
        verdicts.append(known_verdicts)
    return ComparedReplies(debates, groups, verdicts, num_by_file)


def _truth(reply: PageReply) -> float | None:
    is_right = reply.file_verdict if reply.our_verdict is None else reply.our_verdict
    return None if is_right is None else float(is_right)


def lazy_choices(group: Sequence[PageReply]) -> list[Sequence[PageReply]]:
    """Select the replies of a group by each of `LAZY_POLICIES`, which solve nothing."""
    answers = Counter(reply.answer for reply in group if reply.answer is not None)
    crowd: Sequence[PageReply] = []
    if answers:
        most_frequent = answers.most_common(1)[0][0]
        crowd = [reply for reply in group if reply.answer == most_frequent]
    longest = max(group, key=lambda reply: len(reply.text))
    shortest = min(group, key=lambda reply: len(reply.text))
    without_answer = [reply for reply in group if reply.answer is None and not reply.failure]
    cut = [reply for reply in group if reply.is_cut]
    return [group, [longest], [shortest], crowd, without_answer, cut]


def lazy_values(
    compared: ComparedReplies, rewards: Mapping[str, Reward]
) -> dict[str, dict[str, float | None]]:
    """Compute the values of replies chosen without solving, by reward and lazy policy.

    A value is the mean over the groups with such a reply; `None` without such a group.
    """
    choices_of_groups = [lazy_choices(group) for group in compared.groups]
    values: dict[str, dict[str, float | None]] = {}
    for reward_name, reward in rewards.items():
        means_by_policy: dict[str, list[float]] = {name: [] for name in LAZY_POLICIES}
        scores = reward(compared.debates)
        for score, group, choices in zip(scores, compared.groups, choices_of_groups, strict=True):
            value_by_number = {}
            for credit in score.credits:
                # Credits of spans are parts of the value of a whole reply.
                if credit.value is not None and credit.span is None:
                    value_by_number[group[credit.agent].number] = credit.value
            for policy_name, chosen in zip(LAZY_POLICIES, choices, strict=True):
                numbers = [reply.number for reply in chosen if reply.number in value_by_number]
                # A group without such a reply says nothing of the policy, not 0.
                if numbers:
                    mean = fmean(value_by_number[number] for number in numbers)
                    means_by_policy[policy_name].append(mean)
        values[reward_name] = {}
        for policy_name, means in means_by_policy.items():
            values[reward_name][policy_name] = fmean(means) if means else None
    return values
