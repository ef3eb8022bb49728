"""What --check says of settings under which nothing can be learned."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.scripted_debates import scripted_step, small_recipe
from debate_train.recipe.signal_check import SignalCheck, reward_context

PLAIN = {"style": "compact", "personas": "none"}
V2, VERIFIABLE = {"type": "v2"}, {"type": "verifiable"}
GROUP = {"max_tokens": 64, "debates_per_question": 4}
JUDGED = {"type": "judged", "opponent": "critic", "judges": 4}
JUDGE_ALONE = {"baseline": "question_round", "streams": {"judge": {"weight": 1}}}


def recipe(**changes: Any) -> Recipe:
    data: dict[str, Any] = {
        "name": "t",
        "steps": 10,
        "model": {"type": "scratch", "context_window": 4096},
        "data": {"type": "signs_puzzle", "batch_size": 8, "largest_digit": 4},
        "debate": PLAIN | {"num_agents": 5, "max_rounds": 2},
        "rollout": {"max_tokens": 64},
        "advantage": {"baseline": "question_round"},
    }
    if "debate" in changes:
        changes["debate"] = PLAIN | changes["debate"]
    return Recipe.model_validate(data | changes)


def of_type(name: str, **settings: Any) -> dict[str, Any]:
    return {"type": name, **settings}


@pytest.mark.parametrize("reward", ["win_rate", "win_minus_loss", "bradley_terry", "v2"])
@pytest.mark.parametrize(
    ("debate", "why"),
    [
        ({"num_agents": 2}, "found 2 agents"),
        ({"max_rounds": 1}, "found 5 agents, 1 round,"),
        ({"history_rounds": 0, "conversation": "rebuild"}, "history_rounds 0; expected"),
        ({"contract": "boxed"}, "contract boxed has no comparison section"),
        ({"contract": {"name": "poem", "sections": ["poem"]}}, "contract poem has no comparison"),
        (
            {"num_agents": 4, "topology": "sparse", "degree": 1},
            "topology sparse, degree 1 and",
        ),
        ({"type": "sequential", "num_agents": 2}, "found 2 agents"),
    ],
)
def test_check_warns_when_no_vote_can_count(reward: str, debate: dict[str, Any], why: str) -> None:
    report = check(recipe(reward=of_type(reward), debate=debate))
    (warning,) = report.warnings
    assert warning.startswith(f"nothing is learned: {reward} counts comparisons, and")
    assert why in warning
    assert report.errors == []


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reward": of_type("persuasion")}, "nothing is learned: persuasion compares votes on"),
        (
            {"reward": of_type("conl"), "debate": {"max_rounds": 2}},
            "nothing is learned: conl compares two rankings",
        ),
        (
            {"reward": of_type("judged"), "debate": {}},
            "nothing is learned: judged pays what judges decide; expected debate.type: judged",
        ),
        (
            {"reward": of_type("judged", judge="agreement"), "debate": JUDGED, "rollout": GROUP},
            "reward: no value of stream judge reaches a token: reward.judge agreement compares",
        ),
        (
            {"reward": of_type("truth_judge"), "debate": {"num_agents": 2}},
            "nothing is learned: truth_judge counts comparisons, and nobody is shown two other",
        ),
        (
            {"reward": of_type("overlong", max_tokens=256, buffer=64)},
            "nothing is learned: overlong begins above 192 tokens",
        ),
        (
            {"reward": VERIFIABLE, "advantage": {"baseline": "prompt"}, "debate": {}},
            "nothing is learned: advantage.baseline: found prompt",
        ),
        (
            {"reward": VERIFIABLE, "advantage": {"streams": {"generator": {"sections": ["poem"]}}}},
            "nothing is learned: advantage.streams.generator.sections: found none",
        ),
        (
            {
                "reward": of_type("v2", consensus="peer_prediction"),
                "data": {"type": "signs_puzzle", "batch_size": 1},
            },
            "reward: no value of stream judge reaches a token: peer_prediction compares verdicts",
        ),
        (
            {
                "reward": {
                    "type": "mixed",
                    "components": {
                        "peers": {"reward": of_type("win_rate"), "weight": 0.7},
                        "truth": {"reward": VERIFIABLE, "weight": 0.3},
                    },
                },
                "debate": {"max_rounds": 1},
            },
            "reward.components.peers: no value of stream return reaches a token: win_rate counts",
        ),
    ],
)
def test_check_names_values_that_reach_no_token(changes: dict[str, Any], why: str) -> None:
    (warning,) = check(recipe(**changes)).warnings
    assert warning.startswith(why)


def test_check_refuses_streams_that_all_weigh_nothing() -> None:
    streams = {"generator": {"weight": 0}, "judge": {"weight": 0}}
    report = check(recipe(advantage={"baseline": "question_round", "streams": streams}))
    assert ["no token would be trained" in error for error in report.errors] == [True]


@pytest.mark.parametrize(
    "changes",
    [
        {"reward": of_type("win_rate"), "debate": {"num_agents": 3}},
        {
            "reward": of_type("win_rate"),
            "debate": {"type": "sequential", "num_agents": 3, "max_rounds": 1},
        },
        {"reward": of_type("bradley_terry"), "debate": {"history_rounds": 1}},
        {"reward": of_type("persuasion"), "debate": {"num_agents": 3, "max_rounds": 3}},
        {"reward": of_type("truth_judge"), "debate": {"num_agents": 3}},
        {"reward": of_type("conl"), "debate": {"type": "conl", "num_agents": 5}},
        {"reward": of_type("judged", judge="truth"), "debate": JUDGED, "rollout": GROUP},
        {
            "reward": of_type("judged", judge="agreement"),
            "debate": JUDGED
            | {"opponent": "rival", "order": "simultaneous", "judges": 4, "both_orders": True},
        },
        {"reward": of_type("v2", consensus="peer_prediction")},
        {"reward": of_type("overlong", max_tokens=64, buffer=16)},
        {"reward": VERIFIABLE, "debate": {"contract": "boxed"}},
        {
            "reward": VERIFIABLE,
            "debate": {"type": "self_debate"},
            "advantage": {"baseline": "prompt", "scale": "std"},
        },
        {
            "reward": of_type("partial_trajectory"),
            "debate": {"type": "actor_critic", "continuations": 2},
        },
        {
            "reward": VERIFIABLE,
            "debate": {"type": "direct"},
            "rollout": {"max_tokens": 64, "debates_per_question": 2},
        },
        {"reward": V2, "advantage": JUDGE_ALONE | {"streams": {"generator": {}, "judge": {}}}},
    ],
)
def test_check_is_content_where_every_value_may_reach_a_token(changes: dict[str, Any]) -> None:
    warnings = check(recipe(**changes)).warnings
    assert not any("teach" in text or "learned" in text for text in warnings)
    lessons = SignalCheck.of(recipe(**changes))
    assert lessons is not None and lessons.taught == set(lessons.trained)


@pytest.mark.parametrize(
    ("debate", "said"),
    [
        ({"num_agents": 3}, "each pair has one judge a round"),
        ({"num_agents": 4}, "each pair has two judges a round"),
        ({"num_agents": 2}, None),
        ({"num_agents": 3, "max_rounds": 1}, None),
        ({"num_agents": 3, "contract": "boxed"}, None),
        ({"num_agents": 3, "topology": "central"}, "at most 1 agents see both of a pair"),
        ({"num_agents": 4, "topology": "ring"}, "at most 2 agents see both of a pair"),
    ],
)
def test_sentences_about_few_judges_appear_only_where_they_are_true(
    debate: dict[str, Any], said: str | None
) -> None:
    warnings = check(recipe(reward=V2, debate={"max_rounds": 2} | debate)).warnings
    about = [
        text
        for text in warnings
        if ("judge" in text and "see both" in text) or "judges a" in text or "one judge" in text
    ]
    assert len(about) == (said is not None)
    assert said is None or said in about[0]


def questions(path: Path, **more: Any) -> dict[str, Any]:
    rows = [{"question": f"{i} ?"} | more for i in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return {"type": "questions", "path": str(path), "batch_size": 8}


@pytest.mark.parametrize("reward", ["verifiable", "truth_judge", "partial_trajectory"])
def test_check_refuses_truth_without_answers(reward: str, tmp_path: Path) -> None:
    data = questions(tmp_path / "q.jsonl")
    report = check(recipe(data=data, reward=of_type(reward)))
    (error,) = report.errors
    assert report.warnings == []
    assert error.startswith(f"reward.type: {reward} compares with the questions' own answers")
    hub = {"path": "openai/gsm8k", "fields": {"answer": None}}
    assert check(recipe(data=hub, reward=of_type(reward))).errors == [error]
    answered = questions(tmp_path / "a.jsonl", answer="7")
    assert check(recipe(data=answered, reward=of_type(reward))).errors == []


def test_check_warns_of_a_component_without_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    components = {
        "peers": {"reward": V2, "weight": 0.7},
        "truth": {"reward": VERIFIABLE, "weight": 0.3},
    }
    reward = {"type": "mixed", "components": components}
    report = check(recipe(data=questions(tmp_path / "q.jsonl"), reward=reward))
    assert report.errors == []
    (warning,) = report.warnings
    assert warning.startswith("reward.components.truth: no value of stream generator reaches")
    assert "no training question has one" in warning
    assert caplog.text == capsys.readouterr().err == ""  # questions of the script are not named


def test_check_refuses_to_select_by_the_truth_without_answers(tmp_path: Path) -> None:
    debate = {"gate_after": [0], "num_agents": 3, "max_rounds": 2}
    rule: dict[str, Any] = of_type("in_order", rules=[of_type("informative")])
    settings = {
        "reward": of_type("v2"),
        "debate": debate,
        "rollout": {"select": rule, "max_tokens": 64},
    }
    (error,) = check(recipe(data=questions(tmp_path / "q.jsonl"), **settings)).errors
    assert error.startswith("rollout.select: found informative") and "has an answer" in error
    assert check(recipe(**settings)).errors == []


def supervised(**changes: Any) -> Recipe:
    phase = {
        "loss": {"type": "sft"},
        "rollout": {"engine": {"type": "demonstrations", "errors": False}, "max_tokens": 256},
        "reward": VERIFIABLE,
        "advantage": {"baseline": "none"},
    }
    return recipe(phases={"warm": phase | changes})


def test_check_refuses_to_imitate_samples_and_demonstrations_without_imitation() -> None:
    (error,) = check(recipe(loss={"type": "sft"})).errors
    assert error.startswith("loss.type: found sft with replies that transformers samples")
    assert check(recipe(loss={"type": "sft"}, steps=0)).errors == []
    (error,) = check(supervised(loss={"type": "reinforce"})).errors
    assert error.startswith("phases.warm.loss.type: found reinforce with demonstrations")
    assert check(supervised()).errors == check(supervised()).warnings == []


@pytest.mark.parametrize(
    ("row", "debate", "error"),
    [
        ({"solution": "so " * 300}, {"type": "direct", "contract": "boxed"}, "contract boxed"),
        ({"solution": "ok " * 300}, {"type": "direct", "contract": "answer_line"}, "answer_line"),
        ({"solution": "so\n#### 42"}, {"type": "direct", "contract": "boxed"}, None),
        ({}, {"num_agents": 3}, None),
        ({"solution": "42"}, {"type": "direct"}, None),
    ],
)
def test_check_refuses_demonstrations_that_teach_wrong_things(
    row: dict[str, str], debate: dict[str, Any], error: str | None, tmp_path: Path
) -> None:
    data = questions(tmp_path / "q.jsonl", answer="42", **row)
    found = check(supervised(data=data, debate=PLAIN | debate)).errors
    assert len(found) == (error is not None)
    assert all(text.startswith("phases.warm.rollout.engine.type: found") for text in found)
    assert error is None or error in found[0]
    # A phase of no steps, as one that a start has had, teaches nothing.
    assert not check(supervised(data=data, debate=PLAIN | debate, steps=0)).errors


def test_check_counts_demonstrations_that_weigh_nothing(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    said = ["Six sevens.", "so " * 300]
    rows = [{"question": f"{i} ?", "answer": "42", "solution": said[i % 2]} for i in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)))
    data = {"type": "questions", "path": str(path), "batch_size": 16}
    report = check(supervised(data=data, debate=PLAIN | {"type": "direct", "contract": "boxed"}))
    (warning,) = report.warnings
    assert "of 16 demonstrated turns 9 hold" in warning
    assert report.errors == []


def test_few_judges_of_a_large_ring_are_those_of_a_small_one() -> None:
    ring = recipe(debate={"num_agents": 128, "topology": "ring"})
    (note,) = [n for n in ring.reward.notes(reward_context(ring)) if n.kind == "few_judges"]
    assert "at most 1 agents" in note.text
    wide = recipe(debate={"num_agents": 128, "topology": "sparse", "degree": 8})
    assert all(note.kind != "few_judges" for note in wide.reward.notes(reward_context(wide)))


def test_scripted_debates_stay_small() -> None:
    huge = recipe(
        debate={"num_agents": 100, "max_rounds": 5},
        data={"type": "signs_puzzle", "batch_size": 1000},
        rollout={"max_tokens": 64, "debates_per_question": 1000},
    )
    small = small_recipe(huge)
    assert small is not None
    for number in range(2):
        step = scripted_step(small, number, answers=True)
        assert sum(len(transcript.turns) for transcript in step) <= 512
