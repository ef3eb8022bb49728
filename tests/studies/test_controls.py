"""Controls: votes drawn from the truth with given error rates, and shuffled values."""

import random
from collections import Counter, defaultdict
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.rewards.debates import (
    SILENT_FIVE,
    debate_of,
    numbers,
    on_question,
    round_values,
    score_of,
)
from tests.rewards.second_reading import drawn_debates
from tests.rewards.test_learnability import proposed_debate, values_of

from debate_rewards import V2, Learnability
from debate_rewards.reward import read_debate
from debate_rewards.votes import all_votes, ballots
from debate_studies.controls import LearnabilityControl, V2Control, VotesFrom
from debate_train.advantages import Grouped

TRUE_S0 = {"answer": "s0"}
SILENT = [""] * 3
# All of them against the truth, or about two wrong turns: agent 0 is right, 1 and 2 are wrong.
LINES = ["A1>A2", "A2>A0", "A1>A0"]


def credits_of(score, stream):
    return [credit for credit in score.credits if credit.stream == stream]


def generator(score):
    credits = credits_of(score, "generator")
    return {(credit.agent, credit.round): credit.value for credit in credits}


def credited(debate, **options):
    (score,) = V2Control(**options)([debate])
    return generator(score)


def drawn(debate, votes_from):
    read = read_debate(debate)
    right = {key: turn.parsed.answer == "s0" for key, turn in read.turns.items()}
    votes = all_votes(ballots(read))
    return [vote.verdict for vote in votes_from.draw(read, votes, right)]


def test_votes_from_truth_without_errors_name_the_right_turn(hold):
    debate = hold(SILENT, LINES, **TRUE_S0)
    # Pairs (1,2), (0,2), (0,1): both wrong, then agent 0 is right.
    assert drawn(debate, VotesFrom(tpr=1, fpr=0)) == ["=", ">", ">"]
    # Every call wrong: the wrong turn wins.
    assert drawn(debate, VotesFrom(tpr=0, fpr=1)) == ["=", "<", "<"]
    # Both called right, or both wrong.
    assert drawn(debate, VotesFrom(tpr=1, fpr=1)) == ["="] * 3
    assert drawn(debate, VotesFrom(tpr=0, fpr=0)) == ["="] * 3
    (score,) = V2Control(votes_from=VotesFrom(tpr=1, fpr=0))([debate])
    # Agent 0 wins both; 1 and 2 lose one and tie one: 2 · (½ / 2) − 1.
    assert [generator(score)[agent, 0] for agent in range(3)] == [1.0, -0.5, -0.5]
    assert generator(V2()([debate])[0])[0, 0] == -1.0


def test_votes_from_truth_leave_judges_and_their_metrics_as_they_are(hold):
    lines = ["", "", "A0>A1", "A0>A1; A2>A0", "A1>A0"]
    debate = hold([""] * 5, lines, n=5, **TRUE_S0)
    (drawn_score,) = V2Control(votes_from=VotesFrom(tpr=0, fpr=1))([debate])
    (score,) = V2()([debate])
    judge_credits = credits_of(score, "judge")
    assert credits_of(drawn_score, "judge") == judge_credits
    assert any(credit.value is not None for credit in judge_credits)
    changed = {
        name for name in score.metrics if score.metrics[name] != drawn_score.metrics.get(name)
    }
    assert changed == {"reward/gen/mean"}
    # Turns that nobody compared get no vote, either.
    assert generator(drawn_score)[3, 0] is None


def rates(hold, errors, *, tpr=0.8, fpr=0.3, count=400):
    """Return the shares of >, =, < on a right and a wrong turn, over many debates."""
    debates = [hold(SILENT, ["", "", "A0>A1"], id=f"{i}", **TRUE_S0) for i in range(count)]
    verdicts = [drawn(d, VotesFrom(tpr=tpr, fpr=fpr, errors=errors))[0] for d in debates]
    return [verdicts.count(verdict) / count for verdict in (">", "=", "<")]


@pytest.mark.parametrize("errors", ["independent", "fixed"])
def test_votes_from_truth_err_at_the_given_rates(hold, errors):
    # .8 · .7 = .56; .8 · .3 + .2 · .7 = .38; .2 · .3 = .06. The standard error is at most .025.
    # A question has the id of its debate here, so that fixed errors differ, too.
    assert rates(hold, errors) == pytest.approx([0.56, 0.38, 0.06], abs=0.09)


def verdicts_of_three(hold, errors, question="q", *, id):
    """Return verdicts of agents 2, 3 and 4 on agents 0 and 1, where 0 alone is right."""
    debate = hold([""] * 5, ["", "", "A0>A1", "A0>A1", "A0>A1"], n=5, id=id, **TRUE_S0)
    debate = replace(debate, question=replace(debate.question, id=question))
    return drawn(debate, VotesFrom(tpr=0.5, fpr=0.5, errors=errors))


def test_fixed_errors_are_those_of_the_answer_in_all_debates_of_a_question(hold):
    for number in range(20):
        alike = {
            verdict
            for copy in range(2)
            for verdict in verdicts_of_three(hold, "fixed", f"q{number}", id=f"d{copy}")
        }
        assert len(alike) == 1
    independent = {tuple(verdicts_of_three(hold, "independent", id=f"{n}")) for n in range(20)}
    assert any(len(set(verdicts)) > 1 for verdicts in independent)
    assert len(independent) > 1
    again = {tuple(verdicts_of_three(hold, "independent", id="0")) for _ in range(2)}
    assert len(again) == 1


def test_v2_shuffle_keeps_each_rounds_values_and_spares_failures(hold):
    rounds = ([""] * 4 + [None], ["A1>A2", "A0>A3", "A0>A3", "A0>A1", ""])
    plain = {}
    mixed = {}
    for options, out in (({}, plain), ({"shuffle_votes": True}, mixed)):
        for i in range(40):
            out[i] = credited(hold(*rounds, n=5, id=f"d{i}"), **options)
    for i, values in mixed.items():
        assert sorted(values[a, 0] for a in range(4)) == sorted(plain[i][a, 0] for a in range(4))
        assert values[4, 0] == -1.0
    # A uniform permutation leaves no trace of the winner: agent 0's mean is that of all four.
    means = [sum(v[a, 0] for v in mixed.values()) / 40 for a in range(4)]
    expected = sum(plain[0][a, 0] for a in range(4)) / 4
    assert all(abs(mean - expected) < 0.4 for mean in means)
    assert len({tuple(v.values()) for v in mixed.values()}) > 4


def test_v2_shuffled_verdicts_keep_the_values_of_a_round_and_spare_the_generator(hold):
    # Agents 2 to 4 judge (0, 1) twice alike and once otherwise; 3 and 4 judge (0, 2), level.
    lines = ["", "", "A0>A1", "A0>A1; A0>A2", "A1>A0; A2>A0"]

    def spans(transcript, **options) -> dict[tuple[int, int], float | None]:
        (score,) = V2Control(judge_credit="line", format_penalty=None, **options)([transcript])
        line_credits = [c for c in score.credits if c.stream == "judge" and c.span is not None]
        return {(c.agent, c.span[0]): c.value for c in line_credits if c.span}

    plain = spans(hold([""] * 5, lines, n=5), consensus="inclusive")
    assert sorted(v for v in plain.values() if v is not None) == [-1.0, 1.0, 1.0]
    dealt = []
    for number in range(60):
        debate = hold([""] * 5, lines, n=5, id=f"d{number}")
        mixed = spans(debate, consensus="inclusive", shuffle_verdicts=True)
        assert mixed == spans(debate, consensus="inclusive", shuffle_verdicts=True)
        assert {k for k, v in mixed.items() if v is None} == {
            k for k, v in plain.items() if v is None
        }
        dealt.append([v for v in mixed.values() if v is not None])
        assert sorted(dealt[-1]) == [-1.0, 1.0, 1.0]
        by_stream = [
            [
                c
                for c in V2Control(shuffle_verdicts=s)([debate])[0].credits
                if c.stream == "generator"
            ]
            for s in (False, True)
        ]
        assert by_stream[0] == by_stream[1]
    # Each of the three has the -1 in about 20 of 60 (4 standard deviations are 14.6).
    for position in range(3):
        assert abs(sum(values[position] == -1.0 for values in dealt) - 20) <= 14


# ---- centered shuffles ----------------------------------------------------------------------

BY_LINE = {"consensus": "peer_prediction", "judge_credit": "line", "format_penalty": None}


def line_values(score, stream="judge"):
    """List the values of lines, without penalties."""
    credits = [credit for credit in credits_of(score, stream) if credit.span is not None]
    return [credit.value for credit in credits if credit.value is not None]


def test_centered_values_are_those_without_their_mean():
    # Agents 0 to 3 have 1½ of 2 votes, 1 of 1, 0 of 2 and ½ of 1: ½, 1, −1, 0 with the mean 1/8.
    debate = debate_of("| | |", "A1>A2 | A0>A2 | A0=A3 |")
    assert round_values(score_of(V2Control(), debate), 0) == numbers("1/2 1 -1 0")
    dealt = round_values(score_of(V2Control(shuffle_votes=True, center=True), debate), 0)
    assert sorted(dealt) == numbers("-9/8 -1/8 3/8 7/8")


def test_judges_who_agree_earn_nothing_from_centered_verdicts():
    # Judges 2, 3 and 4 agree in one debate; in the other one of them does not. Peer prediction:
    #   agree   each 2/2 − (frequency of > elsewhere, 2/3) = 1/3
    #   split   > : 1/2 − (3/3) = −1/2 twice, < : 0/2 − 0 = 0; the mean is −1/3
    agree = debate_of(SILENT_FIVE, "| | A0>A1 | A0>A1 | A0>A1", id="agree")
    split = debate_of(SILENT_FIVE, "| | A0>A1 | A0>A1 | A1>A0", id="split")
    options = BY_LINE | {"shuffle_verdicts": True}
    scores = V2Control(**options)([agree, split])
    assert line_values(scores[0]) == numbers("1/3 1/3 1/3")
    assert sorted(line_values(scores[1])) == numbers("-1/2 -1/2 0")
    scores = V2Control(**options, center=True)([agree, split])
    assert line_values(scores[0]) == [0.0, 0.0, 0.0]
    assert sorted(line_values(scores[1])) == numbers("-1/6 -1/6 1/3")


def judged_pairs(count):
    """Build debates in which three judges each name the right one of two turns in .8 of cases."""
    chance = random.Random(7)
    debates = []
    for number in range(count):
        verdicts = ["A0>A1" if chance.random() < 0.8 else "A1>A0" for _ in range(3)]
        # Agent 0 is right in every second debate, agent 1 in the others.
        if number % 2:
            verdicts = [verdict[3:] + ">" + verdict[:2] for verdict in verdicts]
        lines = f"| | {' | '.join(verdicts)}"
        debates.append(debate_of(SILENT_FIVE, lines, id=f"d{number}"))
    return debates


def test_shuffled_verdicts_are_independent_of_truth_only_if_centered():
    debates = judged_pairs(1000)

    def lead_of_right(center):
        reward = V2Control(**BY_LINE, shuffle_verdicts=True, center=center)
        values = {True: [], False: []}
        for number, (debate, score) in enumerate(zip(debates, reward(debates), strict=True)):
            right_line = "Agent 1>Agent 0" if number % 2 else "Agent 0>Agent 1"
            for credit in credits_of(score, "judge"):
                if credit.span is not None and credit.value is not None:
                    text = debate.turns[5 + credit.agent].text
                    is_right = text[slice(*credit.span)] == right_line
                    values[is_right].append(credit.value)
        return fmean(values[True]) - fmean(values[False])

    # Values are −½ to ½; with 2,400 right and 600 wrong verdicts a difference of means has a
    # standard error of at most .023.
    assert lead_of_right(center=False) > 0.15
    assert abs(lead_of_right(center=True)) < 0.09


def dealt_values(scores):
    """List the values of turns and lines by debate, stream and round, without failed turns."""
    values = defaultdict(list)
    for number, score in enumerate(scores):
        for credit in score.credits:
            is_of_vote = credit.span is not None or credit.stream == "generator"
            if is_of_vote and credit.value is not None and not credit.penalty:
                values[number, credit.stream, credit.round].append(credit.value)
    return values


def sums_of_advantages(transcripts, scores):
    """Add up the advantages of each debate, stream and round under the usual baselines."""
    sums = Counter()
    grouped = Grouped(streams={"generator": {}, "judge": {}})
    turns_by_debate = grouped.compute(transcripts, scores, {}).turns
    for number, turns in enumerate(turns_by_debate):
        for key, advantages in turns.items():
            for advantage in advantages:
                if advantage.span is not None or advantage.stream == "generator":
                    sums[number, advantage.stream, key.round] += advantage.value
    return sums


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(drawn_debates(), min_size=2, max_size=3))
def test_centered_advantages_of_any_debates_sum_to_zero(drawn):
    transcripts = []
    for number, debate in enumerate(drawn):
        transcripts.append(on_question(f"q{number}", debate.transcript()))
    plain = dealt_values(V2Control(**BY_LINE)(transcripts))
    control = V2Control(**BY_LINE, shuffle_votes=True, shuffle_verdicts=True, center=True)
    scores = control(transcripts)
    dealt = dealt_values(scores)
    assert plain.keys() == dealt.keys()
    for group, values in plain.items():
        mean = fmean(values)
        expected = sorted(value - mean for value in values)
        assert sorted(dealt[group]) == pytest.approx(expected, abs=1e-9)
    # A failed turn lowers its group's mean on purpose.
    with_failures = {
        (number, "generator", credit.round)
        for number, score in enumerate(scores)
        for credit in score.credits
        if credit.penalty
    }
    for group, total in sums_of_advantages(transcripts, scores).items():
        if group not in with_failures:
            assert total == pytest.approx(0.0, abs=1e-9)


def test_center_needs_something_that_is_shuffled():
    with pytest.raises(ValidationError, match="center: found true without a shuffle"):
        V2Control(center=True)


@given(drawn_debates())
@settings(max_examples=50, deadline=None)
def test_judged_only_leaves_pooled_values_to_turns_that_were_compared(drawn):
    debate = drawn.transcript()
    by_agent = credited(debate, consensus="none")
    pooled = credited(debate, consensus="none", pool="answer")
    judged = credited(debate, consensus="none", pool="answer", judged_only=True)
    expected = {key: pooled[key] if by_agent[key] is not None else None for key in judged}
    assert judged == expected


def test_judged_only_needs_pooled_answers():
    with pytest.raises(ValidationError, match="judged_only: found true with pool: agent"):
        V2Control(judged_only=True)


def test_control_deals_the_values_of_a_step_to_other_questions() -> None:
    answers = ["xxxx", "xxxy", "xxyz"] * 8
    debates = [proposed_debate(f"q{i}", text, id=f"d{i}") for i, text in enumerate(answers)]
    debates += [proposed_debate("bad"), proposed_debate("held out")]
    own = values_of(Learnability(repetition=0), debates)
    control = LearnabilityControl(repetition=0)
    shuffled = values_of(control, debates)
    assert shuffled != own
    assert sorted(shuffled[:-2]) == sorted(own[:-2])  # type: ignore[type-var]
    # What is no learnability stays: a penalty, and no signal.
    assert shuffled[-2:] == [-1, None]
    assert values_of(control, debates) == shuffled
    # Another step is dealt otherwise.
    renamed = [replace(debate, id=f"next/{debate.id}") for debate in debates]
    assert values_of(control, renamed) != shuffled
    # An agent's return is that of its turn.
    for debate, value, score in zip(debates, shuffled, control(debates), strict=True):
        assert score.agents[debate.protocol.num_agents - 1] == value
