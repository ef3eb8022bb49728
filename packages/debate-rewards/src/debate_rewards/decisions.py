r"""The answer of a whole debate: by majority, by votes or their strengths, or by its center.

Ties are drawn by `random.Random(f"{seed}\n{transcript.id}")`, so that the same seed always gives
the same decision on a debate and different debates draw apart.
"""

import hashlib
import logging
import math
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from debate_protocol.plugins import Config
from debate_protocol.transcripts.files import mean_logp
from debate_protocol.types import Gate, GateDecision, Question, Transcript, TurnKey
from debate_rewards.answer_checking import answer_classes, check_many, kind_of
from debate_rewards.answers.reply import final_answer
from debate_rewards.reward import ReadDebate, ReadTurn, read_debate
from debate_rewards.strengths import log_strengths, wins_of
from debate_rewards.votes import Share, Vote, all_votes, ballots, judgments, tally

_log = logging.getLogger(__name__)

Debate = Transcript | ReadDebate
Answers = Sequence[tuple[Question, str | None]]
# Says which answers are right; None where the question's own answer cannot be used.
Correct = Callable[[Answers], Sequence[bool | None]]

# The fit of strengths ends within its tolerance: what is closer than this is equally strong.
_STRENGTH_DIGITS = 8

_Item = TypeVar("_Item")


def majority(debate: Debate, seed: int) -> str | None:
    """Find the most frequent answer of the last round, `None` without any answer.

    Answers are counted by equivalence. Among equally large classes one is drawn, repeatably by
    seed and transcript id.
    """
    debate = _read(debate)
    num_votes = {turn.key: 1.0 for turn in debate.turns.values()}
    return _heaviest_answer(debate, seed, num_votes)


def confidence(debate: Debate, seed: int) -> str | None:
    """Find the answer of the last round with the greatest confidence of its agents together.

    As `majority`, but a vote weighs as much as the geometric mean of the probabilities of its
    reply's tokens, exp(mean log-probability). `None` when nobody answered, or when an answer's
    log-probabilities are not known.
    """
    debate = _read(debate)
    vote_weights: dict[TurnKey, float] = {}
    for turn in _answered_last(debate):
        # The mean over the tokens and not their sum: a long reply is not thereby a doubtful one.
        turn_logp = mean_logp(turn.turn)
        if turn_logp is None:
            return None
        vote_weights[turn.key] = math.exp(turn_logp)
    return _heaviest_answer(debate, seed, vote_weights)


def peer_vote(debate: Debate, seed: int) -> str | None:
    """Find the answer of the agent voted up most by the others, `None` without any answer.

    The votes come from the last round in which any were cast; an agent's standing is its votes
    for minus its votes against, ties half each way, and the answer is the judged turn's. Equal
    standings are drawn from, repeatably by seed and transcript id; without any votes every agent
    with an answer in the last round is drawn from.
    """
    debate = _read(debate)
    judged_turns = standings(debate)
    # Without votes nobody is ahead, and all that answered last are drawn from.
    candidates = _answered_last(debate)
    if judged_turns:
        best = max(standing for _, standing in judged_turns)
        candidates = [turn for turn, standing in judged_turns if standing == best]
    return _draw_answer(debate, seed, candidates)


def bradley_terry(debate: Debate, seed: int) -> str | None:
    """Find the last answer of the agent with the greatest Bradley-Terry strength.

    The strengths of the agents are fitted to the votes of all rounds, ties half a win for each,
    under the prior of one win and one loss against an agent of strength 1 (`BradleyTerry`); a win
    against a strong agent counts for more than a win against a weak one. Votes on one's own turn
    do not count. Equals are drawn from; without votes every agent that answered last is.
    """
    debate = _read(debate)
    votes = all_votes(ballots(debate))
    votes_on_others = [vote for vote in votes if not vote.is_own]
    wins = wins_of(votes_on_others, "half", lambda key: key.agent)
    log_strength = log_strengths(wins, prior=1.0)

    # Turns are in order of their rounds, so an agent's last valid turn replaces its earlier ones.
    last_answers: dict[int, ReadTurn] = {}
    for turn in debate.turns.values():
        if not turn.failed:
            last_answers[turn.key.agent] = turn

    # Sorted, since the draw among equals depends on their order, and a set has none.
    agents = sorted(log_strength.keys() & last_answers.keys())
    if not agents:
        return _draw_answer(debate, seed, _answered_last(debate))
    rounded = {agent: round(log_strength[agent], _STRENGTH_DIGITS) for agent in agents}
    best = max(rounded.values())
    best_turns = [last_answers[agent] for agent in agents if rounded[agent] == best]
    return _draw_answer(debate, seed, best_turns)


def central(debate: Debate) -> str | None:
    """Find the last answer of the agent that aggregates under topology `central`.

    `None` without a turn, or without an answer in the last turn.

    Raises:
        ValueError: The topology is another one.
    """
    debate = _read(debate)
    protocol = debate.transcript.protocol
    if protocol.topology != "central":
        raise ValueError(
            f"debate {debate.transcript.id!r}, decision central: found topology "
            f"{protocol.topology!r}, expected 'central'"
        )
    center = protocol.center or 0
    center_turns = [turn for key, turn in debate.turns.items() if key.agent == center]
    if not center_turns:
        return None
    last_turn = max(center_turns, key=lambda turn: turn.key.round)
    return answer_text(debate, last_turn)


def judged(debate: Debate, seed: int) -> str | None:
    """Find the last answer of the side that most judges decide for, ties drawn.

    `None` where most judges hold the only answer to be wrong, or without decisions.
    """
    debate = _read(debate)
    num_by_side: Counter[int] = Counter()
    for judgment in judgments(debate):
        if judgment.decision is not None:
            num_by_side[judgment.decision] += 1
    if not num_by_side:
        return None
    most = max(num_by_side.values())
    sides = [side for side in sorted(num_by_side) if num_by_side[side] == most]
    chosen_side = _draw(debate.transcript, seed, sides)

    side_turns = []
    for key, turn in debate.turns.items():
        if key.agent == chosen_side and not turn.failed:
            side_turns.append(turn)
    # A critic gives no answers: a decision for it leaves the debate without one.
    if not side_turns:
        return None
    return answer_text(debate, side_turns[-1])


def decisions_of(debate: ReadDebate, seed: int) -> dict[str, str | None]:
    """Find the answer of every decision rule that applies to the debate, by name."""
    # A rule is left out, and not None, where it cannot apply: its accuracy would count as 0.
    answers = {"majority": majority(debate, seed)}
    if debate.compares:
        answers["peer_vote"] = peer_vote(debate, seed)
        answers["bradley_terry"] = bradley_terry(debate, seed)
    last_logps = [mean_logp(turn.turn) for turn in _answered_last(debate)]
    if last_logps and None not in last_logps:
        answers["confidence"] = confidence(debate, seed)
    if debate.transcript.protocol.topology == "central":
        answers["central"] = central(debate)
    if judgments(debate):
        answers["judged"] = judged(debate, seed)
    return answers


def last_turns(debate: ReadDebate) -> dict[int, ReadTurn]:
    """Select the turns of the last round, by agent."""
    last_round = debate.last_round
    return {key.agent: turn for key, turn in debate.turns.items() if key.round == last_round}


def answer_text(debate: ReadDebate, turn: ReadTurn) -> str | None:
    """Read a turn's final answer as text, `None` for a failed turn."""
    if turn.failed or turn.parsed.answer is None:
        return None
    answer = final_answer(turn.parsed.answer, kind_of(debate.transcript.question))
    return None if answer is None else answer.text


def standings(debate: ReadDebate) -> list[tuple[ReadTurn, float]]:
    """Compute each judged agent's votes for minus against, with its latest judged turn.

    The votes come from the last round in which any were cast; without votes the list is empty.
    """
    turn_ballots = ballots(debate)
    voted_rounds = [key.round for key, ballot in turn_ballots.items() if ballot.votes]
    if not voted_rounds:
        return []
    last_voted_round = max(voted_rounds)
    votes: list[Vote] = []
    judged_turns: dict[TurnKey, ReadTurn] = {}
    for key, ballot in turn_ballots.items():
        if key.round != last_voted_round:
            continue
        votes += ballot.votes
        # Turns that got no votes have the standing 0, which may still be the best.
        for turn in debate.judged_by(debate.judges[key]).values():
            if not turn.failed:
                judged_turns[turn.key] = turn

    # Where agents speak one after the other, judges of one round were shown different turns of
    # an agent: its votes add up, and its newest judged turn is its answer.
    shares = tally(votes)
    latest: dict[int, ReadTurn] = {}
    standing: dict[int, float] = {}
    for key, turn in sorted(judged_turns.items()):
        agent = key.agent
        share = shares.get(key, Share(0.0, 0.0))
        standing[agent] = standing.get(agent, 0.0) + share.up - share.down
        if agent not in latest or latest[agent].key.round < key.round:
            latest[agent] = turn
    return [(latest[agent], standing[agent]) for agent in sorted(latest)]


def _read(debate: Debate) -> ReadDebate:
    return debate if isinstance(debate, ReadDebate) else read_debate(debate)


def _answered_last(debate: ReadDebate) -> list[ReadTurn]:
    return [turn for turn in last_turns(debate).values() if not turn.failed]


def _heaviest_answer(
    debate: ReadDebate,
    seed: int,
    vote_weights: Mapping[TurnKey, float],
) -> str | None:
    """Find the answer of the last round with the greatest weight of its turns together."""
    turns = list(last_turns(debate).values())
    answers = [answer_text(debate, turn) for turn in turns]
    classes = answer_classes(debate.transcript.question, answers)
    class_weights: dict[int, float] = {}
    for class_number, turn in zip(classes, turns, strict=True):
        if class_number is not None:
            earlier_weight = class_weights.get(class_number, 0.0)
            class_weights[class_number] = earlier_weight + vote_weights[turn.key]
    if not class_weights:
        return None
    most = max(class_weights.values())
    heaviest_classes = [number for number, total in class_weights.items() if total == most]
    chosen_class = _draw(debate.transcript, seed, heaviest_classes)
    # Of equivalent spellings the first agent's is the debate's answer.
    return answers[classes.index(chosen_class)]


def _draw_answer(
    debate: ReadDebate,
    seed: int,
    turns: Sequence[ReadTurn],
) -> str | None:
    if not turns:
        return None
    drawn_turn = _draw(debate.transcript, seed, turns)
    return answer_text(debate, drawn_turn)


def _draw(
    transcript: Transcript,
    seed: int,
    candidates: Sequence[_Item],
) -> _Item:
    # The bytes that Python itself would take, but for ids with lone surrogates.
    seed_bytes = f"{seed}\n{transcript.id}".encode("utf-8", "surrogatepass")
    return random.Random(seed_bytes).choice(candidates)


def checked(answers: Answers) -> list[bool | None]:
    """Judge answers as the reward `verifiable` does."""
    verdicts: list[bool | None] = []
    for judgment in check_many(answers):
        is_known = judgment.verdict != "unverifiable"
        verdicts.append(judgment.verdict == "right" if is_known else None)
    return verdicts


class _Rule(Config):
    """A rule decides on gates of one name, or on all; others go on."""

    at: str | None = None
    """The gate's name, such as `round_0`."""

    def __call__(
        self,
        gates: Sequence[Gate],
        *,
        seed: int = 0,
        correct: Correct = checked,
    ) -> list[GateDecision]:
        """Decide on each gate: go on, keep (the debate ends here) or drop (it is left out).

        Args:
            gates: The gates of the batch.
            seed: Seed of draws.
            correct: Judges answers, all of the batch at once.
        """
        # A debate goes on past the gates of other rules.
        decisions: list[GateDecision] = ["go_on"] * len(gates)
        indices = [i for i, gate in enumerate(gates) if self.at in (None, gate.name)]
        rule_gates = [gates[index] for index in indices]
        rule_decisions = self._decide(rule_gates, seed, correct)
        for index, decision in zip(indices, rule_decisions, strict=True):
            decisions[index] = decision
        return decisions

    @abstractmethod
    def _decide(
        self,
        gates: Sequence[Gate],
        seed: int,
        correct: Correct,
    ) -> list[GateDecision]:
        """Decide on each gate of this rule."""


class Informative(_Rule):
    """Drops groups that teach nothing: all answers right, or all wrong.

    The answers come from the latest round; a failed turn is wrong. A question whose own answer
    is missing or cannot be read is dropped, and a warning names it.

    Source: DAPO (Yu et al. 2025), eq. 8's condition 0 < |right| < G; SDRL (paper), eq. 7. The
    over-sampling that makes up for dropped groups is the caller's (a recipe's `oversample`).
    """

    type: Literal["informative"] = "informative"
    group: Literal["debate", "question"] = "debate"
    """Whose answers belong together; `question` where each debate is one reply of a group."""

    def _decide(
        self,
        gates: Sequence[Gate],
        seed: int,
        correct: Correct,
    ) -> list[GateDecision]:
        group_names: list[str] = []
        answer_groups: list[str] = []
        answers: list[tuple[Question, str | None]] = []
        for index, gate in enumerate(gates):
            group_name = gate.question.id if self.group == "question" else str(index)
            group_names.append(group_name)
            for answer in _latest_answers(gate):
                answer_groups.append(group_name)
                answers.append((gate.question, answer))

        # All answers are checked in one call, so that worker processes share them out.
        verdicts_by_group: dict[str, set[bool | None]] = {}
        for group_name, is_right in zip(answer_groups, correct(answers), strict=True):
            verdicts_by_group.setdefault(group_name, set()).add(is_right)

        decisions: list[GateDecision] = []
        for gate, group_name in zip(gates, group_names, strict=True):
            verdicts = verdicts_by_group.get(group_name, set())
            if None in verdicts:
                _log.warning("question %r is left out: no usable answer", gate.question.id)
            # Only a group with both a right and a wrong answer is worth its cost.
            is_informative = verdicts == {True, False}
            decisions.append("go_on" if is_informative else "drop")
        return decisions


class AtMost(_Rule):
    """Lets a number of debates go on, drawn by seed and debate id; the others end or are dropped.

    Source: SDRL (paper), appendix A.1: 128 of the prompts of a step debate.
    """

    type: Literal["at_most"] = "at_most"
    go_on: int = Field(ge=0)
    """Most debates that go on."""
    others: Literal["keep", "drop"] = "keep"
    """What becomes of the others: `keep` ends them and trains on their turns, `drop` does not."""

    def _decide(
        self,
        gates: Sequence[Gate],
        seed: int,
        correct: Correct,
    ) -> list[GateDecision]:
        # Lots are drawn by debate id: the same debates go on in whatever order their gates come.
        lots = []
        for index, gate in enumerate(gates):
            name = f"{seed}/{gate.transcript.id}".encode(errors="surrogatepass")
            lot = hashlib.blake2b(name, digest_size=8).digest()
            lots.append((lot, index))
        decisions: list[GateDecision] = [self.others] * len(gates)
        for _, index in sorted(lots)[: self.go_on]:
            decisions[index] = "go_on"
        return decisions


class Agreed(_Rule):
    """Ends debates early: where one answer has this share of the latest round's turns."""

    type: Literal["agreed"] = "agreed"
    share: float = Field(
        default=1.0,
        gt=0,
        le=1,
    )
    """Share of the turns of the latest round that must have one answer."""

    def _decide(
        self,
        gates: Sequence[Gate],
        seed: int,
        correct: Correct,
    ) -> list[GateDecision]:
        decisions: list[GateDecision] = []
        for gate in gates:
            answers = _latest_answers(gate)
            classes = answer_classes(gate.question, answers)
            class_sizes = Counter(number for number in classes if number is not None)
            num_agreeing = max(class_sizes.values(), default=0)
            # Turns without an answer count in the share's denominator.
            has_agreed = num_agreeing > 0 and num_agreeing >= self.share * len(answers)
            decisions.append("keep" if has_agreed else "go_on")
        return decisions


def _latest_answers(gate: Gate) -> list[str | None]:
    turns = last_turns(read_debate(gate.transcript)).values()
    return [None if turn.failed else turn.parsed.answer for turn in turns]


SingleRule = Annotated[Informative | AtMost | Agreed, Field(discriminator="type")]


class InOrder(Config):
    """Several rules, each on the debates that go on after the rules before it."""

    type: Literal["in_order"] = "in_order"
    rules: tuple[SingleRule, ...] = Field(min_length=1)
    """The rules, first to last."""

    def __call__(
        self,
        gates: Sequence[Gate],
        *,
        seed: int = 0,
        correct: Correct = checked,
    ) -> list[GateDecision]:
        """Decide on each gate by the first rule that ends or drops its debate."""
        decisions: list[GateDecision] = ["go_on"] * len(gates)
        for rule in self.rules:
            indices = [i for i, decision in enumerate(decisions) if decision == "go_on"]
            rule_gates = [gates[index] for index in indices]
            rule_decisions = rule(rule_gates, seed=seed, correct=correct)
            for index, decision in zip(indices, rule_decisions, strict=True):
                decisions[index] = decision
        return decisions


# Any rule; `type` names it. `functools.partial(rule, seed=…)` is a `select` of `play`.
GateRule = Annotated[Informative | AtMost | Agreed | InOrder, Field(discriminator="type")]


def single_rules(rule: GateRule) -> tuple[SingleRule, ...]:
    """List the rules that decide one after the other."""
    return rule.rules if isinstance(rule, InOrder) else (rule,)


def divided(rule: GateRule) -> tuple[GateRule | None, GateRule | None]:
    """Split a rule into decisions on each debate or question alone, and decisions by counting.

    The second part begins with the first rule that counts the debates of the batch. An empty part
    is `None`.
    """
    rules = single_rules(rule)
    # Rules before the first count decide on a debate without knowing the others.
    num_before = 0
    while num_before < len(rules) and not isinstance(rules[num_before], AtMost):
        num_before += 1
    first_part = InOrder(rules=rules[:num_before]) if num_before > 0 else None
    second_part = InOrder(rules=rules[num_before:]) if num_before < len(rules) else None
    return first_part, second_part


def drops_debates(rule: GateRule) -> bool:
    """Whether a rule may leave debates out of training."""
    for single_rule in single_rules(rule):
        if isinstance(single_rule, Informative):
            return True
        if isinstance(single_rule, AtMost) and single_rule.others == "drop":
            return True
    return False


def most_going_on(
    rule: GateRule,
    num_debates: int,
    gate: str,
) -> int:
    """Compute how many of a number of debates may go on after the gates of a name."""
    for single_rule in single_rules(rule):
        if isinstance(single_rule, AtMost) and single_rule.at in (None, gate):
            num_debates = min(single_rule.go_on, num_debates)
    return num_debates
