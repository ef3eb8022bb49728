"""What a proposed question is worth, by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.rewards.debates import play_out, turn_credits, turn_values

from debate_protocol.forms import Checked, Proposal, ProposalProblem
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards import Learnability, get_reward

GIVEN = Question("given", "given", "x", {"kind": "text"})


def proposed_debate(
    text: str, answers: str = "xxxx", winner: int | None = None, id: str = "d"
) -> Transcript:
    """Play a debate on a question, whose answer is x and whose debaters answer one letter each.

    `-` is an answer that cannot be read. `bad` and `held out` are refused. Judges name `winner`
    against everybody, or nobody.
    """

    def check(proposal: str) -> Proposal | ProposalProblem:
        if proposal == "bad":
            return "invalid_question"
        if proposal == "held out":
            return "held_out_question"
        return Proposal(Question(proposal, proposal, "x", {"kind": "text"}))

    def speak(request: TurnRequest) -> Reply:
        if request.round == 0:
            return Reply(f"<question>{text}</question>")
        if request.answers:
            answer = answers[request.agent]
            return Reply("no idea" if answer == "-" else f"\\boxed{{{answer}}}")
        agents = [key.agent for key in request.shown]
        if winner not in agents:
            return Reply("<comparison>N/A</comparison>")
        (loser,) = [agent for agent in agents if agent != winner]
        return Reply(f"<comparison>Agent {winner} > Agent {loser}</comparison>")

    form = Checked.model_validate({"type": "proposed", "debaters": len(answers), "judges": 6})
    return play_out(form.start(GIVEN, seed=1, debate_id=id, check_proposal=check), speak)


def values_of(reward: Any, debates: Sequence[Transcript]) -> list[float | None]:
    """Get the proposer's value in each debate."""
    values = []
    for debate, score in zip(debates, reward(debates), strict=True):
        (value,) = turn_values(score, "proposer").values()
        assert {credit.agent for credit in score.credits} == {debate.protocol.num_agents - 1}
        values.append(value)
    return values


@pytest.mark.parametrize(
    ("answers", "by_truth", "by_majority"),
    [
        # By the truth p = 4/4, 3/4, 2/4, 1/4 and 0/4: 1 − 2·|p − ½| = 0, ½, 1, ½ and 0.
        ("xxxx", 0, 0),
        ("xxxy", 0.5, 0.5),
        ("xxyz", 1, 1),
        ("xyyy", 0.5, 0.5),
        # Nobody is right, and all agree; then nobody is right, and the largest class is 2/4.
        ("yyyy", 0, 0),
        ("yyzw", 0, 1),
        # The right one is alone: p = 1/4; so is everybody else.
        ("xyzw", 0.5, 0.5),
        # An unreadable answer is in no class and not right: p = 2/4.
        ("xx--", 1, 1),
        ("----", 0, 0),
    ],
)
def test_value_is_greatest_where_half_solve_the_question(
    answers: str, by_truth: float, by_majority: float
) -> None:
    debates = [proposed_debate("a", answers)]
    truth = Learnability(solved_by="truth", repetition=0)
    assert values_of(truth, debates) == [by_truth]
    assert values_of(Learnability(repetition=0), debates) == [by_majority]


def test_votes_say_which_answer_solves_the_question() -> None:
    votes = Learnability(solved_by="votes", repetition=0)
    # The votes are for y, which 3 of 4 gave, then for x, which 1 of 4 gave.
    assert values_of(votes, [proposed_debate("a", "xyyy", winner=1)]) == [0.5]
    assert values_of(votes, [proposed_debate("a", "xyyy", winner=0)]) == [0.5]
    # 1 of 6: 1 − 2·|1/6 − ½| = 1/3, where the majority's 5 of 6 would give 1/3, too; so 2 and 4.
    assert values_of(votes, [proposed_debate("a", "xyyyyz", winner=5)]) == pytest.approx([1 / 3])
    assert values_of(Learnability(repetition=0), [proposed_debate("a", "xyyyyz", winner=5)]) == (
        pytest.approx([2 / 3])
    )


def test_equal_questions_of_a_step_lose_their_share_down_to_zero() -> None:
    debates = [
        proposed_debate("a", "xxyz"),
        proposed_debate("a", "xxyz"),
        proposed_debate("b", "xxxy"),
        proposed_debate("c", "xxxx"),
        # Refused questions do not count.
        proposed_debate("bad"),
        proposed_debate("held out"),
    ]
    # Of 4 questions a is 2 and b is 1: 1 − 2/4, ½ − 1/4, and 0 where 0 − 1/4 is below 0.
    assert values_of(Learnability(), debates) == [0.5, 0.5, 0.25, 0, -1, None]
    assert values_of(Learnability(repetition=2), debates) == [0, 0, 0, 0, -1, None]


def test_refused_questions_teach_no_solver() -> None:
    debates = [proposed_debate("bad"), proposed_debate("held out")]
    bad, held_out = Learnability()(debates)
    (penalty,) = turn_credits(bad, "proposer").values()
    assert penalty.value == -1 and penalty.penalty
    (no_signal,) = turn_credits(held_out, "proposer").values()
    # It is no member of a baseline either.
    assert no_signal.value is None and not no_signal.expected
    assert bad.metrics == {"learnability/invalid": 1, "learnability/held_out": 0}
    assert held_out.metrics == {"learnability/invalid": 0, "learnability/held_out": 1}
    for type in ("verifiable", "majority", "v2"):
        for score in get_reward(type)(debates):
            assert all(credit.value is None for credit in score.credits)


def test_a_given_question_has_no_proposer_to_pay() -> None:
    form = Checked.model_validate({"type": "proposed", "debaters": 2, "judges": 1})
    run = form.start(GIVEN, seed=1)
    debate = play_out(run, lambda request: Reply("\\boxed{x}"))
    (score,) = Learnability()([debate])
    assert score.credits == ()
