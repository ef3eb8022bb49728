"""Debates drawn at random, and the formulas of vote rewards written a second time.

The second time is slow and plain: it reads the lines as they were drawn and parses nothing, knows
who was shown what from the schedule alone, and walks over all votes again for each value.
"""

from dataclasses import dataclass
from statistics import fmean

from hypothesis import strategies as st

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript

Key = tuple[int, int]
Line = tuple[int, str, int]
UNVOTED_VALUES = {"mask": None, "zero": 0.0, "literal": -1.0}


@dataclass(frozen=True)
class DrawnTurn:
    """A turn as drawn; a failed one has lines that must not count."""

    answer: str
    lines: tuple[Line, ...]
    failed: bool

    @property
    def text(self) -> str:
        lines = "\n".join(
            f"Agent {left} {verdict} Agent {right}" for left, verdict, right in self.lines
        )
        solution = "" if self.failed else f"<solution>{self.answer}</solution>"
        return f"{solution}<evaluation>e</evaluation><comparison>\n{lines}\n</comparison>"


@dataclass(frozen=True)
class Side:
    """One side of a vote: the agent, the turn that the judge was shown, and what it won."""

    agent: int
    turn: Key | None
    points: float


@dataclass(frozen=True)
class DrawnVote:
    judge: Key
    sides: tuple[Side, Side]

    @property
    def is_tie(self) -> bool:
        return self.sides[0].points == 0.5

    @property
    def is_seen(self) -> bool:
        return None not in (self.sides[0].turn, self.sides[1].turn)


@dataclass(frozen=True)
class DrawnDebate:
    num_agents: int
    schedule: str
    turns: dict[Key, DrawnTurn]

    def transcript(self) -> Transcript:
        turns = []
        for (agent, round_number), turn in self.turns.items():
            turns.append({"agent": agent, "round": round_number, "text": turn.text})
        question = {"text": "?", "meta": {"kind": "text"}}
        protocol = {"num_agents": self.num_agents, "schedule": self.schedule}
        return from_json({"question": question, "protocol": protocol, "turns": turns})

    def shown(self, judge: Key) -> list[Key]:
        """List the turns of others that were over before the judge's, or before it in its round."""
        keys = []
        for key in self.turns:
            is_earlier = key[1] < judge[1]
            is_before = self.schedule == "sequential" and key[1] == judge[1] and key[0] < judge[0]
            if key[0] != judge[0] and (is_earlier or is_before):
                keys.append(key)
        return keys

    def latest_shown(self, judge: Key, agent: int) -> Key | None:
        return max((key for key in self.shown(judge) if key[0] == agent), default=None)

    def is_about_failed(self, judge: Key, line: Line) -> bool:
        judged = [self.latest_shown(judge, agent) for agent in (line[0], line[2])]
        return any(key is not None and self.turns[key].failed for key in judged)

    def readable_lines(self, judge: Key) -> list[Line]:
        """List the lines about two other agents of the debate, the better agent first."""
        lines = []
        for left, verdict, right in self.turns[judge].lines:
            is_self = judge[0] in (left, right) or left == right
            if is_self or max(left, right) >= self.num_agents:
                continue
            if verdict == "<":
                lines.append((right, ">", left))
            elif verdict == "=":
                lines.append((min(left, right), "=", max(left, right)))
            else:
                lines.append((left, ">", right))
        return lines

    def votes(self, duplicates: str = "one") -> list[DrawnVote]:
        """List all votes, also those about agents that the judge was not shown."""
        votes = []
        for judge, turn in self.turns.items():
            lines = [] if turn.failed else self.readable_lines(judge)
            lines = [line for line in lines if not self.is_about_failed(judge, line)]
            if duplicates == "one":
                lines = without_repetitions(lines)
            for left, verdict, right in lines:
                points = 0.5 if verdict == "=" else 1.0
                sides = (
                    Side(left, self.latest_shown(judge, left), points),
                    Side(right, self.latest_shown(judge, right), 1 - points),
                )
                votes.append(DrawnVote(judge, sides))
        return votes

    def seen_votes(self, duplicates: str = "one") -> list[DrawnVote]:
        return [vote for vote in self.votes(duplicates) if vote.is_seen]


def without_repetitions(lines: list[Line]) -> list[Line]:
    """Count equal lines on a pair once, and a pair with different lines not at all."""
    readings: dict[frozenset[int], set[Line]] = {}
    for line in lines:
        readings.setdefault(frozenset((line[0], line[2])), set()).add(line)
    return [min(lines_of_pair) for lines_of_pair in readings.values() if len(lines_of_pair) == 1]


@st.composite
def drawn_debates(draw: st.DrawFn) -> DrawnDebate:
    num_agents = draw(st.integers(2, 6))
    lines = st.tuples(
        st.integers(0, num_agents), st.sampled_from("><="), st.integers(0, num_agents - 1)
    )
    turns = st.builds(
        DrawnTurn,
        answer=st.sampled_from("xyz"),
        lines=st.lists(lines, max_size=6).map(tuple),
        failed=st.sampled_from([False] * 6 + [True]),
    )
    num_turns = draw(st.integers(1, 3 * num_agents))
    keys = [(number % num_agents, number // num_agents) for number in range(num_turns)]
    schedule = draw(st.sampled_from(["parallel", "sequential"]))
    return DrawnDebate(num_agents, schedule, {key: draw(turns) for key in keys})


def share_won(sides: list[Side]) -> float | None:
    return fmean(side.points for side in sides) if sides else None


def generator_values(
    debate: DrawnDebate, ties: str, duplicates: str, unvoted: str
) -> dict[Key, float | None]:
    """Value each turn by 2·for / (for + against) − 1."""
    values: dict[Key, float | None] = {}
    for key, turn in debate.turns.items():
        sides = []
        for vote in debate.seen_votes(duplicates):
            if not (vote.is_tie and ties == "ignore"):
                sides += [side for side in vote.sides if side.turn == key]
        share = share_won(sides)
        values[key] = UNVOTED_VALUES[unvoted] if share is None else 2 * share - 1
        if turn.failed:
            values[key] = -1.0
    return values


def consensus_lead(votes: list[DrawnVote], vote: DrawnVote) -> int:
    """Count the votes with a strict vote on its pair, minus those against it."""
    lead = 0
    turns = [side.turn for side in vote.sides]
    for other in votes:
        other_turns = [side.turn for side in other.sides]
        if not other.is_tie:
            lead += (other_turns == turns) - (other_turns == turns[::-1])
    return lead


def judge_values(debate: DrawnDebate, consensus: str, duplicates: str) -> dict[Key, float | None]:
    """Value each judge by the mean of +1 with and −1 against the consensus on a pair."""
    values: dict[Key, float | None] = {}
    all_votes = debate.seen_votes(duplicates)
    for key, turn in debate.turns.items():
        if turn.failed:
            continue
        jury = all_votes
        if consensus == "leave_one_out":
            jury = [vote for vote in all_votes if vote.judge[0] != key[0]]
        judge_votes = [vote for vote in all_votes if vote.judge == key]
        leads = [consensus_lead(jury, vote) for vote in judge_votes if not vote.is_tie]
        signs = [1.0 if lead > 0 else -1.0 for lead in leads if lead]
        values[key] = fmean(signs) if signs else None

        valid_agents = {other[0] for other in debate.shown(key) if not debate.turns[other].failed}
        lines = debate.readable_lines(key)
        has_excuse = any(
            debate.is_about_failed(key, line)
            and debate.latest_shown(key, line[0])
            and debate.latest_shown(key, line[2])
            for line in lines
        )
        if len(valid_agents) >= 2 and not judge_votes and not has_excuse:
            values[key] = -0.5
    return values


def win_rates(debate: DrawnDebate, ties: str, duplicates: str) -> list[float | None]:
    """Compute the share of its votes that each agent won, None without votes."""
    rates = []
    for agent in range(debate.num_agents):
        sides = []
        for vote in debate.votes(duplicates):
            if not (vote.is_tie and ties == "ignore"):
                sides += [side for side in vote.sides if side.agent == agent]
        rates.append(share_won(sides))
    return rates


def num_failed(debate: DrawnDebate, agent: int) -> int:
    return sum(turn.failed for key, turn in debate.turns.items() if key[0] == agent)
