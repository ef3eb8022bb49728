"""When each detector of the health watch speaks, on rows whose means are worked by hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from debate_protocol.forms import Judged
from debate_protocol.types import Question, Reply, Transcript
from debate_rewards import debate_metrics
from debate_train.monitoring.detectors import OWN, Facts
from debate_train.monitoring.health import is_evaluation, results
from train.health_watching import (
    Rows,
    changing,
    evaluation,
    of_pairs,
    recipe,
    steady,
    watch_of,
    watched,
)


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
        ("reward/accuracy", 0.6, 0.46, {"reward_accuracy": 16}),  # 0.6 − 0.14k/8 < 0.5: k = 6
        ("reward/accuracy", 0.9, 0.7, {"reward_accuracy": 17}),  # 0.9 − 0.2k/8 < 0.75: k = 7
        ("train/accuracy/round_0", 0.6, 0.5, {"collapse": 15}),  # 0.6 − 0.1k/8 < 0.55: k = 5
        ("train/diversity/round_0", 0.7, 1 / 3, {"diversity": 18}),
    ],
)
def test_watch_speaks_at_the_step_at_which_the_mean_passes_the_bound(
    metric: str, before: float, after: float, expected: dict[str, int]
) -> None:
    form = recipe({"detectors": {m().type: {"sigmas": 0} for m in OWN}})
    assert watched(changing(metric, before, after), form) == expected


def test_watch_takes_no_change_within_the_noise_for_one() -> None:
    rows = steady(40)
    for row in rows:  # 0.6 ± 0.2, later 0.5 ± 0.2: the standard error is √(2 · 0.04 / 7) = 0.107.
        row["train/accuracy/round_0"] = (0.6 if row["step"] <= 20 else 0.5) + 0.2 * (
            1 if row["step"] % 2 else -1
        )
    assert watched(rows) == {}
    loose = {"detectors": {"collapse": {"sigmas": 0.5}}}
    assert watched(rows, recipe(loose)) == {"collapse": 25}


def test_answers_that_agree_because_they_are_right_are_no_alarm() -> None:
    same = {"train/diversity/round_0": 1 / 3}
    assert watched(steady(**same, **{"train/accuracy/round_0": 0.89})) == {"diversity": 8}
    assert watched(steady(**same, **{"train/accuracy/round_0": 0.91})) == {}


def strengths(*found: float) -> Rows:
    """Return an evaluation every ten steps, with the policy's accuracy beyond its start's."""
    rows: Rows = []
    for number, strength in enumerate(found):
        rows += [{**row, "step": row["step"] + 10 * number} for row in steady(10)]
        own = {"start/learned/accuracy": 0.5 + strength, "start/opponent/accuracy": 0.5}
        rows.append(evaluation(10 * (number + 1), **own))
    return rows


@pytest.mark.parametrize(
    ("found", "rewards", "expected"),
    [
        ((0.1, 0.05, 0.01), (0.0, 0.0), {}),
        (
            (0.1, 0.05, -0.01),
            (0.0, 0.0),
            {"self_play_strength": 30},
        ),  # 0.11 below the best
        ((-0.11,), (0.0, 0.0), {"self_play_strength": 10}),  # The start is as strong as itself.
        ((0.1, 0.05, -0.01), (0.0, 0.5), {"self_play_strength": 30}),
        ((0.1, 0.05, -0.01), (0.0, -0.5), {}),  # The reward says so itself.
    ],
)
def test_watch_notices_a_reward_that_holds_while_strength_falls(
    found: tuple[float, ...], rewards: tuple[float, float], expected: dict[str, int]
) -> None:
    rows = strengths(*found)
    for row in rows:
        if not is_evaluation(row):
            row["reward/total"] = rewards[row["step"] > 20]
    assert watched(rows) == expected


@pytest.mark.parametrize(
    ("kl", "expected", "changes"),
    [
        (lambda step: 0.001 * (step - 1), {}, {}),
        (lambda step: 0.01 * step, {"reference": 1}, {}),
        (lambda step: 0.0, {"reference": 8}, {}),
        # Of several updates the later ones have moved; another reference is not the start.
        (lambda step: 0.01 * step, {}, {"trainer": {"type": "torch", "minibatch_size": 2}}),
        (lambda s: 0.01 * s, {}, {"loss": {"type": "ppo_clip", "kl": {"reference": "base"}}}),
    ],
)
def test_watch_notices_a_reference_that_is_not_the_start(
    kl: Any, expected: dict[str, int], changes: dict[str, Any]
) -> None:
    rows = steady(**{"optim/grad_norm": 0.1})
    for row in rows:
        row["optim/kl_reference"] = kl(row["step"])
    assert watched(rows, recipe(**changes)) == expected


def pairs_of(**shares: float) -> Rows:
    """Return rows of a phase that learns well from 20 pairs which split like this."""
    named = {f"offline/{name}_share": value for name, value in shares.items()}
    rows = steady(
        **{"offline/kept/toward_right": 12.0, "offline/kept/away_from_wrong": 8.0}, **named
    )
    for row in rows:
        row["optim/preference_margin"] = 0.1 * (row["step"] - 1)
        row["optim/preference_accuracy"] = float(row["step"] > 1)
    return rows


@pytest.mark.parametrize(
    ("shares", "figures", "expected"),
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
    shares: dict[str, float], figures: dict[str, float], expected: dict[str, int]
) -> None:
    rows = pairs_of(**shares)
    assert watched(rows) == expected
    found = {key: value for key, value in rows[0].items() if key.startswith("health/")}
    said = {f"health/alarm/{name}": 1.0 for name in expected}
    assert found == pytest.approx({f"health/{name}": v for name, v in figures.items()} | said)


def test_watch_says_nothing_of_the_sides_of_a_few_pairs() -> None:
    rows = pairs_of(chosen_ok=0.0)
    for row in rows:
        row["offline/kept/toward_right"] = 7.0
    assert watched(rows) == {}


@pytest.mark.parametrize(
    ("margin", "accuracy", "expected"),
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
    margin: Any, accuracy: float, expected: dict[str, int]
) -> None:
    rows = steady(20, **{"optim/preference_accuracy": accuracy})
    for row in rows:
        row["optim/preference_margin"] = margin(row["step"])
    assert watched(rows) == expected


def rounds(step: int, first: float, kept: float, turned: float, tokens: float) -> dict[str, Any]:
    """Return an evaluation with debates of three rounds; answers change with these shares."""
    right = [first]
    for _ in range(2):
        right.append(right[-1] * kept + (1 - right[-1]) * turned)
    before = sum(right[:2]) / 2
    lost, won = before * (1 - kept), (1 - before) * turned
    flips = {"flips/right_to_wrong": lost, "flips/wrong_to_right": won, "tokens/answer": tokens}
    return evaluation(step, **flips, **{f"accuracy/round_{n}": one for n, one in enumerate(right)})


@pytest.mark.parametrize(
    ("kept", "turned", "tokens", "expected"),
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
def test_watch_compares_answers_given_the_round_before_with_the_start(
    kept: float, turned: float, tokens: float, expected: set[str]
) -> None:
    start, later = rounds(0, 0.6, 0.93, 0.30, 20.0), rounds(4, 0.6, kept, turned, tokens)
    watch = watch_of(of_pairs(evaluation={"questions": 100}), [], 0)
    watch.know_start({name: value for name, value in start.items() if name != "step"})
    found, said = watch.see(4, later, "evaluation")
    assert found["health/kept_right"] == pytest.approx(kept)
    assert found["health/turned_right"] == pytest.approx(turned)
    assert {key for key in found if "alarm" in key} == {f"health/alarm/{n}" for n in expected}
    if expected == {"kept_right"}:
        assert "0.82, at the phase's start 0.93" in said[0]
    # Without that of the start the first evaluation is what later ones are compared with.
    alone = watch_of(of_pairs(evaluation={"questions": 100}), [], 0)
    assert alone.see(2, start, "evaluation")[1] == []
    assert alone.see(4, later, "evaluation")[0] == found


@pytest.mark.parametrize(
    ("vote", "statuses"),
    [
        (0.0, ["red", "green"]),
        (0.05, ["amber", "green"]),
        (0.5, ["green", "green"]),
        (1.0, ["green", "red"]),
    ],
)
def test_a_judge_that_always_says_the_same_is_a_finding(vote: float, statuses: list[str]) -> None:
    facts = SimpleNamespace(**dict.fromkeys(Facts.__dataclass_fields__, False))
    found = results(facts, {"train/judged/for_agent_0": vote}, {})  # type: ignore[arg-type]
    assert [result.status for result in found] == statuses


def proposal(number: int, is_right: bool) -> Transcript:
    """Play a debate of one proposer, whose judge knows the truth."""
    verdict = "right" if is_right else "wrong"
    replies = [Reply("It is \\boxed{4}" if is_right else "It is \\boxed{5}")]
    replies += [Reply("Let us see."), Reply(f"<decision>{verdict}</decision>")]
    form = Judged(judges=1, reasons=False, opponent="critic")
    run = form.start(Question(f"q{number}", "?", "4", {"kind": "number"}), seed=0)
    try:
        requests = next(run)
        while True:
            requests = run.send([replies.pop(0) for _ in requests])
    except StopIteration as end:
        transcript: Transcript = end.value
        return transcript


def test_a_judge_that_rightly_says_right_of_single_answers_is_not_one_sided() -> None:
    # 100 debates of one proposer each: 99 right ones that the judge calls right, one wrong one that
    # it calls wrong. The share of decisions for agent 0 is 0.99, beyond the bound of 0.98.
    debates = [proposal(number, is_right=number > 0) for number in range(100)]
    row = {f"train/{name}": value for name, value in debate_metrics(debates).items()}
    assert row["train/judged/vote"] == pytest.approx(0.99)
    findings = {result.name: result.status for result in results(Facts(), row, {})}
    assert "judges decide for others, too" not in findings
    assert findings["judges' Matthews coefficient"] == "green"  # it is 1
    assert "red" not in findings.values()
