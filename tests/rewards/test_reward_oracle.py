"""v2, win rate and win minus loss against the formulas, written out a second time.

The second time is slow and plain: it works on the lines as they were drawn, parses nothing, knows
`shown` from the schedule alone, and walks over all lines anew for every value.
"""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript
from debate_rewards import V2, WinMinusLoss, WinRate

Key = tuple[int, int]
Said = tuple[int, str, int]
NO_SOLUTION = "<comparison>\nAgent 0 > Agent 1\nAgent 1 = Agent 2\n</comparison>"
"""A failed turn, whose lines must not count."""


@dataclass(frozen=True)
class Drawn:
    """A debate as drawn: what each turn compared, None for a turn without a solution."""

    n: int
    schedule: str
    turns: dict[Key, list[Said] | None]

    def transcript(self) -> Transcript:
        turns = []
        for (agent, round_), said in self.turns.items():
            lines = "\n".join(f"Agent {a} {op} Agent {b}" for a, op, b in said or ())
            text = f"<solution>s</solution><evaluation>e</evaluation><comparison>\n{lines}"
            text = NO_SOLUTION if said is None else text
            turns.append({"agent": agent, "round": round_, "text": text})
        protocol = {"num_agents": self.n, "schedule": self.schedule}
        return from_json({"question": {"text": "?"}, "protocol": protocol, "turns": turns})

    def shown(self, judge: Key) -> list[Key]:
        return [
            (a, r)
            for a, r in self.turns
            if a != judge[0]
            and (r < judge[1] or (self.schedule == "sequential" and r == judge[1] and a < judge[0]))
        ]

    def latest(self, judge: Key, agent: int) -> Key | None:
        rounds = [r for a, r in self.shown(judge) if a == agent]
        return (agent, max(rounds)) if rounds else None

    def lines(self, judge: Key) -> list[Said]:
        """The lines of a turn that are about two other agents of this debate, `<` turned round."""
        said = self.turns[judge] or []
        turned = [(b, ">", a) if op == "<" else (a, op, b) for a, op, b in said]
        return [
            (a, op, b)
            for a, op, b in turned
            if a != b and judge[0] not in (a, b) and a < self.n and b < self.n
        ]


@st.composite
def debates(draw: st.DrawFn) -> Drawn:
    n = draw(st.integers(2, 7))
    rounds = draw(st.integers(1, 3))
    schedule = draw(st.sampled_from(["parallel", "sequential"]))
    line = st.tuples(st.integers(0, n), st.sampled_from("><="), st.integers(0, n))
    said = st.one_of(st.lists(line, max_size=5), st.lists(line, max_size=5), st.none())
    keys = [(agent, round_) for round_ in range(rounds) for agent in range(n)]
    keys = keys[: draw(st.integers(1, len(keys)))]
    return Drawn(n, schedule, {key: draw(said) for key in keys})


def one_a_pair(lines: list[Said]) -> list[Said]:
    """Equal lines on a pair once; a pair with different lines not at all."""
    kept = []
    for a, _, b in lines:
        readings = {
            (x, o, y) if o == ">" else (min(x, y), "=", max(x, y))
            for x, o, y in lines
            if {x, y} == {a, b}
        }
        if len(readings) == 1 and readings.isdisjoint(kept):
            kept += readings
    return kept


def counted(debate: Drawn, judge: Key, duplicates: str) -> list[tuple[Key, str, Key]]:
    """The votes of v2: lines on the latest shown turns, if neither of these failed."""
    votes = []
    for a, op, b in debate.lines(judge):
        left, right = debate.latest(judge, a), debate.latest(judge, b)
        if left and right and debate.turns[left] is not None and debate.turns[right] is not None:
            votes.append((a, op, b))
    votes = one_a_pair(votes) if duplicates == "one" else votes
    return [(debate.latest(judge, a), op, debate.latest(judge, b)) for a, op, b in votes]  # type: ignore[misc]


def oracle_generator(debate: Drawn, options: dict[str, Any]) -> dict[Key, float | None]:
    values: dict[Key, float | None] = {}
    for turn, said in debate.turns.items():
        up = down = 0.0
        for judge in debate.turns:
            for left, op, right in counted(debate, judge, options["duplicates"]):
                if op == "=" and turn in (left, right) and options["ties"] == "half":
                    up, down = up + 0.5, down + 0.5
                up += op == ">" and left == turn
                down += op == ">" and right == turn
        unvoted = {"mask": None, "zero": 0.0, "literal": -1.0}[options["unvoted"]]
        value = 2 * up / (up + down) - 1 if up + down else unvoted
        values[turn] = -1.0 if said is None else value
    return values


def oracle_judge(debate: Drawn, options: dict[str, Any]) -> dict[Key, float | None]:
    values: dict[Key, float | None] = {}
    for judge, said in debate.turns.items():
        if said is None:
            continue
        earned = []
        for left, op, right in counted(debate, judge, options["duplicates"]):
            lead = 0
            for other in debate.turns:
                if options["consensus"] == "leave_one_out" and other[0] == judge[0]:
                    continue
                for vote in counted(debate, other, options["duplicates"]):
                    lead += (vote == (left, ">", right)) - (vote == (right, ">", left))
            if op == ">" and lead:
                earned.append(1.0 if lead > 0 else -1.0)
        values[judge] = sum(earned) / len(earned) if earned else None
        valid = {a for a, r in debate.shown(judge) if debate.turns[a, r] is not None}
        about_failed = any(
            (left := debate.latest(judge, a))
            and (right := debate.latest(judge, b))
            and None in (debate.turns[left], debate.turns[right])
            for a, _, b in debate.lines(judge)
        )
        votes = counted(debate, judge, options["duplicates"])
        if len(valid) >= 2 and not votes and not about_failed:
            values[judge] = -0.5
    return values


def oracle_pairwise(debate: Drawn, duplicates: str, signed: bool) -> list[float]:
    """The formulas note's reward functions 1 and 2, with our rule for lines about failed turns."""
    returns = []
    for i in range(debate.n):
        won = votes = 0.0
        for u, said in debate.turns.items():
            lines = [
                line
                for line in debate.lines(u)
                if all(
                    (at := debate.latest(u, agent)) is None or debate.turns[at] is not None
                    for agent in (line[0], line[2])
                )
            ]
            for a, op, b in one_a_pair(lines) if duplicates == "one" else lines:
                if said is None or i not in (a, b):
                    continue
                votes += 1
                if op == "=":
                    won += 0 if signed else 0.5
                else:
                    won += (1 if i == a else -1) if signed else i == a
        failures = sum(1 for (a, _), said in debate.turns.items() if a == i and said is None)
        returns.append((won / votes if votes else 0.0) - failures)
    return returns


OPTIONS = st.fixed_dictionaries(
    {
        "ties": st.sampled_from(["half", "ignore"]),
        "duplicates": st.sampled_from(["one", "count"]),
        "unvoted": st.sampled_from(["mask", "zero", "literal"]),
        "consensus": st.sampled_from(["leave_one_out", "inclusive"]),
    }
)


@settings(max_examples=150, deadline=None)
@given(debates(), OPTIONS)
def test_v2_is_the_formula_for_any_debate(debate: Drawn, options: dict[str, Any]) -> None:
    (score,) = V2(**options)([debate.transcript()])
    for stream, oracle in (("generator", oracle_generator), ("judge", oracle_judge)):
        found = {(c.agent, c.round): c.value for c in score.credits if c.stream == stream}
        assert found == pytest.approx(oracle(debate, options))


@settings(max_examples=100, deadline=None)
@given(debates(), st.sampled_from(["one", "count"]))
def test_pairwise_is_the_formula_for_any_debate(debate: Drawn, duplicates: Any) -> None:
    transcript = debate.transcript()
    (rate,) = WinRate(duplicates=duplicates)([transcript])
    assert list(rate.agents) == pytest.approx(oracle_pairwise(debate, duplicates, signed=False))
    (signed,) = WinMinusLoss(duplicates=duplicates)([transcript])
    assert list(signed.agents) == pytest.approx(oracle_pairwise(debate, duplicates, signed=True))


@settings(max_examples=50, deadline=None)
@given(debates())
def test_renaming_the_agents_renames_the_values(debate: Drawn) -> None:
    """No value depends on which side of a line, or under which number, an agent stands."""
    n = debate.n
    turns = {
        (n - 1 - agent, round_): None
        if said is None
        else [
            (
                n - 1 - b if b < n else b,
                {">": "<", "<": ">", "=": "="}[op],
                n - 1 - a if a < n else a,
            )
            for a, op, b in said
        ]
        for (agent, round_), said in debate.turns.items()
    }
    if debate.schedule == "parallel":
        mirrored = Drawn(n, "parallel", turns)
        (plain,), (other,) = V2()([debate.transcript()]), V2()([mirrored.transcript()])
        values = {(c.agent, c.round, c.stream): c.value for c in plain.credits}
        assert values == {(n - 1 - c.agent, c.round, c.stream): c.value for c in other.credits}
