"""What debates before a judge pay: the judges' mean vote; and what is watched in them."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.forms.judged import Passage, quotes, word_ends
from debate_protocol.types import (
    Transcript,
    TurnKey,
    is_trained_on,
    judging_agents,
    role_of,
)
from debate_rewards.answer_checking import same_answer
from debate_rewards.answer_rewards import usable_verdicts
from debate_rewards.estimates import Sums
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    ReadDebate,
    ReadTurn,
    Requirement,
    RewardConfig,
    RewardContext,
    Score,
    build_score,
    known_mean,
    read_debate,
)
from debate_rewards.votes import JUDGE, Judgment, judgments


def is_right(debate: ReadDebate, right: Mapping[TurnKey, bool]) -> dict[int, bool]:
    """Return whether what each side stands for in the end is right; a critic's, that it is wrong.

    Args:
        debate: Before a judge.
        right: Whether the answer of each turn is right.
    """
    last = {key.agent: right[key] for key in sorted(right, key=lambda one: one.round)}
    opponent = debate.transcript.protocol.extra.get("opponent")
    if opponent == "critic" and 0 in last:
        last[1] = not last[0]
    return last


def true_decision(debate: ReadDebate, right: Mapping[TurnKey, bool]) -> int | None:
    """Return for whom a judge should decide, None where both rivals are right or both wrong."""
    sides = is_right(debate, right)
    if 0 not in sides or sides[0] == sides.get(1, not sides[0]):
        return None
    return 0 if sides[0] else 1


class JudgedReward(RewardConfig):
    """The judges' mean vote, stream `generator`, and what their decisions are worth, `judge`.

    With r the share of readable decisions for agent 0, all its speeches are worth r and those of
    agent 1, rival or critic, 1 − r, a failed one −1. None without a decision.

    Source: debate trained by self-play against a judge (Irving et al., arXiv 1805.00899; Arnesen et
    al., arXiv 2409.16636), a critic paid 1 − r and the mean of sampled votes (arXiv 2608.17776).
    """

    can_be_tried: ClassVar[bool] = True

    type: Literal["judged"] = "judged"
    truth: float = Field(0.0, ge=0, le=1)
    """Share of the truth in a speech's value: (1 − truth) · vote + truth · [its side is right]."""
    judge: Literal["none", "truth", "agreement"] = "none"
    """What pays a decision +1 or −1: that it is the right one (none where both rivals are right or
    wrong), or that judges who were shown the other order agree with it, as a mean over them."""
    over_limit: float = Field(0.0, ge=0)
    """Taken off a speech twice as long as `debate.max_words`, in proportion before, once beyond."""
    thinking_words: int | None = Field(None, ge=1)
    """A limit of what is said in thinking, with the same price; null for none."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",) if self.judge == "none" else ("generator", JUDGE)

    def needed(self) -> frozenset[Requirement]:
        """Return what must be there under these settings, or nothing has a value."""
        return frozenset(("answers",) if self.truth or self.judge == "truth" else ())

    def why_no_signal(self, stream: str, context: RewardContext) -> str | None:
        """Return why a stream has no value."""
        if stream == JUDGE and self.judge == "agreement":
            return "reward.judge agreement compares orders; expected debate.both_orders: true"
        if judging_agents(context.rules):  # Then it is what values are compared with.
            return None
        return "judged pays what judges decide; expected debate.type: judged"

    def warnings(self, context: RewardContext) -> list[str]:
        """Return what should be looked at, each with the key that it is about."""
        found, rules = [], context.rules
        if self.over_limit and not (self.thinking_words or rules.extra.get("max_words")):
            found.append("reward.over_limit: no limit is set (debate.max_words, thinking_words)")
        if self.thinking_words and rules.extra.get("think") != "drop":
            found.append("reward.thinking_words: speeches have no thinking; expected think: drop")
        if self.judge != "none" and not any(is_trained_on(rules, a) for a in judging_agents(rules)):
            found.append("reward.judge: no judge is trained (debate.roles.judge.policy: trained)")
        return found

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        rights: Sequence[Mapping[TurnKey, bool] | None] = [None] * len(debates)
        if self.needed():
            rights = [
                None if v is None else {key: one.verdict == "right" for key, one in v.items()}
                for v in usable_verdicts(debates)
            ]
        return [self._score(*one) for one in zip(debates, rights, strict=True)]

    def _score(self, debate: ReadDebate, right: Mapping[TurnKey, bool] | None) -> Score:
        made = judgments(debate)
        votes = [1 - one.decision for one in made if one.decision is not None]
        mean = fmean(votes) if votes and (right is not None or not self.needed()) else None
        sides = {} if right is None else is_right(debate, right)
        only = debate.transcript.meta.get("diverged")
        judges = {one.turn.key for one in made}
        credits: list[Credit] = []
        for key, turn in debate.judges.items():
            if key in judges:
                continue
            is_due = mean is not None and (only is None or key.round == only)
            if turn.failed and is_due:
                credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
                continue
            value = None
            if mean is not None and is_due:
                value = mean if key.agent == 0 else 1 - mean
                value = (1 - self.truth) * value + self.truth * sides.get(key.agent, 0)
                value -= self.over_limit * self._excess(debate, turn)
            credits.append(Credit(*key, "generator", value, expected=is_due))
        if self.judge != "none":
            credits += self._judges(debate, made, right)
        metrics = {
            "judged/vote": mean,
            "judged/unread": known_mean(float(one.decision is None) for one in made),
        }
        return build_score(debate.transcript, credits, metrics)

    def _excess(self, debate: ReadDebate, turn: ReadTurn) -> float:
        """Return by what share of its limit a speech is too long, at most 1."""
        limit = debate.transcript.protocol.extra.get("max_words")
        spoken = max(_lengths(turn))  # The limit is of each section.
        all_words = len(word_ends(_THINK.sub(" ", turn.turn.text)))
        thought = all_words - len(word_ends(turn.parsed.spoken))
        found = [
            min(1.0, max(0, words / most - 1))
            for words, most in ((spoken, limit), (thought, self.thinking_words))
            if isinstance(most, int)
        ]
        return max(found, default=0.0)

    def _judges(
        self, debate: ReadDebate, made: Sequence[Judgment], right: Mapping[TurnKey, bool] | None
    ) -> list[Credit]:
        truth = None if right is None else true_decision(debate, right)
        credits = []
        for own in made:
            if own.decision is None:
                credits.append(Credit(*own.turn.key, JUDGE, FAILURE_VALUE, penalty=True))
                continue
            expected = [truth]
            if self.judge == "agreement":
                expected = [
                    one.decision for one in made if one.order_reversed != own.order_reversed
                ]
            agreed = [2.0 * (own.decision == one) - 1 for one in expected if one is not None]
            value = known_mean(agreed)
            credits.append(Credit(*own.turn.key, JUDGE, value, expected=value is not None))
        return credits


_THINK = re.compile(r"</?+(?ai:think)\s*+>")
# Each part stays on its line: what runs over line ends is tried again from each of them.
_LABEL = re.compile(
    r"^[^\w\n]*+(?ai:(judge|rival|critic|proposer|consultant)|agent[^\S\n]++([0-9]{1,3}))"
    r"[^\S\n]*+:",
    re.MULTILINE,
)


def add_judged(sums: Sums, debate: ReadDebate, right: Mapping[TurnKey, bool] | None) -> None:
    """Add what is watched in debates before a judge.

    - `judged/vote`: share of decisions for agent 0.
    - `judged/for_right`: share of decisions for the side that is right, where one alone is.
      `judged/mcc`: correlation of decisions for agent 0 with its being right, which is Matthews'
      coefficient. `judged/brier`: mean squared difference of the share of decisions for agent 0
      from whether it is right. `judged/gap`, without rivals: that share minus whether it is right;
      what the policy is paid beyond the truth.
    - `judged/first_shown`, `judged/longer`: share of decisions between rivals for the one who is
      shown first, and for the one who said more words. `judged/both_orders`: share of pairs of
      judgments of either order that are alike.
    - `judged/words`: of a judgment; `speech/words`: of a speech.
    - `speech/impersonates`: share of speeches with a line that begins with another speaker's name.
      `judged/for_agent_0`: share of decisions for agent 0, of rivals.
      `speech/own_side`: share of answers that are the assigned one's; of agents who have one.
      `speech/verified`: share of quotes that the question's passage has, if there is one.

    Args:
        sums: Take what is found.
        debate: Any; one without judges adds nothing.
        right: Whether the answer of each turn is right, None where that is not known.
    """
    made = judgments(debate)
    if not made:
        return
    rules = debate.transcript.protocol
    decisions = [one.decision for one in made if one.decision is not None]
    truth = None if right is None else true_decision(debate, right)
    share = decisions.count(0) / len(decisions) if decisions else 0.0
    if decisions:
        sums.add("judged/vote", share)
    if truth is not None and decisions:
        sums.add("judged/for_right", decisions.count(truth), len(decisions))
        sums.add_points("judged/mcc", ((float(one == 0), float(truth == 0)) for one in decisions))
        sums.add("judged/brier", (share - (truth == 0)) ** 2)
        if rules.extra.get("opponent") != "rival":
            sums.add("judged/gap", share - (truth == 0))
    _add_speeches(sums, debate)
    if rules.extra.get("opponent") == "rival":
        _add_habits(sums, debate, made)
    either = [[m.decision for m in made if m.order_reversed is order] for order in (False, True)]
    for left, other in product(*either):
        if left is not None and other is not None:
            sums.add("judged/both_orders", float(left == other))


def _add_speeches(sums: Sums, debate: ReadDebate) -> None:
    rules = debate.transcript.protocol
    judges = judging_agents(rules)
    sides = debate.transcript.meta.get("sides", {})
    passage_text = str(debate.transcript.question.meta.get("passage") or "")
    passage = Passage(passage_text)
    for key, turn in debate.judges.items():
        if key.agent in judges:
            sums.add("judged/words", _words(turn))
            continue
        sums.add("speech/words", _words(turn))
        names = {(one[1] or one[2]).lower() for one in _LABEL.finditer(turn.parsed.spoken)}
        own = {role_of(rules, key.agent).name, str(key.agent)}
        sums.add("speech/impersonates", float(not names <= own))
        if passage_text:
            for start, end in quotes(turn.parsed.spoken):
                is_verified = passage.has(turn.parsed.spoken[start:end])
                sums.add("speech/verified", float(is_verified))
        if (side := sides.get(str(key.agent))) is not None:
            is_own = same_answer(debate.transcript.question, side, turn.parsed.answer)
            sums.add("speech/own_side", float(is_own))


def _add_habits(sums: Sums, debate: ReadDebate, made: Sequence[Judgment]) -> None:
    said = [sum(_words(t) for k, t in debate.judges.items() if k.agent == a) for a in (0, 1)]
    for one in made:
        if one.decision is not None:
            sums.add("judged/for_agent_0", float(one.decision == 0))
            sums.add("judged/first_shown", float(one.decision == int(one.order_reversed)))
            if said[0] != said[1]:
                sums.add("judged/longer", float(said[one.decision] > said[1 - one.decision]))


def _words(turn: ReadTurn) -> int:
    """Return the words of a turn, without the tags of its sections."""
    return sum(_lengths(turn))


def _lengths(turn: ReadTurn) -> list[int]:
    """Return the words of each section, or of a turn without any."""
    sections = turn.parsed.sections.values()
    texts = [section.text for section in sections] or [turn.parsed.spoken]
    return [len(word_ends(text)) for text in texts]
