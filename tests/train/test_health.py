"""The health watch: silent on good runs, notices bad ones and stops them, survives a resume."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from debate_protocol.transcripts.files import from_json
from debate_rewards.metrics import debate_metrics
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.errors import RunFailure
from debate_train.models.scratch import word_tokenizer
from debate_train.monitoring.detectors import OWN, Facts
from debate_train.monitoring.health import Health, HealthWatch, alarms_of, is_evaluation
from debate_train.running.results import write_results
from train.contexts import Trainer, context, trained
from train.health_watching import ALARMS, changing, recipe, recorded, steady, watch_of, watched

OF_PAIRS = {
    *("pair_sides", "pair_truth", "preference_margin", "preference_accuracy"),
    *("kept_right", "turned_right", "answer_length"),
}
"""Detectors of phases that learn from pairs."""


@pytest.mark.parametrize(("name", "evaluations"), [("good_0", 7), ("good_1", 0)])
def test_watch_is_silent_on_the_quickstart(name: str, evaluations: int) -> None:
    rows = recorded(name)
    assert len(rows) == 70 + evaluations
    assert watched(rows) == ALARMS[name] == {}
    figures = {key for row in rows for key in row if key.startswith("health/")}
    due = {model().type for model in OWN if evaluations or model.due == "step"}
    # Of debates before a judge; of a metric that is younger than these rows.
    elsewhere = OF_PAIRS | {"fooled_judge", "no_signal", "largest_stream"}
    assert figures == {f"health/{name}" for name in due - elsewhere}


def test_watch_is_silent_on_pairs_of_both_sides() -> None:
    rows = recorded("pairs_good")
    assert watched(rows) == ALARMS["pairs_good"] == {}
    figures = {key for row in rows for key in row if key.startswith("health/")}
    assert figures == {f"health/{name}" for name in OF_PAIRS | {"entropy"}}


def test_watch_is_silent_on_debates_that_a_critic_keeps_honest() -> None:
    rows = recorded("debate")
    assert watched(rows) == ALARMS["debate"] == {}
    assert any("health/fooled_judge" in row for row in rows)


@pytest.mark.parametrize("name", [name for name, said in ALARMS.items() if said])
def test_watch_notices_a_run_that_was_made_to_fail(name: str) -> None:
    assert watched(recorded(name)) == ALARMS[name] != {}


def test_each_detector_noticed_a_run_that_was_made_to_fail() -> None:
    noticed = {name for run in ALARMS.values() for name in run}
    # These two are younger than the runs, and have tests of their own below.
    assert noticed | {"no_signal", "largest_stream"} == {model().type for model in OWN}


def held(votes: Sequence[str], round_0: str = "") -> dict[str, float]:
    """Return the metrics of one debate in which each agent compares the two others."""
    said = "<solution>{}</solution><evaluation>{}</evaluation><comparison>{}</comparison>"
    turns = [
        {"agent": a, "round": 0, "text": said.format(a, round_0, "N/A"), "shown": []}
        for a in range(3)
    ]
    turns += [
        {
            "agent": a,
            "round": 1,
            "text": said.format(a, "", votes[a]),
            "shown": [[b, 0] for b in range(3) if b != a],
        }
        for a in range(3)
    ]
    question = {"text": "?", "answer": "1", "meta": {"kind": "number"}}
    protocol = {"num_agents": 3, "max_rounds": 2, "contract": "three_section"}
    debate = from_json({"id": "d", "question": question, "protocol": protocol, "turns": turns})
    found = debate_metrics([debate])
    return {k if k.startswith("judge") else f"train/{k}": v for k, v in found.items()}


FIRST = ("Agent 1 > Agent 2", "Agent 0 > Agent 2", "Agent 0 > Agent 1")
LAST_WINS = ("Agent 1 < Agent 2", "Agent 0 < Agent 2", "Agent 0 = Agent 1")
IN_TURN = ("Agent 1 > Agent 2", "Agent 0 < Agent 2", "Agent 0 > Agent 1")


@pytest.mark.parametrize(
    ("votes", "round_0", "expected"),
    [
        # Agent 0 wins both its pairs, and each verdict names the turn that stands first.
        (FIRST, "", {"one_winner", "first_position"}),
        (LAST_WINS, "", {"one_winner", "first_position"}),
        # Each agent wins one verdict of two; two of three name the first.
        (IN_TURN, "", set()),
        (IN_TURN, "As agent 2 says", {"unheard"}),
        # Agent 0 names itself, and the others an agent 0 whom they have not heard.
        (IN_TURN, "I am Agent 0", {"unheard"}),
        (IN_TURN, "Agent 7 of the query is reagent 1", set()),
    ],
)
def test_watch_notices_votes_for_a_place_and_agents_nobody_heard(
    votes: Sequence[str], round_0: str, expected: set[str]
) -> None:
    assert watched(steady(8, **held(votes, round_0))).keys() - {"coverage"} == expected
    assert watched(steady(7, **held(votes, round_0))) == {}  # Fewer steps than the window.


def test_watch_notices_a_stream_that_takes_nearly_all_of_the_gradient() -> None:
    share = "optim/gradient_share/"
    agents = {f"{share}agent_{agent}": 0.9 - 0.8 * agent for agent in range(2)}
    alarms = watched(steady(8, **agents, **{f"{share}judge": 0.93, f"{share}generator": 0.07}))
    assert alarms.keys() == {"largest_stream"}
    assert watched(steady(8, **agents, **{f"{share}judge": 0.7, f"{share}generator": 0.3})) == {}
    # A stream without credits has share 0: the other is alone by design.
    assert watched(steady(8, **agents, **{f"{share}judge": 0.0, f"{share}generator": 1.0})) == {}


def test_phases_that_imitate_are_not_watched() -> None:
    rows = changing("optim/entropy", 1.0, 0.01)
    assert watched(rows, recipe(loss={"type": "sft"})) == {}
    assert not any(key.startswith("health/") for row in rows for key in row)


@pytest.mark.parametrize("cut", [1, 9, 15, 40])
def test_resumed_watch_goes_on_as_one_that_was_not_stopped(cut: int) -> None:
    whole, rows = recorded("liars"), recorded("liars")
    alarms = watched(whole)
    done = json.loads(json.dumps(whole[:cut]))
    watch = watch_of(recipe(), done, 0)
    for row in rows[cut:]:
        row.update(watch.see(row["step"], row, "evaluation" if is_evaluation(row) else "step")[0])
    assert [*done, *rows[cut:]] == whole
    assert alarms


def test_recipe_changes_adds_and_removes_detectors() -> None:
    form = recipe(
        {
            "window": 4,
            "detectors": {
                "entropy": {"share": 0.5, "sigmas": 0},
                "diversity": None,
                "slow": {"type": "metric", "metric": "time/step_s", "above": 2, "advice": "wait"},
            },
        }
    )
    rows = changing("optim/entropy", 1.0, 0.3, **{"train/diversity/round_0": 1 / 3})
    for row in rows:
        row["time/step_s"] = 3.0
    assert watched(rows, form) == {"slow": 4, "entropy": 13}  # 1 − 0.7k/4 < 0.5: k = 3
    assert watched(steady(**{"judge/equal_share": 1}), recipe({"enabled": False})) == {}


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        ({"stop_on": ["entropi"]}, "stop_on: found 'entropi'.*did you mean 'entropy'"),
        ({"stop_on": ["entropy"], "detectors": {"entropy": None}}, "found 'entropy'"),
        ({"detectors": {"entropy": {"bellow": 1}}}, "bellow"),
        ({"detectors": {"mine": {"type": "entropi"}}}, "entropi"),
        ({"window": 1}, "window"),
    ],
)
def test_recipe_refuses_what_is_not_watched(health: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValidationError, match=expected):
        recipe(health)


def test_detector_that_fails_is_off_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    model = OWN[0]
    monkeypatch.setattr(model, "figure", lambda self, seen: 1 / 0)
    watch = watch_of(recipe(), [], 0)
    _, said = watch.see(1, {"loss": 1.0})
    assert said == ["warning: health: reward_accuracy is off: ZeroDivisionError: division by zero"]
    assert watch.see(2, {"loss": 1.0}) == ({}, [])


def test_run_stops_on_an_alarm_and_goes_on_past_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, tokenizer = SignsPuzzle(batch_size=1).open(), word_tokenizer()
    sampled = {"value": 0}

    def longer(request: Any) -> str:
        sampled["value"] += 1
        turns = 6  # of a step
        return "<solution> + - + </solution>" + " +" * (20 if sampled["value"] > 3 * turns else 0)

    off = {"coverage": None, "diversity": None, "no_signal": None}
    form = recipe(
        {"window": 2, "stop_on": ["length"], "detectors": off},
        steps=8,
        data={"type": "signs_puzzle", "batch_size": 1},
        recording={"debates": 0},
        evaluation={"questions": 0},
    )
    engine = ScriptedEngine().open(None, tokenizer, script=longer)
    run = context(form, tmp_path / "run", engine, source, tokenizer)
    # Means of two steps: the first at which both are longer is step 5, of more than twice as much.
    with pytest.raises(RunFailure, match=r"train 5: health: length: .*the run ends here"):
        trained(run, Trainer())
    rows = run.directory.metrics.rows()
    alarms = [
        {"phase": "train", "step": 5, "detector": "length", "value": rows[4]["health/length"]}
    ]
    assert (len(rows), alarms_of(rows)) == (5, alarms)
    write_results(run.directory, [], {}, run.state, form.evaluated())
    assert json.loads((tmp_path / "run/results.json").read_text())["health"] == alarms
    resumed = context(form, tmp_path / "second", engine, source, tokenizer)
    resumed.directory.metrics.rows = lambda: rows
    resumed.state.step = 5
    ended, kept = trained(resumed, Trainer())
    assert (ended, kept.logged) == ("finished", [5, 6, 7])


@pytest.mark.parametrize("settings", [{}, {"detectors": {"no_signal": {"stops": False}}}])
def test_run_in_which_no_token_is_moved_stops_with_the_cause(settings: dict[str, Any]) -> None:
    watch = HealthWatch("train", Health(window=3, **settings), Facts(), [], 0)
    row = {"advantage/zero/share": 1.0, "judged/unread": 1.0}
    said = [line for step in (1, 2, 3) for line in watch.see(step, row)[1]]
    assert len(said) == 1 and "no_signal" in said[0] and "judged/unread" in said[0]
    if settings:
        watch.refuse_alarms()
    else:
        with pytest.raises(RunFailure, match="no_signal"):
            watch.refuse_alarms()
    # One turn that learns is enough.
    watch = HealthWatch("train", Health(window=3), Facts(), [], 0)
    assert not [watch.see(s, row | {"advantage/zero/share": 0.9})[1] for s in (1, 2, 3)][-1]
