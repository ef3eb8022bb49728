"""Votes pooled by answer: a debate by hand, and a second reading of the definition.

The second reading is slow and plain. It knows who saw whom from the schedule, reads the lines as
they were drawn, and for each valued turn walks over all ballots of all other agents anew.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import pytest
from pydantic import ValidationError

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript
from debate_rewards import V2, BradleyTerry, WinMinusLoss, WinRate, get_reward

Key = tuple[int, int]
Said = tuple[int, str, int]
SILENT = ["", "", "", ""]
# Agents 0 and 1 begin with x, agent 2 with y, agent 3 with z; at the end agent 3 says x, too, and
# agent 2 what nobody judged.
ANSWERS = {(0, 0): "x", (1, 0): "x", (2, 0): "y", (3, 0): "z"}
ANSWERS |= {(0, 1): "x", (1, 1): "y", (2, 1): "new", (3, 1): "x"}
VOTES = ["A1>A2", "A0=A3", "A0>A1", "A2>A1"]
POINTS = {">": Fraction(1), "=": Fraction(1, 2), "<": Fraction(0)}


def generator(transcript: Transcript, reward: object) -> dict[Key, float | None]:
    (score,) = reward([transcript])  # type: ignore[operator]
    return {(c.agent, c.round): c.value for c in score.credits if c.stream == "generator"}


def test_v2_by_hand_when_votes_are_pooled_by_answer(hold):
    # Votes for : against by judge and answer:
    #   judge 0: x 1:0, y 0:1            judge 1: x ½:½, z ½:½
    #   judge 2: x 1:1 (two turns of x)  judge 3: y 1:0, x 0:1
    # All on x 2½:2½, on y 1:1, on z ½:½. Each turn without its author's votes:
    #   (0, 0), (0, 1) x: 1½:2½ of 4 -> 2·1.5/4 − 1 = −.25
    #   (1, 0) x: 2:2 -> 0               (1, 1) y: 1:1 -> 0
    #   (2, 0) y: 1:1 -> 0               (2, 1) new: nobody voted on it
    #   (3, 0) z: ½:½ -> 0               (3, 1) x: 2½:1½ of 4 -> .25
    debate = hold(SILENT, VOTES, n=4, answers=ANSWERS)
    assert generator(debate, V2(pool="answer")) == {
        (0, 0): -0.25,
        (1, 0): 0.0,
        (2, 0): 0.0,
        (3, 0): 0.0,
        (0, 1): -0.25,
        (1, 1): 0.0,
        (2, 1): None,
        (3, 1): 0.25,
    }


def test_win_rate_by_hand_when_votes_are_pooled_by_answer(hold):
    # Without their own votes, on all answers that each gave:
    #   agent 0 (x): 1½ of 4             agent 1 (x, y): x 2:2, y 1:1 -> 3 of 6
    #   agent 2 (y, new): y 1 of 2       agent 3 (z, x): z ½:½, x 2½:1½ -> 3 of 5
    debate = hold(SILENT, VOTES, n=4, answers=ANSWERS)
    (score,) = WinRate(pool="answer")([debate])
    assert score.agents == pytest.approx((0.375, 0.5, 0.5, 0.6))
    (score,) = WinMinusLoss(pool="answer")([debate])
    assert score.agents == pytest.approx((-0.25, 0.0, 0.0, 0.2))


def test_bradley_terry_by_hand_when_votes_are_pooled_by_answer(hold):
    # n wins of x over y and nothing else: x has w, y 1/w, n + p = n·w²/(w² + 1) + 2p·w/(w + 1).
    # Agents 0 and 1 (x) voted for x over y once each. Without the own vote that is n = 1:
    # w = 3 at p = .2 (1.2 = .9 + .3), and the value is (3 − 1)/(3 + 1).
    # For agents 2 (y) and 3 (x), who cast no vote on y, it is n = 2: w = 3 at p = .4.
    answers = {(a, r): "y" if a == 2 else "x" for a in range(4) for r in range(2)}
    debate = hold(SILENT, ["A1>A2", "A0>A2", "A0=A3", "A1=A0"], n=4, answers=answers)
    values = generator(debate, BradleyTerry(pool="answer", prior=0.2))
    assert [values[a, r] for a in (0, 1) for r in (0, 1)] == pytest.approx([0.5] * 4)
    values = generator(debate, BradleyTerry(pool="answer", prior=0.4))
    assert [values[3, r] for r in (0, 1)] == pytest.approx([0.5] * 2)
    assert [values[2, r] for r in (0, 1)] == pytest.approx([-0.5] * 2)


def test_nobody_gains_by_voting_for_the_own_answer(hold):
    # Agent 3 repeats the answer of agents 0 and 1, and praises it without measure.
    answers = {(a, r): "y" if a == 2 else "x" for a in range(4) for r in range(2)}
    votes = ["A1>A2", "A2>A0", "A0>A1"]
    modest = hold(SILENT, [*votes, ""], n=4, answers=answers)
    praising = hold(SILENT, [*votes, "A0>A2; A1>A2"], n=4, answers=answers)
    for name in ("v2", "bradley_terry", "win_rate"):
        reward = get_reward(name, pool="answer")
        before, after = reward([modest])[0], reward([praising])[0]
        assert before.agents[3] == after.agents[3]
        assert before.agents[0] < after.agents[0]


def test_answers_are_pooled_as_values_and_unread_ones_stay_alone(hold):
    # 1/2 and 0.5 are one answer; agents 1 and 3 give texts that are no number.
    answers = {(0, 0): "1/2", (1, 0): "many", (2, 0): "0.5", (3, 0): "some"}
    debate = hold(SILENT, ["A1>A3", "", "", "A2>A1"], n=4, answers=answers, meta={"kind": "number"})
    assert generator(debate, V2(pool="answer")) == {
        (0, 0): 1.0,
        (1, 0): 0.0,
        (2, 0): 1.0,
        (3, 0): -1.0,
        **{(agent, 1): None for agent in range(4)},
    }


def test_equal_answers_of_one_debate_say_nothing_about_another(hold):
    first = hold(SILENT, ["A1>A2", "", "", ""], n=4, id="a")
    second = hold(SILENT, ["", "", "", ""], n=4, id="b")
    scores = V2(pool="answer")([first, second])
    assert [score.agents[1] for score in scores] == [1.0, None]


def test_pool_of_answers_beside_a_strength_of_agents_is_refused():
    with pytest.raises(ValidationError, match="expected unit turn with pool answer"):
        BradleyTerry(unit="agent", pool="answer")


@dataclass(frozen=True)
class Drawn:
    """A debate as drawn: the answer and the lines of each turn, None for a failed turn."""

    num_agents: int
    schedule: str
    turns: dict[Key, tuple[str, list[Said]] | None]

    def transcript(self) -> Transcript:
        turns = []
        for (agent, round_), spoken in self.turns.items():
            text = "nothing to read"
            if spoken is not None:
                answer, said = spoken
                lines = "\n".join(f"Agent {a} {op} Agent {b}" for a, op, b in said)
                text = f"<solution>{answer}</solution><evaluation>e</evaluation>"
                text += f"<comparison>\n{lines}\n</comparison>"
            turns.append({"agent": agent, "round": round_, "text": text})
        return from_json(
            {
                "question": {"text": "?", "meta": {"kind": "text"}},
                "protocol": {"num_agents": self.num_agents, "schedule": self.schedule},
                "turns": turns,
            }
        )

    def latest_shown(self, judge: Key, agent: int) -> Key | None:
        rounds = []
        for other, round_ in self.turns:
            is_earlier = round_ < judge[1]
            is_before = self.schedule == "sequential" and round_ == judge[1] and other < judge[0]
            if other == agent and (is_earlier or is_before):
                rounds.append(round_)
        return (agent, max(rounds)) if rounds else None

    def ballots(self, *, with_unseen: bool) -> Iterator[tuple[Key, list[Said]]]:
        """Yield the counted lines of each turn: one a pair, without contradictions."""
        for judge, spoken in self.turns.items():
            if spoken is None:
                continue
            verdicts: dict[tuple[int, int], set[str]] = {}
            for a, op, b in spoken[1]:
                if a == b or judge[0] in (a, b) or max(a, b) >= self.num_agents:
                    continue
                judged = [self.latest_shown(judge, agent) for agent in (a, b)]
                if not with_unseen and None in judged:
                    continue
                if any(key is not None and self.turns[key] is None for key in judged):
                    continue
                low_op = op if a < b else {">": "<", "<": ">", "=": "="}[op]
                verdicts.setdefault((min(a, b), max(a, b)), set()).add(low_op)
            yield judge, [(a, *ops, b) for (a, b), ops in verdicts.items() if len(ops) == 1]

    def answer(self, key: Key) -> str | None:
        spoken = self.turns[key]
        return None if spoken is None else spoken[0]

    def turn_share(self, turn: Key, ties: str) -> tuple[Fraction, int]:
        """Count the votes won, and all, by the answer of a turn."""
        won, num_votes = Fraction(0), 0
        for judge, lines in self.ballots(with_unseen=False):
            if judge[0] == turn[0]:
                continue
            for a, op, b in lines:
                if op == "=" and ties == "ignore":
                    continue
                for agent, gain in ((a, POINTS[op]), (b, 1 - POINTS[op])):
                    judged = self.latest_shown(judge, agent)
                    if judged is not None and self.answer(judged) == self.answer(turn):
                        won, num_votes = won + gain, num_votes + 1
        return won, num_votes

    def agent_share(self, agent: int, ties: str) -> tuple[Fraction, int]:
        """Count the votes won, and all, by any answer of an agent."""
        own = {self.answer(key) for key in self.turns if key[0] == agent} - {None}
        won, num_votes = Fraction(0), 0
        for judge, lines in self.ballots(with_unseen=True):
            for a, op, b in lines:
                if judge[0] == agent or (op == "=" and ties == "ignore"):
                    continue
                for named, gain in ((a, POINTS[op]), (b, 1 - POINTS[op])):
                    judged = self.latest_shown(judge, named)
                    if named == agent if judged is None else self.answer(judged) in own:
                        won, num_votes = won + gain, num_votes + 1
        return won, num_votes

    def strengths(self, agent: int, prior: float) -> dict[str | None, float]:
        """Fit the answers' strengths to the votes of other agents, by Zermelo's iteration."""
        won: dict[str | None, float] = {}
        games: list[tuple[str | None, str | None]] = []
        for judge, lines in self.ballots(with_unseen=False):
            for a, op, b in lines:
                left = self.answer(self.latest_shown(judge, a) or (-1, -1))
                right = self.answer(self.latest_shown(judge, b) or (-1, -1))
                if judge[0] != agent:
                    won.setdefault(left, prior)
                    won.setdefault(right, prior)
                    if left != right:
                        games.append((left, right))
                        won[left] += float(POINTS[op])
                        won[right] += 1 - float(POINTS[op])
        strength = dict.fromkeys(won, 1.0)
        for _ in range(3_000):
            update = {}
            for item, wins in won.items():
                odds = 2 * prior / (strength[item] + 1)
                for game in games:
                    if item in game:
                        odds += 1 / (strength[game[0]] + strength[game[1]])
                update[item] = wins / odds
            change = max(abs(math.log(update[i] / strength[i])) for i in won) if won else 0.0
            strength = update
            if change < 1e-13:
                break
        return strength


def drawn(seed: int) -> Drawn:
    """Draw a debate with failed turns, repeated answers and lines of every kind."""
    chance = random.Random(seed)
    num_agents = chance.randint(3, 6)
    turns: dict[Key, tuple[str, list[Said]] | None] = {}
    for round_ in range(chance.randint(1, 3)):
        for agent in range(num_agents):
            lines = [
                (
                    chance.randrange(num_agents + 1),
                    chance.choice("><="),
                    chance.randrange(num_agents),
                )
                for _ in range(chance.randrange(7))
            ]
            turns[agent, round_] = (chance.choice(("x", "y", "z")), lines)
            if chance.random() < 0.1:
                turns[agent, round_] = None
    return Drawn(num_agents, chance.choice(("parallel", "sequential")), turns)


def test_v2_equals_a_second_reading_on_random_debates():
    num_valued = 0
    for seed in range(2_000):
        debate, ties = drawn(seed), ("half", "ignore")[seed % 2]
        values = generator(debate.transcript(), V2(pool="answer", ties=ties))
        for key, spoken in debate.turns.items():
            expected = None
            if spoken is None:
                expected = -1.0
            else:
                won, num_votes = debate.turn_share(key, ties)
                if num_votes:
                    expected = float(2 * won / num_votes - 1)
                    num_valued += 1
            assert values[key] == (None if expected is None else pytest.approx(expected)), seed
    assert num_valued > 10_000


def test_win_rate_equals_a_second_reading_on_random_debates():
    for seed in range(2_000):
        debate, ties = drawn(seed), ("half", "ignore")[seed % 2]
        (score,) = WinRate(pool="answer", ties=ties)([debate.transcript()])
        for agent in range(debate.num_agents):
            won, num_votes = debate.agent_share(agent, ties)
            num_failed = sum(s is None for key, s in debate.turns.items() if key[0] == agent)
            expected = float(won / num_votes if num_votes else 0) - num_failed
            assert score.agents[agent] == pytest.approx(expected), seed


def test_bradley_terry_equals_a_second_reading_on_random_debates():
    for seed in range(300):
        debate = drawn(seed)
        values = generator(debate.transcript(), BradleyTerry(pool="answer", prior=0.7))
        for agent in range(debate.num_agents):
            strengths = debate.strengths(agent, 0.7)
            for key, spoken in debate.turns.items():
                if key[0] != agent or spoken is None:
                    continue
                strength = strengths.get(spoken[0])
                if strength is None:
                    assert values[key] is None
                else:
                    expected = (strength - 1) / (strength + 1)
                    assert values[key] == pytest.approx(expected, abs=1e-7), seed
