"""When each detector of the health watch speaks, on rows whose means are worked by hand."""

from typing import Any

import pytest

from debate_train.health.detectors import OWN
from debate_train.health.watch import HealthWatch, is_look
from train.health_watching import Rows, changing, look, recipe, steady, watched


@pytest.mark.parametrize(
    ("metric", "before", "after", "expected"),
    [
        # Of eight steps k have the later value: the mean passes the bound at step 10 + k.
        ("env/all/ac_tokens_per_turn", 10.0, 30.0, {"length": 15}),  # 10 + 20k/8 > 20: k = 5
        ("env/all/ac_tokens_per_turn", 10.0, 19.0, {}),
        ("rollout/truncated_fraction", 0.0, 0.8, {"truncation": 13}),  # 0.8k/8 > 0.2: k = 3
        ("optim/entropy", 1.0, 0.1, {"entropy": 18}),  # 1 − 0.9k/8 < 0.2: k = 8
        ("optim/entropy", 1.0, 0.25, {}),
        ("train/format_all", 1.0, 0.8, {"format": 15}),  # 1 − 0.2k/8 < 0.9: k = 5
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
    """Return a look every ten steps, with the policy's accuracy beyond its start's."""
    rows: Rows = []
    for number, strength in enumerate(found):
        rows += [{**row, "step": row["step"] + 10 * number} for row in steady(10)]
        own = {"start/learned/accuracy": 0.5 + strength, "start/opponent/accuracy": 0.5}
        rows.append(look(10 * (number + 1), **own))
    return rows


@pytest.mark.parametrize(
    ("found", "rewards", "expected"),
    [
        ((0.1, 0.05, 0.01), (0.0, 0.0), {}),
        ((0.1, 0.05, -0.01), (0.0, 0.0), {"self_play_strength": 30}),  # 0.11 below the best look
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
        if not is_look(row):
            row["reward/total"] = rewards[row["step"] > 20]
    assert watched(rows) == expected


def test_watch_compares_votes_with_those_of_the_start() -> None:
    first = votes(10, 20.0, 0.5, {4: 0.6})
    later = [votes(20, 20.0, 0.5, {4: 0.51}), votes(30, 20.0, 0.5, {4: 0.49})]
    rows = [*steady(10), first, *later]
    assert watched(rows) == {"start_vote": 30}
    assert [row.get("health/start_vote") for row in rows[-3:]] == [
        None,
        pytest.approx(-0.09),
        pytest.approx(-0.11),
    ]


def votes(step: int, length: float, accuracy: float, majority: dict[int, float]) -> dict[str, Any]:
    """Return a look with the length and accuracy of a reply, and the majority of k of them."""
    found = {"direct/tokens/answer": length, "direct/accuracy": accuracy}
    return look(step, **found, **{f"direct/maj@{k}": value for k, value in majority.items()})


@pytest.mark.parametrize(
    ("spent", "debates", "length", "expected"),
    [
        # The start: 1, 2, 4, 8 replies of 10 tokens. Later replies: 0.5, 0.58, 0.66, 0.7.
        (80, 1, 10.0, 0.70 - 0.64),
        (1000, 1, 10.0, 0.70 - 0.64),  # More than the start was measured with: 8 replies.
        (20, 1, 10.0, 0.58 - 0.50),
        (20, 2, 10.0, 0.66 - 0.60),  # Two debates a question: 40 tokens, 4 replies.
        (30, 1, 10.0, 0.62 - 0.55),  # Half of the time 2 replies, else 4.
        (80, 1, 20.0, 0.66 - 0.64),  # Replies twice as long: 4 for the start's 8.
        (80, 1, 160.0, 0.50 - 0.64),  # Not even one: one all the same.
        (5, 1, 10.0, 0.50 - 0.40),
        (None, 1, 10.0, 0.70 - 0.64),  # Steps that do not know what they sampled.
    ],
)
def test_votes_are_compared_at_the_tokens_of_a_training_question(
    spent: float | None, debates: int, length: float, expected: float
) -> None:
    known = {} if spent is None else {"train/tokens/answer": spent}
    first = votes(5, 10.0, 0.4, {2: 0.5, 4: 0.6, 8: 0.64})
    form = recipe(rollout={"debates_per_question": debates})
    watch = HealthWatch("t", form, [*steady(5), first], start=5)
    for row in steady(3, **known):
        watch.see(5 + row["step"], row)
    found, _ = watch.see(8, votes(8, length, 0.5, {2: 0.58, 4: 0.66, 8: 0.7}), "look")
    assert found["health/start_vote"] == pytest.approx(expected)


def test_watch_takes_the_look_at_the_phases_start_as_the_starts() -> None:
    before = votes(5, 10.0, 0.5, {4: 0.7})
    watch = HealthWatch("t", recipe(), [*steady(5), before], start=5)
    found, _ = watch.see(15, votes(15, 10.0, 0.5, {4: 0.6}), "look")
    assert found == {"health/start_vote": pytest.approx(-0.1)}


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
