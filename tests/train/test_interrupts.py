"""What signals do to a run: noted, said, and never missed."""

import os
import signal
from collections.abc import Iterator

import pytest

from debate_train.interrupts import Interrupts


@pytest.fixture
def hung_up_is_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def test_hang_up_stays_ignored_when_the_run_was_started_so(hung_up_is_ignored: None) -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupts.asked


def never() -> None:
    pytest.fail("what can be stopped was begun")


def test_interrupt_ends_what_can_be_stopped_and_nothing_after_it() -> None:
    def ends() -> int:
        signal.raise_signal(signal.SIGINT)
        return 1

    with Interrupts(say=lambda _: None) as interrupts:
        assert interrupts.stoppable(lambda: 1) == 1
        assert interrupts.stoppable(ends) is None
        assert interrupts.asked
        assert interrupts.stoppable(never) is None
    with Interrupts(say=lambda _: None) as interrupts:
        assert ends() == 1
        assert interrupts.asked


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
        assert interrupts.stoppable(never) is None


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
        assert interrupts.stoppable(never) is None
