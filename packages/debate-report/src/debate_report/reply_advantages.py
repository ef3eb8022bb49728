"""Advantages of these replies under each method, and their weight by length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import StatisticsError, correlation

from markupsafe import Markup

from debate_report.charts import Chart, Plot, Series, line_chart
from debate_report.number_texts import write_value
from debate_report.page_replies import PageReplies, PageReply
from debate_report.page_templates import render
from debate_report.reply_figures import AXIS_UNITS, length_bins, mean_of
from debate_report.reply_markup import part_of_section, section_lengths, shared_sections
from debate_report.timeline import plain_axis
from debate_rewards.group_advantages import GROUP_METHODS, GroupMethod, centered

MOST_IN_EXAMPLE = 12


BY_SECTION = GroupMethod(
    "ours (by section)",
    centered,
    False,
    "a section has the part of the reward that carries its name, else the reward, less the "
    "group's mean; tags and text outside have none, and a reply without the sections has the "
    "reward's everywhere",
)


@dataclass(frozen=True, slots=True)
class MethodValues:
    """The advantages of one method, by the numbers of replies; replies left out are absent.

    Attributes:
        method: The method.
        advantages: Of each reply.
        token_weights: Of a token of each reply without sections.
        section_weights: Of a token of each section, where a method knows sections.
        section_characters: In each section of a reply.
    """

    method: GroupMethod
    advantages: dict[int, float]
    token_weights: dict[int, float]
    section_weights: dict[int, dict[str, float]] = field(default_factory=dict)
    section_characters: dict[int, dict[str, int]] = field(default_factory=dict)

    def reply_weight(self, page: PageReplies, reply: PageReply) -> float:
        """Sum |weight| over the tokens of a reply."""
        if reply.number not in self.section_weights:
            return abs(self.token_weights.get(reply.number, 0.0)) * page.length(reply)
        # Files do not say where tokens begin: they are taken as equally long all over a reply.
        characters = self.section_characters[reply.number]
        tokens_a_character = page.length(reply) / len(reply.text)
        section_sums = []
        for section, weight in self.section_weights[reply.number].items():
            section_sums.append(abs(weight) * characters[section] * tokens_a_character)
        return sum(section_sums)

    def weight_text(self, reply: PageReply) -> str:
        """Write the weight of a token of a reply, or of each section."""
        if reply.number in self.section_weights:
            weights = self.section_weights[reply.number].items()
            return ", ".join(f"{name} {write_value(weight, 'small')}" for name, weight in weights)
        weight = self.token_weights.get(reply.number)
        return "–" if weight is None else write_value(weight, "small")


def method_values(page: PageReplies) -> list[MethodValues]:
    """Compute the advantages of all groups of several replies with rewards, by every method."""
    compared_groups = []
    for replies in page.groups().values():
        rewarded = [reply for reply in replies if reply.reward is not None]
        if len(rewarded) > 1:
            compared_groups.append(rewarded)
    all_values = [_values_of(method, page, compared_groups) for method in GROUP_METHODS]
    by_section = _values_by_section(page, compared_groups)
    return all_values if by_section is None else [*all_values, by_section]


def _values_by_section(
    page: PageReplies, groups: Sequence[Sequence[PageReply]]
) -> MethodValues | None:
    """Compute the weights of each section; `None` where most replies have none."""
    lengths = {}
    for reply in page.replies:
        if reply.text:
            lengths[reply.number] = section_lengths(reply.text)
    sections = shared_sections(lengths.values())
    if not sections:
        return None
    values = _values_of(BY_SECTION, page, groups)
    values.section_characters.update(lengths)
    for replies in groups:
        # Only a part that all replies of the group have can be compared.
        shared_parts = set.intersection(*(set(reply.scores) for reply in replies))
        for section in sections:
            part = part_of_section(section, sorted(shared_parts))
            if part:
                scores = [reply.scores[part] for reply in replies]
            else:
                scores = [reply.reward or 0.0 for reply in replies]
            for reply, advantage in zip(replies, centered(scores), strict=True):
                if section in lengths.get(reply.number, ()):
                    values.section_weights.setdefault(reply.number, {})[section] = advantage
    return values


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
    """Render each method's share of weight by length, and the values of a group."""
    all_values = method_values(page)
    if not any(values.advantages for values in all_values):
        return render("advantages.html", rows=[])
    bins = length_bins(page)
    head = ["method", "replies used", "with signal"]
    for replies in bins:
        head.append(f"{page.length(replies[0]):,}–{page.length(replies[-1]):,}")
    head.append("like the file's own")

    rows = []
    for values in all_values:
        num_with_signal = sum(advantage != 0 for advantage in values.advantages.values())
        cells = [values.method.name, f"{len(values.advantages):,}", f"{num_with_signal:,}"]
        for share in weight_shares(page, values, bins):
            cells.append("–" if share is None else write_value(share, "share"))
        likeness = _likeness(page, values)
        cells.append("–" if likeness is None else write_value(likeness, "number"))
        rows.append(cells)

    example_head, example = _example(page, all_values)
    return render(
        "advantages.html",
        head=head,
        rows=rows,
        unit=page.unit,
        charts=[line_chart(chart, along) for chart, along in weight_plots(page)],
        example_head=example_head,
        example=example,
        methods=[(values.method.name, values.method.source) for values in all_values],
    )


def weight_shares(
    page: PageReplies, values: MethodValues, bins: Sequence[Sequence[PageReply]]
) -> list[float | None]:
    """Compute the share of each bin of lengths in the sum of |weight| over all tokens."""
    weights = []
    for replies in bins:
        weights.append(sum(values.reply_weight(page, reply) for reply in replies))
    total = sum(weights)
    # Without any signal no length has a share.
    if not total:
        return [None] * len(weights)
    return [weight / total for weight in weights]


def _likeness(page: PageReplies, values: MethodValues) -> float | None:
    """Correlate a method's advantages with the file's; 1 is the file's own method."""
    method_advantages = []
    file_advantages = []
    for reply in page.replies:
        if reply.advantage is not None and reply.number in values.advantages:
            method_advantages.append(values.advantages[reply.number])
            file_advantages.append(reply.advantage)
    try:
        return correlation(method_advantages, file_advantages)
    except StatisticsError:
        return None  # fewer than two, or all equal


def _example(
    page: PageReplies, all_values: Sequence[MethodValues]
) -> tuple[list[str], list[list[str]]]:
    """Build the table of a group with a signal: each reply's token weight by every method."""
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
            cells.append(values.weight_text(reply))
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
