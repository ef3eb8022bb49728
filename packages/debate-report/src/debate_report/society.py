"""What agents do to each other in recorded debates: who changes an answer, who votes for whom."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from markupsafe import Markup

from debate_report.charts import Chart, Series, line_chart
from debate_report.debates import Recorded, states
from debate_report.number_texts import write_value
from debate_report.page_templates import render
from debate_report.timeline import plain_axis
from debate_rewards.vote_metrics import successive

MAX_GROUPS, MAX_AGENTS, MAX_ROUNDS = 12, 12, 12
STATES = ("right", "wrong", "not known")
OPEN_PHASES = 2
"""The last ones; earlier ones are folded."""


def society(found: Sequence[Recorded]) -> Markup:
    """Return figures of each phase, of the debates that were recorded in it."""
    groups: dict[str, list[Recorded]] = {}
    for one in found:
        if one.transcript.protocol.num_agents > 1:
            groups.setdefault(one.phase, []).append(one)
    shown = [
        {
            "name": phase,
            "debates": len(own),
            "demonstrated": own[0].demonstrated,
            "folded": phase not in list(groups)[-OPEN_PHASES:],
            "rounds": list(_rounds(own)),
            "chart": _chart(own),
            "votes": _votes(own),
        }
        for phase, own in list(groups.items())[-MAX_GROUPS:]
    ]
    return render("society.html", groups=shown, left_out=max(0, len(groups) - MAX_GROUPS))


def _share(part: int, whole: int) -> str:
    return write_value(part / whole, "share") if whole else "–"


def _rounds(found: Sequence[Recorded]) -> Iterator[list[str]]:
    """Yield the row of each round; answers turn right or wrong from the round before."""
    for number in range(min(MAX_ROUNDS, 1 + max(one.read.last_round for one in found))):
        verdicts, agreed, held, lengths = list[str | None](), 0, 0, list[int]()
        steps = [step for one in found for step in _steps_to(one, number)]
        for one in found:
            own = [(answer, verdict) for key, answer, verdict in states(one) if key.round == number]
            verdicts += [verdict for _, verdict in own]
            held += bool(own)
            answers = {answer for answer, _ in own}
            agreed += len(answers) == 1 and None not in answers
            spoken = [turn.turn for key, turn in one.read.turns.items() if key.round == number]
            lengths += [turn.token_counts[1] for turn in spoken if turn.token_counts]
        known = [verdict for verdict in verdicts if verdict in STATES]
        was_right = [still for was, still in steps if was]
        was_not = [now for was, now in steps if not was]
        yield [
            f"{number + 1}",
            f"{len(verdicts):,}",
            _share(known.count("right"), len(known)),
            _share(sum(was_not), len(was_not)),
            _share(was_right.count(False), len(was_right)),
            _share(agreed, held),
            f"{fmean(lengths):.0f}" if lengths else "–",
        ]


def _steps_to(one: Recorded, number: int) -> Iterator[tuple[bool, bool]]:
    """Yield of each agent's step to a round whether its answer was right and is right."""
    for before, key in successive(one.answers):
        known = {one.verdicts.get(before), one.verdicts.get(key)} - {None, "unverifiable"}
        if key.round == number and known:
            yield one.verdicts.get(before) == "right", one.verdicts.get(key) == "right"


def _chart(found: Sequence[Recorded]) -> Markup:
    """Return how many answers are right and wrong, round by round; nothing of one round."""
    counts: dict[int, Counter[str]] = {}
    for key, _, verdict in (state for one in found for state in states(one)):
        state = verdict if verdict in STATES else STATES[-1]
        counts.setdefault(key.round + 1, Counter())[str(state)] += 1
    if len(counts) < 2:
        return Markup()
    lines = [
        Series(state, tuple((at, own[state] / own.total()) for at, own in sorted(counts.items())))
        for state in STATES
        if any(own[state] for own in counts.values())
    ]
    chart = Chart("Answers by round", "share of answers", lines, "share")
    return line_chart(chart, plain_axis([*counts], "round"))


def _votes(found: Sequence[Recorded]) -> list[list[str]]:
    """Return of each judge: its accuracy, its share of `=`, and how often each other agent won."""
    won: Counter[tuple[int, int]] = Counter()
    cast: Counter[tuple[int, int]] = Counter()
    judged: Counter[tuple[int, str]] = Counter()
    for one in found:
        for judge, turn in one.read.judges.items():
            seen = one.read.judged_by(turn) if turn.parsed.comparisons else {}
            for vote in turn.parsed.comparisons:
                if vote.left not in seen or vote.right not in seen:
                    continue
                left, right = seen[vote.left].key, seen[vote.right].key
                won[judge.agent, left.agent] += 2 if vote.op == ">" else 1
                won[judge.agent, right.agent] += 0 if vote.op == ">" else 1
                for side in (left, right):
                    cast[judge.agent, side.agent] += 1
                judged[judge.agent, "all"] += 1
                judged[judge.agent, "equal"] += vote.op == "="
                known = {one.verdicts.get(left), one.verdicts.get(right)} == {"right", "wrong"}
                judged[judge.agent, "known"] += known
                points = 1 if vote.op == "=" else 2 * (one.verdicts.get(left) == "right")
                judged[judge.agent, "points"] += points * known
    seats = sorted({agent for pair in cast for agent in pair})[:MAX_AGENTS]
    rows = [["judge", "accuracy", "=", *(f"for {agent}" for agent in seats)]]
    for seat in seats:
        wins = [_share(won[seat, agent], 2 * cast[seat, agent]) for agent in seats]
        accuracy = _share(judged[seat, "points"], 2 * judged[seat, "known"])
        equal = _share(judged[seat, "equal"], judged[seat, "all"])
        rows.append([f"{seat}", accuracy, equal, *wins])
    return rows if seats else []
