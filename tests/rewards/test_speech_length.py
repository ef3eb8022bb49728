"""Figures and rewards take linear time in a reply, whatever it repeats."""

import pytest

from benchmarks.robustness.long_speeches import FACTOR, MIN_S, SHORT, UNITS, forms, seconds

# Four times the text takes 4 times as long where time is linear, 16 times where it is quadratic.
MAX_GROWTH = 9


@pytest.mark.parametrize("unit", UNITS)
def test_debates_of_one_repeated_unit_take_linear_time(unit: str) -> None:
    short = "a" + unit * (SHORT // len(unit))
    long = short * FACTOR
    for form in forms():
        of_long = seconds(form, long)
        if of_long < MIN_S:
            continue
        # Another process can only make a measurement longer: the shortest counts.
        of_long = min(of_long, *(seconds(form, long) for _ in range(2)))
        of_short = min(seconds(form, short) for _ in range(3))
        assert of_long < MIN_S or of_long < MAX_GROWTH * of_short
