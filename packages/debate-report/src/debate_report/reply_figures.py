"""Figures of replies: by step, by length, and pass@k."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from debate_report.charts import Chart, Plot, Series, parts_of
from debate_report.number_texts import Form, write_value
from debate_report.page_replies import PageReplies, PageReply
from debate_report.reply_faults import dead_groups
from debate_report.timeline import plain_axis
from debate_rewards.vote_metrics import pass_at

NUM_LENGTH_BINS = 6
FEWEST_FOR_BINS = 12
MOST_SCORES = 24
MOST_SAMPLES = 64
# Units that fit below an axis.
AXIS_UNITS = {"tokens": "tokens", "characters": "chars"}

# What a reply counts in a figure; None for replies that do not count.
Measure = Callable[[PageReply], float | None]


def mean_of(values: Iterable[float | None]) -> float | None:
    """Average the known values; `None` without any."""
    known_values = [value for value in values if value is not None]
    return fmean(known_values) if known_values else None


def mean_reward(replies: Sequence[PageReply]) -> float | None:
    """Average the known rewards."""
    return mean_of(reply.reward for reply in replies)


def share_right(replies: Sequence[PageReply]) -> float | None:
    """Compute the share of right replies among replies with a verdict."""
    return mean_of(reply.is_right for reply in replies)


def score_names(page: PageReplies) -> list[str]:
    """List the scores of a file, from the most to the least frequent."""
    counts: Counter[str] = Counter()
    for reply in page.replies:
        counts.update(reply.scores.keys())
    # A file may have hundreds of metrics, and the rarest have hardly a point to draw.
    return [name for name, _ in counts.most_common(MOST_SCORES)]


def step_measures(page: PageReplies) -> list[tuple[str, Form, Measure]]:
    """Name the figures of a step, each with the form of the values; the reward comes first."""
    dead_numbers: set[int] = set()
    for group in dead_groups(page):
        dead_numbers.update(reply.number for reply in group)
    return [
        ("mean reward", "number", lambda reply: reply.reward),
        ("right", "share", lambda reply: reply.is_right),
        ("answer read here", "share", lambda reply: reply.answer is not None),
        ("in dead groups", "share", lambda reply: reply.number in dead_numbers),
        ("cut", "share", lambda reply: reply.is_cut),
        (f"{page.unit} a reply", "count", page.length),
    ]


def score_measure(name: str) -> Measure:
    """Look up a score of replies by name."""
    return lambda reply: reply.scores.get(name)


def step_table(page: PageReplies) -> tuple[list[str], list[list[str]]]:
    """Build the head and the rows of the table of steps: figures, then all scores."""
    measures = step_measures(page)
    for name in score_names(page):
        measures.append((name, "number", score_measure(name)))
    head = ["step", "replies"]
    head += [name for name, _, _ in measures]
    rows = []
    for step, replies in page.steps().items():
        step_name = "not known" if step is None else f"{step:,}"
        cells = [step_name, f"{len(replies):,}"]
        for _, form, measure in measures:
            mean = mean_of(map(measure, replies))
            cells.append("–" if mean is None else write_value(mean, form))
        rows.append(cells)
    return head, rows


def plots_of(page: PageReplies) -> list[Plot]:
    """List all charts of a page of replies with at least two points."""
    return [*_step_plots(page), *_pass_plots(page), *_length_plots(page)]


def _step_plots(page: PageReplies) -> Iterator[Plot]:
    """Yield charts over the steps, first of the reward and its parts."""
    steps = {step: replies for step, replies in page.steps().items() if step is not None}
    if len(steps) < 2:
        return
    axis = plain_axis([*steps], "step")
    note = "mean of a step"

    def line(name: str, measure: Measure) -> Series:
        points = []
        for step, replies in steps.items():
            mean = mean_of(map(measure, replies))
            if mean is not None:
                points.append((float(step), mean))
        return Series(name, tuple(points))

    (_, reward_form, reward), *other_measures = step_measures(page)
    reward_lines = [line("reward", reward)]
    for name in score_names(page):
        reward_lines.append(line(name, score_measure(name)))
    drawn_lines = [series for series in reward_lines if len(series.points) > 1]
    for title, lines in parts_of("Reward and its parts", drawn_lines):
        yield Chart(title, note, lines, reward_form), axis

    for name, form, measure in other_measures:
        series = line(name, measure)
        # A line at 0, such as of cut replies where none was cut, shows nothing.
        is_flat = not any(value for _, value in series.points)
        if len(series.points) > 1 and not is_flat:
            yield Chart(name.capitalize(), note, [series], form), axis


def pass_curve(page: PageReplies) -> Mapping[int, float]:
    """Compute pass@k of groups with verdicts, for each k up to their median size."""
    counts = []
    for replies in page.groups().values():
        verdicts = [reply.is_right for reply in replies if reply.is_right is not None]
        if verdicts:
            counts.append((verdicts.count(True), len(verdicts)))
    if not counts:
        return {}
    # Beyond the median size the mean would be of the few largest groups.
    sizes = sorted(size for _, size in counts)
    median_size = sizes[len(sizes) // 2]
    largest = min(median_size, MOST_SAMPLES)
    # All points are over the same groups: the curve would fall where small ones end.
    compared_counts = [(right, size) for right, size in counts if size >= largest]
    curve = {}
    for k in range(1, largest + 1):
        curve[k] = fmean([pass_at(right, size, k) for right, size in compared_counts])
    return curve


def _pass_plots(page: PageReplies) -> Iterator[Plot]:
    curve = pass_curve(page)
    if len(curve) < 2:
        return
    points = [(float(k), value) for k, value in curve.items()]
    # pass@1 is the mean of right replies: a level line that more samples rise above.
    mean = curve[1]
    mean_points = ((1.0, mean), (float(max(curve)), mean))
    chart = Chart(
        "pass@k beside the mean",
        "share of groups",
        [Series("pass@k", tuple(points)), Series("mean", mean_points)],
        "share",
        "pass@k: at least one of k replies is right. Where it hardly rises above the mean, the "
        "replies of a group are alike, and there is little to learn from comparing them.",
    )
    yield chart, plain_axis([*curve], "k")


def length_bins(page: PageReplies) -> list[list[PageReply]]:
    """Sort the replies by length into bins of about equal numbers, each of at least two."""
    sampled = [reply for reply in page.replies if not reply.failure]
    sampled.sort(key=page.length)
    num_bins = NUM_LENGTH_BINS if len(sampled) >= FEWEST_FOR_BINS else 1
    # Rounded down in whole numbers: bins differ by one reply at most.
    edges = [number * len(sampled) // num_bins for number in range(num_bins + 1)]
    bins = [sampled[start:end] for start, end in pairwise(edges)]
    return [replies for replies in bins if replies]


def _length_plots(page: PageReplies) -> Iterator[Plot]:
    """Yield reward and rightness by length: a reward that rises alone pays for length."""
    bins = length_bins(page)
    measures: list[tuple[str, Form, Measure]] = [
        ("Reward", "number", lambda reply: reply.reward),
        ("Right", "share", lambda reply: reply.is_right),
    ]
    for name, form, measure in measures:
        points: dict[float, float] = {}
        for replies in bins:
            mean = mean_of(map(measure, replies))
            if mean is not None:
                mean_length = fmean(map(page.length, replies))
                points[mean_length] = mean
        if len(points) > 1:
            series = Series(name.lower(), tuple(points.items()))
            note = f"mean of replies of about one length, in {page.unit}"
            axis = plain_axis([*points], AXIS_UNITS[page.unit])
            yield Chart(f"{name} by length", note, [series], form), axis
