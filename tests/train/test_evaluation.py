"""What an evaluation measures, with agents whose answers and votes are known."""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

import pytest

from debate_protocol.types import Question, Reply, TurnRequest
from debate_rollout.engine import Request
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.data.signs_puzzle import read_puzzle, solutions
from debate_train.evaluation.measuring import Measures, evaluate, measures_json
from debate_train.models.scratch import word_tokenizer
from debate_train.playing.shared_turns import SharedTurns, turn_request_key
from debate_train.recipe import Recipe
from debate_train.recipe.check import check

QUESTIONS = SignsPuzzle().open().split("dev", 4)
RIGHT = dict(
    zip((q.id for q in QUESTIONS), ((1, 1, 0), (1, 0, 0), (0, 0, 0), (0, 1, 1)), strict=True)
)
"""Which agents answer each question rightly; wrong ones give the same wrong answer."""


def recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle"},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "evaluation": {"direct_samples": 2},
    }
    return Recipe.model_validate(settings | changes)


def answer(question: Question, right: int) -> str:
    digits, target = read_puzzle(question)
    accepted = solutions(digits, target)
    return accepted[0] if right else next(s for s in ("+ + +", "- - -") if s not in accepted)


def said(request: TurnRequest) -> str:
    """The known answer; from the second round on a vote by the truth on the two peers."""
    right = RIGHT[request.question.id]
    vote = "N/A"
    if request.round:
        a, b = (agent for agent in range(3) if agent != request.agent)
        low, high = (b, a) if right[b] > right[a] else (a, b)
        vote = f"Agent {low} {'=' if right[a] == right[b] else '>'} Agent {high}"
    solution = answer(request.question, right[request.agent])
    return f"<solution> {solution} </solution> <comparison> {vote} </comparison>"


def measured(form: Recipe, name: str, seen: list[TurnRequest]) -> Measures:
    def script(request: TurnRequest) -> str:
        seen.append(request)
        return said(request)

    engine = ScriptedEngine().open(None, word_tokenizer(), script=script)
    return evaluate(form.evaluated(), engine, QUESTIONS, name)


def test_evaluation_measures_answers_decisions_and_votes() -> None:
    found = measured(recipe(), "dev", [])
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
    means = found.means()
    assert {name: means[name] for name in expected} == pytest.approx(expected)
    assert "eval/improvement" not in found.values
    assert found.found["eval/direct/accuracy"].questions == 4
    # No agent was right on question 2, so nobody judged a right and a wrong turn there.
    assert found.found["eval/judge/accuracy"].questions == 3
    direct = found.found["eval/direct/accuracy"]
    assert 0 <= direct.low < 0.5 < direct.high <= 1
    assert {name: len(debates) for name, debates in found.played.items()} == {
        "direct": 8,
        "debate": 4,
    }


def test_evaluations_of_one_split_differ_by_the_policy_alone() -> None:
    first: list[TurnRequest] = []
    again: list[TurnRequest] = []
    other: list[TurnRequest] = []
    for name, seen in (("test", first), ("test", again), ("dev", other)):
        measured(recipe(), name, seen)
    # 4 questions of 2 direct replies, then 4 debates of 3 agents in 2 rounds.
    assert len(first) == 4 * 2 + 4 * 3 * 2
    seeds = [request.seed for request in first]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [request.seed for request in again]
    assert not set(seeds) & {request.seed for request in other}
    assert not set(seeds) & set(_seeds(recipe(seed=1)))


def _seeds(form: Recipe) -> list[int]:
    seen: list[TurnRequest] = []
    measured(form, "test", seen)
    return [request.seed for request in seen]


SHARED_QUESTIONS = SignsPuzzle().open().split("test", 2)
RECIPE = Recipe.model_validate(
    {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "evaluation": {"direct_samples": 2, "runs": 2},
    }
)


def measured_beside(shared: SharedTurns | None = None) -> tuple[dict[str, Reply], Measures]:
    """Evaluate with agents whose words follow from the seed; return what was sampled, too."""
    sampled: dict[str, Reply] = {}

    def script(turn_request: TurnRequest) -> str:
        return f"<solution> {'+ + +' if turn_request.seed % 2 else '- - -'} </solution>"

    engine = ScriptedEngine().open(None, word_tokenizer(), script=script)
    generate = engine.generate

    def kept(requests: Sequence[Request]) -> list[Reply]:
        replies = generate(requests)
        sampled.update(
            {
                turn_request_key(one.turn_request): its
                for one, its in zip(requests, replies, strict=True)
            }
        )
        return replies

    engine.generate = kept  # type: ignore[method-assign]
    return sampled, evaluate(RECIPE.evaluated(), engine, SHARED_QUESTIONS, "test", shared=shared)


def test_evaluate_hands_over_the_value_of_each_question() -> None:
    _, found = measured_beside()
    ratios = set(found.found) - set(found.values)
    # Sums over all questions are divided, so that a question has no value of its own.
    assert {name.split("/")[-2] for name in ratios if "round_" in name} <= {
        "rho",
        "n_eff",
        "tokens",
    }
    assert set(found.values) < set(found.found) and "eval/improvement" in ratios
    for name, by_question in found.values.items():
        assert set(by_question) <= {question.id for question in SHARED_QUESTIONS}
        measure = found.found[name]
        assert measure.questions == len(by_question)
        assert sum(by_question.values()) / len(by_question) == measure.mean


def test_evaluate_asks_for_nothing_that_is_known() -> None:
    sampled, found = measured_beside()
    left_out = sorted(sampled)[3]
    again, same = measured_beside(SharedTurns({k: v for k, v in sampled.items() if k != left_out}))
    assert set(again) == {left_out}
    assert same.values == found.values


ROLE_QUESTIONS = SignsPuzzle().open().split("dev", 3)
ANSWERS = ((1, 0, 0, 0), (1, 0, 1, 0), (1, 1, 0, 0))
RIGHT_ANSWERS = {question.id: its for question, its in zip(ROLE_QUESTIONS, ANSWERS, strict=True)}
"""Which agents answer rightly: 0 and 1 are the trained policy's, 2 and 3 the opponent's."""
JUDGED = {0: (1, 2), 1: (0, 2), 2: (0, 1), 3: (0, 1)}


def recipe_of_roles(opponent: str, **changes: Any) -> Recipe:
    roles = {"solver": {"count": 2}, "rival": {"count": 2, "policy": opponent}}
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"roles": roles, "max_rounds": 2, "style": "compact", "personas": "none"},
        "evaluation": {"direct_samples": 1},
    }
    return Recipe.model_validate(settings | changes)


def said_by_roles(request: TurnRequest) -> str:
    """Solvers vote by the truth on one pair, rivals `=`; agent 3 once has no answer."""
    right, (digits, target) = RIGHT_ANSWERS[request.question.id], read_puzzle(request.question)
    accepted = solutions(digits, target)
    wrong = next(s for s in ("+ + +", "- - -") if s not in accepted)
    solution = accepted[0] if right[request.agent] else wrong
    if (request.agent, request.round, request.question) == (3, 0, ROLE_QUESTIONS[2]):
        return "no answer"
    a, b = JUDGED[request.agent]
    if right[a] < right[b]:
        a, b = b, a
    verdict = ">" if request.agent < 2 and right[a] != right[b] else "="
    vote = f"Agent {a} {verdict} Agent {b}" if request.round else "N/A"
    return f"<solution> {solution} </solution> <comparison> {vote} </comparison>"


def means(form: Recipe) -> dict[str, float]:
    engine = ScriptedEngine().open(None, word_tokenizer(), script=said_by_roles)
    return evaluate(form.evaluated(), engine, ROLE_QUESTIONS, "dev").means()


def test_figures_of_the_trained_policy_stand_beside_those_of_its_opponent() -> None:
    found = means(recipe_of_roles("start"))
    own = {name: v for name, v in found.items() if "/trained/" in name or "/role/" in name}
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
    assert own == pytest.approx(expected)
    assert found["eval/last_round/accuracy"] == pytest.approx((1 / 4 + 1 / 2 + 1 / 2) / 3)
    # A right and a wrong turn were judged by agents 1, 2, 3; by 0, 2, 3; and by 0 and 1.
    assert found["eval/judge/accuracy"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_roles_of_one_policy_are_measured_together_as_before() -> None:
    alone, apart = means(recipe_of_roles("trained")), means(recipe_of_roles("start"))
    assert alone == {name: apart[name] for name in alone}
    assert {name for name in apart if name not in alone} == {
        f"eval/{of}/{figure}"
        for of in ("trained", "role/rival")
        for figure in ("accuracy", "format", "judge/accuracy")
    }


DEBATED_QUESTIONS = SignsPuzzle().open().split("dev", 3)


def debating_recipe(evaluation: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch", "context_window": 1024},
        "data": {"type": "signs_puzzle", "batch_size": 2},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact"},
        "rollout": {"max_tokens": 32},
        "evaluation": {"direct_samples": 2, "questions": 3} | (evaluation or {}),
    }
    return Recipe.model_validate(settings | changes)


class Recorder:
    """An engine that keeps what it is asked."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.requests = engine, list[Request]()
        self.replies: list[Reply] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        self.requests += requests
        replies = self._engine.generate(requests)
        self.replies += replies
        return replies  # type: ignore[no-any-return]


def asked(form: Recipe) -> tuple[list[Request], Measures]:
    engine = Recorder(ScriptedEngine(replies=("<solution> + + + </solution>",)).open())
    found = evaluate(form.evaluated(), engine, DEBATED_QUESTIONS, "dev")
    return engine.requests, found


def test_debate_is_evaluated_with_other_agents_rounds_and_topology() -> None:
    changes = {"num_agents": 5, "max_rounds": 3, "topology": "ring", "history_rounds": 1}
    requests, found = asked(debating_recipe(changes))
    assert len(requests) == 3 * 2 + 3 * 5 * 3
    for debate in found.played["debate"]:
        assert (debate.protocol.num_agents, debate.protocol.max_rounds) == (5, 3)
        assert debate.protocol.history_rounds == 1
        # On a ring of five, agent 0 sees agents 1 and 4.
        (turn,) = [t for t in debate.turns if (t.agent, t.round) == (0, 1)]
        assert {(k.agent, k.round) for k in turn.shown or ()} == {(1, 0), (4, 0)}


@pytest.mark.parametrize("personas", ["default", "none", [{"name": "a", "temperature": 0.3}]])
def test_evaluation_temperature_holds_for_all(personas: Any) -> None:
    debate = {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": personas}
    form = debating_recipe({"temperature": 0.7, "top_p": 0.9, "runs": 2}, debate=debate)
    requests, _ = asked(form)
    assert {r.sampling.temperature for r in requests} == {0.7}
    assert {r.sampling.top_p for r in requests} == {0.9}
    assert form.evaluated().described() == "temperature 0.7, top_p 0.9; 3 agents, 2 rounds; 2 runs"
    assert check(form).errors == []
    assert any(form.evaluated().described() in line for line in check(form).lines)


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"topology": "sparse"}, "evaluation"),
        ({"history_rounds": 2}, "conversation: append needs history_rounds -1 or 1, found 2"),
        ({"temperature": -1}, "temperature"),
        ({"runs": 0}, "runs"),
    ],
)
def test_evaluation_that_cannot_be_held_is_refused(evaluation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        debating_recipe(evaluation)


def _answered(turn_request: TurnRequest) -> str:
    """Right in a share of the runs that differs between questions."""
    digits, target = read_puzzle(turn_request.question)
    right = turn_request.seed % 4 <= DEBATED_QUESTIONS.index(turn_request.question)
    accepted = solutions(digits, target)
    wrong = next(s for s in ("+ + +", "- - -") if s not in accepted)
    return f"<solution> {accepted[0] if right else wrong} </solution>"


def test_runs_are_independent_and_pooled_by_question() -> None:
    form = debating_recipe({"runs": 5, "direct_samples": 3})
    engine = ScriptedEngine().open(None, word_tokenizer(), script=_answered)
    found = evaluate(form.evaluated(), engine, DEBATED_QUESTIONS, "dev")
    assert len({debate.id for debate in found.played["debate"]}) == 5 * 3
    # The seeds are known, and so is each reply: 5 runs x 3 questions x 3 replies.
    recorder = Recorder(engine)
    evaluate(form.evaluated(), recorder, DEBATED_QUESTIONS, "dev")
    alone = [r.turn_request for r in recorder.requests if r.turn_request.round == 0][: 5 * 3 * 3]
    assert len({turn_request.seed for turn_request in alone}) == 45
    right = [
        float(turn_request.seed % 4 <= DEBATED_QUESTIONS.index(turn_request.question))
        for turn_request in alone
    ]
    runs = [fmean(right[9 * k : 9 * k + 9]) for k in range(5)]
    measure = found.found["eval/direct/accuracy"]
    assert measure.mean == pytest.approx(fmean(right), abs=1e-12)
    assert measure.questions == 3
    assert measure.run_deviation == pytest.approx(stdev(runs), abs=1e-12)
    assert measures_json(found)["eval/direct/accuracy"]["run_deviation"] == measure.run_deviation
    # The first of several runs is the one run of before.
    first = Recorder(engine)
    alone_once = evaluate(
        debating_recipe({"direct_samples": 3}).evaluated(), first, DEBATED_QUESTIONS, "dev"
    )
    assert [r.turn_request.seed for r in first.requests][:9] == [
        turn_request.seed for turn_request in alone[:9]
    ]
    assert alone_once.found["eval/direct/accuracy"].run_deviation is None
    assert "run_deviation" not in measures_json(alone_once)["eval/direct/accuracy"]
