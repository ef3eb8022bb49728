"""The belief model of SDRL beside its formulas (section 4, appendix E), and its command."""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from debate_protocol.transcripts.files import from_json, write_transcripts
from debate_studies import belief_grid as grid
from debate_studies import belief_model as measures
from debate_studies.belief_model import (
    BeliefModel,
    Critique,
    FindsRight,
    FixedShare,
    Lift,
    effective_voters,
    lemma_4_7,
    lemma_e1,
    neighbours,
    simulate,
    symmetric,
    theorem_4_4,
)
from debate_studies.theory import lay_beside
from debate_studies.theory import main as theory_main

pytestmark = pytest.mark.numeric
DEBATES = 4000
FIGURES = {
    "train/accuracy/round_0": 0.5,
    "train/accuracy/round_1": 0.56,
    "train/accuracy/round_2": 0.6,
    "train/drift/round_1": 0.06,
    "train/drift/round_2": 0.04,
    "train/rho/round_0": 0.0,
    "train/rho/round_2": 0.25,
    "train/loss": 3.0,
}


def exact_next_belief(model: BeliefModel, agent: int, critique_right: float) -> float:
    """E[p_{i,1}] by every combination of the first answers: eq. 8, without eq. 19."""
    means = model.start / model.start.sum(1, keepdims=True)
    total = 0.0
    for answers in product(range(means.shape[1]), repeat=len(means)):
        chance = math.prod(means[j, y] for j, y in enumerate(answers))
        count = sum(answers[j] == 0 for j in range(len(means)) if model.hears[agent, j])
        alpha = model.start[agent].sum() + model.critique.mass
        alpha += model.weight[agent] * model.hears[agent].sum()
        right = model.start[agent, 0] + critique_right + model.weight[agent] * count
        total += chance * right / alpha
    return total


def test_lemma_e1_is_the_mean_over_all_answers() -> None:
    start = np.array([(1.0, 2.0, 0.5), (3.0, 0.5, 0.5), (0.25, 4.0, 1.0)])
    hears = np.array([(0, 1, 1), (1, 1, 0), (0, 0, 1)], dtype=float)
    model = BeliefModel(start, hears, np.array([0.5, 2, 0]), FixedShare(1.5, 0.6))
    simulated = simulate(model, 1, 2, np.random.default_rng(0))
    expected = [exact_next_belief(model, agent, 1.5 * 0.6) for agent in range(3)]
    assert lemma_e1(model, simulated)[0, 0] == pytest.approx(expected, rel=1e-13)


def test_theorem_4_4_by_hand() -> None:
    # p = 2/4; δ = 1 · (.8 − .5) = .3; C = 1 + .5 · 2 = 2: p + .3 / (4 + 2) = .55.
    model = symmetric((2, 2), neighbours("ring", 3), 0.5, FixedShare(1, 0.8))
    simulated = simulate(model, 1, 2, np.random.default_rng(0))
    assert simulated.advantages[0] == pytest.approx(0.3)
    assert theorem_4_4(model, simulated)[0] == pytest.approx(0.55)
    assert model.total(3) == pytest.approx([10, 10, 10])


@pytest.mark.parametrize("names", grid.settings(), ids="; ".join)
def test_measured_drift_is_that_of_the_theory(names: tuple[str, str, str]) -> None:
    row = grid.drift_row(names, DEBATES, seed=0)
    assert row["z_lemma"] < 4
    assert row["z_lemma_given"] < 4
    _, hears, start = names
    if hears != "central":
        assert row["z_theorem"] < 4
        assert row["drift"] == pytest.approx(row["theorem_4_4"], abs=0.02)
    if row["slack"] is not None and hears != "central":
        assert row["slack"] > -4
    if start == "mixed":
        # Mean-consistency does not hold: Theorem 4.4 is wrong for a single agent.
        assert row["z_theorem_given"] > 20
    assert (row["slack"] is None) == (start == "mixed")


def test_theorem_4_4_fails_where_one_agent_is_heard_more() -> None:
    row = grid.drift_row(("neutral", "central", "mixed"), DEBATES, seed=0)
    # The center's p is .8, that of the others .425 on average: C = 1 + .5 · 4 = 3 for it and
    # 1.5 for each other, whose neighbour is the center.
    center = 0.5 * 4 * (0.425 - 0.8) / 7
    others = 0.5 * (0.8 - 0.425) / 5.5
    assert row["lemma_e1"] == pytest.approx((center + 4 * others) / 5)
    assert row["theorem_4_4"] == pytest.approx(0, abs=1e-12)
    assert row["z_theorem"] > 8


@pytest.mark.parametrize("critique", [FixedShare(1, 0.3), Lift(2, -0.2), FindsRight(0.7, 0.4)])
@pytest.mark.parametrize("through_theta", [False, True])
def test_critiques_have_the_mean_and_mass_that_they_say(
    critique: Critique, through_theta: bool
) -> None:
    start = np.array([(1.0, 2, 1), (3, 1, 1), (1, 1, 1), (2, 1, 0.5)])
    # Who hears an agent is not whom it hears.
    hears = np.array([(0, 1, 1, 0), (1, 0, 0, 0), (0, 0, 1, 1), (1, 0, 0, 0)], dtype=float)
    model = BeliefModel(start, hears, np.array([0, 1, 0.5, 2]), critique)
    rng = np.random.default_rng(1)
    simulated = simulate(model, 3, DEBATES, rng, through_theta=through_theta)
    residuals = simulated.beliefs[1:] - lemma_e1(model, simulated)
    assert measures.worst_unconditional(residuals) < 4
    assert measures.worst_given_beliefs(model, simulated, residuals) < 4


@pytest.mark.parametrize("cell", grid.VOTES, ids=str)
def test_plurality_is_wrong_at_most_as_often_as_lemma_4_7_says(cell: Any) -> None:
    row = grid.vote_row(cell, DEBATES, seed=0)
    assert row["error"] <= row["bound"] + 4 * row["error_deviation"]
    gain = 1 + row["weight"] * row["agents"]
    # Without advantage all agents hold one belief, a martingale: docs/theory.md.
    steps = [row["weight"] ** 2 * row["agents"] / (sum(row["prior"]) + step * gain) ** 2
             for step in range(1, row["rounds"] + 1)]  # fmt: skip
    exact = 1 - math.prod(1 - step for step in steps)
    assert row["rho"] == pytest.approx(exact, abs=0.02)


def test_lemma_4_7_by_hand() -> None:
    assert effective_voters(5, 0.25) == pytest.approx(2.5)
    assert effective_voters(5, -0.25) == math.inf
    assert lemma_4_7(3, 2.5, 0.5) == pytest.approx(4.8)


def test_a_run_is_laid_beside_the_curve() -> None:
    rows = lay_beside(FIGURES, num_agents=5)
    assert [row["accuracy"] for row in rows] == [0.5, 0.56, 0.6]
    assert [row["constant_mass"] for row in rows] == [None, 0.06, 0.06]
    assert [row["no_prior"] for row in rows] == [None, 0.06, 0.03]
    assert [row["voters"] for row in rows] == [5, None, 2.5]
    same = lay_beside({name.removeprefix("train/"): x for name, x in FIGURES.items()}, 5)
    assert same == rows


def debate(number: int, answers: list[str], num_agents: int = 2) -> dict[str, object]:
    turns = [
        {"agent": i % num_agents, "round": i // num_agents, "text": f"\\boxed{{{answer}}}"}
        for i, answer in enumerate(answers)
    ]
    return {
        "id": str(number),
        "question": {"id": "q", "text": "1 + 1?", "answer": "2", "kind": "math"},
        "protocol": {"num_agents": num_agents, "contract": "boxed"},
        "turns": turns,
    }


def test_the_command_reads_transcripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "debates.jsonl"
    debates = [debate(0, ["2", "3", "2", "2"]), debate(1, ["3", "2", "3", "3"])]
    write_transcripts(file, map(from_json, debates))
    assert theory_main(["--transcripts", str(file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    # Round 0: one of two right in both debates, ρ = (0 − 1/2) / (1/2 − 1/2) has no value;
    # round 1: all right, or none.
    assert [row["accuracy"] for row in printed["run"]] == [0.5, 0.5]
    assert printed["run"][1]["drift"] == 0
    assert printed["run"][1]["rho"] == 1
    assert printed["run"][1]["voters"] == 1
    write_transcripts(file, map(from_json, [*debates, debate(2, ["2"] * 3, 3)]))
    assert theory_main(["--transcripts", str(file)]) == 2
    assert "debates of 2 and of 3 agents" in capsys.readouterr().err


def test_correlation_of_voters_is_that_of_the_model() -> None:
    # 1 − (1 − 5 / 8²)(1 − 5 / 14²) with S = 2, C = 1 + 5.
    exact = 1 - (1 - 5 / 64) * (1 - 5 / 196)
    rows = grid.round_rows("neutral, p₀ = .6", 2, 40_000, seed=0)
    assert [row["rho"] for row in rows] == pytest.approx([0, 5 / 64, exact], abs=0.01)
    assert rows[2]["voters"] == pytest.approx(effective_voters(5, rows[2]["rho"]))
