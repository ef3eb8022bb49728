"""What an evaluation measures, with agents whose answers and votes are known."""

from statistics import fmean, stdev
from typing import Any

import pytest

from debate_protocol.types import Reply, TurnRequest
from debate_train.data import SignsPuzzle
from debate_train.evaluation.measuring import Measures, measures_json
from debate_train.evaluation.settings import Setup
from debate_train.models.scratch import word_tokenizer
from debate_train.playing.shared_turns import SharedTurns, turn_request_key
from debate_train.recipe.check import check
from train.evaluated_puzzles import QUESTIONS, ScriptedEvaluation, answer_by_seed, puzzle_answer
from train.small_recipes import recipe_of

BASE = """\
name: t
steps: 1
model: {type: scratch, context_window: 1024}
data: {type: signs_puzzle, batch_size: 2}
debate: {num_agents: 3, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 32}
evaluation: {direct_samples: 2, questions: 3}
"""
IS_RIGHT = dict(
    zip((q.id for q in QUESTIONS), ((1, 1, 0), (1, 0, 0), (0, 0, 0), (0, 1, 1)), strict=True)
)
"""Which agents answer each question rightly; wrong ones give the same wrong answer."""


def setup(changes: str = "", **sections: Any) -> Setup:
    return recipe_of(BASE, changes, **sections).evaluated()


def vote_by_truth(request: TurnRequest) -> str:
    """The known answer; from the second round on a vote by the truth on the two peers."""
    is_right = IS_RIGHT[request.question.id]
    vote = "N/A"
    if request.round:
        peers = [agent for agent in range(3) if agent != request.agent]
        better, worse = sorted(peers, key=lambda agent: -is_right[agent])
        verdict = "=" if is_right[better] == is_right[worse] else ">"
        vote = f"Agent {better} {verdict} Agent {worse}"
    solution = puzzle_answer(request.question, bool(is_right[request.agent]))
    return f"<solution> {solution} </solution> <comparison> {vote} </comparison>"


def test_evaluation_measures_answers_decisions_and_votes() -> None:
    measures = ScriptedEvaluation(vote_by_truth, word_tokenizer()).measure(setup())
    expected = {
        # Agent 0 alone: 1, 1, 0, 0.
        "eval/direct/accuracy": 0.5,
        # Two of three: 1, 0, 0, 1.
        "eval/majority/accuracy": 0.5,
        # The only right agent of question 1 wins both votes on it: 1, 1, 0, 1.
        "eval/peer_vote/accuracy": 0.75,
        "eval/judge/accuracy": 1.0,
        "eval/format": 1.0,
        # 2/3, 1/3, 0, 2/3
        "eval/last_round/accuracy": 5 / 12,
        # One of three votes is "=", and all three on question 2: (1/3 · 3 + 1)/4
        "eval/judge/equal_share": 0.5,
        "eval/comparisons_made": 1.0,
        "eval/pass@k": 0.75,
        # Answers per agent in the first round: 2/3, 2/3, 1/3, 2/3
        "eval/diversity/round_0": 7 / 12,
        # Both replies of a question say the same.
        "eval/direct/maj@2": 0.5,
        "eval/direct/pass@2": 0.5,
        "eval/direct/cons@2": 0.5,
        "eval/cons@k": 0.5,
        # Nobody changes an answer.
        "eval/maj/first": 0.5,
        "eval/maj/last": 0.5,
        "eval/maj/delta": 0.0,
        "eval/accuracy/round_1": 5 / 12,
        "eval/drift/round_1": 0.0,
        "eval/improvement": 0.0,
        "eval/flips/right_to_wrong": 0.0,
        # All three wrong on question 2, and with one answer.
        "eval/agreement/reached": 0.25,
    }
    means = measures.means()
    assert {name: means[name] for name in expected} == pytest.approx(expected)
    assert "eval/improvement" not in measures.values
    # No agent was right on question 2, so nobody judged a right and a wrong turn there.
    assert measures.found["eval/judge/accuracy"].questions == 3
    direct = measures.found["eval/direct/accuracy"]
    assert direct.questions == 4
    assert 0 <= direct.low < 0.5 < direct.high <= 1
    num_debates = {name: len(debates) for name, debates in measures.played.items()}
    assert num_debates == {"direct": 8, "debate": 4}


def test_evaluations_of_one_split_differ_by_the_policy_alone() -> None:
    def seeds(split: str, changes: str = "") -> list[int]:
        evaluation = ScriptedEvaluation(vote_by_truth, word_tokenizer())
        evaluation.measure(setup(changes), split=split)
        return evaluation.seeds

    first = seeds("test")
    # 4 questions of 2 direct replies, then 4 debates of 3 agents in 2 rounds.
    assert len(set(first)) == len(first) == 4 * 2 + 4 * 3 * 2
    assert first == seeds("test")
    assert not set(first) & set(seeds("dev"))
    assert not set(first) & set(seeds("test", "seed=1"))


TEST_QUESTIONS = SignsPuzzle().open().split("test", 2)


def measure_two_runs(shared: SharedTurns | None = None) -> tuple[dict[str, Reply], Measures]:
    """Evaluate with answers that follow from the seed; return what was sampled, too."""
    evaluation = ScriptedEvaluation(answer_by_seed, word_tokenizer())
    measures = evaluation.measure(setup("evaluation.runs=2"), TEST_QUESTIONS, "test", shared=shared)
    sampled = zip(evaluation.turn_requests, evaluation.replies, strict=True)
    return {turn_request_key(request): reply for request, reply in sampled}, measures


def test_evaluate_hands_over_the_value_of_each_question() -> None:
    _, measures = measure_two_runs()
    ratios = set(measures.found) - set(measures.values)
    # Sums over all questions are divided, so that a question has no value of its own.
    of_rounds = {name.split("/")[-2] for name in ratios if "round_" in name}
    assert of_rounds <= {"rho", "n_eff", "tokens"}
    assert set(measures.values) < set(measures.found) and "eval/improvement" in ratios
    for name, by_question in measures.values.items():
        assert set(by_question) <= {question.id for question in TEST_QUESTIONS}
        measure = measures.found[name]
        assert measure.questions == len(by_question)
        assert sum(by_question.values()) / len(by_question) == measure.mean


def test_evaluate_asks_for_nothing_that_is_known() -> None:
    sampled, measures = measure_two_runs()
    left_out = sorted(sampled)[3]
    shared = SharedTurns({key: reply for key, reply in sampled.items() if key != left_out})
    sampled_again, same_measures = measure_two_runs(shared)
    assert set(sampled_again) == {left_out}
    assert same_measures.values == measures.values


# Agents 0 and 1 are the trained policy's, 2 and 3 the opponent's.
IS_RIGHT_BY_ROLES = dict(
    zip((q.id for q in QUESTIONS[:3]), ((1, 0, 0, 0), (1, 0, 1, 0), (1, 1, 0, 0)), strict=True)
)
JUDGED = {0: (1, 2), 1: (0, 2), 2: (0, 1), 3: (0, 1)}


def vote_by_roles(request: TurnRequest) -> str:
    """Solvers vote by the truth on one pair, rivals `=`; agent 3 once has no answer."""
    if (request.agent, request.round, request.question) == (3, 0, QUESTIONS[2]):
        return "no answer"
    is_right = IS_RIGHT_BY_ROLES[request.question.id]
    better, worse = sorted(JUDGED[request.agent], key=lambda agent: -is_right[agent])
    is_decided = request.agent < 2 and is_right[better] != is_right[worse]
    vote = f"Agent {better} {'>' if is_decided else '='} Agent {worse}" if request.round else "N/A"
    solution = puzzle_answer(request.question, bool(is_right[request.agent]))
    return f"<solution> {solution} </solution> <comparison> {vote} </comparison>"


def means_against(opponent: str) -> dict[str, float]:
    roles = {"solver": {"count": 2}, "rival": {"count": 2, "policy": opponent}}
    debate = {"roles": roles, "max_rounds": 2, "style": "compact", "personas": "none"}
    evaluation = ScriptedEvaluation(vote_by_roles, word_tokenizer())
    roles_setup = setup("evaluation.direct_samples=1", debate=debate)
    return evaluation.measure(roles_setup, QUESTIONS[:3]).means()


def test_figures_of_the_trained_policy_stand_beside_those_of_its_opponent() -> None:
    means = means_against("start")
    by_policy = {name: v for name, v in means.items() if "/trained/" in name or "/role/" in name}
    expected = {
        # Of two solvers 1, 1 and 2 are right, of two rivals 0, 1 and 0.
        "eval/trained/accuracy": (1 / 2 + 1 / 2 + 1) / 3,
        "eval/role/rival/accuracy": (0 + 1 / 2 + 0) / 3,
        "eval/trained/format": 1.0,
        # One of the four turns of rivals on the last question cannot be read.
        "eval/role/rival/format": (1 + 1 + 3 / 4) / 3,
        "eval/trained/judge/accuracy": 1.0,
        "eval/role/rival/judge/accuracy": 0.5,
    }
    assert by_policy == pytest.approx(expected)
    assert means["eval/last_round/accuracy"] == pytest.approx((1 / 4 + 1 / 2 + 1 / 2) / 3)
    # A right and a wrong turn were judged by agents 1, 2, 3; by 0, 2, 3; and by 0 and 1.
    assert means["eval/judge/accuracy"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    # Roles of one policy are measured together, as without these figures.
    assert means_against("trained") == {n: v for n, v in means.items() if n not in by_policy}


def test_debate_is_evaluated_with_other_agents_rounds_and_topology() -> None:
    changes = "num_agents: 5, max_rounds: 3, topology: ring, history_rounds: 1, direct_samples: 2"
    evaluation = ScriptedEvaluation(answer_by_seed)
    measures = evaluation.measure(setup(f"evaluation='{{{changes}}}'"), QUESTIONS[:3])
    assert len(evaluation.requests) == 3 * 2 + 3 * 5 * 3
    for debate in measures.played["debate"]:
        assert (debate.protocol.num_agents, debate.protocol.max_rounds) == (5, 3)
        assert debate.protocol.history_rounds == 1
        # On a ring of five, agent 0 sees agents 1 and 4.
        (turn,) = [t for t in debate.turns if (t.agent, t.round) == (0, 1)]
        assert {(k.agent, k.round) for k in turn.shown or ()} == {(1, 0), (4, 0)}


@pytest.mark.parametrize("personas", ["default", "none", "[{name: a, temperature: 0.3}]"])
def test_evaluation_temperature_holds_for_all(personas: str) -> None:
    changes = "evaluation.temperature=0.7 evaluation.top_p=0.9 evaluation.runs=2"
    recipe = recipe_of(BASE, f"{changes} debate.personas='{personas}'")
    evaluation = ScriptedEvaluation(answer_by_seed)
    evaluation.measure(recipe.evaluated(), QUESTIONS[:3])
    assert {request.sampling.temperature for request in evaluation.requests} == {0.7}
    assert {request.sampling.top_p for request in evaluation.requests} == {0.9}
    described = recipe.evaluated().described()
    assert described == "temperature 0.7, top_p 0.9; 3 agents, 2 rounds; 2 runs"
    report = check(recipe)
    assert report.errors == []
    assert any(described in line for line in report.lines)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("evaluation.topology=sparse", "evaluation"),
        ("evaluation.history_rounds=2", "append needs history_rounds -1 or 1, found 2"),
        ("evaluation.temperature=-1", "temperature"),
        ("evaluation.runs=0", "runs"),
    ],
)
def test_evaluation_that_cannot_be_held_is_refused(changes: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        setup(changes)


def test_runs_are_independent_and_pooled_by_question() -> None:
    def is_right(request: TurnRequest) -> bool:
        """In a share of the runs that differs between questions."""
        return request.seed % 4 <= QUESTIONS.index(request.question)

    def answer(request: TurnRequest) -> str:
        return f"<solution> {puzzle_answer(request.question, is_right(request))} </solution>"

    evaluation = ScriptedEvaluation(answer, word_tokenizer())
    five_runs = setup("evaluation.runs=5 evaluation.direct_samples=3")
    measures = evaluation.measure(five_runs, QUESTIONS[:3])
    assert len({debate.id for debate in measures.played["debate"]}) == 5 * 3
    # The seeds are known, and so is each reply: 5 runs x 3 questions x 3 replies.
    direct = evaluation.turn_requests[: 5 * 3 * 3]
    assert len({request.seed for request in direct}) == 45
    verdicts = [float(is_right(request)) for request in direct]
    measure = measures.found["eval/direct/accuracy"]
    assert measure.mean == pytest.approx(fmean(verdicts), abs=1e-12)
    assert measure.questions == 3
    deviation = stdev(fmean(verdicts[9 * run : 9 * run + 9]) for run in range(5))
    assert measure.run_deviation == pytest.approx(deviation, abs=1e-12)
    assert measures_json(measures)["eval/direct/accuracy"]["run_deviation"] == measure.run_deviation
    # The first of several runs is the one run of before.
    single = ScriptedEvaluation(answer, word_tokenizer())
    measures = single.measure(setup("evaluation.direct_samples=3"), QUESTIONS[:3])
    assert single.seeds[:9] == [request.seed for request in direct[:9]]
    assert measures.found["eval/direct/accuracy"].run_deviation is None
    assert "run_deviation" not in measures_json(measures)["eval/direct/accuracy"]
