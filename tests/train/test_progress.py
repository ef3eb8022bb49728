"""Progress of a run in plain lines and on a terminal, and output that cannot be written."""

import errno
import io
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

from debate_protocol.forms import Simultaneous
from debate_protocol.types import Question
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine
from debate_train import __main__
from debate_train.commands.recipe_command import exit_code
from debate_train.monitoring.progress import Progress, SteadyStream, steady_streams
from debate_train.playing import counted


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
        # The first accuracy there is; without sampling the speed of the update.
        (
            1,
            1,
            {"train/correct": None, "eval/direct/accuracy": 0.5, "tokens_per_s/trained": 2345.6},
            "p 1/1  accuracy 50.0%  took 0:30 min  tokens/s 2,346",
        ),
        # After a resume: one step in 30 s and 9 to go; all 91 steps would give 3 s.
        (100, 91, {}, "p 91/100  4:30 min left"),
    ],
    ids=["all", "some", "resumed"],
)
def test_step_prints_one_line_when_not_on_a_terminal(num_steps, step, metrics, line):
    progress, output, clock = plain_progress()
    progress.start("p", num_steps)
    clock.now_s = 30
    progress.step(step, metrics)
    progress.close()
    assert output.getvalue().splitlines() == [f"p: {num_steps} steps", line]


def test_time_left_leaves_out_the_slow_first_step():
    progress, output, clock = plain_progress()
    progress.start("p", 10)
    for step, now_s in ((1, 30), (2, 31), (3, 32)):
        clock.now_s = now_s
        progress.step(step, {})
    progress.close()
    # 7 steps of 1 s; all three took 32 s, which would give 1:15 min.
    assert output.getvalue().splitlines()[-1] == "p 3/10  0:07 min left"


def test_accuracy_is_the_mean_of_the_last_twenty_steps_of_a_phase():
    progress, output, _ = plain_progress()
    progress.start("p", 22)
    for step in range(1, 23):
        progress.step(step, {"train/correct": 1.0 if step == 1 else 0.5, "judge/accuracy": None})
    # (1 + 0.5 + 0.5) / 3 after three steps; the last twenty leave the 1 out. A phase begins anew.
    lines = output.getvalue().splitlines()
    assert "accuracy 66.7%" in lines[3] and "accuracy 50.0%" in lines[-1]
    assert "judge" not in output.getvalue()
    progress.start("q", 1)
    progress.step(1, {"train/correct": 0.25})
    assert "accuracy 25.0%" in output.getvalue().splitlines()[-1]


def test_away_from_a_terminal_a_phase_has_a_line_every_so_often():
    progress, output, clock = plain_progress()
    progress.start("p", 100)
    for step in range(41, 101):  # A resumed phase.
        clock.now_s += 61 if step == 60 else 1
        progress.step(step, {})
    steps = [int(line.split()[1].partition("/")[0]) for line in output.getvalue().splitlines()[1:]]
    # The first three, then every fifth of a hundred; step 60 is a minute after the line before.
    assert steps == [41, 42, 43, 48, 53, 58, 60, 65, 70, 75, 80, 85, 90, 95, 100]


def test_note_is_printed_as_it_is_when_it_looks_like_markup():
    progress, output, _ = plain_progress()
    progress.note("gate [bold]passed[/bold] :smile:")
    assert output.getvalue() == "gate [bold]passed[/bold] :smile:\n"


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


def test_ci_gets_plain_lines_when_the_console_looks_like_a_terminal(monkeypatch):
    monkeypatch.setenv("CI", "true")
    output = io.StringIO()
    progress = Progress(Console(file=output, force_terminal=True, width=80))
    progress.start("p", 1)
    progress.step(1, {})
    progress.close()
    assert "\x1b[?25" not in output.getvalue()


@pytest.mark.parametrize(
    ("width", "texts", "absent"),
    [
        (160, ["self_play", "7/40", "accuracy", "judge", "left", "loss", "reward", "tokens/s"], ""),
        (80, ["self_play", "7/40", "accuracy 50.0%", "judge 75.0%", "left"], "tokens/s"),
        (40, ["self_play", "7/40"], "left"),
    ],
)
def test_narrow_line_is_cut_off_at_its_right_and_never_before_the_step(width, texts, absent):
    progress, output = terminal_progress(width)
    progress.start("self_play", 40)
    progress.step(
        7,
        {
            "loss": -0.125,
            "reward/total": 0.25,
            "train/correct": 0.5,
            "judge/accuracy": 0.75,
            "tokens_per_s": 12345.0,
        },
    )
    progress.close()
    last = drawn_lines(output)[-1]
    assert len(last.rstrip()) <= width
    columns = [last.index(text) for text in texts]
    assert columns == sorted(columns)
    assert not absent or absent not in last


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


def test_counted_debates_are_the_same_and_those_that_end_early_count_whole():
    counts = []
    runs, num_turns = start_debates(2)
    watched = counted(runs, num_turns + 3, lambda *both: counts.append(both))
    assert play_all(watched) == play_all(start_debates(2)[0])
    assert counts[-1] == (2 * (num_turns + 3), 2 * (num_turns + 3))
    assert counts == sorted(counts)


def test_plain_lines_know_no_turns():
    progress, output, _ = plain_progress()
    progress.start("test split after")
    runs, num_turns = start_debates(1)
    assert progress.watch(runs, num_turns, "turns") == runs
    assert output.getvalue() == "test split after\n"


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


@pytest.mark.parametrize("live", [False, True])
def test_progress_writes_nowhere_when_standard_error_is_closed(monkeypatch, capfd, live):
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(live=live) as progress:
        progress.start("train", 2)
        progress.step(1, {"loss": 0.5})
    assert capfd.readouterr() == ("", "")


def test_command_ends_well_when_nobody_reads_what_it_prints(monkeypatch, failing):
    monkeypatch.setattr(sys, "stdout", failing)
    monkeypatch.setattr(sys, "stderr", failing)

    def act():
        print("printed")
        print("warned", file=sys.stderr, flush=True)
        return 0

    assert exit_code("debate-train", act) == 0
    assert failing.lost


def test_text_that_the_encoding_lacks_is_escaped():
    inner = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    stream = SteadyStream(inner)
    assert stream.write("a\u20ac") == 2
    stream.flush()
    assert inner.buffer.getvalue() == b"a\\u20ac"


def test_streams_are_those_before_when_steady_ones_end():
    before = (sys.stdout, sys.stderr)
    with steady_streams():
        assert sys.stdout is not before[0]
    assert (sys.stdout, sys.stderr) == before


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


def test_files_get_no_standard_descriptor_when_those_are_closed(tmp_path):
    code = (
        "import sys\nfrom debate_train.monitoring.progress import steady_streams\n"
        "with steady_streams():\n"
        "    print('lost'); sys.stdout.flush()\n"
        f"    descriptor = open({str(tmp_path / 'file')!r}, 'w').fileno()\n"
        "sys.exit(descriptor)"
    )
    command = ["sh", "-c", '"$@" >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command).returncode > 2


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
