import io
import re

import pytest
from rich.console import Console

from debate_protocol.forms import Simultaneous
from debate_protocol.types import Question
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine
from debate_train.monitoring.progress import Progress
from debate_train.playing import counted


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


def test_step_without_sampling_shows_the_speed_of_its_update():
    progress, out, _ = plain()
    progress.start("p", 1)
    progress.step(1, {"loss": 0.5, "tokens_per_s/trained": 2345.6})
    assert out.getvalue().splitlines()[1] == "p 1/1  loss 0.500  tokens/s 2,346  took 0:00 min"


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


def on_a_terminal(width):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system=None, width=width, height=20)
    return Progress(console, live=True, clock=Clock()), out


def frames(out):
    """The lines that were drawn, without control sequences."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


EVERYTHING = {
    "loss": -0.125,
    "reward/total": 0.25,
    "train/correct": 0.5,
    "judge/accuracy": 0.75,
    "tokens_per_s": 12345.0,
}


@pytest.mark.parametrize(
    ("width", "has", "has_not"),
    [
        (160, ("self_play", "7/40", "loss", "reward", "accuracy", "judge", "tokens/s", "left"), ()),
        (80, ("self_play", "7/40", "loss -0.125", "reward +0.250"), ("left",)),
        (40, ("self_play", "7/40"), ("accuracy",)),
    ],
)
def test_narrow_line_is_cut_off_at_its_right_and_never_before_the_step(width, has, has_not):
    progress, out = on_a_terminal(width)
    progress.start("self_play", 40)
    progress.step(7, EVERYTHING)
    progress.close()
    last = frames(out)[-1]
    assert len(last.rstrip()) <= width
    assert all(text in last for text in has)
    assert not any(text in last for text in has_not)
    places = [last.index(text) for text in has]
    assert places == sorted(places)


def debates(count):
    form = Simultaneous(num_agents=2, max_rounds=2, style="compact", personas="none")
    question = Question("q", "1 + 1?", "2")
    runs = [form.start(question, seed=k, debate_id=str(k)) for k in range(count)]
    return runs, form.turn_count()


def player():
    return ScriptedEngine(replies=("<solution> 2 </solution>",)).open()


def test_turns_of_a_step_and_of_an_evaluation_are_counted_on_a_terminal(monkeypatch):
    for total, name, mark in ((3, "self_play", "0/3"), (0, "test split before", "")):
        progress, out = on_a_terminal(100)
        seen = []
        progress.start(name, total)
        update = progress._bar.update
        monkeypatch.setattr(
            progress._bar, "update", lambda *a, u=update, s=seen, **k: (s.append(k), u(*a, **k))
        )
        runs, turns = debates(3)
        play(progress.watch(runs, turns, "turns"), player(), max_tokens=64)
        progress.close()
        counts = [f"turns {count}/12" for count in range(2, 13, 2)]
        assert [one["said"].split("  ")[-1] for one in seen] == counts
        assert name in frames(out)[-1] and mark in frames(out)[-1]
        assert "turns 12/12" in frames(out)[-1]


def test_counted_debates_are_the_same_and_those_that_end_early_count_whole():
    heard = []
    runs, turns = debates(2)
    watched = counted(runs, turns + 3, lambda *both: heard.append(both))
    found = play(watched, player(), max_tokens=64)
    assert found == play(debates(2)[0], player(), max_tokens=64)
    assert heard[-1] == (2 * (turns + 3), 2 * (turns + 3))
    assert heard == sorted(heard)


def test_plain_lines_know_no_turns():
    progress, out, _ = plain()
    progress.start("test split after")
    runs, turns = debates(1)
    assert progress.watch(runs, turns, "turns") == runs
    assert out.getvalue() == "test split after\n"
