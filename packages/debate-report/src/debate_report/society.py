"""Influence between agents in recorded debates: changed answers and votes."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from markupsafe import Markup

from debate_protocol.types import TurnKey
from debate_report.charts import Chart, Series, line_chart
from debate_report.debates import Recorded, states
from debate_report.number_texts import write_value
from debate_report.page_templates import render
from debate_report.timeline import plain_axis
from debate_rewards.vote_metrics import successive

MAX_GROUPS = 12
MAX_AGENTS = 12
MAX_ROUNDS = 12
STATES = ("right", "wrong", "not known")
# The last ones; earlier ones are folded.
OPEN_PHASES = 2


def society(recorded: Sequence[Recorded]) -> Markup:
    """Render figures of the recorded debates of each phase."""
    debates_by_phase: dict[str, list[Recorded]] = {}
    for debate in recorded:
        if debate.transcript.protocol.num_agents > 1:
            debates_by_phase.setdefault(debate.phase, []).append(debate)
    phases = list(debates_by_phase)
    groups = []
    for phase in phases[-MAX_GROUPS:]:
        debates = debates_by_phase[phase]
        groups.append(
            {
                "name": phase,
                "debates": len(debates),
                "demonstrated": debates[0].demonstrated,
                "folded": phase not in phases[-OPEN_PHASES:],
                "rounds": list(_rounds(debates)),
                "chart": _chart(debates),
                "votes": _votes(debates),
            }
        )
    return render("society.html", groups=groups, left_out=max(0, len(phases) - MAX_GROUPS))


def _share(part: int, total: int) -> str:
    return write_value(part / total, "share") if total else "–"


def _rounds(debates: Sequence[Recorded]) -> Iterator[list[str]]:
    """Yield the table row of each round; answers turn right or wrong from the round before."""
    num_rounds = 1 + max(debate.read.last_round for debate in debates)
    for round_number in range(min(MAX_ROUNDS, num_rounds)):
        verdicts = []
        lengths = []
        num_debates = 0
        num_agreed = 0
        after_right: list[bool] = []
        after_wrong: list[bool] = []
        for debate in debates:
            round_states = [state for state in states(debate) if state[0].round == round_number]
            verdicts += [verdict for _, _, verdict in round_states]
            num_debates += bool(round_states)
            answers = {answer for _, answer, _ in round_states}
            num_agreed += len(answers) == 1 and None not in answers
            for key, turn in debate.read.turns.items():
                if key.round == round_number and turn.turn.token_counts:
                    lengths.append(turn.turn.token_counts[1])
            for was_right, is_right in _steps_to(debate, round_number):
                if was_right:
                    after_right.append(is_right)
                else:
                    after_wrong.append(is_right)
        known_verdicts = [verdict for verdict in verdicts if verdict in STATES]
        yield [
            f"{round_number + 1}",
            f"{len(verdicts):,}",
            _share(known_verdicts.count("right"), len(known_verdicts)),
            _share(after_wrong.count(True), len(after_wrong)),
            _share(after_right.count(False), len(after_right)),
            _share(num_agreed, num_debates),
            f"{fmean(lengths):.0f}" if lengths else "–",
        ]


def _steps_to(debate: Recorded, round_number: int) -> Iterator[tuple[bool, bool]]:
    """Yield whether an agent's answer was right in its turn before, and is right in this round.

    Steps between two uncheckable answers are left out.
    """
    for key_before, key in successive(debate.answers):
        if key.round != round_number:
            continue
        before = debate.verdicts.get(key_before)
        now = debate.verdicts.get(key)
        is_known = before not in (None, "unverifiable") or now not in (None, "unverifiable")
        if is_known:
            yield before == "right", now == "right"


def _chart(debates: Sequence[Recorded]) -> Markup:
    """Draw the shares of right and wrong answers by round; nothing for a single round."""
    counts: dict[int, Counter[str]] = {}
    for debate in debates:
        for key, _, verdict in states(debate):
            state = verdict if verdict is not None and verdict in STATES else "not known"
            counts.setdefault(key.round + 1, Counter())[state] += 1
    if len(counts) < 2:
        return Markup()
    lines = []
    for state in STATES:
        points = []
        for round_number, round_counts in sorted(counts.items()):
            points.append((round_number, round_counts[state] / round_counts.total()))
        if any(share for _, share in points):
            lines.append(Series(state, tuple(points)))
    chart = Chart(title="Answers by round", note="share of answers", series=lines, form="share")
    return line_chart(chart, plain_axis([*counts], "round"))


def _votes(debates: Sequence[Recorded]) -> list[list[str]]:
    """Build the table of judges: accuracy, share of `=`, and how often each other agent won."""
    # A win counts 2 and a tie 1, so that all counts are whole.
    points_won: Counter[tuple[int, int]] = Counter()
    num_votes_about: Counter[tuple[int, int]] = Counter()
    num_votes: Counter[int] = Counter()
    num_equal: Counter[int] = Counter()
    num_checked: Counter[int] = Counter()
    points_right: Counter[int] = Counter()
    for debate in debates:
        for judge, left, op, right in _votes_of(debate):
            is_equal = op == "="
            if is_equal:
                points_won[judge, left.agent] += 1
                points_won[judge, right.agent] += 1
            else:
                # Votes are read with the better turn on the left.
                points_won[judge, left.agent] += 2
            num_votes_about[judge, left.agent] += 1
            num_votes_about[judge, right.agent] += 1
            num_votes[judge] += 1
            num_equal[judge] += is_equal
            # A vote can be right where one of the two answers is right and the other one wrong.
            verdicts = (debate.verdicts.get(left), debate.verdicts.get(right))
            if set(verdicts) == {"right", "wrong"}:
                num_checked[judge] += 1
                if is_equal:
                    points_right[judge] += 1
                elif verdicts[0] == "right":
                    points_right[judge] += 2
    all_agents = {agent for judge_and_agent in num_votes_about for agent in judge_and_agent}
    agents = sorted(all_agents)[:MAX_AGENTS]
    if not agents:
        return []
    table = [["judge", "accuracy", "=", *(f"for {agent}" for agent in agents)]]
    for judge in agents:
        row = [
            f"{judge}",
            _share(points_right[judge], 2 * num_checked[judge]),
            _share(num_equal[judge], num_votes[judge]),
        ]
        for agent in agents:
            row.append(_share(points_won[judge, agent], 2 * num_votes_about[judge, agent]))
        table.append(row)
    return table


def _votes_of(debate: Recorded) -> Iterator[tuple[int, TurnKey, str, TurnKey]]:
    """Yield the votes about turns shown to the judge: judge, left turn, sign, right turn."""
    for judge, turn in debate.read.judges.items():
        judged_turns = debate.read.judged_by(turn) if turn.parsed.comparisons else {}
        for vote in turn.parsed.comparisons:
            if vote.left in judged_turns and vote.right in judged_turns:
                left = judged_turns[vote.left].key
                right = judged_turns[vote.right].key
                yield judge.agent, left, vote.op, right
