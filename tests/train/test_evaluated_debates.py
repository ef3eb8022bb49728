"""Evaluations in other debates than training, at other temperatures, and several times."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import Reply, TurnRequest
from debate_rollout.engine import Request
from debate_rollout.engines import ScriptedEngine
from debate_train.checkpoints import RunState
from debate_train.checkpoints.run_directory import MetricsFile
from debate_train.commands.rollout import main as rollout_main
from debate_train.data import SignsPuzzle
from debate_train.data.signs_puzzle import read_puzzle, solutions
from debate_train.evaluation.measuring import Measures, evaluate, measures_json
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.running.results import print_results, results_table, write_results

QUESTIONS = SignsPuzzle().open().split("dev", 3)


def recipe(evaluation: dict[str, Any] | None = None, **changes: Any) -> Recipe:
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
    found = evaluate(form.evaluated(), engine, QUESTIONS, "dev")
    return engine.requests, found


def test_debate_is_evaluated_with_other_agents_rounds_and_topology() -> None:
    changes = {"num_agents": 5, "max_rounds": 3, "topology": "ring", "history_rounds": 1}
    requests, found = asked(recipe(changes))
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
    form = recipe({"temperature": 0.7, "top_p": 0.9, "runs": 2}, debate=debate)
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
        recipe(evaluation)


def _answered(turn_request: TurnRequest) -> str:
    """Right in a share of the runs that differs between questions."""
    digits, target = read_puzzle(turn_request.question)
    right = turn_request.seed % 4 <= QUESTIONS.index(turn_request.question)
    accepted = solutions(digits, target)
    wrong = next(s for s in ("+ + +", "- - -") if s not in accepted)
    return f"<solution> {accepted[0] if right else wrong} </solution>"


def test_runs_are_independent_and_pooled_by_question() -> None:
    form = recipe({"runs": 5, "direct_samples": 3})
    engine = ScriptedEngine().open(None, word_tokenizer(), script=_answered)
    found = evaluate(form.evaluated(), engine, QUESTIONS, "dev")
    assert len({debate.id for debate in found.played["debate"]}) == 5 * 3
    # The seeds are known, and so is each reply: 5 runs x 3 questions x 3 replies.
    recorder = Recorder(engine)
    evaluate(form.evaluated(), recorder, QUESTIONS, "dev")
    alone = [r.turn_request for r in recorder.requests if r.turn_request.round == 0][: 5 * 3 * 3]
    assert len({turn_request.seed for turn_request in alone}) == 45
    right = [
        float(turn_request.seed % 4 <= QUESTIONS.index(turn_request.question))
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
    alone_once = evaluate(recipe({"direct_samples": 3}).evaluated(), first, QUESTIONS, "dev")
    assert [r.turn_request.seed for r in first.requests][:9] == [
        turn_request.seed for turn_request in alone[:9]
    ]
    assert alone_once.found["eval/direct/accuracy"].run_deviation is None
    assert "run_deviation" not in measures_json(alone_once)["eval/direct/accuracy"]


def test_rollout_command_takes_greedy_and_nucleus_sampling(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(
        "name: t\nsteps: 1\nmodel: {type: scratch}\n"
        "data: {type: signs_puzzle, batch_size: 2, seed: 0}\n"
        "debate: {num_agents: 2, max_rounds: 1, style: compact, personas: none}\n"
        "rollout: {max_tokens: 6}\n"
    )

    def texts(*changes: str) -> list[str]:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        assert rollout_main([str(path), *changes, "--output", str(out)]) == 0
        found = read_transcripts(out / "transcripts.jsonl")
        return [turn.text for debate in found for turn in debate.turns]

    # Another seed of the model would be another policy, another seed of questions other prompts.
    greedy = texts("debate.temperature=0")
    assert len(greedy) == 4
    assert texts("rollout.top_p=0.000001") == greedy
    assert texts() != greedy


def test_results_say_how_they_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    kept: list[Any] = []

    class Directory:
        metrics = MetricsFile(Path("none"))

        def write_results(self, results: Any) -> None:
            kept.append(results)

    measure = {"mean": 0.5, "low": 0.4, "high": 0.6, "questions": 3}
    names = ("format", "maj/last", "judge/accuracy", "direct/accuracy", "maj/first")
    after = {f"eval/{name}": measure for name in names}
    setup = recipe().evaluated()
    rows = results_table(after, after, setup, {})
    write_results(Directory(), rows, after, RunState(step=1), setup)  # type: ignore[arg-type]
    assert kept[0]["measured"] == setup.described()
    print_results(rows, after, setup)
    table = capsys.readouterr().out
    # What the recipe trains stands first, then one majority; the number of questions beside each.
    shown = [line.split()[:3] for line in table.splitlines() if " 0.500 " in line]
    assert [row[:2] for row in shown] == [
        *(["direct", "accuracy"], ["judge", "accuracy"], ["majority", "vote"])
    ]
    assert {row[2] for row in shown} == {"3"}
    assert max(map(len, table.splitlines())) <= 80
