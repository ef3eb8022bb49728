r"""What a debate as a whole answers: by majority, by votes or their strengths, or by its center.

Ties are drawn by `random.Random(f"{seed}\n{transcript.id}")`, so that the same seed always gives
the same decision on a debate and different debates draw apart.
"""

import hashlib
import logging
import math
import random
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from debate_protocol.plugins import Config
from debate_protocol.transcripts.files import mean_logp
from debate_protocol.types import Gate, GateDecision, Question, Transcript
from debate_rewards.answer_checking import answer_classes, check_many, kind_of
from debate_rewards.answers.reply import final_answer
from debate_rewards.reward import ReadDebate, ReadTurn, read_debate
from debate_rewards.strengths import log_strengths, wins_of
from debate_rewards.votes import Share, all_votes, ballots, judgments, tally

Debate = Transcript | ReadDebate


def _read(debate: Debate) -> ReadDebate:
    return debate if isinstance(debate, ReadDebate) else read_debate(debate)


def majority(debate: Debate, seed: int) -> str | None:
    """Return the answer that most agents gave in the last round, None when nobody answered.

    Answers are counted by equivalence. Among equally large classes one is drawn, repeatably by
    seed and transcript id.
    """
    return _weightiest(_read(debate), seed, lambda turn: 1.0)


def confidence(debate: Debate, seed: int) -> str | None:
    """Return the answer of the last round whose agents were the most confident together.

    As `majority`, but a vote weighs as much as the geometric mean of the probabilities of its
    reply's tokens, exp(mean log-probability). None when nobody answered, or when an answer's
    log-probabilities are not known.
    """
    debate = _read(debate)
    if not knows_confidence(debate):
        return None
    return _weightiest(debate, seed, lambda turn: math.exp(mean_logp(turn.turn) or 0.0))


def knows_confidence(debate: ReadDebate) -> bool:
    """Return whether the log-probabilities of the last round's answers are known."""
    answered = _answered_last(debate)
    return bool(answered) and all(mean_logp(turn.turn) is not None for turn in answered)


def peer_vote(debate: Debate, seed: int) -> str | None:
    """Return the answer of the agent whom the others voted up most, None when nobody answered.

    The votes come from the last round in which any were cast; an agent's standing is its votes
    for minus its votes against, ties half each way, and the answer is that of the turn that was
    judged. Equal standings are drawn from, repeatably by seed and transcript id; without any votes
    that is every agent with an answer in the last round.
    """
    debate = _read(debate)
    judged = standings(debate)
    if not judged:
        return _one_of(debate, seed, _answered_last(debate))
    best = max(standing for _, standing in judged)
    return _one_of(debate, seed, [turn for turn, standing in judged if standing == best])


def bradley_terry(debate: Debate, seed: int) -> str | None:
    """Return the answer of the agent whose Bradley-Terry strength is the greatest.

    The strengths are those of the agents over the votes of all rounds, ties half a win for each,
    under the prior of one win and one loss against an agent of strength 1 (`BradleyTerry`); a win
    against a strong agent counts for more than one against a weak one. Votes on one's own turn do
    not count. The answer is the agent's last one. Equals are drawn from; without votes that is
    every agent that answered last.
    """
    debate = _read(debate)
    cast = [v for v in all_votes(ballots(debate)) if not v.is_own]
    wins = wins_of(cast, "half", lambda key: key.agent)
    # The fit ends within its tolerance: what is closer than that is equally strong.
    strengths = {agent: round(log, 8) for agent, log in log_strengths(wins, 1.0).items()}
    answered = {turn.key.agent: turn for turn in debate.turns.values() if not turn.failed}
    judged = sorted(strengths.keys() & answered.keys())
    if not judged:
        return _one_of(debate, seed, _answered_last(debate))
    best = max(strengths[agent] for agent in judged)
    return _one_of(debate, seed, [answered[a] for a in judged if strengths[a] == best])


def central(debate: Debate) -> str | None:
    """Return the last answer of the agent that aggregates under topology `central`.

    None when it never spoke or its last turn has no answer.

    Raises:
        ValueError: The topology is another one.
    """
    debate = _read(debate)
    rules = debate.transcript.protocol
    if rules.topology != "central":
        raise ValueError(
            f"debate {debate.transcript.id!r}, decision central: found topology "
            f"{rules.topology!r}, expected 'central'"
        )
    spoken = [turn for key, turn in debate.turns.items() if key.agent == (rules.center or 0)]
    return answer_text(debate, max(spoken, key=lambda turn: turn.key.round)) if spoken else None


def decisions_of(debate: ReadDebate, seed: int) -> dict[str, str | None]:
    """Return the answer of every decision rule that applies to the debate, by name."""
    decided = {"majority": majority(debate, seed)}
    if debate.compares:
        decided["peer_vote"] = peer_vote(debate, seed)
        decided["bradley_terry"] = bradley_terry(debate, seed)
    if knows_confidence(debate):
        decided["confidence"] = confidence(debate, seed)
    if debate.transcript.protocol.topology == "central":
        decided["central"] = central(debate)
    if judgments(debate):
        decided["judged"] = judged(debate, seed)
    return decided


def judged(debate: Debate, seed: int) -> str | None:
    """Return the last answer of the side that most judges decide for, ties drawn.

    None where most hold the only answer to be wrong, or nobody decides.
    """
    debate = _read(debate)
    made = Counter(one.decision for one in judgments(debate) if one.decision is not None)
    most = [side for side in sorted(made) if made[side] == max(made.values())]
    side = most[_draw(debate.transcript, seed, range(len(most)))] if most else None
    own = [turn for key, turn in debate.turns.items() if key.agent == side and not turn.failed]
    return answer_text(debate, own[-1]) if own else None


def last_turns(debate: ReadDebate) -> dict[int, ReadTurn]:
    """Return the turns of the last round, by agent."""
    last = debate.last_round
    return {key.agent: turn for key, turn in debate.turns.items() if key.round == last}


def _answered_last(debate: ReadDebate) -> list[ReadTurn]:
    return [turn for turn in last_turns(debate).values() if not turn.failed]


def _one_of(debate: ReadDebate, seed: int, turns: Sequence[ReadTurn]) -> str | None:
    """Return the answer of one of these turns, drawn by seed; None without any."""
    if not turns:
        return None
    return answer_text(debate, turns[_draw(debate.transcript, seed, range(len(turns)))])


def answer_text(debate: ReadDebate, turn: ReadTurn) -> str | None:
    """Return a turn's own final answer as text, None for a failed turn."""
    if turn.failed or turn.parsed.answer is None:
        return None
    answer = final_answer(turn.parsed.answer, kind_of(debate.transcript.question))
    return None if answer is None else answer.text


def standings(debate: ReadDebate) -> list[tuple[ReadTurn, float]]:
    """Return each judged agent's latest judged turn with its votes for minus against.

    The votes come from the last round in which any were cast; without votes there is none.
    """
    cast = ballots(debate)
    voted = [key.round for key, ballot in cast.items() if ballot.votes]
    if not voted:
        return []
    judges = [key for key in cast if key.round == max(voted)]
    shares = tally(vote for key in judges for vote in cast[key].votes)
    latest: dict[int, ReadTurn] = {}
    net: dict[int, float] = {}
    judged = [debate.judged_by(debate.judges[key]).values() for key in judges]
    valid = {turn.key: turn for turns in judged for turn in turns if not turn.failed}
    for _, turn in sorted(valid.items()):
        agent = turn.key.agent
        share = shares.get(turn.key, Share(0.0, 0.0))
        net[agent] = net.get(agent, 0.0) + share.up - share.down
        if agent not in latest or latest[agent].key.round < turn.key.round:
            latest[agent] = turn
    return [(latest[agent], net[agent]) for agent in sorted(latest)]


def _weightiest(debate: ReadDebate, seed: int, weight: Callable[[ReadTurn], float]) -> str | None:
    """Return the answer of the last round whose turns weigh the most together."""
    turns = list(last_turns(debate).values())
    answers = [answer_text(debate, turn) for turn in turns]
    classes = answer_classes(debate.transcript.question, answers)
    weights: dict[int, float] = {}
    for number, turn in zip(classes, turns, strict=True):
        if number is not None:
            weights[number] = weights.get(number, 0.0) + weight(turn)
    if not weights:
        return None
    largest = max(weights.values())
    chosen = _draw(debate.transcript, seed, [n for n, own in weights.items() if own == largest])
    return answers[classes.index(chosen)]


def _draw(transcript: Transcript, seed: int, among: Sequence[int]) -> int:
    # The bytes that Python itself would take, but for ids with lone surrogates.
    drawn_by = f"{seed}\n{transcript.id}".encode("utf-8", "surrogatepass")
    return random.Random(drawn_by).choice(among)


_log = logging.getLogger(__name__)

Answers = Sequence[tuple[Question, str | None]]
# Says which answers are right; None where the question's own answer cannot be used.
Correct = Callable[[Answers], Sequence[bool | None]]


def checked(answers: Answers) -> list[bool | None]:
    """Judge answers as the reward `verifiable` does."""
    verdicts = check_many(answers)
    return [None if v.verdict == "unverifiable" else v.verdict == "right" for v in verdicts]


class _Rule(Config):
    """A rule decides on gates of one name, or on all; others go on."""

    counts_debates: ClassVar[bool] = False
    """Whether a decision depends on how many other debates the batch has."""
    needs_answers: ClassVar[bool] = False
    """Whether it compares with the questions' own answers."""

    at: str | None = None
    """The gate's name, such as `round_0`."""

    @property
    def compares_turns(self) -> bool:
        """Whether a debate of one turn can never be kept."""
        return False

    @property
    def drops(self) -> bool:
        """Whether it may leave debates out."""
        return False

    def most_going_on(self, debates: int, gate: str) -> int:
        """Return how many of so many debates may go on after the gates of a name."""
        return debates

    def __call__(
        self, gates: Sequence[Gate], *, seed: int = 0, correct: Correct = checked
    ) -> list[GateDecision]:
        """Return one decision a gate: go on, keep (the debate ends here) or drop (it is left out).

        Args:
            gates: Of the batch.
            seed: For what is drawn.
            correct: Judges answers, all of the batch at once.
        """
        decisions: list[GateDecision] = ["go_on"] * len(gates)
        places = [i for i, gate in enumerate(gates) if self.at in (None, gate.name)]
        found = self._decide([gates[place] for place in places], seed, correct)
        for place, decision in zip(places, found, strict=True):
            decisions[place] = decision
        return decisions

    @abstractmethod
    def _decide(self, gates: Sequence[Gate], seed: int, correct: Correct) -> list[GateDecision]:
        """Return one decision for each gate of this rule."""


class Informative(_Rule):
    """Drops groups that teach nothing: all answers right, or all wrong.

    The answers come from the latest round; a failed turn is wrong. A question whose own answer
    is missing or cannot be read is dropped, and a warning names it.

    Source: DAPO (Yu et al. 2025), eq. 8's condition 0 < |right| < G; SDRL (paper), eq. 7. The
    over-sampling that makes up for what is dropped is the caller's (a recipe's `oversample`).
    """

    type: Literal["informative"] = "informative"
    group: Literal["debate", "question"] = "debate"
    """Whose answers belong together; `question` where each debate is one reply of a group."""

    needs_answers: ClassVar[bool] = True

    @property
    def compares_turns(self) -> bool:
        """Within a debate, one turn is all right or all wrong."""
        return self.group == "debate"

    @property
    def drops(self) -> bool:
        """Groups that teach nothing."""
        return True

    def _decide(self, gates: Sequence[Gate], seed: int, correct: Correct) -> list[GateDecision]:
        asked: list[tuple[Question, str | None]] = []
        groups: dict[str, list[int]] = {}
        names = [
            gate.question.id if self.group == "question" else str(place)
            for place, gate in enumerate(gates)
        ]
        for gate, name in zip(gates, names, strict=True):
            for answer in _answers(gate):
                groups.setdefault(name, []).append(len(asked))
                asked.append((gate.question, answer))
        right = correct(asked)
        decisions: list[GateDecision] = []
        for gate, name in zip(gates, names, strict=True):
            found = {right[index] for index in groups.get(name, ())}
            if None in found:
                _log.warning("question %r is left out: no usable answer", gate.question.id)
            decisions.append("go_on" if found == {True, False} else "drop")
        return decisions


class AtMost(_Rule):
    """Lets a number of debates go on, drawn by seed and debate id; the others end or are dropped.

    Source: SDRL (paper), appendix A.1: 128 of the prompts of a step debate.
    """

    type: Literal["at_most"] = "at_most"
    go_on: int = Field(ge=0)
    """Most debates that go on."""
    others: Literal["keep", "drop"] = "keep"
    """What becomes of the others: `keep` ends them and trains on their turns, `drop` does not."""

    counts_debates: ClassVar[bool] = True

    def most_going_on(self, debates: int, gate: str) -> int:
        """Return how many of so many debates may go on after the gates of a name."""
        return min(self.go_on, debates) if self.at in (None, gate) else debates

    @property
    def drops(self) -> bool:
        """Those beyond the number, where they are not kept."""
        return self.others == "drop"

    def _decide(self, gates: Sequence[Gate], seed: int, correct: Correct) -> list[GateDecision]:
        # The order of the gates does not matter.
        drawn = sorted(range(len(gates)), key=lambda place: _lot(seed, gates[place]))
        going = set(drawn[: self.go_on])
        return ["go_on" if place in going else self.others for place in range(len(gates))]


class Agreed(_Rule):
    """Ends debates early: those where one answer has this share of the latest round's turns."""

    type: Literal["agreed"] = "agreed"
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the turns of the latest round that must have one answer."""

    def _decide(self, gates: Sequence[Gate], seed: int, correct: Correct) -> list[GateDecision]:
        decisions: list[GateDecision] = []
        for gate in gates:
            answers = _answers(gate)
            classes = answer_classes(gate.question, answers)
            largest = max((classes.count(n) for n in classes if n is not None), default=0)
            agreed = largest and largest >= self.share * len(answers)
            decisions.append("keep" if agreed else "go_on")
        return decisions


SingleRule = Annotated[Informative | AtMost | Agreed, Field(discriminator="type")]


class InOrder(Config):
    """Several rules, each on the debates that go on after those before it."""

    type: Literal["in_order"] = "in_order"
    rules: tuple[SingleRule, ...] = Field(min_length=1)
    """The rules, first to last."""

    @property
    def compares_turns(self) -> bool:
        """Whether any of its rules does."""
        return any(rule.compares_turns for rule in self.rules)

    @property
    def drops(self) -> bool:
        """Whether any of its rules does."""
        return any(rule.drops for rule in self.rules)

    @property
    def needs_answers(self) -> bool:
        """Whether any of its rules does."""
        return any(rule.needs_answers for rule in self.rules)

    def most_going_on(self, debates: int, gate: str) -> int:
        """Return how many of so many debates may go on after the gates of a name."""
        for rule in self.rules:
            debates = rule.most_going_on(debates, gate)
        return debates

    def __call__(
        self, gates: Sequence[Gate], *, seed: int = 0, correct: Correct = checked
    ) -> list[GateDecision]:
        """Return one decision a gate."""
        decisions: list[GateDecision] = ["go_on"] * len(gates)
        for rule in self.rules:
            going = [i for i, decision in enumerate(decisions) if decision == "go_on"]
            found = rule([gates[i] for i in going], seed=seed, correct=correct)
            for place, decision in zip(going, found, strict=True):
                decisions[place] = decision
        return decisions


# Any rule; `type` names it. `functools.partial(rule, seed=…)` is a `select` of `play`.
GateRule = Annotated[Informative | AtMost | Agreed | InOrder, Field(discriminator="type")]


def divided(rule: GateRule) -> tuple[GateRule | None, GateRule | None]:
    """Return what a rule decides on each debate or question alone, and what it decides by counting.

    The second part begins with the first rule that counts the debates of the batch. Either is None
    where there is nothing of it.
    """
    rules = rule.rules if isinstance(rule, InOrder) else (rule,)
    counting = [place for place, one in enumerate(rules) if one.counts_debates]
    border = counting[0] if counting else len(rules)
    before, after = (
        InOrder(rules=part) if part else None for part in (rules[:border], rules[border:])
    )
    return before, after


def _answers(gate: Gate) -> list[str | None]:
    turns = last_turns(read_debate(gate.transcript)).values()
    return [None if turn.failed else turn.parsed.answer for turn in turns]


def _lot(seed: int, gate: Gate) -> bytes:
    name = f"{seed}/{gate.transcript.id}"
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
