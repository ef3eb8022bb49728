"""Debates before a judge: a reward by the judges' mean vote, and metrics."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Literal

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
    RewardConfig,
    RewardContext,
    RewardNeeds,
    RewardNote,
    Score,
    build_score,
    known_mean,
    read_debate,
)
from debate_rewards.votes import JUDGE, Judgment, judgments

_THINK = re.compile(r"</?+(?ai:think)\s*+>")
# A line that begins as another speaker's would, such as `Judge:` or `Agent 1:`. Each part stays on
# its line: a part that ran over line ends would be tried again from each line.
_LABEL = re.compile(
    r"^[^\w\n]*+(?ai:(judge|rival|critic|proposer|consultant)|agent[^\S\n]++([0-9]{1,3}))"
    r"[^\S\n]*+:",
    re.MULTILINE,
)


def is_right(debate: ReadDebate, right: Mapping[TurnKey, bool]) -> dict[int, bool]:
    """Say whether each side is right in the end; a critic is right where the proposer is wrong.

    Args:
        debate: A debate before a judge.
        right: Whether the answer of each turn is right.
    """
    # A later answer of an agent replaces its earlier ones.
    keys_in_order = sorted(right, key=lambda key: key.round)
    last_answers = {key.agent: right[key] for key in keys_in_order}
    opponent = debate.transcript.protocol.extra.get("opponent")
    if opponent == "critic" and 0 in last_answers:
        last_answers[1] = not last_answers[0]
    return last_answers


def true_decision(debate: ReadDebate, right: Mapping[TurnKey, bool]) -> int | None:
    """Find the side to decide for, `None` where both rivals are right or both wrong."""
    sides = is_right(debate, right)
    if 0 not in sides:
        return None
    # A consultant speaks alone: the judge decides against it where it is wrong.
    opponent_is_right = sides.get(1, not sides[0])
    if sides[0] == opponent_is_right:
        return None
    return 0 if sides[0] else 1


class JudgedReward(RewardConfig):
    """The judges' mean vote, stream `generator`, and what their decisions are worth, `judge`.

    With r the share of readable decisions for agent 0, all its speeches are worth r and those of
    agent 1, rival or critic, 1 − r, a failed one −1. `None` without a decision.

    Source: debate trained by self-play against a judge (Irving et al., arXiv 1805.00899; Arnesen et
    al., arXiv 2409.16636), a critic paid 1 − r and the mean of sampled votes (arXiv 2608.17776).
    """

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
        """Streams with values."""
        return ("generator",) if self.judge == "none" else ("generator", JUDGE)

    def needs(self) -> RewardNeeds:
        """Describe needs: answers where the truth pays speeches or judges."""
        return RewardNeeds(answers=self.truth > 0 or self.judge == "truth", policy=False)

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Yield causes without decisions, and settings without effect, each with its key."""
        protocol = context.rules
        has_judges = bool(judging_agents(protocol))
        for stream in self.streams:
            if stream == JUDGE and self.judge == "agreement":
                text = "reward.judge agreement compares orders; expected debate.both_orders: true"
                yield RewardNote(kind="no_signal", text=text, stream=stream)
            elif not has_judges:
                # With decisions it is the baseline that takes the signal off.
                text = "judged pays what judges decide; expected debate.type: judged"
                yield RewardNote(kind="no_signal", text=text, stream=stream)
        if self.over_limit and not (self.thinking_words or protocol.extra.get("max_words")):
            text = "reward.over_limit: no limit is set (debate.max_words, thinking_words)"
            yield RewardNote(kind="doubt", text=text)
        if self.thinking_words and protocol.extra.get("think") != "drop":
            text = "reward.thinking_words: speeches have no thinking; expected think: drop"
            yield RewardNote(kind="doubt", text=text)
        trained_judges = [a for a in judging_agents(protocol) if is_trained_on(protocol, a)]
        if self.judge != "none" and not trained_judges:
            text = "reward.judge: no judge is trained (debate.roles.judge.policy: trained)"
            yield RewardNote(kind="doubt", text=text)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        # Answers are checked only where the truth counts: without it no question needs one.
        if not self.needs().answers:
            return [self._score(debate, None) for debate in debates]
        scores = []
        for debate, verdicts in zip(debates, usable_verdicts(debates), strict=True):
            right = None
            if verdicts is not None:
                right = {key: verdict.verdict == "right" for key, verdict in verdicts.items()}
            scores.append(self._score(debate, right))
        return scores

    def _score(self, debate: ReadDebate, right: Mapping[TurnKey, bool] | None) -> Score:
        """Score a debate; `right` is `None` where the truth is unneeded or unknown."""
        debate_judgments = judgments(debate)
        decisions = [j.decision for j in debate_judgments if j.decision is not None]
        # A speech paid in part by the truth has no value without it, whatever the judges decide.
        is_usable = right is not None or not self.needs().answers
        vote_share = None
        if decisions and is_usable:
            vote_share = decisions.count(0) / len(decisions)
        sides = {} if right is None else is_right(debate, right)
        judge_keys = {judgment.turn.key for judgment in debate_judgments}
        # Debates of a group are alike before this round, and it alone gets credit.
        diverged_round = debate.transcript.meta.get("diverged")
        credits: list[Credit] = []
        for key, turn in debate.judges.items():
            if key in judge_keys:
                continue
            is_counted_round = diverged_round is None or key.round == diverged_round
            if vote_share is None or not is_counted_round:
                credits.append(Credit(*key, "generator", None, expected=False))
            elif turn.failed:
                credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
            else:
                vote = vote_share if key.agent == 0 else 1 - vote_share
                value = (1 - self.truth) * vote + self.truth * sides.get(key.agent, 0)
                value -= self.over_limit * self._excess(debate, turn)
                credits.append(Credit(*key, "generator", value))
        if self.judge != "none":
            credits += self._judge_credits(debate, debate_judgments, right)
        metrics = {
            "judged/vote": vote_share,
            "judged/unread": known_mean(float(j.decision is None) for j in debate_judgments),
        }
        return build_score(debate.transcript, credits, metrics)

    def _excess(self, debate: ReadDebate, turn: ReadTurn) -> float:
        """Compute the excess of a speech as a share of the limit, at most 1."""
        # `max_words` limits each section, `thinking_words` everything outside the speech.
        num_spoken = max(_section_lengths(turn))
        # The tags of thinking are no words of the speaker.
        num_words = len(word_ends(_THINK.sub(" ", turn.turn.text)))
        num_thought = num_words - len(word_ends(turn.parsed.spoken))
        excess = 0.0
        speech_limit = debate.transcript.protocol.extra.get("max_words")
        for num_used, limit in ((num_spoken, speech_limit), (num_thought, self.thinking_words)):
            # Bounded, so that an endless speech does not outweigh all others of the batch.
            if isinstance(limit, int):
                excess = max(excess, min(1.0, num_used / limit - 1))
        return excess

    def _judge_credits(
        self,
        debate: ReadDebate,
        debate_judgments: Sequence[Judgment],
        right: Mapping[TurnKey, bool] | None,
    ) -> list[Credit]:
        truth = None if right is None else true_decision(debate, right)
        credits = []
        for judgment in debate_judgments:
            key = judgment.turn.key
            if judgment.decision is None:
                # A judge without a readable decision has failed, as a speaker without an answer.
                credits.append(Credit(*key, JUDGE, FAILURE_VALUE, penalty=True))
                continue
            targets = [truth]
            if self.judge == "agreement":
                # Judges of the same order would agree on its bias, too.
                order_reversed = judgment.order_reversed
                others = [j for j in debate_judgments if j.order_reversed != order_reversed]
                targets = [other.decision for other in others]
            # None is the truth where both rivals are right or wrong, and a judge without a
            # decision: neither speaks for or against this judgment.
            agreement = []
            for target in targets:
                if target is not None:
                    agreement.append(1.0 if judgment.decision == target else -1.0)
            value = known_mean(agreement)
            credits.append(Credit(*key, JUDGE, value, expected=value is not None))
        return credits


def add_judged(sums: Sums, debate: ReadDebate, right: Mapping[TurnKey, bool] | None) -> None:
    """Add the metrics of debates before a judge.

    - `judged/vote`: share of decisions for agent 0.
    - `judged/for_right`: share of decisions for the right side, where a single side is right.
      `judged/mcc`: correlation of decisions for agent 0 with agent 0 being right, Matthews'
      coefficient. `judged/brier`: mean squared difference of the share of decisions for agent 0
      from whether it is right. `judged/gap`, without rivals: this share minus whether it is right,
      the pay of the policy beyond the truth.
    - `judged/first_shown`, `judged/longer`: share of decisions between rivals for the rival
      shown first, and for the rival with more words. `judged/both_orders`: share of equal
      decisions in pairs of a judgment of either order.
    - `judged/words`: of a judgment; `speech/words`: of a speech.
    - `speech/impersonates`: share of speeches with a line that begins with another speaker's name.
      `judged/for_agent_0`: share of decisions for agent 0, of rivals.
      `speech/own_side`: share of answers equal to the assigned answer, where there is one.
      `speech/verified`: share of quotes that the question's passage has, if it has a passage.

    Args:
        sums: The sums to add to.
        debate: Any debate; without judges it adds nothing.
        right: Whether the answer of each turn is right, `None` where the truth is not known.
    """
    debate_judgments = judgments(debate)
    if not debate_judgments:
        return
    is_between_rivals = debate.transcript.protocol.extra.get("opponent") == "rival"
    decisions = [j.decision for j in debate_judgments if j.decision is not None]
    if decisions:
        vote_share = decisions.count(0) / len(decisions)
        sums.add("judged/vote", vote_share)
        truth = None if right is None else true_decision(debate, right)
        if truth is not None:
            first_is_right = float(truth == 0)
            points = [(float(decision == 0), first_is_right) for decision in decisions]
            sums.add("judged/for_right", decisions.count(truth), len(decisions))
            sums.add_points("judged/mcc", points)
            sums.add("judged/brier", (vote_share - first_is_right) ** 2)
            # Between rivals, which of them is agent 0 is chance: the gap would be 0 on average.
            if not is_between_rivals:
                sums.add("judged/gap", vote_share - first_is_right)
    _add_speeches(sums, debate)
    if is_between_rivals:
        _add_habits(sums, debate, debate_judgments)
    plain_order = [j.decision for j in debate_judgments if not j.order_reversed]
    reversed_order = [j.decision for j in debate_judgments if j.order_reversed]
    for plain_decision, reversed_decision in product(plain_order, reversed_order):
        if plain_decision is not None and reversed_decision is not None:
            sums.add("judged/both_orders", float(plain_decision == reversed_decision))


def _add_speeches(sums: Sums, debate: ReadDebate) -> None:
    protocol = debate.transcript.protocol
    judges = judging_agents(protocol)
    assigned_answers = debate.transcript.meta.get("sides", {})
    passage_text = str(debate.transcript.question.meta.get("passage") or "")
    passage = Passage(passage_text)
    for key, turn in debate.judges.items():
        spoken = turn.parsed.spoken
        num_words = sum(_section_lengths(turn))
        if key.agent in judges:
            sums.add("judged/words", num_words)
            continue
        sums.add("speech/words", num_words)
        # A line may begin with the speaker's role or number, and with no other speaker's.
        line_names = {(match[1] or match[2]).lower() for match in _LABEL.finditer(spoken)}
        speaker_names = {role_of(protocol, key.agent).name, str(key.agent)}
        sums.add("speech/impersonates", float(not line_names <= speaker_names))
        if passage_text:
            for start, end in quotes(spoken):
                sums.add("speech/verified", float(passage.has(spoken[start:end])))
        assigned_answer = assigned_answers.get(str(key.agent))
        if assigned_answer is not None:
            question = debate.transcript.question
            is_own_side = same_answer(question, assigned_answer, turn.parsed.answer)
            sums.add("speech/own_side", float(is_own_side))


def _add_habits(sums: Sums, debate: ReadDebate, debate_judgments: Sequence[Judgment]) -> None:
    num_words = [0, 0]
    for key, turn in debate.judges.items():
        if key.agent in (0, 1):
            num_words[key.agent] += sum(_section_lengths(turn))
    for judgment in debate_judgments:
        decision = judgment.decision
        if decision is None:
            continue
        first_shown = 1 if judgment.order_reversed else 0
        sums.add("judged/for_agent_0", float(decision == 0))
        sums.add("judged/first_shown", float(decision == first_shown))
        if num_words[0] != num_words[1]:
            longer = 0 if num_words[0] > num_words[1] else 1
            sums.add("judged/longer", float(decision == longer))


def _section_lengths(turn: ReadTurn) -> list[int]:
    """Count the words of each section without its tags, or of a turn without sections."""
    sections = turn.parsed.sections.values()
    texts = [section.text for section in sections] or [turn.parsed.spoken]
    return [len(word_ends(text)) for text in texts]
