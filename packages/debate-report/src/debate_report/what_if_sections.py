"""The page of rewards on recorded debates or replies: a table, lazy policies, changed signs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from debate_protocol.types import Transcript
from debate_report.debates import Debates
from debate_report.number_texts import write_value
from debate_report.page_replies import page_replies_of
from debate_report.page_templates import render
from debate_report.what_if_replies import LAZY_POLICIES, TRUTH, compared_replies, lazy_values
from debate_rewards.reward import Reward
from debate_rewards.what_if import (
    HABITS,
    RewardReplay,
    SignChange,
    advice,
    what_if,
    write_r_squared,
)

EXCERPT = 600
# Rewards that are the truth: they follow it by definition.
TRUTHS = frozenset({TRUTH, "verifiable"})
RIGHTNESS_TEXTS = {True: "right", False: "wrong", None: "not known whether right"}


@dataclass(frozen=True, slots=True)
class ReplayChoices:
    """What is replayed, and how.

    Attributes:
        rewards: Rewards by name, the first compared with the others; replies of other programs have
            these beside what their file recorded.
        default_rewards: Those of debates where `rewards` has none.
        phase: Debates of this phase alone; `None` for all.
        seed: Repeats the resampling of the intervals.
        truth_gain: What verified answers would gain, to count seeds.
        deviation: Standard deviation over seeds of a difference of two arms.
    """

    rewards: Mapping[str, Reward]
    default_rewards: Mapping[str, Reward] = field(default_factory=dict)
    phase: str | None = None
    seed: int = 0
    truth_gain: float | None = None
    deviation: float | None = None


@dataclass(frozen=True, slots=True)
class Replays:
    """What each reward says of a file.

    Attributes:
        replays: One for each reward, in order.
        transcripts: The debates that were scored; groups of single replies are debates, too.
        truth: Who says which answers are right.
        lazy_head: Names of lazy policies.
        lazy_rows: The reward's name and what each policy earns.
        are_replies: Whether these are single replies rather than debates.
        choices: What was asked for.
    """

    replays: Sequence[RewardReplay]
    transcripts: Sequence[Transcript]
    truth: str
    lazy_head: Sequence[str]
    lazy_rows: Sequence[Sequence[str]]
    are_replies: bool
    choices: ReplayChoices


def replay(debates: Debates, choices: ReplayChoices) -> Replays:
    """Score the debates of a page under each reward, single replies by the file's own rewards.

    Raises:
        ValueError: A debate cannot be scored.
    """
    page = page_replies_of(debates.found)
    if page.replies:
        contract = debates.found[page.replies[0].number].transcript.protocol.contract
        compared = compared_replies(page, str(contract))
        reply_rewards = {**compared.rewards(), **choices.rewards}
        replays = what_if(
            compared.debates,
            reply_rewards,
            with_habits=False,
            seed=choices.seed,
            verdicts=compared.verdicts,
        )
        values = lazy_values(compared, reply_rewards)
        lazy_rows = [[name, *map(_cell, values[name].values())] for name in reply_rewards]
        truth = "Right and wrong are by our checker."
        if compared.num_by_file:
            num_judged = sum(map(len, compared.verdicts))
            truth = (
                f"Of {num_judged:,} verdicts {compared.num_by_file:,} are the file's own, where we "
                "cannot check: a reward that is this verdict follows it by definition."
            )
        return Replays(
            replays=replays,
            transcripts=compared.debates,
            truth=truth,
            lazy_head=list(LAZY_POLICIES),
            lazy_rows=lazy_rows,
            are_replies=True,
            choices=choices,
        )
    transcripts = []
    # Evaluations and demonstrations are not what a reward would have trained on.
    for debate in debates.found:
        is_chosen = choices.phase in (None, debate.phase)
        if is_chosen and not debate.evaluated and not debate.demonstrated:
            transcripts.append(debate.transcript)
    rewards = choices.rewards or choices.default_rewards
    replays = what_if(transcripts, rewards, seed=choices.seed) if transcripts else []
    lazy_rows = []
    for each in replays:
        # Rewards of answers alone have no value for a judge.
        if each.recorded_judging is not None:
            habits = (each.habits or {}).values()
            lazy_rows.append([each.name, *map(_cell, (each.recorded_judging, *habits))])
    return Replays(
        replays=replays,
        transcripts=transcripts,
        truth="Right and wrong are by our checker.",
        lazy_head=["as recorded", *HABITS],
        lazy_rows=lazy_rows,
        are_replies=False,
        choices=choices,
    )


def _cell(value: float | None) -> str:
    return "–" if value is None else write_value(value, "number")


def replay_facts(replays: Replays) -> Markup:
    """Render how many debates or replies were scored."""
    num_turns = sum(len(transcript.turns) for transcript in replays.transcripts)
    questions = {transcript.question.id for transcript in replays.transcripts}
    noun = "groups of replies" if replays.are_replies else "debates"
    facts = [(noun, f"{len(replays.transcripts):,}")]
    if not replays.are_replies:
        facts.append(("questions", f"{len(questions):,}"))
    facts.append(("replies" if replays.are_replies else "turns", f"{num_turns:,}"))
    facts.append(("rewards", f"{len(replays.replays):,}"))
    return render("facts.html", facts=facts)


def rewards_table(replays: Replays) -> Markup:
    """Render a row for each reward, below advice on the best follower of the truth."""
    usable = [each for each in replays.replays if each.problem is None]
    head = ["reward", "R² with truth [95 %]", "answers judged", "text with an advantage"]
    head.append("groups without" if replays.are_replies else "questions without")
    if not replays.are_replies:
        head.append("gradient by part")
    return render(
        "what_if.html",
        head=head,
        rows=[_row(each, with_parts=not replays.are_replies) for each in usable],
        headline=_headline(usable, replays.choices),
        advice=[
            line
            for each in usable[1:]
            if each.name not in TRUTHS
            for line in advice(each, replays.choices.truth_gain, replays.choices.deviation)
        ],
        problems=[
            f"{each.name}: no values: {each.problem}" for each in replays.replays if each.problem
        ],
        within="a group" if replays.are_replies else "a debate",
        truth=replays.truth,
    )


def _row(each: RewardReplay, *, with_parts: bool) -> list[str]:
    shares = (each.stream_shares or {}).items()
    cells = [
        each.name,
        write_r_squared(each),
        f"{each.num_answers:,}",
        write_value(each.signal, "share"),
        write_value(each.dead_questions, "share"),
    ]
    if with_parts:
        cells.append(", ".join(f"{name} {write_value(share, 'share')}" for name, share in shares))
    return cells


def _headline(usable: Sequence[RewardReplay], choices: ReplayChoices) -> str:
    """Say what the first reward can teach, and which other reward follows the truth better."""
    if not usable:
        return "No reward has a value here."
    lines = advice(usable[0], choices.truth_gain, choices.deviation)
    if not lines or usable[0].truth is None:
        return f"{usable[0].name}: what is right is not known, so nothing says what it would teach."
    rivals = [each for each in usable[1:] if each.truth is not None and each.name not in TRUTHS]
    best = max(rivals, key=lambda each: each.truth.value if each.truth else -1.0, default=None)
    # Beyond the interval of the first; a smaller lead may be chance.
    if best is not None and best.truth is not None and best.truth.value > usable[0].truth.high:
        lines.append(f"{best.name} follows it better, with R² {best.truth.value**2:.2f}")
    return ". ".join(lines) + "."


def lazy_policies(replays: Replays) -> Markup:
    """Render a reward's pay for not solving, or not reading."""
    note = (
        "The mean value of a judge: as recorded, and voting by a habit among the recorded peers. "
        "A reward that pays a habit as much as what was recorded does not pay for reading."
    )
    reason = "No reward here values judges: nobody could vote by a habit."
    if replays.are_replies:
        note = (
            "The mean over groups of what such a reply earned. Where a policy earns more than what "
            "was recorded, training will find it: longest replies that earn more grow longer."
        )
        reason = "No group has several replies with a value."
    return render(
        "lazy.html",
        head=["reward", *replays.lazy_head],
        rows=replays.lazy_rows,
        note=note,
        reason=reason,
    )


def sign_changes(replays: Replays) -> Markup:
    """Render advantages of opposite sign, three of each direction to read."""
    transcripts = {transcript.id: transcript for transcript in replays.transcripts}
    changes = []
    for each in replays.replays:
        disagreement = each.disagreement
        if disagreement is None:
            continue
        noun = "reply" if replays.are_replies else "turn"
        changes.append(
            {
                "name": f"{each.name}, beside {disagreement.other}",
                "text": f"{disagreement.num_changed:,} of {disagreement.num_turns:,} advantages "
                f"change their sign: what pushed a {noun} up under one pushes it down under the "
                "other.",
                "examples": [
                    _example(change, transcripts[change.debate], disagreement.other, each.name)
                    for change in disagreement.examples
                ],
            }
        )
    return render("sign_changes.html", changes=changes)


def _example(change: SignChange, transcript: Transcript, first: str, second: str) -> dict[str, str]:
    signs = [
        f"{name} {'up' if value > 0 else 'down'}"
        for name, value in ((first, change.first), (second, change.second))
    ]
    facts = [
        f"{transcript.id}, agent {change.key.agent}, round {change.key.round + 1}"
        if transcript.protocol.max_rounds > 1
        else f"{transcript.id}, reply {change.key.agent + 1}",
        f"answer {RIGHTNESS_TEXTS[change.is_right]}",
        *signs,
    ]
    # The end of a reply has its answer.
    text = change.text
    if len(text) > EXCERPT:
        text = f"… {text[-EXCERPT:]}"
    question = transcript.question.text
    return {
        "facts": " · ".join(facts),
        "question": question if len(question) <= EXCERPT else f"{question[:EXCERPT]} …",
        "text": text,
    }
