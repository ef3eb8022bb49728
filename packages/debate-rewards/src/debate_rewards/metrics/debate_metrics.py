"""Metrics of a batch of debates: format, accuracy, judging, diversity and decisions."""

import logging
from collections.abc import Mapping, Sequence

from debate_protocol.roles import agents_by_policy, answering_agents
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers.checking import Verdict, answer_classes, check_many
from debate_rewards.metrics.change import add_change, add_intraclass
from debate_rewards.metrics.intervals import Estimate, bootstrap_estimates
from debate_rewards.metrics.sums import Moments, Sums, pooled
from debate_rewards.reading import ReadDebate, read_debate
from debate_rewards.rewards.verifiable import turn_verdicts
from debate_rewards.votes.ballots import Vote, ballot, tally
from debate_rewards.votes.decisions import decisions_of, last_turns

_log = logging.getLogger(__name__)
_ONE_DEBATE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError)
"""What a malformed debate can end in; other errors concern all debates.

Debates come from callers as they made them: a kind that there is not, an agent beyond the last, a
text that is a number. A fault of this package would look the same, so the warning names the
error's type and a debug record holds its traceback.
"""


def debate_metrics(transcripts: Sequence[Transcript], seed: int = 0) -> dict[str, float]:
    """Return the metrics of a batch; what cannot be observed in it is left out.

    - `format` (last round), `format_all`: share of turns in which an answer can be read.
    - `correct`, `avg@k`, `pass@k`, `cons@k`, `maj@k`: of the last round. An agent without a turn
      there, or without an answer that can be read, counts as wrong. cons@k: more than half of the
      agents are right; maj@k: the largest answer class is right, ties between classes in
      expectation.
    - `unread`: agents of the last round whose answer could not be compared, all of which count as
      wrong; `unread/timeout`: those that ran into the time limit.
    - `accuracy/round_R`; `diversity/round_R`: answer classes per answer.
    - `flips/right_to_wrong`, `flips/wrong_to_right` (also by round), `drift/round_R`: see
      `change.add_change`; `rho/round_R`: `change.intraclass_moments`, where a question (by its id)
      has several debates.
    - `decision/majority`, `decision/peer_vote`, `decision/central` (topology central): accuracy of
      the debate's decision, ties drawn by `seed`.
    - `judge/accuracy`: over votes on a right and a wrong turn, `=` counting half;
      `judge/strict_accuracy`: the same with `=` counting 0; `judge/equal_share`: share of `=`
      among all votes; `comparisons_made`: counted pairs over expected pairs.
    - `winner_truth_correlation`: correlation of a voted turn's vote value with its correctness.
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
    """
    return pooled(_questions(transcripts, seed).values()).values()


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
    return bootstrap_estimates(list(_questions(transcripts, seed).values()), seed, level)


def question_values(
    transcripts: Sequence[Transcript], seed: int = 0
) -> dict[str, dict[str, float]]:
    """Return metric → question id → value over the question's debates.

    Correlations are left out, which one question does not define.
    """
    values: dict[str, dict[str, float]] = {}
    for question, moments in _questions(transcripts, seed).items():
        for name, value in Sums(dict(moments)).values().items():
            if len(moments[name]) == 2 and not name.startswith("rho/"):
                values.setdefault(name, {})[question] = value
    return values


def _questions(transcripts: Sequence[Transcript], seed: int) -> dict[str, dict[str, Moments]]:
    """Return per question the moments of all its debates."""
    sums: dict[str, Sums] = {}
    truth: dict[str, list[Mapping[TurnKey, bool]]] = {}
    for transcript, (own, right) in zip(transcripts, _measure(transcripts, seed), strict=True):
        question = transcript.question.id
        sums.setdefault(question, Sums()).merge(own)
        if right is not None:
            truth.setdefault(question, []).append(right)
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
        measured = _measure_all(transcripts, seed)
    except _ONE_DEBATE:
        measured = [_measure_one(transcript, seed) for transcript in transcripts]
        for sums, _ in measured:
            if "unmeasured" not in sums.moments:
                sums.add("unmeasured", 0.0)
    return measured


def _measure_one(transcript: Transcript, seed: int) -> tuple[Sums, dict[TurnKey, bool] | None]:
    try:
        (measured,) = _measure_all([transcript], seed)
    except _ONE_DEBATE as error:
        _log.warning(
            "debate %r is not measured: %s: %s", transcript.id, type(error).__name__, error
        )
        _log.debug("debate %r is not measured", transcript.id, exc_info=True)
        sums = Sums()
        sums.add("unmeasured", 1.0)
        return sums, None
    return measured


def _measure_all(
    transcripts: Sequence[Transcript], seed: int
) -> list[tuple[Sums, dict[TurnKey, bool] | None]]:
    debates = [read_debate(transcript) for transcript in transcripts]
    verdicts = turn_verdicts(debates)
    decisions = [decisions_of(debate, seed) for debate in debates]
    asked = [
        (debate.transcript.question, answer)
        for debate, chosen in zip(debates, decisions, strict=True)
        for answer in chosen.values()
    ]
    decided = iter(check_many(asked))
    measured = []
    for debate, its_verdicts, chosen in zip(debates, verdicts, decisions, strict=True):
        sums = Sums()
        _add_format(sums, debate)
        _add_diversity(sums, debate)
        verifiable = all(v.verdict != "unverifiable" for v in its_verdicts.values())
        sums.add("unverifiable", 0.0 if verifiable else 1.0)
        right = {key: verdict.verdict == "right" for key, verdict in its_verdicts.items()}
        outcomes = {name: next(decided).verdict == "right" for name in chosen}
        if verifiable:
            _add_accuracy(sums, debate, right)
            _add_unread(sums, debate, its_verdicts)
            add_change(sums, right)
            for name, is_right in outcomes.items():
                sums.add(f"decision/{name}", float(is_right))
        known = right if verifiable else None
        _add_judging(sums, debate, known)
        for name, agents in agents_by_policy(debate.transcript.protocol).items():
            _add_own(sums, debate, known, f"{name}/", agents)
        measured.append((sums, right if verifiable else None))
    return measured


def _add_format(sums: Sums, debate: ReadDebate) -> None:
    last = debate.last_round
    for key, turn in debate.turns.items():
        valid = float(not turn.failed)
        sums.add("format_all", valid)
        if key.round == last:
            sums.add("format", valid)
    sums.add("turns", len(debate.turns))
    sums.add("rounds", last + 1)
    sums.add("failed_turns", sum(turn.failed for turn in debate.turns.values()))


def _add_diversity(sums: Sums, debate: ReadDebate) -> None:
    by_round: dict[int, list[str | None]] = {}
    for key, turn in debate.turns.items():
        answer = None if turn.failed else turn.parsed.answer
        by_round.setdefault(key.round, []).append(answer)
    for round_, answers in by_round.items():
        classes = [n for n in answer_classes(debate.transcript.question, answers) if n is not None]
        if classes:
            sums.add(f"diversity/round_{round_}", len(set(classes)) / len(classes))


def _add_accuracy(sums: Sums, debate: ReadDebate, right: Mapping[TurnKey, bool]) -> None:
    for key, is_right in right.items():
        sums.add(f"accuracy/round_{key.round}", float(is_right))
    last = last_turns(debate)
    num_agents = _agents_due(debate)
    right_agents = sum(right[turn.key] for turn in last.values())
    sums.add("correct", right_agents, num_agents)
    sums.add("avg@k", right_agents / num_agents)
    sums.add("pass@k", float(right_agents > 0))
    sums.add("cons@k", float(2 * right_agents > num_agents))
    turns = list(last.values())
    answers = [None if turn.failed else turn.parsed.answer for turn in turns]
    classes = answer_classes(debate.transcript.question, answers)
    sizes = {n: classes.count(n) for n in classes if n is not None}
    largest = [n for n, size in sizes.items() if size == max(sizes.values())]
    winners = [right[turns[classes.index(n)].key] for n in largest]
    sums.add("maj@k", sum(winners) / len(winners) if winners else 0.0)


def _agents_due(debate: ReadDebate) -> int:
    """Return how many agents owed an answer in the last round."""
    return max(1, len(answering_agents(debate.transcript.protocol, debate.last_round)))


def _add_unread(sums: Sums, debate: ReadDebate, verdicts: Mapping[TurnKey, Verdict]) -> None:
    num_agents = _agents_due(debate)
    last = [verdicts[turn.key] for turn in last_turns(debate).values()]
    read = sum(verdict.reason in ("same_text", "equivalent", "different") for verdict in last)
    sums.add("unread", num_agents - read, num_agents)
    sums.add("unread/timeout", sum(verdict.reason == "timeout" for verdict in last), num_agents)


def _add_judging(sums: Sums, debate: ReadDebate, right: Mapping[TurnKey, bool] | None) -> None:
    """Add what votes show, and how far they go with the truth."""
    votes = _add_votes(sums, debate, right, "", frozenset(key.agent for key in debate.judges))
    if right is not None:
        shares = tally(votes).items()
        points = ((share.balance, float(right[key])) for key, share in shares)
        sums.add_points("winner_truth_correlation", points)


def _add_votes(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool] | None,
    of: str,
    agents: frozenset[int],
) -> list[Vote]:
    """Add what the votes of some agents show, under names that begin with `of`; return them."""
    judges = {key: judge for key, judge in debate.judges.items() if key.agent in agents}
    votes = [vote for judge in judges.values() for vote in ballot(debate, judge).votes]
    expected = sum(debate.expected_pairs(judge) for judge in judges.values())
    if expected:
        sums.add(f"{of}comparisons_made", len(votes), expected)
    for vote in votes:
        sums.add(f"{of}judge/equal_share", float(vote.verdict == "="))
        if right is not None and right[vote.left] != right[vote.right]:
            _add_judged_pair(sums, vote, of, left_is_right=right[vote.left])
    return votes


def _add_own(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool] | None,
    of: str,
    agents: frozenset[int],
) -> None:
    """Add what some agents did themselves, apart from the others."""
    _add_votes(sums, debate, right, of, agents)
    for key, turn in debate.turns.items():
        if key.agent in agents:
            sums.add(f"{of}format_all", float(not turn.failed))
    rules = debate.transcript.protocol
    for last in range(debate.last_round, -1, -1):
        due = agents.intersection(answering_agents(rules, last))
        if due and right is not None:
            answered = sum(right.get(TurnKey(agent, last), False) for agent in due)
            sums.add(f"{of}correct", answered, len(due))
        if due:
            return


def _add_judged_pair(sums: Sums, vote: Vote, of: str, *, left_is_right: bool) -> None:
    agrees = vote.verdict == (">" if left_is_right else "<")
    sums.add(f"{of}judge/accuracy", 0.5 if vote.verdict == "=" else float(agrees))
    sums.add(f"{of}judge/strict_accuracy", float(agrees))
