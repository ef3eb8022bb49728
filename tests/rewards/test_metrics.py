"""Every figure of debates, on small tables that are worked by hand."""

from dataclasses import replace
from typing import Any

import pytest
from tests.counted_calls import num_calls
from tests.rewards.debates import SILENT, debate_of, judged_debate, on_question

from benchmarks.robustness.long_speeches import UNITS, forms, value_speeches
from debate_protocol.transcripts.files import from_json
from debate_protocol.types import AgentRole, Reply, Transcript
from debate_rewards.answer_rewards import Verifiable
from debate_rewards.metrics import (
    debate_metrics,
    debate_statistics,
    question_values,
)


def numeric_debate(
    id: str,
    *rounds: str,
    tokens: list[int] | None = None,
    gold: str = "4",
    **rules: Any,
) -> Transcript:
    """Build a debate of boxed numbers: "4 5 -" is a round, - a turn without an answer.

    Turn k of all has `tokens[k]` sampled tokens.
    """
    turns = []
    for round_number, answers in enumerate(rounds):
        for agent, answer in enumerate(answers.split()):
            text = "no box" if answer == "-" else f"\\boxed{{{answer}}}"
            turns.append({"agent": agent, "round": round_number, "text": text})
    question = {"text": "?", "answer": gold, "meta": {"kind": "number"}}
    protocol = {
        "num_agents": len(rounds[0].split()),
        "max_rounds": 9,
        "contract": "boxed",
        "history_rounds": 1,
    }
    data = {"id": id, "question": question, "protocol": protocol | rules, "turns": turns}
    debate = on_question(id, from_json(data))
    sampled_turns = []
    for turn, count in zip(debate.turns, tokens or (), strict=bool(tokens)):
        reply = Reply("", "end", prompt_ids=(1,) * 7, token_ids=(1,) * count, logps=(-1.0,) * count)
        sampled_turns.append(replace(turn, reply=reply))
    return replace(debate, turns=tuple(sampled_turns) or debate.turns)


def figures(*debates: Transcript) -> dict[str, float]:
    return debate_metrics(debates)


A = numeric_debate("a", "4 5 5", "4 4 5", "4 4 4", tokens=[10, 20, 30, 1, 2, 3, 4, 5, 6])
B = numeric_debate("b", "4 4 4", "5 4 -", "5 6 7", tokens=[100, 100, 100, 7, 8, 9, 1, 1, 1])


def test_figures_of_two_debates() -> None:
    expected = {
        # Right agents of three: a 1, 2, 3; b 3, 1, 0.
        "accuracy/round_0": 4 / 6,
        "accuracy/round_1": 3 / 6,
        "accuracy/round_2": 3 / 6,
        "avg@k": 1 / 2,
        "pass@k": 1 / 2,
        "cons@k": 1 / 2,
        "drift/round_1": (1 / 3 - 2 / 3) / 2,
        "drift/round_2": (1 / 3 - 1 / 3) / 2,
        # Majorities: a wrong, right, right; b right, a tie of 5 and 4, a tie of three wrong.
        "maj/round_0": (0 + 1) / 2,
        "maj/round_1": (1 + 0.5) / 2,
        "maj/round_2": (1 + 0) / 2,
        # Some agent is right: a in all rounds, b not in the last.
        "pass@k/round_0": 1,
        "pass@k/round_1": 1,
        "pass@k/round_2": 1 / 2,
        "maj/first": 1 / 2,
        "maj/last": 1 / 2,
        "maj/delta": ((1 - 0) + (0 - 1)) / 2,
        # (3/3 + 0/3 − 1/3 − 3/3) / (1/3 + 3/3)
        "improvement": -(1 / 3) / (4 / 3),
        # Of 12 pairs of successive turns: b loses agents 0 and 2, then 1; a wins 1, then 2.
        "flips/right_to_wrong": 3 / 12,
        "flips/wrong_to_right": 2 / 12,
        "flips/right_to_wrong/round_1": 2 / 6,
        # Right and read 0 wrong answers: b in round 1, of three two turn wrong; 1: a's first two
        # in round 2 stay; 2: a's agent 0 stays in round 1, b's agent 1 turns in round 2. Wrong and
        # read 1 right answer: a's agent 1 turns, a's agent 2 and b's agents 0 and 2 do not; 2: a's
        # agent 2 turns.
        "flips/right_to_wrong/dissent_0": 2 / 3,
        "flips/right_to_wrong/dissent_1": 0,
        "flips/right_to_wrong/dissent_2": 1 / 2,
        "flips/wrong_to_right/dissent_1": 1 / 4,
        "flips/wrong_to_right/dissent_2": 1,
        # Lengths. Round 0: right 10, 100, 100, 100; wrong 20, 30. Round 1: right 1, 2, 8;
        # wrong 3, 7, 9.
        "right/tokens/round_0": 310 / 4,
        "wrong/tokens/round_0": 25,
        "right/tokens/round_1": 11 / 3,
        "wrong/tokens/round_1": 19 / 3,
        "right/characters/round_0": 9,
        "wrong/characters/round_1": (9 + 9 + 6) / 3,
        # a samples 81 tokens and b 327; a agrees after round 2, b after round 0.
        "tokens/answer": (81 + 327) / 2,
        "agreement/reached": 1,
        "agreement/tokens_saved": (0 + 27) / (81 + 327),
        "agreement/accuracy": (1 + 1) / 2,
    }
    metrics = figures(A, B)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_agreement_needs_an_answer_of_everyone_who_spoke() -> None:
    silent = figures(numeric_debate("a", "5 5 -", "5 5 5", "4 4 4", tokens=[1] * 9))
    assert silent["agreement/tokens_saved"] == pytest.approx(3 / 9)
    assert silent["agreement/accuracy"] == 0
    unequal = numeric_debate("a", "5 5 5", "4 4 4", tokens=[1] * 6)
    absent = figures(replace(unequal, turns=(*unequal.turns[:2], *unequal.turns[3:])))
    assert absent["agreement/accuracy"] == 1
    never = figures(numeric_debate("a", "4 5 5", "5 4 4", tokens=[1] * 6))
    assert (never["agreement/reached"], never["agreement/tokens_saved"]) == (0, 0)
    assert never["agreement/accuracy"] == 1


def test_metrics_of_votes_by_hand() -> None:
    solutions = [["right", "wrong", "right"], ["right", "wrong", "other"]]
    debate = judged_debate("A1>A2 | A0=A2 | fail", solutions=solutions, gold="right")
    expected = {
        # Round 0: two of three right. Round 1: agent 0 right, agent 1 wrong, agent 2 failed.
        "accuracy/round_0": 2 / 3,
        "accuracy/round_1": 1 / 3,
        "correct": 1 / 3,
        "avg@k": 1 / 3,
        "pass@k": 1,
        "cons@k": 0,
        "maj@k": 0.5,  # One right, one wrong: a level plurality.
        "format": 2 / 3,
        "format_all": 5 / 6,
        "diversity/round_0": 2 / 3,
        "diversity/round_1": 1,
        # Votes: 1>2 is wrong against right and errs; 0=2 is right against right.
        "judge/accuracy": 0,
        "judge/strict_accuracy": 0,
        "judge/equal_share": 0.5,
        "comparisons_made": 1,  # Of the failed judge none was expected.
        "decision/peer_vote": 0,
        # Vote values 1, −½, 0 of agents 1, 2, 0 (mean 1/6), truth 0, 1, 1 (mean 2/3):
        # Σ xy = (5/6)(−2/3) + (−2/3)(1/3) + (−1/6)(1/3) = −5/6, spreads 7/6 and 2/3.
        "winner_truth_correlation": -(5 / 6) / (7 / 9) ** 0.5,
        # Ranks 1, −1, 0; of the truth −1, and .5 for each of the two right turns.
        "rank_truth_correlation": -1.5 / (2 * 1.5) ** 0.5,
        "turns": 6,
        "rounds": 2,
        "failed_turns": 1,
    }
    metrics = figures(debate)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)


def test_answers_that_cannot_be_read_are_wrong_and_counted_by_reason() -> None:
    first = debate_of(
        SILENT, solutions=[["5", "5 or 6", "none"]], gold="5", meta={"kind": "number"}
    )
    second = debate_of(SILENT, solutions=[["5", "7 or 8", "5"]], gold="5", meta={"kind": "number"})
    metrics = figures(first, second)
    assert metrics["unread"] == pytest.approx(3 / 6)
    assert metrics["unread/several_numbers"] == pytest.approx(2 / 6)
    # Only the first of the debates has this reason; the other has three answers more.
    assert metrics["unread/no_number"] == pytest.approx(1 / 6)
    assert metrics["unread/timeout"] == 0
    # maj@k: in the first one class, which is right.
    assert figures(first)["maj@k"] == 1
    assert figures(first)["avg@k"] == pytest.approx(1 / 3)


def test_questions_without_gold_answers_are_left_out() -> None:
    without_gold = debate_of(SILENT)
    metrics = figures(without_gold, debate_of(SILENT, gold="s0", id="e"))
    assert metrics["unverifiable"] == 0.5
    assert metrics["avg@k"] == pytest.approx(1 / 3)
    assert "avg@k" not in figures(without_gold)


def test_a_debate_of_an_unknown_kind_is_counted_and_the_others_are_measured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    readable = debate_of(SILENT, solutions=["aba"], gold="a", id="readable")
    unknown = debate_of(SILENT, gold="a", id="unknown", meta={"kind": "word problem"})
    metrics = figures(readable, unknown)
    assert metrics.pop("unmeasured") == 0.5
    assert metrics == figures(readable)
    assert "debate 'unknown' is not measured: ValueError: " in caplog.text
    values = question_values([readable, unknown])
    assert values["unmeasured"] == {"readable": 0.0, "unknown": 1.0}
    scores = Verifiable()([readable, unknown])
    assert [score.agents for score in scores] == [(1.0, -1.0, 1.0), (None, None, None)]


def test_a_policy_is_measured_in_the_last_round_in_which_it_owes_an_answer() -> None:
    # Agent 2 of a frozen policy answers in round 0 alone: right, but what it says later is no
    # answer of its own. Agents 0 and 1: one of two is right at the end.
    debate = debate_of(SILENT, SILENT, solutions=["666", "767"], gold="6")

    def with_roles(**rest: Any) -> dict[str, float]:
        solver = AgentRole("solver", 2, adapter=rest.get("adapter"))
        first = AgentRole("first", rounds=(0,), policy=rest["policy"], adapter=rest.get("other"))
        protocol = replace(debate.protocol, roles=(solver, first))
        return figures(replace(debate, protocol=protocol))

    frozen = with_roles(policy="frozen")
    assert (frozen["trained/correct"], frozen["role/first/correct"]) == (0.5, 1.0)
    adapters = with_roles(policy="trained", adapter="solver", other="first")
    assert (adapters["role/solver/correct"], adapters["role/first/correct"]) == (0.5, 1.0)
    shared = {}
    for name, value in frozen.items():
        if not name.startswith(("trained/", "role/")):
            shared[name] = value
    assert with_roles(policy="trained") == shared


# ---- over questions -------------------------------------------------------------------------


def test_effective_voters_follow_from_the_correlation_of_agents() -> None:
    # Two debates on one question, all right in one and all wrong in the other: within a debate
    # mean x·x' = 1/2, between them 0, mean x² = 1/2, so ρ = 1 and two agents are worth one.
    alike = [numeric_debate("q", "4 4"), numeric_debate("q", "5 5")]
    metrics = figures(*alike)
    assert (metrics["rho/round_0"], metrics["n_eff/round_0"]) == (1, 1)
    # 4 5 and 5 4: within 0, between 1 of the 4 pairs of two debates, so 1/4.
    # ρ = (0 − 1/4) / (1/2 − 1/4) = −1: two agents who are never right together.
    unlike = [numeric_debate("q", "4 5"), numeric_debate("q", "5 4")]
    metrics = figures(*unlike)
    assert metrics["rho/round_0"] == -1
    assert "n_eff/round_0" not in metrics
    # Summed over both questions: a = 1/2 − 0 − 1/4, b = 1/2 − 0 + 1/4, N b / (b + a).
    metrics = figures(*alike, *[on_question("r", debate) for debate in unlike])
    assert metrics["rho/round_0"] == pytest.approx(0.25 / 0.75)
    assert metrics["n_eff/round_0"] == pytest.approx(2 / (1 + 1 / 3))
    # A question with one debate says nothing of it.
    assert "rho/round_0" not in figures(numeric_debate("p", "4 4"), numeric_debate("q", "4 5"))
    assert "rho/round_0" not in question_values(alike)


def test_statistics_are_the_metrics_with_intervals() -> None:
    debates = []
    for number in range(10):
        debate = debate_of(SILENT, solutions=["rwx"], gold="r", id=f"d{number}")
        debates.append(on_question(f"q{number % 5}", debate))
    estimates = debate_statistics(debates, seed=3)
    values = {name: estimate.value for name, estimate in estimates.items()}
    assert values == debate_metrics(debates, seed=3)
    assert estimates["avg@k"].questions == 5
    assert estimates == debate_statistics(debates, seed=3)
    for estimate in estimates.values():
        assert estimate.low <= estimate.value <= estimate.high


@pytest.mark.parametrize("unit", UNITS)
def test_repeated_text_takes_as_many_calls_as_it_is_long(unit: str) -> None:
    for form in forms():
        short = "a" + unit * (500 // len(unit))
        calls_of_short = num_calls(lambda form=form, text=short: value_speeches(form, text))
        calls_of_long = num_calls(lambda form=form, text=short * 8: value_speeches(form, text))
        assert calls_of_long < 10 * calls_of_short


# Linear time is below a second; a pattern of quadratic time would take minutes.
@pytest.mark.slow
@pytest.mark.timeout(100)
@pytest.mark.parametrize("unit", UNITS)
def test_long_repeated_text_has_values_in_range(unit: str) -> None:
    for form in forms():
        score = value_speeches(form, "a" + unit * (60_000 // len(unit)))
        assert all(-1 <= credit.value <= 1 for credit in score.credits if credit.value is not None)


def test_the_center_has_figures_of_its_own() -> None:
    metrics = figures(numeric_debate("a", "5 4 4", "4 5 5", topology="central", center=0))
    assert metrics["central/first"] == 0
    assert metrics["central/last"] == metrics["central/delta"] == metrics["decision/central"] == 1
    assert (metrics["maj/first"], metrics["maj/last"], metrics["decision/majority"]) == (1, 0, 0)
    assert "decision/central" not in figures(A)
