"""Metrics of a batch of debates: format, accuracy, judging, diversity and decisions."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from debate_protocol.types import Transcript, Turn, TurnKey, agents_by_policy, answering_agents
from debate_rewards.answer_checking import Verdict, answer_classes, check_many
from debate_rewards.answer_rewards import turn_verdicts
from debate_rewards.decisions import decisions_of
from debate_rewards.estimates import Estimate, Moments, Sums, bootstrap_estimates, pooled
from debate_rewards.judged import add_judged
from debate_rewards.reward import ReadDebate, Score, read_debate
from debate_rewards.vote_metrics import (
    add_change,
    add_criticism,
    add_dissent,
    add_intraclass,
    add_judging,
    add_own,
    add_reward,
)

_UNREAD_PREFIX = "unread/"


@dataclass(frozen=True, slots=True)
class AnswersGiven:
    """Which answers the turns of a debate gave, by class, and which of them are right.

    `classes` are numbered for each round alone, unless they were asked for across rounds; None for
    a turn without an answer. `right` is None where the question's own answer cannot be used.
    """

    debate: ReadDebate
    verdicts: Mapping[TurnKey, Verdict]
    classes: Mapping[TurnKey, int | None]

    @property
    def right(self) -> dict[TurnKey, bool] | None:
        """Which turns are right, None where the question's own answer cannot be used."""
        if any(verdict.verdict == "unverifiable" for verdict in self.verdicts.values()):
            return None
        return {key: verdict.verdict == "right" for key, verdict in self.verdicts.items()}

    def majority(self, keys: Iterable[TurnKey]) -> float:
        """Return whether the majority of these turns is right, ties in expectation.

        A turn without an answer has no vote; nobody answering is wrong.
        """
        wins: dict[int, list[bool]] = {}
        for key in keys:
            if (number := self.classes[key]) is not None:
                wins.setdefault(number, []).append(self.verdicts[key].verdict == "right")
        most = max(map(len, wins.values()), default=0)
        largest = [votes[0] for votes in wins.values() if len(votes) == most]
        return sum(largest) / len(largest) if largest else 0.0

    def rounds(self) -> dict[int, list[TurnKey]]:
        """Return the turns of each round, in order."""
        found: dict[int, list[TurnKey]] = {}
        for key in self.debate.turns:
            found.setdefault(key.round, []).append(key)
        return dict(sorted(found.items()))


def answers_given(
    transcripts: Sequence[Transcript], *, across_rounds: bool = False
) -> list[AnswersGiven]:
    """Read and check the answers of finished debates, in order.

    Args:
        transcripts: Finished debates.
        across_rounds: Number the classes of all rounds together.

    Raises:
        ValueError: A turn cannot be, or a contract or the kind of a question is unknown.
    """
    debates = [read_debate(transcript) for transcript in transcripts]
    return [
        AnswersGiven(debate, verdicts, _classes(debate, across_rounds))
        for debate, verdicts in zip(debates, turn_verdicts(debates), strict=True)
    ]


def _classes(debate: ReadDebate, across_rounds: bool) -> dict[TurnKey, int | None]:
    groups: dict[int, list[TurnKey]] = {}
    for key in debate.turns:
        groups.setdefault(0 if across_rounds else key.round, []).append(key)
    found: dict[TurnKey, int | None] = {}
    for keys in groups.values():
        read = [debate.turns[key] for key in keys]
        answers = [None if turn.failed else turn.parsed.answer for turn in read]
        numbers = answer_classes(debate.transcript.question, answers)
        found |= dict(zip(keys, numbers, strict=True))
    return found


def add_rounds(sums: Sums, given: AnswersGiven, right: Mapping[TurnKey, bool]) -> None:
    """Add what needs the truth.

    - `maj/round_R`: whether the majority of the round's answers is right, ties in expectation;
      `maj/first` and `maj/last` are those of the first and the last round (Maj and Debate),
      `maj/delta` the second minus the first (Δ), but for pairs of first turns that are debated:
      there as many second turns are sampled of each pair as are asked for. All are of the same
      debate, so of the same first turns.
    - `pass@k/round_R`: whether any of the round's answers is right, which bounds every choice among
      them, such as the peers' vote among those that they judged.
    - `central/first`, `central/last`, `central/delta`, under topology central: the same of the
      answers of the agent in the center: single answers, no vote.
    - `improvement`: (accuracy of the last round − of the first) / accuracy of the first, a ratio
      of sums over all debates of several rounds, as Δ is of them alone.
    - `right/tokens/round_R`, `wrong/tokens/round_R`: mean number of sampled tokens of the round's
      right and wrong replies; `right/characters/round_R`, `wrong/characters/round_R` of characters.
    - `agreement/accuracy`: whether the majority is right, had the debate been stopped after the
      first round in which all agents give one answer; of the last round where there is none.

    Source: SDRL (paper), tables 1, 3, 4 and 6; ACC-Debate (paper), equation 5.
    """
    rounds = given.rounds()
    if not rounds:
        return
    votes = {round: given.majority(keys) for round, keys in rounds.items()}
    for round, value in votes.items():
        sums.add(f"maj/round_{round}", value)
        sums.add(f"pass@k/round_{round}", float(any(right[key] for key in rounds[round])))
    first, last = min(rounds), max(rounds)
    rules = given.debate.transcript.protocol
    ends = [votes[first], votes[last]][: last - first + 1]
    _add_gain(sums, "maj", ends, of_equals=rules.topology != "pair")
    center = [key for key in right if key.agent == (rules.center or 0)]
    if rules.topology == "central":
        ordered = sorted(center, key=lambda key: key.round)
        _add_gain(sums, "central", [float(right[key]) for key in ordered])
    if first < last:
        began, ended = (
            sum(right[key] for key in rounds[round]) / len(rounds[round]) for round in (first, last)
        )
        sums.add("improvement", ended - began, began)
    stop = _agreed_round(given)
    sums.add("agreement/accuracy", votes[last if stop is None else stop])
    for key, read in given.debate.turns.items():
        side = "right" if right[key] else "wrong"
        sums.add(f"{side}/characters/round_{key.round}", len(read.turn.text))
        if read.turn.token_counts is not None:
            sums.add(f"{side}/tokens/round_{key.round}", read.turn.token_counts[1])


def add_costs(sums: Sums, given: AnswersGiven) -> None:
    """Add what needs no truth.

    - `tokens/answer`: sampled tokens of the whole debate, which gives one answer.
    - `agreement/reached`: whether all agents give one answer in some round.
    - `agreement/tokens_saved`: share of the sampled tokens that come after the first such round;
      what a debate that stops there would save.

    Tokens are left out where a turn holds neither its reply nor its counts.
    """
    turns = given.debate.transcript.turns
    if not given.debate.turns:
        return
    stop = _agreed_round(given)
    sums.add("agreement/reached", float(stop is not None))
    sampled = _sampled(turns)
    if sampled is not None:
        sums.add("tokens/answer", sampled)
        later = [turn for turn in turns if stop is not None and turn.round > stop]
        sums.add("agreement/tokens_saved", _sampled(later) or 0, sampled)


def _add_gain(sums: Sums, name: str, by_round: Sequence[float], *, of_equals: bool = True) -> None:
    """Add the first and the last value, and between several that are alike the difference."""
    for end, values in (("first", by_round[:1]), ("last", by_round[-1:])):
        for value in values:
            sums.add(f"{name}/{end}", value)
    if len(by_round) > 1 and of_equals:
        sums.add(f"{name}/delta", by_round[-1] - by_round[0])


def _agreed_round(given: AnswersGiven) -> int | None:
    """Return the first round in which all who owe an answer give one and the same."""
    rules = given.debate.transcript.protocol
    for round, keys in given.rounds().items():
        classes = {given.classes[key] for key in keys}
        everyone = len(keys) == len(answering_agents(rules, round))
        if everyone and len(keys) > 1 and len(classes) == 1 and None not in classes:
            return round
    return None


def _sampled(turns: Sequence[Turn]) -> int | None:
    counts = [turn.token_counts for turn in turns]
    return None if None in counts else sum(count[1] for count in counts if count)


_log = logging.getLogger(__name__)
_AGENT = re.compile(r"\bagent\s*#?([0-9]{1,4})\b", re.IGNORECASE)
# What a malformed debate can end in; other errors concern all debates. Debates come from callers
# as they made them: a kind that there is not, an agent beyond the last, a text that is a number. A
# fault of this package would look the same, so the warning names the error's type and a debug
# record holds its traceback.
_ONE_DEBATE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


def debate_metrics(
    transcripts: Sequence[Transcript], seed: int = 0, scores: Sequence[Score] | None = None
) -> dict[str, float]:
    """Return the metrics of a batch; what cannot be observed in it is left out.

    - `format` (last round), `format_all`: share of turns in which an answer can be read.
      `format_strict`: share of turns that keep their contract (`Parsed.problems` is empty).
    - `correct`, `avg@k`, `pass@k`, `cons@k`, `maj@k`: of the last round. An agent without a turn
      there, or without an answer that can be read, counts as wrong. cons@k: more than half of the
      agents are right; maj@k: the largest answer class is right, ties between classes in
      expectation.
    - `unread`: agents of the last round whose answer could not be compared, all of which count as
      wrong; `unread/timeout`: those that ran into the time limit; `unread/REASON`: those that could
      not be read, by `Verdict.detail`, such as `unread/several_numbers`; left out where it is 0.
    - `accuracy/round_R`; `diversity/round_R`: answer classes per answer.
    - `flips/right_to_wrong`, `flips/wrong_to_right` (also by round, and by the number of dissenting
      peers), `drift/round_R`: see `add_change`, `add_dissent`.
    - `critic/…`, `critique/…`: see `add_criticism`.
    - `rho/round_R` and `n_eff/round_R`: `add_intraclass`, where a question (by its id) has several
      debates.
    - `maj/first` (Maj), `maj/last` (Debate), `maj/delta` (Δ), `maj/round_R`, `central/…`,
      `improvement`, `right/…` and `wrong/…` (lengths), `agreement/accuracy`: see
      `add_rounds`; `tokens/answer`, `agreement/tokens_saved` and `agreement/reached`: see
      `add_costs`.
    - `decision/majority`, `decision/peer_vote` and `decision/bradley_terry` (both of contracts that
      compare), `decision/confidence` (known log-probabilities), `decision/central` (topology
      central), `decision/judged` (before judges): accuracy of the debate's decision, ties drawn by
      `seed`.
    - `judge/accuracy`: over votes on a right and a wrong turn, `=` counting half;
      `judge/strict_accuracy`: the same with `=` counting 0; `judge/owed_accuracy`: the same over
      all such pairs that a judge was shown, those that it left out or lost by a failed turn
      counting half; `judge/equal_share`: share of `=` among all votes; `comparisons_made`: counted
      pairs over expected pairs.
    - `judged/…`, `speech/…`, of debates before a judge: see `add_judged`.
    - `judge/tpr`, `judge/fpr`: shares of votes on a right and a wrong turn that name the right one
      and the wrong one; `judge/error_correlation`: of the errors of two judges of such a pair.
    - `judge/first_shown`: share of verdicts other than `=` for the agent with the lower number,
      whose turn stands first; `judge/wins/agent_I`: share of those about agent I that it wins.
    - `unheard/named`: share of turns of the first round that name an agent they were not shown.
    - `reward/accuracy`, where `scores` are given: see `add_reward`.
    - `winner_truth_correlation`: correlation of a voted turn's vote value with its correctness;
      `rank_truth_correlation`: Spearman's of the ranking of a round, see `add_judging`.
    - `turns`, `rounds`, `failed_turns`: per debate; `unverifiable`: share of debates whose
      question's answer is missing or unreadable; they count in nothing above that needs truth.
    - `trained/…` and `role/NAME/…`, where several policies speak: `correct` (of the last round in
      which these agents owe an answer), `format_all`, `judge/…` and `comparisons_made` of the
      agents of the trained policy, and of each role of another policy.
    - `unmeasured`: share of debates that could not be measured; they count in nothing else;
      left out where it is 0.

    Args:
        transcripts: Finished debates.
        seed: Draws among equals in decisions.
        scores: What a reward gave each debate.
    """
    return pooled(question_moments(transcripts, seed, scores).values()).values()


def debate_statistics(
    transcripts: Sequence[Transcript], seed: int = 0, level: float = 0.95
) -> dict[str, Estimate]:
    """Return `debate_metrics` with bootstrap intervals over questions.

    A question is resampled with all its debates; debates on one question share its id.

    Args:
        transcripts: Finished debates.
        seed: Draws among equals in decisions, and resamples.
        level: Coverage of the intervals, between 0 and 1.

    Raises:
        ValueError: The level is not between 0 and 1.
    """
    return bootstrap_estimates(list(question_moments(transcripts, seed).values()), seed, level)


def question_values(
    transcripts: Sequence[Transcript], seed: int = 0
) -> dict[str, dict[str, float]]:
    """Return metric → question id → value over the question's debates.

    Correlations, N_eff and improvements are left out: ratios that one question does not define.
    """
    values: dict[str, dict[str, float]] = {}
    for question, moments in question_moments(transcripts, seed).items():
        for name, value in Sums(dict(moments)).values().items():
            if len(moments[name]) == 2 and not is_ratio(name):
                values.setdefault(name, {})[question] = value
    return values


def is_ratio(name: str) -> bool:
    """Return whether a metric is a ratio of sums over questions and not a mean of their values."""
    return name.split("/")[0] in ("rho", "n_eff", "improvement", "right", "wrong")


def question_moments(
    transcripts: Sequence[Transcript], seed: int = 0, scores: Sequence[Score] | None = None
) -> dict[str, dict[str, Moments]]:
    """Return question id → metric → its sum and weight (`debate_rewards.estimates`).

    All metrics are there, those that `question_values` leaves out included; `bootstrap_estimates`
    makes values with intervals of them.
    """
    sums: dict[str, Sums] = {}
    truth: dict[str, list[Mapping[TurnKey, bool]]] = {}
    measured = _measure(transcripts, seed)
    _add_absent_reasons([own for own, _ in measured])
    for number, (transcript, (own, right)) in enumerate(zip(transcripts, measured, strict=True)):
        question = transcript.question.id
        if right is not None:
            truth.setdefault(question, []).append(right)
            if scores is not None:
                add_reward(own, right, scores[number])
        sums.setdefault(question, Sums()).merge(own)
    for question, debates in truth.items():
        add_intraclass(sums[question], debates)
    return {question: own.moments for question, own in sums.items()}


def _measure(
    transcripts: Sequence[Transcript], seed: int
) -> list[tuple[Sums, dict[TurnKey, bool] | None]]:
    """Return per debate its sums and which turns are right, None without a usable answer.

    A debate that cannot be measured, such as one whose question has an unknown kind, counts in
    `unmeasured` alone.
    """
    try:
        return _measure_all(transcripts, seed)
    except _ONE_DEBATE as error:
        if len(transcripts) > 1:
            measured = [_measure([transcript], seed)[0] for transcript in transcripts]
            for sums, _ in measured:
                if "unmeasured" not in sums.moments:
                    sums.add("unmeasured", 0.0)
            return measured
        name = transcripts[0].id
        _log.warning("debate %r is not measured: %s: %s", name, type(error).__name__, error)
        _log.debug("debate %r is not measured", name, exc_info=True)
        sums = Sums()
        sums.add("unmeasured", 1.0)
        return [(sums, None)]


def _measure_all(
    transcripts: Sequence[Transcript], seed: int
) -> list[tuple[Sums, dict[TurnKey, bool] | None]]:
    given = answers_given(transcripts)
    decisions = [decisions_of(one.debate, seed) for one in given]
    asked = [
        (one.debate.transcript.question, answer)
        for one, chosen in zip(given, decisions, strict=True)
        for answer in chosen.values()
    ]
    decided = iter(check_many(asked))
    measured = []
    for one, chosen in zip(given, decisions, strict=True):
        sums, debate, right = Sums(), one.debate, one.right
        _add_format(sums, debate)
        for round, keys in one.rounds().items():
            classes = [number for key in keys if (number := one.classes[key]) is not None]
            if classes:
                sums.add(f"diversity/round_{round}", len(set(classes)) / len(classes))
        sums.add("unverifiable", float(right is None))
        outcomes = {name: next(decided).verdict == "right" for name in chosen}
        if right is not None:
            _add_accuracy(sums, one, right)
            add_change(sums, right)
            add_dissent(sums, debate, right)
            add_criticism(sums, debate, right)
            add_rounds(sums, one, right)
            for name, is_right in outcomes.items():
                sums.add(f"decision/{name}", float(is_right))
        add_costs(sums, one)
        add_judged(sums, debate, right)
        add_judging(sums, debate, right)
        for name, agents in agents_by_policy(debate.transcript.protocol).items():
            add_own(sums, debate, right, f"{name}/", agents)
        measured.append((sums, right))
    return measured


def _add_format(sums: Sums, debate: ReadDebate) -> None:
    last, num_agents = debate.last_round, debate.transcript.protocol.num_agents
    for key, turn in debate.turns.items():
        valid = float(not turn.failed)
        sums.add("format_all", valid)
        sums.add("format_strict", float(not turn.failed and not turn.parsed.problems))
        if key.round == last:
            sums.add("format", valid)
        if num_agents > 1 and key.round == 0:
            heard = {key.agent, *(shown.agent for shown in turn.turn.shown)}
            named = {int(n) for n in _AGENT.findall(turn.turn.text)} - heard
            sums.add("unheard/named", float(any(n < num_agents for n in named)))
    sums.add("turns", len(debate.turns))
    sums.add("rounds", last + 1)
    sums.add("failed_turns", sum(turn.failed for turn in debate.turns.values()))


def _add_accuracy(sums: Sums, given: AnswersGiven, right: Mapping[TurnKey, bool]) -> None:
    for key, is_right in right.items():
        sums.add(f"accuracy/round_{key.round}", float(is_right))
    last_round = given.debate.last_round
    last = [key for key in right if key.round == last_round]
    due = max(1, len(answering_agents(given.debate.transcript.protocol, last_round)))
    right_agents = sum(right[key] for key in last)
    sums.add("correct", right_agents, due)
    sums.add("avg@k", right_agents / due)
    sums.add("pass@k", float(right_agents > 0))
    sums.add("cons@k", float(2 * right_agents > due))
    sums.add("maj@k", given.majority(last))
    reasons = [given.verdicts[key].reason for key in last]
    read = sum(reason in ("same_text", "equivalent", "different") for reason in reasons)
    sums.add("unread", due - read, due)
    sums.add("unread/timeout", reasons.count("timeout"), due)
    details = Counter(detail for key in last if (detail := given.verdicts[key].detail))
    for detail, count in details.items():
        sums.add(_UNREAD_PREFIX + detail.replace(" ", "_"), count, due)


def _add_absent_reasons(debates: Sequence[Sums]) -> None:
    """Count 0 answers for each reason that only other debates have: shares are of all debates."""
    reasons = {name for sums in debates for name in sums.moments if name.startswith(_UNREAD_PREFIX)}
    for sums in debates:
        if "unread" in sums.moments:
            num_due = sums.moments["unread"][1]
            for name in reasons.difference(sums.moments):
                sums.add(name, 0.0, num_due)
