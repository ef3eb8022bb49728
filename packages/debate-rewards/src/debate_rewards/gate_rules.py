"""Rules that answer the gates of a batch: which debates go on, end here, or are left out."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, Protocol

from pydantic import Field

from debate_protocol.plugins import Config
from debate_protocol.types import Gate, GateDecision, Question
from debate_rewards.answers.checking import answer_classes, check_many
from debate_rewards.reward import read_debate
from debate_rewards.votes.decisions import last_turns

_log = logging.getLogger(__name__)

Answers = Sequence[tuple[Question, str | None]]
Correct = Callable[[Answers], Sequence[bool | None]]
"""Says which answers are right; None where the question's own answer cannot be used."""


def checked(answers: Answers) -> list[bool | None]:
    """Judge answers as the reward `verifiable` does."""
    verdicts = check_many(answers)
    return [None if v.verdict == "unverifiable" else v.verdict == "right" for v in verdicts]


class SelectGates(Protocol):
    """Answers the gates of a batch, one decision each, in order."""

    def __call__(
        self, gates: Sequence[Gate], *, seed: int = 0, correct: Correct = ...
    ) -> list[GateDecision]:
        """Decide: `go_on`, `keep` (the debate ends here) or `drop` (it is left out).

        Args:
            gates: Of the batch.
            seed: For what is drawn.
            correct: Judges answers, all of the batch at once.
        """
        ...


class _Rule(Config):
    """A rule decides on gates of one name, or on all; others go on."""

    at: str | None = None
    """The gate's name, such as `round_0`."""

    @property
    def counts_debates(self) -> bool:
        """Whether a decision depends on how many other debates the batch has."""
        return False

    @property
    def compares_turns(self) -> bool:
        """Whether a debate of one turn can never be kept."""
        return False

    @property
    def drops(self) -> bool:
        """Whether it may leave debates out."""
        return False

    @property
    def needs_answers(self) -> bool:
        """Whether it compares with the questions' own answers."""
        return False

    def most_going_on(self, debates: int, gate: str) -> int:
        """Return how many of so many debates may go on after the gates of a name."""
        return debates

    def _places(self, gates: Sequence[Gate]) -> list[int]:
        return [i for i, gate in enumerate(gates) if self.at in (None, gate.name)]


class Informative(_Rule):
    """Drops groups that teach nothing: all answers right, or all wrong.

    The answers are those of the latest round; a failed turn is wrong. A question whose own answer
    is missing or cannot be read is dropped, and a warning names it.

    Source: DAPO (Yu et al. 2025), eq. 8's condition 0 < |right| < G; SDRL (paper), eq. 7. The
    over-sampling that makes up for what is dropped is the caller's (a recipe's `oversample`).
    """

    type: Literal["informative"] = "informative"
    group: Literal["debate", "question"] = "debate"
    """Whose answers belong together; `question` where each debate is one reply of a group."""

    @property
    def compares_turns(self) -> bool:
        """Within a debate, one turn is all right or all wrong."""
        return self.group == "debate"

    @property
    def drops(self) -> bool:
        """Groups that teach nothing."""
        return True

    @property
    def needs_answers(self) -> bool:
        """A question without one is left out."""
        return True

    def __call__(
        self, gates: Sequence[Gate], *, seed: int = 0, correct: Correct = checked
    ) -> list[GateDecision]:
        """Return one decision a gate."""
        asked: list[tuple[Question, str | None]] = []
        groups: dict[str, list[int]] = {}
        members: dict[int, str] = {}
        for place in self._places(gates):
            gate = gates[place]
            members[place] = gate.question.id if self.group == "question" else str(place)
            for answer in _answers(gate):
                groups.setdefault(members[place], []).append(len(asked))
                asked.append((gate.question, answer))
        right = correct(asked)
        decisions: list[GateDecision] = ["go_on"] * len(gates)
        for place, name in members.items():
            found = {right[index] for index in groups.get(name, ())}
            if None in found:
                _log.warning("question %r is left out: no usable answer", gates[place].question.id)
            if found != {True, False}:
                decisions[place] = "drop"
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

    @property
    def counts_debates(self) -> bool:
        """It counts those of the batch."""
        return True

    def most_going_on(self, debates: int, gate: str) -> int:
        """Return how many of so many debates may go on after the gates of a name."""
        return min(self.go_on, debates) if self.at in (None, gate) else debates

    @property
    def drops(self) -> bool:
        """Those beyond the number, where they are not kept."""
        return self.others == "drop"

    def __call__(
        self, gates: Sequence[Gate], *, seed: int = 0, correct: Correct = checked
    ) -> list[GateDecision]:
        """Return one decision a gate; the order of the gates does not matter."""
        decisions: list[GateDecision] = ["go_on"] * len(gates)
        places = sorted(self._places(gates), key=lambda place: _lot(seed, gates[place]))
        for place in places[self.go_on :]:
            decisions[place] = self.others
        return decisions


class Agreed(_Rule):
    """Ends debates early: those where one answer has this share of the latest round's turns."""

    type: Literal["agreed"] = "agreed"
    share: float = Field(default=1.0, gt=0, le=1)
    """Share of the turns of the latest round that must have one answer."""

    def __call__(
        self, gates: Sequence[Gate], *, seed: int = 0, correct: Correct = checked
    ) -> list[GateDecision]:
        """Return one decision a gate."""
        decisions: list[GateDecision] = ["go_on"] * len(gates)
        for place in self._places(gates):
            answers = _answers(gates[place])
            classes = answer_classes(gates[place].question, answers)
            largest = max((classes.count(n) for n in classes if n is not None), default=0)
            if largest and largest >= self.share * len(answers):
                decisions[place] = "keep"
        return decisions


SingleRule = Annotated[Informative | AtMost | Agreed, Field(discriminator="type")]


class InOrder(Config):
    """Several rules, each on the debates that go on after those before it."""

    type: Literal["in_order"] = "in_order"
    rules: tuple[SingleRule, ...] = Field(min_length=1)
    """The rules, first to last."""

    @property
    def counts_debates(self) -> bool:
        """Whether any of its rules does."""
        return any(rule.counts_debates for rule in self.rules)

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


GateRule = Annotated[Informative | AtMost | Agreed | InOrder, Field(discriminator="type")]
"""Any rule; `type` names it. `functools.partial(rule, seed=…)` is a `select` of `play`."""


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
