"""Whether a start can learn: figures of a policy before a phase, with bounds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Literal

from debate_train.monitoring.detectors import ROWS
from debate_train.monitoring.figures import GUIDED, Facts, derived

Status = Literal["red", "amber", "green"]
Interval = tuple[float, float]

# A first step of fewer debates says too little to warn of it.
FEWEST_DEBATES = 16
# Metrics of direct answers: of an evaluation, else of the debates' first round.
DIRECT_ACCURACY = ("eval/direct/accuracy", "train/accuracy/round_0")
# Advice that several checks share.
FEW_JUDGES = "a consensus of one judge is its own verdict: take 5 or more agents, or judge weight 0"
WEAK_JUDGES = "warm-start judging, or mix in correctness (reward.type: mixed)"
ONE_SIDED = "judges nearly always decide for one agent: try debate.both_orders, or warm-start"
UNGUIDED = "replies do not follow their guidance: look at the prompts that guide, or warm-start"
BAD_FORMAT = "warm-start on demonstrations, or look at rollout.max_tokens and the contract"
LARGE_CONTEXT = "lower rollout.max_tokens, or set debate.history_rounds: 1 or max_chars_per_field"


@dataclass(frozen=True, slots=True)
class Check:
    """A figure of a start and bounds: beyond `red` do not start, beyond `amber` look first."""

    name: str
    metrics: tuple[str, ...]
    """The first that is measured counts."""
    advice: str
    red: float | None = None
    amber: float | None = None
    above: bool = False
    """Whether values above the bounds are bad, instead of values below."""
    when: str = ""
    """The fact of `Facts` that the check needs; empty for none."""


CHECKS = (
    Check(
        name="direct accuracy",
        metrics=DIRECT_ACCURACY,
        red=0.05,
        amber=0.10,
        advice="take easier questions or a stronger model",
    ),
    Check(
        name="head-room",
        metrics=DIRECT_ACCURACY,
        amber=0.95,
        above=True,
        advice="take harder questions",
    ),
    Check(
        name="one of N is right",
        metrics=("train/pass@k",),
        red=0.20,
        advice="take easier questions or more agents",
    ),
    Check(
        name="valid comparisons",
        metrics=("train/comparisons_made",),
        red=0.80,
        when="votes",
        advice=BAD_FORMAT,
    ),
    Check(
        name="judge accuracy",
        metrics=("judge/accuracy",),
        red=0.50,
        when="votes",
        advice=WEAK_JUDGES,
    ),
    Check(
        name="judge accuracy, votes alone",
        metrics=("judge/accuracy",),
        amber=0.60,
        when="peers_alone",
        advice=WEAK_JUDGES,
    ),
    Check(
        name="judges' TPR - FPR",
        metrics=("judge/youden",),
        red=0.0,
        amber=0.2,
        when="votes",
        advice=WEAK_JUDGES,
    ),
    Check(
        name="judges' Matthews coefficient",
        metrics=("train/judged/mcc",),
        red=0.0,
        amber=0.2,
        advice=WEAK_JUDGES,
    ),
    # The coefficient of a judge that always says the same is undefined, so the next two look for
    # such a judge. Their metric is of rivals alone: of a single proposal, "agent 0" means "right",
    # and a good policy may be right nearly always.
    Check(
        name="judges decide for agent 0, too",
        metrics=("train/judged/for_agent_0",),
        red=0.02,
        amber=0.10,
        advice=ONE_SIDED,
    ),
    Check(
        name="judges decide for others, too",
        metrics=("train/judged/for_agent_0",),
        red=0.98,
        amber=0.90,
        above=True,
        advice=ONE_SIDED,
    ),
    Check(
        name="correlation of judges' errors",
        metrics=("judge/error_correlation",),
        amber=0.5,
        above=True,
        when="votes",
        advice="judges err together: use personas, other temperatures or other models as judges",
    ),
    Check(
        name="judges of a pair",
        metrics=("v2/judges_per_pair",),
        amber=2.0,
        when="judges_learn",
        advice=FEW_JUDGES,
    ),
    Check(
        name="pairs with one judge",
        metrics=("v2/self_consensus_fraction",),
        amber=0.5,
        above=True,
        when="judges_learn",
        advice=FEW_JUDGES,
    ),
    Check(
        name="agents criticised in a debate",
        metrics=("conl/critiques",),
        red=0.2,
        amber=1.0,
        advice=BAD_FORMAT,
    ),
    Check(
        name="valid format",
        metrics=("train/format_all",),
        red=0.30,
        amber=0.60,
        advice=BAD_FORMAT,
    ),
    Check(
        name="questions with a signal",
        metrics=("signal/value",),
        red=0.05,
        amber=0.20,
        advice="most samples teach nothing: take more agents, or other questions",
    ),
    Check(
        name="largest stream's share of the gradient",
        metrics=("largest_stream",),
        amber=0.8,
        above=True,
        advice=ROWS["largest_stream"].advice,
    ),
    # Bounds and advice of the detectors, which look at the same figures while the phase runs.
    Check(
        name="smaller side of the pairs",
        metrics=("pairs/smaller_side",),
        red=ROWS["pair_sides"].below,
        advice=ROWS["pair_sides"].advice,
    ),
    Check(
        name="pairs for the truth",
        metrics=("pairs/truth",),
        red=ROWS["pair_truth"].below,
        advice=ROWS["pair_truth"].advice,
    ),
    Check(
        name="value gained by guiding to the right",
        metrics=("pairs/gained",),
        red=0.0,
        advice=UNGUIDED,
    ),
    Check(
        name="value lost by guiding to the wrong",
        metrics=("pairs/lost",),
        red=0.0,
        advice=UNGUIDED,
    ),
    Check(
        name="replies cut off",
        metrics=("rollout/truncated_fraction",),
        red=0.50,
        amber=0.10,
        above=True,
        advice="raise rollout.max_tokens, or teach shorter replies (reward overlong)",
    ),
    Check(
        name="turns that join a row",
        metrics=("rollout/merged_turn_fraction",),
        amber=0.01,
        when="merges_turns",
        advice="prompts do not extend each other, so each turn is a row: see the chat template",
    ),
    Check(
        name="turns over the window",
        metrics=("context/overflow",),
        red=0.02,
        amber=0.0,
        above=True,
        advice=LARGE_CONTEXT,
    ),
    Check(
        name="context used of the window",
        metrics=("context/share",),
        amber=0.90,
        above=True,
        advice=LARGE_CONTEXT,
    ),
    Check(
        name="memory of one update",
        metrics=("memory/share",),
        red=0.98,
        amber=0.90,
        above=True,
        advice="lower trainer.tokens_per_micro_batch, train model.lora, or use ZeRO: --plan",
    ),
)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a check; `bound` is the missed bound, if any."""

    name: str
    status: Status
    value: float
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    advice: str = ""


def results(
    facts: Facts, figures: Mapping[str, float], intervals: Mapping[str, Interval]
) -> Iterator[Result]:
    """Yield the results of checks of the phase with a measured figure."""
    for check in CHECKS:
        applies = not check.when or getattr(facts, check.when)
        measured = [metric for metric in check.metrics if metric in figures]
        if applies and measured:
            metric = measured[0]
            yield judged(check, figures[metric], intervals.get(metric))


def judged(check: Check, value: float, interval: Interval | None = None) -> Result:
    """Compare a figure with the bounds; amber also where the interval reaches `red`."""
    low, high = interval or (None, None)
    worst = value
    if interval is not None:
        worst = interval[1] if check.above else interval[0]
    # In order of severity: the first missed bound decides.
    comparisons: tuple[tuple[float, float | None, Status], ...] = (
        (value, check.red, "red"),
        (value, check.amber, "amber"),
        (worst, check.red, "amber"),
    )
    for figure, bound, status in comparisons:
        if bound is None:
            continue
        is_beyond = figure > bound if check.above else figure < bound
        if is_beyond:
            return Result(
                name=check.name,
                status=status,
                value=value,
                low=low,
                high=high,
                bound=bound,
                advice=check.advice,
            )
    return Result(name=check.name, status="green", value=value, low=low, high=high)


def verdict(check_results: Sequence[Result]) -> Status:
    """Find the worst status of all."""
    statuses = {result.status for result in check_results}
    if "red" in statuses:
        return "red"
    return "amber" if "amber" in statuses else "green"


def wanted(result: Result) -> str:
    """Describe the missed bound of a check."""
    check = next(check for check in CHECKS if check.name == result.name)
    return f"{'at most' if check.above else 'at least'} {result.bound:g}"


def first_step_warnings(facts: Facts, row: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each red check of a phase's first step, played by the phase's start.

    A step of fewer than 16 debates gets no warnings.
    """
    if row.get("env/all/total_episodes", 0) < FEWEST_DEBATES:
        return
    for result in results(facts, derived(row), {}):
        if result.status == "red":
            missed = f"{result.name} {result.value:.3g}, expected {wanted(result)}"
            yield f"preflight: {missed}; {result.advice}"


def intervals_of(figures: Mapping[str, float], pairs: int) -> dict[str, Interval]:
    """Compute intervals of two standard errors for the figures of a set of `pairs` pairs."""
    smaller_side = figures.get("pairs/smaller_side", 0.0)
    guided_right, natural, guided_wrong = (
        figures.get(f"{name}_standard_error", 0.0) for name in GUIDED
    )
    standard_errors = {
        "pairs/smaller_side": sqrt(smaller_side * (1 - smaller_side) / max(1, pairs)),
        # Differences of two values, whose errors are independent.
        "pairs/gained": hypot(guided_right, natural),
        "pairs/lost": hypot(natural, guided_wrong),
    }
    intervals = {}
    for name, error in standard_errors.items():
        if name in figures:
            intervals[name] = (figures[name] - 2 * error, figures[name] + 2 * error)
    return intervals
