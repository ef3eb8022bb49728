"""`debate-preflight`: bounds, questions that teach, what a start is told, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.reward import Credit, Score
from debate_rollout.engines import ScriptedEngine
from debate_train.advantages import Advantage, Advantages
from debate_train.commands.preflight import main
from debate_train.commands.preflight_measuring import signal
from debate_train.monitoring.detectors import Facts, derived
from debate_train.monitoring.health import (
    CHECKS,
    Check,
    first_step_warnings,
    intervals_of,
    judged,
    results,
    verdict,
)
from debate_train.running.step_metrics import facts_of
from train.health_watching import of_pairs, recipe, watch_of

SMALL = """\
# A model of a few weights.
name: small
steps: 4
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 3}
debate: {num_agents: 3, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 8}
reward: {type: v2}
advantage: {streams: {generator: {weight: 1}, judge: {weight: 0}}}
trainer: {type: torch}
evaluation: {questions: 4, direct_samples: 1}
tracking: {wandb: false}
phases:
  imitate: {rollout: {engine: {type: demonstrations}, max_tokens: 48}, loss: {type: sft}, steps: 1}
  play: {}
"""
GUIDED = """\
# Guided debates of a model of a few weights.
name: guided
steps: 60
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8,
  extra_words: ["Answer:", toward]}
data: {type: signs_puzzle, batch_size: 3}
debate: {type: actor_critic, contract: answer_line, style: compact, max_rounds: 2, guided: true,
  continuations: 1}
rollout: {max_tokens: 8}
offline: {type: guided_pairs, role: actor, questions: 6}
reward: {type: partial_trajectory}
advantage: {baseline: none}
loss: {type: dpo}
trainer: {type: torch}
evaluation: {questions: 4, direct_samples: 1}
tracking: {wandb: false}
"""
LOW = Check("c", ("m",), "do", red=0.2, amber=0.5)
HIGH = Check("c", ("m",), "do", red=0.5, amber=0.2, above=True)


@pytest.mark.parametrize(
    ("check", "value", "interval", "status", "bound"),
    [
        (LOW, 0.19, None, "red", 0.2),
        (LOW, 0.2, None, "amber", 0.5),
        (LOW, 0.5, None, "green", None),
        (LOW, 0.6, (0.1, 0.9), "amber", 0.2),  # As low as red is within the interval.
        (LOW, 0.6, (0.2, 0.9), "green", None),
        (HIGH, 0.51, None, "red", 0.5),
        (HIGH, 0.5, None, "amber", 0.2),
        (HIGH, 0.2, None, "green", None),
        (HIGH, 0.1, (0.0, 0.6), "amber", 0.5),
        (Check("c", ("m",), "do", amber=0.8), 0.1, (0.0, 0.2), "amber", 0.8),
    ],
)
def test_figure_is_judged_by_its_bounds_and_its_interval(
    check: Check, value: float, interval: Any, status: str, bound: float | None
) -> None:
    found = judged(check, value, interval)
    assert (found.status, found.bound, found.advice) == (status, bound, "do" if bound else "")


def seeds_checks(**changes: float) -> dict[str, float]:
    """Return the figures of the seed's list, each a little better than it asks for."""
    least = {
        "train/accuracy/round_0": 0.11,
        "train/comparisons_made": 0.81,
        "train/pass@k": 0.21,
        "judge/accuracy": 0.81,
    }
    return {**least, **changes}


@pytest.mark.parametrize(
    ("changes", "reward", "missed"),
    [
        ({}, "v2", {}),
        ({"train/accuracy/round_0": 0.09}, "v2", {"direct accuracy": "amber"}),
        ({"train/accuracy/round_0": 0.04}, "v2", {"direct accuracy": "red"}),
        # Direct replies count before those in debates.
        ({"train/accuracy/round_0": 0.04, "eval/direct/accuracy": 0.5}, "v2", {}),
        ({"train/accuracy/round_0": 0.96}, "v2", {"head-room": "amber"}),
        ({"train/comparisons_made": 0.79}, "v2", {"valid comparisons": "red"}),
        ({"train/pass@k": 0.19}, "v2", {"one of N is right": "red"}),
        ({"judge/accuracy": 0.59}, "v2", {"judge accuracy, votes alone": "amber"}),
        ({"judge/accuracy": 0.61}, "v2", {}),
        (
            {"judge/accuracy": 0.49},
            "v2",
            {"judge accuracy": "red", "judge accuracy, votes alone": "amber"},
        ),
        # With the truth in the reward, or no votes at all, judges matter less.
        ({"judge/accuracy": 0.59}, "mixed", {}),
        ({"judge/accuracy": 0.4, "train/comparisons_made": 0.0}, "verifiable", {}),
    ],
)
def test_start_is_judged_by_what_its_reward_needs(
    changes: dict[str, float], reward: str, missed: dict[str, str]
) -> None:
    parts = {
        "peers": {"reward": {"type": "v2"}, "weight": 0.7},
        "truth": {"reward": {"type": "verifiable"}, "weight": 0.3},
    }
    form = recipe(reward={"type": reward} | ({"components": parts} if reward == "mixed" else {}))
    found = list(results(facts_of(form), seeds_checks(**changes), {}))
    assert {one.name: one.status for one in found if one.status != "green"} == missed
    worst = "red" if "red" in missed.values() else "amber" if missed else "green"
    assert verdict(found) == worst


def test_judges_are_counted_where_they_learn() -> None:
    figures = {"v2/judges_per_pair": 1.0, "v2/self_consensus_fraction": 1.0}
    silent = recipe(advantage={"streams": {"generator": {"weight": 1}, "judge": {"weight": 0}}})
    assert list(results(facts_of(silent), figures, {})) == []
    learning = recipe(advantage={"streams": {"generator": {"weight": 1}, "judge": {"weight": 1}}})
    assert [one.status for one in results(facts_of(learning), figures, {})] == ["amber", "amber"]


def debate(question: str) -> Transcript:
    asked = {"id": question, "text": "?"}
    rules = {"num_agents": 2, "max_rounds": 1}
    return from_json({"id": question, "question": asked, "protocol": rules, "turns": []})


def test_questions_that_teach_are_counted() -> None:
    def credit(agent: int, value: float | None, **more: Any) -> Credit:
        return Credit(agent, 0, more.pop("stream", "generator"), value, **more)

    made = {
        "value": ([credit(0, 1.0), credit(1, -1.0)], 1.0),
        "penalty": ([credit(0, 0.0), credit(1, -1.0, penalty=True)], 1.0),
        "none": ([credit(0, None), credit(1, 1.0, stream="judge")], 0.0),
        "equal": ([credit(0, 1.0), credit(1, 1.0)], 0.0),
        "other": ([credit(0, 1.0), credit(1, -1.0)], 0.0),
    }
    turns = [{TurnKey(0, 0): [Advantage("generator", moved)]} for _, moved in made.values()]
    scores = [Score(tuple(credits)) for credits, _ in made.values()]
    weights = {"generator": 1.0, "judge": 0.0}
    assert signal([debate(name) for name in made], scores, Advantages(turns), weights) == 0.2
    # Two debates of one question teach where one of them does.
    # A debate that is all right is no failed turn, where a value is learned as it is.
    moved = Advantages([{TurnKey(0, 0): [Advantage("generator", 1.0)]}])
    right = Score((credit(0, 1.0), credit(1, 1.0)))
    assert signal([debate("q")], [right], moved, weights) == 1.0
    failed = Score((credit(0, 1.0), credit(1, -1.0, penalty=True)))
    assert signal([debate("q")], [failed], moved, weights) == 0.0
    both = [debate("q"), debate("q")]
    one_teaches = Advantages(turns[:1] + turns[3:4])
    assert signal(both, scores[:1] + scores[3:4], one_teaches, weights) == 1.0


def test_first_step_of_a_phase_is_looked_at_without_more_work() -> None:
    row = {**seeds_checks(**{"judge/accuracy": 0.4}), "env/all/total_episodes": 16.0}
    (said,) = first_step_warnings(facts_of(recipe()), row)
    assert said.startswith("preflight: judge accuracy 0.4, expected at least 0.5; warm-start")
    assert (
        list(first_step_warnings(facts_of(recipe()), row | {"env/all/total_episodes": 15.0})) == []
    )
    _, first = (watch := watch_of(recipe(), [], 5)).see(6, row)
    assert first == [f"warning: t 6: {said}"]
    assert watch.see(7, row)[1] == []


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def test_command_finds_that_random_weights_cannot_start(
    small: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    assert main([small, "--questions", "3", "--json", str(out)]) == 1
    printed = capsys.readouterr().out
    # What it comes to leads; what the recipe would do is for --check.
    first, second, *_ = printed.splitlines()
    assert first.startswith("no-go: ")
    assert first.endswith("preflight of phase play: 3 training questions, the recipe's model")
    assert second.startswith("  red    direct accuracy: 0.000")
    assert "time/train_s: " in printed
    found = json.loads(out.read_text())
    assert (found["phase"], found["questions"], found["verdict"]) == ("play", 3, "red")
    figures = found["figures"]
    # 3 debates of 6 turns of at most 8 tokens; an update was made, and its time counts.
    assert figures["env/all/total_turns"] == 18 and figures["optim/grad_norm"] >= 0
    assert figures["time/hours"] == pytest.approx(
        4 / 3600 * (figures["time/play_s"] + figures["time/train_s"])
    )
    names = {check.name for check in CHECKS}
    assert {one["name"] for one in found["checks"]} <= names
    assert all(one["advice"] for one in found["checks"] if one["status"] != "green")


def test_command_takes_the_pairs_of_guided_debates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path, out = tmp_path / "guided.yaml", tmp_path / "found.json"
    path.write_text(GUIDED)
    command = [str(path), "--questions", "3", "--no-update", "--json", str(out)]
    assert main(command) == 1
    printed = capsys.readouterr().out
    # A model that was never trained gives no answer, so no state is worth more than another.
    assert "red    questions with a signal: 0.000" in printed
    assert "offline/left_out/below_threshold: 3" in printed
    assert "60 steps in about" in printed and "without updates" in printed
    figures = json.loads(out.read_text())["figures"]
    assert "time/train_s" not in figures
    assert figures["offline/value_guided_right"] == 0
    # Three of six questions were played: a debate, two branches of each of three turns, roll-outs.
    assert figures["time/hours"] == pytest.approx(2 * figures["time/play_s"] / 3600)


@pytest.mark.parametrize(
    ("shares", "missed"),
    [
        ({"chosen_ok": 0.15, "actor_right": 0.3}, {"smaller side of the pairs": "red"}),
        ({"chosen_ok": 0.25, "actor_right": 0.3}, {"smaller side of the pairs": "amber"}),
        ({"chosen_ok": 0.45, "actor_right": 0.5}, {}),
        ({"chosen_right": 0.3, "rejected_right": 0.4}, {"pairs for the truth": "red"}),
    ],
)
def test_start_is_judged_by_what_its_pairs_teach(
    shares: dict[str, float], missed: dict[str, str]
) -> None:
    values = {"guided_right": 0.9, "natural": 0.7, "guided_wrong": 0.3}
    figures = derived(
        {f"offline/{name}_share": value for name, value in shares.items()}
        | {f"offline/value_{name}": value for name, value in values.items()}
        | {f"offline/value_{name}_standard_error": 0.03 for name in values}
        | {"offline/kept/toward_right": 40.0, "signal/value": 0.5}
    )
    found = list(results(facts_of(of_pairs()), figures, intervals_of(figures, 40)))
    assert {one.name: one.status for one in found if one.status != "green"} == missed
    # 0.9 − 0.7 is 0.2 with a standard error of 0.042.
    gained = next(one for one in found if one.name == "value gained by guiding to the right")
    assert (gained.value, gained.low) == (pytest.approx(0.2), pytest.approx(0.2 - 0.0849, abs=1e-4))
    unguided = derived(figures | {"offline/value_guided_right": 0.65})
    (said,) = [
        one for one in results(facts_of(of_pairs()), unguided, {}) if "to the right" in one.name
    ]
    assert (said.status, said.bound) == ("red", 0.0)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--phase", "plai"], "--phase: found 'plai'; expected one that plays debates.*'play'"),
        (["--phase", "imitate"], "--phase: found 'imitate'; expected one that plays"),
        (["--policy", "./nowhere"], "--policy: found no './nowhere'"),
    ],
)
def test_command_refuses_what_it_cannot_measure(
    small: str, arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import re

    assert main([small, *arguments]) == 2
    assert re.search(expected, capsys.readouterr().err)


def test_table_of_checks_is_whole() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.red is not None or check.amber is not None for check in CHECKS)
    assert all(not check.when or hasattr(Facts(), check.when) for check in CHECKS)


def test_command_says_how_far_votes_follow_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    # Scripted replies have no log-probabilities to train on, but their votes can be looked at.
    capabilities = frozenset({"tokens", "seeds", "logps"})
    monkeypatch.setattr(ScriptedEngine, "capabilities", capabilities)
    rows = [{"question": f"make {n} Q 1 2 3 4", "answer": "+ + +"} for n in range(4)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    first_replies = {
        f"{agent}/0": f" <solution> {signs} </solution>"
        "\n <evaluation> N/A </evaluation>\n <comparison> N/A </comparison>"
        for agent, signs in enumerate(["+ + +", "- + +", "- - +"])
    }
    second_replies = {
        f"{agent}/1": " <solution> + + + </solution>"
        f"\n <evaluation> {left} no {right} no </evaluation>"
        f"\n <comparison> {left} > {right} </comparison>"
        for agent, left, right in [
            (0, "Agent 1", "Agent 2"),
            (1, "Agent 0", "Agent 2"),
            (2, "Agent 0", "Agent 1"),
        ]
    }
    replies = first_replies | second_replies
    recipe = yaml.safe_load(SMALL)
    recipe["data"] = {"type": "questions", "path": str(data), "batch_size": 3, "kind": "text"}
    recipe["rollout"] = {"engine": {"type": "scripted", "replies": replies}, "max_tokens": 64}
    recipe["phases"] = {"play": {}}
    path, json_path = tmp_path / "votes.yaml", tmp_path / "figures.json"
    path.write_text(yaml.safe_dump(recipe))

    command = [str(path), "--questions", "3", "--no-update", "--json", str(json_path)]
    assert main([*command, "--truth-gain", "0.1", "--seed-deviation", "0.05"]) < 2

    # By hand: votes value the answers 1, 0 and -1, of which the first is right: r = 3 / √12.
    printed = capsys.readouterr().out
    assert json.loads(json_path.read_text())["figures"].get(
        "signal/truth", printed
    ) == pytest.approx(0.75**0.5)
    # (2.8016 · 0.05 / 0.0866)² + 1.92 = 4.54
    assert (
        "  v2: values follow the truth with R² 0.75: expect about 0.87 of what truth would gain "
        "(0.087); to see that takes 5 seeds\n" in printed
    )
