"""Sections of the page of imported replies: facts, faults, rewards, groups and lengths."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev

from markupsafe import Markup

from debate_report.charts import line_chart
from debate_report.number_texts import write_value
from debate_report.page_replies import PageReplies, PageReply
from debate_report.page_templates import render
from debate_report.reply_faults import dead_groups, faults_of, is_paid, middle_reward
from debate_report.reply_figures import (
    length_bins,
    mean_reward,
    pass_curve,
    plots_of,
    share_right,
    step_table,
)

MOST_EXAMPLES = 3
MOST_GROUPS = 12
MOST_IN_GROUP = 32
MOST_STEPS = 60
EXCERPT = 240
VERDICT_NAMES = {True: "right", False: "wrong", None: "not known"}
SIGNS = {True: "✓", False: "✗", None: "·"}


def facts(page: PageReplies) -> Markup:
    """Render the number of replies, their rewards, and the source of their verdicts."""
    return render("facts.html", facts=list(head_facts(page)))


def facts_table(pages: Mapping[str, PageReplies]) -> Markup:
    """Render the facts of several pages beside each other."""
    columns = [dict(head_facts(page)) for page in pages.values()]
    names: dict[str, None] = {}
    for column in columns:
        names.update(dict.fromkeys(column))
    rows = [[name, *(column.get(name, "–") for column in columns)] for name in names]
    return render("figures.html", tables=[[["", *pages], *rows]])


def head_facts(page: PageReplies) -> Iterator[tuple[str, str]]:
    """Yield names and values of the page's head."""
    replies = page.replies
    groups = page.groups().values()
    steps = [step for step in page.steps() if step is not None]
    yield "replies", f"{len(replies):,}"
    questions = {reply.question for reply in replies}
    yield "questions", f"{len(questions):,}"
    yield "groups of several", f"{sum(len(group) > 1 for group in groups):,}"
    if steps:
        ends = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,}–{steps[-1]:,}"
        yield "step" if len(steps) == 1 else f"{len(steps):,} steps", ends
    reward = mean_reward(replies)
    yield "mean reward", "not known" if reward is None else write_value(reward, "number")
    right = share_right(replies)
    yield "right", "not known" if right is None else write_value(right, "share")
    lengths = [page.length(reply) for reply in replies if not reply.failure]
    if lengths:
        yield f"{page.unit} a reply", f"{fmean(lengths):,.0f}"
    gaps = [reply.logprob_gap for reply in replies if reply.logprob_gap is not None]
    if gaps:
        yield "trainer − sampler, a token", f"{fmean(gaps):.3g}"


def overview(page: PageReplies) -> Markup:
    """Render the source of the verdicts, then the faults with replies as evidence."""
    faults = []
    for fault in faults_of(page):
        faults.append(
            {
                "title": fault.title,
                "text": fault.text,
                "severe": fault.is_severe,
                "examples": [_example(page, reply) for reply in fault.replies[:MOST_EXAMPLES]],
            }
        )
    return render("faults.html", verdicts=_verdicts(page), faults=faults)


def _verdicts(page: PageReplies) -> str:
    """Separate the file's verdicts from ours, and count agreement."""
    by_file = [reply for reply in page.replies if reply.file_verdict is not None]
    both = [reply for reply in by_file if reply.our_verdict is not None]
    num_ours = sum(reply.our_verdict is not None for reply in page.replies)
    num_ours_alone = num_ours - len(both)
    num_unknown = len(page.replies) - len(by_file) - num_ours_alone
    sentences = []
    if by_file:
        names = Counter(reply.verdict_by for reply in by_file)
        scores = ", ".join(f"{name} ({count:,})" for name, count in names.most_common())
        sentences.append(f"Right and wrong are the file's own verdict: {scores[:300]}.")
    if num_ours_alone:
        sentences.append(f"For {num_ours_alone:,} replies they are ours: the file has none.")
    if num_unknown:
        sentences.append(f"For {num_unknown:,} replies nobody knows.")
    if both:
        num_equal = sum(reply.file_verdict == reply.our_verdict for reply in both)
        sentences.append(
            f"We can check {len(both):,} of the file's verdicts, by the last \\boxed{{}}, "
            f"<answer>, Answer: or #### and the right answer, and agree with {num_equal:,}."
        )
    # All replies of a format share its caveats: each is written once, in the file's order.
    caveats: dict[str, None] = {}
    for reply in page.replies:
        caveats.update(dict.fromkeys(reply.caveats))
    return " ".join([*sentences, *caveats])


def _example(page: PageReplies, reply: PageReply) -> dict[str, object]:
    facts = [f"reward {_reward(reply)}"]
    if reply.file_verdict is not None:
        facts.append(f"the file says {VERDICT_NAMES[reply.file_verdict]}")
    if reply.our_verdict is not None:
        facts.append(f"we read {reply.answer}: {VERDICT_NAMES[reply.our_verdict]}"[:EXCERPT])
    if reply.gold is not None:
        facts.append(f"right answer {reply.gold}"[:EXCERPT])
    facts.append(f"{page.length(reply):,} {page.unit}")
    if reply.failure:
        facts.append(reply.failure[:EXCERPT])
    return {
        "number": reply.number,
        "question": _shortened(reply.question),
        "facts": " · ".join(facts),
        # The end of a reply has its answer.
        "text": _shortened(reply.text, from_end=True),
    }


def _shortened(text: str, *, from_end: bool = False) -> str:
    if len(text) <= EXCERPT:
        return text
    return f"… {text[-EXCERPT:]}" if from_end else f"{text[:EXCERPT]} …"


def _reward(reply: PageReply) -> str:
    return "not known" if reply.reward is None else write_value(reply.reward, "number")


def rewards(page: PageReplies) -> Markup:
    """Render reward beside rightness, all charts, and the table of steps."""
    head, rows = step_table(page)
    shown_rows = rows
    if len(rows) > MOST_STEPS:
        # As many from each end: what changed is more than what is last.
        half = MOST_STEPS // 2
        shown_rows = rows[:half] + rows[-half:]

    length_rows = []
    for replies in length_bins(page):
        lengths = [page.length(reply) for reply in replies]
        reward = mean_reward(replies)
        right = share_right(replies)
        length_rows.append(
            [
                f"{min(lengths):,}–{max(lengths):,}",
                f"{len(replies):,}",
                "–" if reward is None else write_value(reward, "number"),
                "–" if right is None else write_value(right, "share"),
                f"{sum(reply.is_cut for reply in replies):,}",
            ]
        )

    # Powers of two show the shape; the last k is where the curve ends.
    curve = pass_curve(page)
    pass_texts = []
    for k, share in curve.items():
        is_power_of_two = k & (k - 1) == 0
        if is_power_of_two or k == max(curve):
            pass_texts.append(f"pass@{k} {write_value(share, 'share')}")

    return render(
        "rewards.html",
        crossed=_reward_by_verdict(page),
        charts=[line_chart(chart, along) for chart, along in plots_of(page)],
        head=head,
        rows=shown_rows,
        left_out=len(rows) - len(shown_rows),
        lengths=length_rows,
        unit=page.unit,
        curve=", ".join(pass_texts),
    )


def _reward_by_verdict(page: PageReplies) -> list[list[str]]:
    """Count replies by our verdict and by whether they earned more than the middle."""
    middle = middle_reward(page.replies)
    counts = Counter((reply.our_verdict, is_paid(reply, middle)) for reply in page.replies)
    rows = []
    for verdict, name in VERDICT_NAMES.items():
        cells = [f"{counts[verdict, paid]:,}" for paid in (True, False, None)]
        rows.append([f"{name}, by our checker", *cells])
    return rows


def groups(page: PageReplies) -> Markup:
    """Render the groups with the most different rewards, each with the replies side by side."""
    all_groups = [replies for replies in page.groups().values() if len(replies) > 1]
    all_groups.sort(key=_spread, reverse=True)
    shown_groups = []
    for replies in all_groups[:MOST_GROUPS]:
        chips = []
        for reply in replies[:MOST_IN_GROUP]:
            facts = [f"{page.length(reply):,} {page.unit}"]
            if reply.advantage is not None:
                facts.append(f"advantage {write_value(reply.advantage, 'number')}")
            if reply.answer is not None:
                facts.append(f"answer {reply.answer}"[:EXCERPT])
            if reply.is_cut:
                facts.append("cut")
            chips.append(
                {
                    "number": reply.number,
                    # Names of CSS classes have no spaces.
                    "verdict": VERDICT_NAMES[reply.is_right].replace(" ", "-"),
                    "text": f"{SIGNS[reply.is_right]} {_reward(reply)}",
                    "note": "\n".join(facts),
                }
            )
        step = replies[0].step
        shown_groups.append(
            {
                "question": _shortened(replies[0].question),
                "step": "" if step is None else f"step {step:,}",
                "replies": chips,
                "left_out": max(0, len(replies) - MOST_IN_GROUP),
            }
        )
    return render(
        "groups.html",
        groups=shown_groups,
        num_groups=len(all_groups),
        num_dead=len(dead_groups(page)),
    )


def _spread(replies: Sequence[PageReply]) -> float:
    # A group without two rewards has nothing to compare, and comes last.
    rewards = [reply.reward for reply in replies if reply.reward is not None]
    return pstdev(rewards) if len(rewards) > 1 else 0.0
