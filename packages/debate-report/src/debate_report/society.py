"""What agents do to each other in recorded debates: who changes an answer, who votes for whom."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from markupsafe import Markup

from debate_report.debates import Recorded, states
from debate_report.timeline import render, write_value

MAX_GROUPS, MAX_AGENTS, MAX_ROUNDS = 12, 12, 12
STATES = ("right", "wrong", "none")
"""Of an answer: `none` is not readable, or not known to be right or wrong."""
HEIGHT, BAR, STEP, BELOW = 140, 44, 150, 18
"""Of the flow in pixels: `BELOW` the bars stand the names of rounds."""
OPEN_PHASES = 2
"""Of each run: the last ones; earlier ones are folded."""


def society(found: Sequence[Recorded], names: Sequence[str]) -> Markup:
    """Return figures of each phase, of the debates that were recorded in it.

    Args:
        found: All recorded debates.
        names: Of their runs.
    """
    groups: dict[tuple[int, str], list[Recorded]] = {}
    for one in found:
        if one.transcript.protocol.num_agents > 1:
            groups.setdefault((one.run, one.phase), []).append(one)
    several = len(names) > 1
    own_phases = (
        [group for group in groups if group[0] == run] for run in sorted({run for run, _ in groups})
    )
    last = {group for phases in own_phases for group in phases[-OPEN_PHASES:]}
    shown = [
        {
            "name": f"{names[run]}: {phase}" if several else phase,
            "debates": len(own),
            "demonstrated": own[0].demonstrated,
            "folded": (run, phase) not in last,
            "rounds": list(_rounds(own)),
            "falls": list(_falls(own)),
            "flow": _flow(own),
            "changes": _changes(own),
            "votes": _votes(own),
        }
        for (run, phase), own in list(groups.items())[-MAX_GROUPS:]
    ]
    return render("society.html", groups=shown, left_out=max(0, len(groups) - MAX_GROUPS))


def _share(part: int, whole: int) -> str:
    return write_value(part / whole, "share") if whole else "–"


def _rounds(found: Sequence[Recorded]) -> Iterator[list[str]]:
    """Yield of each round: turns, right answers, debates in which all agree, length of replies."""
    for number in range(min(MAX_ROUNDS, 1 + max(one.read.last_round for one in found))):
        verdicts, agreed, held, lengths = list[str | None](), 0, 0, list[int]()
        for one in found:
            own = [(answer, verdict) for key, answer, verdict in states(one) if key.round == number]
            verdicts += [verdict for _, verdict in own]
            held += bool(own)
            answers = {answer for answer, _ in own}
            agreed += len(answers) == 1 and None not in answers
            spoken = [turn for key, turn in one.read.turns.items() if key.round == number]
            for turn in spoken:
                counts = turn.turn.token_counts
                starts = one.credit.get(turn.key, {}).get("starts") or []
                if counts is not None or starts:
                    lengths.append(len(starts) if counts is None else counts[1])
        known = [verdict for verdict in verdicts if verdict in ("right", "wrong")]
        right = _share(known.count("right"), len(known))
        length = f"{fmean(lengths):.0f}" if lengths else "–"
        yield [f"{number + 1}", f"{len(verdicts):,}", right, _share(agreed, held), length]


def _moves(found: Sequence[Recorded]) -> Iterator[tuple[int, int, str, str, bool]]:
    """Yield each agent's steps to the next round: agent, round, states, whether it changed."""
    for one in found:
        own = {key: (answer, verdict) for key, answer, verdict in states(one)}
        for key, (answer, verdict) in own.items():
            after = own.get(key._replace(round=key.round + 1))
            if after is not None:
                kinds = (v if v in ("right", "wrong") else "none" for v in (verdict, after[1]))
                before, then = kinds
                yield key.agent, key.round, before, then, answer != after[0]


def _falls(found: Sequence[Recorded]) -> Iterator[str]:
    """Yield why answers of a round are right less often than before: what became of right ones."""
    last = min(MAX_ROUNDS, 1 + max(one.read.last_round for one in found))
    for number in range(1, last):
        steps = [move for one in found for move in _steps_to(one, number)]
        right = sum(was for was, _ in steps)
        given_up = sum(was and not still for was, still in steps)
        mended = sum(still and not was for was, still in steps)
        if given_up > mended:
            yield (
                f"Round {number + 1} is right less often than round {number} "
                f"({_share(right - given_up + mended, len(steps))} after "
                f"{_share(right, len(steps))}): of {right:,} right answers {given_up:,} were given "
                f"up ({_share(given_up, right)}), of {len(steps) - right:,} others {mended:,} "
                f"turned right ({_share(mended, len(steps) - right)})."
            )


def _steps_to(one: Recorded, number: int) -> Iterator[tuple[bool, bool]]:
    """Yield of each agent's step to a round whether its answer was right and is right."""
    for key in one.answers:
        before = key._replace(round=key.round - 1)
        known = {one.verdicts.get(before), one.verdicts.get(key)} - {None, "unverifiable"}
        if key.round == number and before in one.answers and known:
            yield one.verdicts.get(before) == "right", one.verdicts.get(key) == "right"


def _flow(found: Sequence[Recorded]) -> dict[str, object]:
    """Return bars of each round by state, and bands from each state to that of the next round."""
    moves = Counter((number, before, after) for _, number, before, after, _ in _moves(found))
    last = min(MAX_ROUNDS, 1 + max((number for number, _, _ in moves), default=-1))
    bars, bands = [], []
    heights: list[dict[str, tuple[float, float]]] = []
    for number in range(last + 1):
        own = Counter[str]()
        for (at, before, after), count in moves.items():
            own[before] += count * (at == number)
            own[after] += count * (at == number - 1 == last - 1)
        total, top, placed = sum(own.values()) or 1, 0.0, {}
        for state in STATES:
            size = (HEIGHT) * own[state] / total
            placed[state] = (top, size)
            if own[state]:
                title = f"round {number + 1}, {state}: {own[state]:,}"
                said = f"{100 * own[state] / total:.0f} %" if size >= 13 else ""
                bars.append((number * STEP, round(top, 1), round(size, 1), state, title, said))
            top += size
        heights.append(placed)
    for number in range(last):
        left = {state: place[0] for state, place in heights[number].items()}
        right = {state: place[0] for state, place in heights[number + 1].items()}
        total = sum(count for (at, _, _), count in moves.items() if at == number) or 1
        for before in STATES:
            for after in STATES:
                count = moves[number, before, after]
                if not count:
                    continue
                size = (HEIGHT) * count / total
                x, end = number * STEP + BAR, (number + 1) * STEP
                a, b = left[before], right[after]
                path = f"M{x},{a:.1f}L{end},{b:.1f}L{end},{b + size:.1f}L{x},{a + size:.1f}Z"
                left[before] += size
                right[after] += size
                title = f"round {number + 1} to {number + 2}: {before} → {after}: {count:,}"
                bands.append((path, after if before != after else "kept", title))
    return {
        "width": last * STEP + BAR,
        "height": HEIGHT + BELOW,
        "bars": bars,
        "bands": bands,
        "rounds": [(number * STEP + BAR / 2, number + 1) for number in range(last + 1)],
    }


def _changes(found: Sequence[Recorded]) -> list[list[str]]:
    """Return of each agent how often it kept or changed an answer between two rounds."""
    counts: dict[int, Counter[str]] = {}
    for agent, _, before, after, changed in _moves(found):
        own = counts.setdefault(agent, Counter())
        own["all"] += 1
        kind = f"{before} → {after}"
        own[kind if before != after else f"{kind}, changed" if changed else "kept"] += 1
    columns = ("kept", "right → wrong", "wrong → right", "wrong → wrong, changed")
    return [
        [f"agent {agent}", *(_share(own[name], own["all"]) for name in columns), f"{own['all']:,}"]
        for agent, own in sorted(counts.items())[:MAX_AGENTS]
    ]


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
