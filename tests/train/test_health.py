"""The health monitor: silent on good runs, notices bad ones and stops them, survives a resume."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from debate_protocol.forms import Judged
from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards.metrics import debate_metrics
from debate_rollout.engines import ScriptedEngine
from debate_train.data import SignsPuzzle
from debate_train.errors import RecipeError, RunFailure
from debate_train.models.scratch import word_tokenizer
from debate_train.monitoring.detectors import ROWS
from debate_train.monitoring.figures import Facts
from debate_train.monitoring.health import Health, HealthMonitor, alarms_of, is_evaluation
from debate_train.monitoring.preflight_checks import results
from debate_train.recipe.scripted_debates import play_debate
from debate_train.running.results import write_results
from train.contexts import Trainer, context, trained
from train.health_watching import (
    ALARMS,
    Rows,
    changing,
    evaluation,
    of_pairs,
    recipe,
    recorded,
    steady,
    watch_of,
    watched,
)

OF_PAIRS = {
    "pair_sides",
    "pair_truth",
    "preference_margin",
    "preference_accuracy",
    "kept_right",
    "turned_right",
    "answer_length",
}
"""Detectors of phases that learn from pairs."""
# Of debates before a judge; of metrics that are not recorded.
NOT_OF_QUICKSTART = OF_PAIRS | {"fooled_judge", "largest_stream"}
STEP_FIGURES = {name for name, row in ROWS.items() if row.due == "step"}


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("good_0", ROWS.keys() - NOT_OF_QUICKSTART),
        ("good_1", STEP_FIGURES - NOT_OF_QUICKSTART),
        ("pairs_good", OF_PAIRS | {"entropy"}),
        ("debate", None),
    ],
)
def test_watch_is_silent_on_good_runs(name: str, figures: set[str] | None) -> None:
    rows = recorded(name)
    assert watched(rows) == ALARMS[name] == {}
    health_keys = {key for row in rows for key in row if key.startswith("health/")}
    if figures is None:
        assert "health/fooled_judge" in health_keys
    else:
        assert health_keys == {f"health/{figure}" for figure in figures}


@pytest.mark.parametrize("name", [name for name, alarms in ALARMS.items() if alarms])
def test_watch_notices_a_run_that_was_made_to_fail(name: str) -> None:
    assert watched(recorded(name)) == ALARMS[name] != {}


def test_each_detector_noticed_a_run_that_was_made_to_fail() -> None:
    noticed = {detector for alarms in ALARMS.values() for detector in alarms}
    # None of the runs shows these two, and they have tests below.
    assert noticed | {"entropy", "largest_stream"} == ROWS.keys()


@pytest.mark.parametrize(
    ("metric", "before", "after", "expected"),
    [
        # Of eight steps k have the later value: the mean passes the bound at step 10 + k.
        ("env/all/ac_tokens_per_turn", 10.0, 30.0, {"length": 15}),  # 10 + 20k/8 > 20: k = 5
        ("env/all/ac_tokens_per_turn", 10.0, 19.0, {}),
        ("env/all/ac_tokens_per_turn", 10.0, 3.0, {"length": 16}),  # 10 − 7k/8 < 5: k = 6
        ("env/all/ac_tokens_per_turn", 10.0, 5.1, {}),
        ("rollout/truncated_fraction", 0.0, 0.8, {"truncation": 13}),  # 0.8k/8 > 0.2: k = 3
        ("optim/entropy", 1.0, 0.1, {"entropy": 18}),  # 1 − 0.9k/8 < 0.2: k = 8
        ("optim/entropy", 1.0, 0.25, {}),
        ("train/format_all", 1.0, 0.8, {"format": 15}),  # 1 − 0.2k/8 < 0.9: k = 5
        ("train/judged/gap", 0.1, 0.5, {"fooled_judge": 15}),  # .1 + .4k/8 > .3: k = 5
        ("train/format_strict", 1.0, 0.6, {"strict_format": 15}),  # 1 − 0.4k/8 < 0.8: k = 5
        ("train/comparisons_made", 1.0, 0.5, {"coverage": 14}),  # 1 − 0.5k/8 < 0.8: k = 4
        ("judge/equal_share", 0.8, 1.0, {"equal_votes": 17}),  # 0.8 + 0.2k/8 > 0.95: k = 7
        ("reward/above_chance", 0.2, -0.08, {"reward_accuracy": 16}),  # 0.2 − 0.28k/8 < 0: k = 6
        ("reward/above_chance", 0.8, 0.4, {"reward_accuracy": 17}),  # 0.8 − 0.4k/8 < 0.5: k = 7
        ("train/accuracy/round_0", 0.6, 0.5, {"collapse": 15}),  # 0.6 − 0.1k/8 < 0.55: k = 5
        ("train/diversity/round_0", 0.7, 1 / 3, {"diversity": 18}),
    ],
)
def test_watch_speaks_at_the_step_at_which_the_mean_passes_the_bound(
    metric: str, before: float, after: float, expected: dict[str, int]
) -> None:
    without_noise = ", ".join(f"{name}: {{sigmas: 0}}" for name in ROWS)
    form = recipe(f"health.detectors='{{{without_noise}}}'")
    assert watched(changing(metric, before, after), form) == expected


@pytest.mark.parametrize(
    ("accuracy", "chance", "alarms"),
    [
        (0.4, 0.3, {}),  # Most answers are wrong, and the reward still follows the truth.
        (0.6, 0.7, {"reward_accuracy": 8}),  # Most are right, and it prefers the wrong ones.
        (0.5, 0.5, {}),
    ],
)
def test_reward_is_compared_with_a_draw_among_the_turns(
    accuracy: float, chance: float, alarms: dict[str, int]
) -> None:
    rows = steady(**{"reward/accuracy": accuracy, "reward/chance": chance})
    assert watched(rows) == alarms


def test_watch_takes_no_change_within_the_noise_for_one() -> None:
    rows = steady(40)
    for row in rows:  # 0.6 ± 0.2, later 0.5 ± 0.2: the standard error is √(2 · 0.04 / 7) = 0.107.
        mean = 0.6 if row["step"] <= 20 else 0.5
        row["train/accuracy/round_0"] = mean + (0.2 if row["step"] % 2 else -0.2)
    assert watched(rows) == {}
    loose = recipe("health.detectors.collapse.sigmas=0.5")
    assert watched(rows, loose) == {"collapse": 25}


def test_answers_that_agree_because_they_are_right_are_no_alarm() -> None:
    agreement = {"train/diversity/round_0": 1 / 3}
    assert watched(steady(**agreement, **{"train/accuracy/round_0": 0.89})) == {"diversity": 8}
    assert watched(steady(**agreement, **{"train/accuracy/round_0": 0.91})) == {}


@pytest.mark.parametrize(
    ("judge_share", "alarms"),
    # A stream without credits has share 0: the other is alone by design.
    [(0.93, {"largest_stream"}), (0.7, set()), (0.0, set())],
)
def test_watch_notices_a_stream_that_takes_nearly_all_of_the_gradient(
    judge_share: float, alarms: set[str]
) -> None:
    shares = {"agent_0": 0.9, "agent_1": 0.1, "judge": judge_share, "generator": 1 - judge_share}
    metrics = {f"optim/gradient_share/{name}": share for name, share in shares.items()}
    assert watched(steady(8, **metrics)).keys() == alarms


def vote_metrics(votes: Sequence[str], first_evaluation: str) -> dict[str, float]:
    """The metrics of one debate in which each of three agents compares the two others."""
    turns: list[dict[str, Any]] = []
    for round_number in range(2):
        for agent in range(3):
            remarks = "" if round_number else first_evaluation
            vote = votes[agent] if round_number else "N/A"
            text = f"<solution>{agent}</solution><evaluation>{remarks}</evaluation>"
            peers = [[peer, 0] for peer in range(3) if peer != agent]
            turns.append(
                {
                    "agent": agent,
                    "round": round_number,
                    "text": f"{text}<comparison>{vote}</comparison>",
                    "shown": peers if round_number else [],
                }
            )
    question = {"text": "?", "answer": "1", "meta": {"kind": "number"}}
    protocol = {"num_agents": 3, "max_rounds": 2, "contract": "three_section"}
    debate = from_json({"id": "d", "question": question, "protocol": protocol, "turns": turns})
    metrics = debate_metrics([debate])
    return {k if k.startswith("judge") else f"train/{k}": v for k, v in metrics.items()}


FIRST_WINS = ("Agent 1 > Agent 2", "Agent 0 > Agent 2", "Agent 0 > Agent 1")
LAST_WINS = ("Agent 1 < Agent 2", "Agent 0 < Agent 2", "Agent 0 = Agent 1")
IN_TURN = ("Agent 1 > Agent 2", "Agent 0 < Agent 2", "Agent 0 > Agent 1")


@pytest.mark.parametrize(
    ("votes", "first_evaluation", "expected"),
    [
        # Agent 0 wins both its pairs, and each verdict names the turn that stands first.
        (FIRST_WINS, "", {"one_winner", "first_position"}),
        (LAST_WINS, "", {"one_winner", "first_position"}),
        # Each agent wins one verdict of two; two of three name the first.
        (IN_TURN, "", set()),
        (IN_TURN, "As agent 2 says", {"unheard"}),
        # Agent 0 names itself, and the others an agent 0 whom they have not heard.
        (IN_TURN, "I am Agent 0", {"unheard"}),
        (IN_TURN, "Agent 7 of the query is reagent 1", set()),
    ],
)
def test_watch_notices_votes_for_a_position_and_agents_nobody_heard(
    votes: Sequence[str], first_evaluation: str, expected: set[str]
) -> None:
    metrics = vote_metrics(votes, first_evaluation)
    assert watched(steady(8, **metrics)).keys() - {"coverage"} == expected
    assert watched(steady(7, **metrics)) == {}  # Fewer steps than the window.


def strengths(*differences: float) -> Rows:
    """An evaluation every ten steps, with the policy's accuracy beyond that of its start."""
    rows: Rows = []
    for number, difference in enumerate(differences):
        rows += [{**row, "step": row["step"] + 10 * number} for row in steady(10)]
        figures = {"start/learned/accuracy": 0.5 + difference, "start/opponent/accuracy": 0.5}
        rows.append(evaluation(10 * (number + 1), **figures))
    return rows


@pytest.mark.parametrize(
    ("differences", "last_reward", "expected"),
    [
        ((0.1, 0.05, 0.01), 0.0, {}),
        ((0.1, 0.05, -0.01), 0.0, {"self_play_strength": 30}),  # 0.11 below the best
        ((-0.11,), 0.0, {"self_play_strength": 10}),  # The start is as strong as itself.
        ((0.1, 0.05, -0.01), 0.5, {"self_play_strength": 30}),
        ((0.1, 0.05, -0.01), -0.5, {}),  # The reward says so itself.
    ],
)
def test_watch_notices_a_reward_that_holds_while_strength_falls(
    differences: tuple[float, ...], last_reward: float, expected: dict[str, int]
) -> None:
    rows = strengths(*differences)
    for row in rows:
        if not is_evaluation(row):
            row["reward/total"] = last_reward if row["step"] > 20 else 0.0
    assert watched(rows) == expected


@pytest.mark.parametrize(
    ("kl_of_step", "expected", "changes"),
    [
        (lambda step: 0.001 * (step - 1), {}, ""),
        (lambda step: 0.01 * step, {"reference": 1}, ""),
        (lambda step: 0.0, {"reference": 8}, ""),
        # Of several updates the later ones have moved; another reference is not the start.
        (lambda step: 0.01 * step, {}, "trainer.type=torch trainer.minibatch_size=2"),
        (lambda step: 0.01 * step, {}, "loss.kl.reference=base"),
    ],
)
def test_watch_notices_a_reference_that_is_not_the_start(
    kl_of_step: Callable[[int], float], expected: dict[str, int], changes: str
) -> None:
    rows = steady(**{"optim/grad_norm": 0.1})
    for row in rows:
        row["optim/kl_reference"] = kl_of_step(row["step"])
    assert watched(rows, recipe(changes)) == expected


def pairs_of(num_toward_right: float = 12.0, **shares: float) -> Rows:
    """Rows of a phase that learns well from pairs which split like this."""
    counts = {"toward_right": num_toward_right, "away_from_wrong": 8.0}
    metrics = {f"offline/kept/{name}": count for name, count in counts.items()}
    metrics |= {f"offline/{name}_share": share for name, share in shares.items()}
    rows = steady(**metrics)
    for row in rows:
        row["optim/preference_margin"] = 0.1 * (row["step"] - 1)
        row["optim/preference_accuracy"] = float(row["step"] > 1)
    return rows


@pytest.mark.parametrize(
    ("shares", "figures", "alarms"),
    [
        ({"chosen_ok": 0.15}, {"pair_sides": 0.15}, {"pair_sides": 1}),
        ({"chosen_ok": 0.5, "actor_right": 0.9}, {"pair_sides": 0.1}, {"pair_sides": 1}),
        ({"chosen_ok": 0.2, "actor_right": 0.7}, {"pair_sides": 0.2}, {}),
        ({"chosen_right": 0.6, "rejected_right": 0.7}, {"pair_truth": -0.1}, {"pair_truth": 1}),
        ({"chosen_right": 0.7, "rejected_right": 0.6}, {"pair_truth": 0.1}, {}),
        ({}, {}, {}),
    ],
)
def test_watch_looks_at_what_a_set_of_pairs_is_made_of(
    shares: dict[str, float], figures: dict[str, float], alarms: dict[str, int]
) -> None:
    rows = pairs_of(**shares)
    assert watched(rows) == alarms
    expected = {f"health/{name}": value for name, value in figures.items()}
    expected |= {f"health/alarm/{name}": 1.0 for name in alarms}
    first = {key: value for key, value in rows[0].items() if key.startswith("health/")}
    assert first == pytest.approx(expected)


def test_watch_is_silent_about_the_sides_of_a_few_pairs() -> None:
    assert watched(pairs_of(num_toward_right=7.0, chosen_ok=0.0)) == {}


@pytest.mark.parametrize(
    ("margin_of_step", "accuracy", "expected"),
    [
        (lambda step: 0.01 * (step - 1), 0.6, {}),
        (lambda step: min(0.01 * (step - 1), 0.1), 1.0, {}),  # It ends where it is.
        (lambda step: 0.0, 0.0, {"preference_margin": 16, "preference_accuracy": 16}),
        (lambda step: 0.0, 0.5, {"preference_margin": 16}),
        # The mean of steps 1 to 8 is 0.035, of 11 to 18 0.04, of 12 to 19 0.03.
        (lambda step: 0.01 * min(step - 1, 18.5 - step), 0.6, {"preference_margin": 19}),
        (lambda step: 0.01 * (step - 1), 0.49, {"preference_accuracy": 16}),
    ],
)
def test_watch_notices_pairs_that_are_not_learned(
    margin_of_step: Callable[[int], float], accuracy: float, expected: dict[str, int]
) -> None:
    rows = steady(20, **{"optim/preference_accuracy": accuracy})
    for row in rows:
        row["optim/preference_margin"] = margin_of_step(row["step"])
    assert watched(rows) == expected


def three_rounds(step: int, stay_right: float, turn_right: float, tokens: float) -> dict[str, Any]:
    """An evaluation whose first answers are right in 0.6; later ones change with these shares."""
    accuracies = [0.6]
    for _ in range(2):
        before = accuracies[-1]
        accuracies.append(before * stay_right + (1 - before) * turn_right)
    before = sum(accuracies[:2]) / 2
    figures = {f"accuracy/round_{number}": value for number, value in enumerate(accuracies)}
    figures["flips/right_to_wrong"] = before * (1 - stay_right)
    figures["flips/wrong_to_right"] = (1 - before) * turn_right
    return evaluation(step, **figures, **{"tokens/answer": tokens})


@pytest.mark.parametrize(
    ("stay_right", "turn_right", "tokens", "expected"),
    [
        # With 100 questions two standard errors of .93 and .82 are .092, of .9 and .93 .078.
        (0.82, 0.45, 20.0, {"kept_right"}),
        (0.90, 0.45, 20.0, set()),
        (0.93, 0.14, 20.0, {"turned_right"}),
        (0.93, 0.25, 20.0, set()),
        (0.93, 0.30, 9.0, {"answer_length"}),
        (0.93, 0.30, 41.0, {"answer_length"}),
        (0.93, 0.30, 39.0, set()),
    ],
)
def test_watch_compares_how_answers_change_with_the_start(
    stay_right: float, turn_right: float, tokens: float, expected: set[str]
) -> None:
    start = three_rounds(0, 0.93, 0.30, 20.0)
    later = three_rounds(4, stay_right, turn_right, tokens)
    watch = watch_of(of_pairs("evaluation.questions=100"), [], 0)
    watch.know_start({name: value for name, value in start.items() if name != "step"})
    figures, warnings = watch.see(4, later, "evaluation")
    assert figures["health/kept_right"] == pytest.approx(stay_right)
    assert figures["health/turned_right"] == pytest.approx(turn_right)
    assert {key for key in figures if "alarm" in key} == {f"health/alarm/{n}" for n in expected}
    if expected == {"kept_right"}:
        assert "0.82, at the phase's start 0.93" in warnings[0]
    # Without that of the start the first evaluation is what later ones are compared with.
    unstarted = watch_of(of_pairs("evaluation.questions=100"), [], 0)
    assert unstarted.see(2, start, "evaluation")[1] == []
    assert unstarted.see(4, later, "evaluation")[0] == figures


def test_phases_that_imitate_are_not_watched() -> None:
    rows = changing("optim/entropy", 1.0, 0.01)
    assert watched(rows, recipe("loss.type=sft")) == {}
    assert not any(key.startswith("health/") for row in rows for key in row)


@pytest.mark.parametrize("cut", [1, 15, 40])
def test_resumed_watch_goes_on_as_one_that_was_not_stopped(cut: int) -> None:
    uninterrupted = recorded("liars")
    assert watched(uninterrupted)
    before = json.loads(json.dumps(uninterrupted[:cut]))
    watch = watch_of(recipe(), before, 0)
    after = recorded("liars")[cut:]
    for row in after:
        kind = "evaluation" if is_evaluation(row) else "step"
        row.update(watch.see(row["step"], row, kind)[0])
    assert before + after == uninterrupted


def test_recipe_changes_adds_and_removes_detectors() -> None:
    slow = "{type: metric, metric: time/step_s, above: 2, advice: wait}"
    detectors = f"{{entropy: {{share: 0.5, sigmas: 0}}, diversity: null, slow: {slow}}}"
    rows = changing("optim/entropy", 1.0, 0.3)
    for row in rows:
        row["train/diversity/round_0"] = 1 / 3
        row["time/step_s"] = 3.0
    form = recipe(f"health.window=4 health.detectors='{detectors}'")
    assert watched(rows, form) == {"slow": 4, "entropy": 13}  # 1 − 0.7k/4 < 0.5: k = 3
    assert watched(steady(**{"judge/equal_share": 1}), recipe("health.enabled=false")) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("health.stop_on=[entropi]", "stop_on: found 'entropi'.*did you mean 'entropy'"),
        ("health.enabled=false health.stop_on=[entropy]", "expected enabled: true"),
        ("health.stop_on=[entropy] health.detectors='{entropy: null}'", "found 'entropy'"),
        ("health.detectors.entropy.bellow=1", "bellow"),
        ("health.detectors.mine.type=entropi", "entropi"),
        ("health.detectors.entropi.above=1", "entropi without a metric.*did you mean 'entropy'"),
        ("health.window=1", "window"),
        ("health.detectors.no_signal.share=0.5", "share: found 0.5, which no_signal does not read"),
        ("health.detectors.one_winner.metric=a", "metric: found 'a', which one_winner does not"),
    ],
)
def test_recipe_refuses_what_is_not_watched(changes: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe(changes)


def test_detector_that_fails_is_off_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = replace(ROWS["reward_accuracy"], figure=lambda metric, history: 1 / 0)
    monkeypatch.setitem(ROWS, "reward_accuracy", failing)
    watch = watch_of(recipe(), [], 0)
    off = "warning: health: reward_accuracy is off: ZeroDivisionError: division by zero"
    assert watch.see(1, {"loss": 1.0})[1] == [off]
    assert watch.see(2, {"loss": 1.0}) == ({}, [])


def test_run_stops_on_an_alarm_and_goes_on_past_it(tmp_path: Path) -> None:
    num_replies = 0

    def longer_from_step_4(request: TurnRequest) -> str:
        nonlocal num_replies
        num_replies += 1
        is_long = num_replies > 3 * 6  # Six turns a step.
        return "<solution> + - + </solution>" + " +" * (20 if is_long else 0)

    form = recipe(
        "health.window=2 health.stop_on=[length] steps=8 data.batch_size=1 recording.debates=0 "
        "health.detectors='{coverage: null, diversity: null, no_signal: null}' "
        "evaluation.questions=0"
    )
    source = SignsPuzzle(batch_size=1).open()
    tokenizer = word_tokenizer()
    engine = ScriptedEngine().open(None, tokenizer, script=longer_from_step_4)
    run = context(form, tmp_path / "run", engine, source, tokenizer)
    # Means of two steps: the first at which both are longer is step 5, of more than twice as much.
    with pytest.raises(RunFailure, match=r"train 5: health: length: .*the run ends here"):
        trained(run, Trainer())
    rows = run.directory.metrics.rows()
    assert len(rows) == 5
    alarm = {"phase": "train", "step": 5, "detector": "length", "value": rows[4]["health/length"]}
    assert alarms_of(rows) == [alarm]
    write_results(run.directory, [], {}, run.state, form.evaluated())
    assert json.loads((tmp_path / "run/results.json").read_text())["health"] == [alarm]

    resumed = context(form, tmp_path / "second", engine, source, tokenizer)
    resumed.directory.metrics.rows = lambda: rows
    resumed.state.step = 5
    reason, keeper = trained(resumed, Trainer())
    assert (reason, keeper.logged) == ("finished", [5, 6, 7])


@pytest.mark.parametrize(
    ("settings", "zero_share", "num_warnings", "stops"),
    [
        ({}, 1.0, 1, True),
        ({"detectors": {"no_signal": {"stops": False}}}, 1.0, 1, False),
        ({}, 0.9, 0, False),  # One turn that learns is enough.
    ],
)
def test_run_in_which_no_token_is_moved_stops_with_the_cause(
    settings: dict[str, Any], zero_share: float, num_warnings: int, stops: bool
) -> None:
    watch = HealthMonitor("train", Health(window=3, **settings), Facts(), [], 0)
    row = {"advantage/zero/share": zero_share, "judged/unread": 1.0}
    warnings = [warning for step in (1, 2, 3) for warning in watch.see(step, row)[1]]
    assert len(warnings) == num_warnings
    assert all("no_signal" in warning and "judged/unread" in warning for warning in warnings)
    if stops:
        with pytest.raises(RunFailure, match="no_signal"):
            watch.refuse_alarms()
    else:
        watch.refuse_alarms()


@pytest.mark.parametrize(
    ("share_for_agent_0", "statuses"),
    [
        (0.0, ["red", "green"]),
        (0.05, ["amber", "green"]),
        (0.5, ["green", "green"]),
        (1.0, ["green", "red"]),
    ],
)
def test_a_judge_that_always_decides_the_same_is_a_finding(
    share_for_agent_0: float, statuses: list[str]
) -> None:
    facts: Any = SimpleNamespace(**dict.fromkeys(Facts.__dataclass_fields__, False))
    findings = results(facts, {"train/judged/for_agent_0": share_for_agent_0}, {})
    assert [finding.status for finding in findings] == statuses


def proposal(number: int, is_right: bool) -> Transcript:
    """A debate of one proposer, whose judge knows the truth."""
    replies = ["It is \\boxed{4}" if is_right else "It is \\boxed{5}", "Let us see."]
    replies.append(f"<decision>{'right' if is_right else 'wrong'}</decision>")
    form = Judged(judges=1, reasons=False, opponent="critic")
    run = form.start(Question(f"q{number}", "?", "4", {"kind": "number"}), seed=0)
    return play_debate(run, lambda request: Reply(replies.pop(0)))


def test_a_judge_that_rightly_accepts_single_answers_is_not_one_sided() -> None:
    # 100 debates of one proposer each: 99 right ones that the judge calls right, one wrong one that
    # it calls wrong. The share of decisions for agent 0 is 0.99, beyond the bound of 0.98.
    debates = [proposal(number, is_right=number > 0) for number in range(100)]
    row = {f"train/{name}": value for name, value in debate_metrics(debates).items()}
    assert row["train/judged/vote"] == pytest.approx(0.99)
    findings = {finding.name: finding.status for finding in results(Facts(), row, {})}
    assert "judges decide for others, too" not in findings
    assert findings["judges' Matthews coefficient"] == "green"  # it is 1
    assert "red" not in findings.values()
