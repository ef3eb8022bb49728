"""What debates before a judge pay and the figures of them, on debates worked by hand."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.rewards.debates import play_out, score_of

from debate_protocol.forms import Judged
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards import JudgedReward, debate_metrics
from debate_rewards.decisions import decisions_of
from debate_rewards.reward import read_debate
from debate_rewards.votes import judgments

QUESTION = Question("q", "?", "4", {"kind": "number"})
RIGHT = "It is \\boxed{4}"
WRONG = "Of course, as all know, it is \\boxed{5}"


def judged(speeches: Sequence[str], decisions: Sequence[str], **settings: Any) -> Transcript:
    """Play a debate with these speeches, in order, and a decision of each judge."""
    form = Judged(judges=len(decisions), reasons=False, **settings)
    unspoken = iter(speeches)

    def speak(request: TurnRequest) -> Reply:
        assert request.contract is not None
        if "decision" in request.contract.sections:
            return Reply(f"<decision>{decisions[request.agent - form.num_agents]}</decision>")
        return Reply(next(unspoken))

    return play_out(form.start(QUESTION, seed=0), speak)


def agent_values(
    transcript: Transcript, stream: str = "generator", **settings: Any
) -> dict[int, list[float | None]]:
    values: dict[int, list[float | None]] = {}
    for credit in score_of(JudgedReward(**settings), transcript).credits:
        if credit.stream == stream:
            values.setdefault(credit.agent, []).append(credit.value)
    return values


# Three of four readable decisions are for agent 0, who is right.
RIVALS = judged(
    [RIGHT, WRONG, RIGHT], ["Agent 0", "Agent 0", "Agent 0", "Agent 1", "?"], max_rounds=4
)
# One of five says that the answer is right, and it is not.
CRITIC = judged(
    [WRONG, "Five is too much."], ["wrong", "right", "wrong", "wrong", "wrong"], opponent="critic"
)


@pytest.mark.parametrize(
    ("debate", "truth", "expected"),
    [
        pytest.param(RIVALS, 0, {0: [0.75, 0.75], 1: [0.25]}, id="rivals share the votes"),
        pytest.param(RIVALS, 0.5, {0: [0.875, 0.875], 1: [0.125]}, id="half by the truth"),
        pytest.param(CRITIC, 1, {0: [0.0], 1: [1.0]}, id="by the truth alone"),
        pytest.param(judged([RIGHT, WRONG], ["?", "?"]), 0, {0: [None], 1: [None]}, id="no choice"),
        pytest.param(judged(["", WRONG], ["Agent 1"]), 0, {0: [-1.0], 1: [1.0]}, id="a failure"),
    ],
)
def test_speeches_are_worth_the_decisions_for_them(
    debate: Transcript, truth: float, expected: dict[int, list[float | None]]
) -> None:
    assert agent_values(debate, truth=truth) == expected


def test_judges_are_paid_by_the_truth() -> None:
    rivals = agent_values(RIVALS, "judge", judge="truth")
    assert rivals == {2: [1.0], 3: [1.0], 4: [1.0], 5: [-1.0], 6: [-1.0]}
    critic = agent_values(CRITIC, "judge", judge="truth")
    assert critic == {2: [1.0], 3: [-1.0], 4: [1.0], 5: [1.0], 6: [1.0]}
    both_right = judged([RIGHT, RIGHT], ["Agent 0"])
    assert agent_values(both_right, "judge", judge="truth") == {2: [None]}


def test_judges_are_paid_by_the_agreement_of_both_orders() -> None:
    transcript = judged(
        [RIGHT, WRONG],
        ["Agent 0", "Agent 1", "Agent 0", "Agent 0"],
        order="simultaneous",
        max_rounds=2,
        both_orders=True,
    )
    # Judges 3 and 5 read the rivals in the opposite order.
    decisions = [judgment.decision for judgment in judgments(read_debate(transcript))]
    assert decisions == [0, 1, 0, 0]
    values = agent_values(transcript, "judge", judge="agreement")
    assert values == {2: [0.0], 3: [-1.0], 4: [0.0], 5: [1.0]}
    assert agent_values(RIVALS, "judge", judge="agreement")[2] == [None]


TAGGED = "<evaluation> a b c </evaluation>\n<solution> \\boxed{4} </solution>"
TAGGED_CONTRACT = {"name": "worked", "sections": ["evaluation", "solution"]}


@pytest.mark.parametrize(
    ("speech", "settings", "price", "value"),
    [
        # The box is a word: 6/4 − 1 = .5 beyond the limit.
        pytest.param("a b c d e \\boxed{4}", {"max_words": 4}, 0.5, 1 - 0.25, id="too long"),
        # Six characters and the box are seven words: 7/4 − 1.
        pytest.param("字字字字字字 \\boxed{4}", {"max_words": 4}, 0.5, 1 - 0.375, id="no spaces"),
        # Each section has three words; tags are none.
        pytest.param(TAGGED, {"max_words": 3, "contract": TAGGED_CONTRACT}, 1, 1.0, id="tags"),
        pytest.param(
            TAGGED.replace("c", "c d", 1),
            {"max_words": 3, "contract": TAGGED_CONTRACT},
            1,
            2 / 3,
            id="a long section",
        ),
    ],
)
def test_long_speeches_are_priced(
    speech: str, settings: dict[str, Any], price: float, value: float
) -> None:
    transcript = judged([speech, RIGHT], ["Agent 0"], **settings)
    assert agent_values(transcript, over_limit=price)[0] == [pytest.approx(value)]


def test_figures_of_rivals() -> None:
    metrics = debate_metrics([RIVALS])
    expected = {
        "judged/for_right": 0.75,
        "judged/brier": 0.25**2,
        "judged/first_shown": 0.75,
        "judged/for_agent_0": 0.75,
        "judged/longer": 0.25,  # Eight words of agent 1, six of agent 0.
        "speech/words": (3 + 8 + 3) / 3,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert "judged/gap" not in metrics
    assert "judged/for_agent_0" not in debate_metrics([CRITIC])


def test_figures_of_a_proposer() -> None:
    right = judged([RIGHT, "No."], ["right", "right", "wrong"], opponent="critic")
    metrics = debate_metrics([CRITIC, replace(right, question=replace(QUESTION, id="r"))])
    assert metrics["judged/gap"] == pytest.approx(((0.2 - 0) + (2 / 3 - 1)) / 2)
    assert metrics["judged/for_right"] == pytest.approx((4 + 2) / 8)
    # Right and called right 2, right and called wrong 1, wrong and called right 1, wrong 4.
    correlation = (2 * 4 - 1 * 1) / ((3 * 3 * 5 * 5) ** 0.5)
    assert metrics["judged/mcc"] == pytest.approx(correlation)
    # One decision has no correlation.
    lone = debate_metrics([judged([RIGHT], ["right"], opponent="none", max_rounds=2)])
    assert {"judged/gap", "judged/for_right"} <= lone.keys()
    assert "judged/mcc" not in lone


@pytest.mark.parametrize(
    ("speeches", "opponent", "share"),
    [
        ([RIGHT, WRONG], "rival", 0),
        ([f"Agent 0: {RIGHT}\nAgent 1: you are right", f"Agent 1: {WRONG}"], "rival", 0.5),
        ([WRONG, "Critic: no."], "critic", 0),
        ([f"{WRONG}\n**Critic:** I agree.", "Critic: no."], "critic", 0.5),
    ],
)
def test_speeches_for_others_are_counted(speeches: list[str], opponent: Any, share: float) -> None:
    debate = judged(speeches, ["wrong"], opponent=opponent)
    assert debate_metrics([debate])["speech/impersonates"] == share


def test_quotes_that_the_passage_has_are_counted() -> None:
    speeches = [
        f"<quote>two  red</quote> <quote>red b</quote> {RIGHT}",
        f"<quote> </quote> {WRONG}",
    ]
    debate = judged(speeches, ["Agent 0"])
    assert "speech/verified" not in debate_metrics([debate])  # There is no passage.
    question = replace(QUESTION, meta={**QUESTION.meta, "passage": "The two red balls."})
    metrics = debate_metrics([replace(debate, question=question)])
    assert metrics["speech/verified"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("debate", "answer"),
    [
        (RIVALS, "4"),
        (CRITIC, None),  # Most judges hold its only answer to be wrong.
        (judged([RIGHT, WRONG], ["?"]), None),
        (judged([RIGHT, "No."], ["right"], opponent="critic"), "4"),
    ],
)
def test_the_debate_answers_what_most_judges_decide_for(
    debate: Transcript, answer: str | None
) -> None:
    assert decisions_of(read_debate(debate), 0)["judged"] == answer


def test_speeches_for_the_assigned_side_are_counted() -> None:
    debate = judged([RIGHT, WRONG], ["Agent 0"], assigned=True)
    sides = debate.meta["sides"]
    assert debate_metrics([debate])["speech/own_side"] == (sides["0"] == "4")  # Both or none.
