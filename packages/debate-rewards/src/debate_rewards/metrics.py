"""Metrics of a batch of debates: format, accuracy, judging, diversity and decisions."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from debate_protocol.types import Transcript, TurnKey, agents_by_policy, answering_agents
from debate_rewards.answer_checking import Verdict, check_many
from debate_rewards.answer_pools import classes_of_turns
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

_log = logging.getLogger(__name__)

_UNREAD_PREFIX = "unread/"
_AGENT = re.compile(r"\bagent\s*#?([0-9]{1,4})\b", re.IGNORECASE)
# Errors of one malformed debate; other errors concern all debates. Debates come from callers as
# they made them: an unknown kind, an agent beyond the last, a text that is a number. A fault of
# this package would look the same, so the warning names the error's type and a debug record holds
# its traceback.
_ONE_DEBATE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)


@dataclass(frozen=True, slots=True)
class AnswersGiven:
    """The answers of a debate's turns by class, and whether they are right.

    `classes` are numbered for each round alone, or across rounds (`answers_given`); `None` for
    a turn without an answer. `right` is `None` where the question's own answer cannot be used.
    """

    debate: ReadDebate
    verdicts: Mapping[TurnKey, Verdict]
    classes: Mapping[TurnKey, int | None]

    @property
    def right(self) -> dict[TurnKey, bool] | None:
        """Rightness of each turn, `None` where the question's own answer cannot be used."""
        if any(verdict.verdict == "unverifiable" for verdict in self.verdicts.values()):
            return None
        return {key: verdict.verdict == "right" for key, verdict in self.verdicts.items()}

    def majority(self, keys: Iterable[TurnKey]) -> float:
        """Compute whether the majority of these turns is right, ties in expectation.

        A turn without an answer has no vote; nobody answering is wrong.
        """
        class_sizes: Counter[int] = Counter()
        is_right_class: dict[int, bool] = {}
        for key in keys:
            number = self.classes[key]
            if number is not None:
                class_sizes[number] += 1
                # Equivalent answers may be spelled so that one is not read: the first decides.
                is_right_class.setdefault(number, self.verdicts[key].verdict == "right")
        if not class_sizes:
            return 0.0
        largest_size = max(class_sizes.values())
        # Ties count in expectation: the share of right classes among the largest.
        largest = [number for number, size in class_sizes.items() if size == largest_size]
        return sum(is_right_class[number] for number in largest) / len(largest)

    def rounds(self) -> dict[int, list[TurnKey]]:
        """Group the turns by round, in order."""
        rounds: dict[int, list[TurnKey]] = {}
        for key in self.debate.turns:
            rounds.setdefault(key.round, []).append(key)
        return dict(sorted(rounds.items()))


def answers_given(
    transcripts: Sequence[Transcript], *, across_rounds: bool = False
) -> list[AnswersGiven]:
    """Read and check the answers of finished debates, in order.

    Args:
        transcripts: Finished debates.
        across_rounds: Number the classes of all rounds together.

    Raises:
        ValueError: A turn is impossible, or a contract or the kind of a question is unknown.
    """
    debates = [read_debate(transcript) for transcript in transcripts]
    answers = []
    for debate, verdicts in zip(debates, turn_verdicts(debates), strict=True):
        classes = classes_of_turns(debate, across_rounds=across_rounds)
        answers.append(AnswersGiven(debate=debate, verdicts=verdicts, classes=classes))
    return answers


def add_rounds(sums: Sums, debate_answers: AnswersGiven, right: Mapping[TurnKey, bool]) -> None:
    """Add metrics of rounds that need the truth.

    - `maj/round_R`: whether the majority of the round's answers is right, ties in expectation;
      `maj/first` and `maj/last` are those of the first and the last round (Maj and Debate),
      `maj/delta` the second minus the first (Δ), except under topology `pair`, where second turns
      are sampled for each pair of first turns. All belong to the same debate, and so to the same
      first turns.
    - `pass@k/round_R`: whether any of the round's answers is right, a bound of every choice among
      them, such as the peers' vote.
    - `central/first`, `central/last`, `central/delta`, under topology central: the same of the
      answers of the agent in the center: single answers, no vote.
    - `improvement`: (accuracy of the last round − of the first) / accuracy of the first, a ratio
      of sums over all debates of several rounds, as Δ.
    - `right/tokens/round_R`, `wrong/tokens/round_R`: mean number of sampled tokens of the round's
      right and wrong replies; `right/characters/round_R`, `wrong/characters/round_R` of characters.
    - `agreement/accuracy`: whether the majority is right, had the debate been stopped after the
      first round with the same answer from all agents, or else after the last round.

    Source: SDRL (paper), tables 1, 3, 4 and 6; ACC-Debate (paper), equation 5.
    """
    rounds = debate_answers.rounds()
    if not rounds:
        return
    # Majorities are needed several times below, and each walks over its round's answers.
    majority_right = {round: debate_answers.majority(keys) for round, keys in rounds.items()}
    for round, keys in rounds.items():
        sums.add(f"maj/round_{round}", majority_right[round])
        sums.add(f"pass@k/round_{round}", float(any(right[key] for key in keys)))
    # A debate may end early, so `last` is the debate's own last round.
    first = min(rounds)
    last = max(rounds)
    protocol = debate_answers.debate.transcript.protocol
    sums.add("maj/first", majority_right[first])
    sums.add("maj/last", majority_right[last])
    # The two rounds of a debate of pairs have different numbers of samples.
    if first < last and protocol.topology != "pair":
        sums.add("maj/delta", majority_right[last] - majority_right[first])
    if protocol.topology == "central":
        _add_center(sums, right, protocol.center or 0)
    if first < last:
        first_accuracy = sum(right[key] for key in rounds[first]) / len(rounds[first])
        last_accuracy = sum(right[key] for key in rounds[last]) / len(rounds[last])
        # A ratio of sums: its weight is the accuracy that it divides by.
        sums.add("improvement", last_accuracy - first_accuracy, first_accuracy)
    agreed_round = _agreed_round(debate_answers)
    stop_round = last if agreed_round is None else agreed_round
    sums.add("agreement/accuracy", majority_right[stop_round])
    for key, turn in debate_answers.debate.turns.items():
        side = "right" if right[key] else "wrong"
        sums.add(f"{side}/characters/round_{key.round}", len(turn.turn.text))
        if turn.turn.token_counts is not None:
            sums.add(f"{side}/tokens/round_{key.round}", turn.turn.token_counts[1])


def _add_center(sums: Sums, right: Mapping[TurnKey, bool], center: int) -> None:
    center_keys = sorted((k for k in right if k.agent == center), key=lambda key: key.round)
    if not center_keys:
        return
    first_right = float(right[center_keys[0]])
    last_right = float(right[center_keys[-1]])
    sums.add("central/first", first_right)
    sums.add("central/last", last_right)
    if len(center_keys) > 1:
        sums.add("central/delta", last_right - first_right)


def add_costs(sums: Sums, debate_answers: AnswersGiven) -> None:
    """Add metrics of rounds that need no truth.

    - `tokens/answer`: sampled tokens of the whole debate, which gives one answer.
    - `agreement/reached`: whether all agents give one answer in some round.
    - `agreement/tokens_saved`: share of the sampled tokens after the first such round, the saving
      of a debate that stops there.

    Tokens are left out where a turn holds neither its reply nor its counts.
    """
    turns = debate_answers.debate.transcript.turns
    if not debate_answers.debate.turns:
        return
    agreed_round = _agreed_round(debate_answers)
    sums.add("agreement/reached", float(agreed_round is not None))
    num_tokens = 0
    num_saved = 0
    # Judges and critics cost tokens, too: all turns count, not only those with an answer.
    for turn in turns:
        if turn.token_counts is None:
            return
        num_sampled = turn.token_counts[1]
        num_tokens += num_sampled
        if agreed_round is not None and turn.round > agreed_round:
            num_saved += num_sampled
    sums.add("tokens/answer", num_tokens)
    sums.add("agreement/tokens_saved", num_saved, num_tokens)


def _agreed_round(debate_answers: AnswersGiven) -> int | None:
    """Find the first round with the same answer from all expected agents."""
    protocol = debate_answers.debate.transcript.protocol
    for round, keys in debate_answers.rounds().items():
        classes = {debate_answers.classes[key] for key in keys}
        has_everyone = len(keys) == len(answering_agents(protocol, round))
        # One answer always agrees with itself, and turns without an answer agree on nothing.
        has_one_answer = len(keys) > 1 and len(classes) == 1 and None not in classes
        if has_everyone and has_one_answer:
            return round
    return None


def debate_metrics(
    transcripts: Sequence[Transcript], seed: int = 0, scores: Sequence[Score] | None = None
) -> dict[str, float]:
    """Compute the metrics of a batch; unobservable ones are left out.

    - `format` (last round), `format_all`: share of turns in which an answer can be read.
      `format_strict`: share of turns that keep their contract (`Parsed.problems` is empty).
    - `correct`, `avg@k`, `pass@k`, `cons@k`, `maj@k`: of the last round. An agent without a turn
      there, or without an answer that can be read, counts as wrong. cons@k: more than half of the
      agents are right; maj@k: the largest answer class is right, ties between classes in
      expectation.
    - `unread`: agents of the last round whose answer could not be compared, all of which count as
      wrong; `unread/timeout`: answers that ran into the time limit; `unread/REASON`: unreadable
      answers, by `Verdict.detail`, such as `unread/several_numbers`; left out where it is 0.
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
      all such pairs that a judge was shown, pairs left out or lost by a failed turn counting half;
      `judge/equal_share`: share of `=` among all votes; `comparisons_made`: counted pairs over
      expected pairs, or readable over expected checks of single answers.
    - `judged/…`, `speech/…`, of debates before a judge: see `add_judged`.
    - `judge/tpr`, `judge/fpr`: shares of votes on a right and a wrong turn that name the right one
      and the wrong one; `judge/error_correlation`: of the errors of two judges of such a pair.
    - `judge/first_shown`: share of verdicts other than `=` for the agent with the lower number,
      whose turn is shown first, without checks of single answers; `judge/wins/agent_I`: share of
      verdicts about agent I that it wins.
    - `unheard/named`: share of turns of the first round that name an agent they were not shown.
    - `reward/accuracy`, `reward/chance`, where `scores` are given: see `add_reward`.
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
        scores: The score of each debate by a reward.
    """
    return pooled(question_moments(transcripts, seed, scores).values()).values()


def debate_statistics(
    transcripts: Sequence[Transcript], seed: int = 0, level: float = 0.95
) -> dict[str, Estimate]:
    """Compute `debate_metrics` with bootstrap intervals over questions.

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
    """Compute metric → question id → value over the question's debates.

    Correlations, N_eff and improvements are left out: ratios that one question does not define.
    """
    values: dict[str, dict[str, float]] = {}
    for question, moments in question_moments(transcripts, seed).items():
        for name, value in Sums(dict(moments)).values().items():
            # Two moments are a sum and its weight; a correlation has six.
            is_mean = len(moments[name]) == 2 and not is_ratio(name)
            if is_mean:
                values.setdefault(name, {})[question] = value
    return values


def is_ratio(name: str) -> bool:
    """Say whether a metric is a ratio of sums over questions and not a mean of their values."""
    first_part = name.split("/")[0]
    return first_part in ("rho", "n_eff", "improvement", "right", "wrong")


def question_moments(
    transcripts: Sequence[Transcript], seed: int = 0, scores: Sequence[Score] | None = None
) -> dict[str, dict[str, Moments]]:
    """Compute question id → metric → its sum and weight (`debate_rewards.estimates`).

    All metrics are there, those that `question_values` leaves out included; `bootstrap_estimates`
    makes values with intervals of them.
    """
    measured = _measure(transcripts, seed)
    # Before debates are merged by question: a share needs the zeros of debates without the reason.
    _add_absent_reasons([sums for sums, _ in measured])
    question_sums: dict[str, Sums] = {}
    question_truths: dict[str, list[Mapping[TurnKey, bool]]] = {}
    for index, (debate_sums, right) in enumerate(measured):
        question_id = transcripts[index].question.id
        if right is not None:
            question_truths.setdefault(question_id, []).append(right)
            if scores is not None:
                add_reward(debate_sums, right, scores[index])
        question_sums.setdefault(question_id, Sums()).merge(debate_sums)
    # How alike the debates of one question are is no sum over them.
    for question_id, truths in question_truths.items():
        add_intraclass(question_sums[question_id], truths)
    return {question_id: sums.moments for question_id, sums in question_sums.items()}


def _measure(
    transcripts: Sequence[Transcript], seed: int
) -> list[tuple[Sums, dict[TurnKey, bool] | None]]:
    """Measure each debate: its sums, and whether turns are right, `None` without a usable answer.

    A debate that cannot be measured, such as one whose question has an unknown kind, counts in
    `unmeasured` alone.
    """
    try:
        # All debates in one call first: their answers are then checked side by side.
        return _measure_all(transcripts, seed)
    except _ONE_DEBATE as error:
        if len(transcripts) > 1:
            # One by one, so that the malformed debates alone are left out.
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
    batch_answers = answers_given(transcripts)
    decisions = [decisions_of(answers.debate, seed) for answers in batch_answers]
    # All decisions are checked in one call, so that worker processes share them out.
    decided_answers = []
    for answers, debate_decisions in zip(batch_answers, decisions, strict=True):
        question = answers.debate.transcript.question
        decided_answers += [(question, answer) for answer in debate_decisions.values()]
    next_verdict = iter(check_many(decided_answers))

    measured = []
    for answers, debate_decisions in zip(batch_answers, decisions, strict=True):
        sums = Sums()
        debate = answers.debate
        right = answers.right
        _add_format(sums, debate)
        for round, keys in answers.rounds().items():
            round_classes = [answers.classes[key] for key in keys]
            readable_classes = [number for number in round_classes if number is not None]
            if readable_classes:
                diversity = len(set(readable_classes)) / len(readable_classes)
                sums.add(f"diversity/round_{round}", diversity)
        sums.add("unverifiable", float(right is None))
        # Taken for every debate, measured or not: the iterator runs over all of them.
        decision_verdicts = {name: next(next_verdict).verdict for name in debate_decisions}
        if right is not None:
            _add_accuracy(sums, answers, right)
            add_change(sums, right)
            add_dissent(sums, debate, right)
            add_criticism(sums, debate, right)
            add_rounds(sums, answers, right)
            for name, verdict in decision_verdicts.items():
                sums.add(f"decision/{name}", float(verdict == "right"))
        add_costs(sums, answers)
        add_judged(sums, debate, right)
        add_judging(sums, debate, right)
        for name, agents in agents_by_policy(debate.transcript.protocol).items():
            add_own(sums, debate, right, f"{name}/", agents)
        measured.append((sums, right))
    return measured


def _add_format(sums: Sums, debate: ReadDebate) -> None:
    last_round = debate.last_round
    num_agents = debate.transcript.protocol.num_agents
    num_failed = 0
    for key, turn in debate.turns.items():
        num_failed += turn.failed
        sums.add("format_all", float(not turn.failed))
        sums.add("format_strict", float(not turn.failed and not turn.parsed.problems))
        if key.round == last_round:
            sums.add("format", float(not turn.failed))
        if num_agents > 1 and key.round == 0:
            # A policy that names agents before it read any has learned to pretend a debate.
            shown_agents = {key.agent, *(shown.agent for shown in turn.turn.shown)}
            named_agents = {int(number) for number in _AGENT.findall(turn.turn.text)}
            unheard_agents = [a for a in named_agents - shown_agents if a < num_agents]
            sums.add("unheard/named", float(bool(unheard_agents)))
    sums.add("turns", len(debate.turns))
    sums.add("rounds", last_round + 1)
    sums.add("failed_turns", num_failed)


def _add_accuracy(sums: Sums, debate_answers: AnswersGiven, right: Mapping[TurnKey, bool]) -> None:
    for key, is_right in right.items():
        sums.add(f"accuracy/round_{key.round}", float(is_right))
    last_round = debate_answers.debate.last_round
    last_keys = [key for key in right if key.round == last_round]
    # An agent that did not speak counts as wrong: the denominator is all that should answer.
    protocol = debate_answers.debate.transcript.protocol
    num_expected = max(1, len(answering_agents(protocol, last_round)))
    num_right = sum(right[key] for key in last_keys)
    sums.add("correct", num_right, num_expected)
    sums.add("avg@k", num_right / num_expected)
    sums.add("pass@k", float(num_right > 0))
    sums.add("cons@k", float(2 * num_right > num_expected))
    sums.add("maj@k", debate_answers.majority(last_keys))
    num_read = num_timeouts = 0
    detail_counts: Counter[str] = Counter()
    for key in last_keys:
        verdict = debate_answers.verdicts[key]
        num_read += verdict.reason in ("same_text", "equivalent", "different")
        num_timeouts += verdict.reason == "timeout"
        if verdict.detail:
            detail_counts[verdict.detail] += 1
    sums.add("unread", num_expected - num_read, num_expected)
    sums.add("unread/timeout", num_timeouts, num_expected)
    for detail, count in detail_counts.items():
        sums.add(_UNREAD_PREFIX + detail.replace(" ", "_"), count, num_expected)


def _add_absent_reasons(debates: Sequence[Sums]) -> None:
    """Count 0 answers for each reason that only other debates have: shares are of all debates."""
    reasons = {name for sums in debates for name in sums.moments if name.startswith(_UNREAD_PREFIX)}
    for sums in debates:
        if "unread" in sums.moments:
            _, num_expected = sums.moments["unread"]
            for name in reasons.difference(sums.moments):
                sums.add(name, 0.0, num_expected)
