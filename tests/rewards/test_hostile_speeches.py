"""Figures and rewards take linear time in a reply, whatever it repeats."""

import time
from collections.abc import Sequence

import pytest

from debate_protocol.forms import Conl, Judged, Simultaneous
from debate_protocol.types import DebateRun, Gate, Question, Reply, Transcript
from debate_rewards.metrics import debate_metrics, debate_statistics
from debate_rewards.reward import score_debates
from debate_rewards.rewards import REWARDS

# What degenerate policies repeat, one unit each.
UNITS = (
    "\n", " ", "\t\n", "a ", "a-", "1", "1,", "\\", "$1 ", "a = ", "(", "[", "{", "<", "<quote>",
    "</quote>", "<solution>", "\\boxed{", "\\frac{1}", "####", "Answer: ", "**", "_", "é", "字",
    "<evaluation>", "Agent 0 > Agent 1\n", "Agent 0: ",
)  # fmt: skip
SHORT = 6_000
FACTOR = 4
# Four times the text takes 4 times as long where time is linear, 16 times where it is quadratic.
MAX_GROWTH = 9
# Below this a clock says little.
MIN_S = 0.4
QUESTION = Question("q", "2 + 2?", "4", {"kind": "number", "passage": "Two and two are four. " * 9})
REWARD_OF_FORM = {"judged": "judged", "conl": "conl", "simultaneous": "v2"}


def play(run: DebateRun, text: str) -> Transcript:
    """Run a debate in which everybody always says the same text."""
    step = next(run)
    while True:
        sent = "go_on" if isinstance(step, Gate) else [Reply(text) for _ in step]
        try:
            step = run.send(sent)
        except StopIteration as stop:
            transcript: Transcript = stop.value
            return transcript


def forms() -> Sequence[object]:
    return (Judged(private=("passage",)), Conl(), Simultaneous(num_agents=3, max_rounds=2))


def seconds(form: object, text: str) -> float:
    start = time.process_time()
    transcript = play(form.start(QUESTION, seed=1), text)  # type: ignore[attr-defined]
    debate_metrics([transcript])
    debate_statistics([transcript])
    reward = REWARDS[REWARD_OF_FORM[form.type]]()  # type: ignore[attr-defined]
    score_debates(reward, [transcript])
    return time.process_time() - start


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
