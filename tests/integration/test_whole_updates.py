"""Whole runs on the command line: equal seeds, sized updates, updates that are not finite."""

import json

import pytest

from debate_train.commands.cli import main

RECIPE = """\
name: small
steps: 2
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 2, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 2, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 8, debates_per_question: 2}
reward: {type: v2}
# Turns of a model that can do nothing all fail: without a baseline they still teach.
advantage: {baseline: none}
loss: {type: dapo, aggregation: token_mean_group, kl: {weight: 0.1}}
trainer: {type: torch, learning_rate: 1.0e-3, epochs: 2, minibatch_size: 3, schedule: cosine}
evaluation: {questions: 0}
checkpoint: {every: 1, keep_last: 9}
tracking: {wandb: false}
"""
CLOCKS = ("time_s", "tokens_per_s", "time/", "memory/")


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    path.write_text(RECIPE)
    return lambda *arguments: main([str(path), *arguments])


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "run"
    assert train("--output", str(output)) == 0
    return output


def read_rows(output):
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def timeless_rows(output):
    rows = read_rows(output)
    for row in rows:
        for name in [name for name in row if name.startswith(CLOCKS)]:
            del row[name]
    return rows


def weights(output, step):
    return (output / f"checkpoints/step-{step:06d}/model.safetensors").read_bytes()


@pytest.mark.parametrize(("seed", "is_equal"), [("0", True), ("6", False)])
def test_runs_are_equal_when_their_seeds_are(train, whole, tmp_path, seed, is_equal):
    output = tmp_path / "run"
    assert train("--output", str(output), f"seed={seed}") == 0
    assert (timeless_rows(output) == timeless_rows(whole)) == is_equal
    assert (weights(output, 2) == weights(whole, 2)) == is_equal


def test_rows_say_what_a_step_did_and_how_long_it_took(whole):
    for row in read_rows(whole):
        # 8 rows in updates of at most 3, twice.
        assert row["optim/updates"] == 6.0
        assert row["optim/skipped"] == 0.0
        shares = {name: value for name, value in row.items() if "gradient_share" in name}
        agent_shares = [value for name, value in shares.items() if "/agent" in name]
        stream_shares = [value for name, value in shares.items() if "/agent" not in name]
        assert sum(agent_shares) == pytest.approx(1)
        assert sum(stream_shares) == pytest.approx(1)
        step_parts = ("rollout", "score", "rows", "train", "weights")
        parts_s = sum(row[f"time/{name}_s"] for name in step_parts)
        assert 0 < parts_s <= row["time/step_s"]
        assert 0 < row["time/pack_s"] < row["time/train_s"]


def test_run_of_updates_that_are_not_finite_stops_with_a_checkpoint(train, tmp_path, capsys):
    # A weight of a stream that is infinite in float32: so is every advantage that is not 0.
    output = tmp_path / "run"
    endless = "advantage.streams={generator: {weight: 1.0e39}}"
    assert train("--output", str(output), endless, "steps=9") == 1
    error = capsys.readouterr().err
    assert "train 1: found 6 updates in a row whose gradient was not finite" in error
    assert "Traceback" not in error
    skipped_in_a_row = [row["optim/skipped_in_a_row"] for row in read_rows(output)]
    assert skipped_in_a_row == [6.0]
    # Weights are those of the start: going on with finite ones works.
    assert train("--output", str(tmp_path / "start"), "steps=0") == 0
    assert weights(output, 1) == weights(tmp_path / "start", 0)
    assert train("--output", str(output), "--resume", "--changed", "steps=3") == 0
    assert read_rows(output)[-1]["optim/skipped"] == 0.0
