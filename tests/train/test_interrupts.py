"""What signals do to a run: noted, said, and never missed."""

import os
import signal
from collections.abc import Iterator

import pytest

from debate_train.interrupts import Interrupts, Stopped


@pytest.fixture
def hung_up_is_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def test_hang_up_stays_ignored_when_the_run_was_started_so(hung_up_is_ignored: None) -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupts.asked


def test_third_interrupt_stops_what_the_second_waits_for() -> None:
    said: list[str] = []
    with Interrupts(say=said.append) as interrupts, interrupts.guarded():
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        assert len(said) == 2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with Interrupts(say=said.append) as interrupts:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Stopped), interrupts.stoppable():
            pytest.fail("what can be stopped was begun")


def test_interrupt_between_two_lines_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes right after the look whether one has come."""
    looks = iter([True, *[False] * 9])
    asked = Interrupts.asked.fget
    assert asked is not None

    def look(interrupts: Interrupts) -> bool:
        found = asked(interrupts)
        if next(looks):
            signal.raise_signal(signal.SIGINT)
        return found

    with Interrupts(say=lambda _: None) as interrupts:
        monkeypatch.setattr(Interrupts, "asked", property(look))
        with pytest.raises(Stopped), interrupts.stoppable():
            pytest.fail("what can be stopped was begun")
