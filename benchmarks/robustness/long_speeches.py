"""How the time of figures and rewards grows with a speech of one repeated unit.

Judged debates, CoNL's and self-play are played with one text for every reply: a unit such as line
ends, unclosed tags or dollar signs, repeated to 6,000 and to 24,000 characters. Linear time grows
by 4, quadratic time by 16.

    python -m benchmarks.robustness.long_speeches
"""

import time
from collections.abc import Sequence

from benchmarks.measurement import print_line
from debate_protocol.forms import Conl, Judged, Simultaneous
from debate_protocol.types import DebateRun, Gate, Question, Reply, Transcript
from debate_rewards.metrics import debate_metrics, debate_statistics
from debate_rewards.reward import Score, score_debates
from debate_rewards.rewards import REWARDS

REPEATS = 3
# What degenerate policies repeat, one unit each.
UNITS = (
    "\n", " ", "\t\n", "a ", "a-", "1", "1,", "\\", "$1 ", "a = ", "(", "[", "{", "<", "<quote>",
    "</quote>", "<solution>", "\\boxed{", "\\frac{1}", "####", "Answer: ", "**", "_", "é", "字",
    "<evaluation>", "Agent 0 > Agent 1\n", "Agent 0: ",
)  # fmt: skip
SHORT = 6_000
FACTOR = 4
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
    """Return the debates that are played."""
    return (Judged(private=("passage",)), Conl(), Simultaneous(num_agents=3, max_rounds=2))


def value_speeches(form: object, text: str) -> Score:
    """Compute the figures and the scores of a debate in which everybody says one text."""
    transcript = play(form.start(QUESTION, seed=1), text)  # type: ignore[attr-defined]
    debate_metrics([transcript])
    debate_statistics([transcript])
    reward = REWARDS[REWARD_OF_FORM[form.type]]()  # type: ignore[attr-defined]
    (score,) = score_debates(reward, [transcript])
    return score


def seconds(form: object, text: str) -> float:
    """Measure the processor seconds of `value_speeches`."""
    start = time.process_time()
    value_speeches(form, text)
    return time.process_time() - start


def main() -> None:
    """Print the slowest text, and the largest growth among those that a clock can measure."""
    slowest = 0.0
    growths: list[float] = []
    for unit in UNITS:
        short = "a" + unit * (SHORT // len(unit))
        for form in forms():
            of_long = min(seconds(form, short * FACTOR) for _ in range(REPEATS))
            slowest = max(slowest, of_long)
            if of_long >= MIN_S / 4:
                of_short = min(seconds(form, short) for _ in range(REPEATS))
                growths.append(of_long / of_short)
    settings = {"units": len(UNITS), "forms": len(forms()), "characters": SHORT * FACTOR}
    print_line("long_speeches/slowest", [slowest], "s", "lower", settings, ["lxml"])
    if growths:
        settings = settings | {"measured": len(growths)}
        print_line("long_speeches/growth", [max(growths)], "ratio", "lower", settings, ["lxml"])


if __name__ == "__main__":
    main()
