"""`debate-preflight`: bounds, questions that teach, what a start is told, exit codes."""

import json

import pytest
import yaml

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import TurnKey
from debate_rewards.reward import Credit, Score
from debate_rollout.engines import ScriptedEngine
from debate_train.advantages import Advantage, Advantages
from debate_train.commands.preflight import main
from debate_train.commands.preflight_measuring import signal
from debate_train.monitoring.figures import derived
from debate_train.monitoring.preflight_checks import (
    CHECKS,
    Check,
    intervals_of,
    judged,
    results,
    verdict,
)
from debate_train.running.step_metrics import facts_of
from train.health_watching import of_pairs, recipe


def not_green(checks):
    return {check.name: check.status for check in checks if check.status != "green"}


LOW = Check("c", ("m",), "do", red=0.2, amber=0.5)
HIGH = Check("c", ("m",), "do", red=0.5, amber=0.2, above=True)


@pytest.mark.parametrize(
    ("check", "value", "interval", "status", "bound"),
    [
        (LOW, 0.19, None, "red", 0.2),
        (LOW, 0.5, None, "green", None),
        (LOW, 0.6, (0.1, 0.9), "amber", 0.2),  # As low as red is within the interval.
        (HIGH, 0.51, None, "red", 0.5),
        (HIGH, 0.5, None, "amber", 0.2),
        (HIGH, 0.1, (0.0, 0.6), "amber", 0.5),
    ],
)
def test_figure_is_judged_by_its_bounds_and_its_interval(check, value, interval, status, bound):
    result = judged(check, value, interval)
    assert (result.status, result.bound) == (status, bound)
    assert result.advice == ("do" if bound else "")


# The figures of the first list, each a little better than it asks for.
GOOD_START = {
    "train/accuracy/round_0": 0.11,
    "train/comparisons_made": 0.81,
    "train/pass@k": 0.21,
    "judge/accuracy": 0.81,
}
BY_VOTES = "judge accuracy, votes alone"


@pytest.mark.parametrize(
    ("changes", "reward", "expected"),
    [
        ({}, {"type": "v2"}, {}),
        ({"train/accuracy/round_0": 0.09}, {"type": "v2"}, {"direct accuracy": "amber"}),
        # Direct replies count before those in debates.
        ({"train/accuracy/round_0": 0.04, "eval/direct/accuracy": 0.5}, {"type": "v2"}, {}),
        ({"train/comparisons_made": 0.79}, {"type": "v2"}, {"valid comparisons": "red"}),
        ({"judge/accuracy": 0.59}, {"type": "v2"}, {BY_VOTES: "amber"}),
        ({"judge/accuracy": 0.49}, {"type": "v2"}, {"judge accuracy": "red", BY_VOTES: "amber"}),
        ({"judge/accuracy": 0.4, "train/comparisons_made": 0.0}, {"type": "verifiable"}, {}),
    ],
)
def test_start_is_judged_by_what_its_reward_needs(changes, reward, expected):
    checks = list(results(facts_of(recipe(reward=reward)), GOOD_START | changes, {}))
    assert not_green(checks) == expected
    worst = "red" if "red" in expected.values() else "amber" if expected else "green"
    assert verdict(checks) == worst


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ({"chosen_ok": 0.15, "actor_right": 0.3}, {"smaller side of the pairs": "red"}),
        ({"chosen_ok": 0.25, "actor_right": 0.3}, {"smaller side of the pairs": "amber"}),
        ({"chosen_ok": 0.45, "actor_right": 0.5}, {}),
        ({"chosen_right": 0.3, "rejected_right": 0.4}, {"pairs for the truth": "red"}),
    ],
)
def test_start_is_judged_by_what_its_pairs_teach(shares, expected):
    figures = {"offline/kept/toward_right": 40.0, "signal/value": 0.5}
    figures |= {f"offline/{name}_share": share for name, share in shares.items()}
    for name, value in (("guided_right", 0.9), ("natural", 0.7), ("guided_wrong", 0.3)):
        figures[f"offline/value_{name}"] = value
        figures[f"offline/value_{name}_standard_error"] = 0.03
    figures = derived(figures)
    facts = facts_of(of_pairs())
    checks = {c.name: c for c in results(facts, figures, intervals_of(figures, 40))}
    assert not_green(checks.values()) == expected
    # 0.9 − 0.7 is 0.2 with a standard error of 0.042.
    gain = checks["value gained by guiding to the right"]
    assert gain.value == pytest.approx(0.2)
    assert gain.low == pytest.approx(0.2 - 0.0849, abs=1e-4)
    lower = derived(figures | {"offline/value_guided_right": 0.65})
    checks = {c.name: c for c in results(facts, lower, {})}
    assert checks["value gained by guiding to the right"].status == "red"


# Questions that teach


def make_debate(question):
    protocol = {"num_agents": 2, "max_rounds": 1}
    asked = {"id": question, "text": "?"}
    return from_json({"id": question, "question": asked, "protocol": protocol, "turns": []})


def credit(agent, value, stream="generator", penalty=False):
    return Credit(agent, 0, stream, value, penalty=penalty)


RIGHT_AND_WRONG = Score((credit(0, 1.0), credit(1, -1.0)))
BOTH_RIGHT = Score((credit(0, 1.0), credit(1, 1.0)))
PENALTY = Score((credit(0, 0.0), credit(1, -1.0, penalty=True)))
JUDGE_ONLY = Score((credit(0, None), credit(1, 1.0, stream="judge")))


@pytest.mark.parametrize(
    ("debates", "expected"),
    [
        # A question teaches where a value moved a turn's advantage, and no penalty.
        ([("q", RIGHT_AND_WRONG, 1.0)], 1.0),
        ([("q", PENALTY, 1.0)], 0.0),
        ([("q", JUDGE_ONLY, 0.0)], 0.0),
        ([("q", RIGHT_AND_WRONG, 0.0)], 0.0),
        ([("q", RIGHT_AND_WRONG, 1.0), ("r", BOTH_RIGHT, 0.0)], 0.5),
        # Two debates of one question teach where either does.
        ([("q", RIGHT_AND_WRONG, 1.0), ("q", BOTH_RIGHT, 0.0)], 1.0),
    ],
)
def test_questions_that_teach_are_counted(debates, expected):
    transcripts = [make_debate(question) for question, _, _ in debates]
    scores = [score for _, score, _ in debates]
    turns = [{TurnKey(0, 0): [Advantage("generator", value)]} for _, _, value in debates]
    weights = {"generator": 1.0, "judge": 0.0}
    assert signal(transcripts, scores, Advantages(turns), weights) == expected


# The command

SMALL = """\
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
GUIDED = {
    "steps": 60,
    "debate": {
        "type": "actor_critic",
        "contract": "answer_line",
        "style": "compact",
        "max_rounds": 2,
        "guided": True,
        "continuations": 1,
    },
    "offline": {"type": "guided_pairs", "role": "actor", "questions": 6},
    "reward": {"type": "partial_trajectory"},
    "advantage": {"baseline": "none"},
    "loss": {"type": "dpo"},
    "phases": {},
}


@pytest.fixture
def preflight(tmp_path, monkeypatch, capsys):
    """Run the command on a changed recipe; return its exit code, output and figures."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(changes, *arguments):
        path = tmp_path / "small.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(SMALL) | changes))
        report = tmp_path / "report.json"
        command = [str(path), "--questions", "3", "--json", str(report), *arguments]
        code = main(command)
        printed = capsys.readouterr()
        content = json.loads(report.read_text()) if report.exists() else None
        return code, printed, content

    return run


def test_command_finds_that_random_weights_cannot_start(preflight):
    code, printed, report = preflight({})
    assert code == 1
    # The verdict leads; what the recipe would do is for --check.
    first, second, *_ = printed.out.splitlines()
    assert first.startswith("no-go: ")
    assert first.endswith("preflight of phase play: 3 training questions, the recipe's model")
    assert second.startswith("  red    direct accuracy: 0.000")
    assert (report["phase"], report["questions"], report["verdict"]) == ("play", 3, "red")
    figures = report["figures"]
    # 3 debates of 6 turns of at most 8 tokens; an update was made, and its time counts.
    assert figures["env/all/total_turns"] == 18
    assert figures["optim/grad_norm"] >= 0
    step_s = figures["time/play_s"] + figures["time/train_s"]
    assert figures["time/hours"] == pytest.approx(4 / 3600 * step_s)
    assert {check["name"] for check in report["checks"]} <= {check.name for check in CHECKS}
    assert all(c["advice"] for c in report["checks"] if c["status"] != "green")


def test_command_takes_the_pairs_of_guided_debates(preflight):
    model = yaml.safe_load(SMALL)["model"] | {"extra_words": ["Answer:", "toward"]}
    code, printed, report = preflight(GUIDED | {"model": model}, "--no-update")
    assert code == 1
    # A model that was never trained gives no answer, so no state is worth more than another.
    assert "red    questions with a signal: 0.000" in printed.out
    assert "offline/left_out/below_threshold: 3" in printed.out
    assert "60 steps in about" in printed.out and "without updates" in printed.out
    figures = report["figures"]
    assert "time/train_s" not in figures
    assert figures["offline/value_guided_right"] == 0
    # Three of six questions were played: a debate, two branches of each of three turns, roll-outs.
    assert figures["time/hours"] == pytest.approx(2 * figures["time/play_s"] / 3600)


def votes_for_fewer_minus(answers):
    """Script three agents with these first answers, whose votes prefer fewer minus signs."""
    replies = {}
    for agent, signs in enumerate(answers):
        better, worse = sorted({0, 1, 2} - {agent}, key=lambda other: answers[other].count("-"))
        replies[f"{agent}/0"] = (
            f" <solution> {signs} </solution>"
            "\n <evaluation> N/A </evaluation>\n <comparison> N/A </comparison>"
        )
        replies[f"{agent}/1"] = (
            " <solution> + + + </solution>"
            f"\n <evaluation> Agent {better} no Agent {worse} no </evaluation>"
            f"\n <comparison> Agent {better} > Agent {worse} </comparison>"
        )
    return replies


def test_command_says_how_far_votes_follow_the_truth(preflight, tmp_path, monkeypatch):
    # Scripted replies have no log-probabilities to train on, but their votes can be looked at.
    capabilities = frozenset({"tokens", "seeds", "logps"})
    monkeypatch.setattr(ScriptedEngine, "capabilities", capabilities)
    rows = [{"question": f"make {n} Q 1 2 3 4", "answer": "+ + +"} for n in range(40)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    answers = ["+ + +", "- + +", "- - +"]
    engine = {"type": "scripted", "replies": votes_for_fewer_minus(answers)}
    changes = {
        "data": {"type": "questions", "path": str(data), "batch_size": 3, "kind": "text"},
        "rollout": {"engine": engine, "max_tokens": 64},
        "phases": {"play": {}},
        "evaluation": {"questions": 128},
    }
    options = ("--no-update", "--truth-gain", "0.1", "--seed-deviation", "0.05")
    code, printed, report = preflight(changes, *options)
    assert code < 2
    # By hand: votes value the answers 1, 0 and -1, of which the first is right: r = 3 / √12.
    assert report["figures"]["signal/truth"] == pytest.approx(0.75**0.5)
    # (2.8016 · 0.05 / 0.0866)² + 1.92 = 4.54
    assert (
        "  v2: values follow the truth with R² 0.75: expect about 0.87 of what truth would gain "
        "(0.087); to see that takes 5 seeds of 128 test questions\n"
    ) in printed.out
    _, printed, report = preflight(changes, "--no-update", "--split", "dev")
    assert "dev questions, the recipe's model" in printed.out
    assert report["figures"]["signal/truth"] == pytest.approx(0.75**0.5)
    # Without the deviation, that of sampling 4 · 4 · 2 replies. Agent 0 is now always wrong, so the
    # gain alone is the accuracy: (2.8016 · √(2 · 0.0866 · 0.9134 / 32) / 0.0866)² + 1.92 = 7.09
    engine["replies"] = votes_for_fewer_minus(answers[::-1])
    changes["evaluation"] = {"questions": 4, "direct_samples": 4, "runs": 2}
    _, printed, report = preflight(changes, "--no-update", "--truth-gain", "0.1")
    assert report["figures"]["eval/direct/accuracy"] == 0.0
    assert "to see that takes 8 seeds of 4 test questions\n" in printed.out
    changes["evaluation"] = {"questions": 0}
    code, printed, _ = preflight(changes, "--no-update", "--truth-gain", "0.1")
    assert code == 2
    assert "found evaluation.questions 0" in printed.err and "--seed-deviation" in printed.err
