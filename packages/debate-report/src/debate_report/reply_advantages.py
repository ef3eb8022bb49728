"""Advantages as each method would give them to these replies, and which lengths they weigh."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation

from markupsafe import Markup

from debate_report.charts import Chart, Plot, Series, line_chart
from debate_report.number_texts import write_value
from debate_report.page_replies import PageReplies, PageReply
from debate_report.page_templates import render
from debate_report.reply_figures import AXIS_UNITS, length_bins, mean_of
from debate_report.timeline import plain_axis
from debate_rewards.group_advantages import GROUP_METHODS, GroupMethod

MOST_IN_EXAMPLE = 12


@dataclass(frozen=True, slots=True)
class MethodValues:
    """What a method gives to replies, by their numbers; replies that it leaves out are absent."""

    method: GroupMethod
    advantages: dict[int, float]
    token_weights: dict[int, float]

    def reply_weight(self, page: PageReplies, reply: PageReply) -> float:
        """Sum |weight| over the tokens of a reply."""
        return abs(self.token_weights.get(reply.number, 0.0)) * page.length(reply)


def method_values(page: PageReplies) -> list[MethodValues]:
    """Compute the advantages of all groups of several replies with rewards, by every method."""
    compared_groups = []
    for replies in page.groups().values():
        rewarded = [reply for reply in replies if reply.reward is not None]
        if len(rewarded) > 1:
            compared_groups.append(rewarded)
    return [_values_of(method, page, compared_groups) for method in GROUP_METHODS]


def _values_of(
    method: GroupMethod, page: PageReplies, groups: Sequence[Sequence[PageReply]]
) -> MethodValues:
    values = MethodValues(method, {}, {})
    for replies in groups:
        rewards = [reply.reward for reply in replies if reply.reward is not None]
        advantages = method.rule(rewards)
        weights = method.token_weights(rewards, list(map(page.length, replies)))
        if advantages is None or weights is None:
            continue
        numbers = [reply.number for reply in replies]
        values.advantages.update(zip(numbers, advantages, strict=True))
        values.token_weights.update(zip(numbers, weights, strict=True))
    return values


def advantages(page: PageReplies) -> Markup:
    """Render each method's share of weight by length, and its values of one group."""
    all_values = method_values(page)
    if not any(values.advantages for values in all_values):
        return render("advantages.html", rows=[])
    bins = length_bins(page)
    head = ["method", "replies used", "with signal"]
    head += [f"{page.length(part[0]):,}–{page.length(part[-1]):,}" for part in bins]
    head.append("like the file's own")
    example_head, example = _example(page, all_values)
    return render(
        "advantages.html",
        head=head,
        rows=[_row(page, values, bins) for values in all_values],
        unit=page.unit,
        charts=[line_chart(chart, along) for chart, along in weight_plots(page)],
        example_head=example_head,
        example=example,
        methods=[(values.method.name, values.method.source) for values in all_values],
    )


def _row(page: PageReplies, values: MethodValues, bins: Sequence[Sequence[PageReply]]) -> list[str]:
    num_with_signal = sum(advantage != 0 for advantage in values.advantages.values())
    cells = [values.method.name, f"{len(values.advantages):,}", f"{num_with_signal:,}"]
    cells += [
        "–" if share is None else write_value(share, "share")
        for share in weight_shares(page, values, bins)
    ]
    likeness = _likeness(page, values)
    cells.append("–" if likeness is None else write_value(likeness, "number"))
    return cells


def weight_shares(
    page: PageReplies, values: MethodValues, bins: Sequence[Sequence[PageReply]]
) -> list[float | None]:
    """Compute the share of each bin of lengths in the sum of |weight| over all tokens."""
    weights = [sum(values.reply_weight(page, reply) for reply in replies) for replies in bins]
    total = sum(weights)
    return [weight / total if total else None for weight in weights]


def _likeness(page: PageReplies, values: MethodValues) -> float | None:
    """Correlate a method's advantages with those of the file; 1 is the file's own method."""
    both = []
    for reply in page.replies:
        if reply.advantage is not None and reply.number in values.advantages:
            both.append((values.advantages[reply.number], reply.advantage))
    try:
        return correlation([ours for ours, _ in both], [theirs for _, theirs in both])
    except StatisticsError:
        return None  # fewer than two, or all equal


def _example(
    page: PageReplies, all_values: Sequence[MethodValues]
) -> tuple[list[str], list[list[str]]]:
    """Build the table of one group with a signal: each reply's token weight by every method."""
    signals = all_values[0].advantages
    for replies in page.groups().values():
        if any(signals.get(reply.number) for reply in replies):
            break
    else:
        return [], []
    head = ["reply", page.unit, "reward", *(values.method.name for values in all_values)]
    rows = []
    for number, reply in enumerate(replies[:MOST_IN_EXAMPLE], 1):
        cells = [f"{number}", f"{page.length(reply):,}"]
        cells.append("–" if reply.reward is None else write_value(reply.reward, "number"))
        for values in all_values:
            weight = values.token_weights.get(reply.number)
            cells.append("–" if weight is None else write_value(weight, "small"))
        rows.append(cells)
    return head, rows


def weight_plots(page: PageReplies) -> Iterator[Plot]:
    """Yield the chart of the share of each bin of lengths in the weight of all tokens."""
    bins = length_bins(page)
    middles = [mean_of(map(page.length, replies)) or 0.0 for replies in bins]
    lines = []
    for values in method_values(page):
        points: dict[float, float] = {}
        for middle, share in zip(middles, weight_shares(page, values, bins), strict=True):
            if share is not None:
                points[middle] = share
        if len(points) > 1:
            lines.append(Series(values.method.name, tuple(points.items())))
    if lines:
        chart = Chart("Weight by length", f"share of Σ|weight|, by {page.unit}", lines, "share")
        yield chart, plain_axis(middles, AXIS_UNITS[page.unit])
