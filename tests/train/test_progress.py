"""Progress of a run in lines and on a terminal; what a step costs and how fast it was."""

import errno
import io
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from debate_protocol.forms import Simultaneous
from debate_protocol.types import Question
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine, TransformersEngine, VllmServerEngine
from debate_train import __main__
from debate_train.batches.row_types import Batch
from debate_train.commands.recipe_command import exit_code
from debate_train.monitoring import throughput
from debate_train.monitoring.progress import Progress
from debate_train.monitoring.throughput import Cost, Speed, Work
from train.made_rows import row_of


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def plain_progress():
    output = io.StringIO()
    clock = Clock()
    return Progress(Console(file=output, width=40), clock=clock), output, clock


def terminal_progress(width):
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, color_system=None, width=width, height=20)
    return Progress(console, live=True, clock=Clock()), output


def drawn_lines(output):
    """Read the lines that were drawn, without control sequences."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.getvalue())
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()]


@pytest.mark.parametrize(
    ("num_steps", "step", "metrics", "line"),
    [
        # 1 of 4 steps took 30 s, so 3 steps are left: 90 s.
        (
            4,
            1,
            {"loss": 0.25, "reward/total": -0.5, "train/correct": 0.75, "tokens_per_s": 1234.5},
            "p 1/4  accuracy 75.0%  1:30 min left  loss 0.250  reward -0.500  tokens/s 1,234",
        ),
        # After a resume: one step in 30 s and 9 to go; all 91 steps would give 3 s.
        (100, 91, {}, "p 91/100  4:30 min left"),
    ],
    ids=["all", "resumed"],
)
def test_step_prints_one_line_when_not_on_a_terminal(num_steps, step, metrics, line):
    progress, output, clock = plain_progress()
    progress.start("p", num_steps)
    clock.now_s = 30
    progress.step(step, metrics)
    progress.close()
    assert output.getvalue().splitlines() == [f"p: {num_steps} steps", line]


def test_live_display_draws_in_place_and_closes_twice():
    output = io.StringIO()
    clock = Clock()
    console = Console(file=output, force_terminal=True, width=110)
    with Progress(console, live=True, clock=clock) as progress:
        progress.start("warm[start]", 2)
        clock.now_s = 3700
        progress.step(1, {"loss": 1.5})
        progress.note("a note")
        progress.close()
    for text in ("warm[start]", "loss 1.500", "1 h 01 min left", "a note"):
        assert text in output.getvalue()
    assert output.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is shown again


# Turns of a step


def start_debates(count):
    form = Simultaneous(num_agents=2, max_rounds=2, style="compact", personas="none")
    question = Question("q", "1 + 1?", "2")
    runs = [form.start(question, seed=seed, debate_id=str(seed)) for seed in range(count)]
    return runs, form.turn_count()


def play_all(runs):
    engine = ScriptedEngine(replies=("<solution> 2 </solution>",)).open()
    return play(runs, engine, max_tokens=64)


@pytest.mark.parametrize(
    ("num_steps", "name", "mark"), [(3, "self_play", "0/3"), (0, "test split before", "")]
)
def test_turns_of_a_step_and_of_an_evaluation_are_counted_on_a_terminal(num_steps, name, mark):
    progress, output = terminal_progress(100)
    progress.start(name, num_steps)
    runs, num_turns = start_debates(3)
    play_all(progress.watch(runs, num_turns, "turns"))
    progress.close()
    last = drawn_lines(output)[-1]
    assert name in last and mark in last
    assert "turns 12/12" in last


# Output that cannot be shown ends nothing


class Failing(io.StringIO):
    """Keeps what could not be written."""

    def __init__(self, error):
        super().__init__()
        self.error = error
        self.lost = ""

    def write(self, text):
        self.lost += text
        raise self.error


@pytest.fixture(params=["full disk", "closed pipe"])
def failing(request):
    if request.param == "closed pipe":
        return Failing(BrokenPipeError())
    return Failing(OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize("live", [False, True])
def test_progress_goes_on_when_it_cannot_be_written(monkeypatch, failing, live):
    monkeypatch.setattr(sys, "stderr", failing)
    with Progress(live=live) as progress:
        progress.start("train", 2)
        progress.step(1, {"loss": 0.5})
        progress.note("the last line")
    assert "the last line" in failing.lost and failing.getvalue() == ""


def test_command_ends_well_when_nobody_reads_what_it_prints(monkeypatch, failing):
    monkeypatch.setattr(sys, "stdout", failing)
    monkeypatch.setattr(sys, "stderr", failing)

    def act():
        print("printed")
        print("warned", file=sys.stderr, flush=True)
        return 0

    assert exit_code("debate-train", act) == 0
    assert failing.lost


# Other processes


def test_pipe_that_was_closed_ends_the_process_without_an_error():
    reader, writer = os.pipe()
    os.close(reader)
    code = (
        "from debate_train.monitoring.progress import steady_streams\n"
        "with steady_streams(): print(1)"
    )
    process = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (process.returncode, process.stderr) == (0, b"")


def test_interrupts_while_a_command_starts_end_it_in_one_line():
    code = (
        "import signal, sys\n"
        "class Slow:\n"  # In the place of imports that take a second.
        "    def find_spec(self, name, *_):\n"
        "        if name == 'debate_train.commands.cli':\n"
        "            signal.raise_signal(signal.SIGINT); signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Slow())\n"
        "from debate_train.__main__ import train\n"
        "sys.exit(train())\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (process.returncode, process.stdout, process.stderr) == (130, b"", b"interrupted\n")


@pytest.mark.parametrize(
    ("changes", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, None)],
)
def test_threads_wait_for_each_other_without_taking_the_cores(changes, spins, monkeypatch):
    spins_at_import = []

    def import_command(name):
        # torch's threads read it when the command's module imports torch.
        spins_at_import.append(os.environ.get("GOMP_SPINCOUNT"))
        return SimpleNamespace(main=lambda: 0)

    monkeypatch.setattr(__main__, "import_module", import_command)
    monkeypatch.setattr(os, "environ", changes.copy())
    monkeypatch.setattr(sys, "argv", ["debate-train", "quickstart"])
    assert __main__.train() == 0
    assert spins_at_import == [spins]


def make_row(tokens, num_sampled):
    """Make a row whose last tokens are sampled."""
    return row_of(tokens, np.arange(len(tokens)) >= len(tokens) - num_sampled)


class Model(torch.nn.Module):
    """Four tokens, width 2, one head of 2 features, one layer of a matrix of 2 x 3 and a norm."""

    def __init__(self, layer_is_trained=True, head_is_trained=True, **config):
        super().__init__()
        shape = {"num_attention_heads": 1, "hidden_size": 2, "num_hidden_layers": 1}
        self.config = SimpleNamespace(**shape | config)
        self.config.get_text_config = lambda: self.config
        self.embedding = torch.nn.Embedding(4, 2)
        self.head = torch.nn.Linear(2, 4, bias=False)
        self.layer = torch.nn.Linear(2, 3, bias=False)
        self.norm = torch.nn.Parameter(torch.ones(2))
        self.layer.weight.requires_grad_(layer_is_trained)
        self.head.weight.requires_grad_(head_is_trained)

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return self.head


def test_work_counts_what_rows_begin_with_in_common_once():
    # The first row computes 1 2 3 (its last token predicts nothing), the second 1 2 5.
    rows = (make_row([1, 2, 3, 4], 2), make_row([1, 2, 5, 6], 1), make_row([9], 1))
    # 1 2 3: queries see 1, 2 and 3 keys; the 5 sees 1 2 5. Actions: 3 4 and 6; nothing says 9.
    assert Work.of(Batch(rows, ("s",), 4, 3)) == Work(tokens=4, pairs=9, actions=3)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # 6 weights of the layer, 8 of the head; of a pair 4 features of queries and keys, values.
        # Three forward passes each, and two where weights are frozen.
        (Model(), Cost(token=6 * 6.0, pair=12 * 2.0, action=6 * 8.0)),
        (Model(layer_is_trained=False), Cost(token=4 * 6.0, pair=12 * 2.0, action=6 * 8.0)),
        (Model(False, False), Cost(token=4 * 6.0, pair=12 * 2.0, action=4 * 8.0)),
        (Model(num_experts=8), None),
        (None, None),
    ],
    ids=["full", "frozen layer", "adapter", "experts", "none"],
)
def test_cost_counts_passes_over_trained_and_frozen_weights(model, expected):
    assert Cost.of(model) == expected


def test_speed_is_of_each_device_and_utilisation_of_their_peak():
    batch = Batch((make_row([1, 2, 3, 4], 2),), ("s",), 2, 1)
    cost = Cost(token=10.0, pair=1.0, action=100.0)
    speed = Speed(epochs=2, training=2, devices=4, peak=1000.0, cost=cost)
    # Two epochs of 3·10 + 6·1 + 2·100 = 236 FLOPs in half a second of two devices of 1,000 FLOP/s.
    assert speed.measured(batch, {"time/train_s": 0.5, "tokens_per_s": 12.0}) == {
        "tokens_per_s/sampled_per_device": 3.0,
        "tokens_per_s/trained": 16.0,
        "tokens_per_s/trained_per_device": 8.0,
        "time/mfu": pytest.approx(2 * 236 / 0.5 / 2000, rel=1e-12),
    }
    without_peak = Speed(cost=cost).measured(batch, {"time/train_s": 0.5})
    expected = {"tokens_per_s/trained": 8.0, "tokens_per_s/trained_per_device": 8.0}
    assert without_peak == expected
    assert Speed().measured(Batch((), ("s",), 0, 0), {"time/train_s": 0.5}) == {}


def test_devices_of_the_engine_count_where_only_the_engine_uses_them(monkeypatch):
    shared = Speed.of(TransformersEngine(), None, 2, peak_tflops=1.5)
    assert (shared.training, shared.devices, shared.peak) == (2, 2, 1.5e12)
    # One engine on one of these devices.
    served = Speed.of(VllmServerEngine(devices="2,3"), None, 2, peak_tflops=1.5)
    assert (served.training, served.devices) == (2, 3)
    monkeypatch.setattr(throughput, "peak_flops", lambda tflops: None)
    assert Speed.of(TransformersEngine(), Model(), 1).cost is None
