import io

from rich.console import Console

from debate_train.progress import Progress


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def plain():
    out, clock = io.StringIO(), Clock()
    return Progress(Console(file=out, width=40), clock=clock), out, clock


def test_step_prints_one_line_when_not_on_a_terminal():
    progress, out, clock = plain()
    progress.start("self_play", 4)
    clock.now_s = 30
    progress.step(
        1,
        {"loss": 0.25, "reward/total": -0.5, "train/correct": 0.75, "tokens_per_s": 1234.5},
    )
    progress.close()
    # 1 of 4 steps took 30 s, so 3 steps are left: 90 s.
    assert out.getvalue().splitlines() == [
        "self_play: 4 steps",
        "self_play 1/4  loss 0.250  reward -0.500  accuracy 75.0%  tokens/s 1,234  1:30 min left",
    ]


def test_step_takes_the_first_accuracy_there_is_and_leaves_out_none():
    progress, out, _ = plain()
    progress.start("p", 1)
    progress.step(1, {"train/correct": None, "eval/direct/accuracy": 0.5, "loss": None})
    assert out.getvalue().splitlines()[1] == "p 1/1  accuracy 50.0%  took 0:00 min"


def test_time_left_counts_only_the_steps_done_now_when_resumed():
    progress, out, clock = plain()
    progress.start("p", 100)
    clock.now_s = 10
    progress.step(91, {})
    # One step in 10 s and 9 to go; counting all 91 steps would give 1 s.
    assert out.getvalue().splitlines()[1] == "p 91/100  1:30 min left"


def test_note_is_printed_as_it_is_when_it_looks_like_markup():
    progress, out, _ = plain()
    progress.note("gate [bold]passed[/bold] :smile:")
    assert out.getvalue() == "gate [bold]passed[/bold] :smile:\n"


def test_live_display_draws_in_place_and_closes_twice():
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, force_terminal=True, width=110)
    with Progress(console, live=True, clock=clock) as progress:
        progress.start("warm[start]", 2)
        clock.now_s = 3700
        progress.step(1, {"loss": 1.5})
        progress.note("a note")
        progress.start("self_play", 2)
        progress.step(2, {"reward/total": 0.125})
        progress.close()
    drawn = out.getvalue()
    for text in ("warm[start]", "loss 1.500", "1 h 01 min left", "a note", "reward +0.125"):
        assert text in drawn
    assert drawn.rstrip().endswith("\x1b[?25h")  # the cursor is shown again


def test_ci_gets_plain_lines_when_the_console_looks_like_a_terminal(monkeypatch):
    monkeypatch.setenv("CI", "true")
    out = io.StringIO()
    progress = Progress(Console(file=out, force_terminal=True, width=80))
    progress.start("p", 1)
    progress.step(1, {})
    progress.close()
    assert "\x1b[?25" not in out.getvalue()
