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

Measure = Callable[[Sequence[PageReply]], float | None]


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
    return [name for name, _ in counts.most_common(MOST_SCORES)]


def step_measures(page: PageReplies) -> dict[str, tuple[Form, Measure]]:
    """Name the figures of a step, each with the form of the values."""
    dead_numbers: set[int] = set()
    for group in dead_groups(page):
        dead_numbers.update(reply.number for reply in group)
    return {
        "mean reward": ("number", mean_reward),
        "right": ("share", share_right),
        "answer read here": (
            "share",
            lambda replies: mean_of(reply.answer is not None for reply in replies),
        ),
        "in dead groups": (
            "share",
            lambda replies: mean_of(reply.number in dead_numbers for reply in replies),
        ),
        "cut": ("share", lambda replies: mean_of(reply.is_cut for reply in replies)),
        f"{page.unit} a reply": ("count", lambda replies: mean_of(map(page.length, replies))),
    }


def step_table(page: PageReplies) -> tuple[list[str], list[list[str]]]:
    """Build the head and the rows of the table of steps: figures, then all scores."""
    measures = step_measures(page)
    scores = score_names(page)
    head = ["step", "replies", *measures, *scores]
    rows = []
    for step, replies in page.steps().items():
        cells = ["not known" if step is None else f"{step:,}", f"{len(replies):,}"]
        cells += [_cell(measure(replies), form) for form, measure in measures.values()]
        for name in scores:
            mean_score = mean_of(reply.scores.get(name) for reply in replies)
            cells.append(_cell(mean_score, "number"))
        rows.append(cells)
    return head, rows


def _cell(value: float | None, form: Form) -> str:
    return "–" if value is None else write_value(value, form)


def plots_of(page: PageReplies) -> list[Plot]:
    """List all charts of a page of replies with at least two points."""
    return [*_step_plots(page), *_pass_plots(page), *_length_plots(page)]


def _step_plots(page: PageReplies) -> Iterator[Plot]:
    """Yield charts over the steps, first of the reward and its parts."""
    steps = {step: replies for step, replies in page.steps().items() if step is not None}
    if len(steps) < 2:
        return
    along = plain_axis([*steps], "step")
    measures = step_measures(page)

    def line(name: str, measure: Measure) -> Series:
        values = {step: measure(replies) for step, replies in steps.items()}
        points = [(float(step), value) for step, value in values.items() if value is not None]
        return Series(name, tuple(points))

    form, reward = measures.pop("mean reward")
    reward_lines = [line("reward", reward)]
    for name in score_names(page):
        reward_lines.append(line(name, _mean_score(name)))
    drawn_lines = [series for series in reward_lines if len(series.points) > 1]
    for title, lines in parts_of("Reward and its parts", drawn_lines):
        yield Chart(title, "mean of a step", lines, form), along
    for name, (form, measure) in measures.items():
        series = line(name, measure)
        # A line at 0, such as of cut replies where none was cut, shows nothing.
        if len(series.points) > 1 and any(value for _, value in series.points):
            yield Chart(name.capitalize(), "mean of a step", [series], form), along


def _mean_score(name: str) -> Measure:
    return lambda replies: mean_of(reply.scores.get(name) for reply in replies)


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
    largest = min(sizes[len(sizes) // 2], MOST_SAMPLES)
    curve = {}
    for k in range(1, largest + 1):
        curve[k] = fmean(pass_at(right, size, k) for right, size in counts if size >= k)
    return curve


def _pass_plots(page: PageReplies) -> Iterator[Plot]:
    curve = pass_curve(page)
    if len(curve) < 2:
        return
    points = tuple((float(k), value) for k, value in curve.items())
    mean_points = ((1.0, curve[1]), (float(max(curve)), curve[1]))
    chart = Chart(
        "pass@k beside the mean",
        "share of groups",
        [Series("pass@k", points), Series("mean", mean_points)],
        "share",
        "pass@k: at least one of k replies is right. Where it hardly rises above the mean, the "
        "replies of a group are alike, and there is little to learn from comparing them.",
    )
    yield chart, plain_axis([*curve], "k")


def length_bins(page: PageReplies) -> list[list[PageReply]]:
    """Sort the replies by length into bins of about equal numbers, each of at least two."""
    sampled = sorted((reply for reply in page.replies if not reply.failure), key=page.length)
    num_bins = NUM_LENGTH_BINS if len(sampled) >= FEWEST_FOR_BINS else 1
    edges = [number * len(sampled) // num_bins for number in range(num_bins + 1)]
    bins = [sampled[start:end] for start, end in pairwise(edges)]
    return [replies for replies in bins if replies]


def _length_plots(page: PageReplies) -> Iterator[Plot]:
    """Yield reward and rightness by length: a reward that rises alone pays for length."""
    bins = length_bins(page)
    measures: dict[str, tuple[Form, Measure]] = {
        "Reward by length": ("number", mean_reward),
        "Right by length": ("share", share_right),
    }
    for title, (form, measure) in measures.items():
        points: dict[float, float] = {}
        for replies in bins:
            value = measure(replies)
            if value is not None:
                points[fmean(map(page.length, replies))] = value
        if len(points) > 1:
            series = Series(title.split()[0].lower(), tuple(points.items()))
            note = f"mean of replies of about one length, in {page.unit}"
            yield Chart(title, note, [series], form), plain_axis([*points], AXIS_UNITS[page.unit])
