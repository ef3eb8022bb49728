"""Checks of single answers as votes: numbers by hand, and the definition written a second time."""

from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewards.debates import (
    numbers,
    on_question,
    play_out,
    round_values,
    score_of,
    turn_credits,
    turn_values,
)

from debate_protocol.forms import Checked, DebateStart, same_words
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards import V2, BradleyTerry, MajorityJudge, TruthJudge, WinRate, get_reward
from debate_rewards.metrics import debate_metrics
from debate_rewards.reward import RewardContext
from debate_rewards.strengths import log_strengths


def checked_debate(
    answers: list[str], verdicts: list[str], *, judges_see: str = "answer", gold: str | None = None
) -> Transcript:
    """Play a debate of these answers, `none` without any, and these verdicts, by judge."""
    form = Checked.model_validate(
        {
            "debaters": len(answers),
            "judges": len(verdicts),
            "judges_see": judges_see,
        }
    )

    def speak(request: TurnRequest) -> Reply:
        if request.answers:
            answer = answers[request.agent]
            return Reply("no idea" if answer == "none" else f"\\boxed{{{answer}}}")
        verdict = verdicts[request.agent - len(answers)]
        section = "verdict" if judges_see == "answer" else "comparison"
        return Reply(f"<{section}>{verdict}</{section}>")

    question = Question("q", "?", gold, {"kind": "text"})
    return play_out(form.debate(DebateStart(question, 1, "d", same_words)), speak)


# Of agent 0 both checks say right, of agent 1 one of two, of agent 2 none.
VERDICTS = ["right", "right", "wrong", "right", "wrong", "wrong"]


def test_value_is_the_share_of_right_calls_beyond_that_of_the_others() -> None:
    # Called right in 1, ½ and 0 of the checks: 1 − (½ + 0)/2, ½ − (1 + 0)/2, 0 − (1 + ½)/2.
    score = score_of(V2(), checked_debate(["x", "y", "z"], VERDICTS))
    assert round_values(score, 0) == numbers("3/4 0 -3/4")
    # Votes won of all votes: ½ + ¾/2 of each.
    rates = score_of(WinRate(), checked_debate(["x", "y", "z"], VERDICTS))
    assert rates.agents[:3] == numbers("7/8 1/2 1/8")


def test_equal_answers_share_their_checks() -> None:
    # Agents 0 and 1 say x. The votes on x: 1½ of 2 between them as ½ each side, so 2:2; against z
    # agent 0 wins 2, agent 1 1½ of 2: 3½:½. Together 5½ of 8 -> 3/8. z has ½ of 4 -> −3/4.
    debate = checked_debate(["x", "x", "z"], VERDICTS)
    score = score_of(V2(pool="answer"), debate)
    assert round_values(score, 0) == numbers("3/8 3/8 -3/4")
    rates = score_of(WinRate(pool="answer"), debate)
    assert rates.agents[:3] == numbers("11/16 11/16 1/8")


def test_judges_of_one_answer_are_paid_for_agreement_on_it() -> None:
    debate = checked_debate(["x", "y", "z"], VERDICTS)
    score = score_of(V2(), debate)
    # Judges 3 and 6 read agent 0, 4 and 7 agent 1, 5 and 8 agent 2.
    assert round_values(score, 1, "judge") == numbers("1 -1 1 1 -1 1")
    # Elsewhere all six verdicts are right, so that a right one agrees by habit.
    elsewhere = on_question("other", checked_debate(["x", "y", "z"], ["right"] * 6))
    scores = V2(consensus="peer_prediction")([debate, elsewhere])
    # Right: 1 − 6/6 of agent 0, 0 − 6/6 of agent 1; wrong: 0 − 0 of agent 1, 1 − 0 of agent 2.
    assert round_values(scores[0], 1, "judge") == numbers("0 -1 1 0 0 1")


def test_verdict_that_cannot_be_read_is_no_vote_and_has_its_price() -> None:
    debate = checked_debate(["x", "y"], ["right", "wrong", "perhaps", "right"])
    score = score_of(V2(), debate)
    # Agent 0 has one check, right, which meets both of agent 1, wrong and right: ¾ of two votes.
    assert round_values(score, 0) == numbers("1/2 -1/2")
    credits = turn_credits(score, "judge")
    assert (credits[4, 1].value, credits[4, 1].penalty) == (-0.5, True)
    assert credits[2, 1].value is None


def test_verdict_that_cannot_be_read_is_counted_as_missing() -> None:
    debate = checked_debate(["x", "y", "z"], [*VERDICTS[:5], "perhaps"], gold="x")
    metrics = score_of(V2(), debate).metrics
    assert metrics["v2/missing_comparisons"] == 1
    assert metrics["v2/comparisons_made"] == pytest.approx(5 / 6)
    figures = debate_metrics([debate])
    assert figures["comparisons_made"] == pytest.approx(5 / 6)
    # Nobody was shown two answers, but agent 0 wins all that is not level.
    assert "judge/first_shown" not in figures
    assert figures["judge/wins/agent_0"] == 1


def test_judges_of_pairs_vote_as_in_other_debates() -> None:
    # Pairs (0, 1), (0, 2), (1, 2), then the same in the other order.
    lines = ["0 > 1", "0 > 2", "1 = 2", "0 > 1", "2 > 0", "1 > 2"]
    verdicts = [f"Agent {line[0]} {line[2]} Agent {line[4]}" for line in lines]
    debate = checked_debate(["x", "y", "z"], verdicts, judges_see="pair", gold="x")
    score = score_of(V2(), debate)
    # 3 of 4, then 0 of 2 and 1½ of 2, then 1 of 2 and ½ of 2.
    assert round_values(score, 0) == numbers("1/2 -1/4 -1/4")
    # Who reads the first pair agrees, of the second not; `=` has no majority to follow.
    assert round_values(score, 1, "judge") == numbers("1 -1 none 1 -1 none")
    # Agent 0 alone is right: three of four verdicts on it name it.
    figures = debate_metrics([debate])
    assert figures["judge/accuracy"] == pytest.approx(3 / 4)
    # Four of the five verdicts that are not `=` name the lower number.
    assert figures["judge/first_shown"] == pytest.approx(4 / 5)
    assert figures["comparisons_made"] == 1
    paid = round_values(score_of(TruthJudge(), debate), 1, "judge")
    assert paid == numbers("1 1 none 1 -1 none")


def test_judges_of_single_answers_have_an_accuracy() -> None:
    # Votes on (0, 1): = and >, on (0, 2) twice >; agent 0 is right: 3½ of 4.
    debate = checked_debate(["x", "y", "z"], VERDICTS, gold="x")
    assert debate_metrics([debate])["judge/accuracy"] == pytest.approx(7 / 8)


# Judge 2 reads x, the right answer, and judge 3 reads y; -1/2 is the penalty of no verdict.
@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ("right right", "1 -1"),
        ("wrong wrong", "-1 1"),
        ("right wrong", "1 1"),
        ("perhaps wrong", "-1/2 1"),
    ],
)
def test_judges_of_one_answer_are_paid_for_the_truth_about_it(verdicts: str, expected: str) -> None:
    debate = checked_debate(["x", "y"], verdicts.split(), gold="x")
    score = score_of(TruthJudge(), debate)
    assert round_values(score, 1, "judge") == numbers(expected)
    assert turn_credits(score, "judge")[2, 1].penalty == ("perhaps" in verdicts)


def test_judges_of_one_answer_are_paid_for_the_majority() -> None:
    # Two of three answer x: judges 3 to 5 read x, x and y.
    debate = checked_debate(["x", "x", "y"], ["right", "wrong", "right"])
    score = score_of(MajorityJudge(verified=False), debate)
    assert round_values(score, 1, "judge") == numbers("1 -1 -1")
    assert score.metrics["majority_judge/votes"] == 3


@pytest.mark.parametrize("name", ["v2", "win_rate", "bradley_terry"])
def test_distinct_answers_without_a_pool_are_doubted(name: str) -> None:
    def doubts(pool: str, distinct: bool) -> list[str]:
        rules = Checked(distinct=distinct).protocol()
        notes = get_reward(name, pool=pool).notes(RewardContext(rules))
        return [note.text for note in notes if "distinct" in note.text]

    assert not doubts("answer", distinct=True) and not doubts("agent", distinct=False)
    (text,) = doubts("agent", distinct=True)
    assert text.startswith("reward.pool: found agent beside debate.distinct")


# ---- the second reading ---------------------------------------------------------------------


@dataclass(frozen=True)
class DrawnChecks:
    answers: list[str]
    verdicts: list[str]

    def calls(self) -> dict[int, list[bool]]:
        """List the readable calls on each valid answer: judge j reads valid answer j mod n."""
        valid = [agent for agent, answer in enumerate(self.answers) if answer != "none"]
        calls: dict[int, list[bool]] = {}
        if len(valid) < 2:
            return {}
        for judge, verdict in enumerate(self.verdicts):
            if verdict != "perhaps":
                calls.setdefault(valid[judge % len(valid)], []).append(verdict == "right")
        return calls

    def points(self) -> list[tuple[int, int, float]]:
        """List (agent, other agent, points of the agent), two for each vote."""
        rows = []
        for first, second in combinations(sorted(self.calls()), 2):
            first_calls, second_calls = self.calls()[first], self.calls()[second]
            num_votes = max(len(first_calls), len(second_calls))
            for number in range(num_votes):
                lead = (
                    first_calls[number % len(first_calls)]
                    - second_calls[number % len(second_calls)]
                )
                rows += [(first, second, (1 + lead) / 2), (second, first, (1 - lead) / 2)]
        return rows


drawn_checks = st.builds(
    DrawnChecks,
    answers=st.lists(st.sampled_from(["x", "y", "z", "none"]), min_size=2, max_size=5),
    verdicts=st.lists(st.sampled_from(["right", "wrong", "perhaps"]), min_size=1, max_size=12),
)


def check_definition(drawn: DrawnChecks) -> None:
    debate = checked_debate(drawn.answers, drawn.verdicts)
    plain = turn_values(score_of(V2(consensus="none"), debate))
    pooled = turn_values(score_of(V2(consensus="none", pool="answer"), debate))
    rates = score_of(WinRate(), debate).agents
    pooled_rates = score_of(WinRate(pool="answer"), debate).agents
    strengths_of_turns = turn_values(score_of(BradleyTerry(prior=0.7), debate))
    wins: dict[tuple[int, int], float] = {}
    for agent, other, points in drawn.points():
        wins[agent, other] = wins.get((agent, other), 0.0) + points
    strengths = log_strengths(wins, 0.7)
    for agent, answer in enumerate(drawn.answers):
        if answer == "none":
            continue
        own = [points for one, _, points in drawn.points() if one == agent]
        of_answer = [points for one, _, points in drawn.points() if drawn.answers[one] == answer]
        expected = 2 * fmean(own) - 1 if own else None
        assert plain[agent, 0] == pytest.approx(expected)
        expected = 2 * fmean(of_answer) - 1 if of_answer else None
        assert pooled[agent, 0] == pytest.approx(expected)
        assert rates[agent] == pytest.approx(fmean(own) if own else 0.0)
        assert pooled_rates[agent] == pytest.approx(fmean(of_answer) if of_answer else 0.0)
        assert (strengths_of_turns[agent, 0] is None) == (agent not in strengths)
        if agent in strengths:
            odds = 2.718281828459045 ** strengths[agent]
            expected = (odds - 1) / (odds + 1)
            assert strengths_of_turns[agent, 0] == pytest.approx(expected, abs=1e-7)

    calls = drawn.calls()
    if calls and len({len(agent_calls) for agent_calls in calls.values()}) == 1:
        shares = {agent: fmean(agent_calls) for agent, agent_calls in calls.items()}
        for agent, share in shares.items():
            others = [other for one, other in shares.items() if one != agent]
            if others:
                assert plain[agent, 0] == pytest.approx(share - fmean(others))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(drawn_checks)
def test_checks_are_their_definition_for_any_debate(drawn: DrawnChecks) -> None:
    check_definition(drawn)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, derandomize=True)
@given(drawn_checks)
def test_checks_are_their_definition_for_two_thousand_debates(drawn: DrawnChecks) -> None:
    check_definition(drawn)
