"""Evaluations in other debates than training, at other temperatures, and several times."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import Reply, TurnRequest
from debate_rollout.engine import Request
from debate_rollout.engines import ScriptedEngine, TransformersEngine
from debate_train.checkpoints import RunState
from debate_train.checkpoints.run_directory import MetricsFile
from debate_train.commands.cli import main as train
from debate_train.commands.rollout import main as rollout_main
from debate_train.data import SignsPuzzle
from debate_train.data.signs_puzzle import read_puzzle, solutions
from debate_train.errors import RecipeError
from debate_train.evaluation.measuring import Measures, evaluate, measures_json
from debate_train.models.loaded_model import LoadedModel
from debate_train.models.scratch import word_tokenizer
from debate_train.recipe import Recipe
from debate_train.recipe.check import check, check_collecting
from debate_train.running.results import print_results, results_table, write_results
from debate_train.running.run import run
from train.small_runs import RECIPE

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


def test_evaluation_as_in_training_is_the_default() -> None:
    form = recipe()
    assert form.evaluation.form(form.debate) is form.debate
    requests, _ = asked(form)
    alone, debated = requests[:6], requests[6:]
    assert {r.sampling.temperature for r in alone} == {0.6}
    assert {r.sampling.temperature for r in debated} == {0.6, 1.0, 0.9}
    assert form.evaluated().described() == (
        "direct replies at temperature 0.6, debates at 0.6, 1, 0.9; 3 agents, 2 rounds"
    )


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


def test_trained_direct_replies_are_evaluated_in_a_debate() -> None:
    direct = {"type": "direct", "style": "compact", "personas": "none"}
    debate = {"num_agents": 4, "max_rounds": 2, "style": "compact", "personas": "none"}
    form = recipe({"debate": debate}, debate=direct, rollout={"debates_per_question": 2})
    requests, found = asked(form)
    assert len(requests) == 3 * 2 + 3 * 4 * 2
    assert "eval/majority/accuracy" in found.means()


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"topology": "sparse"}, "evaluation"),
        ({"num_agents": 1}, "evaluation.num_agents: found 1, but a debate needs at least 2"),
        ({"history_rounds": 2}, "conversation: append needs history_rounds -1 or 1, found 2"),
        ({"max_rounds": 0}, "evaluation.max_rounds"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"runs": 0}, "runs"),
    ],
)
def test_evaluation_that_cannot_be_held_is_refused(evaluation: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(evaluation)


def test_setting_that_the_form_does_not_have_is_refused() -> None:
    direct = {"type": "direct", "style": "compact"}
    with pytest.raises(ValueError, match=r"evaluation.num_agents: found 5, but a debate of type d"):
        recipe({"num_agents": 5}, debate=direct, rollout={"debates_per_question": 2})


def test_check_looks_at_the_context_of_evaluated_debates() -> None:
    narrow = {"type": "scratch", "context_window": 512}
    (error,) = check(recipe({"num_agents": 13}, model=narrow)).errors
    assert error.startswith("evaluation: context: at most")


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


def test_greedy_evaluation_repeats_itself_and_nucleus_cuts(
    tiny: Callable[..., LoadedModel],
) -> None:
    loaded = tiny()
    rollout = {"max_tokens": 6}

    def texts(**evaluation: Any) -> list[str]:
        engine = Recorder(TransformersEngine().open(loaded.model, loaded.tokenizer))
        setup = recipe({"runs": 2} | evaluation, rollout=rollout).evaluated()
        evaluate(setup, engine, QUESTIONS[:1], "dev")
        return [reply.text for reply in engine.replies[:4]]

    greedy = texts(temperature=0)
    assert len(set(greedy)) == 1  # two runs of two direct replies to one question
    assert texts(top_p=1e-6, temperature=1) == greedy
    assert len(set(texts(temperature=1))) > 1


SAMPLED: list[tuple[dict[str, Any], str]] = [
    ({"rollout": {"top_p": 0.9}}, "top_p < 1, top_k and min_p"),
    ({"rollout": {"min_p": 0.1}}, "top_p < 1, top_k and min_p"),
    (
        {"debate": {"num_agents": 3, "personas": "none", "temperature": 0}},
        "agent 0 has temperature 0",
    ),
    (
        {"debate": {"num_agents": 3, "personas": [{"name": "a"}, {"name": "b", "temperature": 0}]}},
        "agent 1 has temperature 0",
    ),
]


@pytest.mark.parametrize(("changes", "message"), SAMPLED)
def test_cut_samples_are_collected_and_imitated_but_not_reinforced(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    form = recipe(**changes)
    assert any(message in error for error in check(form).errors)
    with pytest.raises(RecipeError, match=message):
        run(form, "", tmp_path / "d")
    assert not (tmp_path / "d").exists()
    assert not any(message in error for error in check_collecting(form).errors)
    imitating = recipe(**changes, loss={"type": "sft"})
    assert not any(message in error for error in check(imitating).errors)


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


def test_only_the_end_is_measured_where_nothing_is_asked_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    folder = tmp_path / "run"
    command = [f"{tmp_path}/small.yaml", "evaluation.before=false", "--output", f"{folder}"]
    assert train(command) == 0
    results = json.loads((folder / "results.json").read_text())
    assert results["before"] == {} and results["table"] == []
    mean = results["after"]["eval/direct/accuracy"]["mean"]
    assert f"direct accuracy: {mean:.3f} [" in capsys.readouterr().out
    assert not [*(folder / "evaluations").glob("before-*")]
